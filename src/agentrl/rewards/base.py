"""What a reward component is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from agentrl.envs.base import EnvSpec, Episode, Verdict
from agentrl.rollout.trajectory import Trajectory


class NotScored(Exception):
    """Raised by a component that cannot score a trajectory; the message says why. Never counts as a reward of 0."""


@dataclass(frozen=True)
class Scoring:
    """What a component may look at. ``verdict`` is None when the verifier failed, and then ``error`` says why."""

    trajectory: Trajectory
    episode: Episode
    verdict: Verdict | None
    error: str | None
    step: int


@dataclass(frozen=True)
class Score:
    """What a component says of one trajectory: a value, or None with the reason in ``error``; never a silent 0.

    ``per_turn`` is one number a turn, from components that reward steps: they are no part of the episode's reward, and
    are read by the estimators that look at steps.
    """

    value: float | None
    error: str | None = None
    per_turn: Sequence[float] | None = None


class Component:
    """One reward component. Constructed as ``Class(spec, seed, **options)`` with the options of its YAML.

    A subclass defines ``score`` (one trajectory), or ``score_batch`` where the batch matters: because it is scored at
    once, or because the value of one trajectory depends on the others. A user's own component is such a class, named
    by import path ``module:Class`` as its ``kind``.
    """

    tier: str = "verifiable"  # "verifiable" | "learned" | "implicit_step" | "control"

    def __init__(self, spec: EnvSpec, seed: int) -> None:
        self.spec = spec
        self.seed = seed

    def score(self, item: Scoring) -> float:
        """The value for one trajectory. Any exception makes it *not scored*, with the exception's text."""
        raise NotImplementedError(f"{type(self).__name__} defines neither score nor score_batch")

    def score_batch(self, items: Sequence[Scoring]) -> list[Score]:
        """One score for each item, in order. An exception makes the whole batch *not scored*."""
        return [self._guarded(item) for item in items]

    def _guarded(self, item: Scoring) -> Score:
        try:
            return Score(self.score(item))
        except Exception as error:  # the boundary to verifiers and user-written components
            return Score(None, described(error))

    def take_counts(self) -> dict[str, float]:
        """Slash-named counts since the last call (calls, time-outs, money), which add up over calls and components."""
        return {}


def described(error: Exception) -> str:
    """Type and message of an exception, as it stands in a reward record."""
    return f"{type(error).__name__}: {error}"


def episode_of(trajectory: Trajectory) -> Episode:
    """The trajectory as a verifier sees it. The lists are aligned by turn; a last turn's missing observation is ""."""
    turns = trajectory.turns
    return Episode(
        task=trajectory.task,
        answer=trajectory.answer,
        actions=[t.action for t in turns],
        observations=[t.observation or "" for t in turns],
        outcomes=[t.outcome for t in turns],
        infos=[t.info for t in turns],
    )
