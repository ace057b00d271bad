"""Programs that try what a level must refuse, run in the level itself: features present are not features working.

What a program says is never taken for proof that it failed: the checks look from outside, or take any word but the
expected refusal for a failure.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from agentrl.sandbox.result import MIB, Limits, Result, Status

if TYPE_CHECKING:
    from agentrl.sandbox.pool import Sandbox

# Prints "refused" where the body raises OSError, and "done" where it does not.
TRY = "import os, socket\ntry:\n    {}\n    print('done')\nexcept OSError:\n    print('refused')\n"
FORGE = """
import os
for fd in range(3, 64):
    try: os.write(fd, bytes([3, 0]) + bytes(30))
    except OSError: pass
os._exit(3)
"""
VARIABLES = ["HOME", "LANG", "PATH", "TMPDIR"]


def run(sandbox: Sandbox) -> dict[str, bool]:
    """Name of each check and whether it passed. Takes a fraction of a second on an idle machine."""
    limits = replace(sandbox.limits, cpu_s=5, wall_s=60, memory_bytes=64 * MIB)
    with contextlib.ExitStack() as stack:
        tcp = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        abstract = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        name = f"\0agentrl-{secrets.token_hex(8)}"
        abstract.bind(name)
        abstract.listen(1)
        for server in (tcp, abstract):
            server.setblocking(False)
        canary = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "canary"
        secret = secrets.token_hex(16)
        canary.write_text(secret)
        canary.parent.chmod(0o755)
        canary.chmod(0o666)

        def refused(result: Result) -> bool:
            return result.stdout == "refused\n"

        connect_tcp = f"socket.create_connection(('127.0.0.1', {tcp.getsockname()[1]}), 2)"
        connect_abstract = f"socket.socket(socket.AF_UNIX).connect({name!r})"
        checks: dict[str, tuple[str, Callable[[Result], bool]]] = {
            "runs": ("print(6 * 7)", lambda result: (result.status, result.stdout) == (Status.OK, "42\n")),
            "tcp": (TRY.format(connect_tcp), lambda result: refused(result) and not _called(tcp)),
            "abstract socket": (TRY.format(connect_abstract), lambda result: refused(result) and not _called(abstract)),
            "read a file": (f"print(open({str(canary)!r}).read())", lambda result: secret not in result.stdout),
            "write a file": (f"open({str(canary)!r}, 'w').write('x')", lambda _: canary.read_text() == secret),
            "environment": ("import os; print(sorted(os.environ))", lambda result: result.stdout == f"{VARIABLES}\n"),
            "signal the harness": (TRY.format(f"os.kill({os.getpid()}, 18)"), refused),
            "fork": (_fork_program(sandbox.level), lambda result: result.stdout == "bounded\n"),
            "execute": (TRY.format("os.execv('/usr/bin/env', ['env'])"), refused),
            "memory": (f"x = b'x' * {96 * MIB}\nprint('done')", lambda result: result.status == Status.OOM),
            "disk": (_disk_program(sandbox.limits.tmp_bytes // MIB + 2), refused),
            "outlive": (_linger_program(sandbox.level), lambda result: result.wall_s < 45),
            "forge a result": (FORGE, lambda result: (result.status, result.exit_code) == (Status.EXIT, 3)),
        }
        with ThreadPoolExecutor(4) as threads:
            results = {k: threads.submit(_run, sandbox, code, limits) for k, (code, _) in checks.items()}
            passed = {k: bool(checks[k][1](future.result())) for k, future in results.items()}
        return {**passed, "session": _session(sandbox)}


def _run(sandbox: Sandbox, code: str, limits: Limits) -> Result:
    return sandbox.run(code, limits=limits)


def _session(sandbox: Sandbox) -> bool:
    """Variables live on, and a cell that ends its process is rolled back."""
    with sandbox.session() as session:
        cells = [session.run(code) for code in ("x = 2", "x = 3\nimport os\nos._exit(1)", "print(x)")]
    return cells[-1].stdout == "2\n"


def _called(server: socket.socket) -> bool:
    try:
        server.accept()[0].close()
    except BlockingIOError:
        return False
    return True


def _fork_program(level: int) -> str:
    if level < 3:
        return "import os\ntry: os.fork()\nexcept OSError: print('bounded')"
    return (
        "import os, time\nfor i in range(500):\n    try:\n        if os.fork() == 0: time.sleep(60)\n"
        "    except OSError:\n        print('bounded')\n        break\nelse: print('500 processes')"
    )


def _disk_program(mebibytes: int) -> str:
    return TRY.format(f"[open(f'/tmp/{{i}}', 'wb').write(bytes({MIB})) for i in range({mebibytes})]")


def _linger_program(level: int) -> str:
    if level < 3:
        return "import threading, time; threading.Thread(target=time.sleep, args=(50,), daemon=True).start()"
    return (
        "import os, time\nif os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0: time.sleep(50)\n    os._exit(0)"
    )
