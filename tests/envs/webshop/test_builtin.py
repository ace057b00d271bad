"""The generated shop: the same everywhere, solvable, and its variants apart from training."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys

import pytest

from agentrl.envs.base import Episode, Outcome
from agentrl.envs.webshop.builtin import VARIANTS, catalogue
from agentrl.envs.webshop.builtin.vocabulary import ATTRIBUTES, KINDS, OPTIONS, RESERVED_CATEGORIES
from agentrl.envs.webshop.fuzzy import alike, plain_color
from agentrl.envs.webshop.goals import LIMITS, price_limit
from agentrl.envs.webshop.spec import WebShopSpec

PRINT = """
from itertools import islice
from agentrl.envs.webshop.spec import WebShopSpec
spec = WebShopSpec(per_kind=10)
print([t.hash for v in spec.variants() for t in islice(spec.tasks(v, 3), 3)], spec.data_hashes())
"""


def test_several_thousand_products_in_a_dozen_categories() -> None:
    products = list(catalogue.products("base"))
    assert len(products) == 3240 and len({p.category for p in products}) == 12
    assert len({p.asin for p in products}) == len(products) and len({p.title for p in products}) > 3200
    assert all(p.prices[0] > 3 and p.options and 3 <= len(p.attributes) <= 5 for p in products)


def test_the_same_in_every_process() -> None:
    runs = [
        subprocess.run(
            [sys.executable, "-c", PRINT],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "PYTHONHASHSEED": s},
        ).stdout
        for s in ("1", "2")
    ]
    assert runs[0] == runs[1] != ""


def test_values_of_one_option_are_told_apart_by_the_reward() -> None:
    """Apart from sizes that contain one another in words ("x-large" and "large"), which the original confuses too."""
    for pool in OPTIONS.values():
        for a, b in itertools.combinations([*pool.common, *pool.reserved], 2):
            assert not alike(plain_color(a), plain_color(b)) or {a, b} == {"large", "xx-large"}, (a, b)
    for pool in ATTRIBUTES.values():
        for a, b in itertools.combinations([*pool.common, *pool.reserved], 2):
            assert not alike(a, b), (a, b)


@pytest.mark.parametrize("variant", list(VARIANTS))
def test_expert_solves_what_is_asked(shop: WebShopSpec, variant: str) -> None:
    for task in itertools.islice(shop.tasks(variant, 7), 12):
        actions = shop.expert(task, 1)
        assert actions is not None and len(actions) <= task.meta["max_steps"] <= 8
        env = shop.make()
        env.reset(task)
        outcomes = [env.step(action).outcome for action in actions]
        assert set(outcomes) == {Outcome.OK}
        assert shop.verify(Episode(task, env.answer(), actions, [], outcomes)).success == 1
        assert len(shop.gold_answers(task)) == 1


def test_variants_are_apart_from_training(shop: WebShopSpec) -> None:
    train = list(itertools.islice(shop.tasks("train", 0), 1500))
    asins = {t.truth["asin"] for t in train}
    words = {w for pool in (*ATTRIBUTES.values(), *OPTIONS.values()) for w in pool.reserved}
    for variant in VARIANTS:
        tasks = list(itertools.islice(shop.tasks(variant, 1), 40))
        assert len({t.hash for t in tasks}) == len(tasks) and {t.variant for t in tasks} == {variant}
        if variant == "train":
            continue
        assert not {t.hash for t in tasks} & {t.hash for t in train}
        if shop.shop(tasks[0]) is shop.shop(train[0]):
            assert not {t.truth["asin"] for t in tasks} & asins
    new = list(itertools.islice(shop.tasks("new_values", 0), 40))
    assert all(words & {*t.truth["attributes"]} and words.issuperset(t.truth["options"]) for t in new)
    assert not any(words & {*t.truth["attributes"], *t.truth["options"]} for t in train)
    other = {t.truth["category"] for t in itertools.islice(shop.tasks("new_categories", 0), 40)}
    assert other == set(RESERVED_CATEGORIES) and not other & {t.truth["category"] for t in train}


def test_shifts_of_one_errand_compare_pair_by_pair(shop: WebShopSpec) -> None:
    drawn = [list(itertools.islice(shop.tasks(v, 5), 10)) for v in ("paraphrased", "interface", "tight")]
    assert [t.truth for t in drawn[0]] == [t.truth for t in drawn[1]] == [t.truth for t in drawn[2]]
    assert all(a.question != b.question == c.question for a, b, c in zip(*drawn, strict=True))
    assert all(t.meta["max_steps"] < 8 for t in drawn[2])


def test_instructions_vary_and_name_what_is_wanted(shop: WebShopSpec) -> None:
    tasks = list(itertools.islice(shop.tasks("train", 0), 300))
    assert len({t.question.split()[0] for t in tasks}) > 4
    for task in tasks:
        wanted = [*task.truth["attributes"], *task.truth["options"]]
        assert all(w in task.question for w in wanted) and task.truth["query"][:-1].split()[-1][:4] in task.question
        assert f"{task.truth['price_upper']:.0f}" in task.question


@pytest.mark.parametrize("price", [3.0, 10.0, 39.99, 955.0])
def test_price_limits(price: float) -> None:
    """The larger of two of the first four tens above the price, by the seed alone."""
    drawn = {price_limit(price, seed) for seed in range(200)}
    assert drawn == set([x for x in LIMITS if x > price][1:4])


def test_without_two_tens_above_there_is_no_limit() -> None:
    assert price_limit(980.0, 1) is None and price_limit(5000.0, 1) is None


def test_kinds_have_pools() -> None:
    for kind in KINDS:
        assert kind.attributes in ATTRIBUTES and set(kind.options) <= set(OPTIONS)
        assert kind.asked.split()[-1][:3] == kind.query.split()[-1][:3]
