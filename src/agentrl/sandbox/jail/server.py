"""The fork server: a warm interpreter that forks one single-use child per order and never runs a program itself."""

from __future__ import annotations

import contextlib
import fcntl
import gc
import importlib
import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

from . import landlock, linux, program, seccomp, supervisor, tree, wire


class Base(NamedTuple):
    """What every child starts from."""

    level: int
    abi: int  # Landlock's version
    as_root: bool
    own_uid: bool  # a user id of its own for each slot
    read_as_root: (
        bool  # files are opened as root without capabilities, because the interpreter lies where only root looks
    )
    proc: int
    ruleset: int | None  # level 1, where all children share one


def serve(sock: socket.socket, config: Mapping[str, Any], proc: int, pid_namespace: int | None) -> None:
    """Import the preload, say ready, then fork until the harness closes the socket. Raises OSError, ImportError."""
    level = config["level"]
    abi = landlock.version()
    if level >= 1 and (abi < 1 or not seccomp.available()):
        raise OSError("the kernel has no Landlock" if abi < 1 else "the kernel has no seccomp filters")
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)  # with a handler, PID 1 would take them from the program
    sys.path[:] = config["path"]
    import site

    site.setquit()
    site.setcopyright()
    for name in config["preload"]:
        importlib.import_module(name)
        if name == "numpy":
            importlib.import_module("numpy.random")  # loaded on first use otherwise, after it could be seeded
    if threading.active_count() > 1:
        raise OSError(f"the preload started threads, which a fork loses: {[t.name for t in threading.enumerate()]}")
    as_root = config["machine_uid"] == 0
    own_uid = as_root and bool(linux.effective_capabilities() >> linux.CAP_SETUID & 1)
    if level == 1 and as_root and not own_uid:
        raise OSError("root without CAP_SETUID cannot give programs a user of their own; run as an ordinary user")
    ruleset = landlock.ruleset(abi, *_host_rules(config), (), tree.DEVICES) if level == 1 else None
    if ruleset is not None:
        ruleset = fcntl.fcntl(ruleset, fcntl.F_DUPFD, 64)  # out of the way of the program's own descriptors
    private = level == 1 and own_uid and not all(_open_to_all(path) for path in config["path"])
    base = Base(level, abi, as_root, own_uid, private, proc, ruleset)
    if level < 2:
        linux.prctl(linux.PR_SET_CHILD_SUBREAPER, 1)
    if level >= 2:
        for session in (False, True):
            program.system_calls(base, session)
    with open(os.open("self/statm", os.O_RDONLY, dir_fd=proc)) as file:
        size = int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    gc.collect()
    gc.freeze()
    gc.disable()
    wire.send_json(
        sock,
        {"ready": {"landlock": abi, "own_uid": own_uid, "address_space": size, "python": sys.version.split()[0]}},
    )
    _loop(sock, base, pid_namespace)


def _host_rules(config: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """Level 1 sees the host's tree: what may be read, entry by entry around what is hidden, and what may be listed."""
    read, list_only = list(tree.SYSTEM), []
    hidden = set(config["hidden"])
    for inside, _ in config["readable"]:
        covered = [path for path in hidden if path.startswith(inside + "/")]
        if not covered:
            read.append(inside)
            continue
        list_only.append(inside)
        for folder in {inside, *(os.path.dirname(path) for path in covered)}:
            while len(folder) >= len(inside):
                entries = [os.path.join(folder, name) for name in sorted(os.listdir(folder))]
                read += [e for e in entries if not any(h == e or h.startswith(e + "/") for h in hidden)]
                folder = os.path.dirname(folder)
    return read, list_only


def _open_to_all(path: str) -> bool:
    """Whether any user can reach the folder."""
    while path not in ("", "/"):
        with contextlib.suppress(OSError):
            if not os.stat(path).st_mode & 0o001:
                return False
        path = os.path.dirname(path)
    return True


def _loop(sock: socket.socket, base: Base, pid_namespace: int | None) -> None:
    wake_in, wake_out = os.pipe()
    os.set_blocking(wake_in, False)
    os.set_blocking(wake_out, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake_out, warn_on_full_buffer=False)
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    poll.register(wake_in, select.POLLIN)
    threads = _Threads(base)
    while True:
        for fd, _ in poll.poll():
            if fd == wake_in:
                with contextlib.suppress(BlockingIOError):
                    os.read(wake_in, 4096)
                _reap(base)
                continue
            order, fds = wire.receive_json(sock)
            if order is None:
                os._exit(0)
            _fork(base, order, fds, pid_namespace, threads.limit())
            for descriptor in fds:
                os.close(descriptor)


def _fork(base: Base, order: Mapping[str, Any], fds: list[int], pid_namespace: int | None, threads: int) -> None:
    control = fds[0]
    try:
        if pid_namespace is not None:
            linux.unshare(linux.NEWPID, "pid namespace")
        pid = os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            supervisor.main(base, order, fds, threads)
        if pid_namespace is not None:
            # Back to our own, or the next unshare fails: a process can leave only a namespace that has not ended.
            linux.setns(pid_namespace, linux.NEWPID)
    except OSError as error:
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(control)) as channel:
            channel.send(wire.Report(wire.FAILED, text=f"fork server: {error}").pack())


def _reap(base: Base) -> None:
    """Collect ended supervisors. Below level 2 end their process group first, while its number cannot be taken."""
    while True:
        try:
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return
        if ended is None:
            return
        if base.level < 2:
            with contextlib.suppress(OSError):
                os.killpg(ended.si_pid, signal.SIGKILL)
        os.waitpid(ended.si_pid, 0)


class _Threads:
    """RLIMIT_NPROC counts all threads of a user: without a user id of one's own, add those that exist already."""

    def __init__(self, base: Base):
        self._shared = base.level < 2 and not base.own_uid
        self._proc = base.proc
        self._counted = 0
        self._at = -1e9

    def limit(self) -> int:
        """Threads of this user outside the sandbox, with room for change; 0 where there are none."""
        if not self._shared:
            return 0
        if time.monotonic() - self._at > 5:
            self._counted, self._at = 64 + self._count(), time.monotonic()
        return self._counted

    def _count(self) -> int:
        total, uid = 0, os.getuid()
        for name in os.listdir(self._proc):
            with contextlib.suppress(OSError, ValueError):
                if name.isdigit() and os.stat(name, dir_fd=self._proc).st_uid == uid:
                    with open(os.open(f"{name}/stat", os.O_RDONLY, dir_fd=self._proc)) as file:
                        total += int(file.read().rpartition(")")[2].split()[17])
        return total
