"""The evidence of a task, and the environment that hands it over."""

from __future__ import annotations

import re
from contextlib import closing
from itertools import islice

import pytest
from rollout.scripted import ScriptedSpec

from agentrl.envs.code.spec import CodeSpec
from agentrl.envs.informed import with_evidence
from agentrl.envs.search.spec import SearchSpec
from agentrl.envs.webshop.env import goal_of
from agentrl.envs.webshop.reward import best_options
from agentrl.envs.webshop.spec import WebShopSpec


@pytest.fixture(scope="module")
def spec() -> SearchSpec:
    return SearchSpec()


@pytest.mark.parametrize("variant", list(SearchSpec().variants()))
def test_search_evidence_states_every_hop(spec, variant):
    for task in islice(spec.tasks(variant, 3), 6):
        evidence = spec.evidence(task)
        assert evidence is not None and evidence.startswith("<information>") and evidence.endswith("</information>")
        for subject, _, value in task.truth["path"]:
            assert subject in evidence and value in evidence


def test_the_prompt_holds_it_and_nothing_else_changes(spec):
    task = next(iter(spec.tasks("train", 3)))
    plain, informed = spec.make(), with_evidence(spec).make()
    (before,), (after,) = plain.reset(task), informed.reset(task)
    assert after["content"].startswith(before["content"].rstrip()) and spec.evidence(task) in after["content"]
    for action in ("<search> a river </search>", "nonsense", f"<answer> {spec.gold_answers(task)[0]} </answer>"):
        one, two = plain.step(action), informed.step(action)
        assert (one.observation, one.outcome, one.done) == (two.observation, two.outcome, two.done)
        assert plain.state_key() == informed.state_key() and plain.answer() == informed.answer()
    assert spec.make().reset(task) == [before]  # the spec itself is as it was


def test_code_evidence_is_what_the_reference_program_prints():
    with closing(CodeSpec()) as spec:
        for task in islice(spec.tasks("train", 3), 4):
            evidence = spec.evidence(task)
            assert evidence is not None and spec.gold_answers(task)[0] in evidence
            assert spec.evidence(task) == evidence
    with closing(CodeSpec(tasks="programs")) as spec:
        assert spec.evidence(next(iter(spec.tasks("train", 3)))) is None


def test_webshop_evidence_is_the_page_of_a_product_that_may_be_bought():
    with closing(WebShopSpec()) as spec:
        for task in islice(spec.tasks("train", 3), 4):
            evidence = spec.evidence(task)
            assert evidence is not None
            asin = re.match(r"The right product is (\w+)\.", evidence)[1]
            product = spec.store().product(spec.store().find(asin.upper()))
            assert product.title.split()[0].lower() in evidence.lower()
            goal = goal_of(task)
            assert spec.reward(product, best_options(product, goal), goal, task.seed).total == 1


def test_without_evidence_the_prompt_is_as_it_was():
    spec = ScriptedSpec()
    task = next(iter(spec.tasks("train", 0)))
    assert spec.evidence(task) is None
    assert with_evidence(spec).make().reset(task) == spec.make().reset(task)
