"""Live progress of a stage on stderr: one line that moves in a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable
from types import TracebackType

from rich.console import Console
from rich.live import Live
from rich.text import Text

PLAIN_SECONDS = 5.0  # at most one line per so many seconds inside a step when stderr is not a terminal


def duration(seconds: float) -> str:
    """``75`` → ``1:15``, ``3700`` → ``1:01:40``."""
    total = max(0, int(seconds + 0.5))
    hours, rest = divmod(total, 3600)
    return f"{hours}:{rest // 60:02d}:{rest % 60:02d}" if hours else f"{rest // 60}:{rest % 60:02d}"


def plain_console() -> Console:
    """Stderr for a stage's messages: text as it is (a path may hold brackets), never broken where the window ends."""
    return Console(stderr=True, soft_wrap=True, markup=False, highlight=False)


class Progress:
    """Shows stage, step k/n, the numbers given to ``update``, elapsed time and time left.

    ``done`` is the number of steps already finished (a resumed run). Time left comes from the last five steps, or from
    the fraction of the first step given to ``tick``.
    """

    def __init__(
        self,
        stage: str,
        total: int,
        done: int = 0,
        console: Console | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.stage, self.total, self.step = stage, total, done
        self.console = console or Console(stderr=True)
        self._clock = clock
        self._start = self._step_start = clock()
        self._last_line = float("-inf")
        self._seconds: deque[float] = deque(maxlen=5)
        self._fraction = 0.0
        self._text = ""
        self._numbers: dict[str, float] = {}
        self._live: Live | None = None

    def __enter__(self) -> Progress:
        self._start = self._step_start = self._clock()
        if self.console.is_terminal:
            # Prints to a piped stdout must stay there, so stdout is only redirected when it is the terminal too.
            self._live = Live(
                console=self.console,
                get_renderable=self._render,
                refresh_per_second=4,
                redirect_stdout=sys.stdout.isatty(),
            )
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def update(self, step: int, **numbers: float | None) -> None:
        """Step ``step`` (from 1) is finished; ``numbers`` are shown, e.g. reward=0.4, success=0.5, tokens_s=900."""
        now = self._clock()
        if step > self.step:
            self._seconds.append((now - self._step_start) / (step - self.step))
        self.step, self._step_start, self._fraction, self._text = step, now, 0.0, ""
        self._numbers.update({k: float(v) for k, v in numbers.items() if v is not None})
        if self._live is not None:
            self._live.refresh()
        else:
            self._print(now)

    def tick(self, fraction: float | None = None, text: str | None = None, **numbers: float | None) -> None:
        """Inside a step: the share of it that is done (0 to 1) and a few words, e.g. ``tick(0.3, "rollout 12/32")``."""
        if fraction is not None:
            self._fraction = min(1.0, max(0.0, fraction))
        if text is not None:
            self._text = text
        self._numbers.update({k: float(v) for k, v in numbers.items() if v is not None})
        now = self._clock()
        if self._live is None and now - self._last_line >= PLAIN_SECONDS:
            self._print(now)

    def time_left(self) -> float | None:
        """Seconds until the stage ends, or None while nothing is known."""
        inside = self._clock() - self._step_start
        remaining = self.total - self.step
        if remaining <= 0:
            return 0.0
        if self._seconds:
            each = sum(self._seconds) / len(self._seconds)
            now_left = each * (1 - self._fraction) if self._fraction else max(0.0, each - inside)
            return now_left + each * (remaining - 1)
        if self._fraction > 0.02:
            return inside / self._fraction * (remaining - self._fraction)
        return None

    def line(self) -> str:
        """The progress line as plain text."""
        parts = [f"{self.stage}  step {self.step}/{self.total}"]
        if self._text:
            parts[0] += f" ({self._text})"
        parts += [f"{_NAMES.get(name, name)} {_number(value)}" for name, value in self._numbers.items()]
        parts.append(f"elapsed {duration(self._clock() - self._start)}")
        left = self.time_left()
        parts.append("left ?" if left is None else f"left {duration(left)}")
        return "  ".join(parts)

    def _render(self) -> Text:
        done = (self.step + self._fraction) / self.total if self.total else 1.0
        cells = max(0, min(16, int(done * 16 + 0.5)))
        return Text.assemble(
            ("━" * cells, "green"), ("━" * (16 - cells), "bright_black"), " ", self.line(), overflow="ellipsis"
        )

    def _print(self, now: float) -> None:
        self._last_line = now
        self.console.print(Text(self.line()), soft_wrap=True)


_NAMES = {"tokens_s": "tokens/s", "tokens_per_s": "tokens/s"}


def _number(value: float) -> str:
    if value != value or abs(value) == float("inf"):
        return str(value)
    if abs(value) >= 100 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.3g}" if abs(value) < 0.01 and value else f"{value:.3f}"
