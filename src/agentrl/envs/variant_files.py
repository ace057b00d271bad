"""What environments that read their tasks from files share: where the files lie, and that variants do not overlap."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from agentrl.envs.base import Task
from agentrl.errors import UserError


def listed(files: str | Sequence[str]) -> list[str]:
    """One file or several, as a list."""
    return [files] if isinstance(files, str) else [str(file) for file in files]


def under(root: Path | None, file: str) -> str:
    """``file`` under the root where it exists there or looks like a path; a Hub id stays as it is."""
    if root is None:
        return file
    path = root / Path(file).expanduser()
    looks_local = path.exists() or file.count("/") != 1 or "." in file.rpartition("/")[2]
    return str(path) if looks_local else file


def told_apart(tasks: Iterable[Task]) -> list[Task]:
    """The tasks; an id that stood before gets a number (files of one name may each begin at row 0): ``dev/0#2``."""
    seen: Counter[str] = Counter()
    found = []
    for task in tasks:
        seen[task.id] += 1
        found.append(task if seen[task.id] == 1 else replace(task, id=f"{task.id}#{seen[task.id]}"))
    return found


def refuse_leaks(variant: str, heldout: Sequence[Task], training: Sequence[Task], noun: str) -> None:
    """UserError when a held-out task's question stands in the training files too, apart from case and punctuation.

    ``noun`` is what the environment calls its tasks, in the plural.
    """
    trained = {_plain(task.question): task for task in training}
    shared = [(task, trained[_plain(task.question)]) for task in heldout if _plain(task.question) in trained]
    if shared:
        task, twin = shared[0]
        raise UserError(
            f"held-out variant {variant!r}: {len(shared)} of its {noun} stand in the training files, "
            f"the first being {task.id} = {twin.id} ({task.question[:80]!r}); take them out of one side"
        )


def _plain(question: str) -> str:
    return " ".join(re.findall(r"\w+", question.lower()))
