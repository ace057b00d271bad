"""The reward of a purchase, as WebShop's released code has it (Yao et al. 2022, arXiv:2207.01206, equations 1 to 3).

R = r_type · (matched attributes + matched options + [price ≤ limit]) / (|attributes| + |options| + 1)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentrl.envs.webshop.fuzzy import COLORS, alike, plain_color
from agentrl.envs.webshop.nouns import title_score
from agentrl.envs.webshop.product import Product


@dataclass(frozen=True)
class Goal:
    """What is to be bought. ``options`` are values (human goals) or (name, value) pairs (synthetic goals).

    ``price_upper`` in dollars; None when any price will do.
    """

    asin: str
    title: str
    category: str
    query: str
    product_category: str
    attributes: Sequence[str]
    options: Sequence[str | Sequence[str]]
    price_upper: float | None = None

    @classmethod
    def of(cls, product: Product, attributes: Sequence[str], options: Sequence[Any], price_upper: float | None) -> Goal:
        return cls(
            asin=product.asin,
            title=product.title,
            category=product.category,
            query=product.query,
            product_category=product.product_category,
            attributes=list(attributes),
            options=list(options),
            price_upper=price_upper,
        )

    @property
    def wanted(self) -> list[str]:
        """The options as they are compared: colours reduced, pairs as the text that the original makes of them."""
        return [plain_color(o) if isinstance(o, str) else _compared(tuple(o)) for o in self.options]


def _compared(pair: tuple[str, ...]) -> str:
    """A (name, value) pair as the original compares it: a colour when one of the two is exactly that, else its repr."""
    return next((color for color in COLORS if color in pair), str(pair))


@dataclass(frozen=True)
class Reward:
    """The reward and its parts: counts of matches, the type factor and what it came from."""

    total: float
    r_type: float
    title_score: float
    query_match: bool
    category_match: bool
    attributes: int  # matched ones
    options: int  # matched ones
    price: bool
    goal: Goal

    @property
    def scores(self) -> dict[str, float]:
        """All parts as numbers in [0, 1]; a part that the goal does not ask for counts as met."""
        return {
            "score": self.total,
            "type": self.r_type,
            "title": min(self.title_score, 1.0),
            "attributes": self.attributes / len(self.goal.attributes) if self.goal.attributes else 1.0,
            "options": self.options / len(self.goal.options) if self.goal.options else 1.0,
            "price": float(self.price),
        }


def type_factor(title: float, query_match: bool, category_match: bool) -> float:
    """1 for a match of query, category or title; 0.5 otherwise; below a title score of 0.1 it is 0.1, at 0 it is 0."""
    if title == 0:
        return 0.0
    if title < 0.1:
        return 0.1
    return 1.0 if query_match or category_match or title > 0.2 else 0.5


def matched_attributes(product: Product, wanted: Sequence[str]) -> int:
    """How many wanted attributes a product has: like one of its own, or literally in title, features or description."""
    texts = product.searchable
    return sum(any(alike(own, want) for own in product.attributes) or any(want in t for t in texts) for want in wanted)


def matched_options(chosen: Sequence[str], goal: Goal) -> int:
    """How many of the goal's options some chosen value matches."""
    values = [plain_color(value) for value in chosen]
    return sum(any(alike(value, want) for value in values) for want in goal.wanted)


def purchase(product: Product, options: Mapping[str, str], price: float, goal: Goal) -> Reward:
    """The reward for buying a product with options (name → value) at a price in dollars."""
    title = title_score(product.title, goal.title)
    query_match = product.query == goal.query
    category_match = len(_levels(product.product_category) & _levels(goal.product_category)) >= 2
    r_type = type_factor(title, query_match, category_match)
    attributes = matched_attributes(product, goal.attributes)
    chosen = matched_options(list(options.values()), goal)
    affordable = goal.price_upper is None or price <= goal.price_upper
    total = r_type * (attributes + chosen + affordable) / (len(goal.attributes) + len(goal.options) + 1)
    return Reward(total, r_type, title, query_match, category_match, attributes, chosen, affordable, goal)


def _levels(product_category: str) -> set[str]:
    return {level.strip() for level in product_category.split("›")}


def best_options(product: Product, goal: Goal) -> dict[str, str]:
    """Options of a product that match as many of the goal's as any choice can, with no option chosen in vain.

    For every option name, only values that match different sets of wanted options need be tried.
    """
    wanted = goal.wanted
    best: dict[frozenset[int], dict[str, str]] = {frozenset(): {}}
    for name, values in product.options.items():
        covers: dict[frozenset[int], str] = {}
        for value in values:
            met = frozenset(i for i, want in enumerate(wanted) if alike(plain_color(value), want))
            if met:
                covers.setdefault(met, value)
        for so_far, choice in list(best.items()):
            for met, value in covers.items():
                better = so_far | met
                if len(better) > len(so_far) and (better not in best or len(best[better]) > len(choice) + 1):
                    best[better] = {**choice, name: value}
    return best[max(best, key=lambda met: (len(met), -len(best[met])))]
