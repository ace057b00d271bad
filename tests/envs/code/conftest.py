from __future__ import annotations

from collections.abc import Iterator

import pytest

from agentrl.envs.code.spec import CodeSpec
from agentrl.envs.code.symbolic import Comparer


@pytest.fixture(scope="session")
def spec() -> Iterator[CodeSpec]:
    # A generous wall clock: a machine that is busy with other work must not turn into timed-out programs.
    made = CodeSpec(max_calls=2, sandbox={"limits": {"wall_s": 120}})
    yield made
    made.close()


@pytest.fixture(scope="session")
def comparer() -> Iterator[Comparer]:
    made = Comparer({})
    yield made
    made.close()
