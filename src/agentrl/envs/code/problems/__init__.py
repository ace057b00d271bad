"""Generated problems whose answers need computation, and their held-out variants."""

from __future__ import annotations

import hashlib
import json
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from agentrl.envs.base import Task
from agentrl.envs.code.problems import trained, unseen
from agentrl.envs.code.problems.family import LARGER, LEVELS, Family, Parameters

VARIANTS: Mapping[str, str] = {
    "train": f"{len(trained.FAMILIES)} families of problems, levels {LEVELS[0]} to {LEVELS[-1]}",
    "unseen": f"{len(unseen.FAMILIES)} families that training never draws from",
    "larger": "the trained families with larger magnitudes",
    "reworded": "wordings that training never uses",
    "distracted": "facts with numbers in them that do not matter",
    "renamed": "library functions under other names; the usual names are gone",
    "one_call": "a single program may be run",
}

LENGTH = 20_000
"""Tasks in a stream; small families run out of new problems before."""

RENAMED: Mapping[str, str] = {
    "math.lcm": "shared_multiple",
    "math.comb": "selections",
    "math.gcd": "shared_divisor",
    "math.factorial": "product_to",
    "datetime.date": "Day",
}

_ASIDES = (
    "The room has {0} windows.", "Last year {0} people asked the same.", "The book lies open at page {0}.",
    "A clock on the wall has run for {0} hours.", "Bus {0} stops outside.", "There are {0} chairs and {1} tables here.",
    "The previous exercise had the answer {0}.", "Anna is {0} years old and lives at number {1}.",
)  # fmt: skip

FAMILIES: Mapping[str, Family] = {f.name: f for f in (*trained.FAMILIES, *unseen.FAMILIES)}


def tasks(variant: str, seed: int) -> Iterator[Task]:
    """Distinct tasks of a variant in an order given by the seed.

    A fifth of all parameters is kept from training by a hash that no seed changes, and only those are asked in the
    other variants. ``reworded``, ``distracted`` and ``one_call`` ask the same problems for the same seed.
    """
    families: tuple[Family, ...] = unseen.FAMILIES if variant == "unseen" else trained.FAMILIES
    if variant == "renamed":
        families = tuple(f for f in families if f.uses)
    # One stream of problems for the variants that are to be compared pair by pair.
    source = variant if variant in ("train", "unseen", "larger", "renamed") else "held out"
    rng = random.Random(f"code problems {source} {seed}")
    reserved = {"train": False, "unseen": None}.get(variant, True)
    seen: set[str] = set()
    order: list[Family] = []
    given = tries = 0
    while given < LENGTH and tries < 20 * LENGTH:
        tries += 1
        if not order:
            order = list(families)
            rng.shuffle(order)
        family = order.pop()
        level = LARGER if variant == "larger" else rng.choice(LEVELS)
        parameters = family.draw(rng, level)
        key = f"{family.name} {json.dumps(parameters, sort_keys=True, default=str)}"
        if key in seen or (reserved is not None and _reserved(key) != reserved):
            continue
        seen.add(key)
        given += 1
        yield _task(variant, family, level, parameters, key, seed)


def _reserved(key: str) -> bool:
    return hashlib.sha256(key.encode()).digest()[0] < 51


def _task(variant: str, family: Family, level: int, parameters: Parameters, key: str, seed: int) -> Task:
    words = random.Random(f"code wording {seed} {key}")
    question = words.choice(family.rewordings if variant == "reworded" else family.wordings).format(**parameters)
    meta: dict[str, Any] = {"family": family.name, "level": level}
    if variant == "distracted":
        asides = [a.format(words.randint(2, 99), words.randint(2, 99)) for a in words.sample(_ASIDES, 2)]
        question = f"{asides[0]} {question} {asides[1]}" if words.random() < 0.5 else f"{' '.join(asides)} {question}"
    if variant == "renamed":
        meta["renamed"] = {old: RENAMED[old] for old in family.uses}
        question += " " + renaming_note(meta["renamed"])
    if variant == "one_call":
        meta["max_calls"] = 1
    digest = hashlib.sha256(f"{variant} {key} {question}".encode()).hexdigest()[:12]
    return Task(
        id=f"code-{variant}-{digest}",
        question=question,
        truth={"answer": family.answer(parameters), "kind": family.kind, "programs": _programs(family, parameters)},
        variant=variant,
        split="train" if variant == "train" else "heldout",
        meta=meta,
    )


def _programs(family: Family, parameters: Parameters) -> list[str]:
    return [program.format(**parameters) for program in family.programs]


def renaming_note(renamed: Mapping[str, str]) -> str:
    """What the policy is told about renamed functions."""
    notes = [f"{old} is called {old.rpartition('.')[0]}.{new} here" for old, new in renamed.items()]
    return f"Note: {', '.join(notes)}."


def renaming_code(renamed: Mapping[str, str]) -> str:
    """The program that renames library functions before the policy's own runs."""
    lines = []
    for old, new in renamed.items():
        module, _, name = old.rpartition(".")
        lines.append(f"import {module}\n{module}.{new} = {module}.{name}\ndel {module}.{name}\ndel {module}")
    return "\n".join(lines)


def with_new_names(program: str, renamed: Mapping[str, str]) -> str:
    """A program written for the usual names, for the new ones."""
    for old, new in renamed.items():
        program = re.sub(rf"\b{re.escape(old.rpartition('.')[2])}\b", new, program)
    return program


__all__: Sequence[str] = [
    "FAMILIES", "RENAMED", "VARIANTS", "renaming_code", "renaming_note", "tasks", "with_new_names",
]  # fmt: skip
