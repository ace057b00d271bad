"""Groups with given rewards and token counts, for the tests in this folder."""

from __future__ import annotations

from collections.abc import Sequence

from agentrl.envs.base import Outcome, Task
from agentrl.rollout.trajectory import (
    Group,
    Origin,
    RewardComponent,
    RewardRecord,
    Row,
    StopReason,
    Trajectory,
    Turn,
)


def row(turns: Sequence[tuple[int, int]] = ((3, 2), (2, 0))) -> Row:
    """A prompt of 3 tokens, then (sampled, observation) token counts per turn."""
    made = Row.from_prompt([1, 2, 3])
    for number, (sampled, observed) in enumerate(turns):
        made.append(range(10, 10 + sampled), Origin.SAMPLED, number, [-0.5] * sampled)
        if observed:
            made.append(range(50, 50 + observed), Origin.OBSERVATION, number)
    return made


def group(rewards: Sequence[float | None], name: str = "t", rows: Sequence[Sequence[Row]] | None = None) -> Group:
    """One member per reward; None is a member that errored."""
    task = Task(id=name, question=name, truth={}, variant="train", split="train")
    trajectories = []
    for member, reward in enumerate(rewards):
        trajectory = Trajectory(task, member, 0, list(rows[member]) if rows else [row()])
        trajectory.turns = turns_of(
            [str(t) for t in sorted({int(t) for r in trajectory.rows for t in r.turn[r.sampled]})]
        )
        trajectory.reward = RewardRecord([RewardComponent("verifiable", "verifiable", reward)])
        if reward is None:
            trajectory.stop_reason, trajectory.error = StopReason.ERROR, "server down"
        trajectories.append(trajectory)
    return Group(task, trajectories)


def advantages(made: Group) -> list[float]:
    """The one advantage of each member's sampled tokens."""
    values = []
    for trajectory in made.trajectories:
        found = {float(a) for r in trajectory.rows for a in r.advantage[r.sampled]}
        assert len(found) == 1
        values.append(found.pop())
    return values


def turns_of(state_keys: Sequence[str]) -> list[Turn]:
    """One turn per state in which an action was taken; each answers with the next state's key."""
    after = [*state_keys, None][1:]
    return [Turn("a", "a", o, Outcome.OK, None, k, "stop_string") for k, o in zip(state_keys, after, strict=True)]


def with_steps(
    rewards: Sequence[float],
    steps: Sequence[Sequence[float]],
    weight: float = 1.0,
    invalid: Sequence[tuple[int, int]] = (),
) -> Group:
    """Members whose turn t has t + 1 sampled tokens and the given step reward; ``invalid``: (member, turn) places."""
    made = group(rewards, rows=[[row([(t + 1, 1) for t in range(len(s))])] for s in steps])
    for member, (trajectory, values) in enumerate(zip(made.trajectories, steps, strict=True)):
        trajectory.turns = turns_of([f"s{t}" for t in range(len(values))])
        for turn, at in enumerate(trajectory.turns):
            at.outcome = Outcome.INVALID if (member, turn) in invalid else Outcome.OK
        trajectory.reward.components.append(
            RewardComponent("step", "verifiable", sum(values), weight, per_turn=list(values))
        )
    return made
