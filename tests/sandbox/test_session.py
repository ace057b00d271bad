"""Sessions: what lives from cell to cell, and what a cell that fails can take with it."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from agentrl.sandbox import Sandbox, Session, Status


@pytest.fixture
def session(sandbox: Sandbox) -> Iterator[Session]:
    with sandbox.session(seed=5) as cells:
        yield cells


def test_variables_live_on_and_a_failed_cell_loses_only_itself(session: Session) -> None:
    assert session.run("x = 1\ndef f(): return x").stdout == ""
    assert session.run("x += 1; print(f())").stdout == "2\n"
    gone = session.run("x = 50\nimport os\nos._exit(3)")
    assert (gone.status, gone.exit_code) == (Status.EXIT, 3)
    assert "undone" in (gone.message() or "")
    assert session.run("print(f())").stdout == "2\n"
    killed = session.run("x = 60\nimport ctypes\nctypes.string_at(0)")
    assert (killed.status, killed.signal) == (Status.SIGNAL, 11)
    half = session.run("x = 3\n1 / 0")
    assert half.status == Status.ERROR and "undone" not in (half.message() or "")
    assert session.run("print(f())").stdout == "3\n"


def test_a_cell_that_burns_its_time_is_rolled_back(session: Session) -> None:
    session.run("x = 1")
    burnt = session.run("x = 2\nprint('on')\nwhile True: pass")
    assert (burnt.status, burnt.stdout) == (Status.TIMEOUT_CPU, "on\n")
    assert session.run("print(x)").stdout == "1\n"


def test_cells_cannot_fork_and_nothing_runs_between_them(session: Session) -> None:
    assert "PermissionError" in session.run("import os; os.fork()").stderr
    spin = "import threading, time\ndef spin():\n    while True: time.sleep(0)\n"
    session.run(spin + "threading.Thread(target=spin, daemon=True).start()")
    clock = "print(time.process_time())"
    before = float(session.run(clock).stdout)
    time.sleep(1.0)
    assert float(session.run(clock).stdout) - before < 0.5


def test_a_prelude_is_there_however_often_the_session_begins(sandbox: Sandbox) -> None:
    with sandbox.session(prelude="import math\nmath.choose = math.comb\ndel math.comb") as cells:
        assert cells.run("x = 5; print(math.choose(x, 2), hasattr(math, 'comb'))").stdout == "10 False\n"
        cells.run("import os\nos.register_at_fork(before=lambda: os._exit(0))")  # the session, after the cell
        after = cells.run("print('x' in globals(), math.choose(4, 2))")
        assert after.stdout == "False 6\n" and "lost" in (after.message() or "")
    with sandbox.session(prelude="1 / 0") as cells:
        assert cells.run("print(1)").status == Status.INFRA_ERROR


def test_seeds_depend_on_the_session_and_the_cell(sandbox: Sandbox) -> None:
    code = "import random; print(random.random())"
    with sandbox.session(seed=1) as a, sandbox.session(seed=1) as b, sandbox.session(seed=2) as c:
        first, again, other = a.run(code).stdout, b.run(code).stdout, c.run(code).stdout
        assert first == again != other
        assert a.run(code).stdout != first
