"""Guess the number: a complete environment in one file, to copy from.

The policy sees a range and writes ``<guess>N</guess>``; it is told "higher" or "lower" until it is right.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Mapping, Sequence

from agentrl.envs.base import Environment, EnvSpec, Episode, Message, Observation, Outcome, Task, Transition, Verdict

GUESS = re.compile(r"<guess>\s*(\d+)\s*</guess>\s*$")


class Guess(Environment):
    """One game. Never raises for what the agent writes: a bad action gets feedback that says why."""

    def reset(self, task: Task) -> list[Message]:
        self.task = task
        self.guesses: list[int] = []
        return [
            {"role": "system", "content": "You guess a number. Write only <guess>N</guess>."},
            {"role": "user", "content": task.question},
        ]

    def step(self, action: str) -> Transition:
        match = GUESS.search(action)
        if match is None:
            return Transition(
                Observation("\nWrite <guess>N</guess> with a whole number.\n"), False, Outcome.INVALID, "no guess"
            )
        number = int(match.group(1))
        self.guesses.append(number)
        target = self.task.truth["number"]
        if number == target:
            return Transition(None, True)
        word = "higher" if number < target else "lower"
        return Transition(Observation(f"\nThe number is {word}.\n"), False, tool_calls=1)

    def state_key(self) -> str:
        return f"{self.task.hash}:{self.guesses}"

    def answer(self) -> str | None:
        return str(self.guesses[-1]) if self.guesses else None


class GuessSpec(EnvSpec):
    """``top`` is the largest number of the training variant."""

    name = "guess"
    description = "Guess a number from higher/lower answers."
    action_grammar = "<guess>N</guess>"
    stop = ("</guess>",)

    def __init__(self, top: int = 15) -> None:
        self.top = top

    def variants(self) -> Mapping[str, str]:
        return {"train": f"numbers from 1 to {self.top}", "shifted": f"numbers from {self.top + 1} to {2 * self.top}"}

    def tasks(self, variant: str, seed: int, start: int = 0) -> Iterator[Task]:
        # A task is one number in one range. The stream is finite and has no task twice: shuffle, then walk.
        base = 0 if variant == "train" else self.top
        ranges = [
            (low, high, number)
            for low in range(base + 1, base + self.top + 1)
            for high in range(low + 3, base + self.top + 1)
            for number in range(low, high + 1)
        ]
        random.Random(f"{variant}/{seed}").shuffle(ranges)
        for i, (low, high, number) in enumerate(ranges[start:], start):
            yield Task(
                id=f"{variant}-{seed}-{i}",
                question=f"The number is between {low} and {high}.",
                truth={"number": number},
                variant=variant,
                split="train" if variant == "train" else "heldout",
            )

    def make(self) -> Guess:
        return Guess()

    def verify(self, episode: Episode) -> Verdict:
        answer = (episode.answer or "").strip()
        return Verdict(float(answer == str(episode.task.truth["number"])))

    def gold_answers(self, task: Task) -> Sequence[str]:
        return [str(task.truth["number"])]

    def expert(self, task: Task, seed: int) -> Sequence[str]:
        """Binary search, played against the truth only through what the answers would say."""
        low, high = (int(n) for n in re.findall(r"\d+", task.question))
        actions = []
        while True:
            middle = (low + high) // 2
            actions.append(f"<guess>{middle}</guess>")
            if middle == task.truth["number"]:
                return actions
            low, high = (middle + 1, high) if middle < task.truth["number"] else (low, middle - 1)
