"""A small environment in which every action is a tool call and its length decides: for tests of budgets and hacks."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence

from agentrl.envs.base import Environment, EnvSpec, Episode, Message, Observation, Task, Transition, Verdict


class CallingSpec(EnvSpec):
    name = "calling"

    def __init__(self, seconds: float = 0.0, violations: bool = False, crash: bool = False):
        self.seconds = seconds  # of a call
        self.violations = violations  # actions of a length that 3 divides break out of something
        self.crash = crash  # the verifier fails on answers of such a length

    def variants(self) -> Mapping[str, str]:
        return {"train": "calls", "later": "the same, held out"}

    def tasks(self, variant: str, seed: int, start: int = 0) -> Iterator[Task]:
        split = "train" if variant == "train" else "heldout"
        for i in range(start, 10_000):
            yield Task(f"{variant}/{i}", f"Call {i}.", {"answer": str(i)}, variant, split, seed, {"variant": variant})

    def make(self) -> Environment:
        return CallingEnv(self)

    def verify(self, episode: Episode) -> Verdict:
        if self.crash and episode.answer and len(episode.answer) % 3 == 0:
            raise ZeroDivisionError("a bug in the verifier")
        return Verdict(float(bool(episode.answer) and len(episode.answer) % 2 == 0))

    def gold_answers(self, task: Task) -> Sequence[str]:
        return ("ab",)

    def wrong_answers(self, task: Task) -> Sequence[str]:
        return ("a",)

    def expert(self, task: Task, seed: int) -> Sequence[str] | None:
        return ["look", "done"]


class CallingEnv(Environment):
    open = 0  # environments that were made and not closed

    def __init__(self, spec: CallingSpec):
        self.spec, self.actions = spec, []
        CallingEnv.open += 1

    def reset(self, task: Task) -> list[Message]:
        return [{"role": "user", "content": task.question}]

    def step(self, action: str) -> Transition:
        time.sleep(self.spec.seconds)
        self.actions.append(action)
        done = len(self.actions) == 2
        observation = None if done else Observation(f" seen {len(action)} ")
        info = {"violation": "a way out"} if self.spec.violations and len(action) % 3 == 0 else {}
        return Transition(observation, done, tool_calls=1, tool_seconds=self.spec.seconds, info=info)

    def state_key(self) -> str:
        return "/".join(self.actions)

    def answer(self) -> str | None:
        return self.actions[-1] if self.actions else None

    def close(self) -> None:
        CallingEnv.open -= 1
