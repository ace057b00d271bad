"""The environment's own verifier as a reward."""

from __future__ import annotations

from agentrl.envs.base import EnvSpec, Verdict
from agentrl.errors import nearest
from agentrl.rewards.base import Component, NotScored, Scoring


class Verifiable(Component):
    """The verifier's headline, or with ``score: NAME`` one of its other scores (e.g. ``f1``), in [0, 1].

    ``wrong`` is what a score of 0 is worth (ReTool pays −1); a score s is then worth wrong + (1 − wrong) s.
    """

    tier = "verifiable"

    def __init__(self, spec: EnvSpec, seed: int, score: str = "success", wrong: float = 0.0) -> None:
        super().__init__(spec, seed)
        self.name, self.wrong = score, wrong

    def value(self, verdict: Verdict) -> float:
        """The configured score of a verdict; NotScored if the verifier does not give it."""
        if self.name == "success":
            return self._worth(verdict.success)
        if self.name not in verdict.scores:
            choices = ["success", *verdict.scores]
            raise NotScored(f"the verifier gives no score '{self.name}': {nearest(self.name, choices)}")
        return self._worth(verdict.scores[self.name])

    def _worth(self, score: float) -> float:
        return self.wrong + (1.0 - self.wrong) * float(score)

    def score(self, item: Scoring) -> float:
        if item.verdict is None:
            raise NotScored(item.error or "the verifier failed")
        return self.value(item.verdict)
