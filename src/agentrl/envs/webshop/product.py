"""A product of a catalogue, and how a store keeps it: one JSON row of bytes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

NO_PRICE = 100.0  # the original's price of a product that lists none


@dataclass(frozen=True)
class Product:
    """What the pages show of a product and what the reward looks at.

    ``prices`` holds one price in dollars, or the two ends of a listed range. ``options`` maps an option's name to its
    values, lower case, in page order. ``instruction`` and ``instruction_attributes`` are those of synthetic goals.
    """

    asin: str
    title: str
    description: str
    bullets: Sequence[str]
    category: str
    query: str
    product_category: str
    prices: Sequence[float]
    options: Mapping[str, Sequence[str]]
    attributes: Sequence[str]
    rating: str = ""
    instruction: str | None = None
    instruction_attributes: Sequence[str] = field(default_factory=list)

    @property
    def price_tag(self) -> str:
        """The price as a page shows it: ``$12.5``, or ``$10.0 to $12.5`` for a range."""
        return " to ".join(f"${price}" for price in self.prices)

    def price(self, seed: int) -> float:
        """The price in dollars; of a range, the draw that ``seed`` fixes."""
        if len(self.prices) == 1:
            return self.prices[0]
        low, high = self.prices[:2]
        return low + (high - low) * fraction(f"price {seed} {self.asin}")

    @property
    def indexed(self) -> str:
        """The text that is searched: title, description, first feature and options, as in the original's index."""
        options = ", and ".join(f"{name}: {', '.join(values)}" for name, values in self.options.items())
        return " ".join([self.title, self.description, *self.bullets[:1], options]).lower()

    @property
    def searchable(self) -> tuple[str, str, str]:
        """Lower-case title, features and description, in which the reward looks for attributes."""
        return self.title.lower(), " ".join(self.bullets).lower(), self.description.lower()

    def to_row(self) -> bytes:
        return json.dumps(asdict(self), ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")

    @classmethod
    def from_row(cls, row: bytes) -> Product:
        values: dict[str, Any] = json.loads(row)
        return cls(**values)


def fraction(text: str) -> float:
    """A number in [0, 1) that depends on ``text`` only: the same in every process and Python."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:7], "big") / 256**7
