"""A small real environment whose episodes follow a script in the task, for tests of the collector."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from agentrl.envs.base import Environment, EnvSpec, Episode, Message, Observation, Outcome, Task, Transition, Verdict

KINDS = ("ok", "invalid", "limit", "tool_error", "done", "fatal", "raise")


class ScriptedSpec(EnvSpec):
    """Turn t of a task does what ``task.meta["script"][t]`` says, after a random pause of up to ``jitter`` seconds."""

    name = "scripted"
    train_variant = "train"

    def __init__(self, jitter: float = 0.0, stop: Sequence[str] = ("e", "0", ">")):
        self.jitter, self.stop = jitter, tuple(stop)
        self.closed = 0

    def variants(self) -> Mapping[str, str]:
        return {"train": "scripts"}

    def tasks(self, variant: str, seed: int, start: int = 0) -> Iterator[Task]:
        for i in range(start, start + 100):
            yield make_task(i, random_script(random.Random(f"{seed}/{i}")))

    def make(self) -> Environment:
        return ScriptedEnv(self)

    def verify(self, episode: Episode) -> Verdict:
        return Verdict(float(episode.answer is not None and len(episode.answer) % 2 == 0))

    def gold_answers(self, task: Task) -> Sequence[str]:
        return ("ab",)

    def wrong_answers(self, task: Task) -> Sequence[str]:
        return ("a",)


def make_task(number: int, script: Sequence[Mapping[str, Any]], question: str = "What now?") -> Task:
    return Task(f"s/{number}", f"{question} {number}", {}, "train", "train", number, {"script": list(script)})


def random_script(rng: random.Random, turns: int = 6) -> list[dict[str, Any]]:
    kinds = rng.choices(KINDS, weights=(8, 3, 1, 1, 2, 0.4, 0.4), k=turns)
    words = ["river", "the old city ", "été ", "🙂", "\n", "<|im_end|>", "</search> ", "1994"]
    return [{"kind": k, "text": "".join(rng.choices(words, k=rng.randint(0, 12)))} for k in kinds]


class ScriptedEnv(Environment):
    def __init__(self, spec: ScriptedSpec):
        self.spec, self.turn, self.last = spec, 0, ""

    def reset(self, task: Task) -> list[Message]:
        self.task, self.turn = task, 0
        return [{"role": "user", "content": task.question}]

    def step(self, action: str) -> Transition:
        time.sleep(random.random() * self.spec.jitter)
        script = self.task.meta["script"]
        entry = script[min(self.turn, len(script) - 1)]
        self.turn, self.last = self.turn + 1, action
        kind, text = entry["kind"], entry.get("text", "")
        if kind == "raise":
            raise ZeroDivisionError("a bug in the environment")
        if kind == "done":
            return Transition(None, True, info={"turns": self.turn})
        if kind == "fatal":
            return Transition(None, True, Outcome.TOOL_ERROR, "server down", fatal=True, tool_calls=2)
        outcome = {
            "ok": Outcome.OK,
            "invalid": Outcome.INVALID,
            "limit": Outcome.TOOL_LIMIT,
            "tool_error": Outcome.TOOL_ERROR,
        }[kind]
        error = None if outcome is Outcome.OK else kind
        observation = Observation(text, before="\n<result>", after="</result>\n")
        return Transition(observation, False, outcome, error, tool_calls=1, tool_seconds=0.25, info={"n": self.turn})

    def state_key(self) -> str:
        return json.dumps([self.task.hash, self.turn])

    def answer(self) -> str | None:
        return self.last or None

    def close(self) -> None:
        self.spec.closed += 1
