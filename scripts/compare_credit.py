"""GRPO, RLOO, GiGPO, iStar and ground-truth step rewards on one panel, with one budget in cost and several seeds.

    python scripts/compare_credit.py --out outputs/compare_credit

Every seed has one cold start of the tiny model in examples/rooms, from which every arm trains until it has spent the
same number of floating-point operations, forward and backward, the process reward model's included. Training goes on
in a few pieces, because only a run itself tells what its steps cost. Then all arms are evaluated on the same tasks.
Writes credit.png (success in training against cost), credit.md (the table) and credit.json. What is finished is kept:
run it again after an interruption, or with a larger budget or more seeds, and it goes on.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOMS = Path(__file__).resolve().parents[1] / "examples" / "rooms"

ARMS: dict[str, tuple[str, ...]] = {
    "GRPO": ("algo=grpo",),
    "RLOO": ("algo=rloo",),
    "GiGPO": ("algo=gigpo",),
    "iStar": ("algo=istar", "reward=implicit_step"),
    "potential": ("algo=istar", "reward=potential"),
}
COMMON = ("env=rooms", "env.options.slips=0.1", "model=tiny", "engine.threads=1", "run.tracker=none")
CONTEXT = ("rollout.max_tokens=160", "rollout.window=1")  # observations can be acted on without anything before them
# The map is learned late and quickly: ten passes succeed in about 90 % of episodes, too few only as often as chance.
# Five leave a policy that succeeds in about one of four (seed 0), which RL can build on in a few dozen steps.
SFT = ("sft.traces=400", "sft.epochs=5", "sft.batch_size=4", "sft.learning_rate=5e-3", "sft.patience=9")
RL = (
    "algo.group_size=8", "algo.prompts_per_step=8", "algo.learning_rate=1e-3", "engine.slots=64",
    "train.save_every=20", "train.keep=0", "run.trajectories=false",
)  # fmt: skip
SMOOTH = 5  # steps in a mean of the curves
T975 = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571, 7: 2.447, 8: 2.365, 9: 2.306, 10: 2.262}  # Student's t


@dataclass(frozen=True)
class Settings:
    """``budget`` in floating-point operations; ``max_steps`` ends a run earlier (for a quick try)."""

    out: Path
    budget: float
    tasks: int
    max_steps: int


def agentrl(*arguments: str, log: Path) -> None:
    """Run the command line in the example's folder, its output in ``log``; RuntimeError with its end if it fails."""
    log.parent.mkdir(parents=True, exist_ok=True)
    environment = {"OMP_NUM_THREADS": "1", **os.environ}
    with log.open("a") as out:
        code = subprocess.run(
            [sys.executable, "-m", "agentrl", *arguments], stdout=out, stderr=out, cwd=ROOMS, env=environment
        ).returncode
    if code:
        raise RuntimeError(f"agentrl {' '.join(arguments)} ended with {code}:\n{log.read_text()[-2000:]}")


def lines(run: Path) -> list[dict[str, Any]]:
    """The finished steps of a run."""
    file = run / "metrics.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def cost(line: dict[str, Any]) -> float:
    """Floating-point operations of one step: all that the ledger counts, whichever model they were spent on."""
    return sum(value for name, value in line.items() if name.startswith("cost/flops"))


def status(run: Path) -> str | None:
    file = run / "run.json"
    return json.loads(file.read_text())["status"] if file.exists() else None


def cold_start(settings: Settings, seed: int) -> Path:
    run = settings.out / f"seed{seed}" / "cold_start"
    if status(run) != "finished":
        put_aside(run)  # a cold start cannot go on
        agentrl("sft-coldstart", *COMMON, *CONTEXT, *SFT, f"sft.seed={seed}", f"run.dir={run}", log=log_of(run))
    return run / "checkpoints" / "best"


def put_aside(run: Path) -> None:
    """Rename what an interrupted run left, if it left anything."""
    if run.exists():
        run.rename(next(p for i in range(1000) if not (p := run.with_name(f"{run.name}.{i}")).exists()))


def log_of(run: Path) -> Path:
    return run.with_name(f"{run.name}.log")


def train(settings: Settings, arm: str, seed: int, start: Path) -> Path:
    """Train one arm until one more step would pass the budget."""
    run = settings.out / f"seed{seed}" / arm
    while True:
        done = lines(run)
        if status(run) is not None and not done:
            agentrl("train", f"run.resume={run}", log=log_of(run))  # killed in its first step
            continue
        steps = steps_to(done, settings)
        if steps <= len(done) and (run / "checkpoints" / f"step-{len(done):06d}").is_dir():
            return run
        if done:
            agentrl("train", f"run.resume={run}", f"train.steps={max(steps, len(done))}", log=log_of(run))
        else:
            put_aside(run)  # killed before it was a run
            agentrl(
                "train", *COMMON, *CONTEXT, *RL, *ARMS[arm], f"train.seed={seed}", f"model.init={start}",
                f"train.steps={steps}", f"run.dir={run}", log=log_of(run),
            )  # fmt: skip


def steps_to(done: Sequence[dict[str, Any]], settings: Settings) -> int:
    """How many steps the run should have next: as many as fit the budget if each costs what the dearest of ten did."""
    if not done:
        return min(3, settings.max_steps)
    left = settings.budget - sum(map(cost, done))
    if left < 0.03 * settings.budget:
        return len(done)
    return min(settings.max_steps, len(done) + math.floor(left / max(map(cost, done[-10:]))))


def evaluate(settings: Settings, seed: int, runs: dict[str, Path], start: Path) -> dict[str, Any]:
    """One evaluation of a seed's cold start and arms on the same tasks: eval.json."""
    folder = settings.out / f"seed{seed}" / "eval"
    # One that was made of other arms, or before these had trained on, is made anew.
    what = {"tasks": settings.tasks, "steps": [[arm, len(lines(run))] for arm, run in runs.items()]}
    note = folder.with_name("eval.what.json")
    if status(folder) != "finished" or not note.exists() or json.loads(note.read_text()) != what:
        put_aside(folder)
        note.write_text(json.dumps(what))
        checkpoints = [f"--checkpoint={c}" for c in (start, *(r / "checkpoints" / "last" for r in runs.values()))]
        agentrl(
            "eval", *COMMON, *CONTEXT, f"eval.tasks={settings.tasks}", "engine.slots=64", "run.trajectories=false",
            f"run.dir={folder}", "--heldout", *checkpoints, log=log_of(folder),
        )  # fmt: skip
    return json.loads((folder / "eval.json").read_text())


def mean_interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Mean and 95 % interval by Student's t over the seeds, so that it holds what another seed would do."""
    mean = statistics.fmean(values)
    if len(values) < 2:
        return mean, math.nan, math.nan
    half = T975[len(values)] * statistics.stdev(values) / math.sqrt(len(values))
    return mean, mean - half, mean + half


def measure(
    settings: Settings, seeds: Sequence[int], arms: Sequence[str], runs: dict[int, dict[str, Path]]
) -> dict[str, Any]:
    """All numbers: per arm and seed the curve, its mean height over the budget, cost and success on both variants."""
    found: dict[str, Any] = {"budget": settings.budget, "seeds": list(seeds), "arms": {}, "cold start": {}}
    policies = {
        seed: json.loads((settings.out / f"seed{seed}" / "eval" / "eval.json").read_text())["policies"]
        for seed in seeds
    }

    def success(seed: int, place: int) -> dict[str, float]:
        return {p["variant"]: p["success"]["mean"] for p in policies[seed][place]["panels"]}

    found["cold start"] = {seed: success(seed, 0) for seed in seeds}
    for place, arm in enumerate(arms, 1):
        found["arms"][arm] = {}
        for seed in seeds:
            done = lines(runs[seed][arm])
            costs = [sum(map(cost, done[: i + 1])) for i in range(len(done))]
            curve = [line["success/mean"] for line in done]
            found["arms"][arm][seed] = {
                "steps": len(done),
                "cost": costs,
                "success": curve,
                "height": sum(c * cost(line) for c, line in zip(curve, done, strict=True)) / costs[-1],
                "seconds": sum(line["time/step_s"] for line in done),
                "reward_model": sum(line.get("cost/flops_prm", 0.0) for line in done) / costs[-1],
                "final": success(seed, place),
            }
    return found


def table(found: dict[str, Any]) -> str:
    """The results as markdown; differences to the first arm are paired by seed."""
    seeds, arms = found["seeds"], found["arms"]
    variants = list(next(iter(found["cold start"].values())))
    first = next(iter(arms))

    def cell(values: Sequence[float], sign: str = "") -> str:
        mean, low, high = mean_interval(values)
        return f"{mean:{sign}.2f}" + ("" if math.isnan(low) else f" [{low:{sign}.2f}, {high:{sign}.2f}]")

    def numbers(arm: str, key: str) -> list[float]:
        return [arms[arm][s][key] if key in arms[arm][s] else arms[arm][s]["final"][key] for s in seeds]

    header = ["arm", "steps", "cost, 10⁹ operations", "of it reward model", "seconds", "mean success in training"]
    header += [f"success, {v}" for v in variants] + [f"{v}: minus {first}" for v in variants]
    out = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    cold = [cell([found["cold start"][s][v] for s in seeds]) for v in variants]
    out.append("| cold start | – | – | – | – | – | " + " | ".join(cold + ["–"] * len(variants)) + " |")
    for arm in arms:
        cells = [
            arm,
            f"{statistics.fmean(numbers(arm, 'steps')):.0f}",
            f"{statistics.fmean(c[-1] for c in numbers(arm, 'cost')) / 1e9:.0f}",
            f"{100 * statistics.fmean(numbers(arm, 'reward_model')):.0f} %",
            f"{statistics.fmean(numbers(arm, 'seconds')):.0f}",
            cell(numbers(arm, "height")),
            *(cell(numbers(arm, v)) for v in variants),
        ]
        for v in variants:
            gaps = [a - b for a, b in zip(numbers(arm, v), numbers(first, v), strict=True)]
            cells.append("–" if arm == first else cell(gaps, "+"))
        out.append("| " + " | ".join(cells) + " |")
    note = f"Budget {found['budget']:.3g} floating-point operations a run, {len(seeds)} seed(s)."
    if len(seeds) > 1:
        note += " Brackets: 95 % by Student's t over the seeds; differences are paired by seed."
    return "\n".join([*out, "", note, ""])


def plot(found: dict[str, Any], path: Path) -> None:
    """Success in training against cost: every seed thin, the mean over seeds thick."""
    import numpy as np
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.5, 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for number, (arm, seeds) in enumerate(found["arms"].items()):
        grid = np.linspace(0, min(s["cost"][-1] for s in seeds.values()), 100)
        smooth = []
        for seed in seeds.values():
            window = min(SMOOTH, len(seed["success"]))
            means = np.convolve(seed["success"], np.ones(window) / window, "valid")
            smooth.append(np.interp(grid, seed["cost"][window - 1 :], means, left=np.nan))
            axes.plot(grid / 1e9, smooth[-1], color=f"C{number}", linewidth=0.6, alpha=0.4)
        axes.plot(grid / 1e9, np.mean(smooth, axis=0), color=f"C{number}", linewidth=2, label=arm)
    axes.set_xlabel("cost: 10⁹ floating-point operations, forward and backward")
    axes.set_ylabel(f"success in training, mean of {SMOOTH} steps")
    axes.set_ylim(0, 1)
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=150)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("outputs/compare_credit"))
    parser.add_argument("--seeds", type=int, default=3, help="2 to 10 for intervals")
    parser.add_argument("--budget", type=float, default=1.2e12, help="floating-point operations of a run")
    parser.add_argument("--max-steps", type=int, default=400)
    parser.add_argument("--tasks", type=int, default=150, help="tasks a variant in the evaluation")
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time, one core each")
    parser.add_argument("--arms", nargs="+", default=list(ARMS), choices=list(ARMS))
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse(arguments)
    settings = Settings(options.out.resolve(), options.budget, options.tasks, options.max_steps)
    seeds = list(range(options.seeds))
    with ThreadPoolExecutor(options.jobs) as pool:
        starts = list(pool.map(lambda s: cold_start(settings, s), seeds))
        # Seed by seed, so that an early stop leaves whole comparisons behind.
        jobs = [(arm, seed, starts[seed]) for seed in seeds for arm in options.arms]
        trained = list(pool.map(lambda job: train(settings, *job), jobs))
        runs: dict[int, dict[str, Path]] = {seed: {} for seed in seeds}
        for (arm, seed, _), run in zip(jobs, trained, strict=True):
            runs[seed][arm] = run
        list(pool.map(lambda s: evaluate(settings, s, runs[s], starts[s]), seeds))
    found = measure(settings, seeds, options.arms, runs)
    (settings.out / "credit.json").write_text(json.dumps(found, indent=1))
    (settings.out / "credit.md").write_text(table(found))
    plot(found, settings.out / "credit.png")
    print(table(found))


if __name__ == "__main__":
    main()
