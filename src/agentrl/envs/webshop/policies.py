"""Scripted shoppers: the expert that the cold start learns from, and the baselines that a policy is compared with."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import cache

from agentrl.envs.base import Task
from agentrl.envs.webshop import pages
from agentrl.envs.webshop.env import View, goal_of
from agentrl.envs.webshop.product import Product
from agentrl.envs.webshop.reward import Goal, best_options, purchase
from agentrl.envs.webshop.session import BUY, Session, Shop, Target

PAGES = 3  # results pages that the expert looks through before it tries other words


class Shopper:
    """Acts in a session of its own and writes down the actions."""

    def __init__(self, shop: Shop, view: View, task: Task):
        self.session = Session(shop, task.seed)
        self.view = view
        self.task = task
        self.limit = int(task.meta["max_steps"])
        self.actions: list[str] = []

    @property
    def left(self) -> int:
        return self.limit - len(self.actions)

    def search(self, words: str) -> None:
        self.actions.append(f"search[{words}]")
        self.session.search(words)

    def click(self, target: Target) -> None:
        name = pages.label(target, self.session, self.view.wording).lower()
        self.actions.append(f"click[{name}]")
        self.session.click(target)

    def button(self, name: str) -> None:
        self.click(Target("button", name))

    def buy(self, options: dict[str, str]) -> None:
        """Choose options on the item page and buy."""
        for name, value in options.items():
            self.click(Target("option", name, value))
        self.button(BUY)


def expert(shop: Shop, view: View, task: Task, seed: int) -> list[str] | None:
    """Actions that earn full reward within the task's steps, or None when no way was found.

    Knows the goal: searches for its words, takes the first product shown that can earn full reward, chooses what the
    goal asks for, and buys. Where steps are left over it sometimes searches poorly first, or reads a sub page.
    """
    goal = goal_of(task)
    rng = random.Random(f"webshop expert {task.hash} {seed}")
    queries = _queries(goal, rng)
    detour = rng.random()
    plan = [goal.query, *queries] if detour < 0.12 and task.meta["max_steps"] > 7 else queries

    @cache
    def fits(number: int) -> dict[str, str] | None:
        return _options_for(shop, number, goal, task)

    for first in range(len(plan)):
        for read in (True, False) if 0.12 <= detour < 0.24 else (False,):
            actions = _attempt(Shopper(shop, view, task), plan[first:], fits, rng, read)
            if actions is not None:
                return actions
    return None


def _attempt(
    shopper: Shopper,
    queries: Sequence[str],
    fits: Callable[[int], dict[str, str] | None],
    rng: random.Random,
    read: bool,
) -> list[str] | None:
    """Search with one query after the other and buy the first product that ``fits`` gives options for."""
    session = shopper.session
    for words in queries:
        if shopper.left < 3:
            return None
        shopper.search(words)
        for page in range(PAGES):
            found = next((n for n in session.shown() if fits(n) is not None), None)
            if found is not None:
                options = fits(found) or {}
                if shopper.left < len(options) + 2:
                    return None
                shopper.click(Target("product", number=found))
                if read and shopper.left >= len(options) + 3:
                    shopper.button(rng.choice(("description", "features")))
                    shopper.button("prev")
                names = list(options)
                rng.shuffle(names)
                shopper.buy({name: options[name] for name in names})
                return shopper.actions if len(shopper.actions) <= shopper.limit else None
            more = len(session.hits) > (page + 1) * session.shop.page_size
            if not more or page == PAGES - 1 or shopper.left < 4:
                break
            shopper.button("next")
    return None


def _queries(goal: Goal, rng: random.Random) -> list[str]:
    """What to search for, best first: words of the goal in an order that varies; the product's own title last."""
    attributes = " ".join(goal.attributes)
    values = [o if isinstance(o, str) else o[1] for o in goal.options]
    full = [f"{attributes} {goal.query}", f"{goal.query} {attributes}"]
    rng.shuffle(full)
    with_options = f"{full[0]} {' '.join(values)}".strip()
    found = [with_options, full[0]] if rng.random() < 0.5 else [full[0], with_options]
    return [*dict.fromkeys(_words(query) for query in [*found, " ".join(goal.title.split()[:12])])]


def _words(query: str) -> str:
    """A query as the grammar can carry it."""
    return " ".join(query.replace("[", " ").replace("]", " ").lower().split())


def _options_for(shop: Shop, number: int, goal: Goal, task: Task) -> dict[str, str] | None:
    """The options with which a product earns full reward, exact values where it has them; None when it cannot."""
    product = shop.store.product(number)
    options = _exact(product, goal)
    for choice in (options, best_options(product, goal)):
        if purchase(product, choice, product.price(task.seed), goal).total >= 1:
            return choice
    return None


def _exact(product: Product, goal: Goal) -> dict[str, str]:
    found = {}
    for option in goal.options:
        pairs = [(name, value) for name, values in product.options.items() for value in values]
        match = next((p for p in pairs if p == tuple(option) or p[1] == option), None)
        if match is not None:
            found[match[0]] = match[1]
    return found


def first_hit(shop: Shop, view: View, task: Task, options: bool) -> list[str]:
    """The rule of WebShop's paper: search for the errand's own words and buy the first product.

    With ``options``, choose before that every option value that the errand names (the longest of a name).
    """
    shopper = Shopper(shop, view, task)
    shopper.search(_words(task.question))
    shown = shopper.session.shown()
    if not shown:
        return shopper.actions
    shopper.click(Target("product", number=shown[0]))
    errand = f" {_plain(task.question)} "
    chosen: dict[str, str] = {}
    if options:
        for name, values in shopper.session.product.options.items():
            named = [v for v in values if _plain(v).strip() and f" {_plain(v)} " in errand]
            if named and shopper.left > len(chosen) + 1:
                chosen[name] = max(named, key=len)
    shopper.buy(chosen)
    return shopper.actions


def _plain(text: str) -> str:
    return " ".join("".join(c if c.isalnum() else " " for c in text.lower()).split())


def at_random(shop: Shop, view: View, task: Task, seed: int) -> list[str]:
    """One of everything that can be clicked, or with the same chance a search for two words of the errand, till the
    end."""
    rng = random.Random(f"webshop random {task.hash} {seed}")
    shopper = Shopper(shop, view, task)
    words = _words(task.question).split()
    while shopper.left and shopper.session.kind != "done":
        choices = shopper.session.targets()
        pick = rng.randrange(len(choices) + 1)
        if pick == len(choices):
            shopper.search(" ".join(rng.sample(words, min(2, len(words)))))
        else:
            shopper.click(choices[pick])
    return shopper.actions
