"""The potential reward: differences of ground-truth progress, one a turn."""

from __future__ import annotations

import pytest

from agentrl.config.schema import RewardComponentConfig, RewardConfig
from agentrl.envs.base import EnvSpec, Outcome, Task
from agentrl.envs.search.spec import SearchSpec
from agentrl.rewards import Rewards, build
from agentrl.rewards.potential import progress
from agentrl.rollout.trajectory import Group, Trajectory, Turn


def rewards_for(spec: EnvSpec) -> Rewards:
    kinds = ("verifiable", "potential")
    return build(RewardConfig("potential", {k: RewardComponentConfig(k) for k in kinds}), spec, 0)


def walked(potentials: list[float | None], last: float | None) -> Trajectory:
    task = Task("t", "q", {"answers": ["x"]}, "train", "train")
    turns = [Turn("a", "a", "o", Outcome.OK, None, "s", "stop_string", p) for p in potentials]
    return Trajectory(task, 0, 0, [], turns, answer="x", potential=last)


def test_every_turn_gets_what_it_gained() -> None:
    made = walked([0.0, 0.5, 0.25], 1.0)
    rewards_for(SearchSpec()).score([Group(made.task, [made])], 0)
    record = made.reward.components[1]
    assert record.name == "potential" and record.per_turn == [0.5, -0.25, 0.75] and record.value == 1.0
    assert made.reward.total == 1.0  # the verifier's outcome alone


@pytest.mark.parametrize(("potentials", "last"), [([None, None], None), ([0.0, None], 1.0), ([0.0, 0.5], None)])
def test_an_unknown_potential_is_not_scored(potentials: list[float | None], last: float | None) -> None:
    made = walked(potentials, last)
    assert progress(made) is None
    metrics = rewards_for(SearchSpec()).score([Group(made.task, [made])], 0)
    assert made.reward.total is None and "does not say how near" in (made.reward.components[1].error or "")
    assert metrics["rewards/not_scored"] == 1


def test_no_turn_no_step_reward() -> None:
    made = walked([], 0.0)
    rewards_for(SearchSpec()).score([Group(made.task, [made])], 0)
    assert made.reward.components[1].per_turn == [] and made.reward.components[1].value == 0.0
