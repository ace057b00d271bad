"""Compiled elementwise blocks where a C++ compiler is present, and the plain Python functions where none is."""

from __future__ import annotations

import functools
import os
import shutil
import types
from collections.abc import Callable
from typing import Any, TypeVar

import torch

Function = TypeVar("Function", bound=Callable[..., Any])


@functools.cache
def available() -> bool:
    """True when torch.compile can build CPU kernels here. ``AGENTRL_COMPILE=0`` turns compiling off."""
    if os.environ.get("AGENTRL_COMPILE", "1") == "0":
        return False
    return any(shutil.which(c) for c in (os.environ.get("CXX", "g++"), "g++", "clang++"))


def compiled(function: Function) -> Function:
    """Compile at the first call, for any shapes; without a compiler the function stays as it is."""
    build = functools.cache(lambda: torch.compile(function, dynamic=True))

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        return (build() if available() else function)(*args, **kwargs)

    return call  # type: ignore[return-value]


def compile_norms(model: torch.nn.Module) -> None:
    """Compile the RMS norms of a model for training, where, unfused, they cost as much as the matrix products.

    One compiled function serves all norms of a class. Sampling (inference mode) keeps the plain ones: its calls are
    small, and it should not wait for a compiler. The two differ by rounding only.
    """
    forwards: dict[type, Any] = {}
    for module in model.modules():
        kind = type(module)
        if kind.__name__.endswith("RMSNorm"):
            if kind not in forwards:
                forwards[kind] = _in_training(kind.forward)
            module.forward = types.MethodType(forwards[kind], module)


def _in_training(function: Function) -> Function:
    fast = compiled(function)

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        return (function if torch.is_inference_mode_enabled() else fast)(*args, **kwargs)

    return call  # type: ignore[return-value]
