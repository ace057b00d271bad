from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from rollout.kits import Kit, load_kit


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def kits(tmp_path_factory) -> Callable[[str], Kit]:
    """Tiny models by family name (or ``tiny``), loaded once in fp32. Tests must not change their weights."""
    loaded: dict[str, Kit] = {}

    def get(name: str) -> Kit:
        if name not in loaded:
            loaded[name] = load_kit(name, tmp_path_factory.mktemp(name))
        return loaded[name]

    return get
