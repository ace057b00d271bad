"""Token rows and groups with made-up content, for tests of packing and learning."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from rollout.kits import Kit, plain_logprobs

from agentrl.envs.base import Task
from agentrl.rollout.trajectory import Group, Origin, RewardComponent, RewardRecord, Row, Trajectory


def make_row(prompt: Sequence[int], rng: np.random.Generator, vocabulary: int, turns: int = 2, longest: int = 9) -> Row:
    """A prompt, then turns of sampled tokens, each but the last answered by observation tokens."""
    row = Row.from_prompt(prompt)
    draw = lambda: rng.integers(3, vocabulary, size=int(rng.integers(1, longest + 1))).tolist()  # noqa: E731
    for turn in range(turns):
        ids = draw()
        row.append(ids, Origin.SAMPLED, turn, [-1.0] * len(ids))
        if turn < turns - 1:
            row.append(draw(), Origin.OBSERVATION, turn)
    return row


def make_groups(
    kit: Kit, groups: int = 3, members: int = 4, seed: int = 0, flat: Sequence[int] = (), longest: int = 9
) -> list[Group]:
    """Groups with rewards of 0 and 1 (``flat`` ones: all 0) and the log-probabilities of the kit's plain model."""
    rng = np.random.default_rng(seed)
    made = []
    for g in range(groups):
        task = Task(f"t/{g}", "?", {}, "train", "train", g)
        prompt = rng.integers(3, kit.vocabulary, size=8 + 5 * g).tolist()
        trajectories = []
        for m in range(members):
            row = make_row(prompt, rng, kit.vocabulary, turns=1 + (m + g) % 3, longest=longest)
            row.logprobs[row.sampled] = plain_logprobs(kit.plain, row.ids)[row.sampled].numpy()
            value = 0.0 if g in flat else float(rng.integers(0, 2)) if m > 1 else float(m)
            record = RewardRecord([RewardComponent("verifiable", "verifiable", value)])
            trajectories.append(Trajectory(task, m, 0, [row], reward=record, success=value))
        made.append(Group(task, trajectories))
    return made
