"""Text as exact numbers and quantities, by a strict grammar. Nothing here evaluates anything.

``tidy`` brings the spellings of one answer together (LaTeX spacing, dollar signs, Unicode signs, ``\\text``);
``number`` reads integers, decimals, fractions, mixed numbers, scientific notation and percentages; ``quantity`` reads
a number with a unit.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

MAX_CHARS = 1000
MAX_EXPONENT = 400

_SIGNS = {
    "−": "-", "–": "-", "‐": "-", "×": "\\times ", "·": "\\cdot ", "÷": "/", "⁄": "/", "π": "\\pi ", "∞": "\\infty ",
    "≤": "\\le ", "≥": "\\ge ", "≠": "\\ne ", "∪": "\\cup ", "∩": "\\cap ", "∈": "\\in ", "√": "\\sqrt ",
    "°": "^\\circ ", "²": "^2", "³": "^3", "½": "\\frac{1}{2}", "¼": "\\frac{1}{4}", "¾": "\\frac{3}{4}",
    "∅": "\\emptyset ", "±": "\\pm ", "\u00a0": " ", "\u2009": "", "’": "'", "％": "%",
}  # fmt: skip
_WRAPPERS = (("$$", "$$"), ("$", "$"), ("\\(", "\\)"), ("\\[", "\\]"))
_TEXT = re.compile(r"\\(?:text|textbf|textit|textrm|textnormal|mathrm|mathbf|mbox|operatorname)\s*\{([^{}]*)\}")
_ARRAY = re.compile(r"[(\[]\s*\\begin\{array\}\s*\{[^{}]*\}(.*?)\\end\{array\}\s*[)\]]", re.DOTALL)
_THOUSANDS = re.compile(r"(?<![\d.,])[1-9]\d{0,2}(?: \d{3})+(?![\d/]| \d)")
_DECIMAL = r"(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d*)?|\.\d+"
_INTEGER = r"\d{1,3}(?:,\d{3})+|\d+"
_PLAIN = re.compile(
    rf"(?P<m>{_DECIMAL})(?:[eE](?P<e>[-+]?\d{{1,4}})|\s*(?:\\times|\\cdot|\*)\s*10\s*(?:\^|\*\*)\s*\{{?(?P<p>[-+]?\d{{1,4}})\}}?)?"
)
_FRACTION = re.compile(
    rf"(?:(?P<w>{_INTEGER})\s*)?\\frac\s*(?:\{{\s*(?P<a>-?\s*(?:{_DECIMAL}))\s*\}}|(?P<b>\d))\s*"
    rf"(?:\{{\s*(?P<c>-?\s*(?:{_DECIMAL}))\s*\}}|(?P<d>\d))"
)
_SLASH = re.compile(
    rf"(?:(?P<w>{_INTEGER})\s+)?\(?\s*(?P<a>{_DECIMAL})\s*\)?\s*/\s*\(?\s*(?P<c>-?(?:{_DECIMAL}))\s*\)?"
)


_REPEATING = re.compile(r"(\d*)\.(\d*)\\(?:overline|bar)\s*\{(\d{1,20})\}")
_COUNT = re.compile(r"(?P<number>.*[\d}%.)])\s+(?P<noun>[A-Za-z]{3,}(?: [A-Za-z]{2,}){0,2})")
# Words that are part of the number, or say that it is not the only one.
_NO_NOUN = re.compile(
    r"hundred|thousand|[bmtr]+illion|dozen|score|pairs?|hal(?:f|ves)|quarters?|.*(?:th|third)s?|squared?|cubed?|factorial"
    r"|plus|minus|times|over|divided|point|negative|power|modulo|mod|base|root|sqrt|pi|not|and|or|to|from|but|than|more"
    r"|less|least|most|about|approximately|between|if|when|for|infinity",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Number:
    """An exact value; ``decimal`` when it was written with a point or exponent, ``percent`` when with a % sign."""

    value: Fraction
    decimal: bool = False
    percent: bool = False


def tidy(text: str) -> str:
    """One spelling for many: no math delimiters, spacing commands, ``\\left``, ``\\text`` wrappers or full stop."""
    for sign, plain in _SIGNS.items():
        text = text.replace(sign, plain)
    text = re.sub(r"(?<=[$)\]])\.$", "", text.strip())
    for opening, closing in _WRAPPERS:
        if len(text) > len(opening + closing) and text.startswith(opening) and text.endswith(closing):
            inner = text[len(opening) : -len(closing)]
            if opening not in inner.replace("\\$", ""):
                text = inner.strip()
    text = re.sub(r"\\(?:left|right|big|Big|bigg|displaystyle|limits)(?![a-zA-Z])", "", text)
    text = re.sub(r"(?<!\\)\\ ", " ", re.sub(r"(?<!\\)\\[!,;:]", "", text)).replace("~", " ").replace("{,}", ",")
    text = re.sub(r"\\[dtc](frac|binom)(?![a-zA-Z])", r"\\\1", text)
    text = _ARRAY.sub(r"\\begin{pmatrix}\1\\end{pmatrix}", text)
    text = re.sub(r"\\varnothing(?![a-zA-Z])|\\\{\s*\\\}", r"\\emptyset ", text)
    text = re.sub(r"(?<![A-Za-z\\])infinity(?![A-Za-z])", r"\\infty ", text)
    text = re.sub(r"(?<![\w)}\]])\s*\+\s*\\infty", r" \\infty", text)
    text = re.sub(r"\^\s*(?:\{\s*\\circ\s*\}|\\circ(?![a-zA-Z]))|\\degree(?![a-zA-Z])", " degrees", text)
    for _ in range(3):  # nested wrappers
        text = _TEXT.sub(r" \1 ", text)
    text = re.sub(r"\s*\bper\s?cent\b", "%", text.replace("\\%", "%").replace("\\$", "$"))
    text = _THOUSANDS.sub(lambda m: re.sub(r"\s", "", m.group()), text)
    text = " ".join(text.split())
    return re.sub(r"(?<=.)\.$", "", text).strip()


def number(text: str) -> Number | None:
    """The number that the whole (tidied) text is, or None."""
    if len(text) > 200:
        return None
    text = re.sub(r"^([-+]?)\s*[$£€]\s*", r"\1", text)
    percent = text.endswith("%")
    text = text.rstrip("%").strip() if percent else text
    sign = -1 if text.startswith("-") else 1
    text = text.lstrip("+-").strip() if text[:1] in "+-" and text[1:2] not in "+-" else text
    while text.startswith("{") and text.endswith("}") and "{" not in text[1:]:
        text = text[1:-1].strip()
    found = _plain(text) or _fraction(text)
    if found is None:
        return None
    return Number(sign * found.value, found.decimal, percent)


def count(text: str) -> tuple[Number, str] | None:
    """(how many, of what) where the whole (tidied) text is a number and a plain word that is no unit, or None."""
    match = _COUNT.fullmatch(text) if len(text) <= 200 else None
    if match is None or any(_NO_NOUN.fullmatch(word) for word in match["noun"].split()):
        return None
    value = number(match["number"].strip())
    return None if value is None or unit(match["noun"]) else (value, match["noun"])


def _plain(text: str) -> Number | None:
    repeating = _REPEATING.fullmatch(text)
    if repeating is not None:
        whole, first, again = repeating.groups()
        every = 10 ** len(first) * (10 ** len(again) - 1)
        return Number(Fraction(int(f"{whole}{first}{again}") - int(f"{whole}{first}" or "0"), every))
    match = _PLAIN.fullmatch(text)
    if match is None:
        return None
    exponent = int(match["e"] or match["p"] or 0)
    if abs(exponent) > MAX_EXPONENT:
        return None
    decimal = "." in match["m"] or match["e"] is not None
    return Number(_decimal(match["m"]) * Fraction(10) ** exponent, decimal)


def _fraction(text: str) -> Number | None:
    match = _FRACTION.fullmatch(text)
    if match is not None:
        above, below = match["a"] or match["b"], match["c"] or match["d"]
    else:
        match = _SLASH.fullmatch(text)
        if match is None:
            return None
        above, below = match["a"], match["c"]
    top, bottom = _decimal(above), _decimal(below)
    if bottom == 0 or (match["w"] and (top < 0 or bottom < 0)):
        return None
    whole = _decimal(match["w"]) if match["w"] else Fraction(0)
    return Number(whole + top / bottom)


def _decimal(text: str) -> Fraction:
    text = text.replace(",", "").replace(" ", "")
    return Fraction(f"{text}0" if text.endswith(".") else text)


_UNITS: Mapping[str, tuple[str, Fraction]] = {
    name: (dimension, Fraction(factor))
    for dimension, table in {
        "length": "mm=1/1000 cm=1/100 dm=1/10 m=1 km=1000 millimeter=1/1000 centimeter=1/100 meter=1 kilometer=1000 "
        "millimetre=1/1000 centimetre=1/100 metre=1 kilometre=1000 inch=254/10000 inches=254/10000 foot=3048/10000 "
        "feet=3048/10000 ft=3048/10000 yard=9144/10000 yd=9144/10000 mile=1609344/1000 mi=1609344/1000",
        "mass": "mg=1/1000 g=1 kg=1000 gram=1 kilogram=1000 milligram=1/1000 tonne=1000000 pound=45359237/100000 "
        "lb=45359237/100000 lbs=45359237/100000 ounce=28349523125/1000000000 oz=28349523125/1000000000",
        "time": "ms=1/1000 s=1 sec=1 second=1 min=60 minute=60 h=3600 hr=3600 hour=3600 day=86400 week=604800",
        "volume": "ml=1/1000 l=1 liter=1 litre=1 milliliter=1/1000 millilitre=1/1000",
        "speed": "km/h=1000/3600 kph=1000/3600 m/s=1 mph=1609344/3600000",
        "money": "cent=1/100 dollar=1 usd=1",
        "angle": "degree=1",
        "year": "year=1",
        "month": "month=1",
    }.items()
    for name, factor in (item.split("=") for item in table.split())
}
_POWERS = {"square": 2, "sq": 2, "cubic": 3}
_QUANTITY = re.compile(
    r"(?P<number>.*?[\d}%.)])\s*(?P<unit>[A-Za-z][A-Za-z/. ]*?)\s*(?:(?:\^|\*\*)\s*\{?(?P<power>[23])\}?)?"
)


@dataclass(frozen=True)
class Quantity:
    """A number in a unit: ``dimension`` names what it measures (with its power), ``scale`` its size in base units."""

    number: Number
    dimension: str
    scale: Fraction


def unit(text: str, power: int = 1) -> tuple[str, Fraction] | None:
    """(dimension, size in base units) of a unit's name: ``cm``, ``square feet``, ``miles per hour``; or None."""
    words = text.lower().replace(".", "").split()
    while words and words[0] in _POWERS:
        power *= _POWERS[words.pop(0)]
    name = " ".join(words)
    name = {"miles per hour": "mph", "kilometers per hour": "km/h", "kilometres per hour": "km/h"}.get(name, name)
    found = _UNITS.get(name) or (_UNITS.get(name[:-1]) if name.endswith("s") and len(name) > 3 else None)
    return None if found is None or power > 3 else (f"{found[0]}^{power}", found[1] ** power)


def quantity(text: str) -> Quantity | None:
    """The number with a known unit that the whole (tidied) text is, or None."""
    match = _QUANTITY.fullmatch(text) if len(text) <= 200 else None
    if match is None:
        return None
    value, found = number(match["number"].strip()), unit(match["unit"], int(match["power"] or 1))
    return None if value is None or found is None else Quantity(value, *found)
