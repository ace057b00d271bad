"""Algebraic equality of two expressions, decided in a sandbox of its own: the trainer never evaluates model text.

Both expressions are first held against a list of what mathematics may consist of (``acceptable``): names, LaTeX
commands, sizes of exponents. One sandboxed process per comparison then runs ``symbolic_lane.py`` with math-verify; its
verdict is an exit code. A comparison that uses up its CPU time or memory counts as not equal (the answer is the
policy's choice); one that the sandbox failed, that got no CPU time for a minute, or whose program did not start, raises
GradingFailed: that trajectory is not scored.
"""

from __future__ import annotations

import json
import re
import threading
from collections import Counter, OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

LANE = Path(__file__).with_name("symbolic_lane.py")
VERDICTS = {40: "equal", 41: "different", 42: "unread", 43: "unread", 44: "raised"}
"""Exit codes of the lane program."""

CPU_S, WALL_S = 3, 60
REMEMBERED = 20_000
MAX_CHARS = 300

_NAMES = """
frac sqrt cdot times div pm mp pi infty cup cap in notin subset setminus mid sin cos tan cot sec csc arcsin arccos
arctan sinh cosh tanh ln log exp le leq ge geq lt gt ne neq alpha beta gamma delta epsilon varepsilon theta lambda mu
nu rho sigma tau phi varphi omega Delta Omega Sigma begin end mathbb overline binom ldots dots quad qquad lfloor
rfloor lceil rceil cis degree vee wedge to
"""
_COMMANDS = frozenset(_NAMES.split())
_FUNCTIONS = ("sqrt", "arcsin", "arccos", "arctan", "sin", "cos", "tan", "log", "exp", "ln", "pi", "oo", "inf")
_WORDS = re.compile(r"\\?[A-Za-z]+")
_MATRIX = re.compile(r"\\(?:begin|end)\{(?:pmatrix|bmatrix|vmatrix|matrix|smallmatrix)\}")
_ALLOWED = re.compile(r"[A-Za-z0-9\s+\-*/^_=<>()\[\]{}.,;|!&\\%:]*")


class GradingFailed(RuntimeError):
    """The sandbox that compares expressions failed; nothing is known about the answer."""


def latex(text: str) -> str:
    """Plain notation (``sqrt(2)/2``, ``2*pi``, ``x**2``, sympy's ``I``) as LaTeX; text that is LaTeX stays as it is."""
    text = re.sub(r"(?<![A-Za-z\\])I(?![A-Za-z])", "i", text.replace("**", "^"))
    text = re.sub(r"\^\s*\(([^()]*)\)", r"^{\1}", text)
    text = re.sub(r"\^\s*(-?\d{2,})", r"^{\1}", text)
    if "\\" not in text:
        text = re.sub(r"(?<![A-Za-z])sqrt\s*\(([^()]*)\)", r"\\sqrt{\1}", text)
        text = re.sub(r"(?<![A-Za-z\\])(?:oo|inf)(?![A-Za-z])", r"\\infty ", text)
        text = re.sub(rf"(?<![A-Za-z\\])({'|'.join(_FUNCTIONS)})(?![A-Za-z])", r"\\\1 ", text)
    return re.sub(r"(?<!\\)\*", r"\\cdot ", text)


def acceptable(text: str) -> bool:
    """Whether the text can be a formula of moderate size; anything else is not worth a process."""
    if len(text) > MAX_CHARS or not _ALLOWED.fullmatch(text) or "__" in text or re.search(r"[A-Za-z)\]]\.", text):
        return False
    for word in _WORDS.findall(_MATRIX.sub("", text).replace("\\\\", " ")):
        if word.startswith("\\"):
            if word[1:] not in _COMMANDS:
                return False
        elif len(word) > 3:
            return False
    if any(text.count(a) != text.count(b) for a, b in ("()", "[]", "{}")) and "[" not in text:
        return False
    if max((len(digits) for digits in re.findall(r"\d+", text)), default=0) > 60:
        return False
    if re.search(r"\^\s*(?:\{[^{}]*\}?|[-+]?\w|\\[A-Za-z]+)\s*\^|\d[eE][-+]?\d{4}", text):  # a tower, a huge exponent
        return False
    exponents = re.findall(r"\^\s*\{?\s*-?\s*(\d+)", text)
    return all(len(e) <= 3 for e in exponents) and all(len(f) <= 3 for f in re.findall(r"(\d+)\s*!", text))


class Comparer:
    """``comparer(gold, answer)``: equal or not, remembered. Opens its sandbox at the first comparison; thread-safe."""

    def __init__(self, options: Mapping[str, Any], unsafe_local_exec: bool = False):
        self._options, self._unsafe = dict(options), unsafe_local_exec
        self._sandbox: Any = None
        self._lock = threading.Lock()
        self._known: OrderedDict[tuple[str, str], bool] = OrderedDict()
        self.counts: Counter[str] = Counter()  # checks by result: equal, different, unread, timeout_cpu …

    def __call__(self, gold: str, answer: str) -> bool:
        pair = (latex(gold), latex(answer))
        if not all(acceptable(text) for text in pair):
            self.counts["refused"] += 1
            return False
        with self._lock:
            if pair in self._known:
                self._known.move_to_end(pair)
                return self._known[pair]
        verdict = self._compare(*pair)
        with self._lock:
            self._known[pair] = verdict
            while len(self._known) > REMEMBERED:
                self._known.popitem(last=False)
        return verdict

    def _compare(self, gold: str, answer: str) -> bool:
        from agentrl.sandbox import Status

        result = self._opened().run(LANE.read_text(), stdin=json.dumps([gold, answer]))
        if result.exit_code in VERDICTS:
            verdict = VERDICTS[result.exit_code]
        elif result.status in (Status.TIMEOUT_CPU, Status.OOM, Status.SIGNAL):
            verdict = str(result.status.value)
        else:
            reason = result.message() or result.stderr.strip()[-200:] or f"exit code {result.exit_code}"
            raise GradingFailed(f"comparing two expressions: {reason}")
        self.counts[verdict] += 1
        return verdict == "equal"

    def _opened(self) -> Any:
        from agentrl.sandbox import Limits, Sandbox

        with self._lock:
            if self._sandbox is None:
                self._sandbox = Sandbox.open(
                    level=self._options.get("level"),
                    limits=Limits(cpu_s=CPU_S, wall_s=WALL_S),
                    preload=("math_verify", "sympy"),
                    workers=1,
                    unsafe_local_exec=self._unsafe,
                )
            return self._sandbox

    def close(self) -> None:
        with self._lock:
            if self._sandbox is not None:
                self._sandbox.close()
            self._sandbox = None
