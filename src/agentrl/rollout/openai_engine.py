"""Episodes played by a model behind a chat endpoint: the same environments, limits and records, for evaluation only.

There are no token ids and no log-probabilities here, so nothing that was sampled this way can be trained on: the
trajectories have turns, costs and rewards, but no rows. What differs from the local engine:

* An action is cut at its stop string here, not by the server (servers leave the stop string out, and then nobody knows
  which one it was). Every token that the server counted is in the costs, also those behind the stop string.
* An observation is a user message.
* ``env.max_obs_tokens`` and ``rollout.max_tokens`` count the server's tokens where it reports them, else four
  characters as one.
"""

from __future__ import annotations

import hashlib
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, wait

from agentrl.chat import ChatClient, ChatError, Reply
from agentrl.config.schema import EngineConfig, EnvConfig, RolloutConfig
from agentrl.envs.base import EnvSpec, Message, Observation, Outcome, Task
from agentrl.errors import RunError, UserError
from agentrl.rollout.collector import Guarded, workers
from agentrl.rollout.sampling import Sampling
from agentrl.rollout.trajectory import Group, StopReason, Trajectory, Turn

CHARACTERS = 4  # counted as one token where the server does not count


class ChatCollector:
    """Samples groups of trajectories through a chat endpoint, ``engine.slots`` episodes at a time."""

    def __init__(self, spec: EnvSpec, env: EnvConfig, rollout: RolloutConfig, engine: EngineConfig):
        self.spec, self.env, self.rollout, self.engine = spec, env, rollout, engine
        self.client = ChatClient(
            str(engine.url),
            str(engine.model),
            api_key_env=engine.api_key_env,
            timeout_s=engine.timeout_s,
            retries=engine.retries,
            extra=engine.request,
        )
        self._stop = threading.Event()
        self._counts: Counter[str] = Counter()
        self._counting = threading.Lock()
        # Called at least twice a second. What it raises ends the collection.
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
        """``members`` trajectories of every task, in task order. A call that fails ends its episode as an error.

        Raises UserError when the endpoint refuses the key or does not know the model, RunError when no episode at all
        came through.
        """
        if sampling.top_k > 0 or sampling.min_p > 0:
            raise UserError("eval.top_k and eval.min_p are not part of the chat protocol; use eval.top_p")
        groups: list[list[Trajectory]] = []
        seen: Counter[str] = Counter()
        for task in tasks:
            first = seen[task.hash] * members
            seen[task.hash] += 1
            groups.append([Trajectory(task, member, step, rows=[]) for member in range(first, first + members)])
        everything = [t for group in groups for t in group]
        self._stop.clear()
        with workers(self.engine.slots) as pool:
            try:
                waiting = {pool.submit(self._play, t, sampling, seed) for t in everything}
                while waiting:
                    if self.on_step:
                        self.on_step()
                    done, waiting = wait(waiting, timeout=0.5, return_when=FIRST_EXCEPTION)
                    for future in done:
                        future.result()
                    if done and on_progress:
                        on_progress(len(everything) - len(waiting), len(everything))
            finally:
                self._stop.set()  # after an error no further episode begins, and running ones end after their call
        if everything and all(t.stop_reason is StopReason.ERROR for t in everything):
            raise RunError(f"all {len(everything)} episodes failed: {everything[0].error}")
        return [Group(task, group) for task, group in zip(tasks, groups, strict=True)]

    def _play(self, trajectory: Trajectory, sampling: Sampling, seed: int) -> None:
        """One episode from reset to end."""
        environment = Guarded(self.spec.make)
        messages = environment.reset(trajectory.task) or []
        reason = StopReason.ERROR
        try:
            reason = self._turns(trajectory, environment, messages, sampling, seed)
        except ChatError as error:
            if error.kind in ("auth", "not_found"):
                raise UserError(f"engine.url, engine.model={self.client.model}: {error}") from error
            trajectory.error = str(error)
        finally:
            trajectory.stop_reason = reason
            trajectory.answer, trajectory.potential = environment.answer(), environment.potential()
            if environment.failure is not None:
                trajectory.stop_reason = StopReason.ERROR
                trajectory.error = trajectory.error or environment.failure
            trajectory.text = "\n".join(f"{m['role']}: {m['content']}" for m in messages)
            environment.close()

    def _turns(
        self, trajectory: Trajectory, environment: Guarded, messages: list[Message], sampling: Sampling, seed: int
    ) -> StopReason:
        """Act until the episode ends; ``messages`` grows. Why it ended."""
        length, prompt = 0, len(messages)
        while environment.failure is None and not self._stop.is_set():
            number = len(trajectory.turns)
            limit = min(self.env.max_turn_tokens, self.rollout.max_tokens - length)
            if limit <= 0:
                return StopReason.CONTEXT_OVERFLOW
            state_key, potential = environment.state_key(), environment.potential()
            key = f"{seed}/{trajectory.task.hash}/{trajectory.member}/{number}"
            draw = int(hashlib.sha256(key.encode()).hexdigest()[:7], 16)
            seen = shown(messages, prompt, self.rollout.window)
            reply = self.client.complete(seen, limit, sampling.temperature, sampling.top_p, draw, self.spec.tools)
            turn = self._turn(reply, state_key, potential)
            trajectory.turns.append(turn)
            trajectory.costs.tokens_sampled += reply.tokens_sampled or 0
            trajectory.costs.tokens_prefilled += reply.tokens_prompt or 0
            self._count(tokens_sampled=reply.tokens_sampled or 0, tokens_prefilled=reply.tokens_prompt or 0)
            messages.append({"role": "assistant", "content": turn.action})
            transition, seconds = environment.step(turn.action)
            turn.outcome, turn.error = transition.outcome, transition.error
            turn.tool_calls, turn.tool_seconds = transition.tool_calls, transition.tool_seconds or seconds
            turn.info = dict(transition.info)
            trajectory.costs.tool_calls += turn.tool_calls
            trajectory.costs.tool_seconds += turn.tool_seconds
            self._count(tool_calls=turn.tool_calls, tool_s=turn.tool_seconds)
            if transition.fatal or environment.failure is not None:
                trajectory.error = transition.error or environment.failure or "the environment gave no reason"
                return StopReason.ERROR
            if transition.done or transition.observation is None:
                return StopReason.DONE
            if number + 1 >= self.env.max_turns:
                return StopReason.TURN_LIMIT
            turn.observation = shorten(transition.observation, self.env.max_obs_tokens)
            messages.append({"role": "user", "content": turn.observation.strip()})
            length = _tokens(reply, messages)
        trajectory.error = trajectory.error or environment.failure or "stopped"
        return StopReason.ERROR

    def _turn(self, reply: Reply, state_key: str, potential: float | None) -> Turn:
        """The action of a reply: its text up to and including the first stop string."""
        ends = [i + len(s) for s in self.spec.stop if (i := reply.text.find(s)) >= 0]
        action = reply.text[: min(ends)] if ends else reply.text
        stop = "stop_string" if ends else "turn_token_limit" if reply.finish == "length" else "end_of_turn"
        return Turn(reply.text, action, None, Outcome.OK, None, state_key, stop, potential)

    def _count(self, **quantities: float) -> None:
        with self._counting:
            for name, value in quantities.items():
                self._counts[name] += value  # type: ignore[assignment]

    def counts(self) -> dict[str, float]:
        """Tokens (as the server counts them), tool calls and tool seconds since the last ``take_counts``."""
        names = ("tokens_sampled", "tokens_prefilled", "tool_calls", "tool_s")
        with self._counting:
            return {name: float(self._counts[name]) for name in names}

    def take_counts(self) -> dict[str, float]:
        """``counts``; counting starts anew."""
        counts = self.counts()
        self._counts.clear()
        return counts

    def close(self) -> None:
        self.client.close()


def _tokens(reply: Reply, messages: Sequence[Message]) -> int:
    """Tokens of the conversation so far, with the newest observation."""
    if reply.tokens_prompt is None or reply.tokens_sampled is None:
        return sum(len(m["content"]) for m in messages) // CHARACTERS
    return reply.tokens_prompt + reply.tokens_sampled + len(messages[-1]["content"]) // CHARACTERS


def shown(messages: Sequence[Message], prompt: int, window: int | None) -> list[Message]:
    """The conversation with the last ``window`` pairs of action and observation behind its ``prompt`` messages."""
    hidden = 0 if window is None else (len(messages) - prompt) // 2 - window
    if hidden <= 0:
        return list(messages)
    task = dict(messages[prompt - 1])
    task["content"] += f"\n[{hidden} earlier steps not shown]"
    return [*messages[: prompt - 1], task, *messages[prompt + 2 * hidden :]]


def shorten(observation: Observation, max_tokens: int) -> str:
    """The observation's text; longer than ``max_tokens`` × ``CHARACTERS``, its middle is cut and the cut is marked."""
    text = observation.text
    limit = max(0, max_tokens * CHARACTERS - len(observation.before) - len(observation.after))
    if len(text) > limit:
        head, tail = (limit + 1) // 2, limit // 2
        middle = f" [... {len(text) - limit} characters cut ...] "
        text = text[:head] + middle + text[len(text) - tail :]
    return observation.before + text + observation.after
