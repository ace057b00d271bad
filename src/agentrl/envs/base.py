"""What an environment is: tasks, the acting protocol, and what makes it trainable.

Plain Python: nothing here (and nothing in an environment) imports torch or a tokenizer.
"""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from agentrl.errors import RunError

Message = dict[str, str]
"""A chat message: ``{"role": "system" | "user" | "assistant", "content": text}``."""


def _plain(value: object) -> dict[str, Any]:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"there is a {type(value).__name__} in it")


@dataclass(frozen=True)
class Task:
    """One problem, frozen. Two tasks are the same task exactly when their hashes are equal.

    ``question`` is what the policy is shown (the environment turns it into a prompt), ``truth`` the hidden ground
    truth and ``meta`` anything else that changes what happens in an episode (corpus name, hops, limits). All three
    must be JSON-serialisable.
    """

    id: str
    question: str
    truth: Mapping[str, Any]
    variant: str
    split: str  # "train" | "heldout"
    seed: int = 0
    meta: Mapping[str, Any] = field(default_factory=dict)

    @property
    def hash(self) -> str:
        """16 hex digits over everything that defines the problem (not its id, split or variant name).

        RunError when it is not JSON-serialisable.
        """
        content = {"question": self.question, "truth": self.truth, "seed": self.seed, "meta": self.meta}
        try:
            text = json.dumps(content, sort_keys=True, ensure_ascii=False, default=_plain)
        except (TypeError, ValueError) as error:
            raise RunError(f"task {self.id}: question, truth and meta must be JSON-serialisable: {error}") from error
        return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Observation:
    """What the policy reads next.

    ``text`` may be shortened to the run's observation limit (middle cut, on character boundaries); ``before`` and
    ``after`` are markup that always stays whole, e.g. ``<information>`` and ``</information>``.
    """

    text: str
    before: str = ""
    after: str = ""


class Outcome(str, Enum):
    """What an action turned out to be, counted in metrics."""

    OK = "ok"  # a valid action (a tool was called, or the episode ended by the policy's own decision)
    INVALID = "invalid"  # the policy's fault: not parseable, not allowed here; it was told why
    TOOL_ERROR = "tool_error"  # infrastructure's fault: time-out, server down. Never the policy's reward
    TOOL_LIMIT = "tool_limit"  # the policy asked for a tool after its budget was spent; it was told so


@dataclass(frozen=True)
class Transition:
    """The answer to one action.

    ``observation`` is None exactly when ``done``. ``error`` is a short reason when outcome is INVALID or TOOL_ERROR;
    ``fatal`` marks an infrastructure failure after which the episode cannot be scored (it leaves its group).
    ``info`` holds JSON-able facts for the trajectory (query, document ids, ...).
    """

    observation: Observation | None
    done: bool
    outcome: Outcome = Outcome.OK
    error: str | None = None
    fatal: bool = False
    tool_calls: int = 0
    tool_seconds: float = 0.0
    info: Mapping[str, Any] = field(default_factory=dict)


class Environment(ABC):
    """One episode at a time: ``reset`` then ``step`` until done. Made once per trajectory, never shared.

    ``step`` may block (it runs in a worker thread) and never raises for what the agent did.
    """

    @abstractmethod
    def reset(self, task: Task) -> list[Message]:
        """Start the task and return the prompt as chat messages, ending with a user message."""

    @abstractmethod
    def step(self, action: str) -> Transition:
        """Take the policy's text (up to and including its stop string, if one was reached)."""

    @abstractmethod
    def state_key(self) -> str:
        """The full state as a string: equal keys mean equal futures (used for step groups)."""

    def potential(self) -> float | None:
        """Ground truth, never shown to the policy: how near the state is to a solution, in [0, 1], 1 = solved.

        None (the default): the environment cannot say. ``reward=potential`` rewards its differences.
        """
        return None

    def answer(self) -> str | None:
        """The final answer given in this episode, or None. Read by the verifier after the episode."""
        return None

    def close(self) -> None:
        """Release what the episode holds."""


class Wrapper(Environment):
    """An environment around another one that changes nothing; a subclass overrides what it is there for."""

    def __init__(self, environment: Environment):
        self.environment = environment

    def reset(self, task: Task) -> list[Message]:
        return self.environment.reset(task)

    def step(self, action: str) -> Transition:
        return self.environment.step(action)

    def state_key(self) -> str:
        return self.environment.state_key()

    def potential(self) -> float | None:
        return self.environment.potential()

    def answer(self) -> str | None:
        return self.environment.answer()

    def close(self) -> None:
        self.environment.close()


@dataclass(frozen=True)
class Verdict:
    """A verifier's finding: named scores in [0, 1]; ``success`` is the headline (e.g. exact match)."""

    success: float
    scores: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Episode:
    """What a verifier may look at: the task, the final answer, and the turns' texts and facts. No tokens, no model.

    The sequences are aligned by turn. ``infos`` holds each turn's ``Transition.info``; it is empty where an answer is
    judged without an episode.
    """

    task: Task
    answer: str | None
    actions: Sequence[str]
    observations: Sequence[str]
    outcomes: Sequence[Outcome]
    infos: Sequence[Mapping[str, Any]] = ()


class EnvSpec(ABC):
    """An environment as the harness meets it: what makes it a *training* environment.

    Constructed as ``Spec(**options)`` with the options of its YAML (everything below ``env.options``); construction
    must be cheap (build corpora and indexes lazily). ``name`` is the config name.
    """

    name: str = ""
    description: str = ""
    action_grammar: str = ""  # one or two lines, for `agentrl envs`
    stop: Sequence[
        str
    ] = ()  # strings that end an action; native tool calls have none: the model's end of turn ends them
    tools: Sequence[Mapping[str, Any]] = ()  # JSON-schema functions for the prompt, shown by the chat template
    shortcuts: Mapping[str, str] = {}  # for `agentrl play`: letter → an action with {} for the typed text
    train_variant: str = "train"
    has_tools: bool = False  # whether actions call tools (Transition.tool_calls), which env.tools=off can silence

    @abstractmethod
    def variants(self) -> Mapping[str, str]:
        """Variant name → one-line description. Contains ``train_variant``; all others are held out."""

    @abstractmethod
    def tasks(self, variant: str, seed: int, start: int = 0) -> Iterator[Task]:
        """A deterministic stream of distinct tasks of a variant, from index ``start``; may be finite."""

    @abstractmethod
    def make(self) -> Environment:
        """A fresh environment for one trajectory (cheap: shared read-only stores stay in the spec)."""

    @abstractmethod
    def verify(self, episode: Episode) -> Verdict:
        """Score a finished episode against the task's truth. Deterministic, no side effects."""

    def gold_answers(self, task: Task) -> Sequence[str]:
        """Answers that must verify as a success (the verifier's self-test uses them)."""
        return ()

    def wrong_answers(self, task: Task) -> Sequence[str]:
        """Answers that must not verify as a success."""
        return ("", "this is certainly not the answer 0417")

    def format_score(self, episode: Episode) -> float:
        """Share of the required format that an episode kept, in [0, 1], without looking at correctness."""
        return float(episode.answer is not None)

    def expert(self, task: Task, seed: int) -> Sequence[str] | None:
        """The actions of an expert for this task, in order, or None when it cannot solve it.

        The cold start plays them through ``make()`` and keeps the episode if the verifier accepts it.
        """
        return None

    def exploiters(self, task: Task) -> Mapping[str, Sequence[str]]:
        """Name → actions that try to earn reward on this task without doing it.

        `agentrl audit-reward` plays them beside the generic ones (empty and longest answers, all candidates at once,
        copied observations, injected tags ...); the keys must be the same for every task.
        """
        return {}

    def evidence(self, task: Task) -> str | None:
        """What a policy would have to find out to solve the task, as text to put into its prompt (the passages with the
        facts, the output of a reference program), or None. `agentrl advise` asks whether the policy could use it."""
        return None

    def trace_prompt(self, messages: Sequence[Message]) -> list[Message]:
        """The prompt for a trace read from a file, from the messages before its first assistant message."""
        return list(messages)

    def trace_messages(self, messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        """A trace's messages in this environment's own wire format (native tool calls as the text of actions ...)."""
        return list(messages)

    def prepare(self) -> None:
        """Build what is slow (corpus index, data files), once, before the first episode."""

    def data_hashes(self) -> Mapping[str, str]:
        """Name → hash of corpora and data files, for run.json."""
        return {}

    def facts(self) -> Mapping[str, Any]:
        """What else a reader of run.json should know of this environment's machinery (JSON-able); after prepare()."""
        return {}

    def close(self) -> None:
        """Release shared resources."""
