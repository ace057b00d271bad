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
    if "amx_bf16" not in build.cpu_flags():
        pytest.skip("this processor has no AMX tiles")
    yield
    monkeypatch.undo()
    for cache in caches:
        cache.cache_clear()
