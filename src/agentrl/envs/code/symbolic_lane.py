"""Runs inside the grading sandbox, one process a comparison: two LaTeX expressions on stdin, the verdict as exit code.

math-verify parses and compares; what it is known to accept wrongly is checked again with exact arithmetic. The exit
codes are those of ``symbolic.py``, which sends this file's text and shares nothing else with it.
"""

import json
import logging
import sys
from typing import Any

from math_verify import LatexExtractionConfig, parse, verify
from sympy import Basic, Expr, FiniteSet, I, N, Rational, nsimplify, simplify

EQUAL, DIFFERENT, NO_GOLD, NO_ANSWER, RAISED = 40, 41, 42, 43, 44


def read(text: str) -> list[Any]:
    found = parse(
        f"${text}$",
        extraction_config=[LatexExtractionConfig()],
        fallback_mode="no_fallback",
        parsing_timeout=None,
    )
    return [x.subs({s: I for s in x.free_symbols if s.name == "i"}) for x in found if not isinstance(x, str)]


def is_value(x: Any) -> bool:
    return isinstance(x, Expr) and not x.free_symbols and bool(x.is_number)


def same_values(a: Any, b: Any) -> bool:
    """Numbers are compared exactly, or to 30 digits; math-verify rounds to 6 places, which makes 1/50! equal 1/52!."""
    if isinstance(a, Rational) and isinstance(b, Rational):
        return bool(a == b)
    exact = nsimplify(a, rational=True), nsimplify(b, rational=True)
    first, second = N(exact[0], 30), N(exact[1], 30)
    if not (first.is_finite and second.is_finite):
        return bool(a == b)  # or infinity, and log 0, would be within any share of itself of every number
    difference = abs(N(exact[0] - exact[1], 30))
    size = max(abs(first), abs(second))
    decimals = a.atoms().union(b.atoms())
    tolerance = 1e-9 if any(x.is_Float for x in decimals) else 1e-25
    return bool(difference <= tolerance * size)


def main() -> int:
    gold_text, answer_text = json.load(sys.stdin)
    gold, answer = read(gold_text), read(answer_text)
    if not gold:
        return NO_GOLD
    if not answer:
        return NO_ANSWER
    a, b = gold[0], answer[0]
    if isinstance(a, FiniteSet) != isinstance(b, FiniteSet):
        return DIFFERENT
    if is_value(a) and is_value(b):
        return EQUAL if same_values(a, b) else DIFFERENT
    if isinstance(a, Expr) and isinstance(b, Expr):
        if a.free_symbols != b.free_symbols and simplify(a - b) != 0:
            return DIFFERENT
        if simplify(a - b) == 0:
            return EQUAL
    both = isinstance(a, Basic) and isinstance(b, Basic)
    if both and isinstance(a, Expr) != isinstance(b, Expr):
        return DIFFERENT
    return EQUAL if verify(a, b, timeout_seconds=None, allow_set_relation_comp=True) else DIFFERENT


logging.disable(logging.CRITICAL)
try:
    verdict = main()
except Exception:  # of sympy or math-verify on these expressions; what fails before this line is the lane's own fault
    verdict = RAISED
sys.exit(verdict)
