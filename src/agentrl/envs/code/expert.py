"""Expert traces: a thought, a program that really runs, what it printed, and the answer read from that.

One trace in six first makes a slip that programmers make (a forgotten import, a misspelt name, a missing bracket),
reads the error and corrects it. Nothing is taken from the task's answer: a program that fails or prints something
else gives a trace that the verifier rejects.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable

from agentrl.envs.base import Task
from agentrl.envs.code import problems
from agentrl.envs.code.protocol import Wire

Run = Callable[[str], str]
"""Runs a program as the environment would and returns what the policy would read."""

SLIPS = 1 / 6

_FIRST = ("I compute it.", "A short program gives the answer.", "Let me run this.")
_REPAIR = {
    "NameError": ("A name is missing, I fix it.", "I forgot a name."),
    "SyntaxError": ("A bracket is missing.", "That is a syntax error, I fix it."),
    "": ("That failed, I fix it.", "An error, again."),
}
_ANSWER = ("The program printed the answer.", "So this is the result.", "The output is the answer.", "Done.")
_TESTED = ("The example is right.", "It works on the example.")


def actions(task: Task, wire: Wire, run: Run, max_calls: int, seed: int) -> list[str] | None:
    """The expert's actions, or None for a task without a reference program."""
    rng = random.Random(f"code expert {task.hash} {seed}")
    if "inputs" in task.truth:
        return _programming(task, wire, run, max_calls, rng)
    programs = task.truth.get("programs")
    if not programs:
        return None
    program = problems.with_new_names(rng.choice(programs), task.meta.get("renamed", {}))
    family = problems.FAMILIES.get(str(task.meta.get("family")))
    thought = rng.choice(family.thoughts if family else _FIRST)
    done = _attempts(program, thought, wire, run, max_calls, rng)
    output = run(program).strip().splitlines()
    if not output:
        return None
    return [*done, wire.write_answer(rng.choice(_ANSWER), output[-1].strip(), False)]


def _programming(task: Task, wire: Wire, run: Run, max_calls: int, rng: random.Random) -> list[str] | None:
    program = task.truth.get("program")
    if not program:
        return None
    if not task.truth.get("example") or max_calls < 1:
        return [wire.write_answer(rng.choice(_FIRST), program, True)]
    trial = f"{program}\n\n{task.truth['example']}"
    done = _attempts(trial, "I write it and try the example.", wire, run, max_calls, rng)
    return [*done, wire.write_answer(rng.choice(_TESTED), program, True)]


def _attempts(program: str, thought: str, wire: Wire, run: Run, max_calls: int, rng: random.Random) -> list[str]:
    """One call, or two of which the first fails, where the calls allow it."""
    broken = slip(program, rng) if max_calls > 1 and rng.random() < SLIPS else None
    if broken is None:
        return [wire.write_code(thought, program)]
    error = run(broken)
    found = next((name for name in _REPAIR if name and name in error), "")
    return [wire.write_code(thought, broken), wire.write_code(rng.choice(_REPAIR[found]), program)]


def slip(program: str, rng: random.Random) -> str | None:
    """The program with a mistake that stops it, or None where none fits."""
    lines = program.splitlines()
    choices = []
    if lines[0].startswith("from ") and len(lines) > 1:
        choices.append("\n".join(lines[1:]))
    if program.endswith("))"):
        choices.append(program[:-1])
    names = [n for n in ("range", "sum", "str", "len", "sorted") if re.search(rf"\b{n}\(", program)]
    if names:
        name = rng.choice(names)
        choices.append(re.sub(rf"\b{name}\(", f"{name[:-1]}(", program, count=1))
    return rng.choice(choices) if choices else None
