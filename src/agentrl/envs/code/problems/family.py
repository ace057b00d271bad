"""A family of problems: parameters drawn at a level, words, reference solution, and programs that compute it."""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

Parameters = Mapping[str, Any]

LEVELS = (1, 2, 3)
LARGER = 4
"""The level above those that training draws."""


@dataclass(frozen=True)
class Family:
    """``wordings``, ``rewordings`` and ``programs`` are format strings over the parameters.

    ``solve`` is the reference: it takes the parameters that it names and returns the answer. ``wordings`` are those of
    training, ``rewordings`` are held out. ``uses`` names the library functions (``module.name``) that its programs
    import, for the variant in which they are called something else.
    """

    name: str
    area: str
    draw: Callable[[random.Random, int], Parameters]
    solve: Callable[..., Any]
    wordings: tuple[str, ...]
    rewordings: tuple[str, ...]
    programs: tuple[str, ...]
    thoughts: tuple[str, ...]
    uses: tuple[str, ...] = ()
    kind: str = "number"  # how answers are compared: see agentrl.envs.code.equivalence.Rules

    def answer(self, parameters: Parameters) -> str:
        """The reference answer as text."""
        return str(self.solve(**{name: parameters[name] for name in inspect.signature(self.solve).parameters}))


def between(rng: random.Random, level: int, low: int, *highs: int) -> int:
    """A number from ``low`` up to the bound of the level, in its upper half so that levels differ."""
    high = highs[level - 1]
    return rng.randint(max(low, high // 2), high)
