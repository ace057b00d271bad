"""Runs episodes: groups of environments on one side, the engine on the other, tool calls in threads between them.

Scheduling is deterministic by default: the answer to an action is admitted a fixed number of decode steps after the
action ended, and waited for when it is late, so the same seed gives the same batches and the same bits.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from agentrl.config.schema import EngineConfig, EnvConfig, RolloutConfig
from agentrl.envs.base import Environment, EnvSpec, Message, Outcome, Task, Transition
from agentrl.envs.shape import wrong_prompt, wrong_transition
from agentrl.errors import RunError
from agentrl.models.template import Renderer
from agentrl.rollout.engine import LocalEngine, Sequence_
from agentrl.rollout.sampling import Sampling, stream
from agentrl.rollout.trajectory import Group, Origin, Row, StopReason, Trajectory, Turn
from agentrl.rollout.window import Step, kept, step_row


class Guarded:
    """An environment whose bugs end its own episode, as an error with a reason, and never the run."""

    def __init__(self, make: Callable[[], Environment]):
        self.failure: str | None = None
        self.environment: Environment | None = None
        self.environment = self._guard("make", make)
        if self.environment is None:
            self._fail("make: it gave no environment")

    def _fail(self, reason: str) -> None:
        """The first failure is the episode's reason; what follows from it is not."""
        self.failure = self.failure or reason

    def _guard(self, name: str, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except RunError:  # not this episode's failure but the run's, such as a sandbox that fails again and again
            raise
        except (Exception, SystemExit) as error:  # the boundary to user-written environments
            self._fail(f"{name}: {type(error).__name__}: {error}")
            return None

    def _call(self, name: str, *args: Any) -> Any:
        if self.environment is None:
            return None
        return self._guard(name, lambda: getattr(self.environment, name)(*args))

    def _text(self, name: str) -> str | None:
        value = self._call(name)
        if value is not None and not isinstance(value, str):
            self._fail(f"{name}: {value!r:.80} is not text")
            return None
        return value

    def reset(self, task: Task) -> list[Message] | None:
        messages = self._call("reset", task)
        if self.failure is None and (problem := wrong_prompt(messages)):
            self._fail(f"reset: {problem}")
        return None if self.failure is not None else messages

    def step(self, action: str) -> tuple[Transition, float]:
        """The transition and the seconds it took."""
        start = time.perf_counter()
        transition = self._call("step", action)
        if self.failure is None and (problem := wrong_transition(transition)):
            self._fail(f"step: {problem}")
        if self.failure is not None:
            transition = Transition(None, True, Outcome.TOOL_ERROR, self.failure, fatal=True)
        return transition, time.perf_counter() - start

    def state_key(self) -> str:
        key = self._text("state_key")
        if key is None:
            self._fail("state_key: it gave no text")
        return key or ""

    def potential(self) -> float | None:
        value = self._call("potential")
        if value is None:
            return None
        if not (isinstance(value, (int, float)) and 0 <= value <= 1):
            self._fail(f"potential: {value!r} is not a number in [0, 1]")
            return None
        return float(value)

    def answer(self) -> str | None:
        return self._text("answer")

    def close(self) -> None:
        self._call("close")


@contextmanager
def workers(count: int) -> Iterator[ThreadPoolExecutor]:
    """Threads for environments, waited for at the end; but not after Ctrl-C, for a call may hang."""
    pool = ThreadPoolExecutor(count)
    wait = True
    try:
        yield pool
    except KeyboardInterrupt:
        wait = False
        raise
    finally:
        pool.shutdown(wait, cancel_futures=True)


@dataclass
class Episode:
    """One running trajectory."""

    trajectory: Trajectory
    environment: Guarded
    sequence: Sequence_
    key: tuple[object, ...]  # of its random stream
    state_key: str = ""  # of the present state, as is the potential
    potential: float | None = None
    steps: list[Step] = field(default_factory=list)  # finished ones

    @property
    def row(self) -> Row:
        """The row in which the policy is acting."""
        return self.trajectory.rows[-1]


@dataclass
class Pending:
    """An action on its way through the environment, admitted not before decode step ``due``."""

    due: int
    order: int
    episode: Episode
    future: Future[tuple[Transition, float]]


class Collector:
    """Samples groups of trajectories: one row each, or with ``rollout.window`` one row for each step."""

    def __init__(
        self,
        engine: LocalEngine,
        renderer: Renderer,
        spec: EnvSpec,
        env: EnvConfig,
        rollout: RolloutConfig,
        scheduling: EngineConfig,
    ):
        self.engine, self.renderer, self.spec = engine, renderer, spec
        self.env, self.rollout, self.scheduling = env, rollout, scheduling
        self.tool_calls, self.tool_seconds = 0, 0.0  # since they were last taken
        # Called once per decode step. What it raises ends the collection, with every environment closed.
        self.on_step: Callable[[], None] | None = None

    def collect(
        self,
        tasks: Sequence[Task],
        members: int,
        sampling: Sampling,
        seed: int,
        step: int,
        on_progress: Callable[[int, int], None] | None = None,
    ) -> list[Group]:
        """``members`` trajectories of every task, in task order. ``step``, the policy step, is in the random streams.

        ``on_progress(finished, total)`` is called as trajectories end.
        """
        self.engine.sampling = sampling
        episodes: dict[int, Episode] = {}
        groups: list[list[Trajectory]] = []
        seen: Counter[str] = Counter()
        for task in tasks:
            group: list[Trajectory] = []
            # A task that stands twice in a batch goes on counting its members: no two draw from the same stream.
            first = seen[task.hash] * members
            seen[task.hash] += 1
            for member in range(first, first + members):
                trajectory = Trajectory(task, member, step, rows=[])
                episode = self._open(trajectory, seed)
                if episode is not None:
                    episodes[id(episode.sequence)] = episode
                group.append(trajectory)
            groups.append(group)
        total, clock, order = len(tasks) * members, 0, 0
        finished = total - len(episodes)
        pending: list[Pending] = []
        with self._closing(episodes), workers(self.env.tool_workers) as pool:
            while episodes:
                if self.on_step:
                    self.on_step()
                if not self.engine.busy and pending:
                    clock = max(clock, min(p.due for p in pending))
                for answer in self._due(pending, clock):
                    if self._answer(answer.episode, answer.future):
                        del episodes[id(answer.episode.sequence)]
                        finished += 1
                        if on_progress:
                            on_progress(finished, total)
                for sequence in self.engine.step():
                    episode = episodes[id(sequence)]
                    action = self._take_action(episode)
                    future = pool.submit(episode.environment.step, action)
                    pending.append(Pending(clock + self.scheduling.tool_delay, order, episode, future))
                    order += 1
                clock += 1
        self.engine.rest()  # an update or a judge can use the memory
        return [Group(task, group) for task, group in zip(tasks, groups, strict=True)]

    def counts(self) -> dict[str, float]:
        """What engine and tools did since the last ``take_counts``: the fields of EngineStats, tool calls, seconds."""
        tools = {"tool_calls": float(self.tool_calls), "tool_s": self.tool_seconds}
        return {name: float(value) for name, value in vars(self.engine.stats).items()} | tools

    def take_counts(self) -> dict[str, float]:
        """``counts``; counting starts anew."""
        counts = self.counts()
        self.engine.take_stats()
        self.tool_calls, self.tool_seconds = 0, 0.0
        return counts

    @contextmanager
    def _closing(self, episodes: Mapping[int, Episode]) -> Iterator[None]:
        """Frees the slots and closes the environments of the episodes that are still running at an exception."""
        try:
            yield
        except BaseException:
            for episode in episodes.values():
                episode.environment.close()
            self.engine.clear()
            raise

    def _due(self, pending: list[Pending], clock: int) -> list[Pending]:
        """Take out the answers to admit now."""
        if self.scheduling.deterministic:
            due = [p for p in pending if p.due <= clock]
        else:
            due = [p for p in pending if p.future.done()]
            if not due and not self.engine.busy and pending:
                due = [min(pending, key=lambda p: p.order)]
        pending[:] = [p for p in pending if p not in due]
        return due

    def _open(self, trajectory: Trajectory, seed: int) -> Episode | None:
        """Reset an environment and queue its prompt; None when it failed or the prompt alone is too long."""
        task = trajectory.task
        environment = Guarded(self.spec.make)
        messages = environment.reset(task)
        prompt = self.renderer.prompt(messages, self.spec.tools) if messages is not None else []
        trajectory.rows = [Row.from_prompt(prompt)]
        state_key, potential = environment.state_key(), environment.potential()
        limit = self._action_limit(len(prompt))
        if environment.failure is not None or limit <= 0:
            self._close(trajectory, environment, StopReason.CONTEXT_OVERFLOW)
            return None
        key = (seed, trajectory.policy_step, task.hash, trajectory.member)
        sequence = self.engine.start(prompt, shared=tuple(prompt), noise=stream(limit, *key, 0))
        return Episode(trajectory, environment, sequence, key, state_key, potential)

    def _action_limit(self, length: int) -> int:
        """Tokens that the next action may have when the row holds ``length``."""
        return min(self.env.max_turn_tokens, self.rollout.max_tokens - length)

    def _take_action(self, episode: Episode) -> str:
        """Append the sampled tokens to the row and note the turn; returns the text that the environment gets.

        All sampled tokens are kept and trained on, also the one in which a stop string ended; the action is the text
        up to the stop string, without an end-of-turn token.
        """
        sampled = episode.sequence.action
        assert sampled is not None
        episode.sequence.action = None
        row, turns = episode.row, episode.trajectory.turns
        start = len(row)
        row.append(sampled.ids, Origin.SAMPLED, len(turns), sampled.logprobs)
        text = self.renderer.span(row.ids.tolist(), start, len(row))
        action = text
        if sampled.stop == "stop_string":
            action = text[: self.engine.stop.end(text)]
        elif sampled.stop == "end_of_turn":
            action = self.renderer.span(row.ids.tolist(), start, len(row) - 1)
        stop = sampled.stop
        if stop == "turn_token_limit" and len(sampled.ids) < self.env.max_turn_tokens:
            stop = "context_overflow"
        turns.append(Turn(text, action, None, Outcome.OK, None, episode.state_key, stop, episode.potential))
        return action

    def _answer(self, episode: Episode, future: Future[tuple[Transition, float]]) -> bool:
        """Admit the environment's answer; True when the episode is over."""
        transition, seconds = future.result()
        trajectory, turn = episode.trajectory, episode.trajectory.turns[-1]
        turn.outcome, turn.error = transition.outcome, transition.error
        turn.tool_calls, turn.tool_seconds = transition.tool_calls, transition.tool_seconds or seconds
        turn.info = dict(transition.info)
        trajectory.costs.tool_calls += turn.tool_calls
        trajectory.costs.tool_seconds += turn.tool_seconds
        self.tool_calls += turn.tool_calls
        self.tool_seconds += turn.tool_seconds
        reason = self._stop_reason(episode, transition)
        if reason is not None:
            if reason is StopReason.ERROR:
                trajectory.error = transition.error or episode.environment.failure or "the environment gave no reason"
            self._close(trajectory, episode.environment, reason, episode.sequence)
            return True
        return False

    def _stop_reason(self, episode: Episode, transition: Transition) -> StopReason | None:
        """Why the episode ends here; None when the observation was appended and the next action began.

        Overflow policy: an observation that would not leave room for one more token is not appended, and a window is
        never made smaller. The last row then ends as the policy saw it, and training uses that same row.
        """
        trajectory, row, turn = episode.trajectory, episode.row, episode.trajectory.turns[-1]
        if transition.fatal or episode.environment.failure is not None:
            return StopReason.ERROR
        if transition.done or transition.observation is None:
            return StopReason.DONE
        if turn.stop == "context_overflow":
            return StopReason.CONTEXT_OVERFLOW
        if len(trajectory.turns) >= self.env.max_turns:
            return StopReason.TURN_LIMIT
        ids, text = self.renderer.observation(
            transition.observation, ended_turn=turn.stop == "end_of_turn", max_tokens=self.env.max_obs_tokens
        )
        episode.steps.append((row.ids[row.sampled & (row.turn == len(trajectory.turns) - 1)].tolist(), ids))
        following = self._next_row(episode)
        limit = self._action_limit(len(following))
        if limit <= 0:
            return StopReason.CONTEXT_OVERFLOW
        turn.observation = text
        if self.rollout.window is None:
            trajectory.rows = [following]
        else:
            trajectory.rows.append(following)
        episode.state_key, episode.potential = episode.environment.state_key(), episode.environment.potential()
        keep = kept(row, following)
        new = following.ids[keep:].tolist()
        self.engine.resume(episode.sequence, new, stream(limit, *episode.key, len(trajectory.turns)), keep)
        return None

    def _next_row(self, episode: Episode) -> Row:
        """What the policy acts on after the last finished step."""
        if self.rollout.window is not None:
            prompt = episode.row.ids[: episode.row.prompt_length].tolist()
            return step_row(prompt, episode.steps, self.rollout.window, self.renderer)
        row = replace(episode.row)
        row.append(episode.steps[-1][1], Origin.OBSERVATION, len(episode.steps) - 1)
        return row

    def _close(
        self, trajectory: Trajectory, environment: Guarded, reason: StopReason, sequence: Sequence_ | None = None
    ) -> None:
        trajectory.stop_reason = reason
        trajectory.answer, trajectory.potential = environment.answer(), environment.potential()
        if environment.failure is not None:
            trajectory.stop_reason, trajectory.error = StopReason.ERROR, trajectory.error or environment.failure
        trajectory.text = self.renderer.decode(trajectory.rows[-1].ids.tolist())
        trajectory.costs.tokens_sampled = sum(int(row.sampled.sum()) for row in trajectory.rows)
        if sequence is not None:
            trajectory.costs.tokens_prefilled = sequence.prefilled
            self.engine.finish(sequence)
        environment.close()
