"""Recorded sessions of human shoppers (WebShop's trajectory files) as actions of the grammar."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from agentrl.data import load_rows
from agentrl.envs.webshop import pages
from agentrl.envs.webshop.pages import STANDARD
from agentrl.envs.webshop.product import Product
from agentrl.envs.webshop.session import Session, Shop
from agentrl.envs.webshop.store import Store
from agentrl.errors import UserError

PAGES = {"index": "search", "search_results": "results", "item_page": "item", "item_sub_page": "sub", "done": "done"}


def read(path: Path) -> list[Mapping[str, Any]]:
    """The steps of one session, a JSON object a line. Raises UserError for a line that is none."""
    steps = list(load_rows(path))
    for number, step in enumerate(steps, 1):
        if step.get("page") not in PAGES or not isinstance(step.get("url"), str):
            raise UserError(f"{path} line {number}: no step of a session: it needs 'page' and 'url'")
    return steps


def _facts(step: Mapping[str, Any]) -> dict[str, Any]:
    """What a step shows: kind of page, query, results page, product, chosen options, sub page."""
    content = step.get("content") or {}
    words = content.get("keywords", [])
    if isinstance(words, str):  # item pages hold the list as Python text
        words = json.loads(words.replace("'", '"'))
    sub = unquote(step["url"]).split("/")[-2].lower() if step["page"] == "item_sub_page" else ""
    return {
        "kind": PAGES[step["page"]],
        "query": " ".join(words),
        "page": int(content.get("page", 1)),
        "shown": [str(a).lower() for a in content.get("search_result_asins", [])],
        "asin": str(content.get("asin", "")).lower(),
        "options": dict(content.get("options") or {}),
        "sub": sub,
    }


def actions(steps: Sequence[Mapping[str, Any]]) -> list[str]:
    """The actions that lead from each page to the next one; a page that was loaded again takes none.

    Raises ValueError for two pages that no action of the grammar connects.
    """
    found: list[str] = []
    for before, after in zip(map(_facts, steps), map(_facts, steps[1:]), strict=False):
        found += _between(before, after)
    return found


def _between(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    kinds = (before["kind"], after["kind"])
    label = {name: f"click[{text.lower()}]" for name, text in STANDARD.buttons.items()}
    if before == after:
        return []
    if kinds[1] == "search":
        return [label["back"]]
    if kinds[1] == "done":
        return [label["buy"]]
    if kinds[1] == "results":
        if kinds[0] == "results" and before["query"] == after["query"] and abs(before["page"] - after["page"]) == 1:
            return [label["next" if after["page"] > before["page"] else "prev"]]
        if kinds[0] == "item" and before["query"] == after["query"]:
            return [label["prev"]]
        if after["page"] == 1:
            return [f"search[{after['query']}]"]
    if kinds == ("results", "item"):
        return [f"click[{after['asin']}]"]
    if kinds == ("sub", "item"):
        return [label["prev"]]
    if kinds == ("item", "sub"):
        return [label[after["sub"]]]
    if kinds == ("item", "item") and before["asin"] == after["asin"]:
        new = [v for n, v in after["options"].items() if before["options"].get(n) != v]
        if new:
            return [f"click[{value}]" for value in new]
    raise ValueError(f"no action leads from {before} to {after}")


class Recorded(Store):
    """The part of a catalogue that a session shows: a search finds what it found then (``found``: query → ids)."""

    found: Mapping[str, Sequence[str]]

    def search(self, query: str, count: int, seed: int = 0) -> list[int]:
        numbers = (self.find(asin.upper()) for asin in self.found.get(query, []))
        return [n for n in numbers if n is not None][:count]


def recorded(steps: Sequence[Mapping[str, Any]]) -> Recorded:
    """The products of a session, with the options that were chosen and without the texts that it does not hold."""
    options: dict[str, dict[str, list[str]]] = {}
    found: dict[str, list[str]] = {}
    for facts in map(_facts, steps):
        for asin in [*facts["shown"], *([facts["asin"]] if facts["asin"] else [])]:
            options.setdefault(asin, {})
        for name, value in facts["options"].items():
            values = options[facts["asin"]].setdefault(name, [])
            if value not in values:
                values.append(value)
        hits = found.setdefault(facts["query"], [])
        hits += [asin for asin in facts["shown"] if asin not in hits]
    store = Recorded.of(
        Product(a.upper(), f"Product {a.upper()}", "", [], "", "", "", [1.0], options[a], []) for a in options
    )
    store.found = found
    return store


def replay(steps: Sequence[Mapping[str, Any]]) -> Session:
    """Play a session's actions in its own part of the catalogue; the session at its end.

    Raises ValueError for an action that the shop does not know.
    """
    session = Session(Shop(recorded(steps)))
    for action in actions(steps):
        name, _, argument = action[:-1].partition("[")
        if name == "search":
            session.search(argument)
            continue
        target = pages.clickables(session, STANDARD).get(argument)
        if target is None:
            raise ValueError(f"{action} is unknown on the {session.kind} page")
        session.click(target)
    return session
