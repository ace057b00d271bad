"""The first process: builds the namespaces around the fork server, waits for its end, and clears up after it.

It is the one process outside. It does nothing while programs run, so that the fork server can die at any moment (with
every program, as PID 1 of their pid namespace) and something is left to remove the control groups.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
from collections.abc import Mapping
from typing import Any

from . import linux, server, tree, wire

ALL_NAMESPACES = (
    linux.NEWUSER | linux.NEWNS | linux.NEWPID | linux.NEWNET | linux.NEWIPC | linux.NEWUTS | linux.NEWCGROUP
)


def main(fd: int) -> None:
    """Ends when the fork server has, and that ends when the socket to the harness, descriptor ``fd``, does."""
    sock = socket.socket(fileno=fd)
    config, _ = wire.receive_json(sock)
    if config is None:
        return
    config["machine_uid"] = os.getuid()
    mapped_in, mapped_out = os.pipe()
    wanted_in, wanted_out = os.pipe()
    child = os.fork()
    if child == 0:
        linux.prctl(linux.PR_SET_PDEATHSIG, signal.SIGKILL)
        os.close(wanted_in)
        os.close(mapped_out)
        _guarded(sock, lambda: _start(sock, config, wanted_out, mapped_in))
    sock.close()
    os.close(wanted_out)
    os.close(mapped_in)
    if os.read(wanted_in, 1):
        base, count = config["uid_map"]
        for name in ("uid_map", "gid_map"):
            with open(f"/proc/{child}/{name}", "w") as file:
                file.write(f"0 {base} {count}")
        os.write(mapped_out, b"m")
    _wait(child)
    for folder in config["cgroups"]:
        for _ in range(200):  # the kernel may still be taking the last members apart
            left = [os.path.join(folder, name) for name in _children(folder)]
            for path in (*left, folder):
                with contextlib.suppress(OSError):
                    os.rmdir(path)
            if not os.path.isdir(folder):
                break
            signal.sigtimedwait([], 0.02)


def _children(folder: str) -> list[str]:
    try:
        return [entry.name for entry in os.scandir(folder) if entry.is_dir()]
    except OSError:
        return []


def _wait(child: int) -> None:
    while True:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(child, 0)
        return


def _guarded(sock: socket.socket, work: Any) -> None:
    """Run ``work`` and leave the process; what goes wrong before the server is ready is told to the harness."""
    try:
        work()
    except BaseException as error:
        with contextlib.suppress(OSError):
            wire.send_json(sock, {"failed": f"{type(error).__name__}: {error}"})
        os._exit(1)
    os._exit(0)


def _start(sock: socket.socket, config: Mapping[str, Any], wanted_out: int, mapped_in: int) -> None:
    proc = os.open("/proc", os.O_RDONLY | os.O_DIRECTORY)
    if config["level"] < 2:
        os.close(wanted_out)
        os.close(mapped_in)
        server.serve(sock, config, proc, None)
        return
    if os.getuid() == 0:
        # The binds come first: the interpreter may lie where only root can look.
        linux.unshare(linux.NEWNS, "mount namespace")
        tree.build(config["readable"], config["hidden"])
        linux.unshare(ALL_NAMESPACES, "user namespaces")
        os.write(wanted_out, b"w")
        if not os.read(mapped_in, 1):
            raise OSError("the user ids were not mapped")
        os.setgroups([])
        os.setresgid(0, 0, 0)
        os.setresuid(0, 0, 0)
    else:
        uid, gid = os.getuid(), os.getgid()
        linux.unshare(ALL_NAMESPACES, "user namespaces")
        map_self(proc, (uid, uid), (gid, gid))
        tree.build(config["readable"], config["hidden"])
    os.close(wanted_out)
    os.close(mapped_in)
    child = os.fork()
    if child == 0:
        linux.prctl(linux.PR_SET_PDEATHSIG, signal.SIGKILL)
        pid_namespace = os.open("self/ns/pid", os.O_RDONLY, dir_fd=proc)
        _guarded(sock, lambda: server.serve(sock, config, proc, pid_namespace))
    sock.close()
    _wait(child)


def map_self(proc: int, uid: tuple[int, int], gid: tuple[int, int]) -> None:
    """Map one (inside, outside) user and group id of the calling process's new user namespace. Raises OSError."""
    for name, text in (
        ("setgroups", "deny"),
        ("uid_map", f"{uid[0]} {uid[1]} 1"),
        ("gid_map", f"{gid[0]} {gid[1]} 1"),
    ):
        fd = os.open(f"self/{name}", os.O_WRONLY, dir_fd=proc)
        try:
            os.write(fd, text.encode())
        finally:
            os.close(fd)
