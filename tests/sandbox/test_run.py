"""What a program's end is called, and what comes back, at every level that this machine offers."""

from __future__ import annotations

import pytest

from agentrl.sandbox import Limits, Sandbox, Status


@pytest.mark.parametrize(
    ("code", "status", "exit_code", "signal", "stdout"),
    [
        ("print(6 * 7)", Status.OK, 0, None, "42\n"),
        ("import sys; sys.exit(0)", Status.OK, 0, None, ""),
        ("1 / 0", Status.ERROR, 1, None, ""),
        ("print('a'); raise SystemExit('bye')", Status.EXIT, 1, None, "a\n"),
        ("import sys; sys.exit(137)", Status.EXIT, 137, None, ""),
        ("import os; os._exit(9)", Status.EXIT, 9, None, ""),
        ("import os; os.kill(os.getpid(), 9)", Status.SIGNAL, None, 9, ""),
        ("import os; os.abort()", Status.SIGNAL, None, 6, ""),
        ("bytearray(5 << 30)", Status.OOM, 1, None, ""),
        ("def f(", Status.ERROR, 1, None, ""),
    ],
)
def test_statuses(
    sandbox: Sandbox, code: str, status: Status, exit_code: int | None, signal: int | None, stdout: str
) -> None:
    result = sandbox.run(code)
    assert (result.status, result.exit_code, result.signal, result.stdout) == (status, exit_code, signal, stdout)


def test_cpu_and_wall_limits_are_told_apart(sandbox: Sandbox) -> None:
    limits = Limits(cpu_s=1, wall_s=20)
    busy = sandbox.run("print('before')\nwhile True: pass", limits=limits)
    assert (busy.status, busy.stdout) == (Status.TIMEOUT_CPU, "before\n")
    assert "1 s of CPU" in (busy.message() or "")
    asleep = sandbox.run("import time; print('before'); time.sleep(60)", limits=Limits(wall_s=0.5))
    assert (asleep.status, asleep.stdout) == (Status.TIMEOUT_WALL, "before\n")
    assert asleep.cpu_s < 0.5


def test_seeds_make_the_generators_repeat(sandbox: Sandbox) -> None:
    code = "import random, numpy; print(random.random(), numpy.random.rand(), sorted({'b', 'a'}), list({'b', 'a'}))"
    assert sandbox.run(code, seed=3).stdout == sandbox.run(code, seed=3).stdout
    assert sandbox.run(code, seed=3).stdout != sandbox.run(code, seed=4).stdout
    assert sandbox.run(code).stdout != sandbox.run(code).stdout


def test_the_traceback_shows_the_program_and_not_the_sandbox(sandbox: Sandbox) -> None:
    error = sandbox.run("def f():\n    return 1 / 0\nf()").stderr
    assert "return 1 / 0" in error and "jail" not in error and error.count("File ") == 2
