"""Panels: fixed, hashed sets of tasks that policies are compared on, kept apart from what was trained on.

The rule. A run that learns from tasks (SFT or RL) appends the hash of each of them to RUN/task_hashes.txt
(`record_hashes`) and names the checkpoint it began from in run.json["starts_from"]. From a checkpoint folder
RUN/checkpoints/step-NNNNNN the evaluation follows these links back and knows every task in the policy's history.
A held-out task among them stops the evaluation; a task of the training variant among them is replaced by a fresh one.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from agentrl.config.schema import EvalConfig
from agentrl.envs.base import EnvSpec, Task
from agentrl.errors import UserError, nearest

HASH_FILE = "task_hashes.txt"
_HASH = re.compile(r"[0-9a-f]{16}")


@dataclass(frozen=True)
class Panel:
    """Tasks of one variant, distinct by hash. Two panels are the same exactly when their hashes are equal."""

    variant: str
    split: str  # "train" | "heldout"
    tasks: tuple[Task, ...]
    requested: int
    replaced: int = 0  # tasks of the training variant left out because they were trained on

    @property
    def hash(self) -> str:
        """16 hex digits over the task hashes, in any order."""
        return hashlib.sha256("\n".join(sorted(t.hash for t in self.tasks)).encode()).hexdigest()[:16]

    def first(self, n: int | None) -> Panel:
        """The panel of its first ``n`` tasks; None means all."""
        return self if n is None or n >= len(self.tasks) else replace(self, tasks=self.tasks[:n], requested=n)

    @property
    def note(self) -> str | None:
        """What a reader of the panel's numbers must know, or None."""
        notes = []
        if self.replaced:
            notes.append(f"{self.replaced} trained-on tasks replaced by fresh ones")
        if len(self.tasks) < self.requested:
            notes.append(f"only {len(self.tasks)} of {self.requested} tasks: the variant has no more")
        return "; ".join(notes) or None


@dataclass
class History:
    """The tasks that a policy, and every checkpoint it began from, learned on."""

    hashes: set[str] = field(default_factory=set)
    runs: list[str] = field(default_factory=list)
    gaps: list[str] = field(default_factory=list)  # why some part of the history is not known

    def merge(self, other: History) -> None:
        self.hashes |= other.hashes
        self.runs += [r for r in other.runs if r not in self.runs]
        self.gaps += [g for g in other.gaps if g not in self.gaps]


def build_panel(spec: EnvSpec, variant: str, n: int, seed: int, trained_on: AbstractSet[str] = frozenset()) -> Panel:
    """The first n distinct tasks of ``spec.tasks(variant, seed)``; the same arguments give the same panel.

    Raises UserError when the variant does not exist or a held-out task was trained on. A stream that ends early gives
    a shorter, possibly empty, panel that says so.
    """
    if variant not in spec.variants():
        raise UserError(f"eval.variants: {spec.name} has no variant '{variant}'; {nearest(variant, spec.variants())}")
    if n < 1:
        raise UserError(f"eval.tasks={n}: a panel needs at least one task")
    heldout = variant != spec.train_variant
    tasks: dict[str, Task] = {}
    replaced: set[str] = set()
    # A stream may be endless, so drawing is bounded: it can repeat itself and be trained on only so often.
    drawn_limit = 4 * (n + len(trained_on)) + 1000
    for drawn, task in enumerate(spec.tasks(variant, seed)):
        if task.hash in trained_on:
            if heldout:
                raise UserError(
                    f"held-out task {task.id} (hash {task.hash}) of variant {variant!r} was trained on: "
                    "its score would not be a held-out number. Train without it, or leave the variant out"
                )
            replaced.add(task.hash)
        else:
            tasks.setdefault(task.hash, task)
        if len(tasks) == n or drawn + 1 >= drawn_limit:
            break
    return Panel(variant, "heldout" if heldout else "train", tuple(tasks.values()), n, len(replaced))


def choose_variants(spec: EnvSpec, names: Sequence[str] | None, heldout: bool) -> list[str]:
    """The variants to evaluate: ``names`` if given, else the training variant, and with ``heldout`` all others."""
    if names is not None:
        if not names:
            raise UserError("eval.variants is empty; null means the training variant, plus all others with --heldout")
        return list(dict.fromkeys(names))
    others = [v for v in spec.variants() if v != spec.train_variant]
    return [spec.train_variant, *(others if heldout else [])]


def eval_panels(
    spec: EnvSpec, cfg: EvalConfig, heldout: bool, trained_on: AbstractSet[str] = frozenset()
) -> list[Panel]:
    """The panels that a config asks for, in the order of the variants. Raises UserError."""
    for variant, n in cfg.variant_tasks.items():
        if variant not in spec.variants():
            raise UserError(
                f"eval.variant_tasks: {spec.name} has no variant '{variant}'; {nearest(variant, spec.variants())}"
            )
        if n < 1:
            raise UserError(f"eval.variant_tasks.{variant}={n}: a panel needs at least one task")
    return [
        build_panel(spec, variant, cfg.variant_tasks.get(variant, cfg.tasks), cfg.seed, trained_on)
        for variant in choose_variants(spec, cfg.variants, heldout)
    ]


def record_hashes(run_dir: Path, tasks: Iterable[Task]) -> None:
    """Append the tasks' hashes to RUN/task_hashes.txt, before they are learned from. Repeats do no harm."""
    append_hashes(run_dir, (task.hash for task in tasks))


def append_hashes(run_dir: Path, hashes: Iterable[str]) -> None:
    """``record_hashes`` for tasks of which only the hash is known."""
    path = run_dir / HASH_FILE
    lines = "".join(f"{task_hash}\n" for task_hash in hashes)
    with path.open("ab+") as file:
        # A kill may have left half a line: do not let it swallow the next hash.
        if file.tell() > 0:
            file.seek(-1, 2)
            if file.read(1) != b"\n":
                lines = "\n" + lines
        file.write(lines.encode())


def history_of(checkpoint: str | Path | None) -> History:
    """Follow a checkpoint folder back through run.json["starts_from"] and collect every trained task's hash.

    What cannot be followed (a folder that is gone, a run without the file) is named in ``gaps``. None, or a model at
    the end of the chain that lies in no run folder, is a base model and has no history.
    """
    history = History()
    seen: set[Path] = set()
    source: str | Path | None = checkpoint
    base = Path.cwd()
    while source is not None:
        run = _run_of(source, base)
        if run is None:
            gap = _why_unknown(source, base, first=not history.runs)
            if gap:
                history.gaps.append(f"{source} {gap}: what it was trained on is not known")
            break
        if run in seen:
            break
        seen.add(run)
        history.runs.append(str(run))
        file = run / HASH_FILE
        if file.is_file():
            history.hashes |= {line for line in file.read_text().split() if _HASH.fullmatch(line)}
        else:
            history.gaps.append(f"{run} has no {HASH_FILE}: what it was trained on is not known")
        source, base = _starts_from(run), run
    return history


def _run_of(source: str | Path, base: Path) -> Path | None:
    """The run folder that a checkpoint (or run) folder belongs to; None for a base model."""
    for folder in (Path(source), base / source):
        if folder.is_dir():
            folder = folder.resolve()
            for candidate in (folder, folder.parent.parent):
                if (candidate / "run.json").is_file() or (candidate / HASH_FILE).is_file():
                    return candidate
    return None


def _why_unknown(source: str | Path, base: Path, first: bool) -> str | None:
    exists = Path(source).is_dir() or (base / source).is_dir()
    if exists:
        return "lies in no run folder" if first else None  # at the end of a chain this is the base model
    is_path = Path(source).is_absolute() or "checkpoints" in Path(source).parts  # else a Hub id
    return "is gone" if is_path else None


def _starts_from(run: Path) -> str | None:
    try:
        facts: dict[str, Any] = json.loads((run / "run.json").read_text())
    except (OSError, ValueError):
        return None
    value = facts.get("starts_from")
    return str(value) if value else None
