"""A folder of things built once: written atomically, checked on the way in, rebuilt when damaged."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import tempfile
import warnings
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from agentrl.errors import RunError

T = TypeVar("T")
MANIFEST = "manifest.json"


def default_cache() -> Path:
    """``$AGENTRL_CACHE``, else ``~/.cache/agentrl``."""
    return Path(os.environ.get("AGENTRL_CACHE") or Path.home() / ".cache" / "agentrl").expanduser()


def cached(cache: Path, key: str, build: Callable[[Path], None], load: Callable[[Path], T]) -> T:
    """Load ``cache/key``, building it first when it is absent or damaged.

    ``build`` writes files into the empty folder it is given. Processes that want the same key wait for one another.
    Where the cache cannot be written, the thing is built in a temporary folder for this process, with a warning.
    """
    folder = cache / key
    try:
        cache.mkdir(parents=True, exist_ok=True)
        lock = (cache / f"{key}.lock").open("w")
    except OSError as error:
        warnings.warn(f"cache {cache} cannot be written ({error.strerror}): building for this run only", stacklevel=2)
        with tempfile.TemporaryDirectory() as temporary:  # mapped files stay readable after their names are gone
            build(Path(temporary))
            return load(Path(temporary))
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # until the file is closed, also by the end of the process
        if folder.exists():
            try:
                _check(folder)
                return load(folder)
            except Exception as error:  # whatever a damaged file makes its reader raise
                warnings.warn(f"cache {folder} is damaged ({error}): building it again", stacklevel=2)
                shutil.rmtree(folder)
        fresh = Path(tempfile.mkdtemp(prefix=f"{key}-", suffix=".tmp", dir=cache))
        try:
            build(fresh)
            sums = {path.name: _sum(path) for path in sorted(fresh.iterdir())}
            (fresh / MANIFEST).write_text(json.dumps(sums))
            os.replace(fresh, folder)
        except OSError as error:
            shutil.rmtree(fresh, ignore_errors=True)
            raise RunError(f"cache {cache}: {error.strerror or error}; AGENTRL_CACHE names another folder") from error
        except BaseException:
            shutil.rmtree(fresh, ignore_errors=True)
            raise
        return load(folder)


def _sum(path: Path) -> list[int]:
    """[size in bytes, CRC-32]: guards against truncation and bit rot, not against an attacker."""
    crc = size = 0
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            crc = zlib.crc32(block, crc)
            size += len(block)
    return [size, crc]


def _check(folder: Path) -> None:
    for name, expected in json.loads((folder / MANIFEST).read_text()).items():
        if _sum(folder / name) != expected:
            raise ValueError(f"{name} is not what was written")
