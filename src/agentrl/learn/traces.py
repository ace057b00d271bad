"""Expert traces as token rows: played by an environment's expert, or read from a file of messages."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from agentrl.config.schema import EnvConfig
from agentrl.data import load_rows
from agentrl.envs.base import EnvSpec, Episode, Message, Observation, Outcome, Task
from agentrl.envs.guard import described
from agentrl.errors import RunError, UserError
from agentrl.models.template import Renderer
from agentrl.rollout.collector import Guarded
from agentrl.rollout.trajectory import Origin, Row
from agentrl.rollout.window import in_windows

FAILURES = 8  # failed episodes in a row after which no further one is tried
TRACE_SEED = 1_000_003  # keeps the cold start's tasks apart from those of RL with the same seed


@dataclass
class Traces:
    """Traces to train on, each as its rows, the tasks behind them, and what was left out and why."""

    traces: list[list[Row]] = field(default_factory=list)
    tasks: list[Task] = field(default_factory=list)
    rejected: int = 0  # the expert had no actions, or the verifier did not accept them
    failed: int = 0  # episodes that a tool or a bug ended: nothing is known about their actions
    failure: str | None = None  # why the last of them did
    too_long: int = 0
    out_of_reach: int = 0  # more actions, or a longer one, than the policy may ever take
    tool_calls: int = 0  # of all episodes that were played
    tool_seconds: float = 0.0

    @property
    def rows(self) -> list[Row]:
        """The rows of all traces, in order."""
        return [row for trace in self.traces for row in trace]

    def add(self, rows: list[Row], max_tokens: int) -> bool:
        """Take a trace whose rows all fit ``max_tokens``; False, and counted, when one does not."""
        fits = max(map(len, rows)) <= max_tokens
        if fits:
            self.traces.append(rows)
        else:
            self.too_long += 1
        return fits

    def summary(self) -> str:
        actions = sum(int(row.sampled.sum()) for row in self.rows)
        text = f"{len(self.traces)} traces, {sum(map(len, self.rows))} tokens, {actions} of them in actions"
        if self.rejected:
            text += f"; {self.rejected} not solved by the expert"
        if self.failed:
            text += f"; {self.failed} failed, the last on {self.failure}"
        if self.too_long:
            text += f"; {self.too_long} longer than rollout.max_tokens"
        if self.out_of_reach:
            text += f"; {self.out_of_reach} need more than env.max_turns actions or env.max_turn_tokens tokens in one"
        return text


def expert_traces(
    spec: EnvSpec,
    renderer: Renderer,
    count: int,
    seed: int,
    max_tokens: int,
    env: EnvConfig,
    on_progress: Callable[[Traces], None] | None = None,
    window: int | None = None,
) -> Traces:
    """Play the expert on tasks of the training variant until ``count`` episodes passed the verifier.

    At most 4 × count tasks are tried. ``window`` is rollout.window. What the policy may not do (more actions than
    ``env.max_turns``, longer ones than ``env.max_turn_tokens``) it is not taught: such traces are counted and left out.

    Expert actions count as sampled; observations are what the environment answered. ``on_progress`` gets what was found
    so far after each episode; what it raises ends the search. RunError when ``FAILURES`` episodes in a row failed.
    """
    found = Traces()
    in_a_row = 0
    for task in islice(spec.tasks(spec.train_variant, seed + TRACE_SEED), 4 * count):
        if len(found.traces) == count:
            break
        actions, failed = spec.expert(task, seed), found.failed
        row = None if actions is None else play(spec, renderer, task, actions, env, found)
        found.rejected += actions is None
        in_a_row = in_a_row + 1 if found.failed > failed else 0
        if in_a_row == FAILURES:
            raise RunError(f"{FAILURES} episodes of the expert failed in a row, the last on {found.failure}")
        if row is not None and out_of_reach(row, env):
            found.out_of_reach += 1
        elif row is not None and found.add(in_windows(row, window, renderer), max_tokens):
            found.tasks.append(task)
        if on_progress:
            on_progress(found)
    return found


def play(
    spec: EnvSpec, renderer: Renderer, task: Task, actions: Sequence[str], env: EnvConfig, found: Traces
) -> Row | None:
    """One expert episode as a row, or None: the verifier does not accept it, or a tool or bug ended it.

    Which of the two, and its tool calls, are added to ``found``.
    """
    environment = Guarded(spec.make)
    messages = environment.reset(task)
    row = Row.from_prompt(renderer.prompt(messages, spec.tools) if messages is not None else [])
    failure: str | None = None
    observations: list[str] = []
    outcomes: list[Outcome] = []
    infos: list[Mapping[str, Any]] = []
    for turn, action in enumerate(actions):
        if environment.failure is not None:
            break
        ended_turn = append_action(row, action, turn, renderer, spec)
        transition, _ = environment.step(action)
        outcomes.append(transition.outcome)
        infos.append(transition.info)
        found.tool_calls += transition.tool_calls
        found.tool_seconds += transition.tool_seconds
        if transition.fatal:
            failure = transition.error or "no reason given"
        if transition.done or transition.observation is None:
            break
        ids, text = renderer.observation(transition.observation, ended_turn, max_tokens=env.max_obs_tokens)
        row.append(ids, Origin.OBSERVATION, turn)
        observations.append(text)
    answer = environment.answer()
    environment.close()
    if failure := environment.failure or failure:
        found.failed, found.failure = found.failed + 1, failure
        return None
    try:
        solved = spec.verify(Episode(task, answer, list(actions), observations, outcomes, infos)).success >= 1.0
    except RunError:
        raise
    except Exception as error:  # the boundary to user-written verifiers
        found.failed, found.failure = found.failed + 1, f"verify: {described(error)}"
        return None
    found.rejected += not solved
    return row if solved else None


def out_of_reach(row: Row, env: EnvConfig) -> bool:
    """Whether a row has more actions than ``env.max_turns``, or one longer than ``env.max_turn_tokens``."""
    lengths = np.bincount(row.turn[row.sampled])
    return len(lengths) > env.max_turns or int(lengths.max(initial=0)) > env.max_turn_tokens


def append_action(row: Row, action: str, turn: int, renderer: Renderer, spec: EnvSpec) -> bool:
    """Append an expert's action: it has the origin of sampled tokens and no log-probabilities of its own.

    An action that does not end at a stop string gets the end-of-turn token; returns whether it did.
    """
    ids = renderer.encode(action)
    ended_turn = not action.rstrip().endswith(tuple(spec.stop))
    if ended_turn:
        ids = [*ids, renderer.end_of_turn_id]
    row.append(ids, Origin.SAMPLED, turn, [0.0] * len(ids))
    return ended_turn


def file_traces(
    source: str, renderer: Renderer, spec: EnvSpec, max_tokens: int, max_obs_tokens: int, window: int | None = None
) -> Traces:
    """Traces from a JSONL, JSON or Parquet file whose records hold ``messages``.

    Messages before the first assistant message are the prompt; assistant messages are actions; whatever follows one
    (tool or user messages) is an observation: raw text inside the assistant's message when the action ended in one of
    the environment's stop strings, else a new user message. UserError names the file, line and field.
    """
    if not Path(source).exists():
        raise UserError(f"sft.source={source}: no such file")
    found = Traces()
    for number, record in enumerate(load_rows(source), start=1):
        messages = checked_messages(record, f"{source}, record {number}", spec)
        row = message_row(messages, renderer, spec, max_obs_tokens)
        found.add(in_windows(row, window, renderer), max_tokens)
    return found


def checked_messages(record: Mapping[str, Any], where: str, spec: EnvSpec) -> list[Message]:
    """The record's messages in the environment's wire format, each with a role and text. UserError otherwise."""
    messages = record.get("messages")
    if isinstance(messages, str):
        try:
            messages = json.loads(messages)
        except ValueError:
            messages = None
    if not isinstance(messages, list) or not messages:
        raise UserError(f"{where}: field 'messages' must be a list of {{role, content}} objects")
    if any(not isinstance(m, Mapping) or "role" not in m for m in messages):
        raise UserError(f"{where}: every message needs a 'role'")
    try:
        messages = spec.trace_messages(messages)
    except UserError as error:
        raise UserError(f"{where}: {error}") from None
    for message in messages:
        if not isinstance(message.get("content"), str):
            raise UserError(f"{where}: every message needs a 'role' and text in 'content'")
    if messages[0]["role"] == "assistant" or all(m["role"] != "assistant" for m in messages):
        raise UserError(f"{where}: 'messages' must start with a user or system message and hold an assistant message")
    return [{"role": str(m["role"]), "content": m["content"]} for m in messages]


def message_row(messages: Sequence[Message], renderer: Renderer, spec: EnvSpec, max_obs_tokens: int) -> Row:
    """One trace as a row."""
    first = next(i for i, m in enumerate(messages) if m["role"] == "assistant")
    row = Row.from_prompt(renderer.prompt(spec.trace_prompt(messages[:first]), spec.tools))
    turn, ended_turn = -1, False
    for message in messages[first:]:
        if message["role"] == "assistant":
            turn += 1
            ended_turn = append_action(row, message["content"], turn, renderer, spec)
        else:
            observation = Observation(message["content"])
            if not ended_turn:
                observation = Observation(message["content"], before="\n\n", after="\n\n")
            ids, _ = renderer.observation(observation, ended_turn, max_tokens=max_obs_tokens)
            row.append(ids, Origin.OBSERVATION, turn)
    return row
