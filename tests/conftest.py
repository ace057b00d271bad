"""Shared fixtures."""

from __future__ import annotations

import os
from pathlib import Path

import hypothesis
import pytest

REPO = Path(__file__).resolve().parents[1]

# Compiling takes longer than the tests themselves; those that are about the compiled path turn it on again.
os.environ.setdefault("AGENTRL_COMPILE", "0")
os.environ.setdefault("OMP_NUM_THREADS", "1")
# A busy machine makes any example slow.
hypothesis.settings.register_profile("agentrl", deadline=None)
hypothesis.settings.load_profile("agentrl")


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder with real data for tests; tests that need it are skipped where it does not exist."""
    folder = Path(os.environ.get("AGENTRL_SHARED_DATA", REPO.parent / "shared" / "data"))
    if not folder.is_dir():
        pytest.skip(f"real test data not found at {folder} (set AGENTRL_SHARED_DATA)")
    return folder
