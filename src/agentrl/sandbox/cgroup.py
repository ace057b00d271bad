"""Control groups of level 3: memory of a whole sandbox with its files, number of processes, one core."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import threading
from collections.abc import Mapping
from pathlib import Path

PERIOD_US = 100_000
# The kernel's names by version.
FILES = {
    1: {
        "memory": "memory.limit_in_bytes",
        "pids": "pids.max",
        "cpu": "cpu.cfs_quota_us",
        "events": "memory.oom_control",
    },
    2: {"memory": "memory.max", "pids": "pids.max", "cpu": "cpu.max", "events": "memory.events"},
}


class Cgroups:
    """One group per slot, made on first use below one folder per controller. Thread-safe.

    Removed by the keeper of the fork server when that ends, and by :meth:`remove`.
    """

    def __init__(self, memory_bytes: int, processes: int):
        """Raises OSError where there is no control group that can be written, with memory and pids."""
        self._memory_bytes = memory_bytes
        self._processes = processes
        self._lock = threading.Lock()
        self._fds: dict[int, list[int]] = {}
        self._current: dict[int, int] = {}  # memory limit of each slot
        self._kills: dict[int, int] = {}
        self.version, parents = _parents()
        name = f"agentrl-{os.getpid()}-{secrets.token_hex(4)}"
        self._folders = {controller: parent / name for controller, parent in parents.items()}
        try:
            for folder in dict.fromkeys(self._folders.values()):
                folder.mkdir()
                if self.version == 2:
                    with contextlib.suppress(OSError):
                        (folder / "cgroup.subtree_control").write_text("+cpu")
                    (folder / "cgroup.subtree_control").write_text("+memory +pids")
            self.enter(0)
        except BaseException:
            self.remove()
            raise

    @property
    def folders(self) -> list[str]:
        """What must be removed at the end, after the folders in them."""
        return [str(folder) for folder in dict.fromkeys(self._folders.values())]

    def enter(self, slot: int) -> list[int]:
        """Descriptors on which a process writes ``0`` to join the slot's groups, with the default limits set."""
        with self._lock:
            if slot not in self._fds:
                for folder in self._slot(slot).values():
                    folder.mkdir(exist_ok=True)
                self._set(slot, "pids", str(self._processes + 4))
                quota = f"{PERIOD_US} {PERIOD_US}" if self.version == 2 else str(PERIOD_US)
                with contextlib.suppress(OSError, KeyError):
                    self._set(slot, "cpu", quota)
                places = dict.fromkeys(self._slot(slot).values())
                self._fds[slot] = [os.open(folder / "cgroup.procs", os.O_WRONLY | os.O_CLOEXEC) for folder in places]
        self.limit_memory(slot, self._memory_bytes)
        return self._fds[slot]

    def limit_memory(self, slot: int, memory_bytes: int) -> None:
        """Memory without swap. Raises OSError."""
        before = self._current.get(slot, 0)
        if before == memory_bytes:
            return
        # Version 1 limits the sum of memory and swap, which must never be below the limit of memory.
        if memory_bytes > before:
            self._limit_swap(slot, memory_bytes)
        self._set(slot, "memory", str(memory_bytes))
        self._limit_swap(slot, memory_bytes)
        self._current[slot] = memory_bytes

    def _limit_swap(self, slot: int, memory_bytes: int) -> None:
        name, value = ("memory.swap.max", 0) if self.version == 2 else ("memory.memsw.limit_in_bytes", memory_bytes)
        with contextlib.suppress(OSError):  # a kernel without swap accounting has no such file
            (self._slot(slot)["memory"] / name).write_text(str(value))

    def oom_killed(self, slot: int) -> bool:
        """Whether the kernel has killed a process of the slot for its memory since this was last asked."""
        text = (self._slot(slot)["memory"] / FILES[self.version]["events"]).read_text()
        found = re.search(r"oom_kill (\d+)", text)
        kills = int(found.group(1)) if found else 0
        before, self._kills[slot] = self._kills.get(slot, 0), kills
        return kills > before

    def remove(self) -> None:
        for fds in self._fds.values():
            for fd in fds:
                os.close(fd)
        self._fds.clear()
        for folder in self._folders.values():
            with contextlib.suppress(OSError):
                for inner in [p for p in folder.iterdir() if p.is_dir()]:
                    with contextlib.suppress(OSError):
                        inner.rmdir()
                folder.rmdir()

    def _slot(self, slot: int) -> Mapping[str, Path]:
        return {controller: folder / f"slot-{slot}" for controller, folder in self._folders.items()}

    def _set(self, slot: int, controller: str, value: str) -> None:
        (self._slot(slot)[controller] / FILES[self.version][controller]).write_text(value)


def _parents() -> tuple[int, dict[str, Path]]:
    """(version, controller -> a folder below which groups can be made). Raises OSError."""
    mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    own = {}
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, names, path = line.split(":", 2)
        own.update(dict.fromkeys(names.split(","), path))
    unified = next((Path(m[1]) for m in mounts if m[2] == "cgroup2"), None)
    if unified is not None and "" in own:
        # Groups below our own need a delegated one without processes in its middle; root may start at the top.
        for parent in (unified / own[""].lstrip("/"), unified):
            with contextlib.suppress(OSError):
                enabled = set((parent / "cgroup.subtree_control").read_text().split())
                if {"memory", "pids"} <= enabled and os.access(parent, os.W_OK):
                    return 2, dict.fromkeys(("memory", "pids", "cpu"), parent)
    found: dict[str, Path] = {}
    for controller in ("memory", "pids", "cpu"):
        for mount in mounts:
            if mount[2] == "cgroup" and controller in mount[3].split(","):
                found[controller] = Path(mount[1]) / own.get(controller, "/").lstrip("/")
    writable = {controller: path for controller, path in found.items() if os.access(path, os.W_OK)}
    if not {"memory", "pids"} <= writable.keys():
        raise OSError("no control group with memory and pids that this user can write to")
    return 1, writable
