"""The filter as the kernel would run it, for both architectures: classic BPF, interpreted here."""

from __future__ import annotations

import errno
import struct

import pytest

from agentrl.sandbox.jail import seccomp
from agentrl.sandbox.jail.syscalls import AARCH64, X86_64

PID = 4242


def decide(program: bytes, arch: int, number: int, *args: int) -> int:
    """The filter's return value for one call. See Documentation/networking/filter.rst for the instructions."""
    data = struct.pack("<iIQ6Q", number, arch, 0, *(args + (0,) * 6)[:6])
    code = list(struct.iter_unpack("<HBBI", program))
    accumulator = at = 0
    while True:
        op, yes, no, k = code[at]
        at += 1
        if op == 0x20:  # load a word
            (accumulator,) = struct.unpack_from("<I", data, k)
        elif op == 0x54:  # and
            accumulator &= k
        elif op in (0x15, 0x35):  # jump if equal, if greater or equal
            at += yes if (accumulator == k if op == 0x15 else accumulator >= k) else no
        else:
            assert op == 0x06  # return
            return int(k)


@pytest.fixture(params=["x86_64", "aarch64"])
def architecture(request: pytest.FixtureRequest) -> str:
    return str(request.param)


class Filter:
    def __init__(self, architecture: str, **options: object):
        self.arch, self.numbers = seccomp.ARCHITECTURES[architecture]
        self.program = seccomp.program(architecture, **options)  # type: ignore[arg-type]

    def allows(self, name: str, *args: int) -> bool:
        return self(name, *args) == seccomp.ALLOW

    def __call__(self, name: str, *args: int) -> int:
        return decide(self.program, self.arch, self.numbers[name], *args)


def test_tables_are_the_kernels() -> None:
    """Spot checks against the kernel's tables; the numbers above 423 are common to all architectures."""
    assert [X86_64[n] for n in ("read", "openat", "clone", "fork", "exit_group", "prctl")] == [0, 257, 56, 57, 231, 157]
    assert [AARCH64[n] for n in ("read", "openat", "clone", "exit_group", "prctl", "wait4")] == [
        63,
        56,
        220,
        94,
        167,
        260,
    ]
    assert {n: AARCH64[n] for n in AARCH64 if AARCH64[n] > 423} == {n: X86_64[n] for n in AARCH64 if X86_64[n] > 423}
    assert len(set(X86_64.values())) == len(X86_64) and len(set(AARCH64.values())) == len(AARCH64)
    assert set(AARCH64) < set(X86_64) and not {"fork", "open", "poll", "stat"} & set(AARCH64)


def test_every_program_is_valid_bpf(architecture: str) -> None:
    """Short enough for the kernel, no jump beyond the end, a return at the end."""
    for fork in ("allow", "refuse", "notify"):
        for files in (True, False):
            code = list(
                struct.iter_unpack("<HBBI", seccomp.program(architecture, fork=fork, files=files, signal_pid=PID))
            )
            assert len(code) <= 4096 and code[-1][0] == 0x06
            assert all(
                i + 1 + max(yes, no) < len(code) for i, (op, yes, no, _) in enumerate(code) if op in (0x15, 0x35)
            )


def test_what_is_not_listed_is_refused(architecture: str) -> None:
    box = Filter(architecture, fork="refuse")
    refused = seccomp.ERRNO | errno.EPERM
    allowed = set(box.numbers.values())
    for number in range(600):
        if number not in allowed:
            assert decide(box.program, box.arch, number) == refused
    assert box("socket", 2, 1, 0) == refused
    assert box("clone3") == seccomp.ERRNO | errno.ENOSYS
    assert box.allows("read") and box.allows("exit_group") and box.allows("futex")


def test_another_architecture_kills(architecture: str) -> None:
    box = Filter(architecture, fork="allow")
    for arch in (0x40000003, 0xC000003E, 0xC00000B7, 0x40000028):  # i386, x86_64, aarch64, arm
        if arch != box.arch:
            assert decide(box.program, arch, box.numbers["read"]) == seccomp.KILL_PROCESS
    if architecture == "x86_64":
        assert decide(box.program, box.arch, 0x40000000 | box.numbers["read"]) == seccomp.KILL_PROCESS


def test_clone_by_its_flags(architecture: str) -> None:
    thread, fork, user_namespace = 0x3D0F00, 0x1200011, 0x10000011
    refuse, allow, notify = (Filter(architecture, fork=kind) for kind in ("refuse", "allow", "notify"))
    assert refuse.allows("clone", thread) and not refuse.allows("clone", fork)
    assert allow.allows("clone", thread) and allow.allows("clone", fork)
    assert notify.allows("clone", thread) and notify("clone", fork) == seccomp.USER_NOTIF
    for box in (refuse, allow):
        for flags in (
            user_namespace,
            thread | 0x20000,
            thread | 0x8000,
            0x8011,
            0x40000011,
            0x80000000 | user_namespace,
        ):
            assert not box.allows("clone", flags)
    if architecture == "x86_64":
        assert allow.allows("fork") and not refuse.allows("fork") and not notify.allows("vfork")


def test_calls_by_argument(architecture: str) -> None:
    box = Filter(architecture, fork="refuse", files=False, signal_pid=PID, truncate=False)
    assert box.allows("kill", PID, 9)
    for pid in (0, 1, PID + 1, 0xFFFFFFFF, 2**64 - 1, 2**64 - PID):
        assert not box.allows("kill", pid, 9) and not box.allows("tgkill", pid, pid, 9)
    assert box.allows("prlimit64", 0) and not box.allows("prlimit64", 1)
    assert box.allows("fcntl", 3, 3) and not box.allows("fcntl", 3, 8) and not box.allows("fcntl", 3, 10)
    assert box.allows("ioctl", 1, 0x5401) and not box.allows("ioctl", 1, 0x5412)
    assert box.allows("socketpair", 1, 1 | 0o2000000) and not box.allows("socketpair", 1, 2)
    assert not box.allows("socketpair", 2, 1)
    assert box.allows("sendto", 3, 0, 1, 0, 0) and not box.allows("sendto", 3, 0, 1, 0, 1)
    assert not box.allows("sendto", 3, 0, 1, 0, 1 << 40)
    assert not box.allows("openat", 0, 0, 0o1000) and box.allows("openat", 0, 0, 0o100)
    assert box.allows("prctl", 15) and not box.allows("prctl", 1) and not box.allows("prctl", 22)
    assert box.allows("setpriority", 0, 0, 5) and not box.allows("setpriority", 0, 1, 5)
    for name in ("fchmod", "mkdirat", "unlinkat", "utimensat", "flock", "setsid", "setpgid"):
        assert not box.allows(name) and Filter(architecture, fork="refuse").allows(name)
