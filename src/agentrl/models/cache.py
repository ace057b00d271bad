"""Where converted and generated models are kept, and how a folder appears there all at once."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path


def cache_folder() -> Path:
    """``$AGENTRL_CACHE`` or ``~/.cache/agentrl``, with ``/models``."""
    return Path(os.environ.get("AGENTRL_CACHE") or Path.home() / ".cache" / "agentrl").expanduser() / "models"


def build_once(name: str, write: Callable[[Path], None]) -> Path:
    """The cached model folder `name`; if it is not there yet, ``write(temporary folder)`` makes it.

    The folder is renamed into place when it is complete, so it is never seen half written, and when two processes
    build it at once the first to finish wins.
    """
    target = cache_folder() / name
    if (target / "config.json").is_file():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=target.parent))
    try:
        write(work)
        work.chmod(0o755)
        try:
            work.rename(target)
        except OSError:
            if not (target / "config.json").is_file():
                raise
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return target
