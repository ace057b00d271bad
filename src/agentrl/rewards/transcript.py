"""A trajectory as a conversation, for rewards that read: the question, then actions and observations in turn."""

from __future__ import annotations

from collections.abc import Iterable

from agentrl.envs.base import Message
from agentrl.rollout.trajectory import Trajectory


def conversation(question: str, turns: Iterable[tuple[str, str | None]]) -> list[Message]:
    """Messages of (action, observation) turns: the user asks, the assistant acts, the user shows what came back."""
    messages: list[Message] = [{"role": "user", "content": question}]
    for action, observation in turns:
        messages.append({"role": "assistant", "content": action})
        if observation is not None:
            messages.append({"role": "user", "content": observation})
    return messages


def of_trajectory(trajectory: Trajectory) -> list[Message]:
    return conversation(trajectory.task.question, [(t.action, t.observation) for t in trajectory.turns])
