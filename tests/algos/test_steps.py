"""Step rewards, and the advantage that a turn's tokens get from them, worked by hand."""

from __future__ import annotations

import numpy as np
import pytest
from making import group, turns_of, with_steps

from agentrl.algos.advantages import annotate
from agentrl.algos.steps import discounted_returns, step_rewards
from agentrl.config.schema import AlgoConfig
from agentrl.rollout.trajectory import RewardComponent


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
