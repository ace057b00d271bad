"""One fork server as the harness holds it, and the prepared sandboxes it has made."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from typing import Any

from agentrl.sandbox.cgroup import Cgroups
from agentrl.sandbox.jail import wire
from agentrl.sandbox.jail.cells import STOP
from agentrl.sandbox.jail.wire import FAILED, READY, Report
from agentrl.sandbox.result import Limits

START_S = 300.0  # to import the preload; a busy machine can need minutes
PREPARE_S = 120.0
BOOT = os.path.join(os.path.dirname(os.path.abspath(wire.__file__)), "boot.py")
# Nothing of the trainer's environment. With a fixed hash seed, sets of strings have the same order in every program.
ENVIRONMENT = {
    "LANG": "C.UTF-8",
    "PATH": "/usr/bin:/bin",
    "PYTHONHASHSEED": "0",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "MALLOC_ARENA_MAX": "1",  # or every thread reserves 64 MiB of its address space limit
}


class WorkerFailed(Exception):
    """The fork server could not start or could not make a sandbox, or a sandbox ended without a report."""


class WorkerGone(WorkerFailed):
    """A sandbox could not be ordered or never answered: the fork server has ended, or hangs."""


class Box:
    """One sandbox, prepared for one program or one session: descriptors of the harness's side."""

    def __init__(self, worker: Worker, slot: int, fds: Mapping[str, int], control: socket.socket):
        self.worker = worker
        self.slot = slot
        self.fds = dict(fds)
        self.control = control
        self._ready = False

    def wait_ready(self, again: bool = False) -> None:
        """Block until it waits for its program, locked down; ``again``: for its next cell.

        Raises WorkerGone where nothing comes, and WorkerFailed where it says why not.
        """
        if self._ready and not again:
            return
        report = self.report(PREPARE_S)
        if report is None:
            raise WorkerGone("a sandbox was not prepared")
        if report.kind != READY:
            raise WorkerFailed(report.text if report.kind == FAILED else "a sandbox was not prepared")
        self._ready = True

    def report(self, timeout_s: float) -> Report | None:
        """PID 1's next message; None where it has gone or does not answer in time."""
        if not wait_readable(self.control.fileno(), timeout_s):
            return None
        try:
            data = self.control.recv(4096)
        except OSError:
            return None
        return Report.unpack(data) if data else None

    def stop(self, session: bool) -> None:
        """PID 1 then kills the program, or a session's cell, and still reports how it ended."""
        with contextlib.suppress(OSError):
            if session:
                self.control.send(STOP)
            else:
                self.control.shutdown(socket.SHUT_WR)

    def limit_memory(self, memory_bytes: int) -> None:
        """Level 3: for the program that comes. Raises OSError."""
        if self.worker.cgroup is not None:
            self.worker.cgroup.oom_killed(self.slot)
            self.worker.cgroup.limit_memory(self.slot, memory_bytes)

    def oom_killed(self) -> bool:
        return self.worker.cgroup is not None and self.worker.cgroup.oom_killed(self.slot)

    def close_fd(self, name: str) -> None:
        fd = self.fds.pop(name, None)
        if fd is not None:
            os.close(fd)

    def close(self) -> None:
        """Let go of everything; whatever still runs inside is killed."""
        self.control.close()
        for name in list(self.fds):
            self.close_fd(name)
        self.worker.release(self.slot)


def wait_readable(fd: int, timeout_s: float) -> bool:
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(max(0.0, timeout_s) * 1000))


def _channels(kind: str) -> tuple[socket.socket, socket.socket, dict[str, int], list[int]]:
    """Both ends of the control channel, our ends of the pipes by name, and the program's. Raises OSError."""
    with contextlib.ExitStack() as undo:
        control, inner = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        undo.callback(control.close)
        undo.callback(inner.close)
        ours: dict[str, int] = {}
        theirs: list[int] = []
        for name in ("stdin", "stdout", "stderr", "code"):
            read, write = os.pipe()
            undo.callback(os.close, read)
            undo.callback(os.close, write)
            mine, other = (read, write) if name in ("stdout", "stderr") else (write, read)
            os.set_blocking(mine, False)
            ours[name] = mine
            theirs.append(other)
        if kind == "session":
            ours["code_read"] = os.dup(theirs[3])
        undo.pop_all()
        return control, inner, ours, theirs


class Worker:
    """A running fork server. Thread-safe. ``facts`` is what it said about itself when it was ready."""

    def __init__(self, config: Mapping[str, Any], limits: Limits, cgroup: Cgroups | None = None):
        """Start it. Raises WorkerFailed with the step that failed."""
        self._limits = limits
        self.cgroup = cgroup
        self._lock = threading.Lock()
        self._free: list[int] = []
        self._slots = 0
        self._first_uid = config["uid_map"][0]
        self.closed = False
        try:
            self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with theirs:
                self._process = subprocess.Popen(
                    [sys.executable, "-s", "-S", "-B", BOOT, str(theirs.fileno())],
                    env=ENVIRONMENT,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    pass_fds=(theirs.fileno(),),
                    start_new_session=True,
                    cwd="/",
                )
        except OSError as error:
            if cgroup is not None:
                cgroup.remove()
            raise WorkerFailed(f"the fork server cannot be started: {error}") from None
        try:
            self.facts = self._start(config)
        except BaseException:
            self.close()
            raise

    def _start(self, config: Mapping[str, Any]) -> dict[str, Any]:
        try:
            wire.send_json(self._socket, dict(config))
            answer = None
            if wait_readable(self._socket.fileno(), START_S):
                answer, _ = wire.receive_json(self._socket)
        except OSError as error:
            raise WorkerFailed(f"the fork server ended at its start: {error}") from None
        if answer is None:
            raise WorkerFailed("the fork server ended or hung at its start")
        if "failed" in answer:
            raise WorkerFailed(str(answer["failed"]))
        ready: dict[str, Any] = answer["ready"]
        return ready

    @property
    def alive(self) -> bool:
        return not self.closed and self._process.poll() is None

    @property
    def busy(self) -> int:
        """Sandboxes that exist: prepared ones and those that run."""
        return self._slots - len(self._free)

    def kill(self) -> None:
        """End it at once; for one that no longer answers."""
        self.closed = True
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def spawn(self, kind: str = "call") -> Box:
        """Order one sandbox; it is ready some milliseconds later.

        Raises WorkerGone, and WorkerFailed where this process has no descriptors left.
        """
        try:
            control, inner, ours, theirs = _channels(kind)
        except OSError as error:
            raise WorkerFailed(f"a sandbox needs descriptors: {error}") from None
        with self._lock:
            slot = self._free.pop() if self._free else self._slots
            self._slots = max(self._slots, slot + 1)
        order = {
            "kind": kind,
            "slot": slot,
            "uid": self._first_uid + 1 + slot,
            "idle_s": self._limits.session_idle_s,
            "tmp_bytes": self._limits.tmp_bytes,
            "tmp_inodes": self._limits.tmp_inodes,
        }
        box = Box(self, slot, ours, control)
        try:
            cgroup_fds = self.cgroup.enter(slot) if self.cgroup is not None else ()
            with self._lock:
                wire.send_json(self._socket, order, (inner.fileno(), *theirs, *cgroup_fds))
        except OSError as error:
            box.close()
            self.kill()
            raise WorkerGone(f"the fork server has gone: {error}") from None
        finally:
            inner.close()
            for fd in theirs:
                os.close(fd)
        return box

    def release(self, slot: int) -> None:
        with self._lock:
            self._free.append(slot)  # last in, first out: few slots are ever made

    def close(self) -> None:
        """End the fork server and with it every program. Idempotent."""
        self.closed = True
        self._socket.close()
        deadline = time.monotonic() + 5
        while self._process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.002)
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()
        if self.cgroup is not None:
            self.cgroup.remove()
