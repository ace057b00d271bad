"""Step rewards, and the advantage of an episode and its steps together, worked by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from making import group, row, turns_of

from agentrl.algos.advantages import annotate
from agentrl.algos.steps import discounted_returns, episode_plus_step, step_rewards
from agentrl.config.schema import AlgoConfig
from agentrl.rollout.trajectory import Group, RewardComponent


def with_steps(rewards: list[float], steps: list[list[float]], weight: float = 1.0) -> Group:
    """Members whose turn t has t + 1 sampled tokens."""
    made = group(rewards, rows=[[row([(t + 1, 1) for t in range(len(s))])] for s in steps])
    for trajectory, values in zip(made.trajectories, steps, strict=True):
        trajectory.turns = turns_of([f"s{t}" for t in range(len(values))])
        trajectory.reward.components.append(RewardComponent("step", "verifiable", sum(values), weight, per_turn=values))
    return made


def test_discounted_returns() -> None:
    assert discounted_returns(np.array([0, 0, 10.0]), 0.95) == pytest.approx([9.025, 9.5, 10])
    assert discounted_returns(np.array([1.0, 2, 3]), 1.0).tolist() == [6, 5, 3]
    assert discounted_returns(np.array([1.0, 2, 3]), 0.0).tolist() == [1, 2, 3]
    assert discounted_returns(np.zeros(0), 0.9).tolist() == []


def test_step_rewards_add_up_by_weight_and_leave_the_episode_alone() -> None:
    made = with_steps([1.0], [[0.25, 0.5]], weight=2.0).trajectories[0]
    made.reward.components.append(RewardComponent("other", "learned", -1.0, per_turn=[-1.0, 0.0]))
    assert step_rewards(made).tolist() == [-0.5, 1.0]
    assert made.reward.total == 1.0
    made.reward.components[-1].value = None
    assert made.reward.total is None  # a step reward that is missing is not 0


def test_episode_plus_step_by_hand() -> None:
    """Step rewards 1, 0, 0, 3: mean 1, sample variance 2."""
    a, b = episode_plus_step(np.array([0.5, -0.5]), [np.array([1.0, 0.0]), np.array([0.0, 3.0])], 2.0, 0.0)
    root = np.sqrt(2)
    assert a == pytest.approx([0.5, 0.5 - 2 / root])
    assert b == pytest.approx([-0.5 - 2 / root, -0.5 + 4 / root])


def test_equal_step_rewards_leave_the_episodes_advantage() -> None:
    parts = episode_plus_step(np.array([0.3, -0.3]), [np.full(3, 0.7), np.full(1, 0.7)], 1.0, 1e-6)
    assert [p.tolist() for p in parts] == [[0.3] * 3, [-0.3]]
    assert episode_plus_step(np.zeros(0), [], 1.0, 1e-6) == []


@given(st.lists(st.lists(st.integers(-9, 9).map(float), max_size=4), min_size=1, max_size=5), st.floats(0, 3))
def test_step_advantages_of_a_group_sum_to_zero(steps: list[list[float]], weight: float) -> None:
    parts = episode_plus_step(np.zeros(len(steps)), [np.array(s, float) for s in steps], weight, 1e-6)
    assert [len(p) for p in parts] == [len(s) for s in steps]
    assert sum(p.sum() for p in parts) == pytest.approx(0, abs=1e-6)


def test_annotate_writes_a_turns_advantage_on_its_tokens() -> None:
    made = with_steps([1.0, 0.0], [[1.0, 0.0], [0.0, 3.0]])
    cfg = AlgoConfig(estimator="episode_plus_step", std_eps=0.0, step_weight=0.5)
    metrics = annotate([made], cfg)
    episode = 1 / np.sqrt(2)
    step = 0.5 / np.sqrt(2)
    first = made.trajectories[0].rows[0]
    assert first.advantage.tolist() == pytest.approx([0, 0, 0, episode, 0, episode - step, episode - step, 0])
    assert metrics["advantage/max"] == pytest.approx(episode + step)
    # |credit| by tokens: 1 and 2 in the first, 1 and 2 in the second
    second = [abs(-episode - step), abs(-episode + 2 * step)]
    mean = (episode + 2 * abs(episode - step) + second[0] + 2 * second[1]) / 6
    assert metrics["advantage/mean_abs"] == pytest.approx(mean)


def test_an_observation_has_the_advantage_of_the_action_it_answers() -> None:
    made = with_steps([1.0, 0.0], [[1.0, 0.0], [0.0, 3.0]])
    annotate([made], AlgoConfig(estimator="episode_plus_step", mask_observations=False))
    advantage = made.trajectories[0].rows[0].advantage[3:]
    assert advantage[0] == advantage[1] and advantage[2] == advantage[4] and advantage[1] != advantage[2]


def test_without_step_rewards_it_is_grpo() -> None:
    plain, combined = group([1.0, 0.0, 0.0]), group([1.0, 0.0, 0.0])
    for trajectory in combined.trajectories:
        trajectory.turns = turns_of(["a", "b"])
    annotate([plain], AlgoConfig(estimator="grpo"))
    annotate([combined], AlgoConfig(estimator="episode_plus_step"))
    for a, b in zip(plain.trajectories, combined.trajectories, strict=True):
        assert a.rows[0].advantage.tobytes() == b.rows[0].advantage.tobytes()
