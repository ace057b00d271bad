"""Ctrl-C once: finish the step and save. Twice: stop now."""

from __future__ import annotations

import signal
import sys
import threading
from types import FrameType, TracebackType
from typing import Any


class Interrupt:
    """Context manager whose ``requested`` turns True at the first Ctrl-C (or SIGTERM).

    The first one only sets the flag and says so on stderr; the second raises KeyboardInterrupt. The earlier signal
    handlers come back on exit. Outside the main thread, where Python allows no handlers, it does nothing.
    """

    def __init__(self) -> None:
        self.requested = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Interrupt:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        self._before.clear()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True
        try:
            sys.stderr.write("\nfinishing this step and saving; press Ctrl-C again to stop at once\n")
            sys.stderr.flush()
        except (OSError, RuntimeError, ValueError):
            pass  # a closed terminal, or a write interrupted inside itself: the flag is what counts
