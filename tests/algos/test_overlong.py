"""DAPO's parts: overlong shaping and the spread filter."""

from __future__ import annotations

import pytest
from making import group, row

from agentrl.algos import overlong
from agentrl.algos.advantages import annotate
from agentrl.algos.sampling_filter import has_spread, overlong_penalty
from agentrl.config.schema import AlgoConfig
from agentrl.rollout.trajectory import RewardComponent


@pytest.mark.parametrize(
    ("length", "penalty"), [(0, 0.0), (16384, 0.0), (18000, -0.3945), (20480, -1.0), (30000, -1.0)]
)
def test_golden_penalties(length: int, penalty: float) -> None:
    assert overlong_penalty(length, 20480, 4096) == pytest.approx(penalty, abs=5e-5)
    assert overlong_penalty(length, 20480, 4096, factor=0.5) == pytest.approx(penalty / 2, abs=5e-5)


def test_off() -> None:
    made = group([1.0])
    assert overlong_penalty(10**6, 100, 0) == 0.0
    assert overlong.apply([made], AlgoConfig()) == {}
    assert len(made.trajectories[0].reward.components) == 1


def test_it_is_a_component_of_its_own_and_counts_sampled_tokens_only() -> None:
    rows = [[row([(4, 100), (4, 100)])], [row([(2, 100)]), row([(4, 0)])], [row([(2, 100)])], [row()]]
    made = group([1.0, 1.0, 1.0, None], rows=rows)
    made.trajectories[0].success = 1.0
    cfg = AlgoConfig(overlong_limit=8, overlong_buffer=4, estimator="dr_grpo")
    for _ in range(2):  # a second call replaces, never adds
        metrics = overlong.apply([made], cfg)
    totals = [t.reward.total for t in made.trajectories]
    assert totals == [0.0, 0.5, 1.0, None]
    assert [t.reward.get("verifiable") for t in made.trajectories] == [1.0, 1.0, 1.0, None]
    assert made.trajectories[0].reward.components[1].tier == "shaping"
    assert made.trajectories[0].success == 1.0
    assert metrics == {"reward/overlong/mean": pytest.approx(-0.5), "reward/overlong/share": pytest.approx(2 / 3)}
    annotate([made], cfg)
    assert made.trajectories[2].rows[0].advantage.max() == 0.5


def test_a_penalty_never_makes_an_unscored_trajectory_scored() -> None:
    made = group([1.0, 0.0])
    made.trajectories[0].reward.components = []
    made.trajectories[1].reward.components = [RewardComponent("judge", "learned", None, error="time-out")]
    overlong.apply([made], AlgoConfig(overlong_limit=3, overlong_buffer=2))
    assert [t.reward.total for t in made.trajectories] == [None, None]


def test_spread() -> None:
    assert has_spread(group([1.0, 0.0, None]))
    assert not has_spread(group([1.0, None, None]))
    assert not has_spread(group([None, None]))
    assert not has_spread(group([1.0, 1.0]))
