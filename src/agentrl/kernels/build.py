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

import torch  # noqa: F401  its OpenMP runtime must be loaded first: the kernels then share its threads

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
    key = hashlib.sha256(repr((file.read_text(), compiler, flags, sorted(cpu_flags()))).encode()).hexdigest()[:16]
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


@functools.cache
def cpu_flags() -> frozenset[str]:
    """What the processor can do, as Linux names it; empty elsewhere."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return frozenset()
    names = ("flags", "Features")
    return frozenset(next((line.split(":", 1)[1] for line in lines if line.startswith(names)), "").split())
