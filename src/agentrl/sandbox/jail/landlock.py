"""Landlock rulesets: which files the program may open, and no TCP, no signals and no abstract sockets outside it."""

from __future__ import annotations

import os
import stat
import struct
from collections.abc import Iterable

from .linux import syscall

EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = 1, 1 << 1, 1 << 2, 1 << 3
TRUNCATE, IOCTL_DEV = 1 << 14, 1 << 15
READ = READ_FILE | READ_DIR
FILE_RIGHTS = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEV

FS_BITS = {1: 13, 2: 14, 3: 15, 4: 15}  # file system rights by Landlock version; 16 from version 5 on
CREATE_RULESET_VERSION = 1


def version() -> int:
    """The kernel's Landlock version; 0 where it has none."""
    try:
        return syscall("landlock_create_ruleset", None, 0, CREATE_RULESET_VERSION)
    except OSError:
        return 0


def handled(abi: int) -> tuple[int, int, int]:
    """All file system rights, network rights and scopes of a Landlock version."""
    return (1 << FS_BITS.get(abi, 16)) - 1, 3 if abi >= 4 else 0, 3 if abi >= 6 else 0


def ruleset(
    abi: int, read: Iterable[str], list_only: Iterable[str], write: Iterable[str], devices: Iterable[str]
) -> int:
    """A ruleset's descriptor. Paths that do not exist are left out.

    :param read: files and trees to read
    :param list_only: folders whose entries may be listed, without reading the files
    :param write: trees to do anything in, but make device nodes and execute
    :param devices: device files to read and write
    """
    fs, net, scope = handled(abi)
    attr = struct.pack("QQQ", fs, net, scope)[: 8 if abi < 4 else 16 if abi < 6 else 24]
    fd = syscall("landlock_create_ruleset", attr, len(attr), 0)
    make_char, make_block = 1 << 6, 1 << 11
    for paths, rights in (
        (read, READ),
        (list_only, READ_DIR),
        (write, fs & ~(EXECUTE | make_char | make_block)),
        (devices, READ_FILE | WRITE_FILE | TRUNCATE),
    ):
        for path in paths:
            _allow(fd, path, rights & fs)
    return fd


def _allow(ruleset_fd: int, path: str, rights: int) -> None:
    path_beneath = 1
    try:
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    try:
        if not stat.S_ISDIR(os.fstat(fd).st_mode):
            rights &= FILE_RIGHTS
        if rights:
            syscall("landlock_add_rule", ruleset_fd, path_beneath, struct.pack("=Qi", rights, fd), 0)
    finally:
        os.close(fd)


def restrict(ruleset_fd: int) -> None:
    """Put the calling thread and its descendants under the ruleset. Needs no_new_privs."""
    syscall("landlock_restrict_self", ruleset_fd, 0)
