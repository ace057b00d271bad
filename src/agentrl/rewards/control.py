"""Control arms: rewards that know nothing of the answer. What a policy gains with them is not learning the task."""

from __future__ import annotations

import hashlib

from agentrl.envs.base import EnvSpec
from agentrl.errors import UserError
from agentrl.rewards.base import Component, Scoring


class Random(Component):
    """1 with probability ``p``, else 0, whatever the trajectory did.

    The draw is a pure function of (seed, step, task hash, member), so a resumed run draws the same.
    """

    tier = "control"

    def __init__(self, spec: EnvSpec, seed: int, p: float = 0.5) -> None:
        super().__init__(spec, seed)
        if not 0 <= p <= 1:
            raise UserError(f"p={p} is not a probability between 0 and 1")
        self.p = p

    def score(self, item: Scoring) -> float:
        key = f"{self.seed}/{item.step}/{item.trajectory.task.hash}/{item.trajectory.member}"
        draw = int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big") / 2.0**64
        return float(draw < self.p)


class FormatOnly(Component):
    """The share of the required format that was kept (``EnvSpec.format_score``), right answer or not."""

    tier = "control"

    def score(self, item: Scoring) -> float:
        return float(self.spec.format_score(item.episode))
