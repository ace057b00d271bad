"""How the time and the memory of a training step grow with turns, group size, slots, lengths, batch and corpus.

    python scripts/bench_growth.py

One thing is varied at a time around one job (2 prompts × 8 members, 2 turns). Writes growth.json,
growth.md (a table with the exponent of each curve: 1 is linear, 0 is constant) and growth.png.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from bench_job import Job

HERE = Path(__file__).resolve().parent
BASE = {"prompts": 2, "members": 8, "prompt_tokens": 256, "turn_tokens": 32, "observation_tokens": 80}
TURNS = 2
# what is varied: its values and what else is set
SERIES: dict[str, tuple[tuple[int, ...], dict[str, int]]] = {
    "turns": ((1, 2, 4, 8), {}),
    "members": ((4, 8, 16, 32), {}),
    "prompt_tokens": ((128, 256, 512, 1024), {}),
    "turn_tokens": ((16, 32, 64, 128), {}),
    "prompts": ((1, 2, 4, 8), {"slots": 16}),  # the batch grows, the slots do not
    "slots": ((4, 8, 16, 32), {"prompts": 4}),
}
CORPUS = (1_000, 10_000, 100_000)  # passages
MEASURES = (("rollout_s", "rollout [s]"), ("update_s", "update [s]"), ("peak_gib", "peak memory [GiB]"))


def main(arguments: list[str] | None = None) -> Path:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, help="folder for results (default outputs/bench-growth/DATE-TIME)")
    parser.add_argument("--model", default="smollm2-135m", help="smollm2-135m or tiny (default %(default)s)")
    parser.add_argument("--series", help=f"of {', '.join(SERIES)}, corpus, with commas between (default: all)")
    parser.add_argument("--measure", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.measure:
        measure(*options.measure)
        return Path(options.measure[1])
    chosen = options.series.split(",") if options.series else [*SERIES, "corpus"]
    for name in chosen:
        if name not in SERIES and name != "corpus":
            parser.error(f"--series {name}: choose from {', '.join([*SERIES, 'corpus'])}")
    out = options.out or Path("outputs/bench-growth") / datetime.now().strftime("%Y-%m-%d-%H%M%S")
    out.mkdir(parents=True, exist_ok=True)

    from agentrl.allocator import tunables
    from agentrl.runs.machine import git_state, hardware, versions

    found: dict[str, list[dict[str, Any]]] = {}
    for name in chosen:
        print(f"{name} …", flush=True)
        found[name] = corpus_series() if name == "corpus" else series(name, options.model, out, tunables())
    report = {
        "command": ["scripts/bench_growth.py", *(sys.argv[1:] if arguments is None else arguments)],
        "date": datetime.now().astimezone().isoformat(timespec="seconds"),
        "git": git_state(HERE),
        "machine": hardware(),
        "versions": versions(),
        "base": BASE | {"turns": TURNS},
        "series": found,
    }
    file = out / "growth.json"
    file.write_text(json.dumps(report, indent=1))
    text = table(found)
    (out / "growth.md").write_text(text)
    draw(found, out / "growth.png")
    print(f"{text}\nresults: {file}, growth.md and growth.png beside it")
    return file


def series(name: str, model: str, out: Path, memory: str) -> list[dict[str, Any]]:
    """One process for each value: memory that an earlier value took must not count for a later one."""
    points = []
    values, fixed = SERIES[name]
    for value in values:
        setting = {"turns": TURNS, **BASE, **fixed, name: value}
        job, result = out / f"{name}-{value}-job.json", out / f"{name}-{value}.json"
        job.write_text(json.dumps({"model": model, **setting}))
        command = [sys.executable, str(HERE / "bench_growth.py"), "--measure", str(job), str(result)]
        log = out / f"{name}-{value}.log"
        with log.open("w") as stream:
            environment = {**os.environ, "GLIBC_TUNABLES": memory}
            if subprocess.run(command, stdout=stream, stderr=subprocess.STDOUT, env=environment).returncode != 0:
                sys.exit(f"bench_growth: {name}={value} failed; see {log}")
        points.append({"value": value, **json.loads(result.read_text())})
    return points


def measure(job_file: str, result: str) -> None:
    """The second of two equal steps; the first compiles and allocates."""
    import bench_agentrl
    from bench import make_job

    setting = json.loads(Path(job_file).read_text())
    turns, slots = setting.pop("turns"), setting.pop("slots", 0)
    options = argparse.Namespace(
        small=False, dtype="auto", turns=[turns], threads=len(os.sched_getaffinity(0)), trl_micro_batch=4, **setting
    )
    job: Job = dataclasses.replace(make_job(options), micro_batch_tokens=Job.micro_batch_tokens)
    cfg, kit, learner = bench_agentrl.load(job)
    if slots:
        kit.engine.slots = cfg.engine.slots = slots
    some = bench_agentrl.tasks(job.messages, "growth")
    for _ in range(2):
        done = bench_agentrl.step(job, cfg, kit, learner, some, turns, job.turn_tokens)
    Path(result).write_text(
        json.dumps({"rollout_s": done.rollout_s, "update_s": done.update_s, "peak_gib": done.peak_bytes / 2**30})
    )


def corpus_series() -> list[dict[str, Any]]:
    """BM25: seconds to index, and milliseconds for a query, against passages."""
    from check_million_passages import generate

    points = []
    for count in CORPUS:
        with tempfile.TemporaryDirectory() as folder:
            generate(Path(folder) / "corpus.jsonl", count)
            command = [sys.executable, str(HERE / "check_million_passages.py"), "--measure", "--folder", folder]
            output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
            measured = json.loads(output)
        points.append({"value": count, **{k: measured[k] for k in ("open_s", "query_ms", "peak_gib")}})
    return points


def exponent(points: Sequence[dict[str, Any]], key: str) -> float:
    """The slope of log(measure) against log(value) over the upper half of the curve, where fixed costs matter less."""
    (x0, y0), (x1, y1) = ((math.log(p["value"]), math.log(max(p[key], 1e-9))) for p in points[-2:])
    return (y1 - y0) / (x1 - x0)


def table(found: dict[str, list[dict[str, Any]]]) -> str:
    """Markdown: every curve's values, and its exponent between the last two."""
    lines = ["| varied | values | measure | measured | exponent at the end |", "|---|---|---|---|---|"]
    for name, points in found.items():
        values = ", ".join(f"{p['value']:,}" for p in points)
        for key in [k for k in points[0] if k != "value"]:
            measured = ", ".join(f"{p[key]:.3g}" for p in points)
            title = dict(MEASURES).get(key, {"open_s": "index [s]", "query_ms": "query [ms]"}.get(key, key))
            lines.append(f"| {name} | {values} | {title} | {measured} | {exponent(points, key):.2f} |")
    return "\n".join(lines) + "\n"


def draw(found: dict[str, list[dict[str, Any]]], file: Path) -> None:
    """A panel for each series; both axes logarithmic, with a dotted line of slope 1 through the last point."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    columns = min(4, len(found))
    rows = -(-len(found) // columns)
    figure = Figure(figsize=(3.6 * columns, 3.2 * rows), layout="constrained")
    FigureCanvasAgg(figure)
    for index, (name, points) in enumerate(found.items(), 1):
        axes = figure.add_subplot(rows, columns, index)
        x = [p["value"] for p in points]
        for key in [k for k in points[0] if k != "value"]:
            y = [p[key] for p in points]
            (line,) = axes.plot(x, y, marker="o", label=dict(MEASURES).get(key, key))
            axes.plot(x, [y[-1] * v / x[-1] for v in x], linestyle=":", alpha=0.5, color=line.get_color())
        axes.set_xscale("log", base=10 if name == "corpus" else 2)
        axes.set_yscale("log")
        axes.set_title(name.replace("_", " "))
        axes.grid(alpha=0.3)
        axes.legend(fontsize=7)
    figure.suptitle("dotted: linear growth through the last point", fontsize=9)
    figure.savefig(file, dpi=110)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
