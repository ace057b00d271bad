"""Fuzzy equality of attributes and option values, as WebShop has it: a token-set ratio above 85, and a colour rule."""

from __future__ import annotations

import re
from functools import lru_cache

from rapidfuzz import fuzz

THRESHOLD = 85

# In this order: the first that occurs decides.
# fmt: off
COLORS = (
    "alabaster", "apricot", "aqua", "ash", "asphalt", "azure", "banana", "beige", "black", "blue", "blush",
    "bordeaux", "bronze", "brown", "burgundy", "camel", "camo", "caramel", "champagne", "charcoal", "cheetah",
    "chestnut", "chocolate", "christmas", "coffee", "cognac", "copper", "coral", "cranberry", "cream", "crystal",
    "dark", "denim", "eggplant", "elephant", "espresso", "fuchsia", "gold", "granite", "grape", "graphite", "grass",
    "gray", "green", "grey", "heather", "indigo", "ivory", "ivy", "khaki", "lavender", "lemon", "leopard", "light",
    "lilac", "lime", "magenta", "maroon", "mauve", "merlot", "midnight", "mint", "mocha", "multicolor", "mushroom",
    "mustard", "natural", "navy", "nude", "olive", "orange", "peach", "pewter", "pink", "plum", "purple", "rainbow",
    "red", "rose", "royal", "rust", "sand", "sapphire", "seashell", "silver", "skull", "slate", "steel", "stone",
    "stonewash", "sunflower", "tan", "taupe", "teal", "tiger", "turquoise", "violet", "walnut", "wheat", "white",
    "wine", "yellow",
)
# fmt: on

_DROPPED = dict.fromkeys(range(128, 256))
_NO_WORD = re.compile(r"\W")


def _plain(text: str) -> str:
    """What thefuzz 0.19 compares: without Latin-1 letters, everything but word characters a space, lower case."""
    return _NO_WORD.sub(" ", text.translate(_DROPPED)).lower().strip()


@lru_cache(maxsize=100_000)
def token_set_ratio(first: str, second: str) -> int:
    """``thefuzz.fuzz.token_set_ratio`` 0.19 through rapidfuzz: 0 to 100, rounded to a whole number."""
    return round(fuzz.token_set_ratio(_plain(first), _plain(second)))


def alike(first: str, second: str) -> bool:
    """Whether WebShop takes two attributes or option values for the same."""
    return token_set_ratio(first, second) > THRESHOLD


@lru_cache(maxsize=20_000)
def plain_color(value: str) -> str:
    """The first colour of ``COLORS`` that occurs in an option value, else the value itself.

    It is looked for as a substring, as in the original, so that "titanium" is "tan".
    """
    return next((color for color in COLORS if color in value), value)
