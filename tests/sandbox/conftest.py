"""One sandbox of each level for all tests of this folder: opening one takes seconds."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from agentrl.sandbox import Limits, Sandbox

# Generous in wall time: the machine may be busy, and CPU time is what the tests are about.
LIMITS = Limits(cpu_s=2, wall_s=30, memory_bytes=256 << 20)


@pytest.fixture(scope="session")
def confined() -> Iterator[Sandbox]:
    with Sandbox.open(level=1, preload=("numpy",), limits=LIMITS) as box:
        yield box


@pytest.fixture(scope="session")
def isolated() -> Iterator[Sandbox]:
    with Sandbox.open(level=2, preload=("numpy",), limits=LIMITS) as box:
        yield box


@pytest.fixture(params=["confined", "isolated"])
def sandbox(request: pytest.FixtureRequest) -> Sandbox:
    box: Sandbox = request.getfixturevalue(request.param)
    return box
