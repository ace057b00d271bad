"""PID 1 of one sandbox: makes its namespaces, forks the program, waits, and reports what the kernel says about its end.

Its channel to the harness is never held by the program, and nothing that the program says is passed on but one of the
words in ``wire.CLAIMS``. When the channel closes, so does the sandbox.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NoReturn

from . import cells, keeper, linux, program, wire

if TYPE_CHECKING:
    from .server import Base

INSIDE_ID = 1000  # the user and group that every program sees itself as


class Pipes:
    """The descriptors that come with an order."""

    def __init__(self, fds: list[int]):
        self.control, self.stdin, self.stdout, self.stderr, self.code, *self.cgroups = fds


def main(base: Base, order: Mapping[str, Any], fds: list[int], other_threads: int) -> NoReturn:
    """In the child that the fork server just forked; never returns."""
    pipes = Pipes(fds)
    control = socket.socket(fileno=pipes.control)
    try:
        linux.prctl(linux.PR_SET_PDEATHSIG, signal.SIGKILL)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        _separate(base, order)
        report, inner_report = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        pid = os.fork()
        if pid == 0:
            program.main(base, order, pipes, inner_report.fileno(), other_threads)
        linux.close_except(control.fileno(), report.fileno())
        if order["kind"] == "session":
            cells.Watch(control, report, pid, order["idle_s"]).run()
        else:
            _watch(control, report, pid)
    except BaseException as error:
        with contextlib.suppress(OSError):
            control.send(wire.Report(wire.FAILED, text=f"{type(error).__name__}: {error}").pack())
    os._exit(0)


def _separate(base: Base, order: Mapping[str, Any]) -> None:
    """Namespaces of this sandbox, or below level 2 a process group that nothing can leave."""
    if base.level < 2:
        os.setpgid(0, 0)
        linux.prctl(linux.PR_SET_CHILD_SUBREAPER, 1)
        return
    uid, gid = os.getuid(), os.getgid()
    if base.as_root:
        uid = gid = 1 + order["slot"]
        os.setresgid(gid, gid, gid)
        os.setresuid(uid, uid, uid)
        linux.prctl(linux.PR_SET_DUMPABLE, 1)  # or /proc/self/uid_map belongs to another user
        linux.prctl(linux.PR_SET_PDEATHSIG, signal.SIGKILL)  # a change of user clears it
    linux.unshare(linux.NEWUSER | linux.NEWNS, "user namespace")
    keeper.map_self(base.proc, (INSIDE_ID, uid), (INSIDE_ID, gid))
    linux.prctl(linux.PR_SET_DUMPABLE, 0)
    options = f"size={order['tmp_bytes']},nr_inodes={order['tmp_inodes']},mode=1777"
    # An interpreter that is installed below /tmp must stay readable there.
    below = {f"/tmp/{name}": linux.copy_tree(f"/tmp/{name}") for name in os.listdir("/tmp")}
    linux.mount("tmpfs", "/tmp", "tmpfs", linux.MS_NOSUID | linux.MS_NODEV | linux.MS_NOEXEC, options)
    for path, tree in below.items():
        os.mkdir(path, 0o755)
        linux.place_tree(tree, path)


def _watch(control: socket.socket, report: socket.socket, pid: int) -> None:
    """Until the program's process has ended; killed when the harness hangs up."""
    pidfd = os.pidfd_open(pid)
    poll = select.poll()
    for fd in (control.fileno(), report.fileno(), pidfd):
        poll.register(fd, select.POLLIN)
    ready, claim, failure = False, "", "the program's process ended before it was locked down"
    ended = False
    while not ended:
        for fd, _ in poll.poll():
            if fd == pidfd:
                ended = True
            elif fd == control.fileno():
                os.kill(pid, signal.SIGKILL)
                poll.unregister(fd)
            else:
                said = report.recv(512)
                if not said:
                    poll.unregister(fd)
                elif not ready:
                    ready = said == program.LOCKED
                    if ready:
                        control.send(wire.Report(wire.READY).pack())
                    else:
                        failure = said.decode("utf-8", "replace")
                elif said.decode("ascii", "replace") in wire.CLAIMS:
                    claim = said.decode("ascii")
    with contextlib.suppress(OSError):
        report.setblocking(False)
        for _ in range(64):
            said = report.recv(512)
            if not ready:
                failure = said.decode("utf-8", "replace") or failure
            elif said.decode("ascii", "replace") in wire.CLAIMS[1:]:
                claim = said.decode("ascii")
    _, status, usage = os.wait4(pid, 0)
    if not ready:
        control.send(wire.Report(wire.FAILED, text=failure).pack())
        return
    code = os.waitstatus_to_exitcode(status)
    cpu = usage.ru_utime + usage.ru_stime
    control.send(wire.Report(wire.ENDED, claim, code, cpu, usage.ru_maxrss * 1024).pack())
