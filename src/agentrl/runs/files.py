"""Writing files so that a kill or a full disk never leaves half of one behind."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from agentrl.errors import RunError

TEMP = ".tmp-"  # every unfinished file or folder starts with this, so that a later start can remove it
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_FULL_WORDS = ("no space left", "os error 28", "disk quota", "os error 122", "file too large", "os error 27")


def fsync_dir(folder: Path) -> None:
    """Make renames inside ``folder`` survive a power cut (a no-op where folders cannot be opened)."""
    try:
        fd = os.open(folder, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(fd)
    except OSError:
        pass  # some network file systems refuse; the rename itself is still atomic
    finally:
        os.close(fd)


def fsync_tree(folder: Path) -> None:
    """fsync every file below ``folder``, then every folder. Raises OSError (ENOSPC shows up here on some systems)."""
    for parent, _, names in os.walk(folder, topdown=False):
        for name in names:
            path = os.path.join(parent, name)
            if os.path.islink(path):
                continue
            fd = os.open(path, os.O_RDONLY)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)
        fsync_dir(Path(parent))


def write_atomic(path: Path, data: bytes) -> None:
    """Replace ``path`` by ``data`` in one step: readers see the old content or the new, never a part."""
    temp = path.parent / f"{TEMP}{path.name}-{os.getpid()}"
    try:
        with open(temp, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temp, path)
    except BaseException:
        remove(temp)
        raise
    fsync_dir(path.parent)


def write_json(path: Path, value: Any) -> None:
    """``value`` as indented JSON, atomically. NaN and infinities are refused (they are not JSON)."""
    text = json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False, default=str)
    write_atomic(path, (text + "\n").encode("utf-8", "backslashreplace"))


def append_line(path: Path, line: str) -> None:
    """Append one line with a single write, flushed to disk. If the disk is full, the file stays as it was."""
    data = (line + "\n").encode("utf-8", "backslashreplace")
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    try:
        before = os.fstat(fd).st_size
        try:
            written = os.write(fd, data)
            if written != len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
            os.fsync(fd)
        except OSError:
            os.ftruncate(fd, before)
            raise
    finally:
        os.close(fd)


def json_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The objects of a JSON-lines file; a torn last line (a kill in the middle of a write) is left out."""
    if not path.is_file():
        return
    lines = path.read_bytes().split(b"\n")
    # Without a newline at its end the last line was never finished, even if it happens to parse.
    for line in lines[:-1]:
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except ValueError:
            continue
        if isinstance(value, dict):
            yield value


def write_json_lines(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    """Replace a JSON-lines file atomically."""
    text = "".join(json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n" for row in rows)
    write_atomic(path, text.encode("utf-8", "backslashreplace"))


def link(path: Path, target: Path) -> None:
    """Point ``path`` at ``target`` (relative where possible), atomically.

    Where symbolic links are impossible, ``path`` becomes a text file holding the same relative target.
    """
    try:
        text = os.path.relpath(target.absolute(), path.parent.absolute())
    except ValueError:  # another drive
        text = str(target.absolute())
    temp = path.parent / f"{TEMP}{path.name}-{os.getpid()}"
    temp.unlink(missing_ok=True)
    try:
        os.symlink(text, temp)
    except (OSError, NotImplementedError):
        write_atomic(path, (text + "\n").encode())
        return
    try:
        os.replace(temp, path)
    except OSError:
        temp.unlink(missing_ok=True)
        raise
    fsync_dir(path.parent)


def read_link(path: Path) -> Path | None:
    """Where a link made by ``link`` points, or None when there is no such link or its target is gone."""
    if path.is_symlink():
        target = path.parent / os.readlink(path)
    elif path.is_file():
        target = path.parent / path.read_text(encoding="utf-8").strip()
    else:
        return None
    return Path(os.path.normpath(target)) if target.exists() else None


def remove_temps(folder: Path) -> None:
    """Remove what a killed process left unfinished in ``folder`` (not below it)."""
    if not folder.is_dir():
        return
    for path in folder.iterdir():
        if path.name.startswith(TEMP):
            remove(path)


def remove(path: Path) -> None:
    """Remove a file, link or folder; errors are left to the next start."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)


def disk_full(error: BaseException, folder: Path) -> bool:
    """Whether ``error`` means that no more could be written.

    safetensors and torch wrap the operating system's error in their own types, so its text, its causes and the free
    space are looked at too.
    """
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, OSError) and seen.errno in _FULL:
            return True
        if any(word in str(seen).lower() for word in _FULL_WORDS):
            return True
        seen = seen.__cause__ or seen.__context__
    return isinstance(error, (OSError, RuntimeError)) and free_bytes(folder) < 1 << 20


def free_bytes(folder: Path) -> int:
    """Bytes free for this user on the disk of ``folder``."""
    return shutil.disk_usage(folder).free


def human_bytes(n: float) -> str:
    """``n`` bytes as people read them, e.g. ``1.5 GiB``."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if n < 1024:
            return f"{n:.0f} {unit}" if unit == "B" else f"{n:.1f} {unit}"
        n /= 1024
    return f"{n:.1f} TiB"


def write_failed(what: str, error: BaseException, folder: Path) -> RunError:
    """The one-line RunError for a failed write of ``what`` below ``folder``."""
    if disk_full(error, folder):
        return RunError(f"disk full while writing {what}: {human_bytes(free_bytes(folder))} free in {folder}")
    return RunError(f"could not write {what} in {folder}: {error}")
