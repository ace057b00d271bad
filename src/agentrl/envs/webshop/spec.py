"""WebShop as the harness meets it: catalogues, variants, tasks, verifier, expert."""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any

from agentrl.envs.base import Environment, EnvSpec, Episode, Outcome, Task, Verdict
from agentrl.envs.webshop import builtin, policies, reading
from agentrl.envs.webshop.builtin import catalogue
from agentrl.envs.webshop.builtin.instructions import phrase
from agentrl.envs.webshop.env import View, WebShopEnv, goal_of
from agentrl.envs.webshop.goals import Goals, Instruction
from agentrl.envs.webshop.pages import STYLES, WORDINGS
from agentrl.envs.webshop.product import Product
from agentrl.envs.webshop.reward import Goal, Reward, best_options, purchase
from agentrl.envs.webshop.session import Session, Shop
from agentrl.envs.webshop.store import Store
from agentrl.errors import UserError, nearest

GOALS = ("human", "synthetic")
FILE_KEYS = ("root", "products", "attributes", "human")
FILE_VARIANTS = {
    "train": "goals from number 1,500 on (the original's split)",
    "test": "goals 0 to 499",
    "dev": "goals 500 to 1,499",
    "new_products": "test and dev goals whose product is no training goal's",
    "paraphrased": "the test goals in other words",
    "interface": "the test goals; pages with other words and another order",
    "tight": "the test goals, with no more than one step to spare",
}
SCORES = ("score", "type", "title", "attributes", "options", "price", "bought")
SMALL_FILE = 64 << 20  # bytes: catalogues up to this size are kept in memory


class WebShopSpec(EnvSpec):
    """Shopping in a text store (Yao et al. 2022).

    Options:
        files: the original's files, ``products``, ``attributes`` and, for human goals, ``human``, with an optional
            ``root`` folder; left out, the shop is the generated one.
        goals: ``human`` or ``synthetic`` goals of the files.
        limit: take only the first so many products of the file, as the original's small shops do.
        test_goals, dev_goals: sizes of the first two splits of the files' goals.
        max_steps: actions in an episode; set ``env.max_turns`` to at least as many.
        page_size: products on a results page. max_hits: products of a search.
        title_words: words of a title on a results page; null shows all.
        style: how pages are written: ``compact``, or the original's ``text`` and ``text_rich``.
        show_attributes: whether item pages have the sub page Attributes.
        price_seed: another number draws other price limits for the files' goals.
        shop_seed: which generated shop. per_kind: products of each of its kinds.
        cache: folder for large catalogues and their indexes; null is ``$AGENTRL_CACHE`` or ``~/.cache/agentrl``.
    """

    name = "webshop"
    description = "buy what an instruction asks for in a text web store (WebShop)"
    action_grammar = "search[words] or click[text of something clickable on the page]"
    stop = ("]",)
    shortcuts: Mapping[str, str] = {"s": "search[{}]", "c": "click[{}]"}

    def __init__(
        self,
        files: Mapping[str, Any] | None = None,
        goals: str = "synthetic",
        limit: int | None = None,
        test_goals: int = 500,
        dev_goals: int = 1000,
        max_steps: int = 15,
        page_size: int = 10,
        max_hits: int = 50,
        title_words: int | None = None,
        style: str = "compact",
        show_attributes: bool = False,
        price_seed: int = 0,
        shop_seed: int = 0,
        per_kind: int = catalogue.PER_KIND,
        cache: str | None = None,
    ):
        for key, text, choices in (("style", style, STYLES), ("goals", goals, GOALS)):
            if text not in choices:
                raise UserError(f"env.options.{key}={text!r} does not exist; {nearest(str(text), choices)}")
        counts = {"max_steps": max_steps, "page_size": page_size, "max_hits": max_hits, "per_kind": per_kind}
        optional = {"limit": limit, "title_words": title_words}
        for key, value in (counts | {k: v for k, v in optional.items() if v is not None}).items():
            if value < 1:
                raise UserError(f"env.options.{key}={value} must be at least 1")
        for key, value in (("test_goals", test_goals), ("dev_goals", dev_goals)):
            if value < 0:
                raise UserError(f"env.options.{key}={value} must not be negative")
        self.max_steps, self.page_size, self.max_hits = max_steps, page_size, max_hits
        self.title_words, self.style, self.show_attributes = title_words, style, show_attributes
        self.shop_seed, self.per_kind = shop_seed, per_kind
        self._cache = Path(cache).expanduser() if cache else None
        self._files = _paths(files, goals) if files is not None else None
        self._human = goals == "human"
        self._limit, self._price_seed = limit, price_seed
        self._splits = (test_goals, test_goals + dev_goals)
        self._stores: dict[str, Store] = {}
        self._goals: Goals | None = None
        self._lock = threading.RLock()

    # --- catalogues

    def store(self, corpus: str = "base") -> Store:
        """The store of a corpus: built on first use, shared by all sessions, safe in threads."""
        with self._lock:
            if corpus not in self._stores:
                if self._files is None:
                    self._stores[corpus] = Store.of(catalogue.products(corpus, self.shop_seed, self.per_kind))
                else:
                    self._stores[corpus] = self._from_files()
            return self._stores[corpus]

    def _from_files(self) -> Store:
        assert self._files is not None
        items, attributes = self._files["products"], self._files["attributes"]

        def read() -> Iterator[Product]:
            return reading.products(items, attributes, self._limit)

        if items.stat().st_size <= SMALL_FILE:
            return Store.of(read())
        stamps = [(str(p.resolve()), p.stat().st_size, p.stat().st_mtime_ns) for p in (items, attributes)]
        return Store.kept(f"{stamps}|{self._limit}", read, self._cache)

    def shop(self, task: Task) -> Shop:
        """The shop that a task's errand is for."""
        return self._shop(str(task.meta["corpus"]))

    @lru_cache(maxsize=8)  # noqa: B019  (a spec lives as long as the run)
    def _shop(self, corpus: str) -> Shop:
        return Shop(self.store(corpus), self.page_size, self.max_hits, self.show_attributes)

    def view(self, task: Task) -> View:
        return View(self.style, WORDINGS[str(task.meta["wording"])], self.title_words)

    # --- tasks

    def variants(self) -> Mapping[str, str]:
        return dict(builtin.VARIANTS if self._files is None else FILE_VARIANTS)

    def tasks(self, variant: str, seed: int, start: int = 0) -> Iterator[Task]:
        if variant not in self.variants():
            raise UserError(f"variant {variant!r} of env webshop does not exist; {nearest(variant, self.variants())}")
        found = self._built_in(variant, seed) if self._files is None else self._original(variant, seed)
        return islice(found, start, None)

    def _built_in(self, variant: str, seed: int) -> Iterator[Task]:
        corpus = builtin.corpus_of(variant)
        for instruction, product in builtin.errands(self.store(corpus), variant, seed):
            task = self._task(f"{product.asin.lower()}", variant, corpus, instruction)
            if task is not None:
                yield task

    def _original(self, variant: str, seed: int) -> Iterator[Task]:
        goals, test, train = self._all_goals(), *self._splits
        indices = {
            "train": range(train, len(goals)),
            "dev": range(min(test, len(goals)), min(train, len(goals))),
            "new_products": self._new_products(goals),
        }.get(variant, range(min(test, len(goals))))
        if not len(indices) and variant == "train":
            raise UserError(
                f"the files have {len(goals)} goals, and training begins at number {train}: "
                "set env.options.test_goals and env.options.dev_goals to smaller numbers"
            )
        for index in goals.order(indices, seed):
            instruction = goals[index]
            if variant == "paraphrased":
                instruction = _reworded(instruction)
            task = self._task(f"{index}", variant, "base", instruction)
            if task is not None:
                yield task

    def _all_goals(self) -> Goals:
        with self._lock:
            if self._goals is None:
                assert self._files is not None
                human = reading.human_instructions(self._files["human"]) if self._human else None
                self._goals = Goals(self.store(), human, self._price_seed)
            return self._goals

    def _new_products(self, goals: Goals) -> list[int]:
        train = self._splits[1]
        known = {goals.product_number(i) for i in range(train, len(goals))}
        return [i for i in range(min(train, len(goals))) if goals.product_number(i) not in known]

    def _task(self, name: str, variant: str, corpus: str, instruction: Instruction) -> Task | None:
        """The task of an instruction; None for a tight one whose budget cannot be known."""
        meta = {
            "corpus": corpus,
            "catalogue": self.store(corpus).hash,
            "wording": "other" if variant == "interface" else "standard",
            "max_steps": self.max_steps,
            "pages": [self.page_size, self.max_hits, self.title_words, self.style, self.show_attributes],
        }
        text = instruction.text
        digest = hashlib.sha256(json.dumps([text, meta, instruction.seed]).encode()).hexdigest()[:8]
        task = Task(
            id=f"webshop-{variant}-{name}-{digest}",
            question=text,
            truth=asdict(instruction.goal),
            variant=variant,
            split="train" if variant == self.train_variant else "heldout",
            seed=instruction.seed,
            meta=meta,
        )
        if variant != "tight":
            return task
        actions = policies.expert(self.shop(task), self.view(task), task, seed=0)
        if actions is None:
            return None
        meta["max_steps"] = min(self.max_steps, _shortest(actions) + 1)
        return task

    # --- episodes

    def make(self) -> Environment:
        return WebShopEnv(self)

    def reward(self, product: Product, options: Mapping[str, str], goal: Goal, seed: int) -> Reward:
        return purchase(product, options, product.price(seed), goal)

    def verify(self, episode: Episode) -> Verdict:
        """Full reward is success; ``score`` is the graded reward, the others are its parts."""
        reward = self._purchase(episode.task, episode.answer)
        if reward is None:
            return Verdict(0.0, dict.fromkeys(SCORES, 0.0))
        return Verdict(float(reward.total >= 1), {**reward.scores, "bought": 1.0})

    def _purchase(self, task: Task, answer: str | None) -> Reward | None:
        """The reward of a recorded purchase; None when nothing of this shop was bought."""
        try:
            bought = json.loads(answer or "null")
            asin, options = bought["asin"], bought["options"]
            number = self.store(str(task.meta["corpus"])).find(asin)
            chosen = {str(k): str(v) for k, v in options.items()}
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            return None
        if number is None:
            return None
        return self.reward(self.store(str(task.meta["corpus"])).product(number), chosen, goal_of(task), task.seed)

    def gold_answers(self, task: Task) -> Sequence[str]:
        """The goal's own product with the best options; none where even that is not worth full reward."""
        goal = goal_of(task)
        number = self.store(str(task.meta["corpus"])).find(goal.asin)
        assert number is not None
        product = self.store(str(task.meta["corpus"])).product(number)
        options = best_options(product, goal)
        if self.reward(product, options, goal, task.seed).total < 1:
            return ()
        return (json.dumps({"asin": goal.asin, "options": options}, ensure_ascii=False),)

    def wrong_answers(self, task: Task) -> Sequence[str]:
        goal = goal_of(task)
        store = self.store(str(task.meta["corpus"]))
        others = (store.product(int(i * (len(store) - 1) / 7)) for i in range(8))
        wrong = [p for p in others if self.reward(p, {}, goal, task.seed).total < 1]
        answers = ["", "buy now", '{"asin": 7, "options": []}', json.dumps({"asin": "none", "options": {}})]
        return [*answers, *(json.dumps({"asin": p.asin, "options": {}}) for p in wrong[:2])]

    def format_score(self, episode: Episode) -> float:
        """Share of the actions that the shop could carry out; an episode without a purchase counts one more bad one."""
        good = sum(outcome is Outcome.OK for outcome in episode.outcomes)
        return good / max(1, len(episode.outcomes) + (episode.answer is None))

    def expert(self, task: Task, seed: int) -> Sequence[str] | None:
        return policies.expert(self.shop(task), self.view(task), task, seed)

    def evidence(self, task: Task) -> str | None:
        """The page of a product that is worth full reward, as the shop shows it; None where the expert finds none."""
        actions = self.expert(task, 0)
        if actions is None:
            return None
        env = self.make()
        pages: dict[str, str] = {}
        env.reset(task)
        for action in actions:
            shown = env.step(action).observation
            pages[action] = f"{shown.before}{shown.text}{shown.after}" if shown is not None else ""
        asin = str(json.loads(env.answer() or "{}").get("asin", "")).lower()
        page = pages.get(f"click[{asin}]")
        return f"The right product is {asin}. Its page:\n{page.strip()}" if page else None

    def exploiters(self, task: Task) -> Mapping[str, Sequence[str]]:
        """Ways to earn reward without doing the errand."""
        shop, view = self.shop(task), self.view(task)
        buy = f"click[{view.wording.buttons['buy'].lower()}]"
        return {
            "buy at once": [buy] * self.max_steps,
            "first hit of the errand, no options": policies.first_hit(shop, view, task, options=False),
            "first product of a blank search": ["search[<r>]", *_first_product(shop, task), buy],
        }

    # --- lifetime

    def prepare(self) -> None:
        self.store().prepare()

    def data_hashes(self) -> Mapping[str, str]:
        corpora = dict.fromkeys(map(builtin.corpus_of, self.variants())) if self._files is None else ("base",)
        return {f"webshop/{corpus}": self.store(corpus).hash for corpus in corpora}

    def close(self) -> None:
        with self._lock:
            for store in self._stores.values():
                store.close()
            self._stores.clear()
            self._shop.cache_clear()


def _first_product(shop: Shop, task: Task) -> list[str]:
    session = Session(shop, task.seed)
    session.search("<r>")
    return [f"click[{shop.store.product(n).asin.lower()}]" for n in session.shown()[:1]]


def _shortest(actions: Sequence[str]) -> int:
    """The expert's actions without its detours: one search, one product, options, buy."""
    first = max(i for i, action in enumerate(actions) if action.startswith("search["))
    return len(actions) - first


def _reworded(instruction: Instruction) -> Instruction:
    import random

    goal = instruction.goal
    options = [("option", o) if isinstance(o, str) else (o[0], o[1]) for o in goal.options]
    rng = random.Random(f"webshop reworded {instruction.seed}")
    text = phrase(goal.query, goal.attributes, options, goal.price_upper, rng, reworded=True)
    return Instruction(goal, text, instruction.seed)


def _paths(files: Mapping[str, Any], goals: str) -> dict[str, Path]:
    """The files that the options name. Raises UserError for one that is missing or unknown."""
    for key in files:
        if key not in FILE_KEYS:
            raise UserError(f"env.options.files.{key} is not an option; {nearest(key, FILE_KEYS)}")
    root = Path(os.path.expanduser(str(files.get("root") or ".")))
    found = {}
    for key in ("products", "attributes", *(["human"] if goals == "human" else [])):
        if not files.get(key):
            raise UserError(f"env.options.files.{key} is missing (see env=webshop_files)")
        found[key] = root / str(files[key])
        if not found[key].is_file():
            raise UserError(f"env.options.files.{key}={files[key]}: there is no file {found[key]}")
    return found
