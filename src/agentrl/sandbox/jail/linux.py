"""The system calls that Python's standard library does not offer in 3.10, through ctypes."""

from __future__ import annotations

import ctypes
import os
import platform
import struct

NEWNS, NEWCGROUP, NEWUTS, NEWIPC = 0x00020000, 0x02000000, 0x04000000, 0x08000000
NEWUSER, NEWPID, NEWNET = 0x10000000, 0x20000000, 0x40000000

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT = 1, 2, 4, 8, 32
MS_BIND, MS_REC, MS_PRIVATE = 4096, 16384, 1 << 18
MNT_DETACH = 2
ATTR_RDONLY, ATTR_NOSUID, ATTR_NODEV, ATTR_NOEXEC = 1, 2, 4, 8

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_KEEPCAPS = 1, 4, 8
PR_CAPBSET_DROP, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 24, 36, 38
CAP_SETUID = 7

# The few calls without a libc wrapper. Those above 423 have the same number on every architecture.
NUMBERS = {
    "x86_64": {"pivot_root": 155, "capget": 125, "capset": 126, "seccomp": 317},
    "aarch64": {"pivot_root": 41, "capget": 90, "capset": 91, "seccomp": 277},
}
COMMON = {
    "close_range": 436,
    "mount_setattr": 442,
    "open_tree": 428,
    "move_mount": 429,
    "landlock_create_ruleset": 444,
    "landlock_add_rule": 445,
    "landlock_restrict_self": 446,
}

libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long


def machine() -> str:
    """``x86_64`` or ``aarch64``. Raises OSError for another architecture."""
    name = {"arm64": "aarch64", "amd64": "x86_64"}.get(platform.machine().lower(), platform.machine())
    if name not in NUMBERS:
        raise OSError(f"no system call table for the architecture {name}")
    return name


def checked(what: str, result: int) -> int:
    """``result``, or OSError from errno where it is negative."""
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def syscall(name: str, *args: object) -> int:
    """Raises OSError. Integers are passed as ``long``; everything else as ctypes passes it."""
    number = COMMON[name] if name in COMMON else NUMBERS[machine()][name]
    words = [ctypes.c_long(a) if isinstance(a, int) else a for a in args]
    return checked(name, libc.syscall(ctypes.c_long(number), *words))


def close_except(*keep: int) -> None:
    """Close every descriptor from 3 up but these."""
    low = 3
    for fd in (*sorted(k for k in keep if k >= 3), 0xFFFFFFFF):
        if fd > low:
            syscall("close_range", low, fd - 1, 0)
        low = fd + 1


def unshare(flags: int, what: str) -> None:
    checked(f"unshare({what})", libc.unshare(ctypes.c_int(flags)))


def setns(fd: int, flags: int) -> None:
    checked("setns", libc.setns(ctypes.c_int(fd), ctypes.c_int(flags)))


def prctl(option: int, value: int = 0, what: str = "prctl") -> int:
    zero = ctypes.c_ulong(0)
    return checked(what, libc.prctl(ctypes.c_int(option), ctypes.c_ulong(value), zero, zero, zero))


def mount(source: str | None, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
    args = [os.fsencode(a) if a is not None else None for a in (source, target, kind)]
    options = data.encode() if data is not None else None
    checked(f"mount({target})", libc.mount(*args, ctypes.c_ulong(flags), options))


def set_mount_attributes(path: str, attributes: int) -> None:
    """``attributes`` on the mount at ``path`` and all below it (Linux 5.12)."""
    at_fdcwd, at_recursive = -100, 0x8000
    attr = struct.pack("QQQQ", attributes, 0, 0, 0)
    syscall("mount_setattr", at_fdcwd, os.fsencode(path), at_recursive, attr, len(attr))


def copy_tree(path: str) -> int:
    """A descriptor of a copy of the mounts at ``path`` and below, to be put elsewhere with ``place_tree``."""
    at_fdcwd, clone, cloexec, at_recursive = -100, 1, os.O_CLOEXEC, 0x8000
    return syscall("open_tree", at_fdcwd, os.fsencode(path), clone | cloexec | at_recursive)


def place_tree(descriptor: int, path: str) -> None:
    """Mount what ``copy_tree`` copied at ``path``, and close the descriptor."""
    at_fdcwd, from_descriptor = -100, 4
    syscall("move_mount", descriptor, b"", at_fdcwd, os.fsencode(path), from_descriptor)
    os.close(descriptor)


def pivot_root(new: str, old: str) -> None:
    syscall("pivot_root", os.fsencode(new), os.fsencode(old))


def detach(path: str) -> None:
    checked(f"umount({path})", libc.umount2(os.fsencode(path), ctypes.c_int(MNT_DETACH)))


_CAPABILITY_V3 = struct.pack("Ii", 0x20080522, 0)


def effective_capabilities() -> int:
    """The calling process's effective capabilities as a bit set."""
    data = ctypes.create_string_buffer(24)
    syscall("capget", _CAPABILITY_V3, data)
    low, _, _, high, _, _ = struct.unpack("6I", data.raw)
    return low | high << 32


def raise_capabilities() -> None:
    """Make every permitted capability effective again (after a change of uid with KEEPCAPS)."""
    data = ctypes.create_string_buffer(24)
    syscall("capget", _CAPABILITY_V3, data)
    low, high = struct.unpack("6I", data.raw)[1], struct.unpack("6I", data.raw)[4]
    syscall("capset", _CAPABILITY_V3, struct.pack("6I", low, low, 0, high, high, 0))


def drop_capabilities() -> None:
    """No capability now, none to gain: bounding set empty where that is allowed, all sets empty, no_new_privs."""
    prctl(PR_SET_NO_NEW_PRIVS, 1, "no_new_privs")
    for capability in range(64):
        if libc.prctl(ctypes.c_int(PR_CAPBSET_DROP), ctypes.c_ulong(capability), 0, 0, 0) < 0:
            break  # past the last capability, or not ours to drop: no_new_privs keeps them out of reach
    syscall("capset", _CAPABILITY_V3, bytes(24))
