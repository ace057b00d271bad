"""What a program may use and how it ended."""

from __future__ import annotations

import enum
import math
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field, fields

from agentrl.errors import RunError, UserError

MIB = 1 << 20


class SandboxUnavailable(UserError):
    """No allowed level of isolation works on this machine; the message says what is missing and how to get it.

    ``reasons`` has the level and what failed.
    """

    def __init__(self, message: str, reasons: Mapping[int, str] | None = None):
        super().__init__(message)
        self.reasons = dict(reasons or {})


class SandboxBroken(RunError):
    """Too many calls failed for reasons of the sandbox itself; the run must not go on."""


class Status(str, enum.Enum):
    """How a program ended, by what the kernel and the harness saw."""

    OK = "ok"  # exit code 0
    ERROR = "error"  # uncaught exception (exit code 1)
    EXIT = "exit"  # another exit code
    SIGNAL = "signal"
    TIMEOUT_CPU = "timeout_cpu"
    TIMEOUT_WALL = "timeout_wall"
    OOM = "oom"
    OUTPUT_LIMIT = "output_limit"
    INFRA_ERROR = "infra_error"  # the sandbox failed, twice; says nothing about the program


@dataclass(frozen=True)
class Limits:
    """What one program may use. Raises UserError for a value that cannot work.

    ``memory_bytes`` is counted on top of the warm interpreter. At level 3 it is the memory of all its processes and its
    files; below, the address space of its one process (at level 3 that may be twice as much).
    """

    cpu_s: float = 5.0  # rounded up to whole seconds
    wall_s: float = 10.0  # from the moment the program is handed to a free sandbox; waiting in the queue does not count
    memory_bytes: int = 1024 * MIB
    processes: int = 32  # threads; at level 3 also processes
    open_files: int = 64
    file_bytes: int = 16 * MIB
    tmp_bytes: int = 32 * MIB
    tmp_inodes: int = 2048
    stack_bytes: int = 8 * MIB
    output_bytes: int = 8 * MIB  # of stdout and stderr together; more ends the program
    kept_bytes: int = 64 << 10  # of each stream, from both ends
    source_bytes: int = 256 << 10
    session_cells: int = 32
    session_cpu_s: float = 60.0
    session_idle_s: float = 300.0

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0 or value == float("inf"):
                raise UserError(f"sandbox limit {item.name}={value!r}: must be a positive number")
        if self.open_files < 8:
            raise UserError(f"sandbox limit open_files={self.open_files}: a program needs at least 8")


@dataclass(frozen=True)
class Result:
    """One finished program. ``stdout`` and ``stderr`` are whatever it wrote, made safe to show (``text.clean``)."""

    status: Status
    stdout: str = ""
    stderr: str = ""
    exit_code: int | None = None
    signal: int | None = None
    cpu_s: float = 0.0
    wall_s: float = 0.0
    queue_s: float = 0.0
    max_rss_bytes: int = 0
    dropped_bytes: int = 0
    limits: Limits = field(default=Limits(), repr=False)
    note: str = ""  # about the sandbox or the session: what failed, what was lost

    def message(self) -> str | None:
        """What the agent should be told beside the program's output; None where there is nothing to tell."""
        limits = self.limits
        words = {
            Status.TIMEOUT_CPU: f"The program was stopped: it took more than {math.ceil(limits.cpu_s)} s of CPU time.",
            Status.TIMEOUT_WALL: f"The program was stopped: it did not end within {limits.wall_s:g} s.",
            Status.OOM: f"The program ran out of memory (limit {limits.memory_bytes / MIB:g} MiB).",
            Status.OUTPUT_LIMIT: f"The program was stopped: it printed more than {limits.output_bytes / MIB:g} MiB.",
            Status.INFRA_ERROR: "The program could not be run: the sandbox failed, whatever the program was.",
            Status.EXIT: f"The program ended with exit code {self.exit_code}.",
        }.get(self.status)
        if self.status == Status.SIGNAL and self.signal is not None:
            words = f"The program was ended by {signal_name(self.signal)}."
        parts = [words or "", self.note if self.status != Status.INFRA_ERROR else ""]
        if self.dropped_bytes and self.status != Status.OUTPUT_LIMIT:
            parts.append(f"{self.dropped_bytes} bytes of its output are not shown.")
        return " ".join(part for part in parts if part) or None


def signal_name(number: int) -> str:
    try:
        return f"signal {number} ({signal.Signals(number).name})"
    except ValueError:
        return f"signal {number}"
