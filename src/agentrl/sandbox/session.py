"""Sessions of cells that share their variables, as the harness holds them."""

from __future__ import annotations

import os
import secrets
import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from agentrl.sandbox.jail.cells import BUDGET
from agentrl.sandbox.result import Result, Status
from agentrl.sandbox.worker import Box, WorkerFailed, wait_readable

if TYPE_CHECKING:
    from agentrl.sandbox.pool import Sandbox

LOST = "The session had ended, so the variables of earlier cells are lost."
ROLLED_BACK = "What this cell did to variables was undone; those of earlier cells are kept."


class Session:
    """Variables, imports and files live from cell to cell; open it with :meth:`Sandbox.session`.

    A cell that meets a limit or ends the process loses only itself: variables are as before it (files are not rolled
    back, and threads end). An exception keeps what the cell had done until then, as in a notebook. Nothing runs between
    cells.
    """

    def __init__(self, sandbox: Sandbox, seed: int | None, prelude: str = ""):
        self._sandbox = sandbox
        self._prelude = prelude.encode()
        self._seed = secrets.randbits(63) if seed is None else seed
        self._lock = threading.Lock()
        self._box: Box | None = None
        self._cells = 0
        self._cpu_s = 0.0
        self._closed = False

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """End it. Idempotent."""
        with self._lock:
            self._closed = True
            self._drop()

    def run(self, code: str) -> Result:
        """Run one cell; calls from several threads take turns.

        Raises what :meth:`Sandbox.run` raises, and ValueError after ``close``.
        """
        from agentrl.sandbox.pool import too_long

        limits = self._sandbox.limits
        with self._lock:
            if self._closed:
                raise ValueError("the session is closed")
            source = code.encode("utf-8", "surrogatepass")
            if len(source) > limits.source_bytes:
                return self._sandbox.count(too_long(len(source), limits))
            if self._cells >= limits.session_cells:
                note = f"The session's limit of {limits.session_cells} cells is reached; this cell was not run."
                return self._sandbox.count(Result(Status.ERROR, limits=limits, note=note))
            if self._cpu_s >= limits.session_cpu_s:
                note = f"The session has used its {limits.session_cpu_s:g} s of CPU time; this cell was not run."
                return self._sandbox.count(Result(Status.ERROR, limits=limits, note=note))
            self._cells += 1
            return self._sandbox.count(self._run(source))

    def _run(self, source: bytes) -> Result:
        limits = self._sandbox.limits
        left = min(limits.cpu_s, limits.session_cpu_s - self._cpu_s)
        queued = time.monotonic()
        lost, failure = False, ""
        with self._sandbox.turn():
            for _ in range(2):
                started = time.monotonic()
                lost = lost or (self._box is None and self._cells > 1)
                try:
                    box = self._box or self._begin()
                    result = self._cell(box, source, left)
                except (WorkerFailed, OSError) as error:
                    failure = str(error)
                    self._drop()
                    continue
                self._cpu_s += result.cpu_s
                notes = [LOST] if lost else []
                if result.note:
                    notes.append(ROLLED_BACK)
                    _empty(box)
                return replace(result, queue_s=started - queued, note=" ".join(notes))
        return Result(Status.INFRA_ERROR, note=failure, limits=limits)

    def _cell(self, box: Box, source: bytes, cpu_s: float) -> Result:
        from agentrl.sandbox.pool import converse

        limits = self._sandbox.limits
        # One seed a cell, however often the session had to begin again.
        order = self._sandbox.order(limits, len(source), hash((self._seed, self._cells)))
        box.control.send(BUDGET.pack(cpu_s))
        box.wait_ready(again=True)
        return converse(box, {"code": order.pack() + source}, limits, session=True)

    def _begin(self) -> Box:
        """A new box, with the prelude run. Its first order carries the limits of the whole session."""
        limits = self._sandbox.limits
        box = self._sandbox.spawn_ready("session")
        try:
            os.write(
                box.fds["code"], self._sandbox.order(limits, 0, 0)._replace(cpu_s=int(limits.session_cpu_s) + 2).pack()
            )
            box.close_fd("stdin")
        except BaseException:
            box.close()
            raise
        self._box = box
        if self._prelude and (done := self._cell(box, self._prelude, limits.cpu_s)).status is not Status.OK:
            raise WorkerFailed(f"a session's prelude ended as {done.status.value}: {done.stderr[-200:]}")
        return box

    def _drop(self) -> None:
        if self._box is not None:
            self._box.close()
            self._box = None


def _empty(box: Box) -> None:
    """Take back what a killed cell has not read of its source, or the next would begin in the middle of it."""
    while wait_readable(box.fds["code_read"], 0):
        os.read(box.fds["code_read"], 1 << 16)
