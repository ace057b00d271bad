"""Running many short untrusted programs: the queue, one program's conversation, retries and the breaker."""

from __future__ import annotations

import collections
import contextlib
import math
import os
import secrets
import select
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from agentrl.errors import RunError, UserError
from agentrl.sandbox import levels
from agentrl.sandbox.cgroup import Cgroups
from agentrl.sandbox.jail.wire import ENDED, ROLLED_BACK, Order, Report
from agentrl.sandbox.result import Limits, Result, SandboxBroken, SandboxUnavailable, Status
from agentrl.sandbox.session import Session
from agentrl.sandbox.text import Kept
from agentrl.sandbox.worker import Box, Worker, WorkerFailed, WorkerGone

KILL_S = 30.0  # for PID 1 to report after it was told to end; a busy machine can need seconds
DRAIN_S = 10.0  # for the pipes to end after PID 1 has
BREAKER_CALLS, BREAKER_SHARE = 200, 0.02
SIGKILL, SIGXCPU = 9, 24
READ_SIZE = 1 << 16


class Sandbox:
    """Runs programs at one level of isolation. Thread-safe; ``run`` blocks and may be called from many threads.

    Open it with :meth:`open`.
    """

    def __init__(self, level: int, limits: Limits, preload: Sequence[str], workers: int, unsafe: bool):
        """Start the fork servers. Raises WorkerFailed."""
        self.level = level
        self.limits = limits
        self.preload = tuple(preload)
        self._unsafe = unsafe
        self._self_test: dict[str, bool] = {}
        self._above: dict[str, str] = {}
        self._lock = threading.Condition()
        self._queue: collections.deque[object] = collections.deque()
        self._running = 0
        self._capacity = 2 * workers_cores()
        self._recent: collections.deque[bool] = collections.deque(maxlen=BREAKER_CALLS)
        self._last_failure = ""
        self.counts: collections.Counter[str] = collections.Counter()
        self._closed = False
        self._workers: list[Worker] = []
        self._prepared: list[Box] = []
        try:
            for _ in range(workers):
                self._workers.append(self._start_worker())
        except BaseException:
            self.close()
            raise

    @classmethod
    def open(
        cls,
        level: int | None = None,
        limits: Limits = Limits(),
        preload: Sequence[str] = ("numpy", "sympy"),
        workers: int | None = None,
        unsafe_local_exec: bool = False,
    ) -> Sandbox:
        """Build and self-test a level; None means the highest that passes.

        :param limits: of every program that brings none of its own
        :param preload: modules that are imported once and ready in every program
        :param workers: fork servers; None means one for every four cores
        :param unsafe_local_exec: also accept no isolation at all, where nothing better works
        :raises SandboxUnavailable: no allowed level works, with what is missing
        """
        from agentrl.sandbox import selftest

        if level is not None and level not in levels.NAMES:
            raise UserError(f"sandbox level {level}: valid levels are 0, 1, 2 and 3")
        if level == 0 and not unsafe_local_exec:
            raise SandboxUnavailable("sandbox level 0 isolates nothing; it needs unsafe_local_exec=True")
        if sys.platform != "linux":
            raise SandboxUnavailable("running untrusted programs needs Linux (namespaces, Landlock, seccomp)")
        count = workers if workers is not None else max(1, workers_cores() // 4)
        wanted = [level] if level is not None else [3, 2, 1]
        if level is None and unsafe_local_exec:
            wanted.append(0)
        reasons = {}
        for candidate in wanted:
            try:
                box = cls(candidate, limits, preload, count, unsafe=candidate == 0)
            except WorkerFailed as error:
                reasons[candidate] = str(error)
                continue
            try:
                if candidate:
                    box._self_test = selftest.run(box)
            except RunError as error:
                box.close()
                reasons[candidate] = f"the self-test failed: {error}"
                continue
            except BaseException:
                box.close()
                raise
            failed = [name for name, passed in box._self_test.items() if not passed]
            if not failed:
                box._above = {levels.NAMES[k]: why for k, why in reasons.items()}
                return box
            box.close()
            reasons[candidate] = f"the self-test failed: {', '.join(failed)}"
        raise SandboxUnavailable(unavailable(reasons), reasons)

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """End everything that runs. Idempotent."""
        with self._lock:
            self._closed = True
            prepared, self._prepared = self._prepared, []
            self._lock.notify_all()
        for box in prepared:
            box.close()
        for worker in self._workers:
            worker.close()

    def facts(self) -> dict[str, Any]:
        """What isolates the programs, for run.json and trajectories; JSON-able."""
        inside = dict(self._workers[0].facts) if self._workers else {}
        return {
            "level": self.level,
            "name": levels.NAMES[self.level],
            "mechanisms": levels.MECHANISMS[self.level],
            "landlock": inside.get("landlock"),
            "preload": list(self.preload),
            "limits": {name: getattr(self.limits, name) for name in self.limits.__dataclass_fields__},
            "self_test": dict(self._self_test),
            "unavailable": dict(self._above),
            "unsafe": self._unsafe,
        }

    def run(self, code: str, *, stdin: str = "", seed: int | None = None, limits: Limits | None = None) -> Result:
        """Run one program in a sandbox of its own, and take that down.

        :param code: Python source, run as ``__main__``
        :param seed: of ``random`` and ``numpy.random``; None means a new one for each call
        :param limits: instead of the sandbox's own. ``tmp_bytes`` and ``tmp_inodes`` always are the sandbox's own.
        :raises SandboxBroken: too many of the latest calls failed for reasons of the sandbox
        :raises SandboxUnavailable: a fork server has gone and cannot be restarted at this level
        """
        limits = limits or self.limits
        source = code.encode("utf-8", "surrogatepass")
        if len(source) > limits.source_bytes:
            return self.count(too_long(len(source), limits))
        order = self.order(limits, len(source), secrets.randbits(63) if seed is None else seed)
        queued = time.monotonic()
        with self.turn():
            failure = ""
            for take in (self._take, self.spawn_ready):
                started = time.monotonic()
                try:
                    with contextlib.closing(take()) as box:
                        box.wait_ready()
                        pending = {"code": order.pack() + source, "stdin": stdin.encode("utf-8", "surrogatepass")}
                        result = converse(box, pending, limits)
                except (WorkerFailed, OSError) as error:  # of this process or its control groups, never the program's
                    failure = str(error)
                    self.counts["retries"] += 1
                    continue
                return self.count(replace(result, queue_s=started - queued))
        return self.count(Result(Status.INFRA_ERROR, note=failure, limits=limits))

    def session(self, seed: int | None = None, prelude: str = "") -> Session:
        """A session of cells that share their variables; close it.

        :param prelude: trusted source that runs before the first cell, and again where a session must begin anew; where
            it fails, the cell is an ``infra_error``
        """
        return Session(self, seed, prelude)

    def spawn(self, kind: str = "call") -> Box:
        """A sandbox that is not yet ready. Raises WorkerFailed, SandboxUnavailable."""
        self._revive()
        return self._worker().spawn(kind)

    def spawn_ready(self, kind: str = "call") -> Box:
        """A new sandbox that waits for its program. Raises WorkerFailed, SandboxUnavailable.

        A fork server that was killed a moment ago may still look alive, as may the sandboxes it prepared; one that does
        not bring a new sandbox to life is replaced, once.
        """
        try:
            return self._spawn_ready(kind)
        except WorkerGone:
            return self._spawn_ready(kind)

    def _spawn_ready(self, kind: str) -> Box:
        box = self.spawn(kind)
        try:
            box.wait_ready()
        except BaseException as error:
            box.close()
            if isinstance(error, WorkerGone):
                box.worker.kill()
            raise
        return box

    def order(self, limits: Limits, source_length: int, seed: int) -> Order:
        address_space = int(limits.memory_bytes) * (2 if self.level >= 3 else 1)
        return Order(
            seed=seed & 0xFFFFFFFFFFFFFFFF,
            address_space=address_space + int(self._workers[0].facts["address_space"]),
            cpu_s=max(1, math.ceil(limits.cpu_s)),
            processes=int(limits.processes),
            open_files=int(limits.open_files),
            file_bytes=int(limits.file_bytes),
            stack_bytes=int(limits.stack_bytes),
            source_length=source_length,
        )

    @contextlib.contextmanager
    def turn(self) -> Any:
        """One of the places that run; callers wait for theirs in the order they came."""
        me = object()
        with self._lock:
            self._queue.append(me)
            self._lock.wait_for(lambda: self._closed or (self._running < self._capacity and self._queue[0] is me))
            self._queue.remove(me)
            if self._closed:
                raise SandboxUnavailable("the sandbox was closed")
            self._running += 1
            self._lock.notify_all()
        try:
            yield
        finally:
            with self._lock:
                self._running -= 1
                self._lock.notify_all()

    def _take(self) -> Box:
        """A prepared sandbox, the oldest first; another is ordered in its place. Raises WorkerFailed."""
        self._revive()
        with self._lock:
            box = self._prepared.pop(0) if self._prepared else None
        if box is None:
            box = self.spawn()
        with contextlib.suppress(WorkerFailed):
            self._prepare()
        return box

    def _prepare(self) -> None:
        with self._lock:
            if self._closed or len(self._prepared) >= self._capacity:
                return
            self._prepared.append(self._worker().spawn())

    def _worker(self) -> Worker:
        return min(self._workers, key=lambda worker: worker.busy)

    def _start_worker(self) -> Worker:
        config = levels.fork_server_config(self.level, self.preload)
        if self.level < 3:
            return Worker(config, self.limits)
        try:
            cgroup = Cgroups(int(self.limits.memory_bytes), int(self.limits.processes))
        except OSError as error:
            raise WorkerFailed(f"control groups: {error}") from None
        return Worker({**config, "cgroups": cgroup.folders}, self.limits, cgroup)

    def _revive(self) -> None:
        """Start fork servers that have gone again, at the same level. Raises SandboxUnavailable."""
        with self._lock:
            for i, worker in enumerate(self._workers):
                if worker.alive or self._closed:
                    continue
                self._prepared = [box for box in self._prepared if box.worker is not worker]
                worker.close()
                try:
                    self._workers[i] = self._start_worker()
                except WorkerFailed as error:
                    raise SandboxUnavailable(
                        f"a fork server ended and cannot be started again at level {self.level}: {error}"
                    ) from None
                self.counts["restarts"] += 1

    def count(self, result: Result) -> Result:
        """Count the call; raise SandboxBroken where too many of the latest ones failed for the sandbox's reasons."""
        with self._lock:
            self.counts["calls"] += 1
            self.counts[result.status.value] += 1
            self._recent.append(result.status == Status.INFRA_ERROR)
            failures = sum(self._recent)
            if result.status == Status.INFRA_ERROR:
                self._last_failure = result.note
        if failures > BREAKER_SHARE * BREAKER_CALLS:
            raise SandboxBroken(
                f"the sandbox failed {failures} of its last {len(self._recent)} calls: {self._last_failure}"
            )
        return result


def workers_cores() -> int:
    return len(os.sched_getaffinity(0))


def unavailable(reasons: dict[int, str]) -> str:
    """One line: per level why not, and how to get it."""
    tried = "; ".join(f"level {k} ({levels.NAMES[k]}): {why}" for k, why in reasons.items())
    advice = "; ".join(f"level {k} needs {levels.ADVICE[k]}" for k in reasons if k in levels.ADVICE)
    return f"untrusted programs cannot be isolated here. {tried}. {advice}"


def too_long(length: int, limits: Limits) -> Result:
    text = f"SyntaxError: the source has {length} bytes; at most {limits.source_bytes} are allowed\n"
    return Result(Status.ERROR, stderr=text, limits=limits)


def converse(box: Box, data: Mapping[str, bytes], limits: Limits, session: bool = False) -> Result:
    """Hand the program over, drain its output, and wait for its end.

    :param data: what is written to its ``code`` and ``stdin``
    :param session: one cell: its process and the pipes live on
    :raises WorkerFailed: PID 1 has gone without a report
    """
    box.limit_memory(int(limits.memory_bytes))
    pending = {name: memoryview(content) for name, content in data.items()}
    kept = {"stdout": Kept(int(limits.kept_bytes)), "stderr": Kept(int(limits.kept_bytes))}
    poll = select.poll()
    names: dict[int, str] = {}
    for name in [name for name in (*pending, *kept) if name in box.fds]:  # an earlier cell may have closed its end
        fd = box.fds[name]
        names[fd] = name
        poll.register(fd, select.POLLOUT if name in pending else select.POLLIN)
    names[box.control.fileno()] = "control"
    poll.register(box.control, select.POLLIN)
    started = time.monotonic()
    deadline = started + limits.wall_s
    stopped: Status | None = None
    report: Report | None = None
    ended_s = 0.0
    while report is None or (not session and kept.keys() & box.fds.keys()):
        left = deadline - time.monotonic()
        if left <= 0:
            if stopped is None and report is None:
                stopped, deadline = Status.TIMEOUT_WALL, time.monotonic() + KILL_S
                box.stop(session)
                continue
            if report is not None:
                break  # PID 1 has gone; something outside holds the pipes
            box.worker.kill()
            raise WorkerFailed("a sandbox did not end")
        for fd, _ in poll.poll(left * 1000 + 1):
            name = names[fd]
            if name == "control":
                report = box.report(0)
                ended_s = time.monotonic() - started
                if report is None or report.kind != ENDED:
                    raise WorkerFailed(report.text if report and report.text else "a sandbox ended without a report")
                poll.unregister(fd)
                deadline = time.monotonic() + DRAIN_S
            elif name in pending:
                pending[name] = _feed(fd, pending[name])
                if not pending[name]:
                    poll.unregister(fd)
                    if not session:
                        box.close_fd(name)
            elif not _drain(fd, kept[name]):
                poll.unregister(fd)
                box.close_fd(name)
        if stopped is None and kept["stdout"].total + kept["stderr"].total > limits.output_bytes:
            stopped, deadline = Status.OUTPUT_LIMIT, time.monotonic() + KILL_S
            box.stop(session)
    if session:
        for name in kept.keys() & box.fds.keys():
            while _drain_now(box.fds[name], kept[name]):
                pass
    status = stopped or status_of(report, limits)
    if report.code == -SIGKILL and stopped is None and box.oom_killed():
        status = Status.OOM
    return Result(
        status,
        stdout=kept["stdout"].text(),
        stderr=kept["stderr"].text(),
        exit_code=report.code if report.code >= 0 and stopped is None else None,
        signal=-report.code if report.code < 0 and stopped is None else None,
        cpu_s=report.cpu_s,
        wall_s=ended_s,
        max_rss_bytes=report.max_rss,
        dropped_bytes=kept["stdout"].dropped + kept["stderr"].dropped,
        limits=limits,
        note=ROLLED_BACK if report.claim == ROLLED_BACK else "",
    )


def status_of(report: Report, limits: Limits) -> Status:
    """What an end by itself is called. Only the kernel's word makes it OK; the program's own claim names a failure."""
    if report.code in (-SIGKILL, -SIGXCPU) and report.cpu_s >= max(1, math.ceil(limits.cpu_s)) - 0.2:
        return Status.TIMEOUT_CPU
    if report.code < 0:
        return Status.SIGNAL
    if report.code == 0:
        return Status.OK
    if report.claim == "memory":
        return Status.OOM
    return Status.ERROR if report.claim == "exception" else Status.EXIT


def _feed(fd: int, data: memoryview) -> memoryview:
    """Write what fits; nothing is left where the reader has gone."""
    try:
        return data[os.write(fd, data[:READ_SIZE]) :] if data else data
    except BlockingIOError:
        return data
    except OSError:
        return data[:0]


def _drain_now(fd: int, kept: Kept) -> bool:
    """Read what is there; False when nothing is."""
    before = kept.total
    return _drain(fd, kept) and kept.total > before


def _drain(fd: int, kept: Kept) -> bool:
    """Read what is there; False at the end of the stream."""
    try:
        data = os.read(fd, READ_SIZE)
    except BlockingIOError:
        return True
    except OSError:
        return False
    kept.add(data)
    return bool(data)
