from __future__ import annotations

import io
import os
import pty
import select
import signal
import subprocess
import sys
import threading

import pytest
from rich.console import Console

from agentrl.runs.interrupt import Interrupt
from agentrl.runs.progress import Progress, duration


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def plain() -> tuple[Progress, Clock, io.StringIO]:
    clock, out = Clock(), io.StringIO()
    return Progress("train", 10, console=Console(file=out, width=200), clock=clock), clock, out


def test_plain_lines_one_a_step_and_at_most_one_in_five_seconds_between() -> None:
    progress, clock, out = plain()
    with progress:
        for k in range(100):  # ten seconds of ticks
            clock.now = k / 10
            progress.tick(k / 100, f"rollout {k}/100")
        clock.now = 10
        progress.update(1, reward=0.25, success=0.5, tokens_s=1234.4, none=None)
    lines = out.getvalue().splitlines()
    assert len(lines) == 3
    assert lines[1].startswith("train  step 0/10 (rollout 50/100)")
    assert lines[2] == "train  step 1/10  reward 0.250  success 0.500  tokens/s 1,234  elapsed 0:10  left 1:30"


def test_time_left_follows_recent_steps_and_the_share_of_this_one() -> None:
    progress, clock, _ = plain()
    assert progress.time_left() is None
    clock.now = 4
    progress.tick(0.5)
    assert progress.time_left() == pytest.approx(4 + 9 * 8)
    for step in range(1, 6):
        clock.now += 2
        progress.update(step)
    clock.now += 100  # one slow step does not come to dominate: the last five count
    progress.update(6)
    for step in range(7, 10):
        clock.now += 2
        progress.update(step)
    assert progress.time_left() == pytest.approx((2 * 4 + 100) / 5)
    progress.tick(0.75)
    assert progress.time_left() == pytest.approx((2 * 4 + 100) / 5 / 4)
    progress.update(10)
    assert progress.time_left() == 0


def test_names_with_brackets_are_not_markup() -> None:
    progress, _, out = plain()
    progress.tick(text="[red]reading[/red]")
    assert "[red]reading[/red]" in out.getvalue()


def test_durations() -> None:
    assert [duration(s) for s in (0, 59.6, 75, 3700)] == ["0:00", "1:00", "1:15", "1:01:40"]


def test_in_a_terminal_the_line_is_live_and_a_piped_stdout_stays_clean() -> None:
    code = (
        "from agentrl.runs.progress import Progress\n"
        "with Progress('train', 2) as p:\n"
        "    p.update(1, reward=0.5)\n    print('RESULT')\n    p.update(2)\n"
    )
    master, slave = pty.openpty()
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=slave)
    os.close(slave)
    out, _ = process.communicate(timeout=30)
    shown = b""
    while select.select([master], [], [], 0.2)[0]:
        try:
            shown += os.read(master, 65536)
        except OSError:
            break
    os.close(master)
    assert out == b"RESULT\n"
    assert b"reward 0.500" in shown and b"\x1b" in shown


def test_first_interrupt_asks_second_stops_and_handlers_come_back(capsys: pytest.CaptureFixture[str]) -> None:
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    with Interrupt() as interrupt:
        assert not interrupt.requested
        signal.raise_signal(signal.SIGTERM)
        assert interrupt.requested
        assert "press Ctrl-C again" in capsys.readouterr().err
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


def test_interrupt_outside_the_main_thread_changes_nothing() -> None:
    before = signal.getsignal(signal.SIGINT)
    seen: list[object] = []

    def work() -> None:
        with Interrupt() as interrupt:
            seen.extend([interrupt.requested, signal.getsignal(signal.SIGINT)])

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [False, before]
