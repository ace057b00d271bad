"""Optional reward components of the code environment; every shipped reward config has them off (weight 0)."""

from __future__ import annotations

from agentrl.envs.base import EnvSpec
from agentrl.rewards.base import Component, Scoring

FULL = 1.0 - 1e-6


class ToolUse(Component):
    """A bonus for running programs, paid only where the answer is wrong: min(``most``, ``each`` × programs run).

    Added to a reward of −1 for wrong answers with the defaults it is the score of verl's ReTool recipe,
    min(−0.6, −1 + (turns − 2)/2 × 0.1), where a call is two turns. The ReTool paper has no such bonus.
    """

    tier = "shaping"

    def __init__(self, spec: EnvSpec, seed: int, each: float = 0.1, most: float = 0.4) -> None:
        super().__init__(spec, seed)
        self.each, self.most = each, most

    def score(self, item: Scoring) -> float:
        if item.verdict is not None and item.verdict.success >= FULL:
            return 0.0
        return min(self.most, self.each * sum("status" in turn.info for turn in item.trajectory.turns))


class Runs(Component):
    """The share of programs that ran to their end, in [0, 1]; 0 without any."""

    tier = "shaping"

    def score(self, item: Scoring) -> float:
        statuses = [turn.info["status"] for turn in item.trajectory.turns if "status" in turn.info]
        return sum(status == "ok" for status in statuses) / len(statuses) if statuses else 0.0
