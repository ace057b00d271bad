"""The shop as a state machine: where a shopper stands, what can be clicked there, and what an action changes.

State: page kind, query, results page, product, chosen options, sub page. A session holds numbers and short texts; the
products stay in the shared store.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field

from agentrl.envs.webshop.product import Product
from agentrl.envs.webshop.store import Store

BACK, PREV, NEXT, BUY = "back", "prev", "next", "buy"
SUB_PAGES = ("description", "features", "reviews")
ATTRIBUTES = "attributes"  # a sub page that shops show only with ``show_attributes``


@dataclass(frozen=True)
class Shop:
    """A store and how its pages are laid out; shared by all sessions."""

    store: Store
    page_size: int = 10
    max_hits: int = 50
    show_attributes: bool = False

    @property
    def sub_pages(self) -> tuple[str, ...]:
        return (*SUB_PAGES, ATTRIBUTES) if self.show_attributes else SUB_PAGES


@dataclass(frozen=True)
class Target:
    """What a click does. ``kind``: button (``name`` is one of the above or a sub page), product or option."""

    kind: str
    name: str = ""
    value: str = ""
    number: int = -1


@dataclass
class Session:
    """One shopper. ``kind`` is search, results, item, sub or done."""

    shop: Shop
    seed: int = 0
    kind: str = "search"
    query: str = ""
    page: int = 1
    hits: tuple[int, ...] = ()
    number: int = -1
    options: dict[str, str] = field(default_factory=dict)
    sub: str = ""

    @property
    def product(self) -> Product:
        """The product of the item page, its sub pages, and the purchase."""
        return self.shop.store.product(self.number)

    def shown(self) -> tuple[int, ...]:
        """Numbers of the products on the current results page; empty beyond the last one."""
        start = (self.page - 1) * self.shop.page_size
        return self.hits[start : start + self.shop.page_size]

    def targets(self) -> list[Target]:
        """What can be clicked on the current page, in the original's page order."""
        if self.kind == "results":
            around = [BACK, PREV, NEXT] if self.page > 1 else [BACK, NEXT]
            return [*map(_button, around), *(Target("product", number=n) for n in self.shown())]
        if self.kind == "item":
            options = [Target("option", name, v) for name, values in self.product.options.items() for v in values]
            return [_button(BACK), _button(PREV), *options, *map(_button, self.shop.sub_pages), _button(BUY)]
        if self.kind == "sub":
            return [_button(BACK), _button(PREV)]
        return []

    def search(self, query: str) -> None:
        """Works on every page; forgets the product and its options."""
        self.query, self.page = query, 1
        self.hits = tuple(self.shop.store.search(query, self.shop.max_hits, self.seed))
        self._results()

    def click(self, target: Target) -> None:
        """``target`` must be one of the current page's."""
        if target.kind == "product":
            self.kind, self.number = "item", target.number
        elif target.kind == "option":
            self.options[target.name] = target.value
        elif target.name == BUY:
            self.kind = "done"
        elif target.name == BACK:
            self.kind, self.query, self.page, self.hits = "search", "", 1, ()
            self.number, self.options, self.sub = -1, {}, ""
        elif target.name == NEXT:
            self.page += 1
        elif target.name == PREV and self.kind == "sub":
            self.kind, self.sub = "item", ""
        elif target.name == PREV and self.kind == "item":
            self._results()
        elif target.name == PREV:
            self.page -= 1
        else:
            self.kind, self.sub = "sub", target.name

    def _results(self) -> None:
        self.kind, self.number, self.options, self.sub = "results", -1, {}, ""

    def key(self) -> str:
        """The whole state as JSON: equal keys show the same page and react alike to every action."""
        asin = self.product.asin if self.number >= 0 else None
        return json.dumps([self.kind, self.query, self.page, asin, sorted(self.options.items()), self.sub])


def _button(name: str) -> Target:
    return Target("button", name)
