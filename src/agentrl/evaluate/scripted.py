"""Playing a scripted policy through the real environment, under the limits that a model has."""

from __future__ import annotations

import time
from collections.abc import Sequence

from agentrl.config.schema import EnvConfig
from agentrl.envs.base import EnvSpec, Task
from agentrl.evaluate.exploiters import Act
from agentrl.models.template import Renderer
from agentrl.rollout.collector import Guarded
from agentrl.rollout.trajectory import Origin, Row, StopReason, Trajectory, Turn


def play(
    spec: EnvSpec, renderer: Renderer, env: EnvConfig, max_tokens: int, task: Task, act: Act, member: int
) -> Trajectory:
    """One episode as a trajectory. An action ends at its first stop string, or at ``env.max_turn_tokens``; its tokens
    count as sampled, with log-probability 0."""
    environment = Guarded(spec.make)
    trajectory = Trajectory(task, member, 0, [])
    try:
        messages = environment.reset(task)
        row = Row.from_prompt(renderer.prompt(messages, spec.tools) if messages is not None else [])
        trajectory.rows = [row]
        trajectory.stop_reason = _episode(spec, renderer, env, max_tokens, act, environment, trajectory)
        trajectory.answer = environment.answer()
        if environment.failure is not None or trajectory.stop_reason is StopReason.ERROR:
            trajectory.stop_reason = StopReason.ERROR
            trajectory.error = trajectory.error or environment.failure or "the environment gave no reason"
        trajectory.text = renderer.decode(row.ids.tolist())
        trajectory.costs.tokens_sampled = int(row.sampled.sum())
    finally:
        environment.close()
    return trajectory


def _episode(
    spec: EnvSpec,
    renderer: Renderer,
    env: EnvConfig,
    max_tokens: int,
    act: Act,
    environment: Guarded,
    trajectory: Trajectory,
) -> StopReason:
    row = trajectory.rows[0]
    seen: list[str] = []
    while environment.failure is None:
        room = min(env.max_turn_tokens, max_tokens - len(row))
        if room <= 0:
            return StopReason.CONTEXT_OVERFLOW
        wanted = act(seen)
        if wanted is None:
            return StopReason.DONE
        action, ids, stop = _limited(wanted, spec.stop, renderer, room)
        state_key = environment.state_key()
        row.append(ids, Origin.SAMPLED, len(trajectory.turns), [0.0] * len(ids))
        began = time.perf_counter()
        transition, _ = environment.step(action)
        turn = Turn(action, action, None, transition.outcome, transition.error, state_key, stop)
        turn.tool_calls = transition.tool_calls
        turn.tool_seconds = transition.tool_seconds or time.perf_counter() - began
        turn.info = dict(transition.info)
        trajectory.turns.append(turn)
        trajectory.costs.tool_calls += turn.tool_calls
        trajectory.costs.tool_seconds += turn.tool_seconds
        if transition.fatal:
            trajectory.error = transition.error
            return StopReason.ERROR
        if transition.done or transition.observation is None:
            return StopReason.DONE
        if len(trajectory.turns) >= env.max_turns:
            return StopReason.TURN_LIMIT
        shown, text = renderer.observation(transition.observation, stop == "end_of_turn", env.max_obs_tokens)
        if len(row) + len(shown) >= max_tokens:
            return StopReason.CONTEXT_OVERFLOW
        turn.observation = text
        seen.append(text)
        row.append(shown, Origin.OBSERVATION, len(trajectory.turns) - 1)
    return StopReason.ERROR


def _limited(text: str, stops: Sequence[str], renderer: Renderer, room: int) -> tuple[str, list[int], str]:
    """The action as a model could have written it: its text, its tokens, and what ended it."""
    ends = [at + len(s) for s in stops if (at := text.find(s)) >= 0]
    if ends:
        text = text[: min(ends)]
    ids = renderer.encode(text)
    if len(ids) > room:
        ids = ids[:room]
        return renderer.decode(ids, start=False), ids, "turn_token_limit"
    if not ends and len(ids) < room:
        return text, [*ids, renderer.end_of_turn_id], "end_of_turn"
    return text, ids, "stop_string" if ends else "turn_token_limit"
