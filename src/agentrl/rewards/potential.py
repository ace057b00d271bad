"""Step rewards from the environment's own measure of progress: what a perfect process reward would say."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from agentrl.rewards.base import Component, Score, Scoring
from agentrl.rollout.trajectory import Trajectory


def progress(trajectory: Trajectory) -> list[float] | None:
    """Per turn the progress it made, potential after - potential before; None when the environment has no potential."""
    values = [turn.potential for turn in trajectory.turns] + [trajectory.potential]
    known = [v for v in values if v is not None]
    if len(known) < len(values):
        return None
    return [after - before for before, after in itertools.pairwise(known)]


class Potential(Component):
    """Rewards every turn with the difference of ``Environment.potential`` that it made (Ng et al. 1999, discount 1).

    The value is their sum, the progress of the whole episode.
    """

    def score_batch(self, items: Sequence[Scoring]) -> list[Score]:
        return [self._score(progress(item.trajectory)) for item in items]

    def _score(self, steps: list[float] | None) -> Score:
        if steps is None:
            return Score(None, f"environment {self.spec.name} does not say how near its states are to the goal")
        return Score(float(sum(steps)), per_turn=steps)
