"""The same environment, whose prompt already holds the evidence: could the policy use it, if only it had found it?"""

from __future__ import annotations

import copy

from agentrl.envs.base import Environment, EnvSpec, Message, Task, Transition


class Informed(Environment):
    """An environment that hands the policy ``EnvSpec.evidence`` at the end of its prompt; all else is as it was."""

    def __init__(self, environment: Environment, spec: EnvSpec):
        self.environment, self.spec = environment, spec

    def reset(self, task: Task) -> list[Message]:
        *before, last = self.environment.reset(task)
        evidence = self.spec.evidence(task)
        if evidence is None:
            return [*before, last]
        return [*before, {**last, "content": f"{last['content'].rstrip()}\n\nThis is already known:\n{evidence}\n"}]

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


def with_evidence(spec: EnvSpec) -> EnvSpec:
    """A spec that shares everything with ``spec`` but makes informed environments."""
    twin = copy.copy(spec)
    twin.make = lambda: Informed(spec.make(), spec)  # type: ignore[method-assign]
    return twin
