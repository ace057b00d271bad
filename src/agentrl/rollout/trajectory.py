"""Trajectories: append-only token rows that carry their own mask, and everything that happened around them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from typing import Any

import numpy as np

from agentrl.envs.base import Outcome, Task


class Origin(IntEnum):
    """Where a token came from. Only SAMPLED tokens are trained on."""

    PROMPT = 0
    SAMPLED = 1
    OBSERVATION = 2
    CONTEXT = 3  # with a windowed context: earlier steps, shown again


class StopReason(str, Enum):
    """Why a trajectory ended."""

    DONE = "done"  # the environment said so: the policy finished
    TURN_LIMIT = "turn_limit"  # env.max_turns actions were taken
    CONTEXT_OVERFLOW = "context_overflow"  # the next observation or action would not fit rollout.max_tokens
    ERROR = "error"  # infrastructure failed; the trajectory is not scored and leaves its group


@dataclass
class Row:
    """One token sequence that the model really saw, append-only. All arrays have the same length T.

    ids int32; origin uint8 (``Origin``); logprobs float32, log-probability under the temperature-scaled, untruncated
    distribution at sampling time, 0 where not sampled; turn int16, -1 for the prompt; advantage float32, 0 until
    annotated.
    """

    ids: np.ndarray
    origin: np.ndarray
    logprobs: np.ndarray
    turn: np.ndarray
    advantage: np.ndarray

    @classmethod
    def from_prompt(cls, ids: Sequence[int]) -> Row:
        n = len(ids)
        return cls(
            ids=np.asarray(ids, dtype=np.int32),
            origin=np.full(n, Origin.PROMPT, dtype=np.uint8),
            logprobs=np.zeros(n, dtype=np.float32),
            turn=np.full(n, -1, dtype=np.int16),
            advantage=np.zeros(n, dtype=np.float32),
        )

    def append(self, ids: Sequence[int], origin: Origin, turn: int, logprobs: Sequence[float] | None = None) -> None:
        """Add tokens at the end; nothing already in the row ever changes."""
        n = len(ids)
        if (logprobs is not None) != (origin is Origin.SAMPLED):
            raise ValueError("sampled tokens carry log-probabilities, and only they do")
        if logprobs is not None and len(logprobs) != n:
            raise ValueError(f"{n} tokens but {len(logprobs)} log-probabilities")
        self.ids = np.concatenate([self.ids, np.asarray(ids, dtype=np.int32)])
        self.origin = np.concatenate([self.origin, np.full(n, origin, dtype=np.uint8)])
        new = np.zeros(n, dtype=np.float32) if logprobs is None else np.asarray(logprobs, dtype=np.float32)
        self.logprobs = np.concatenate([self.logprobs, new])
        self.turn = np.concatenate([self.turn, np.full(n, turn, dtype=np.int16)])
        self.advantage = np.concatenate([self.advantage, np.zeros(n, dtype=np.float32)])

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def sampled(self) -> np.ndarray:
        """bool[T]: the tokens that are trained on."""
        return self.origin == Origin.SAMPLED

    def trained(self, mask_observations: bool = True) -> np.ndarray:
        """bool[T]: the tokens that carry loss: the sampled ones, and the observations without ``mask_observations``."""
        return self.sampled if mask_observations else self.sampled | (self.origin == Origin.OBSERVATION)

    @property
    def prompt_length(self) -> int:
        """Number of leading prompt tokens."""
        other = np.flatnonzero(self.origin != Origin.PROMPT)
        return int(other[0]) if len(other) else len(self)


@dataclass
class Turn:
    """One action and what answered it.

    ``text`` decodes exactly the sampled tokens; ``action`` is the part the environment saw: up to and including the
    stop string, without an end-of-turn token. ``text`` may run past ``action`` inside the last sampled token.
    """

    text: str
    action: str
    observation: str | None
    outcome: Outcome
    error: str | None
    state_key: str  # the state the action was taken in
    stop: str  # "stop_string" | "end_of_turn" | "turn_token_limit" | "context_overflow"
    potential: float | None = None  # Environment.potential of the state the action was taken in
    tool_calls: int = 0
    tool_seconds: float = 0.0
    info: Mapping[str, Any] = field(default_factory=dict)


@dataclass
class RewardComponent:
    """One named component of a reward. ``value`` None means *not scored*, which is never the same as 0.

    ``per_turn``: one reward a turn, of a component that rewards steps.
    """

    name: str
    tier: str  # "verifiable" | "learned" | "implicit_step" | "control" | "shaping"
    value: float | None
    weight: float = 1.0
    seconds: float = 0.0
    per_turn: Sequence[float] | None = None
    per_token: Sequence[np.ndarray] | None = None
    error: str | None = None


@dataclass
class RewardRecord:
    """All components of a trajectory's reward."""

    components: list[RewardComponent] = field(default_factory=list)

    @property
    def total(self) -> float | None:
        """The episode's reward: the weighted sum of the components that do not reward steps.

        None when a weighted component, of episodes or of steps, is not scored, or there is none.
        """
        weighted = [c for c in self.components if c.weight != 0]
        values = [c.weight * c.value * (c.per_turn is None) for c in weighted if c.value is not None]
        return float(sum(values)) if values and len(values) == len(weighted) else None

    def get(self, name: str) -> float | None:
        return next((c.value for c in self.components if c.name == name), None)


@dataclass
class Costs:
    """What a trajectory cost. Tokens are counted where they were computed: a shared prompt is prefilled once."""

    tokens_sampled: int = 0
    tokens_prefilled: int = 0
    tool_calls: int = 0
    tool_seconds: float = 0.0


@dataclass
class Trajectory:
    """One episode: its rows, turns, end, costs and reward."""

    task: Task
    member: int  # index inside the group
    policy_step: int  # optimiser steps behind the weights that sampled it
    rows: list[Row]
    turns: list[Turn] = field(default_factory=list)
    stop_reason: StopReason = StopReason.DONE
    error: str | None = None  # set exactly when stop_reason is ERROR
    answer: str | None = None
    potential: float | None = None  # Environment.potential of the last state
    text: str = ""  # decode of the (last) row's ids
    reward: RewardRecord = field(default_factory=RewardRecord)
    success: float | None = None  # the verifier's headline, whatever the reward is; None when not verified
    scores: Mapping[str, float] = field(default_factory=dict)
    costs: Costs = field(default_factory=Costs)
    excluded: str | None = None  # why it is in no group statistic and no loss (a name of runs.hacks), though scored

    @property
    def id(self) -> str:
        return f"{self.task.id}/{self.policy_step}/{self.member}"


@dataclass
class Group:
    """G trajectories of one task: the unit of sampling and of the group baseline."""

    task: Task
    trajectories: list[Trajectory]

    def __post_init__(self) -> None:
        hashes = {t.task.hash for t in self.trajectories}
        if hashes and hashes != {self.task.hash}:
            raise AssertionError(f"a group holds one task, but {self.task.id} was joined by hashes {sorted(hashes)}")

    @property
    def scored(self) -> list[Trajectory]:
        """The members that count: no infrastructure error, a reward that was really scored, and not excluded."""
        return [
            t
            for t in self.trajectories
            if t.stop_reason is not StopReason.ERROR and t.reward.total is not None and t.excluded is None
        ]
