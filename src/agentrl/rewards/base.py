"""What a reward component is."""

from __future__ import annotations

from abc import ABC, abstractmethod
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


class Component(ABC):
    """One reward component. Constructed as ``Class(spec, seed, **options)`` with the options of its YAML.

    A user's own component is a class with this interface, named by import path ``module:Class`` as its ``kind``.
    """

    tier: str = "verifiable"  # "verifiable" | "learned" | "implicit_step" | "control"

    def __init__(self, spec: EnvSpec, seed: int) -> None:
        self.spec = spec
        self.seed = seed

    @abstractmethod
    def score(self, item: Scoring) -> float:
        """The value for one trajectory. Any exception makes it *not scored*, with the exception's text."""


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
