"""Compiling the C++ sources of this folder, once per machine, and loading them."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from pathlib import Path

from torch import Tensor  # torch's OpenMP runtime must be loaded first: the kernels then share its threads

from agentrl.models.cache import cache_folder
from agentrl.models.compiled import available

# Reassociation lets sums become vectors. Not -ffast-math: linking with it changes how the whole process rounds.
FLAGS = [
    *("-O3", "-march=native", "-fopenmp", "-shared", "-fPIC", "-std=c++17", "-fno-math-errno", "-fno-trapping-math"),
    *("-ffinite-math-only", "-fassociative-math", "-fno-signed-zeros", "-freciprocal-math"),
]
WIDE = "-mprefer-vector-width=512"


@functools.cache
def library(source: str, *defines: str) -> ctypes.CDLL | None:
    """The compiled ``source`` (a file of this folder) with macros such as ``SIZE=64``; None where it cannot be had."""
    if not available() or platform.system() != "Linux":
        return None
    compiler = next((c for c in (os.environ.get("CXX", "g++"), "g++", "clang++") if shutil.which(c)), None)
    if compiler is None:
        return None
    file = Path(__file__).with_name(source)
    flags = [*FLAGS, *([WIDE] if "avx512f" in cpu_flags() else []), *(f"-D{d}" for d in defines)]
    texts = [f.read_text() for f in (file, *sorted(file.parent.glob("*.h")))]
    key = hashlib.sha256(repr((texts, compiler, flags, sorted(cpu_flags()))).encode()).hexdigest()[:16]
    target = cache_folder().parent / "kernels" / f"{file.stem}-{key}.so"
    try:
        if not target.is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=target.parent) as work:
                made = Path(work) / target.name
                command = [compiler, *flags, str(file), "-o", str(made)]
                subprocess.run(command, check=True, capture_output=True, timeout=120)
                made.rename(target)
        return ctypes.CDLL(str(target))
    except (OSError, subprocess.SubprocessError):
        return None  # a broken compiler or an unwritable cache is no reason not to run


def tile_library(source: str, *defines: str) -> ctypes.CDLL | None:
    """``library`` for a source that includes tiles.h; None also where the processor cannot multiply bf16 that way."""
    if not can_use_tiles():
        return None
    kernel = library(source, *defines)
    return kernel if kernel is not None and kernel.request_tiles() == 0 else None


def can_use_tiles() -> bool:
    """Whether the processor has what tiles.h needs: AMX tiles, or AVX-512 products of bf16."""
    return not cpu_flags().isdisjoint(("amx_bf16", "avx512_bf16"))


@functools.cache
def cpu_flags() -> frozenset[str]:
    """What the processor can do, as Linux names it; empty elsewhere."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return frozenset()
    names = ("flags", "Features")
    return frozenset(next((line.split(":", 1)[1] for line in lines if line.startswith(names)), "").split())


def address(x: Tensor | None) -> ctypes.c_void_p:
    """Where a tensor's numbers lie; null for None."""
    return ctypes.c_void_p(None if x is None else x.data_ptr())


def call(kernel: ctypes.CDLL, name: str, *arguments: Tensor | int | float | None) -> None:
    """Call a function of a library: tensors as addresses, int as int64_t, float as float."""
    getattr(kernel, name)(*map(_argument, arguments))


def _argument(x: Tensor | int | float | None) -> ctypes.c_void_p | ctypes.c_int64 | ctypes.c_float:
    if isinstance(x, float):
        return ctypes.c_float(x)
    return ctypes.c_int64(x) if isinstance(x, int) else address(x)
