"""The built-in world: determinism, uniqueness, and what each held-out variant keeps apart from training."""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import sys
from itertools import islice

import pytest

from agentrl.envs.base import Episode, Outcome, Task
from agentrl.envs.search.atlas import CORPORA, VARIANTS, Atlas
from agentrl.envs.search.atlas.questions import held_out_pair
from agentrl.envs.search.atlas.relations import BY_NAME, RELATIONS
from agentrl.envs.search.spec import SearchSpec

HELD_OUT = [v for v in VARIANTS if v != "train"]


@pytest.fixture(scope="module")
def spec() -> SearchSpec:
    return SearchSpec()


@pytest.fixture(scope="module")
def train(spec: SearchSpec) -> list[Task]:
    return list(spec.tasks("train", seed=0))


def play(spec: SearchSpec, task: Task, seed: int = 0) -> tuple[Episode, list[str]]:
    env = spec.make()
    env.reset(task)
    actions = list(spec.expert(task, seed) or [])
    seen, outcomes = [], []
    for action in actions:
        transition = env.step(action)
        outcomes.append(transition.outcome)
        if transition.observation is not None:
            seen.append(transition.observation.text)
    return Episode(task, env.answer(), actions, seen, outcomes), actions


def test_streams_are_deterministic_and_distinct(spec: SearchSpec, train: list[Task]) -> None:
    assert len(train) >= 2000
    assert len({t.hash for t in train}) == len({t.id for t in train}) == len({t.question for t in train}) == len(train)
    again = list(islice(SearchSpec().tasks("train", seed=0, start=50), 20))
    assert [t.hash for t in again] == [t.hash for t in train[50:70]]
    other = list(islice(spec.tasks("train", seed=1), 50))
    assert [t.hash for t in other] != [t.hash for t in train[:50]]
    other_world = list(islice(SearchSpec(world_seed=7).tasks("train", seed=0), 50))
    assert not {t.question for t in other_world} & {t.question for t in train}


def test_the_world_does_not_depend_on_hash_seeds() -> None:
    code = (
        "from agentrl.envs.search.spec import SearchSpec; s = SearchSpec();"
        "print(s.data_hashes(), [next(s.tasks(v, 3)).hash for v in s.variants()])"
    )
    runs = {
        subprocess.run(
            [sys.executable, "-c", code], env=_environment(seed), capture_output=True, text=True, check=True
        ).stdout
        for seed in ("1", "2")
    }
    assert len(runs) == 1


def _environment(seed: str) -> dict[str, str]:
    return {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}


def test_hop_mix(train: list[Task]) -> None:
    share = {h: sum(t.meta["hops"] == h for t in train[:1000]) / 1000 for h in (1, 2, 3)}
    assert share[1] == pytest.approx(0.40, abs=0.06)
    assert share[2] == pytest.approx(0.45, abs=0.06)
    assert share[3] == pytest.approx(0.15, abs=0.06)


@pytest.mark.parametrize("variant", HELD_OUT)
def test_held_out_tasks_never_occur_in_training(spec: SearchSpec, train: list[Task], variant: str) -> None:
    tasks = list(spec.tasks(variant, seed=0))
    assert len(tasks) >= 500
    everything = train + list(spec.tasks("train", seed=1))
    assert not {t.hash for t in tasks} & {t.hash for t in everything}
    if variant in ("paraphrased", "noisy", "buried", "deeper"):
        paths = {str(t.truth["path"]) for t in everything}
        assert not [t for t in tasks if str(t.truth["path"]) in paths]
    assert all(t.split == "heldout" and t.variant == variant for t in tasks)


def test_new_world_shares_no_entity_and_no_name(spec: SearchSpec) -> None:
    assert spec.atlas is not None
    base, new = spec.atlas.world("base"), spec.atlas.world("new")
    assert not set(base.entities) & set(new.entities)
    assert not base.words & new.words


def test_deeper_combines_what_training_does_not(spec: SearchSpec, train: list[Task]) -> None:
    def pairs(task: Task) -> set[tuple[str, str]]:
        names = [r for _, r, _ in task.truth["path"]]
        return set(itertools.pairwise(names))

    trained = {p for t in train for p in pairs(t)}
    assert not [p for p in trained if held_out_pair(BY_NAME[p[0]], BY_NAME[p[1]])]
    for task in islice(spec.tasks("deeper", seed=0), 300):
        assert task.meta["hops"] == 4 or pairs(task) - trained


def test_paraphrases_share_no_wording_with_training() -> None:
    for r in RELATIONS:
        assert not set(r.questions) & set(r.other_questions)
        assert not set(r.phrases) & set(r.other_phrases)
        assert len(r.facts) >= 3 and len(r.questions) >= 2 and r.other_questions and r.phrases
        assert bool(r.other_phrases) == r.leads_on


def test_variants_over_the_same_chains_compare_pairwise(spec: SearchSpec) -> None:
    first, second = (list(islice(spec.tasks(v, seed=5), 50)) for v in ("noisy", "paraphrased"))
    assert [t.truth["path"] for t in first] == [t.truth["path"] for t in second]


@pytest.mark.parametrize("kind", CORPORA)
def test_passages_state_every_fact_once_and_stay_short(spec: SearchSpec, kind: str) -> None:
    assert spec.atlas is not None
    world = spec.atlas.world(kind)
    passages = {p["id"]: p["contents"] for p in spec.atlas.passages(kind)}
    assert len(passages) == len(spec.atlas.passages(kind)) >= 400
    for name, objects in world.objects.items():
        text = passages[f"{name} (record)" if kind == "buried" else name]
        assert all(re.search(rf"(?i)\b{re.escape(value)}\b", text) for value in objects.values()), (name, text)
        assert "{" not in text and not re.search(r"\ba [aeiou]", text)
        assert len(text.split()) <= 60


def test_no_single_guess_is_worth_much(train: list[Task]) -> None:
    answers = [t.truth["answers"][0] for t in train]
    assert max(answers.count(a) for a in set(answers)) / len(answers) < 0.03


@pytest.mark.parametrize("variant", list(VARIANTS))
def test_expert_solves_the_variant_in_form(spec: SearchSpec, variant: str) -> None:
    solved, n = 0.0, 80
    for task in islice(spec.tasks(variant, seed=2), n):
        episode, actions = play(spec, task)
        solved += spec.verify(episode).success
        if actions:
            assert spec.format_score(episode) == 1
            assert all(a.endswith(spec.stop) for a in actions)
            assert all(sum(a.count(s) for s in spec.stop) == 1 for a in actions)
            assert all(o is Outcome.OK for o in episode.outcomes)
            thoughts = [re.search(r"<think>(.*?)</think>", a) for a in actions]
            assert all(t and len(t.group(1).split()) <= 40 for t in thoughts)
            assert actions == play(spec, task)[1]
        words = [len(o.split()) for o in episode.observations]
        assert max(words, default=0) <= 160
    assert solved / n >= 0.97


def test_expert_varies_and_recovers(spec: SearchSpec, train: list[Task]) -> None:
    traces = [spec.expert(t, 0) or [] for t in train[:150]]
    assert len({a for t in traces for a in t}) > 0.95 * sum(map(len, traces))
    extra = sum(len(t) > task.meta["hops"] + 1 for t, task in zip(traces, train, strict=False))
    assert 0.05 < extra / 150 < 0.35
    assert spec.expert(train[0], 0) != spec.expert(train[0], 1) or spec.expert(train[1], 0) != spec.expert(train[1], 1)


def test_reading_is_needed(spec: SearchSpec) -> None:
    """The question as a query seldom brings the last passage of a longer chain; buried's first hit never has it."""
    tasks = list(islice(spec.tasks("train", seed=3), 150))
    longer = [t for t in tasks if t.meta["hops"] > 1]
    found = [t.truth["passages"][-1] in [h.id for h in spec.retriever(t).search([t.question], 3)[0]] for t in longer]
    assert sum(found) / len(found) < 0.15
    for task in islice(spec.tasks("buried", seed=3), 100):
        for (name, _, value), wanted in zip(task.truth["path"], task.truth["passages"], strict=True):
            hits = spec.retriever(task).search([name], 3)[0]
            assert hits[0].id != wanted
            assert not re.search(rf"\b{re.escape(value)}\b", hits[0].contents)


def test_self_test_answers(spec: SearchSpec, train: list[Task]) -> None:
    for score in ("em", "f1", "substring"):
        scored = SearchSpec(score=score)
        for task in train[:200]:
            assert all(scored.verify(Episode(task, g, [], [], [])).success == 1 for g in scored.gold_answers(task))
            assert all(scored.verify(Episode(task, w, [], [], [])).success < 1 for w in scored.wrong_answers(task))
            assert len(scored.wrong_answers(task)) >= 2
    assert Atlas(0).corpus("base") == train[0].meta["corpus"]
