"""Sessions: variables live from cell to cell, in a process that is stopped between cells and can be rolled back.

Two processes of the program exist: the runner, and a snapshot that it forked after its last cell and that waits. When
a cell ends the runner (a limit, a crash, ``os._exit``), the snapshot becomes the new runner; when it ends well, the
runner forks a new snapshot, while the model thinks about the output.

PID 1 decides about every fork (seccomp asks it) and allows exactly that one, so that the program has never more
processes than these two, and memory is bounded by twice the limit of one.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import signal
import socket
import struct
import sys
import time
import warnings
from typing import Any

from . import program, wire
from .seccomp import CLONE_REFUSED

SETTLE_S, SETTLE_CPU_S = 30.0, 2.0  # for the runner to make its snapshot, or the session ends
CPU_CHECK_S = 0.2
HEARD_AT_ONCE = 64  # messages of the program; one that never stops talking must not keep PID 1 from its other duties
CREDENTIALS = struct.Struct("iII")

# Between the program's processes and PID 1. Untrusted, except that the kernel names the sender.
IDLE, SNAPSHOT, DONE, RUN = b"idle", b"snapshot", b"done", b"run"
# From the harness to PID 1: a cell's CPU seconds, or an order to stop the cell that runs.
BUDGET = struct.Struct("<d")
STOP = b"stop"


def run_cells(channel: socket.socket, namespace: dict[str, Any]) -> None:
    """The runner, and in forked children the snapshots that wait to become it. Returns when the harness has gone."""
    fork, count, snapshot = os.fork, 0, 0
    while True:
        old = snapshot
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that a program with threads forks: they are lost when it is rolled back
            snapshot = fork()
        if snapshot == 0:
            channel.send(SNAPSHOT)
            if channel.recv(16) != RUN:
                return
            continue
        if old:
            os.waitpid(old, 0)  # PID 1 ends it as soon as the new one waits
        channel.send(IDLE)
        try:
            order = wire.Order.read(program.CODE)
            source = wire.read_exactly(program.CODE, order.source_length)
        except EOFError:
            return
        count += 1
        program.seed_generators(order.seed)
        code, claim = program.execute(source, namespace, f"<cell {count}>")
        with contextlib.suppress(BaseException):
            sys.stdout.flush()
            sys.stderr.flush()
        channel.send(b"%s %d %s" % (DONE, code, claim.encode()))


class Watch:
    """PID 1 of a session."""

    def __init__(self, control: socket.socket, report: socket.socket, runner: int, idle_s: float):
        self._control = control
        self._report = report
        self._runner = runner
        self._idle_s = idle_s
        self._snapshot = 0
        self._pidfd = -1
        self._listener = -1
        self._may_fork, self._has_snapshot, self._waits = True, False, False
        self._state = "settling"  # settling -> idle -> running -> settling
        self._deadline = time.monotonic() + SETTLE_S
        self._budget: float | None = None  # of a cell that waits for idle, or runs
        self._before = 0.0  # CPU seconds of the runner before this cell
        self._poll = select.poll()
        self._ready = False  # locked down

    def run(self) -> None:
        """Until the harness hangs up, the session has been idle for too long, or there is nothing to go back to."""
        self._report.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        for fd in (self._control.fileno(), self._report.fileno()):
            self._poll.register(fd, select.POLLIN)
        self._follow(self._runner)
        while True:
            events = self._poll.poll(self._patience() * 1000)
            if self._overdue():
                return
            for fd, _ in events:
                if fd == self._control.fileno():
                    if not self._from_harness():
                        return
                elif fd == self._report.fileno():
                    self._from_program()
                elif fd == self._listener:
                    self._asked_to_fork()
                elif fd == self._pidfd and not self._runner_ended():
                    return

    def _patience(self) -> float:
        if self._state == "idle":
            return max(0.0, self._deadline - time.monotonic())
        return min(CPU_CHECK_S, max(0.002, self._cpu_left()))

    def _overdue(self) -> bool:
        """Whether the session must end; a cell that has used up its CPU time is only killed."""
        if self._state != "running":
            return time.monotonic() >= self._deadline or (self._state == "settling" and self._cpu_left() <= 0)
        if self._cpu_left() <= 0:
            os.kill(self._runner, signal.SIGKILL)
        return False

    def _cpu_left(self) -> float:
        """CPU seconds of this cell, or of the pause after it, in which hooks of the program may run."""
        most = SETTLE_CPU_S if self._state == "settling" else self._budget or 0.0
        return most - (self._cpu() - self._before)

    def _cpu(self) -> float:
        """CPU seconds of the runner so far: the kernel's clock of another process (see clock_getcpuclockid)."""
        with contextlib.suppress(OSError):
            return time.clock_gettime((~self._runner << 3) | 2)
        return 0.0

    def _from_harness(self) -> bool:
        said = self._control.recv(64)
        if said == STOP:
            if self._state == "running":
                os.kill(self._runner, signal.SIGKILL)
        elif len(said) == BUDGET.size:
            (self._budget,) = BUDGET.unpack(said)
            if self._state == "idle":
                self._start()
        return bool(said)

    def _start(self) -> None:
        self._before = self._cpu()
        self._state = "running"
        os.kill(self._runner, signal.SIGCONT)
        self._control.send(wire.Report(wire.READY).pack())  # the harness sends the source only now

    def _from_program(self) -> None:
        """Take what was said, before what the program asks next, which may depend on it."""
        # Only the first message brings a descriptor. The kernel drops those that the program sends where no room is.
        room = socket.CMSG_SPACE(CREDENTIALS.size) + (0 if self._ready else socket.CMSG_SPACE(4))
        for _ in range(HEARD_AT_ONCE):
            try:
                data, ancillary, _, _ = self._report.recvmsg(512, room, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return
            if (
                not data and not ancillary
            ):  # it hung up, for itself and for its snapshot: an empty message names its sender
                self._poll.unregister(self._report.fileno())
                return
            self._heard(data, ancillary)

    def _heard(self, data: bytes, ancillary: list[tuple[int, int, bytes]]) -> None:
        sender = 0
        for level, kind, content in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS and not self._ready:
                self._listener = struct.unpack("i", content[:4])[0]
                self._poll.register(self._listener, select.POLLIN)
            elif level == socket.SOL_SOCKET and kind == socket.SCM_CREDENTIALS:
                sender = CREDENTIALS.unpack(content)[0]
        if not self._ready:
            self._ready = data == program.LOCKED
            if not self._ready:
                raise OSError(data.decode("utf-8", "replace") or "the program's process ended at its start")
            self._control.send(wire.Report(wire.READY).pack())
        elif data == SNAPSHOT and self._state == "settling" and sender not in (0, self._runner, self._snapshot):
            if self._snapshot:
                with contextlib.suppress(OSError):
                    os.kill(self._snapshot, signal.SIGKILL)
            self._snapshot, self._has_snapshot = sender, True
        elif data == IDLE and sender == self._runner:
            self._waits = True
        elif data.startswith(DONE) and self._state == "running" and sender == self._runner:
            self._done(data)
        if self._state == "settling" and self._waits and self._has_snapshot:
            self._settled()

    def _settled(self) -> None:
        for pid in (self._runner, self._snapshot):
            os.kill(pid, signal.SIGSTOP)
        self._state, self._deadline = "idle", time.monotonic() + self._idle_s
        if self._budget is not None:
            self._start()

    def _done(self, data: bytes) -> None:
        _, code, claim = [*data.split(b" ", 2), b"", b""][:3]
        number = int(code) if code.isdigit() and len(code) < 4 else 1
        word = claim.decode("ascii", "replace")
        cpu = self._cpu() - self._before
        self._control.send(wire.Report(wire.ENDED, word if word in wire.CLAIMS else "", number & 0xFF, cpu).pack())
        self._settle()

    def _settle(self) -> None:
        self._budget, self._before = None, self._cpu()
        self._state, self._deadline = "settling", time.monotonic() + SETTLE_S
        self._may_fork, self._has_snapshot, self._waits = True, False, False
        if self._snapshot:
            os.kill(self._snapshot, signal.SIGCONT)

    def _asked_to_fork(self) -> None:
        """Answer one clone call without CLONE_THREAD (struct seccomp_notif, struct seccomp_notif_resp)."""
        receive, answer = 0xC0502100, 0xC0182101
        request = bytearray(80)
        try:
            fcntl.ioctl(self._listener, receive, request)
        except OSError:
            return  # the caller was killed before it could be answered
        (identity, pid, _), flags = struct.unpack_from("<QII", request), struct.unpack_from("<Q", request, 32)[0]
        allowed = self._may_fork and self._state == "settling" and pid == self._runner and not flags & CLONE_REFUSED
        if allowed:
            self._may_fork = False
        reply = struct.pack("<QqiI", identity, 0, 0 if allowed else -1, 1 if allowed else 0)  # EPERM, or continue
        with contextlib.suppress(OSError):
            fcntl.ioctl(self._listener, answer, bytearray(reply))

    def _runner_ended(self) -> bool:
        """Report it and go back to the snapshot; False where there is none, or the last cell was reported already."""
        _, status, usage = os.wait4(self._runner, 0)
        if self._state != "running" or not self._snapshot:
            self._control.send(wire.Report(wire.FAILED, text="the session's process ended between two cells").pack())
            return False
        cpu = usage.ru_utime + usage.ru_stime - self._before
        code = os.waitstatus_to_exitcode(status)
        self._control.send(wire.Report(wire.ENDED, wire.ROLLED_BACK, code, cpu, usage.ru_maxrss * 1024).pack())
        self._runner, self._snapshot = self._snapshot, 0
        self._follow(self._runner)
        os.kill(self._runner, signal.SIGCONT)
        self._settle()
        self._report.send(RUN)
        return True

    def _follow(self, pid: int) -> None:
        if self._pidfd >= 0:
            self._poll.unregister(self._pidfd)
            os.close(self._pidfd)
        self._pidfd = os.pidfd_open(pid)
        self._poll.register(self._pidfd, select.POLLIN)
