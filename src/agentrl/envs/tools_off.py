"""The control arm ``env.tools=off``: the same environment, whose tools tell the policy nothing."""

from __future__ import annotations

from dataclasses import replace

from agentrl.envs.base import Environment, EnvSpec, Observation, Transition, Wrapper

NOTHING = "The tools are switched off: no result."


class Silenced(Wrapper):
    """An environment in which the result of every tool call is replaced by ``NOTHING``; all else is as it was.

    The tool itself still runs, so that costs, limits and failures are those of the real arm.
    """

    def step(self, action: str) -> Transition:
        transition = self.environment.step(action)
        if not transition.tool_calls or transition.observation is None:
            return transition
        shown = transition.observation
        return replace(transition, observation=Observation(NOTHING, shown.before, shown.after))


class ToolsOff(EnvSpec):
    """Mixed into a spec's class, in front of it."""

    def make(self) -> Environment:
        return Silenced(super().make())  # type: ignore[safe-super]


def without_tools(cls: type[EnvSpec]) -> type[EnvSpec]:
    """The spec's class with its tools silenced."""
    return type(cls.__name__, (ToolsOff, cls), {"__module__": cls.__module__})
