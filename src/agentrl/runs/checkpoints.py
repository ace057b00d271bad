"""Checkpoints that are whole or not there: temp folder, fsync, rename.

A checkpoint is ``checkpoints/step-NNNNNN`` with a ``checkpoint.json`` written last, which lists every file and its
size; a folder without it, or with a file missing or cut short, is never picked. ``checkpoints/last`` and
``checkpoints/best`` are relative links to the newest and to the best one.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from agentrl.errors import RunError
from agentrl.runs import files

MARKER = "checkpoint.json"
_STEP = re.compile(r"step-(\d+)")
_OLD = ".old-"  # a checkpoint being replaced by a new one of the same step


class CheckpointStore:
    """The checkpoints of one run.

    ``folder`` is the run's folder. Reading never changes anything, so that `eval` and `inspect` may look while training
    writes; ``clean`` and ``save`` are for the one process that owns the run.
    """

    def __init__(self, folder: Path | str) -> None:
        self.run = Path(folder)
        self.folder = self.run / "checkpoints"

    def path(self, step: int) -> Path:
        return self.folder / f"step-{step:06d}"

    def steps(self) -> list[int]:
        """Steps with a complete checkpoint, ascending."""
        if not self.folder.is_dir():
            return []
        return sorted(marker["step"] for path in self.folder.iterdir() if (marker := read_marker(path)) is not None)

    def last(self) -> Path | None:
        """The newest complete checkpoint."""
        steps = self.steps()
        return self.path(steps[-1]) if steps else None

    def best(self) -> Path | None:
        """The checkpoint most recently saved or marked as best, or None."""
        best = self._best_step()
        return None if best is None else self.path(best)

    def _best_step(self) -> int | None:
        marked = [s for s in self.steps() if (read_marker(self.path(s)) or {}).get("best")]
        return marked[-1] if marked else None

    def save(self, step: int, write: Callable[[Path], None], keep: int, best: bool = False) -> Path:
        """Save a checkpoint atomically and return its folder.

        ``write`` fills the empty folder that it is given. ``best`` marks it as the best in the same atomic step, so a
        kill cannot separate the two. Afterwards at most ``keep`` older ones remain besides last and best. Raises
        RunError when the disk is full or refuses; every older checkpoint is then still there and no half-written one.
        """
        self.clean()
        temp = self.folder / f"{files.TEMP}step-{step:06d}"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            temp.mkdir()
            write(temp)
            files.fsync_tree(temp)
            marker = {"step": step, "best": best, "saved": time.time(), "files": _sizes(temp)}
            files.write_json(temp / MARKER, marker)
            final = self.path(step)
            if final.exists():
                os.rename(final, self.folder / f"{_OLD}{final.name}")
            os.rename(temp, final)
        except BaseException as error:
            free = files.human_bytes(files.free_bytes(self.run))
            full = files.disk_full(error, self.run)
            _free(temp)
            if full or isinstance(error, OSError):
                why = (
                    f"disk full while saving step {step}: {free} free in {self.folder}"
                    if full
                    else (f"could not save step {step} in {self.folder}: {error}")
                )
                raise RunError(f"{why}; {self._advice()}") from error
            raise
        files.fsync_dir(self.folder)
        self._settle()
        self._prune(keep)
        return final

    def _advice(self) -> str:
        last = self.last()
        if last is None:
            return "no checkpoint was saved before; make room and start again"
        return f"last good checkpoint is {last}; make room and continue with run.resume={self.run}"

    def mark_best(self, step: int) -> None:
        """Make the (complete) checkpoint of ``step`` the best one. ValueError when there is none."""
        marker = read_marker(self.path(step))
        if marker is None:
            raise ValueError(f"no complete checkpoint of step {step} in {self.folder}")
        for other in self.steps():  # a later one may have been best before; only one carries the mark
            if other > step and (found := read_marker(self.path(other))) and found["best"]:
                files.write_json(self.path(other) / MARKER, {**found, "best": False})
        files.write_json(self.path(step) / MARKER, {**marker, "best": True})
        self._settle()

    def rewind(self, step: int) -> None:
        """Remove checkpoints after ``step`` (a run that goes on from an older one would meet them again)."""
        for later in self.steps():
            if later > step:
                self._drop(self.path(later))
        self.clean()

    def clean(self) -> None:
        """Remove what killed saves left, put back what a killed replacement moved away, and repair the links."""
        if not self.folder.is_dir():
            return
        for path in list(self.folder.glob(f"{_OLD}*")):
            final = self.folder / path.name[len(_OLD) :]
            if final.exists():
                files.remove(path)
            else:
                os.rename(path, final)
        files.remove_temps(self.folder)
        self._settle()

    def _settle(self) -> None:
        for old in self.folder.glob(f"{_OLD}*"):
            files.remove(old)
        for name, target in (("last", self.last()), ("best", self.best())):
            path = self.folder / name
            if target is None:
                if path.is_symlink() or path.is_file():
                    path.unlink()
            elif files.read_link(path) != target:
                # The links are a convenience derived from the markers: the next start repairs them.
                with contextlib.suppress(OSError):
                    files.link(path, target)

    def _prune(self, keep: int) -> None:
        steps = self.steps()
        kept = {steps[-1], self._best_step()} if steps else set()
        others = [s for s in steps if s not in kept]
        for step in others[: max(0, len(others) - keep)]:
            self._drop(self.path(step))

    def _drop(self, path: Path) -> None:
        # Rename first: a kill in the middle of the removal must not leave a half-removed checkpoint under its name.
        temp = path.with_name(f"{files.TEMP}drop-{path.name}")
        try:
            os.rename(path, temp)
        except OSError:
            return
        files.remove(temp)


def _free(folder: Path) -> None:
    """Remove a failed save. Files are emptied first: a writer that failed may still hold one open, and its space."""
    for path in folder.rglob("*"):
        if path.is_file() and not path.is_symlink():
            with contextlib.suppress(OSError):
                os.truncate(path, 0)
    files.remove(folder)


def _sizes(folder: Path) -> dict[str, int]:
    return {
        p.relative_to(folder).as_posix(): p.stat().st_size
        for p in sorted(folder.rglob("*"))
        if p.is_file() and p.name != MARKER
    }


def read_marker(folder: Path) -> dict[str, Any] | None:
    """The marker of a complete checkpoint folder (``step``, ``best``, ``saved``: Unix time, ``files``), else None."""
    if not _STEP.fullmatch(folder.name) or folder.is_symlink() or not folder.is_dir():
        return None
    try:
        marker = json.loads((folder / MARKER).read_text(encoding="utf-8"))
        for name, size in marker["files"].items():
            if (folder / name).stat().st_size != size:
                return None
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return dict(marker)


def resolve_checkpoint(path: str | Path) -> Path:
    """The checkpoint folder that a user's ``path`` means: a run folder stands for its last checkpoint, links are
    followed. A path that does not exist is given back.
    """
    folder = Path(path).expanduser()
    if not (folder / "config.json").is_file() and (last := CheckpointStore(folder).last()) is not None:
        folder = last
    return folder.resolve() if folder.exists() else folder


def newest(root: Path | str, stage: str, env: str, model: str) -> Path | None:
    """The most recently saved complete checkpoint of ``stage`` for that environment and model, or None.

    Looks at every run folder up to four levels below ``root`` and at the run that ``root/latest`` points to. ``model``
    is compared with the run's ``model`` as `folder.model_key` gives it.
    """
    from agentrl.runs.folder import find_runs  # folder imports this module

    found: list[tuple[float, Path]] = []
    for run, facts in find_runs(root):
        if (facts.get("stage"), facts.get("env"), facts.get("model")) != (stage, env, model):
            continue
        store = CheckpointStore(run)
        last = store.last()
        marker = read_marker(last) if last else None
        if last is not None and marker is not None:
            found.append((marker["saved"], last))
    return max(found)[1] if found else None
