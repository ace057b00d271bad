"""Where YAML files come from, and which choices each group has. Only lists folders, so `--help` can use it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from agentrl.errors import UserError

GROUPS = ("env", "reward", "algo", "model", "engine", "price", "experiment")


def shipped_folder() -> Path:
    """The configs that come with the package: inside the wheel, or at the top of a source checkout."""
    package = Path(__file__).resolve().parents[1]
    inside = package / "configs"
    return inside if (inside / "config.yaml").is_file() else package.parents[1] / "configs"


def config_folders(extra: Sequence[str | Path] = ()) -> list[Path]:
    """Folders to look in, first wins: ``extra`` (--config-dir), ``./configs``, then the shipped ones.

    Raises UserError when a folder of ``extra`` does not exist.
    """
    for folder in extra:
        if not Path(folder).is_dir():
            raise UserError(f"--config-dir {folder}: there is no such folder")
    found: list[Path] = []
    for folder in [*map(Path, extra), Path("configs"), shipped_folder()]:
        resolved = folder.resolve()
        if resolved.is_dir() and resolved not in found:
            found.append(resolved)
    return found


def group_choices(folders: Sequence[Path]) -> dict[str, list[str]]:
    """Group → names of its choices, over all folders. Groups that a user added are listed after the known ones."""
    groups: dict[str, set[str]] = {group: set() for group in GROUPS}
    for folder in folders:
        for sub in sorted(p for p in folder.iterdir() if p.is_dir()):
            names = {p.stem for p in sub.glob("*.yaml")}
            if names:
                groups.setdefault(sub.name, set()).update(names)
    return {group: sorted(names) for group, names in groups.items()}
