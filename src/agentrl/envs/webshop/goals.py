"""Goals of the original's files, in its order, with its splits; price limits drawn from the goal itself."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import random
from array import array
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from agentrl.envs.webshop.product import Product
from agentrl.envs.webshop.reward import Goal
from agentrl.envs.webshop.store import Store

SHUFFLE_SEED = 233  # of the original
LIMITS = [10.0 * i for i in range(1, 100)]


@dataclass(frozen=True)
class Instruction:
    """A goal with the words that ask for it. ``seed`` fixes the price draws of its task."""

    goal: Goal
    text: str
    seed: int


def task_seed(product: Product, attributes: Sequence[str], options: Sequence[Any], text: str, price_seed: int) -> int:
    """A number that depends on the goal (and ``price_seed``) alone."""
    content = json.dumps([price_seed, product.asin, list(attributes), list(options), text])
    return int.from_bytes(hashlib.sha256(content.encode()).digest()[:4], "big")


def price_limit(price: float, seed: int) -> float | None:
    """The larger of two draws from the first four of $10, $20 … $990 above ``price``; None when not two are left."""
    above = [limit for limit in LIMITS if limit > price][:4]
    return max(random.Random(f"limit {seed}").sample(above, 2)) if len(above) >= 2 else None


def limit_words(limit: float | None) -> str:
    return "" if limit is None else f", and price lower than {limit:.2f} dollars"


class Goals:
    """All goals of a store, numbered as in the original: built in catalogue order, then shuffled once with its seed.

    ``human`` maps product ids to human instructions; None takes the synthetic goals, one for each combination of
    options. Twelve bytes a goal are kept; a goal itself is made when asked for.
    """

    def __init__(self, store: Store, human: Mapping[str, Sequence[Mapping[str, Any]]] | None, price_seed: int = 0):
        self._store, self._human, self._price_seed = store, human, price_seed
        refs: list[tuple[int, int]] = []
        counts: Counter[str] = Counter()
        for number, product in enumerate(store.products()):
            if human is not None:
                wanted = [
                    (i, e["instruction_attributes"])
                    for i, e in enumerate(human.get(product.asin, ()))
                    if e["instruction_attributes"]
                ]
            else:
                asked = product.instruction and product.instruction_attributes
                combinations = math.prod(map(len, product.options.values())) if asked else 0
                wanted = [(i, product.instruction_attributes) for i in range(combinations)]
            for which, attributes in wanted:
                refs.append((number, which))
                counts.update(attributes)
        random.Random(SHUFFLE_SEED).shuffle(refs)
        self._numbers = array("i", [number for number, _ in refs])
        self._which = array("q", [which for _, which in refs])
        self.weights = np.ones(len(refs))
        if human is None:
            for i, number in enumerate(self._numbers):
                attributes = store.product(number).instruction_attributes
                self.weights[i] = sum(1 / counts[a] for a in attributes) / len(attributes)

    def __len__(self) -> int:
        return len(self._numbers)

    def product_number(self, index: int) -> int:
        return self._numbers[index]

    def __getitem__(self, index: int) -> Instruction:
        product = self._store.product(self._numbers[index])
        which = self._which[index]
        if self._human is not None:
            entry = self._human[product.asin][which]
            attributes, options = entry["instruction_attributes"], entry["instruction_options"]
            text = entry["instruction"].strip(".")
        else:
            attributes = product.instruction_attributes
            options = _combination(product, which)
            asked = ", and ".join(f"{name}: {value}" for name, value in options)
            text = (product.instruction or "") + (f" with {asked}" if asked else "")
        seed = task_seed(product, attributes, options, text, self._price_seed)
        limit = price_limit(product.price(seed), seed)
        return Instruction(Goal.of(product, attributes, options, limit), text + limit_words(limit), seed)

    def order(self, indices: Sequence[int], seed: int) -> Iterator[int]:
        """The indices without repeats in a random order that prefers heavy goals: what drawing one by one with the
        original's weights and leaving out repeats would give (Efraimidis and Spirakis 2006, weighted sampling)."""
        draws = np.random.default_rng(seed).random(len(indices))
        keys = -np.log1p(-draws) / self.weights[np.asarray(indices, dtype=np.int64)]
        return (indices[int(i)] for i in np.argsort(keys, kind="stable"))


def _combination(product: Product, which: int) -> list[tuple[str, str]]:
    """The ``which``-th of ``itertools.product`` over the option values, option names sorted."""
    names = sorted(product.options)
    values = next(itertools.islice(itertools.product(*(product.options[n] for n in names)), which, None))
    return list(zip(names, values, strict=True))
