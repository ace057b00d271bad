"""Invented names: pronounceable, short for a subword tokenizer, and never repeated inside a world."""

from __future__ import annotations

import random
from collections.abc import Callable, Set

_START = (
    "Ba", "Bel", "Bor", "Bra", "Cal", "Car", "Cor", "Da", "Del", "Dor", "El", "Fa", "Fen", "Gal", "Gar", "Hal", "Har",
    "Hol", "Jan", "Jor", "Kal", "Kar", "Kel", "Kor", "La", "Len", "Lor", "Ma", "Mar", "Mel", "Mor", "Na", "Nor", "Ol",
    "Or", "Pa", "Pel", "Per", "Ra", "Ren", "Ro", "Sa", "Sel", "Sol", "Tam", "Tar", "Tel", "Tor", "Val", "Ver", "Vol",
    "Wal", "Wen", "Yor", "Zan", "Zel",
)  # fmt: skip
_FIRST_END = (
    "a", "an", "ana", "ara", "den", "dis", "ella", "en", "ena", "er", "eth", "ia", "ian", "ica", "in", "ina", "ion",
    "is", "ita", "lan", "lin", "mir", "mon", "na", "nor", "on", "ra", "ric", "rin", "sa", "son", "ta", "ten", "tin",
)  # fmt: skip
_LAST_END = (
    "ach", "ack", "ade", "all", "and", "ard", "ash", "bert", "by", "cott", "der", "dine", "dock", "ell", "er", "ett",
    "field", "gan", "ing", "ison", "ker", "lock", "man", "more", "ner", "nick", "ock", "ow", "port", "rick", "ris",
    "sky", "ster", "ton", "ver", "ward", "win", "worth",
)  # fmt: skip
_TOWN_END = (
    "bridge", "bury", "by", "dale", "field", "ford", "gate", "ham", "haven", "holm", "mere", "mouth", "port", "stead",
    "stone", "ton", "vale", "wick", "wood", "worth",
)  # fmt: skip
_LAND_END = ("and", "ania", "avia", "eria", "esia", "land", "mark", "onia", "oria", "ovia", "shire", "via")
_RIVER_END = ("an", "ar", "ava", "en", "ess", "ida", "in", "isk", "on", "oss", "una", "ya")
_TRADE = ("Brothers", "Company", "Works", "Mills", "House", "Group", "Sons", "Supply")
_ADJECTIVE = (
    "Bright", "Broken", "Cold", "Dark", "Distant", "Empty", "First", "Gentle", "Golden", "Hidden", "Last", "Little",
    "Lost", "Old", "Quiet", "Sad", "Second", "Secret", "Silent", "Slow", "Strange", "Third", "White", "Winter",
)  # fmt: skip
_NOUN = (
    "Bridge", "Candle", "Child", "Circle", "Door", "Dream", "Forest", "Garden", "Hour", "House", "Island", "Key",
    "Letter", "Mirror", "Moon", "Mountain", "Night", "River", "Road", "Room", "Song", "Star", "Stone", "Summer",
    "Tower", "Train", "Tree", "Voice", "Wall", "Window",
)  # fmt: skip
_FEAST = ("Fair", "Festival", "Feast", "Parade", "Carnival")
_LIVING = ("finch", "frog", "lily", "moth", "rose", "orchid", "beetle", "lizard", "fern", "crab", "duck", "newt")
_BUILDING = ("Tower", "Bridge", "Hall", "Castle", "Library", "Theatre", "Museum", "Palace", "Chapel", "Station")
_SHIP = ("Star", "Queen", "Spirit", "Dawn", "Pearl", "Arrow", "Crown", "Light")
_TEAM = ("Rovers", "United", "Stars", "Giants", "Kings", "Lions", "Racers", "Wolves")


class Namer:
    """Draws names; remembers every word it coined, so that no two entities share their own word by accident."""

    def __init__(self, rng: random.Random, avoid: Set[str] = frozenset()):
        self.rng = rng
        self.words: set[str] = set()  # every coined word
        self.avoid = set(avoid)
        self.used: set[str] = set()
        self.surnames = [self._coin(_LAST_END) for _ in range(48)]

    def _coin(self, ends: tuple[str, ...]) -> str:
        while True:
            start, end = self.rng.choice(_START), self.rng.choice(ends)
            if start[-1] == end[0] or (start[-1] in "aeo" and end[0] in "aeiou"):
                continue
            word = start + end
            if word not in self.words and word not in self.avoid and len(word) > 3:
                self.words.add(word)
                return word

    def _unused(self, make: Callable[[], str]) -> str:
        while True:
            name = make()
            if name not in self.used and name not in self.avoid:
                self.used.add(name)
                return name

    def name(self, kind: str) -> str:
        """A new name for an entity of the given type."""
        rng = self.rng
        if kind == "person":
            first = self._coin(_FIRST_END)
            return self._unused(lambda: f"{first} {rng.choice(self.surnames)}")
        if kind == "town":
            return self._unused(lambda: self._coin(_TOWN_END))
        if kind == "region":
            return self._unused(lambda: self._coin(_LAND_END))
        if kind == "river":
            return self._unused(lambda: f"River {self._coin(_RIVER_END)}")
        if kind == "company":
            return self._unused(lambda: f"{self._coin(_LAST_END)} {rng.choice(_TRADE)}")
        if kind == "work":
            return self._unused(lambda: f"The {rng.choice(_ADJECTIVE)} {rng.choice(_NOUN)}")
        if kind == "festival":
            return self._unused(lambda: f"{self._coin(_FIRST_END)} {rng.choice(_FEAST)}")
        if kind == "species":
            return self._unused(lambda: f"{self._coin(_LAST_END)} {rng.choice(_LIVING)}")
        if kind == "building":
            return self._unused(lambda: f"{self._coin(_LAST_END)} {rng.choice(_BUILDING)}")
        if kind == "ship":
            return self._unused(lambda: f"{self._coin(_FIRST_END)} {rng.choice(_SHIP)}")
        return self._unused(lambda: f"{self._coin(_LAST_END)} {rng.choice(_TEAM)}")

    def look_alike(self, kind: str, name: str) -> str:
        """A different name that shares the telling word with ``name``: what a hasty reader confuses with it."""
        rng = self.rng
        first, *rest = name.split()
        if kind == "person":
            return self._unused(lambda: f"{self._coin(_FIRST_END)} {rest[-1]}" if rng.random() < 0.3
                                else f"{first} {rng.choice(self.surnames)}")  # fmt: skip
        if kind in ("town", "region"):
            return self._unused(lambda: f"{rng.choice(('New', 'Upper', 'North', 'East', 'Little'))} {name}")
        if kind == "river":
            return self._unused(lambda: f"River {rng.choice(('Little', 'Black', 'Upper'))} {rest[-1]}")
        if kind == "work":
            return self._unused(lambda: f"The {rng.choice(_ADJECTIVE)} {rest[-1]}" if rng.random() < 0.5
                                else f"The {rest[0]} {rng.choice(_NOUN)}")  # fmt: skip
        second = {
            "company": _TRADE,
            "festival": _FEAST,
            "species": _LIVING,
            "building": _BUILDING,
            "ship": _SHIP,
            "team": _TEAM,
        }[kind]
        return self._unused(lambda: f"{first} {rng.choice(second)}")
