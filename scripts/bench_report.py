"""The benchmark's numbers: medians and ratios, the machine's peaks, the table and the plot."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench_job import Job
from rich.console import Console
from rich.table import Table

from agentrl.errors import RunError

# (key, title, unit, the ratio: such that above 1 favours agentrl; none where neither is better)
MEASURES = (
    ("rollout_s", "rollout", "s", "trl/agentrl"),
    ("sampled_per_s", "sampled tokens/s", "", "agentrl/trl"),
    ("update_s", "update", "s", "trl/agentrl"),
    ("update_of_peak", "update, share of peak", "%", "agentrl/trl"),
    ("step_s", "step", "s", "trl/agentrl"),
    ("peak_gib", "peak memory", "GiB", "trl/agentrl"),
    ("cores_used", "cores in use", "", ""),
)


def peaks(threads: int, size: int = 2048, seconds: float = 1.0) -> dict[str, float]:
    """Floating-point operations per second of a bf16 and an fp32 matrix product on ``threads`` threads, the best of
    many products of ``size`` × ``size`` matrices."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    found = {}
    for name, dtype in (("bf16_flops", torch.bfloat16), ("fp32_flops", torch.float32)):
        a, b = (torch.randn(size, size).to(dtype) for _ in range(2))
        best, end = float("inf"), time.perf_counter() + seconds
        a @ b
        while time.perf_counter() < end:
            start = time.perf_counter()
            a @ b
            best = min(best, time.perf_counter() - start)
        found[name] = 2.0 * size**3 / best
    torch.set_num_threads(before)
    return found


def compare(job: Job, runs: Sequence[dict[str, Any]], machine: dict[str, Any]) -> list[dict[str, Any]]:
    """For every number of turns, each measure's median, lowest and highest value by side, and the ratio of medians.

    RunError when the sides were given different prompts.
    """
    summary = []
    for turns in job.turns:
        values: dict[str, dict[str, list[float]]] = {}
        prompts: dict[str, str] = {}
        for run in runs:
            for step in run["steps"]:
                if step["turns"] != turns:
                    continue
                prompts[run["side"]] = step["prompt_hash"]
                peak = machine["bf16_flops" if "bf" in run["dtype"] else "fp32_flops"]
                useful = 6.0 * run["parameters"] * job.needed_tokens(turns)
                measured = {
                    "rollout_s": step["rollout_s"],
                    "sampled_per_s": step["rows"] * step["sampled_tokens"][0] / step["rollout_s"],
                    "update_s": step["update_s"],
                    "update_of_peak": 100 * useful / step["update_s"] / peak,
                    "step_s": step["step_s"],
                    "peak_gib": step["peak_bytes"] / 2**30,
                    "cores_used": step["cpu_s"] / step["step_s"],
                }
                for key, value in measured.items():
                    values.setdefault(key, {}).setdefault(run["side"], []).append(value)
        if len(set(prompts.values())) > 1:
            raise RunError("the two sides saw different prompt tokens: the model's chat template is not plain ChatML")
        summary.append({"turns": turns, "row_tokens": job.row_tokens(turns), "measures": summarise(values)})
    return summary


def summarise(values: dict[str, dict[str, list[float]]]) -> dict[str, dict[str, Any]]:
    measures: dict[str, dict[str, Any]] = {}
    for key, _, _, direction in MEASURES:
        sides = values.get(key, {})
        found: dict[str, Any] = {}
        for side, v in sides.items():
            found[side] = {"median": statistics.median(v), "low": min(v), "high": max(v), "n": len(v)}
        if len(sides) == 2 and direction:
            upper, lower = (found[side]["median"] for side in direction.split("/"))
            found["ratio"] = upper / lower
        measures[key] = found
    return measures


def show(report: dict[str, Any], console: Console) -> None:
    """The table: one block of rows for every number of turns. A ratio above 1 is in agentrl's favour."""
    job, machine = report["job"], report["machine"]
    sides = list(dict.fromkeys(run["side"] for run in report["runs"]))
    dtypes = {run["side"]: run["dtype"].replace("torch.", "") for run in report["runs"] if run["steps"]}
    table = Table(title=f"{Path(job['model']).name}: {job['prompts']} prompts × {job['members']} members")
    for title in ("turns", "measure"):
        table.add_column(title)
    for side in sides:
        table.add_column(f"{'TRL' if side == 'trl' else side}\n{dtypes.get(side, 'failed')}", justify="right")
    if len(sides) == 2:
        table.add_column("ratio", justify="right")
    for block in report["summary"]:
        for i, (key, title, unit, _) in enumerate(MEASURES):
            found = block["measures"][key]
            cells = [cell(found[side]) if side in found else "–" for side in sides]
            if len(sides) == 2:
                cells.append(f"{found['ratio']:.2f}×" if "ratio" in found else "–")
            turns = str(block["turns"]) if i == 0 else ""
            table.add_row(turns, f"{title}{f' [{unit}]' if unit else ''}".replace("[", r"\["), *cells)
        table.add_section()
    console.print(table)
    console.print(
        f"prompt {job['prompt_tokens']} tokens, {job['turn_tokens']} sampled tokens a turn, observations of "
        f"{job['observation_tokens']} tokens, {job['threads']} threads; peak matrix products: bf16 "
        f"{machine['bf16_flops'] / 1e12:.2f}, fp32 {machine['fp32_flops'] / 1e12:.2f} TFLOP/s. Medians"
        f"{' (lowest to highest)' if len(report['runs']) > 1 else ''}; a ratio above 1 favours agentrl. "
        "Share of peak: 6 × parameters × different tokens of the step, attention left out."
    )


def cell(found: dict[str, Any]) -> str:
    text = number(found["median"])
    return text if found["n"] == 1 else f"{text} ({number(found['low'])}–{number(found['high'])})"


def number(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def draw(report: dict[str, Any], file: Path) -> None:
    """Step time, rollout time and update time against turns, one panel each, both sides."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 3.6), layout="constrained")
    FigureCanvasAgg(figure)
    for index, (key, title) in enumerate((("step_s", "step"), ("rollout_s", "rollout"), ("update_s", "update")), 1):
        axes = figure.add_subplot(1, 3, index)
        for side, label, colour in (("trl", "TRL", "tab:orange"), ("agentrl", "agentrl", "tab:blue")):
            blocks = [b for b in report["summary"] if side in b["measures"][key]]
            if not blocks:
                continue
            found = [b["measures"][key][side] for b in blocks]
            spread = [[f["median"] - f["low"] for f in found], [f["high"] - f["median"] for f in found]]
            x, middle = [b["turns"] for b in blocks], [f["median"] for f in found]
            axes.errorbar(x, middle, yerr=spread, marker="o", capsize=3, label=label, color=colour)
        axes.set_title(f"{title}, seconds")
        axes.set_xlabel("turns")
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
        axes.legend()
    figure.savefig(file, dpi=110)
