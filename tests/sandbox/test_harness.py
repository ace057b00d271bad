"""The harness's side: overload, retries, the breaker, refusal, and a death at any moment."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from agentrl.errors import UserError
from agentrl.sandbox import Limits, Sandbox, SandboxBroken, SandboxUnavailable, Status
from agentrl.sandbox import pool as pool_module
from agentrl.sandbox.worker import WorkerFailed


def test_overload_makes_nobody_time_out(isolated: Sandbox) -> None:
    """200 at once on a few places: waiting in the queue is reported, and does not count as the program's time."""
    limits = Limits(cpu_s=2, wall_s=30)
    with ThreadPoolExecutor(200) as threads:
        results = list(threads.map(lambda i: isolated.run(f"print({i})", limits=limits), range(200)))
    assert [r.stdout for r in results] == [f"{i}\n" for i in range(200)]
    assert max(r.queue_s for r in results) > max(r.wall_s for r in results) / 10


def test_a_dead_fork_server_costs_one_retry(confined: Sandbox) -> None:
    restarts = confined.counts["restarts"]
    keeper = psutil.Process(confined._workers[0]._process.pid)
    for child in [*keeper.children(recursive=True), keeper]:
        child.kill()
    assert confined.run("print(1)").stdout == "1\n"
    assert confined.counts["restarts"] == restarts + 1


def test_the_breaker_stops_a_run_whose_sandbox_keeps_failing(
    confined: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise WorkerFailed("no more processes")

    monkeypatch.setattr(pool_module, "converse", fail)
    recent = confined._recent.copy()
    try:
        results = [confined.run("print(1)") for _ in range(4)]
        assert {r.status for r in results} == {Status.INFRA_ERROR} and results[0].note == "no more processes"
        with pytest.raises(SandboxBroken, match="no more processes"):
            confined.run("print(1)")
    finally:
        confined._recent = recent


def test_a_harness_without_descriptors_is_no_fault_of_the_program(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limit is this process's own: typed, counted, nothing left open, and the sandbox works again after it."""
    recent, before = sandbox._recent.copy(), psutil.Process().num_fds()
    while sandbox._prepared:
        sandbox._prepared.pop().close()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/proc/self/fd"))) + 8, hard))
    held: list[int] = []
    try:
        with contextlib.suppress(OSError):
            while True:
                held.append(os.open("/dev/null", os.O_RDONLY))
        for _ in range(4):
            os.close(held.pop())
        failed = [sandbox.run("print(1)"), sandbox.session().run("print(1)")]
    finally:
        for fd in held:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        sandbox._recent = recent
    assert {r.status for r in failed} == {Status.INFRA_ERROR} and "descriptors" in failed[0].note
    assert psutil.Process().num_fds() <= before
    assert sandbox.run("print(1)").stdout == "1\n"
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    with pytest.raises(SandboxUnavailable, match="No such file"):
        Sandbox.open(level=1, preload=())


def test_refusals_name_what_to_do() -> None:
    with pytest.raises(SandboxUnavailable, match="unsafe_local_exec"):
        Sandbox.open(level=0)
    with pytest.raises(UserError, match="valid levels"):
        Sandbox.open(level=7)
    with pytest.raises(SandboxUnavailable, match="no_such_module"):
        Sandbox.open(level=1, preload=("no_such_module",))
    with pytest.raises(UserError, match="wall_s"):
        Limits(wall_s=0)


def test_without_isolation_only_by_the_long_flag_and_stamped() -> None:
    with Sandbox.open(level=0, preload=(), unsafe_local_exec=True) as box:
        assert box.run("print(1)").stdout == "1\n"
        assert box.facts()["unsafe"] is True and box.facts()["level"] == 0


def test_source_and_stdin_of_any_kind(sandbox: Sandbox) -> None:
    assert sandbox.run("import sys; print(len(sys.stdin.read()))", stdin="é" * 300_000).stdout == "300000\n"
    assert sandbox.run("print('not read')", stdin="x" * 1_000_000).stdout == "not read\n"
    assert sandbox.run("").status == Status.OK
    long = sandbox.run("#" * 300_000)
    assert long.status == Status.ERROR and "262144" in long.stderr


HARNESS = """
import sys, threading, time
from agentrl.sandbox import Sandbox, Limits
box = Sandbox.open(level=int(sys.argv[1]), preload=(), limits=Limits(cpu_s=100, wall_s=100))
session = box.session()
session.run("x = 1")
for code in ("import time; time.sleep(90)", "while True: pass"):
    threading.Thread(target=box.run, args=(code,), daemon=True).start()
time.sleep(0.5)
print("ready", flush=True)
time.sleep(100)
"""


@pytest.mark.parametrize("level", [1, 2, 3])
def test_killing_the_harness_leaves_nothing(level: int) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    harness = subprocess.Popen(
        [sys.executable, "-c", HARNESS, str(level)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert harness.stdout is not None and harness.stderr is not None
    if harness.stdout.readline() != "ready\n":
        error = harness.stderr.read()
        if level == 3 and "SandboxUnavailable" in error:
            pytest.skip(error.splitlines()[-1])
        pytest.fail(error)
    below = psutil.Process(harness.pid).children(recursive=True)
    assert len(below) >= 4
    harness.send_signal(signal.SIGKILL)
    harness.wait()
    deadline = time.monotonic() + 30
    while any(p.is_running() for p in below) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert [p for p in below if p.is_running()] == []
    root = Path("/sys/fs/cgroup")
    assert not list(root.glob(f"**/agentrl-{harness.pid}-*"))
