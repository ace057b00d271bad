"""What the invented world is made of: entity types, literal values, and the form of a relation."""

from __future__ import annotations

from dataclasses import dataclass

ENTITY_TYPES = (
    "person",
    "town",
    "river",
    "region",
    "company",
    "work",
    "festival",
    "species",
    "building",
    "ship",
    "team",
)

LITERALS: dict[str, tuple[str, ...]] = {
    "colour": (
        "red", "blue", "green", "yellow", "white", "black", "orange", "purple", "silver", "brown", "pink", "gold",
    ),
    "material": ("granite", "brick", "oak", "limestone", "marble", "slate", "iron", "copper", "sandstone", "cedar"),
    "profession": (
        "weaver", "baker", "doctor", "painter", "lawyer", "farmer", "teacher", "sailor", "tailor", "chemist", "printer",
        "potter", "judge", "poet", "miner", "banker",
    ),
    "instrument": (
        "harp", "flute", "violin", "drum", "lute", "organ", "trumpet", "cello", "horn", "piano", "banjo",
    ),
    "craft": (
        "bells", "lace", "cheese", "pottery", "candles", "boots", "honey", "rope", "baskets", "knives", "carpets",
        "soap",
    ),
    "fish": ("trout", "salmon", "pike", "eel", "perch", "carp", "sturgeon", "bream"),
    "good": ("salt", "wool", "timber", "tin", "wheat", "wine", "coal", "cotton", "amber", "tea", "sugar", "barley"),
    "animal": ("fox", "bear", "owl", "wolf", "deer", "otter", "swan", "hare", "lion", "badger", "eagle", "goat"),
    "product": (
        "clocks", "bicycles", "paper", "pianos", "glass", "shoes", "lamps", "maps", "buttons", "engines", "tiles",
        "umbrellas", "scissors", "kites",
    ),
    "genre": ("novel", "opera", "play", "painting", "ballet", "film", "poem", "song"),
    "month": ("March", "April", "May", "June", "July", "August", "September", "October", "November"),
    "food": ("plum cake", "onion soup", "roast duck", "apple pie", "fish stew", "rye bread", "pancakes", "dumplings"),
    "sport": ("rowing", "hockey", "cricket", "chess", "rugby", "tennis", "fencing", "football", "curling"),
}  # fmt: skip


@dataclass(frozen=True)
class Relation:
    """One functional relation: every subject has exactly one object."""

    key: str
    subject: str
    object: str  # an entity type, a key of LITERALS, or "year" | "length"
    facts: tuple[str, ...]
    questions: tuple[str, ...]
    other_questions: tuple[str, ...]
    phrases: tuple[str, ...]  # noun phrases for the object: "the founder of {x}"
    other_phrases: tuple[str, ...]
    words: str  # what a good query adds to the name

    @property
    def name(self) -> str:
        return f"{self.subject}.{self.key}"

    @property
    def leads_on(self) -> bool:
        """Whether the object is an entity, so that a longer chain can go through it."""
        return self.object in ENTITY_TYPES
