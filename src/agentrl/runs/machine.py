"""What a run stands on, for run.json: package versions, git state, hardware."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

_PACKAGES = (
    "agentrl-harness",
    "torch",
    "transformers",
    "tokenizers",
    "accelerate",
    "peft",
    "safetensors",
    "datasets",
    "pyarrow",
    "numpy",
    "hydra-core",
    "omegaconf",
    "bm25s",
)


def versions() -> dict[str, str]:
    """Version of Python and of every installed package that shapes results."""
    found = {"python": platform.python_version()}
    for name in _PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


def git_state(folder: Path | None = None) -> dict[str, Any] | None:
    """Commit, branch, whether tracked files differ, of the repository around ``folder`` (default: here); None else."""
    where = str(folder or Path.cwd())

    def git(*args: str) -> str | None:
        try:
            done = subprocess.run(["git", "-C", where, *args], capture_output=True, text=True, timeout=10)
        except (OSError, subprocess.TimeoutExpired):
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    commit = git("rev-parse", "HEAD")
    if commit is None:
        return None
    changes = git("status", "--porcelain", "--untracked-files=no")
    return {
        "commit": commit,
        "branch": git("rev-parse", "--abbrev-ref", "HEAD"),
        "dirty": None if changes is None else bool(changes),
    }


def cores() -> int:
    """CPU cores that this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:
        return os.cpu_count() or 1


def _cpu_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _memory() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return None


def hardware() -> dict[str, Any]:
    """System, CPU, cores, memory in bytes, and GPUs (only when torch is loaded already: this imports nothing heavy)."""
    gpus: list[str] = []
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return {
        "system": platform.platform(),
        "cpu": _cpu_name(),
        "cores": cores(),
        "memory_bytes": _memory(),
        "gpus": gpus,
    }
