"""The evidence of a task, and the environment that hands it over."""

from __future__ import annotations

from itertools import islice

import pytest
from rollout.scripted import ScriptedSpec

from agentrl.envs.informed import with_evidence
from agentrl.envs.search.spec import SearchSpec


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


def test_without_evidence_the_prompt_is_as_it_was():
    spec = ScriptedSpec()
    task = next(iter(spec.tasks("train", 0)))
    assert spec.evidence(task) is None
    assert with_evidence(spec).make().reset(task) == spec.make().reset(task)
