"""Hostile programs against the sandbox, and the table of docs/security.md: attack x level -> outcome.

    python scripts/sandbox_attacks.py                # every level that this machine offers, to the terminal
    python scripts/sandbox_attacks.py --write        # also into docs/security.md
    python scripts/sandbox_attacks.py --levels 2 --only network

Each program prints BREACH where something worked that must not. That word is only half of the verdict: whether
listeners were called, files read or changed, processes hurt and results forged is looked at from outside. Exit code 1
on a breach.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from agentrl.sandbox import Limits, Result, Sandbox, SandboxUnavailable, Status

PRELUDE = """
import os, sys, ctypes, socket, time
libc = ctypes.CDLL(None, use_errno=True)
def breach(what): print('BREACH', what, flush=True)
def works(what, f):
    try: f()
    except BaseException: return
    breach(what)
def call(what, *args):
    if libc.syscall(*[ctypes.c_long(a) if isinstance(a, int) else a for a in args]) >= 0: breach(what)
arm = os.uname().machine == 'aarch64'
"""


@dataclass
class World:
    """What the programs go for, outside the sandbox."""

    secret: str
    canary: Path
    folder: Path
    tcp: socket.socket
    udp: socket.socket
    abstract: socket.socket
    datagrams: socket.socket
    victim: subprocess.Popen[bytes]
    pid: int = field(default_factory=os.getpid)
    priority: int = field(default_factory=lambda: os.getpriority(os.PRIO_PROCESS, 0))

    def fill(self, code: str) -> str:
        values = {
            "PORT": str(self.tcp.getsockname()[1]),
            "UDP": str(self.udp.getsockname()[1]),
            "ABSTRACT": repr(self.abstract.getsockname()),
            "DATAGRAMS": repr(self.datagrams.getsockname()),
            "CANARY": repr(str(self.canary)),
            "FOLDER": repr(str(self.folder)),
            "VICTIM": str(self.victim.pid),
            "HARNESS": str(self.pid),
        }
        for name, value in values.items():
            code = code.replace(f"@{name}@", value)
        return PRELUDE + code

    def damage(self) -> str:
        """What has happened outside; "" when nothing has."""
        for name in ("tcp", "udp", "abstract", "datagrams"):
            server: socket.socket = getattr(self, name)
            with contextlib.suppress(BlockingIOError):
                if server.type == socket.SOCK_DGRAM:
                    server.recv(100)
                else:
                    server.accept()[0].close()
                return f"the {name} socket was reached"
        stat = self.canary.stat()
        if self.canary.read_text() != self.secret or stat.st_mode & 0o777 != 0o666 or stat.st_mtime != 1e9:
            return "a file was changed"
        if sorted(p.name for p in self.folder.iterdir()) != [self.canary.name]:
            return "files were made or removed"
        if (
            self.victim.poll() is not None
            or _state(self.victim.pid) == "T"
            or os.getpriority(os.PRIO_PROCESS, self.victim.pid) != self.priority
        ):
            return "another process was hurt"
        return ""


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


@contextlib.contextmanager
def world() -> Iterator[World]:
    """Listeners on every kind of socket, a readable and writable secret file, and a process to hurt."""
    with contextlib.ExitStack() as stack:
        sockets = {}
        for name, family, kind, address in (
            ("tcp", socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", 0)),
            ("udp", socket.AF_INET, socket.SOCK_DGRAM, ("127.0.0.1", 0)),
            ("abstract", socket.AF_UNIX, socket.SOCK_STREAM, f"\0stream-{secrets.token_hex(8)}"),
            ("datagrams", socket.AF_UNIX, socket.SOCK_DGRAM, f"\0datagram-{secrets.token_hex(8)}"),
        ):
            sockets[name] = stack.enter_context(socket.socket(family, kind))
            sockets[name].bind(address)
            sockets[name].setblocking(False)
            if kind == socket.SOCK_STREAM:
                sockets[name].listen(8)
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder.chmod(0o777)
        canary = folder / "canary"
        secret = secrets.token_hex(16)
        canary.write_text(secret)
        canary.chmod(0o666)
        os.utime(canary, (1e9, 1e9))
        environment = {**os.environ, "SECRET": secret}
        victim = subprocess.Popen(["sleep", "3600"], env=environment)
        stack.callback(victim.wait)
        stack.callback(victim.send_signal, signal.SIGKILL)
        yield World(secret, canary, folder, victim=victim, **sockets)


@dataclass(frozen=True)
class Attack:
    kind: str
    name: str
    code: str
    status: tuple[Status, ...] = ()  # how it must end; any way but infra_error where empty
    check: Callable[[Result], bool] | None = None
    limits: Limits | None = None
    slow: bool = False  # burns CPU or sleeps for seconds
    repeat: int = 1
    session: bool = False  # a cell: others of its session stand before and after it

    def __str__(self) -> str:
        return f"{self.kind}: {self.name}"


def outcome(attack: Attack, sandbox: Sandbox, target: World) -> str:
    """Run it: "" where it was contained, else what went wrong."""
    code = target.fill(attack.code)
    servers = [worker.facts for worker in sandbox._workers]
    for _ in range(attack.repeat):
        if attack.session:
            result, later = _cell(code, sandbox)
            if later:
                return later
        else:
            result = sandbox.run(code, limits=attack.limits or LIMITS)
        output = result.stdout + result.stderr
        if "BREACH" in output:
            return next(line for line in output.splitlines() if "BREACH" in line)
        if target.secret in output:
            return "the secret was read"
        if result.status == Status.INFRA_ERROR:
            return f"the sandbox failed: {result.note}"
        if attack.status and result.status not in attack.status:
            return (
                f"ended as {result.status.value} (exit {result.exit_code}, signal {result.signal}): {output[-200:]!r}"
            )
        if attack.check is not None and not attack.check(result):
            return f"unexpected result: {result.status.value} {output[-200:]!r}"
        if damage := target.damage():
            return damage
    after = sandbox.run("print('alive')")
    if after.stdout != "alive\n":
        return f"the next program failed: {after}"
    return "" if all(w.facts is s for w, s in zip(sandbox._workers, servers, strict=True)) else "a fork server ended"


def _cell(code: str, sandbox: Sandbox) -> tuple[Result, str]:
    """The result of the cell, and what went wrong with the session after it: it must go on, or say what it lost."""
    with sandbox.session(seed=1) as session:
        session.run("kept = 1")
        result = session.run(code)
        notes = session.run("").note  # what the cell left behind would show in this one
        after = session.run("kept")
    broken = Status.INFRA_ERROR in (result.status, after.status)
    if broken or (after.status == Status.ERROR and "NameError" in after.stderr and "lost" not in notes + after.note):
        return result, f"the session failed: {after}"
    return result, ""


LIMITS = Limits(cpu_s=2, wall_s=60, memory_bytes=128 << 20)
SHORT = Limits(cpu_s=1, wall_s=1.5, memory_bytes=128 << 20)
TIMEOUT = (Status.TIMEOUT_CPU, Status.TIMEOUT_WALL)

NETWORK = {
    "tcp to loopback": "works('tcp', lambda: socket.create_connection(('127.0.0.1', @PORT@), 2))",
    "udp to loopback": "works('udp', lambda: socket.socket(2, 2).sendto(b'x', ('127.0.0.1', @UDP@)))",
    "abstract unix stream": "works('unix', lambda: socket.socket(1, 1).connect(@ABSTRACT@))",
    "abstract unix datagram": "works('unix', lambda: socket.socket(1, 2).sendto(b'x', @DATAGRAMS@))",
    "datagram through a socketpair": "works('pair', lambda: socket.socketpair(1, 2)[0].sendto(b'x', @DATAGRAMS@))",
    "sendmsg with an address": r"""
works('msg', lambda: socket.socketpair(1, 2)[0].sendmsg([b'x'], [], 0, @DATAGRAMS@))
""",
    "exotic families": r"""
for f in (16, 17, 29, 38, 40, 44, 3, 31): works(f'family {f}', lambda: socket.socket(f, 2, 0))
""",
    "raw and packet sockets": "for f in (2, 10, 17): works('raw', lambda: socket.socket(f, 3, 1))",
    "listen": "works('listen', lambda: socket.create_server(('127.0.0.1', 0)))",
    "name service": r"""
works('dns', lambda: socket.getaddrinfo('localhost.localdomain.', 80, type=socket.SOCK_DGRAM)[99])
""",
    "io_uring": "call('io_uring', 425, 8, ctypes.create_string_buffer(256))",
}

FILES = {
    "read a host file": "works('read', lambda: print(open(@CANARY@).read()))",
    "read system files": r"""
for p in ('/etc/passwd', '/etc/shadow', '/root/.bashrc', '/etc/hostname', '/var/log/dpkg.log'):
    works(p, lambda: open(p).read())
""",
    "write a host file": "for m in ('w', 'a', 'r+'): works(m, lambda: open(@CANARY@, m).write('x'))",
    "truncate": r"""
works('truncate', lambda: os.truncate(@CANARY@, 0))
works('o_trunc', lambda: os.open(@CANARY@, os.O_TRUNC))
""",
    "make files outside": r"""
works('create', lambda: open(@FOLDER@ + '/new', 'x'))
works('dir', lambda: os.mkdir(@FOLDER@ + '/d'))
""",
    "chmod, chown, utime": r"""
works('chmod', lambda: os.chmod(@CANARY@, 0)); works('chown', lambda: os.chown(@CANARY@, 1, 1))
works('utime', lambda: os.utime(@CANARY@, (1, 1)))
""",
    "remove and rename": r"""
works('rm', lambda: os.remove(@CANARY@)); works('mv', lambda: os.rename(@CANARY@, @FOLDER@ + '/b'))
""",
    "hard and symbolic links": r"""
for t in ('/tmp/l', @FOLDER@ + '/l'):
    works('link', lambda: os.link(@CANARY@, t))
    works('symlink', lambda: (os.symlink(@CANARY@, t), open(t).read()))
""",
    "dot dot": "works('..', lambda: print(open('../../../../../..' + @CANARY@).read()))",
    "write to libraries": r"""
import numpy, json
for m in (numpy, json): works(m.__name__, lambda: open(m.__file__, 'a'))
works('new', lambda: open(os.path.join(os.path.dirname(json.__file__), 'evil.py'), 'w'))
""",
    "the harness's own code": r"""
works('agentrl', lambda: __import__('agentrl.sandbox'))
for p in sys.path:
    works('source', lambda: open(p + '/agentrl/__init__.py').read())
""",
    "list folders": r"""
for p in ('/home', '/var', '/opt', '/etc', @FOLDER@):
    try: names = os.listdir(p)
    except OSError: continue
    if set(names) - {'ld.so.cache', 'localtime'}: breach(p + str(names))
""",
    "file handles": r"""
handle, mount = ctypes.create_string_buffer(128), ctypes.byref(ctypes.c_int())
call('handle', 303 if not arm else 264, -100, ctypes.c_char_p(b'/'), handle, mount, 0)
""",
    "mount": r"""
for f in (b'tmpfs', b'proc', b'sysfs', b'cgroup2'):
    if libc.mount(b'x', b'/tmp', f, 0, None) == 0: breach(f)
call('fsopen', 430, ctypes.c_char_p(b'tmpfs'), 0)
call('open_tree', 428, -100, ctypes.c_char_p(b'/'), 1)
""",
    "chroot and pivot": r"""
works('chroot', lambda: os.chroot('/tmp')); call('pivot', 155 if not arm else 41, b'/tmp', b'/tmp')
""",
    "device nodes": r"""
works('mknod', lambda: os.mknod('/tmp/m', 0o20666, os.makedev(1, 1)))
for p in ('/dev/mem', '/dev/kmsg', '/dev/sda', '/dev/vda', '/dev/kvm', '/dev/fuse', '/dev/tty', '/dev/ptmx'):
    works(p, lambda: os.open(p, os.O_RDWR))
""",
    "fifo": "works('fifo', lambda: os.mkfifo('/tmp/f'))",
}

PROCESSES = {
    "kill the parent": r"""
for p in (os.getppid(), 1):
    for s in (2, 15, 1, 19, 9):
        try: os.kill(p, s)
        except OSError: pass
print('still here')
""",
    "kill the harness": "for s in (0, 19, 9): works('kill', lambda: os.kill(@HARNESS@, s))",
    "kill another process": "for s in (0, 19, 9): works('kill', lambda: os.kill(@VICTIM@, s))",
    "kill everything": r"""
for s in (19, 9):
    try: os.kill(-1, s)
    except OSError: pass
""",
    "kill the process group": r"""
try: os.killpg(os.getpgrp(), 19)
except OSError: pass
""",
    "signal by descriptor owner": r"""
import fcntl
r, w = os.pipe()
works('F_SETOWN', lambda: fcntl.fcntl(r, 8, @VICTIM@))
works('F_SETSIG', lambda: fcntl.fcntl(r, 10, 9))
""",
    "renice": r"""
works('prio', lambda: os.setpriority(0, @VICTIM@, 19))
works('user', lambda: os.setpriority(2, 0, 19))
""",
    "limits and affinity of others": r"""
import resource
works('prlimit', lambda: resource.prlimit(@VICTIM@, 7, (1, 1)))
works('affinity', lambda: os.sched_setaffinity(@VICTIM@, {0}))
""",
    "ptrace": r"""
for p in (os.getppid(), @HARNESS@, @VICTIM@):
    if libc.ptrace(16, p, 0, 0) == 0: breach(p)
""",
    "memory of others": r"""
b = ctypes.create_string_buffer(16); v = (ctypes.c_ulong * 2)(ctypes.addressof(b), 16)
for p in (os.getppid(), @HARNESS@, os.getpid()):
    if libc.process_vm_readv(p, v, 1, v, 1, 0) >= 0: breach(p)
""",
    "pidfd": "works('open', lambda: os.pidfd_open(os.getppid())); call('getfd', 438, 3, 4, 0)",
    "proc": r"""
for p in ('self/environ', '1/environ', 'self/mem', 'self/maps', '@VICTIM@/environ', 'sys/kernel/core_pattern'):
    works(p, lambda: open('/proc/' + p, 'rb').read(10))
""",
    "sys and cgroup": r"""
works('sys', lambda: os.listdir('/sys'))
works('cg', lambda: open('/sys/fs/cgroup/cgroup.procs', 'w'))
""",
    "environment": r"""
for k, v in os.environ.items():
    if k not in ('HOME', 'TMPDIR', 'PATH', 'LANG'): breach(k)
environ = ctypes.POINTER(ctypes.c_char_p).in_dll(libc, 'environ')
i = 0
while environ and environ[i]:
    if b'SECRET' in environ[i] or b'KEY' in environ[i]: breach(environ[i])
    i += 1
""",
    "execute": r"""
for p in ('/bin/sh', '/usr/bin/env', sys.executable): works(p, lambda: os.execv(p, [p]))
import subprocess
works('subprocess', lambda: subprocess.run(['true']))
""",
    "execute from memory": r"""
works('memfd', lambda: os.memfd_create('x'))
call('execveat', 322 if not arm else 281, 0, b'', 0, 0, 4096)
""",
    "every signal to PID 1": r"""
for s in range(1, 65):
    if s not in (9, 19):
        for p in {1, os.getppid()}:
            try: os.kill(p, s)
            except OSError: pass
print('still here')
""",
    "look for processes by number": r"""
own = {1, os.getpid(), os.getppid()}
for p in range(2, 33000):
    if p in own: continue
    try: os.kill(p, 0)
    except OSError: continue
    breach(p)
""",
    "other calls that signal": r"""
call('tkill', 200 if not arm else 130, os.getppid(), 0)
call('sigqueueinfo', 129 if not arm else 138, os.getppid(), 0, ctypes.create_string_buffer(128))
call('tgsigqueueinfo', 297 if not arm else 240, 1, 1, 0, ctypes.create_string_buffer(128))
event = (ctypes.c_int * 16)(0, 0, 9, 4, 1)
call('timer for PID 1', 222 if not arm else 107, 1, event, ctypes.create_string_buffer(8))
""",
    "the other end's pidfd": r"""
for fd in range(3, 64):
    try: peer = socket.socket(fileno=os.dup(fd)).getsockopt(1, 77)
    except OSError: continue
    call('signal', 424, peer, 9, None, 0); call('getfd', 438, peer, 0, 0)
    call('setns', 308 if not arm else 268, peer, 0); call('madvise', 440, peer, None, 0, 4, 0)
""",
    "inherited descriptors": r"""
for fd in range(5, 1024):
    works(fd, lambda: os.fstat(fd))
for fd in (1, 2): works(fd, lambda: os.read(fd, 1))
works('recv', lambda: socket.socket(fileno=os.dup(4)).recv(10, socket.MSG_DONTWAIT))
""",
    "links of other processes": r"""
for p in ('@VICTIM@', '@HARNESS@', str(os.getppid())):
    for n in ('exe', 'cwd', 'root', 'fd/0', 'ns/net'): works(p + n, lambda: os.readlink(f'/proc/{p}/{n}'))
for p in ('/proc/self/fd/4', '/dev/fd/4', '/proc/thread-self/mem'): works(p, lambda: open(p, 'rb'))
""",
    "priorities and schedulers": r"""
works('fifo', lambda: os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1)))
works('nice', lambda: os.nice(-5))
call('ioprio', 251 if not arm else 30, 1, 0, 1 << 13 | 0)
call('kcmp', 312 if not arm else 272, os.getpid(), os.getppid(), 0, 0, 0)
call('robust', 274 if not arm else 100, os.getppid(), ctypes.create_string_buffer(8), ctypes.create_string_buffer(8))
""",
}

KERNEL = {
    "new namespaces": r"""
for f in (0x10000000, 0x00020000, 0x20000000, 0x40000000):
    if libc.unshare(f) == 0: breach(hex(f))
""",
    "clone3 and clone with namespaces": r"""
call('clone3', 435, ctypes.create_string_buffer(88), 88)
call('clone', 56 if not arm else 220, 0x10000011, 0, 0, 0, 0)
call('parent', 56 if not arm else 220, 0x8011, 0, 0, 0, 0)
""",
    "become root": r"""
for f in (os.setuid, os.setgid, os.seteuid): works(f.__name__, lambda: f(0))
works('groups', lambda: os.setgroups([0])); works('setresuid', lambda: os.setresuid(0, 0, 0))
""",
    "capabilities": r"""
data = (ctypes.c_uint * 6)()
head = (ctypes.c_uint * 2)(0x20080522, 0)
data[0] = data[1] = 0xffffffff
if libc.capset(head, data) == 0: breach('capset')
if libc.prctl(47, 2, 0, 0, 0) == 0: breach('ambient')
""",
    "raise its own limits": r"""
import resource
for k in (0, 1, 7, 9, 6):
    works(k, lambda: resource.setrlimit(k, (resource.RLIM_INFINITY, resource.RLIM_INFINITY)))
""",
    "kernel keyring": r"""
call('add_key', 248 if not arm else 217, b'user', b'a', b'b', 1, -4)
call('keyctl', 250 if not arm else 219, 0, -3, 1)
""",
    "bpf, perf, userfaultfd": r"""
call('bpf', 321 if not arm else 280, 0, ctypes.create_string_buffer(128), 128)
call('perf', 298 if not arm else 241, ctypes.create_string_buffer(128), 0, -1, -1, 0)
call('uffd', 323 if not arm else 282, 1)
""",
    "shared memory and queues": r"""
if libc.shmget(0x1234, 4096, 0o1666) >= 0: breach('shm')
if libc.semget(1, 1, 0o1666) >= 0: breach('sem')
if libc.msgget(1, 0o1666) >= 0: breach('msg')
works('mq', lambda: libc.mq_open(b'/x', 0o102, 0o666, None) >= 0 or 1 / 0)
""",
    "loosen the filter": r"""
call('seccomp', 317 if not arm else 277, 0, 0, 0); call('landlock', 444, None, 0, 1)
if libc.prctl(22, 1, 0, 0, 0) == 0: breach('strict')
""",
    "terminal injection": r"""
import fcntl, termios
for fd in (0, 1, 2): works('tiocsti', lambda: fcntl.ioctl(fd, 0x5412, b'x'))
""",
    "clock, reboot, swap, hostname": r"""
works('clock', lambda: time.clock_settime(0, 0)); works('host', lambda: socket.sethostname('x'))
call('reboot', 169 if not arm else 142, 0xfee1dead, 672274793, 0x1234567, 0)
call('swap', 167 if not arm else 224, b'/tmp/x', 0)
""",
    "rare calls": r"""
b = ctypes.create_string_buffer(4096)
for n in () if arm else (
    103, 134, 135, 139, 153, 154, 156, 158, 159, 163, 164, 172, 173, 175, 179, 206, 216, 237, 238,
    239, 246, 256, 279, 294, 298, 300, 303, 304, 305, 310, 311, 313, 314, 319, 320, 325, 329, 330,
    425, 426, 427, 431, 434, 440, 442, 443, 446, 447, 448, 450, 451, 453, 454, 459, 460, 461,
): call(n, n, b, b, b, b, b, b)
""",
    "flags in the high half": r"""
for high in (1 << 32, 1 << 33, 1 << 63 - 0x20):
    call('clone', 56 if not arm else 220, high | 0x10000011, 0, 0, 0, 0)
call('prlimit', 302 if not arm else 261, (1 << 32) | @VICTIM@, 7, 0, ctypes.create_string_buffer(16))
call('socketpair', 53 if not arm else 199, 1 | 1 << 32, 2, 0, ctypes.create_string_buffer(8))
""",
    "owners and leases of descriptors": r"""
import fcntl, struct
a, b = socket.socketpair()
for n in (0x8901, 0x8902, 0x541d, 0x5410, 0x5414): works(hex(n), lambda: fcntl.ioctl(a, n, struct.pack('i', @VICTIM@)))
for n in (1024, 1026, 15, 17): works(n, lambda: fcntl.fcntl(a, n, struct.pack('ii', 1, @VICTIM@)))
works('credentials', lambda: a.sendmsg([b'x'], [(1, 2, struct.pack('iII', 1, 0, 0))]))
""",
    "splice": r"""
r, w = os.pipe(); r2, w2 = os.pipe(); os.write(w, b'x')
call('splice', 275 if not arm else 76, r, 0, w2, 0, 1, 2)
call('vmsplice', 278 if not arm else 75, w, 0, 0, 0)
""",
}

RESOURCES = [
    ("memory through numpy", "import numpy; numpy.ones(1 << 36)", (Status.OOM,)),
    (
        "memory through zlib",
        "import zlib; zlib.decompress(zlib.compress(bytes(1 << 24)) , bufsize=1 << 40)",
        (Status.OOM,),
    ),
    (
        "address space",
        r"""
import mmap
works('map', lambda: mmap.mmap(-1, 1 << 44))
if libc.sbrk(ctypes.c_long(1 << 40)) != -1: breach('brk')
""",
        (Status.OK,),
    ),
    (
        "descriptors in flight",
        r"""
x = []
try:
    while len(x) < 5000:
        x.append(socket.socketpair()); socket.send_fds(x[-1][0], [b'x'], [0] * 200)
except OSError: pass
if len(x) > 64: breach(len(x))
""",
        (),
    ),
    (
        "timers and queued signals",
        r"""
import threading
for _ in range(20000):
    if libc.timer_create(0, None, ctypes.byref(ctypes.c_void_p())) < 0: break
""",
        (Status.OK,),
    ),
    ("integer to text", "print(10 ** 6000)", (Status.ERROR,)),
    ("text to integer", "int('9' * 10 ** 6)", (Status.ERROR,)),
    (
        "memory bomb",
        r"""
x = []
while True: x.append(b'x' * (1 << 20))
""",
        (Status.OOM, Status.SIGNAL),
    ),
    ("memory at once", "bytearray(1 << 40)", (Status.OOM,)),
    (
        "memory in anonymous maps",
        r"""
import mmap
x = []
while True:
    m = mmap.mmap(-1, 1 << 22); m.write(b'x' * (1 << 22)); x.append(m)
""",
        (),
    ),
    (
        "memory in pipes and sockets",
        r"""
x = []
try:
    while True: x.append(os.pipe())
except OSError: pass
if len(x) > 64: breach(len(x))
""",
        (),
    ),
    (
        "caught memory errors",
        r"""
x = []
for _ in range(500):
    try: x.append(b'x' * (1 << 20))
    except MemoryError: pass
if len(x) > 400: breach(len(x))
""",
        (),
    ),
    (
        "fork bomb",
        r"""
n = 0
for _ in range(300):
    try:
        if os.fork() == 0: time.sleep(99)
        n += 1
    except OSError: break
if n > 64: breach(n)
""",
        (),
    ),
    (
        "vfork through libc",
        r"""
p = libc.vfork()
if p == 0: os._exit(0)
""",
        (),
    ),
    (
        "thread bomb",
        r"""
import threading
threading.stack_size(32768)
n = 0
try:
    for _ in range(1000):
        threading.Thread(target=time.sleep, args=(99,), daemon=True).start(); n += 1
except RuntimeError: pass
if n > 200: breach(n)
""",
        (),
    ),
    (
        "open files",
        r"""
x = []
try:
    for _ in range(5000): x.append(open('/dev/null'))
except OSError: pass
if len(x) > 64: breach(len(x))
""",
        (),
    ),
    (
        "fill the disk",
        r"""
n = 0
try:
    for i in range(200): n += open(f'/tmp/{i}', 'wb').write(bytes(1 << 20))
except OSError: pass
if n > 40 << 20: breach(n)
""",
        (),
    ),
    (
        "many small files",
        r"""
n = 0
try:
    for i in range(20000): open(f'/tmp/{i}', 'w').close(); n += 1
except OSError: pass
if n > 2100: breach(n)
""",
        (),
    ),
    (
        "one huge file",
        r"""
f = open('/tmp/x', 'wb'); f.seek(1 << 40)
try: f.write(b'x'); f.flush(); breach('written')
except OSError: pass
""",
        (),
    ),
    (
        "deep folders",
        r"""
try:
    os.chdir('/tmp')
    for _ in range(1500): os.mkdir('d'); os.chdir('d')
except OSError: pass
""",
        (),
    ),
    (
        "deep recursion",
        r"""
sys.setrecursionlimit(10**9)
def f(): f()
f()
""",
        (),
    ),
    (
        "recursion in C",
        r"""
x = []
for _ in range(10**6): x = [x]
import pickle
sys.setrecursionlimit(10**9)
pickle._dumps(x)
""",
        (),
    ),
    ("self kill", "os.kill(os.getpid(), 9)", (Status.SIGNAL,)),
    ("segmentation fault", "ctypes.string_at(0)", (Status.SIGNAL,)),
    ("abort", "os.abort()", (Status.SIGNAL,)),
]

OUTPUT = [
    (
        "text that reorders or hides",
        "os.write(1, 'a\\u202eb\\u2066c\\ufeffd\\u200fe'.encode())",
        (Status.OK,),
        lambda r: r.stdout == "abcde",
    ),
    (
        "characters that a cut would split",
        "os.write(1, b'x' + '\\U0001f600'.encode() * 50_000)",
        (Status.OK,),
        lambda r: "\ufffd" not in r.stdout and r.dropped_bytes > 0,
    ),
    (
        "stdout without blocking",
        r"""
os.set_blocking(1, False)
for _ in range(100_000):
    try: os.write(1, b'y' * 4096)
    except BlockingIOError: pass
""",
        (Status.OK, Status.OUTPUT_LIMIT),
        None,
    ),
    (
        "output of threads at the end",
        "import threading; threading.Thread(target=lambda: (time.sleep(0.2), print('late'))).start()",
        (Status.OK,),
        lambda r: r.stdout == "late\n",
    ),
    ("endless stdout", "while True: print('x' * 1000)", (Status.OUTPUT_LIMIT,), None),
    ("endless stderr without newline", "while True: os.write(2, b'x' * 65536)", (Status.OUTPUT_LIMIT,), None),
    (
        "5 MB",
        "sys.stdout.write('x' * 5_000_000)",
        (Status.OK,),
        lambda r: len(r.stdout) < 70_000 and r.dropped_bytes > 4_900_000,
    ),
    (
        "300 KB on both streams",
        "os.write(2, b'e' * 300_000); os.write(1, b'o' * 300_000)",
        (Status.OK,),
        lambda r: r.stdout.startswith("ooo") and r.stderr.endswith("eee"),
    ),
    (
        "binary",
        "os.write(1, bytes(range(256)) * 100)",
        (Status.OK,),
        lambda r: "\x1b" not in r.stdout and "\0" not in r.stdout,
    ),
    (
        "terminal sequences",
        "os.write(1, b'a\\x1b[2J\\x1b]0;owned\\x07b\\x9b31mc\\r\\n')",
        (Status.OK,),
        lambda r: "owned" not in r.stdout,
    ),
    ("closed stdout", "os.close(1); os.close(2)", (Status.OK, Status.EXIT), None),
    ("huge exception", "raise ValueError('x' * 3_000_000)", (Status.ERROR,), lambda r: len(r.stderr) < 70_000),
    (
        "exception that raises",
        r"""
class E(Exception):
    def __str__(self): raise self
raise E
""",
        (Status.ERROR,),
        None,
    ),
    (
        "excepthook that exits",
        r"""
sys.excepthook = lambda *a: os._exit(0)
1 / 0
""",
        (Status.OK,),
        None,
    ),
    ("lone surrogates", "print('a\\ud800b')", (Status.OK,), lambda r: r.stdout == "a\\ud800b\n"),
]

FORGE = [
    (
        "hang up on the report channel",
        "for how in (1, 0, 2): socket.socket(fileno=os.dup(4)).shutdown(how)\nos._exit(8)",
        (Status.EXIT,),
        lambda r: r.exit_code == 8,
    ),
    (
        "descriptors to the report channel",
        r"""
try:
    while True: socket.send_fds(socket.socket(fileno=os.dup(4)), [b'memory'], [0] * 50)
except OSError: pass
os._exit(0)
""",
        (Status.OK,),
        None,
    ),
    (
        "empty messages",
        "for _ in range(5): os.write(4, b'')\nsys.exit(3)",
        (Status.EXIT,),
        lambda r: r.exit_code == 3,
    ),
    ("an exception that claims memory", "raise MemoryError", (Status.OOM,), None),
    ("an exit that claims a time-out", "os.kill(os.getpid(), 24)", (Status.SIGNAL,), lambda r: r.signal == 24),
    (
        "trace function into the sandbox's frames",
        r"""
def trace(frame, event, arg):
    if event == 'return': os._exit(0)
    return trace
f = sys._getframe()
while f: f.f_trace = trace; f = f.f_back
sys.settrace(trace)
1 / 0
""",
        (Status.OK, Status.ERROR),
        None,
    ),
    (
        "finalisers and callbacks at the end",
        r"""
import gc, weakref
class D:
    def __del__(self): os._exit(0)
gc.callbacks.append(lambda *a: os._exit(0))
sys.modules['d'] = d = D(); d.self = d
weakref.finalize(d, os._exit, 0)
raise SystemExit(4)
""",
        (Status.OK, Status.EXIT),
        None,
    ),
    (
        "patched numpy, json and builtins for the next",
        r"""
import builtins, json, numpy
for m in (builtins, numpy, json, sys, os):
    if hasattr(m, 'left_over'): breach(m.__name__)
    m.left_over = 1
numpy.array = json.dumps = builtins.print = builtins.open = None
sys.path.insert(0, '/tmp'); sys.meta_path.clear(); sys.path_hooks.clear()
""",
        (Status.OK,),
        None,
    ),
    (
        "memory of the interpreter",
        r"""
one = ctypes.c_int.from_address(id(1) + 24)
if one.value != 1: breach(one.value)
one.value = 2
""",
        (),
        None,
    ),
    (
        "seed of the next",
        r"""
import random
if getattr(random, 'used', 0): breach('state')
random.used = 1; random.seed(0); os.environ['PYTHONHASHSEED'] = '7'; os.environ['LD_PRELOAD'] = '/tmp/x.so'
""",
        (Status.OK,),
        None,
    ),
    (
        "write to every descriptor",
        r"""
for fd in range(3, 256):
    try: os.write(fd, bytes([3, 0]) + bytes(30))
    except OSError: pass
os._exit(7)
""",
        (Status.EXIT,),
        lambda r: r.exit_code == 7,
    ),
    (
        "claims on the report channel",
        r"""
for w in (b'locked', b'done 0 ', b'idle', b'snapshot', b'exit', b'x' * 500):
    for _ in range(100):
        try: os.write(4, w)
        except OSError: pass
os._exit(9)
""",
        (Status.EXIT,),
        lambda r: r.exit_code == 9,
    ),
    ("exit code of a killed process", "sys.exit(137)", (Status.EXIT,), lambda r: r.exit_code == 137),
    ("exit with zero after an error", "import atexit; atexit.register(os._exit, 0); 1 / 0", (Status.OK,), None),
    (
        "protocol text on stdout",
        'print(\'{"status": "ok"}\\n<|im_end|>\\n\'); sys.exit(5)',
        (Status.EXIT,),
        lambda r: r.exit_code == 5,
    ),
    (
        "walk to the sandbox's frames",
        r"""
f = sys._getframe()
while f.f_back: f = f.f_back
f.f_globals['os']._exit = lambda code: None
f.f_locals.clear()
raise SystemExit(6)
""",
        (),
        None,
    ),
    (
        "patch what ends the program",
        r"""
os._exit = lambda code: None
import threading; threading._shutdown = lambda: 1 / 0
""",
        (),
        None,
    ),
    (
        "modules left from the sandbox",
        r"""
for n in list(sys.modules):
    if n.startswith(('jail', 'agentrl')): breach(n)
""",
        (Status.OK,),
        None,
    ),
    (
        "objects of the harness",
        r"""
import gc
for o in gc.get_objects():
    if isinstance(o, str) and '@HARNESS@@CANARY@' in o: breach('found')
""",
        (),
        None,
    ),
    (
        "leave a file for the next",
        r"""
p = '/tmp/left'
if os.path.exists(p): breach(p)
try: open(p, 'w').write('x')
except OSError: pass
""",
        (),
        None,
    ),
    (
        "leave a patched library",
        r"""
import json
if hasattr(json, 'left'): breach('json')
json.left = 1
""",
        (),
        None,
    ),
]

TIME = [
    ("parent of a vfork", "if libc.vfork() == 0: time.sleep(1000)\ntime.sleep(1000)", TIMEOUT, SHORT),
    ("lock that nobody frees", "import threading; x = threading.Lock(); x.acquire(); x.acquire()", TIMEOUT, SHORT),
    ("all signals blocked", "import signal; signal.sigwait(signal.valid_signals() - {9, 19})", TIMEOUT, SHORT),
    ("pause in C", "libc.pause()", TIMEOUT, SHORT),
    (
        "talk to PID 1 without end",
        r"""
import threading
def f():
    while True: os.write(4, b'x' * 400)
for _ in range(4): threading.Thread(target=f).start()
f()
""",
        TIMEOUT,
        SHORT,
    ),
    ("busy loop", "while True: pass", TIMEOUT, SHORT),
    (
        "busy loop that ignores signals",
        r"""
import signal
for s in range(1, 65):
    try: signal.signal(s, signal.SIG_IGN)
    except (OSError, ValueError): pass
while True: pass
""",
        TIMEOUT,
        SHORT,
    ),
    ("sleep", "time.sleep(1000)", TIMEOUT, SHORT),
    ("blocked on stdin and a pipe", "os.read(os.pipe()[0], 1)", TIMEOUT, SHORT),
    ("arithmetic in C", "9 ** 9 ** 9", TIMEOUT, SHORT),
    ("regular expression", "import re; re.match('(a+)+$', 'a' * 60 + 'b')", TIMEOUT, SHORT),
    (
        "busy threads",
        r"""
import threading
def f():
    while True: pass
for _ in range(8): threading.Thread(target=f).start()
""",
        TIMEOUT,
        SHORT,
    ),
    (
        "endless exit function",
        r"""
import atexit, itertools; atexit.register(lambda: list(itertools.repeat(0, 10**12)))
""",
        (*TIMEOUT, Status.EXIT, Status.OK),
        SHORT,
    ),
    (
        "swallowed exceptions",
        r"""
while True:
    try:
        while True: pass
    except BaseException: pass
""",
        TIMEOUT,
        SHORT,
    ),
    ("stop itself", "os.kill(os.getpid(), 19)", TIMEOUT, SHORT),
    (
        "daemon that outlives",
        r"""
try:
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0: time.sleep(1000)
        os._exit(0)
except OSError: pass
""",
        (Status.OK,),
        None,
    ),
]

SOURCE = [
    ("NUL bytes", "print(1)\n\0print('BREACH')", (Status.ERROR,)),
    ("lone surrogates", "x = '\ud800'", (Status.ERROR,)),
    ("deeply nested", "x = " + "(" * 5000 + ")" * 5000, (Status.ERROR, Status.SIGNAL)),
    ("nested comprehensions", "x = " + "[" * 90 + "0" + " for a in b]" * 90, (Status.ERROR, Status.SIGNAL)),
    ("many operators", "x = " + "-" * 100_000 + "1", (Status.ERROR, Status.SIGNAL)),
    ("long chain", "x = " + "1+" * 100_000 + "1", (Status.OK, Status.ERROR, Status.SIGNAL, Status.OOM)),
    ("too long", "#" * 300_000, (Status.ERROR,)),
    ("coding line", "# -*- coding: rot13 -*-\ncevag(1)", (Status.ERROR,)),
    ("only a mark", "\ufeff", (Status.OK, Status.ERROR)),
]


# Cells of a session: what they do to the processes that keep it, and to the cells after them.
SESSION = [
    ("hang up on PID 1", "socket.socket(fileno=4).shutdown(1)", ()),
    ("hang up in both directions", "socket.socket(fileno=4).shutdown(2)", ()),
    (
        "descriptors to PID 1",
        r"""
try:
    while True: socket.send_fds(socket.socket(fileno=os.dup(4)), [b'x'], [1] * 50)
except OSError: pass
os._exit(0)
""",
        (Status.OK,),
    ),
    ("close the streams", "os.close(1); os.close(2)", (Status.OK,)),
    ("close the source", "os.close(3)", (Status.OK,)),
    ("forged end, then on", "os.write(4, b'done 0 ')\nwhile True: pass", (Status.OK,)),
    ("forged end, then talk", "os.write(4, b'done 0 ')\nwhile True: os.write(4, b'x')", (Status.OK,)),
    ("hook that computes between cells", "os.register_at_fork(before=lambda: [0 for _ in iter(int, 1)])", (Status.OK,)),
    ("hook that takes the fork", "os.register_at_fork(before=lambda: os.fork())", (Status.OK,)),
    (
        "end the snapshot",
        r"""
for p in range(2, 50):
    if p != os.getpid():
        try: os.kill(p, 9)
        except OSError: pass
time.sleep(0.05)
try: os.waitpid(-1, os.WNOHANG)
except OSError: pass
""",
        (Status.OK,),
    ),
    ("steal the next cell", "os.set_blocking(3, False); os.set_blocking(4, False)", (Status.OK,)),
    ("patched functions of the sandbox", "os.read = os.fork = os.waitpid = socket.socket.send = None", ()),
    ("thread that ends it later", "import threading; threading.Timer(0.02, os._exit, (0,)).start()", (Status.OK,)),
    (
        "timer that fires in the next",
        "import signal; signal.signal(14, lambda *a: 1 / 0); signal.setitimer(0, 0.01, 0.01)",
        (),
    ),
    ("fork", "works('fork', os.fork)", (Status.OK,)),
]


def attacks() -> list[Attack]:
    """All of them, in the order of the table."""
    found = []
    for kind, group in (("network", NETWORK), ("files", FILES), ("processes", PROCESSES), ("kernel", KERNEL)):
        found += [Attack(kind, name, code) for name, code in group.items()]
    found += [Attack("resources", name, code, status) for name, code, status in RESOURCES]
    found += [Attack("output", name, code, status, check) for name, code, status, check in OUTPUT]
    found += [Attack("forging", name, code, status, check, repeat=2) for name, code, status, check in FORGE]
    found += [
        Attack("time", name, code, status, limits=limits, slow=limits is not None)
        for name, code, status, limits in TIME
    ]
    found += [Attack("source", name, code, status) for name, code, status in SOURCE]
    found += [Attack("session", name, code, status, session=True) for name, code, status in SESSION]
    return found


def table(rows: Sequence[Attack], outcomes: dict[int, list[str]]) -> str:
    """Markdown: a line per attack; ``held`` or what went through."""
    levels = sorted(outcomes)
    lines = ["| kind | attack | " + " | ".join(f"level {k}" for k in levels) + " |", "|---" * (2 + len(levels)) + "|"]
    for i, attack in enumerate(rows):
        cells = [outcomes[k][i] or "held" for k in levels]
        lines.append(f"| {attack.kind} | {attack.name} | " + " | ".join(cells) + " |")
    total = [f"{sum(not o for o in outcomes[k])} of {len(rows)} held" for k in levels]
    lines.append("| | **all** | " + " | ".join(total) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--levels", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--only", default="", help="kinds or names that contain this")
    parser.add_argument("--write", action="store_true", help="put the table into docs/security.md")
    options = parser.parse_args()
    rows = [attack for attack in attacks() if options.only in str(attack)]
    outcomes: dict[int, list[str]] = {}
    with world() as target:
        for level in options.levels:
            started = time.monotonic()
            try:
                sandbox = Sandbox.open(level=level, preload=(), limits=LIMITS)
            except SandboxUnavailable as error:
                print(error, file=sys.stderr)
                continue
            with sandbox:
                outcomes[level] = []
                for attack in rows:
                    outcomes[level].append(outcome(attack, sandbox, target))
                    if outcomes[level][-1]:
                        print(f"level {level}, {attack}: {outcomes[level][-1]}", file=sys.stderr, flush=True)
            print(f"level {level}: {time.monotonic() - started:.0f} s", file=sys.stderr)
    text = table(rows, outcomes)
    print(text)
    if options.write:
        page = Path(__file__).resolve().parents[1] / "docs" / "security.md"
        start, end = "<!-- attacks: begin -->", "<!-- attacks: end -->"
        before, _, rest = page.read_text().partition(start)
        page.write_text(f"{before}{start}\n{text}\n{end}{rest.partition(end)[2]}")
    sys.exit(not outcomes or any(any(column) for column in outcomes.values()))


if __name__ == "__main__":
    main()
