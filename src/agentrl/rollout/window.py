"""Windowed context: every step is a row of its own that shows the prompt and the last steps only."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from agentrl.envs.base import Observation
from agentrl.models.template import Renderer
from agentrl.rollout.trajectory import Origin, Row

Step = tuple[Sequence[int], Sequence[int]]
"""A finished step as token ids: the action as it was sampled, the observation as it was appended."""


def step_row(prompt: Sequence[int], steps: Sequence[Step], window: int, renderer: Renderer) -> Row:
    """The row in which the next action is taken after ``steps``, of which the last ``window`` are shown.

    Prompt, a note where steps are left out, then the shown steps. Only the newest observation has the origin
    OBSERVATION: everything before it stood in an earlier row. With a window over all steps the ids are those of the
    append-only row.
    """
    row = Row.from_prompt(prompt)
    first = max(0, len(steps) - window)
    if first:
        note = Observation(f"[{first} earlier steps not shown]\n")
        row.append(renderer.observation(note, ended_turn=False, max_tokens=len(note.text))[0], Origin.CONTEXT, -1)
    for turn, (action, observation) in enumerate(steps[first:], first):
        newest = turn == len(steps) - 1
        row.append(action, Origin.CONTEXT, turn)
        row.append(observation, Origin.OBSERVATION if newest else Origin.CONTEXT, turn)
    return row


def in_windows(row: Row, window: int | None, renderer: Renderer) -> list[Row]:
    """An append-only row as the rows that its steps have with ``window``; without one, the row itself."""
    if window is None:
        return [row]
    prompt = row.ids[: row.prompt_length].tolist()
    steps: list[Step] = []
    rows = []
    for turn in range(int(row.turn.max(initial=-1)) + 1):
        here = row.turn == turn
        action, observed = row.sampled & here, ~row.sampled & here
        rows.append(step_row(prompt, steps, window, renderer))
        rows[-1].append(row.ids[action].tolist(), Origin.SAMPLED, turn, row.logprobs[action].tolist())
        steps.append((row.ids[action].tolist(), row.ids[observed].tolist()))
    return rows


def kept(old: Row, new: Row) -> int:
    """How many of the first tokens of ``new`` are those of ``old``, short of all: a last one is left to be computed."""
    n = min(len(old), len(new) - 1)
    differ = np.flatnonzero(old.ids[:n] != new.ids[:n])
    return int(differ[0]) if len(differ) else n
