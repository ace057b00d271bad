"""Programs a minute with numpy and sympy ready: the sandbox against a cold interpreter and, where installed, bwrap.

    python scripts/bench_sandbox.py                 # about a minute; run it on an idle machine
    python scripts/bench_sandbox.py --seconds 3 --levels 2

All in one run, the same program, the same number in flight. "prepared call" and "session cell" are one at a time, with
a pause between two as when a model thinks; "busy" is the share of CPU time in use before the measurement.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from agentrl.sandbox import Limits, Sandbox, SandboxUnavailable, Status

PROGRAM = "import numpy, sympy\nprint(numpy.arange(10).sum(), sympy.Integer(6) * 7)"
ANSWER = "45 42\n"


def per_minute(one: Callable[[], bool], seconds: float, in_flight: int) -> float:
    """Closed loop: each of ``in_flight`` threads starts its next call when the last has ended."""
    done = [0] * in_flight
    started = time.monotonic()

    def loop(i: int) -> None:
        while time.monotonic() - started < seconds:
            if not one():
                raise SystemExit("a program gave a wrong result")
            done[i] += 1

    threads = [threading.Thread(target=loop, args=(i,)) for i in range(in_flight)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return 60 * sum(done) / (time.monotonic() - started)


def milliseconds(one: Callable[[], object], times: int, pause_s: float = 0.05) -> str:
    """Median and 95th percentile."""
    spent = []
    for _ in range(times):
        time.sleep(pause_s)
        started = time.perf_counter()
        one()
        spent.append(1000 * (time.perf_counter() - started))
    spent.sort()
    return f"{statistics.median(spent):.1f} / {spent[int(0.95 * len(spent))]:.1f}"


def process(command: Sequence[str]) -> Callable[[], bool]:
    environment = {"PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}

    def one() -> bool:
        done = subprocess.run([*command, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=False)
        return done.stdout == ANSWER

    return one


def busy(seconds: float = 1.0) -> float:
    import psutil

    return psutil.cpu_percent(seconds) / 100


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--levels", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--seconds", type=float, default=8.0, help="of each throughput measurement")
    parser.add_argument("--in-flight", type=int, default=8)
    parser.add_argument("--calls", type=int, default=60, help="of each latency measurement")
    options = parser.parse_args()
    print(f"{os.cpu_count()} cores, busy {busy():.0%} before; {options.in_flight} in flight")
    print(
        "| what | programs a minute | prepared call ms (p50 / p95) | session cell ms (p50 / p95) |\n|---|---|---|---|"
    )
    cold = per_minute(process([sys.executable, "-I"]), options.seconds, options.in_flight)
    print(f"| cold interpreter | {cold:,.0f} | | |", flush=True)
    if shutil.which("bwrap"):
        binds = [word for path in ("/usr", "/lib", "/lib64", "/etc") for word in ("--ro-bind-try", path, path)]
        for path in dict.fromkeys((sys.base_prefix, sys.prefix)):
            binds += ["--ro-bind", path, path]
        bwrap = per_minute(
            process(["bwrap", "--unshare-all", "--die-with-parent", *binds, sys.executable, "-I"]),
            options.seconds,
            options.in_flight,
        )
        print(f"| bwrap | {bwrap:,.0f} | | |", flush=True)
    limits = replace(Limits(wall_s=60), session_cells=10_000)
    for level in options.levels:
        try:
            sandbox = Sandbox.open(level=level, limits=limits)
        except SandboxUnavailable as error:
            print(error, file=sys.stderr)
            continue
        with sandbox:
            print(f"| level {level} | {measure(sandbox, options)} |", flush=True)


def measure(sandbox: Sandbox, options: argparse.Namespace) -> str:
    calls = per_minute(lambda: sandbox.run(PROGRAM).stdout == ANSWER, options.seconds, options.in_flight)
    latency = milliseconds(lambda: sandbox.run("print(1)"), options.calls)
    with sandbox.session() as session:
        session.run("x = 1")
        cells = milliseconds(lambda: session.run("x += 1"), options.calls)
    assert sandbox.counts[Status.INFRA_ERROR.value] == 0
    return f"{calls:,.0f} | {latency} | {cells}"


if __name__ == "__main__":
    main()
