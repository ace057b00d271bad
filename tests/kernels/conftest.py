import pytest

from agentrl.kernels import build
from agentrl.models import compiled


@pytest.fixture
def compiling(monkeypatch):
    """Compiled kernels, where this machine can have them."""
    monkeypatch.setenv("AGENTRL_COMPILE", "1")
    caches = (compiled.available, build.library)
    for cache in caches:
        cache.cache_clear()
    if not compiled.available():
        pytest.skip("no C++ compiler here")
    if not build.can_use_tiles():
        pytest.skip("this processor has neither AMX nor AVX-512 bf16")
    yield
    monkeypatch.undo()
    for cache in caches:
        cache.cache_clear()
