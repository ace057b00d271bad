"""Every warning comes when it should, stays away from healthy noise, and survives a resume."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable

import pytest

from agentrl.envs.base import Outcome, Task
from agentrl.rollout.trajectory import Group, Origin, Row, Trajectory, Turn
from agentrl.runs.collapse import CollapseWatch, positive_logprob, repetition

TASK = Task("t", "q", {}, "train", "train")


def group(ids: list[int], text: str = "looking up Paris", logprob: float = -0.3, advantage: float = 1.0) -> Group:
    row = Row.from_prompt([1, 2])
    row.append(ids, Origin.SAMPLED, 0, [logprob] * len(ids))
    row.advantage[row.sampled] = advantage
    turn = Turn(text, text, None, Outcome.OK, None, "s", "stop_string")
    return Group(TASK, [Trajectory(TASK, 0, 0, [row], [turn])])


HEALTHY = {
    "policy/entropy": 0.4,
    "reward/mean": 0.5,
    "success/mean": 0.5,
    "group/zero_spread": 0.3,
    "policy/engine_kl": 1e-3,
    "policy/approx_kl": 1e-3,
    "policy/ratio_tail": 0.001,
    "policy/importance_truncated": 0.002,
}


def run(steps: int, at: Callable[[int], dict[str, float]], groups: Callable[[int], list[Group]] | None = None):
    watch = CollapseWatch()
    found = []
    for step in range(steps):
        made = groups(step) if groups else [group(list(range(20)))]
        found += [(step, w) for w in watch.update(step, {**HEALTHY, **at(step)}, made)]
    return found


def names(found) -> set[str]:
    return {w.name for _, w in found}


def test_a_healthy_noisy_run_is_silent() -> None:
    draw = random.Random(0)

    def at(step: int) -> dict[str, float]:
        return {
            "policy/entropy": 0.4 * draw.uniform(0.7, 1.3) * 0.99**step,
            "reward/mean": min(1.0, max(0.0, 0.3 + 0.005 * step + draw.gauss(0, 0.1))),
            "group/zero_spread": draw.uniform(0.0, 0.9),
            "policy/engine_kl": draw.uniform(0, 0.004),
        }

    assert run(100, at, lambda step: [group(list(range(20)), logprob=-0.3 + draw.gauss(0, 0.05))]) == []


def test_a_short_spike_is_silent() -> None:
    bad = {"policy/entropy": 1e-4, "reward/mean": 0.0, "policy/engine_kl": 0.05, "policy/ratio_tail": 0.2}
    assert run(40, lambda step: bad if step == 20 else {}) == []


@pytest.mark.parametrize(
    ("name", "bad", "numbers"),
    [
        ("entropy_collapse", {"policy/entropy": 0.004}, ["0.0040", "0.4000", "algo.clip_high"]),
        ("entropy_explosion", {"policy/entropy": 2.5}, ["2.500", "0.400", "algo.learning_rate"]),
        ("zero_spread", {"group/zero_spread": 1.0}, ["100%", "0.50", "algo.dynamic_sampling_rounds"]),
        ("reward_drop", {"reward/mean": 0.1}, ["0.100", "0.500", "best checkpoint"]),
        ("engine_mismatch", {"policy/engine_kl": 0.2}, ["0.2000", "model.dtype=fp32"]),
        ("engine_mismatch", {"policy/importance_truncated": 0.3}, ["30.0%"]),
        ("large_steps", {"policy/approx_kl": 0.5}, ["0.5000", "algo.learning_rate"]),
        ("large_steps", {"policy/ratio_tail": 0.4}, ["40.0%"]),
    ],
)
def test_a_lasting_change_warns_once_with_numbers(name: str, bad: dict[str, float], numbers: list[str]) -> None:
    found = run(25, lambda step: bad if step >= 10 else {})
    assert names(found) == {name}
    assert 12 <= found[0][0] <= 20
    assert len(found) <= 2 and all(n in found[-1][1].message or n in found[0][1].message for n in numbers)
    assert found[0][1].message.startswith(f"step {found[0][0]}: ") and "\n" not in found[0][1].message


@pytest.mark.parametrize(("level", "advice"), [(0.98, "solved"), (0.01, "too hard"), (0.5, "algo.group_size")])
def test_zero_spread_says_why(level: float, advice: str) -> None:
    numbers = {"group/zero_spread": 1.0, "success/mean": level, "reward/mean": level}
    found = run(12, lambda step: numbers)
    assert names(found) == {"zero_spread"} and advice in found[0][1].message


def test_not_finite_warns_at_once() -> None:
    found = run(5, lambda step: {"loss/policy": float("nan"), "policy/entropy": float("inf")} if step == 2 else {})
    assert [(s, w.name) for s, w in found] == [(2, "not_finite")]
    assert "loss/policy=nan" in found[0][1].message and "policy/entropy=inf" in found[0][1].message


def test_a_warning_that_holds_is_repeated_but_not_every_step() -> None:
    found = run(60, lambda step: {"policy/engine_kl": 0.5})
    steps = [s for s, _ in found]
    assert steps[0] == 6 and all(b - a == 10 for a, b in itertools.pairwise(steps))


@pytest.mark.parametrize(
    ("logprob", "phase"),
    [
        (lambda step: -0.3 - 0.015 * max(0, step - 10), "slow decay"),
        (lambda step: -0.3 - 0.0004 * max(0, step - 10) ** 3, "accelerated decay"),
    ],
)
def test_falling_likelihood_of_good_actions(logprob: Callable[[int], float], phase: str) -> None:
    found = run(40, lambda step: {}, lambda step: [group(list(range(20)), logprob=logprob(step))])
    assert names(found) == {"likelihood_falling"} and phase in found[0][1].message


def test_likelihood_counts_positive_advantages_only() -> None:
    groups = [group([1] * 4, logprob=-1.0), group([2] * 4, logprob=-9.0, advantage=-1.0)]
    assert positive_logprob(groups) == -1.0
    assert positive_logprob(groups[1:]) is None
    found = run(
        40, lambda s: {}, lambda s: [group([1] * 4), group(list(range(9)), logprob=-0.3 - 0.1 * s, advantage=-1)]
    )
    assert found == []


def test_repetition_of_tokens_and_characters() -> None:
    assert repetition([]) == 0.0
    assert repetition([group(list(range(30)))]) == 0.0
    assert repetition([group([5, 6] * 40)]) > 0.9
    assert repetition([group([7] * 4, text="!" * 60)]) == 1.0
    assert repetition([group([7] * 4, text="a" * 15)]) == 0.0
    assert repetition([group([5, 6] * 40), group(list(range(30)))]) == pytest.approx(71 / 73 / 2)
    assert repetition([group([1, 2, 3])]) == 0.0


def test_repetition_crosses_turns_but_observations_do_not_count() -> None:
    row = Row.from_prompt([1, 2])
    phrase = list(range(10, 20))
    row.append(phrase, Origin.SAMPLED, 0, [-0.1] * 10)
    row.append([3] * 50, Origin.OBSERVATION, 0)
    row.append(phrase, Origin.SAMPLED, 1, [-0.1] * 10)
    assert repetition([Group(TASK, [Trajectory(TASK, 0, 0, [row])])]) == 0.5


def test_repetition_warns() -> None:
    found = run(20, lambda step: {}, lambda step: [group([5, 6] * 20 if step >= 8 else list(range(40)))])
    assert names(found) == {"repetition"}


def test_resume_gives_the_same_warnings() -> None:
    draw = random.Random(1)
    steps = [
        {
            **HEALTHY,
            "policy/entropy": 0.4 * 0.85**step * draw.uniform(0.8, 1.2),
            "group/zero_spread": draw.uniform(0.7, 1),
        }
        for step in range(50)
    ]

    def go(watch: CollapseWatch, start: int, end: int):
        return [w for s in range(start, end) for w in watch.update(s, steps[s], [group([5, 6] * (s + 1))])]

    whole = CollapseWatch()
    expected = go(whole, 0, 50)
    assert expected
    for cut in (0, 3, 12, 31):
        first = CollapseWatch()
        before = go(first, 0, cut)
        second = CollapseWatch()
        second.load_state_dict(json.loads(json.dumps(first.state_dict())))
        assert before + go(second, cut, 50) == expected
        assert second.state_dict() == whole.state_dict()


def test_missing_metrics_and_empty_batches_are_fine() -> None:
    watch = CollapseWatch()
    assert [w for step in range(20) for w in watch.update(step, {}, [])] == []
