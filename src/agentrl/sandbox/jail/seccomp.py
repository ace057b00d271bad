"""The system call filter: an allowlist assembled to classic BPF by hand, so that no libseccomp is needed.

Default is EPERM. Another architecture's calls (int 0x80) and x32 numbers kill the program. What is refused on purpose
and could be missed: ``socket`` (AF_VSOCK and netlink are not bound to a namespace), ``execve``, ``ptrace``,
``process_vm_*``, ``pidfd_*``, ``memfd_create``, SysV and POSIX IPC, keyrings, ``bpf``, ``io_uring``, ``userfaultfd``,
``perf_event_open``, ``mount``, ``unshare``, ``mknod``, ``splice``, and everything that names another process.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import struct
from collections.abc import Sequence
from typing import NamedTuple

from .linux import prctl, syscall
from .syscalls import AARCH64, X86_64

KILL_PROCESS, ERRNO, USER_NOTIF, ALLOW = 0x80000000, 0x00050000, 0x7FC00000, 0x7FFF0000
ARCHITECTURES = {"x86_64": (0xC000003E, X86_64), "aarch64": (0xC00000B7, AARCH64)}
X32_BIT = 0x40000000
NO_PID = 0x7FFFFFFE  # above the largest pid there can be

LD_WORD, AND, JEQ, JGE, RET = 0x20, 0x54, 0x15, 0x35, 0x06  # BPF_LD|W|ABS, ALU|AND|K, JMP|JEQ|K, JMP|JGE|K, RET|K

CLONE_THREAD = 0x00010000
# NEW* namespaces, PTRACE, UNTRACED and PARENT: never.
CLONE_REFUSED = 0x7E020000 | 0x2000 | 0x800000 | 0x8000
O_TRUNC = 0o1000
AF_UNIX, SOCK_STREAM, SOCK_TYPE_MASK = 1, 1, 0xF

FREE = [
    "read",
    "write",
    "readv",
    "writev",
    "pread64",
    "pwrite64",
    "preadv",
    "pwritev",
    "preadv2",
    "pwritev2",
    "open",
    "openat",
    "creat",
    "close",
    "close_range",
    "lseek",
    "stat",
    "fstat",
    "lstat",
    "newfstatat",
    "statx",
    "access",
    "faccessat",
    "faccessat2",
    "readlink",
    "readlinkat",
    "getdents",
    "getdents64",
    "getcwd",
    "chdir",
    "fchdir",
    "ftruncate",
    "fsync",
    "fdatasync",
    "umask",
    "statfs",
    "fstatfs",
    "fadvise64",
    "sendfile",
    "copy_file_range",
    "dup",
    "dup2",
    "dup3",
    "pipe",
    "pipe2",
    "select",
    "pselect6",
    "poll",
    "ppoll",
    "epoll_create",
    "epoll_create1",
    "epoll_ctl",
    "epoll_wait",
    "epoll_pwait",
    "epoll_pwait2",
    "eventfd",
    "eventfd2",
    "timerfd_create",
    "timerfd_settime",
    "timerfd_gettime",
    "signalfd",
    "signalfd4",
    "recvfrom",
    "sendmsg",
    "recvmsg",
    "shutdown",
    "getsockname",
    "getpeername",
    "getsockopt",
    "mmap",
    "munmap",
    "mprotect",
    "mremap",
    "madvise",
    "msync",
    "brk",
    "rt_sigaction",
    "rt_sigprocmask",
    "rt_sigreturn",
    "rt_sigpending",
    "rt_sigsuspend",
    "rt_sigtimedwait",
    "sigaltstack",
    "pause",
    "alarm",
    "getitimer",
    "setitimer",
    "timer_create",
    "timer_settime",
    "timer_gettime",
    "timer_getoverrun",
    "timer_delete",
    "wait4",
    "waitid",
    "exit",
    "exit_group",
    "set_tid_address",
    "set_robust_list",
    "futex",
    "futex_waitv",
    "rseq",
    "membarrier",
    "sched_yield",
    "sched_getaffinity",
    "sched_getparam",
    "sched_getscheduler",
    "sched_get_priority_max",
    "sched_get_priority_min",
    "getcpu",
    "getpid",
    "gettid",
    "getppid",
    "getpgrp",
    "getpgid",
    "getsid",
    "getuid",
    "geteuid",
    "getgid",
    "getegid",
    "getresuid",
    "getresgid",
    "getgroups",
    "getpriority",
    "getrlimit",
    "setrlimit",
    "getrusage",
    "times",
    "sysinfo",
    "uname",
    "nanosleep",
    "clock_nanosleep",
    "clock_gettime",
    "clock_getres",
    "gettimeofday",
    "time",
    "getrandom",
    "restart_syscall",
    "getxattr",
    "lgetxattr",
    "fgetxattr",
]

# Changes to the file system, which level 1 has no place for: there the program may own files of the host, and Landlock
# does not govern chmod, utime and flock at all.
CHANGES_FILES = [
    "fallocate",
    "mkdir",
    "mkdirat",
    "rmdir",
    "unlink",
    "unlinkat",
    "rename",
    "renameat",
    "renameat2",
    "link",
    "linkat",
    "symlink",
    "symlinkat",
    "truncate",
    "chmod",
    "fchmod",
    "fchmodat",
    "utime",
    "utimes",
    "futimesat",
    "utimensat",
    "flock",
]

# Kept from level 1 because they work across processes of the same user, or break the tie to the process group.
OWN_PID_NAMESPACE_ONLY = ["setsid", "setpgid"]

REFUSALS = {  # where libc or the standard library falls back to another way on this error, but not on EPERM
    "clone3": errno.ENOSYS,
    "openat2": errno.ENOSYS,
    "fchmodat2": errno.ENOSYS,
    "listxattr": errno.ENOTSUP,
    "llistxattr": errno.ENOTSUP,
    "flistxattr": errno.ENOTSUP,
    "setxattr": errno.ENOTSUP,
    "lsetxattr": errno.ENOTSUP,
    "fsetxattr": errno.ENOTSUP,
}


class Test(NamedTuple):
    """``args[arg] & mask`` is one of ``values``; ``high`` tests the upper 32 bits of the argument."""

    arg: int
    values: Sequence[int]
    mask: int = 0xFFFFFFFF
    high: bool = False


def _arguments(fork: str, signal_pid: int | None, truncate: bool) -> dict[str, tuple[list[Test], int]]:
    """Calls allowed by argument: the tests, and what follows where all hold."""
    me = [0]
    fcntl = [0, 1, 2, 3, 4, 5, 6, 7, 36, 37, 38, 1030, 1031, 1032]  # no F_SETOWN, F_SETSIG: a signal to any process
    ioctl = [0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451]  # TCGETS TIOCGWINSZ FIONREAD FIONBIO FIONCLEX FIOCLEX
    names = [15, 16, 23, 3]  # PR_SET_NAME PR_GET_NAME PR_CAPBSET_READ PR_GET_DUMPABLE
    null = [Test(4, me), Test(4, me, high=True)]
    rules: dict[str, tuple[list[Test], int]] = {
        "fcntl": ([Test(1, fcntl)], ALLOW),
        "ioctl": ([Test(1, ioctl)], ALLOW),
        "prctl": ([Test(0, names)], ALLOW),
        "prlimit64": ([Test(0, me)], ALLOW),
        "setpriority": ([Test(0, me), Test(1, me)], ALLOW),
        # Only connected pairs: a datagram socket could send to any address, also of the host.
        "socketpair": ([Test(0, [AF_UNIX]), Test(1, [SOCK_STREAM], SOCK_TYPE_MASK)], ALLOW),
        "sendto": (null, ALLOW),
    }
    for name, arg in (("open", 1), ("openat", 2)):
        if not truncate:
            rules[name] = ([Test(arg, me, O_TRUNC)], ALLOW)
    for name in ("kill", "tgkill"):
        rules[name] = ([] if signal_pid is None else [Test(0, [signal_pid])], ALLOW)
    if fork == "allow":
        rules["clone"] = ([Test(0, me, CLONE_REFUSED)], ALLOW)
        rules["fork"] = rules["vfork"] = ([], ALLOW)
    else:
        rules["clone"] = ([Test(0, [CLONE_THREAD], CLONE_REFUSED | CLONE_THREAD)], ALLOW)
    return rules


@functools.lru_cache(maxsize=16)
def program(
    architecture: str,
    *,
    fork: str,
    files: bool = True,
    signal_pid: int | None = None,
    truncate: bool = True,
) -> bytes:
    """The filter as ``struct sock_filter[]``, 8 bytes an instruction.

    :param fork: ``allow``; ``refuse`` (threads only); ``notify`` (threads, and a listener decides about each fork)
    :param files: whether the program has files of its own to change; False also keeps it in its process group
    :param signal_pid: the only pid it may signal; None where its pid namespace holds nothing but itself
    :param truncate: False where Landlock cannot refuse O_TRUNC on a file opened for reading (before version 3)
    """
    arch, numbers = ARCHITECTURES[architecture]
    code: list[tuple[int, int, int, int]] = [
        (LD_WORD, 0, 0, 4),
        (JEQ, 1, 0, arch),
        (RET, 0, 0, KILL_PROCESS),
        (LD_WORD, 0, 0, 0),
    ]
    if architecture == "x86_64":
        code += [(JGE, 0, 1, X32_BIT), (RET, 0, 0, KILL_PROCESS)]
    by_argument = _arguments(fork, signal_pid, truncate)
    for name in FREE + (CHANGES_FILES + OWN_PID_NAMESPACE_ONLY if files else []):
        if name in numbers and name not in by_argument:
            code += [(JEQ, 0, 1, numbers[name]), (RET, 0, 0, ALLOW)]
    for name, number in REFUSALS.items():
        code += [(JEQ, 0, 1, numbers[name]), (RET, 0, 0, ERRNO | number)]
    for name, (tests, action) in by_argument.items():
        if name in numbers:
            otherwise = USER_NOTIF if name == "clone" and fork == "notify" else ERRNO | errno.EPERM
            block = _block(tests, action, otherwise)
            code += [(JEQ, 0, len(block), numbers[name]), *block]
    code.append((RET, 0, 0, ERRNO | errno.EPERM))
    return b"".join(struct.pack("HBBI", *instruction) for instruction in code)


def _block(tests: Sequence[Test], action: int, otherwise: int) -> list[tuple[int, int, int, int]]:
    """All tests must hold for ``action``. Offsets are those of ``struct seccomp_data``, little endian."""
    block: list[tuple[int, int, int, int]] = []
    for test in tests:
        block.append((LD_WORD, 0, 0, 16 + 8 * test.arg + (4 if test.high else 0)))
        if test.mask != 0xFFFFFFFF:
            block.append((AND, 0, 0, test.mask))
        last = len(test.values)
        block += [(JEQ, last - i, 0, value) for i, value in enumerate(test.values)]
        block.append((RET, 0, 0, otherwise))
    block.append((RET, 0, 0, action))
    return block


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))


def install(filter_bytes: bytes, *, listener: bool = False) -> int:
    """Put the calling thread and its descendants under the filter; with ``listener`` the descriptor that is asked.

    Needs no_new_privs. Raises OSError.
    """
    set_mode_filter, new_listener = 1, 8
    argument = _Program(len(filter_bytes) // 8, filter_bytes)
    return syscall("seccomp", set_mode_filter, new_listener if listener else 0, ctypes.byref(argument))


def available() -> bool:
    """Whether the kernel has filters at all (PR_GET_SECCOMP answers)."""
    try:
        return prctl(21, what="seccomp") >= 0
    except OSError:
        return False
