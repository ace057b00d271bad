from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from agentrl.config import compose
from agentrl.config.schema import Config


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Config]:
    """A config of env=search with model=tiny whose outputs lie in the test's own folder."""
    monkeypatch.chdir(tmp_path)

    def make(*overrides: str) -> Config:
        small = ["env=search", "model=tiny", "engine.threads=1", "run.tracker=none", "run.dir=run"]
        return compose([*small, *overrides])

    return make
