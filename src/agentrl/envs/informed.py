"""The same environment, whose prompt already holds the evidence: could the policy use it, if only it had found it?"""

from __future__ import annotations

import copy

from agentrl.envs.base import Environment, EnvSpec, Message, Task, Wrapper


class Informed(Wrapper):
    """An environment that hands the policy ``EnvSpec.evidence`` at the end of its prompt; all else is as it was."""

    def __init__(self, environment: Environment, spec: EnvSpec):
        super().__init__(environment)
        self.spec = spec

    def reset(self, task: Task) -> list[Message]:
        *before, last = self.environment.reset(task)
        evidence = self.spec.evidence(task)
        if evidence is None:
            return [*before, last]
        return [*before, {**last, "content": f"{last['content'].rstrip()}\n\nThis is already known:\n{evidence}\n"}]


def with_evidence(spec: EnvSpec) -> EnvSpec:
    """A spec that shares everything with ``spec`` but makes informed environments."""
    twin = copy.copy(spec)
    twin.make = lambda: Informed(spec.make(), spec)  # type: ignore[method-assign]
    return twin
