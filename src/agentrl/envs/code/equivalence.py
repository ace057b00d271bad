"""Whether an answer means the same as the gold answer. Text is parsed here and never evaluated.

In order: choices, numbers (exact, tolerance only where decimals were written), units, equal text, dates, lists, sets,
tuples and intervals element by element. What is left needs algebra and goes to ``symbolic``, which runs elsewhere.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction

from agentrl.envs.code import values
from agentrl.envs.code.values import Number, Quantity

Symbolic = Callable[[str, str], bool]
"""(gold, answer) → whether they are equal as mathematics."""

KINDS = ("math", "number", "exact", "choice")

RELATIVE = Fraction(1, 10**9)
DIGITS = 6  # an answer of so many significant digits may be a rounding of a gold answer that is no integer
MAX_ELEMENTS = 30

_CHOICE = re.compile(
    r"(?:the\s+)?(?:(?:correct\s+)?(?:option|choice|answer)(?:\s+is)?\s*:?\s*)?"
    r"(?:\(\s*([A-Za-z])\s*\)|([A-Za-z])\s*[.):]|([A-Za-z])$)\s*(.*)",
    re.IGNORECASE | re.DOTALL,
)
_GOLD_CHOICE = re.compile(r"\(\s*[A-J]\s*\)|[A-J]")
_HEDGE = re.compile(r"(?:or|and)\b|[,/&]|.*(?:\(\s*[A-J]\s*\)|\b[A-J]\s*[.):])|[A-J]\b", re.DOTALL)
_ASSIGNED = re.compile(
    r"((?:[A-Za-z](?:_\{?\w+\}?)?|\(\s*[A-Za-z](?:\s*,\s*[A-Za-z])+\s*\)))\s*(?:=(?!=)|\\in(?![a-z]))\s*(?=\S)"
)
_IN_BASE = re.compile(r"(\d[0-9A-Fa-f]*)_\{?\s*(\d+)\s*\}?")
_SEPARATOR = re.compile(r"\s*[,;]\s*(?:and\s+)?|\s+(?:and|or)\s+")
_WORDS = re.compile(r"[^\W\d_](?:[^\W\d_]|[' -])*[^\W\d_]")
_DATE = re.compile(r"(\d{4})-(\d{1,2})-(\d{1,2})|(\d{1,2})/(\d{1,2})/(\d{4})|(\d{1,2}):(\d{2})\s*([AaPp])\.?[Mm]\.?")
_RELATION = re.compile(r"\s*(<|>|\\l(?:e|eq|t)(?![a-z])|\\g(?:e|eq|t)(?![a-z]))\s*")


@dataclass(frozen=True)
class Rules:
    """How one answer is compared.

    ``kind``: ``math`` (everything below), ``number`` (numbers and units only), ``exact`` (the text, but for spacing)
    or ``choice``. ``tolerance`` is absolute, ``relative`` relative to the gold answer; both 0 unless the data says so.
    ``unit`` is the gold answer's unit when it is given apart. ``choices`` are the texts of choices A, B, ….
    """

    kind: str = "math"
    tolerance: Fraction = Fraction(0)
    relative: Fraction = Fraction(0)
    unit: str | None = None
    choices: Sequence[str] = ()


def equivalent(gold: str, answer: str, rules: Rules, symbolic: Symbolic) -> bool:
    """Whether ``answer`` is right. Raises only what ``symbolic`` raises."""
    if not answer.strip() or len(answer) > values.MAX_CHARS:
        return False
    if rules.kind == "exact":
        return " ".join(answer.split()) == " ".join(gold.split())
    right, given = values.tidy(gold), values.tidy(answer)
    if not given or not right:
        return False
    if rules.kind == "choice" or (rules.kind == "math" and _GOLD_CHOICE.fullmatch(right)):
        return _same_choice(right, given, rules, symbolic)
    if rules.unit:
        right = f"{right} {rules.unit}"
    return _same(right, given, rules, symbolic, 0)


def _same(gold: str, answer: str, rules: Rules, symbolic: Symbolic, depth: int) -> bool:
    right, found = _read(gold), _read(answer)
    # Without its spaces 1 1/2 would be 11/2, and 4 2 would be 42.
    if _squeezed(gold) == _squeezed(answer) and right is None:
        return True
    if _is_words(gold):
        return gold.casefold() == answer.casefold()
    if (date := _DATE.fullmatch(gold)) is not None:
        return _as_date(date) == _as_date(_DATE.fullmatch(answer))
    named, gold = _without_name(gold)
    given, answer = _without_name(answer)
    if named and given and named != given:
        return False
    based = _IN_BASE.fullmatch(gold)
    if based is not None:  # the base may be left out where the question names it, but not changed
        given_base = _IN_BASE.fullmatch(answer)
        digits, base = given_base.groups() if given_base else (answer, based.group(2))
        return (digits.upper(), base) == (based.group(1).upper(), based.group(2))
    right, found = _read(gold), _read(answer)
    if right is not None and found is not None:
        return _same_quantity(right, found, rules)
    if (counted := _same_counts(right, found, gold, answer, rules)) is not None:
        return counted
    if rules.kind == "number":
        return False
    lists = (
        _split(_as_interval(gold)) if right is None else None,  # 1,234 is one number
        _split(_as_interval(answer)) if found is None else None,
    )
    if lists[0] is not None and lists[1] is not None:
        return _same_lists(lists[0], lists[1], rules, symbolic, depth)
    if lists[0] is not None or lists[1] is not None:
        return False
    if right is None and _squeezed(gold) == _squeezed(answer):
        return True
    if isinstance(found, Quantity) or (right is not None and re.search(r"\d\s+\d", answer)):
        return False
    return symbolic(gold, answer)


def _same_counts(
    right: Number | Quantity | None, found: Number | Quantity | None, gold: str, answer: str, rules: Rules
) -> bool | None:
    """``7 apples`` is 7, but not 7 oranges; None where neither text is a number of things."""
    things = values.count(gold) if right is None else None, values.count(answer) if found is None else None
    if things == (None, None):
        return None
    if things[0] and things[1] and things[0][1].casefold() != things[1][1].casefold():
        return False
    left, other = things[0][0] if things[0] else right, things[1][0] if things[1] else found
    return isinstance(left, Number) and isinstance(other, Number) and _same_number(left, other, rules)


def _as_date(match: re.Match[str] | None) -> tuple[str, ...] | None:
    """A date or a time of day, without leading zeros and capitals; the three forms stay apart."""
    return None if match is None else tuple((g or "").lstrip("0").lower() for g in match.groups())


def _as_interval(text: str) -> str:
    """The interval that ``x > 3`` or ``-2 \\le x < 7`` describes, or the text itself."""
    if _squeezed(text) in (r"\mathbb{R}", "allrealnumbers"):
        return r"(-\infty, \infty)"
    parts = _RELATION.split(text)
    if len(parts) not in (3, 5) or any("=" in part or not part.strip() for part in parts):
        return text
    terms = parts[::2]
    strict = [sign in ("<", ">", r"\lt", r"\gt") for sign in parts[1::2]]
    if {sign.startswith(("<", r"\l")) for sign in parts[1::2]} == {False}:  # read it from the other side
        terms, strict = terms[::-1], strict[::-1]
    elif any(sign.startswith((">", r"\g")) for sign in parts[1::2]):
        return text
    variable = re.compile(r"[A-Za-z]")
    if len(terms) == 3 and variable.fullmatch(terms[1].strip()):
        return f"{'(' if strict[0] else '['}{terms[0]}, {terms[2]}{')' if strict[1] else ']'}"
    if len(terms) == 2 and variable.fullmatch(terms[0].strip()) and not re.search(r"(?<!\\)\b[A-Za-z]\b", terms[1]):
        return rf"(-\infty, {terms[1]}{')' if strict[0] else ']'}"
    if len(terms) == 2 and variable.fullmatch(terms[1].strip()) and not re.search(r"(?<!\\)\b[A-Za-z]\b", terms[0]):
        return rf"{'(' if strict[0] else '['}{terms[0]}, \infty)"
    return text


def _squeezed(text: str) -> str:
    return re.sub(r"\s+", "", text)


def _is_words(text: str) -> bool:
    """Plain words, to be compared as such; one or two letters can be a product of variables."""
    return _WORDS.fullmatch(text) is not None and re.search(r"[^\W\d_]{3}", text) is not None and "sqrt" not in text


def _without_name(text: str) -> tuple[str, str]:
    """(variable, value) of ``x = 5`` or ``x \\in [1, 2]``; an equation with more than that stays whole."""
    match = _ASSIGNED.match(text)
    if match is None or re.search(r"[=<>]|\\(?:le|ge|lt|gt|ne)", text[match.end() :]):
        return "", text
    return match.group(1), text[match.end() :]


# --- numbers and units


def _read(text: str) -> Number | Quantity | None:
    return values.number(text) or values.quantity(text)


def _same_quantity(gold: Number | Quantity, answer: Number | Quantity, rules: Rules) -> bool:
    if isinstance(gold, Quantity) and isinstance(answer, Quantity):
        if gold.dimension != answer.dimension:
            return False
        factor = answer.scale / gold.scale
        converted = Number(answer.number.value * factor, answer.number.decimal, answer.number.percent)
        return _same_number(gold.number, converted, rules)
    right = gold.number if isinstance(gold, Quantity) else gold
    given = answer.number if isinstance(answer, Quantity) else answer
    return _same_number(right, given, rules)


def _same_number(gold: Number, answer: Number, rules: Rules) -> bool:
    """Equal values. A per cent sign may be there or not (50 % is 50, and is 0.5)."""
    candidates = [answer.value]
    if answer.percent and not gold.percent:
        candidates.append(answer.value / 100)
    if gold.percent and not answer.percent:
        candidates.append(answer.value * 100)
    return any(_close(gold, Number(value, answer.decimal), rules) for value in candidates)


def _close(gold: Number, answer: Number, rules: Rules) -> bool:
    difference = abs(gold.value - answer.value)
    if difference <= max(rules.tolerance, rules.relative * abs(gold.value)):
        return True
    if not (gold.decimal or answer.decimal):
        return False
    if difference <= min(RELATIVE * abs(gold.value), Fraction(1, 1000)):  # the last digits of a float
        return True
    if gold.value.denominator == 1 or gold.decimal or not answer.decimal:
        return False
    return _is_rounding(gold.value, answer.value)


def _is_rounding(gold: Fraction, answer: Fraction) -> bool:
    """Whether the decimal ``answer`` is ``gold`` rounded to the places it has, DIGITS significant ones or more."""
    places = 0
    while (answer * 10**places).denominator != 1:
        places += 1
        if places > 60:
            return False
    if len(str(abs((answer * 10**places).numerator))) < DIGITS:
        return False
    return abs(gold - answer) <= Fraction(1, 2 * 10**places)


# --- choices


def _same_choice(gold: str, answer: str, rules: Rules, symbolic: Symbolic) -> bool:
    """The same letter, or the text of the right choice; a letter with the text of another choice is wrong."""
    letter = gold.strip("() ").upper()
    match = _CHOICE.fullmatch(answer)
    index = ord(letter) - ord("A") if len(letter) == 1 else -1
    right = rules.choices[index] if 0 <= index < len(rules.choices) else None
    plain = Rules(tolerance=rules.tolerance, relative=rules.relative)
    if match is not None:
        given = (match.group(1) or match.group(2) or match.group(3)).upper()
        text = match.group(4).strip()
        if given != letter:
            return False
        if _HEDGE.match(text):
            return False
        others = [c for i, c in enumerate(rules.choices) if i != index]
        return not text or not any(_squeezed(values.tidy(c)) == _squeezed(text) for c in others)
    return right is not None and _same(values.tidy(right), answer, plain, symbolic, 0)


# --- lists


@dataclass(frozen=True)
class _List:
    opening: str  # "(", "[", "{" or "" for a bare list
    closing: str
    elements: tuple[str, ...]

    @property
    def ordered(self) -> bool:
        return self.opening in ("(", "[")


def _split(text: str) -> _List | None:
    """The top-level list, set, tuple or interval that the text is, or None. One element in braces is a set."""
    opening, closing, inner = "", "", text
    if text[:2] == "\\{" and text[-2:] == "\\}":
        opening, closing, inner = "{", "}", text[2:-2]
    elif text[:1] in ("(", "[", "{") and text[-1:] in (")", "]", "}"):
        opening, closing, inner = text[0], text[-1], text[1:-1]
    if text.count("\\pm") == 1 and not opening and "," not in text:
        return _List("", "", (text.replace("\\pm", "+"), text.replace("\\pm", "-")))
    parts = _top_level(inner)
    if parts is None and opening:
        opening, closing, inner = "", "", text
        parts = _top_level(inner)
    if parts is None or len(parts) > MAX_ELEMENTS or not all(parts):
        return None
    if len(parts) == 1 and not (opening == "{" and text.startswith("\\{")):
        return None
    return _List(opening, closing, tuple(parts))


def _top_level(text: str) -> list[str] | None:
    """The parts between commas, ``and`` or ``or`` outside all brackets; None when the brackets do not match."""
    depth, start, parts, i = 0, 0, [], 0
    while i < len(text):
        if text[i] in "([{":
            depth += 1
        elif text[i] in ")]}":
            depth -= 1
            if depth < 0:
                return None
        elif depth == 0 and (match := _SEPARATOR.match(text, i)) is not None:
            parts.append(text[start:i].strip())
            start = i = match.end()
            continue
        i += 1
    return None if depth else [*parts, text[start:].strip()]


def _same_lists(gold: _List, answer: _List, rules: Rules, symbolic: Symbolic, depth: int) -> bool:
    if len(gold.elements) != len(answer.elements) or depth > 3:
        return False
    if gold.ordered != answer.ordered or (
        gold.ordered and (gold.opening, gold.closing) != (answer.opening, answer.closing)
    ):
        return False

    def same(a: str, b: str) -> bool:
        return _same(a, b, rules, symbolic, depth + 1)

    if gold.ordered:
        return all(same(a, b) for a, b in zip(gold.elements, answer.elements, strict=True))
    left = list(answer.elements)
    for element in gold.elements:
        match = next((b for b in left if same(element, b)), None)
        if match is None:
            return False
        left.remove(match)
    return True
