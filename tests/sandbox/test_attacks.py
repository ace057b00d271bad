"""The hostile programs of scripts/sandbox_attacks.py; with `-m slow` also the slow ones, level 3 and a soak."""

from __future__ import annotations

import importlib
import os
import random
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

import psutil
import pytest

from agentrl.sandbox import Limits, Sandbox, SandboxUnavailable, Status

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"


def _scripts() -> ModuleType:
    sys.path.insert(0, str(SCRIPTS))
    try:
        return importlib.import_module("sandbox_attacks")
    finally:
        sys.path.remove(str(SCRIPTS))


hostile = _scripts()
ATTACKS = hostile.attacks()
QUICK = [attack for attack in ATTACKS if not attack.slow]
SLOW = [attack for attack in ATTACKS if attack.slow]


@pytest.fixture(scope="module")
def world() -> Iterator[Any]:
    with hostile.world() as target:
        yield target


def test_there_are_many_over_all_kinds() -> None:
    assert len(ATTACKS) >= 80 and len({str(a) for a in ATTACKS}) == len(ATTACKS)
    assert len({a.kind for a in ATTACKS}) == 10


@pytest.mark.parametrize("attack", QUICK, ids=str)
def test_contained(sandbox: Sandbox, world: Any, attack: Any) -> None:
    assert hostile.outcome(attack, sandbox, world) == ""


@pytest.mark.slow
@pytest.mark.parametrize("attack", SLOW, ids=str)
def test_contained_in_time(sandbox: Sandbox, world: Any, attack: Any) -> None:
    assert hostile.outcome(attack, sandbox, world) == ""


@pytest.mark.slow
def test_contained_with_control_groups(world: Any) -> None:
    try:
        sandbox = Sandbox.open(level=3, preload=(), limits=hostile.LIMITS)
    except SandboxUnavailable as error:
        pytest.skip(str(error))
    with sandbox:
        assert {str(a): o for a in ATTACKS if (o := hostile.outcome(a, sandbox, world))} == {}


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("level", [1, 2])
def test_soak(level: int, world: Any) -> None:
    """10,000 programs, one in ten hostile: no wrong result, and no process, descriptor, file or memory left behind."""
    cheap = [a for a in QUICK if a.kind in ("network", "files", "processes", "kernel", "forging")]
    me = psutil.Process()
    with Sandbox.open(level=level, preload=("numpy",), limits=Limits(cpu_s=5, wall_s=120)) as sandbox:

        def one(i: int) -> str:
            if i % 10 == 0:
                attack = cheap[random.Random(i).randrange(len(cheap))]
                result = sandbox.run(world.fill(attack.code))
                return "" if "BREACH" not in result.stdout and world.secret not in result.stdout else str(attack)
            result = sandbox.run(f"import numpy\nprint(int(numpy.arange({i}).sum()))")
            return "" if result.stdout == f"{i * (i - 1) // 2}\n" else f"{i}: {result}"

        def state() -> tuple[int, int, int, int]:
            memory = sum(p.memory_info().rss for p in me.children(recursive=True)[:3])
            return len(me.children(recursive=True)), me.num_fds(), memory, len(os.listdir("/tmp"))

        with ThreadPoolExecutor(8) as threads:
            assert not [w for w in threads.map(one, range(500)) if w]
            before = state()
            assert not [w for w in threads.map(one, range(500, 10_000)) if w]
        after = state()
        assert abs(after[0] - before[0]) <= 8 and abs(after[1] - before[1]) <= 20 and after[3] <= before[3] + 2
        assert after[2] < before[2] * 1.2
        assert world.damage() == "" and sandbox.counts[Status.INFRA_ERROR.value] == 0
