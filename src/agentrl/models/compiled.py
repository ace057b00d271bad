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
    """Compile the forward of every RMS norm in a model: unfused, they cost as much as the matrix products around them.

    One compiled function serves all norms of a class. Results differ from the plain ones by rounding only.
    """
    forwards: dict[type, Any] = {}
    for module in model.modules():
        kind = type(module)
        if kind.__name__.endswith("RMSNorm"):
            if kind not in forwards:
                forwards[kind] = compiled(kind.forward)
            module.forward = types.MethodType(forwards[kind], module)
