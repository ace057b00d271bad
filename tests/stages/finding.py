"""A small environment with an expert, evidence and a sound verifier: "look" shows a number, which is the answer."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence

from agentrl.envs.base import Environment, EnvSpec, Episode, Message, Observation, Task, Transition, Verdict


class FindingSpec(EnvSpec):
    name = "finding"

    def variants(self) -> Mapping[str, str]:
        return {"train": "numbers", "new_world": "others"}

    def tasks(self, variant: str, seed: int, start: int = 0) -> Iterator[Task]:
        split = "train" if variant == "train" else "heldout"
        for i in range(start, 10_000):
            number = random.Random(f"{variant}/{seed}/{i}").randrange(10_000, 99_999)
            yield Task(f"{variant}/{i}", f"Find number {i}.", {"number": str(number)}, variant, split, seed)

    def make(self) -> Environment:
        return FindingEnv()

    def verify(self, episode: Episode) -> Verdict:
        return Verdict(float((episode.answer or "").strip() == episode.task.truth["number"]))

    def gold_answers(self, task: Task) -> Sequence[str]:
        return (str(task.truth["number"]),)

    def expert(self, task: Task, seed: int) -> Sequence[str] | None:
        return ["look", str(task.truth["number"])]

    def evidence(self, task: Task) -> str | None:
        return str(task.truth["number"])


class FindingEnv(Environment):
    def reset(self, task: Task) -> list[Message]:
        self.task, self.actions = task, []
        return [{"role": "user", "content": task.question}]

    def step(self, action: str) -> Transition:
        self.actions.append(action.strip())
        done = self.actions[-1] != "look"
        return Transition(None if done else Observation(f"The number is {self.task.truth['number']}."), done)

    def state_key(self) -> str:
        return "/".join(self.actions)

    def answer(self) -> str | None:
        return next((a for a in self.actions if a != "look"), None)
