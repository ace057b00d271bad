"""A small environment for panel tests: number tasks, an endless and a finite variant, and one that repeats itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pytest

from agentrl.envs.base import Environment, EnvSpec, Episode, Task, Verdict


class ToySpec(EnvSpec):
    name = "toy"

    def variants(self) -> Mapping[str, str]:
        return {"train": "numbers", "bigger": "bigger numbers", "few": "three tasks", "stuck": "one task for ever"}

    def tasks(self, variant: str, seed: int, start: int = 0) -> Iterator[Task]:
        split = "train" if variant == "train" else "heldout"
        index = start
        while variant != "few" or index < 3:
            number = 0 if variant == "stuck" else seed * 10_000 + index
            yield Task(f"{variant}-{seed}-{index}", f"{variant} {number}?", {"answer": str(number)}, variant, split)
            index += 1

    def make(self) -> Environment:
        raise NotImplementedError

    def verify(self, episode: Episode) -> Verdict:
        return Verdict(float(episode.answer == episode.task.truth["answer"]))


@pytest.fixture
def toy() -> ToySpec:
    return ToySpec()
