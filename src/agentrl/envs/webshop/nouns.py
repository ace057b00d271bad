"""Nouns of a product title: a small deterministic stand-in for a part-of-speech tagger.

WebShop tags titles with spaCy and keeps nouns and proper nouns. Nearly every word of a product title gets one of the
two tags, so the stand-in keeps every word with a letter except those of a short list (``not_nouns.txt``: words that
spaCy mostly tagged otherwise in half of the 1,000 real titles). README.md has the agreement measured on the other half.
"""

from __future__ import annotations

import re
from functools import lru_cache
from importlib.resources import files

_EDGE = re.compile(r"^[^\w#]+|[^\w]+$")
_INSIDE = re.compile(
    r"(?<=[^\W\d_])[-–—,](?=[^\W\d_])"  # sofa-table
    r"|(?<=\w)[:=/<>~|()\[\]\"](?=\w)"
    r"|(?<=\d)[-+*](?=\d)"
    r"|…|\.{2,}"
)
_UNIT = re.compile(
    r"(?i)^(\d[\d.,]*)(km|cm|mm|m|kg|g|mg|oz|lb|lbs|ml|l|ft|in|inch|gb|mb|tb|w|v|mah|hz|k|pcs|pc|pack|count|ct)$"
)


@lru_cache(maxsize=1)
def not_nouns() -> frozenset[str]:
    """The listed words, lower case."""
    text = files(__package__).joinpath("not_nouns.txt").read_text(encoding="utf-8")
    return frozenset(line for line in text.split("\n") if line and not line.startswith("#"))


def tokens(title: str) -> list[str]:
    """The words of a title in order, lower case: split at spaces and hyphens between letters, without units."""
    found: list[str] = []
    for chunk in title.split():
        for part in _INSIDE.split(chunk):
            word = _EDGE.sub("", part)
            if word.lower().endswith(("'s", "’s")):
                word = word[:-2]
            unit = _UNIT.match(word)
            found.extend([unit[1]] if unit else [word] if word else [])
    return [word.lower() for word in found]


@lru_cache(maxsize=20_000)
def nouns(title: str) -> tuple[str, ...]:
    """The nouns of a title in order, with repeats, lower case."""
    skip = not_nouns()
    return tuple(word for word in tokens(title) if word not in skip and any(c.isalpha() for c in word))


def title_score(bought: str, wanted: str) -> float:
    """Distinct nouns that both titles share, divided by the wanted title's noun count; 0.2 when it has none."""
    goal = nouns(wanted)
    if not goal:
        return 0.2
    return len(set(nouns(bought)) & set(goal)) / len(goal)
