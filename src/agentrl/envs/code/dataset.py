"""Problems of real data sets: rows with a problem and its answer, or with a problem and hidden tests.

A row has ``problem`` (or ``question``) and ``answer``; ``id`` is optional, and so are ``kind`` (math, number, exact or
choice), ``tolerance``, ``relative_tolerance``, ``unit`` and ``choices``, which say how answers are compared. GSM8K's
own rows (the answer behind ``####``) and MATH's (the answer in the solution's last box) are read as they are, and so
are verl's (``prompt`` messages, ``reward_model.ground_truth``). A row with ``tests`` = ``{"inputs", "outputs",
"fn_name"}`` (APPS' form, also as JSON text) is a programming task.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

from agentrl.data import Rows, as_text, load_rows, parse_json
from agentrl.envs.base import Task
from agentrl.envs.code import answers
from agentrl.envs.code.equivalence import KINDS
from agentrl.envs.variant_files import listed, refuse_leaks, told_apart, under
from agentrl.errors import UserError, nearest

TRAIN = "train"
MAX_TESTS = 50


class ProblemFiles:
    """Problem files: those that training draws from and, per held-out variant, one or more. Read when first needed.

    Args:
        train: files or Hub ids that make the variant ``train``.
        heldout: variant name → files.
        root: folder that relative paths are relative to; None is the working directory.
    """

    def __init__(self, train: Sequence[str], heldout: Mapping[str, str | Sequence[str]], root: str | None = None):
        if TRAIN in heldout:
            raise UserError(f"heldout: the name {TRAIN!r} is taken by the training variant; choose another")
        self._root = Path(root).expanduser() if root else None
        self._files = {TRAIN: listed(train)} | {name: listed(files) for name, files in heldout.items()}
        for name, files in self._files.items():
            if not files:
                raise UserError(f"{name}: names no file")
        self._rows: dict[str, Rows] = {}
        self._by_variant: dict[str, list[Task]] = {}

    def variants(self) -> dict[str, str]:
        """Variant name → description, ``train`` first."""
        return {name: f"problems of {', '.join(files)}" for name, files in self._files.items()}

    def tasks(self, variant: str, seed: int) -> Iterator[Task]:
        """The distinct tasks of a variant, once each, in an order drawn from ``seed``.

        Raises UserError when a held-out problem also stands in a training file (compared without case, punctuation
        and spacing).
        """
        tasks = self._load(variant)
        if variant != TRAIN:
            refuse_leaks(variant, tasks, self._load(TRAIN), "problems")
        return iter(sorted(tasks, key=lambda task: hashlib.sha256(f"{seed}:{task.hash}".encode()).digest()))

    def data_hashes(self) -> dict[str, str]:
        """File → hash of its content."""
        return {file: self._read(file).hash for files in self._files.values() for file in files}

    def _load(self, variant: str) -> list[Task]:
        if variant not in self._by_variant:
            tasks: dict[str, Task] = {}
            for file in self._files[variant]:
                for task in problem_tasks(self._read(file), file, variant):
                    tasks.setdefault(task.hash, task)
            self._by_variant[variant] = told_apart(tasks.values())
        return self._by_variant[variant]

    def _read(self, file: str) -> Rows:
        if file not in self._rows:
            self._rows[file] = load_rows(under(self._root, file))
        return self._rows[file]


def problem_tasks(rows: Rows, name: str, variant: str) -> list[Task]:
    """One task a row. Raises UserError naming file, line and field."""
    stem = name if ":" in name else Path(name).name.partition(".")[0]
    found = []
    for i, row in enumerate(rows):
        where = rows.where(i)
        key = as_text(row["id"], f"{where}: field 'id'") if row.get("id") is not None else str(i)
        found.append(
            Task(
                id=f"{stem}/{key}",
                question=_problem(row, where),
                truth=_tests(row["tests"], where) if row.get("tests") is not None else _truth(row, where),
                variant=variant,
                split=TRAIN if variant == TRAIN else "heldout",
            )
        )
    return found


def _problem(row: Mapping[str, Any], where: str) -> str:
    field = next((f for f in ("problem", "question", "prompt") if row.get(f) is not None), None)
    if field is None:
        raise UserError(f"{where}: field 'problem' is missing; found: {', '.join(map(str, row))}")
    value = row[field]
    if isinstance(value, (list, tuple)):  # chat messages
        value = "\n".join(
            str(m.get("content", "")) for m in value if isinstance(m, Mapping) and m.get("role") == "user"
        )
    text = as_text(value, f"{where}: field '{field}'").strip()
    if not text:
        raise UserError(f"{where}: field '{field}' is empty")
    return text


def _truth(row: Mapping[str, Any], where: str) -> dict[str, Any]:
    truth: dict[str, Any] = {"answer": _gold(row, where)}
    kind = row.get("kind") or ("choice" if row.get("choices") else "math")
    if kind not in KINDS:
        raise UserError(f"{where}: field 'kind': {kind!r} is not a kind of answer; {nearest(str(kind), KINDS)}")
    truth["kind"] = kind
    for field, key in (("tolerance", "tolerance"), ("relative_tolerance", "relative")):
        if row.get(field) is not None:
            text = as_text(row[field], f"{where}: field '{field}'")
            try:
                valid = Fraction(text) >= 0
            except (ValueError, ZeroDivisionError):
                valid = False
            if not valid:
                raise UserError(f"{where}: field '{field}' must be a number of at least 0, found {text!r}")
            truth[key] = text
    if row.get("unit"):
        truth["unit"] = as_text(row["unit"], f"{where}: field 'unit'").strip()
    if row.get("choices"):
        if isinstance(row["choices"], (str, Mapping)):
            raise UserError(f"{where}: field 'choices' must be a list of texts")
        truth["choices"] = [as_text(c, f"{where}: field 'choices'") for c in row["choices"]]
    return truth


def _gold(row: Mapping[str, Any], where: str) -> str | list[str]:
    if row.get("answer") is not None:
        value, field = row["answer"], "answer"
    elif isinstance(row.get("reward_model"), Mapping):
        value, field = row["reward_model"].get("ground_truth"), "reward_model.ground_truth"
    elif row.get("solution") is not None:
        value, field = _boxed(as_text(row["solution"], f"{where}: field 'solution'"), where), "solution"
    else:
        raise UserError(f"{where}: field 'answer' is missing; found: {', '.join(map(str, row))}")
    values = value if isinstance(value, (list, tuple)) else [value]
    golds = [as_text(v, f"{where}: field '{field}'").strip() for v in values]
    golds = [g.rpartition("####")[2].strip().replace(",", "") if "####" in g else g for g in golds]
    if not golds or not all(golds):
        raise UserError(f"{where}: field '{field}' holds {'no' if not golds else 'an empty'} answer")
    return golds[0] if len(golds) == 1 else golds


def _boxed(solution: str, where: str) -> str:
    try:
        found = answers.boxed(solution)
    except answers.Unclosed:
        found = None
    if not found:
        raise UserError(f"{where}: there is no 'answer', and the 'solution' has no \\boxed{{…}} that closes")
    return found


def _tests(value: Any, where: str) -> dict[str, Any]:
    tests = parse_json(value, f"{where}: field 'tests'") if isinstance(value, str) else value
    if not isinstance(tests, Mapping) or "inputs" not in tests or "outputs" not in tests:
        raise UserError(f"{where}: field 'tests' must hold 'inputs' and 'outputs'")
    inputs, outputs = list(tests["inputs"]), list(tests["outputs"])
    if not inputs or len(inputs) != len(outputs):
        raise UserError(f"{where}: field 'tests' has {len(inputs)} inputs and {len(outputs)} outputs")
    entry = tests.get("fn_name")
    if entry is not None and not (isinstance(entry, str) and entry.isidentifier()):
        raise UserError(f"{where}: field 'tests.fn_name' must be the name of a function, found {entry!r}")
    if entry is not None and not all(isinstance(i, list) for i in inputs):
        raise UserError(f"{where}: field 'tests.inputs' must hold one list of arguments a call")
    if entry is None and not all(isinstance(v, str) for v in (*inputs, *outputs)):
        raise UserError(f"{where}: field 'tests' without 'fn_name' holds texts: standard input and what to print")
    return {"entry": entry, "inputs": inputs[:MAX_TESTS], "outputs": outputs[:MAX_TESTS]}
