"""Real runs of the command line in processes of their own, forked from a server that has everything imported."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import torch
from safetensors.torch import load_file
from torch import Tensor

SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload(["agentrl.stages.train", "agentrl.stages.sft", "invariants.running"])

SMALL = (
    "env=search",
    "model=tiny",
    "reward=random",  # a model that knows nothing would get the same reward for everything, and never move
    "algo.group_size=4",
    "algo.prompts_per_step=2",
    "algo.learning_rate=1e-3",
    "env.max_turns=3",
    "env.max_turn_tokens=24",
    "env.max_obs_tokens=60",
    "rollout.max_tokens=500",
    "engine.threads=1",
    "run.tracker=none",
)


def _command(argv: list[str], log: str, environment: dict[str, str]) -> None:
    os.environ.update(environment)
    with open(log, "a", buffering=1) as out:
        os.dup2(out.fileno(), 1)
        os.dup2(out.fileno(), 2)
        from agentrl.cli import main

        raise SystemExit(main(argv))


def start(argv: list[str], log: Path) -> Any:
    """Start ``agentrl argv…`` with the ``AGENTRL_…`` variables of now; its output goes to ``log``."""
    environment = {k: v for k, v in os.environ.items() if k.startswith("AGENTRL_")}
    process = SERVER.Process(target=_command, args=(argv, str(log), environment))
    process.start()
    return process


def finish(process: Any, log: Path, code: int = 0, seconds: float = 240) -> None:
    process.join(seconds)
    if process.is_alive():
        process.kill()
    assert process.exitcode == code, log.read_text()[-3000:]


def train(folder: Path, *overrides: str) -> Path:
    """A whole run of train in ``folder``; later overrides win."""
    values = {o.partition("=")[0]: o for o in (*SMALL, *overrides)}
    log = folder.with_suffix(".log")
    finish(start(["train", *values.values(), f"run.dir={folder}"], log), log)
    return folder


def resume(folder: Path, *overrides: str) -> Path:
    log = folder.with_suffix(".log")
    finish(start(["train", f"run.resume={folder}", *overrides], log), log)
    return folder


def kill_when(process: Any, condition: Callable[[], bool], seconds: float = 240, number: int = signal.SIGKILL) -> bool:
    """Send a signal as soon as the condition holds; False when the process ended before."""
    end = time.monotonic() + seconds
    while process.is_alive() and time.monotonic() < end:
        if condition():
            os.kill(process.pid, number)
            return True
        time.sleep(0.0005)
    return False


def steps_of(folder: Path) -> int:
    """Finished steps, as metrics.jsonl tells while the run goes on."""
    file = folder / "metrics.jsonl"
    return len(file.read_text().splitlines()) if file.exists() else 0


def metrics_of(folder: Path) -> list[dict[str, Any]]:
    """metrics.jsonl without what a clock decides."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in m.items() if not k.startswith("time/") and "tokens_per_s" not in k} for m in lines]


def counts_of(folder: Path) -> dict[str, Any]:
    """The ledger's totals without what a clock decides: a step that was done again counts once."""
    totals = json.loads((folder / "ledger.json").read_text())["totals"]
    return {k: v for k, v in totals.items() if k not in ("wall_s", "tool_s", "money")}


def weights_of(folder: Path, name: str = "last") -> dict[str, Tensor]:
    """All tensors of a checkpoint: the model's and the optimiser's."""
    checkpoint = folder / "checkpoints" / name
    tensors = dict(load_file(checkpoint / "model.safetensors"))
    return tensors | {f"trainer/{k}": v for k, v in load_file(checkpoint / "trainer/optimizer.safetensors").items()}


def tokens_of(folder: Path, step: int) -> list[list[int]]:
    """The token ids of all rows of a step."""
    table = pq.read_table(folder / "trajectories" / f"train-{step:06d}.parquet").to_pylist()
    return [row["ids"] for t in table for row in t["rows"]]


def same_bits(a: Tensor, b: Tensor) -> bool:
    return a.dtype == b.dtype and torch.equal(a.reshape(-1).view(torch.uint8), b.reshape(-1).view(torch.uint8))


def assert_identical(a: Path, b: Path) -> None:
    """Metrics, weights, optimiser, trainer state and trajectories, bit for bit (times aside)."""
    assert metrics_of(a) == metrics_of(b)
    assert counts_of(a) == counts_of(b)
    for name in ("last", "best"):
        one, two = weights_of(a, name), weights_of(b, name)
        assert one.keys() == two.keys()
        assert all(same_bits(one[k], two[k]) for k in one)
        state = [json.loads((f / "checkpoints" / name / "trainer/state.json").read_text()) for f in (a, b)]
        assert state[0] == state[1]
    files = sorted(p.name for p in (a / "trajectories").iterdir())
    assert files == sorted(p.name for p in (b / "trajectories").iterdir())
    for step in range(1, len(files) + 1):
        assert tokens_of(a, step) == tokens_of(b, step)
