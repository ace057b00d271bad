"""PID 2: gives up everything, says that it is locked down, and only then reads the source and runs it."""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import io
import linecache
import os
import random
import resource
import signal
import socket
import sys
import threading
import traceback
import types
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NoReturn

from . import cells, landlock, linux, seccomp, tree, wire

if TYPE_CHECKING:
    from .server import Base
    from .supervisor import Pipes

LOCKED = b"locked"
FILENAME = "<program>"
CODE, REPORT = 3, 4  # descriptors
WRITES_AT_ONCE = 400  # after that in blocks, or a program that prints a lot would crawl


def main(base: Base, order: Mapping[str, Any], pipes: Pipes, report: int, other_threads: int) -> NoReturn:
    """In the child of PID 1; never returns."""
    try:
        session = order["kind"] == "session"
        for fd in pipes.cgroups:  # not PID 1: what the program uses up must not be able to end it
            os.write(fd, b"0")
        _take_descriptors(pipes, report)
        report = REPORT
        listener = lock_down(base, order)
        channel = socket.socket(fileno=REPORT)
        if listener is None:
            channel.send(LOCKED)
        else:
            socket.send_fds(channel, [LOCKED], [listener])
            os.close(listener)
    except BaseException as error:
        with contextlib.suppress(OSError):
            os.write(report, f"{type(error).__name__}: {error}".encode()[:500])
        os._exit(1)
    code = 1
    try:
        command = wire.Order.read(CODE)
        source = wire.read_exactly(CODE, command.source_length)
        set_limits(command, other_threads)
        _open_streams()
        namespace = fresh_main()
        if session:
            cells.run_cells(channel, namespace)
        else:
            os.close(CODE)
            code = _run(source, command.seed, namespace, channel)
    finally:
        os._exit(code)


def _take_descriptors(pipes: Pipes, report: int) -> None:
    """0, 1, 2 are the three streams, then CODE and REPORT. The rest is closed once the lockdown has used it."""
    wanted = (pipes.stdin, pipes.stdout, pipes.stderr, pipes.code, report)
    above = [fcntl.fcntl(fd, fcntl.F_DUPFD, len(wanted)) for fd in wanted]
    for number, fd in enumerate(above):
        os.dup2(fd, number)


def lock_down(base: Base, order: Mapping[str, Any]) -> int | None:
    """User, capabilities, Landlock, descriptors, system calls: in this order each is still allowed. Raises OSError.

    In a session, the descriptor on which PID 1 is asked about forks.
    """
    session = order["kind"] == "session"
    if base.level >= 2:
        os.setsid()
    elif base.level == 1:
        if base.own_uid:
            _own_user(order["uid"], base.read_as_root)
        linux.prctl(linux.PR_SET_PDEATHSIG, signal.SIGKILL)
    os.nice(5)
    os.umask(0o077)
    os.chdir("/tmp" if base.level >= 2 else "/")
    for kind, most in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_MEMLOCK, 64 << 10),
        (resource.RLIMIT_MSGQUEUE, 0),
    ):
        resource.setrlimit(kind, (most, most))
    if base.level < 1:
        linux.close_except(CODE, REPORT)
        return None
    linux.drop_capabilities()
    if base.ruleset is not None:
        landlock.restrict(base.ruleset)
    else:
        landlock.restrict(landlock.ruleset(base.abi, ("/",), (), ("/tmp",), tree.DEVICES))
    linux.close_except(CODE, REPORT)
    code = system_calls(base, session)
    listener = seccomp.install(code, listener=session)
    return listener if session else None


def system_calls(base: Base, session: bool) -> bytes:
    """The filter of one program; at levels 2 and 3 always the same, made by the fork server before it forks."""
    # A session goes on in other processes than the one that installs this, and its number may get a new owner.
    pid = None if base.level >= 2 else seccomp.NO_PID if session else os.getpid()
    fork = "notify" if session else "allow" if base.level >= 3 else "refuse"
    return seccomp.program(linux.machine(), fork=fork, files=base.level >= 2, signal_pid=pid, truncate=base.abi >= 3)


def _own_user(uid: int, read_as_root: bool) -> None:
    """Become ``uid`` for limits, signals and tracing; with ``read_as_root`` not for opening files.

    That is for an interpreter below a folder like /root: as the files' owner without capabilities, and within
    Landlock's rules, the program can import from it.
    """
    linux.prctl(linux.PR_SET_KEEPCAPS, 1)
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    if read_as_root:
        linux.raise_capabilities()
        linux.libc.setfsuid(0)


def set_limits(order: wire.Order, other_threads: int) -> None:
    """The limits of one program."""
    processes = order.processes + other_threads + 2  # PID 1 and itself
    for kind, soft, hard in (
        (resource.RLIMIT_CPU, order.cpu_s, order.cpu_s + 1),
        (resource.RLIMIT_AS, order.address_space, order.address_space),
        (resource.RLIMIT_NPROC, processes, processes),
        (resource.RLIMIT_NOFILE, order.open_files, order.open_files),
        (resource.RLIMIT_FSIZE, order.file_bytes, order.file_bytes),
        (resource.RLIMIT_STACK, order.stack_bytes, order.stack_bytes),
    ):
        _, most = resource.getrlimit(kind)
        if most != resource.RLIM_INFINITY:
            soft, hard = min(soft, most), min(hard, most)
        resource.setrlimit(kind, (soft, hard))


class _Stream(io.TextIOWrapper):
    """stdout or stderr. Lines go out one by one at first: there to read if the program is killed."""

    writes = 0

    def write(self, text: str) -> int:
        written = super().write(text)
        self.writes += 1
        if self.writes == WRITES_AT_ONCE:
            self.reconfigure(line_buffering=False)
            self.write = super().write  # type: ignore[assignment]
        return written


def _open_streams() -> None:
    for number, name in ((1, "stdout"), (2, "stderr")):
        buffer = io.BufferedWriter(io.FileIO(number, "w", closefd=False), 1 << 15)
        stream = _Stream(buffer, "utf-8", "backslashreplace", line_buffering=True)
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    stdin = io.TextIOWrapper(io.BufferedReader(io.FileIO(0, closefd=False)), "utf-8", "surrogateescape")
    sys.stdin = sys.__stdin__ = stdin  # type: ignore[misc]


def fresh_main() -> dict[str, Any]:
    """The globals of a new ``__main__``, with nothing of ours importable beside it."""
    for name in [name for name in sys.modules if name == __package__ or name.startswith(f"{__package__}.")]:
        del sys.modules[name]
    module = types.ModuleType("__main__")
    sys.modules["__main__"] = module
    sys.argv[:] = [FILENAME]
    sys.path.insert(0, os.getcwd())
    os.environ.clear()
    os.environ.update({"HOME": "/tmp", "TMPDIR": "/tmp", "PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"})
    signal.signal(signal.SIGINT, signal.default_int_handler)
    return module.__dict__


def seed_generators(seed: int) -> None:
    """``random`` and numpy's global generator; without it every fork would continue the same numpy stream."""
    random.seed(seed)
    numpy = sys.modules.get("numpy")
    if numpy is not None and "numpy.random" in sys.modules:
        numpy.random.seed(seed & 0xFFFFFFFF)


def _run(source: bytes, seed: int, namespace: dict[str, Any], channel: socket.socket) -> int:
    seed_generators(seed)
    code, claim = execute(source, namespace)
    if claim:
        with contextlib.suppress(OSError):
            channel.send(claim.encode())
    return finish(code)


def execute(source: bytes, namespace: dict[str, Any], filename: str = FILENAME) -> tuple[int, str]:
    """Run one source to its end or exception: (exit code as the interpreter would set it, claim)."""
    try:
        text = source.decode()
        compiled = compile(text, filename, "exec", dont_inherit=True)
        linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)
    except BaseException as error:  # a deeply nested source exhausts the compiler's memory or stack, not the program's
        _show(error, None)
        return 1, "exception"
    try:
        exec(compiled, namespace)
    except SystemExit as error:
        return _exit_code(error), "exit"
    except BaseException as error:
        frames = error.__traceback__.tb_next if error.__traceback__ else None
        _show(error, frames)
        return 1, "memory" if isinstance(error, MemoryError) else "exception"
    return 0, ""


def _exit_code(error: SystemExit) -> int:
    if error.code is None:
        return 0
    if isinstance(error.code, int):
        return error.code & 0xFF
    with contextlib.suppress(BaseException):
        print(error.code, file=sys.stderr)
    return 1


def _show(error: BaseException, frames: types.TracebackType | None) -> None:
    """The traceback without our own frames; the program's own excepthook where it set one."""
    try:
        if sys.excepthook is not sys.__excepthook__:
            sys.excepthook(type(error), error, frames)
        else:
            traceback.print_exception(type(error), error, frames)
    except BaseException:
        with contextlib.suppress(BaseException):
            os.write(2, type(error).__name__.encode() + b"\n")


def finish(code: int) -> int:
    """What the interpreter does at its end: join threads, run exit functions, flush."""
    try:
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException:
        with contextlib.suppress(BaseException):
            sys.stderr.flush()
        return code or 120  # as CPython does when it cannot flush
    return code
