"""agentrl train-reward: a reward model from preference pairs, with its accuracy and calibration on held-out ones."""

from __future__ import annotations

import json
import random
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from agentrl.config.schema import Config
from agentrl.errors import UserError
from agentrl.evaluate.agreement import pair_report
from agentrl.evaluate.panels import HASH_FILE
from agentrl.evaluate.tables import interval_text
from agentrl.learn import reward_model
from agentrl.learn.optimizer import MasterOptimizer, learning_rate
from agentrl.learn.preferences import Pair, load_pairs, split
from agentrl.learn.reward_model import RewardModel
from agentrl.models.load import compute_dtype, resolve
from agentrl.runs import files
from agentrl.runs.budget import Budget, BudgetSpent
from agentrl.runs.folder import Run, resolve_run
from agentrl.runs.interrupt import Interrupt
from agentrl.runs.ledger import shape_of
from agentrl.runs.progress import Progress, plain_console
from agentrl.stages.common import available_cores

MAX_GRAD_NORM = 1.0

Rows = tuple[list[list[int]], list[list[int]]]


def main(cfg: Config) -> Path:
    """Fit a reward model on ``reward_model.source``; returns its best checkpoint. Raises UserError.

    A budget that is spent ends the fit, saved, after the step that spent it.
    """
    console = plain_console()
    settings = cfg.reward_model
    if cfg.run.resume:
        raise UserError("run.resume works for train; fitting a reward model is short, so start it again")
    if not settings.source:
        raise UserError("reward_model.source: give a file of preference pairs, or a run whose trajectories make pairs")
    if cfg.model.lora.enabled:
        raise UserError("model.lora.enabled: a reward model is trained as a whole; leave it false")
    source = settings.source
    if source == "latest":
        source = str(resolve_run(source, cfg.run.root))
    pairs = load_pairs(source, settings.pairs_per_task, settings.seed)
    console.print(pairs.summary())
    fitted, heldout = split(pairs.pairs, settings.holdout, settings.seed)
    if not fitted:
        raise UserError(f"{pairs.summary()} leave nothing to train on beside reward_model.holdout={settings.holdout}")
    torch.set_num_threads(cfg.engine.threads or available_cores())
    path = cfg.model.init or resolve(cfg.model)
    reward = reward_model.load(path, settings.max_tokens, compute_dtype(cfg.model.dtype), fresh_head=settings.seed)
    run = Run.create(cfg, "train_reward", sys.argv)
    init = str(Path(cfg.model.init).resolve()) if cfg.model.init else None
    run.update(starts_from=init, source=str(Path(source).resolve()) if Path(source).exists() else source)
    if pairs.task_hashes:
        (run.dir / HASH_FILE).write_text("".join(f"{h}\n" for h in pairs.task_hashes))
    console.print(f"reward model from {path}, {len(fitted)} pairs and {len(heldout)} held out, run {run.dir}")
    with run.ending():
        checkpoint = fit(cfg, reward, fitted, heldout, run, console)
    if heldout:
        shown = json.loads((run.dir / "reward_model.json").read_text())["heldout"]
        console.print(
            f"held-out pairs: accuracy {interval_text(shown['accuracy'])}, log loss {shown['log_loss']:.3f}, "
            f"calibration error {shown['calibration']['ece']:.3f}; choosing the longer reply would be right in "
            f"{shown['longer_is_better']:.2f}",
            markup=False,
        )
    console.print(f"checkpoint: {checkpoint}")
    return checkpoint


def fit(
    cfg: Config, reward: RewardModel, fitted: Sequence[Pair], heldout: Sequence[Pair], run: Run, console: Console
) -> Path:
    """Train for ``reward_model.epochs``, keeping a checkpoint whenever the held-out log loss falls."""
    settings = cfg.reward_model
    book = run.ledger
    book.shape = shape_of(reward.model)
    budget = Budget(cfg.budget, book)
    rows, held = encoded(reward, fitted), encoded(reward, heldout)
    steps = -(-len(fitted) // settings.batch_size)
    total = steps * settings.epochs
    optimizer = MasterOptimizer(reward.model)
    best, step, checkpoint = float("inf"), 0, None
    spent: BudgetSpent | None = None
    with Progress("train-reward", total) as progress, Interrupt() as interrupt:
        for epoch in range(settings.epochs):
            order = list(range(len(fitted)))
            random.Random(settings.seed * 1000 + epoch).shuffle(order)
            for i in range(steps):
                started = time.monotonic()
                batch = order[i * settings.batch_size : (i + 1) * settings.batch_size]
                rate = learning_rate(settings.learning_rate, step, settings.warmup_steps, total)
                metrics = reward_model.pair_step(
                    reward,
                    optimizer,
                    [rows[0][j] for j in batch],
                    [rows[1][j] for j in batch],
                    rate,
                    MAX_GRAD_NORM,
                    settings.centre,
                    cfg.train.micro_batch_tokens,
                )
                step += 1
                seconds = time.monotonic() - started
                metrics |= {"policy/learning_rate": rate, "time/step_s": seconds}
                book.trained("update", metrics, seconds)
                spent = budget.spent() if step < total else None
                ending = i == steps - 1 or interrupt.requested or spent is not None
                report: dict[str, Any] | None = None
                if held[0] and ending:
                    started = time.monotonic()
                    report = evaluate(reward, held, cfg.train.micro_batch_tokens)
                    both = [*held[0], *held[1]]
                    read = {
                        "train/tokens_forward": sum(map(len, both)),
                        "train/attended_forward": reward.attended(both),
                    }
                    book.trained("eval", read, time.monotonic() - started)
                    metrics["heldout/accuracy"] = report["accuracy"]["mean"]
                    metrics["heldout/log_loss"] = report["log_loss"]
                    metrics["heldout/calibration_error"] = report["calibration"]["ece"]
                metrics |= book.close(step)
                run.record(step, metrics)
                progress.update(
                    step, loss=metrics["loss/reward_model"], heldout_accuracy=metrics.get("heldout/accuracy")
                )
                if ending:
                    break
            loss = report["log_loss"] if report else 0.0
            if loss < best or not held[0] or checkpoint is None:
                best = loss
                if report:
                    files.write_json(run.dir / "reward_model.json", {"step": step, "heldout": report})
                    draw(report, run.dir / "plots" / "calibration.png")
                with book.timed("save"):
                    checkpoint = run.checkpoints.save(step, reward.save, keep=0, best=True)
            if interrupt.requested:
                raise KeyboardInterrupt
            if spent is not None:
                console.print(f"{spent}: stopped after step {step} of {total}, saved")
                run.outcome = "budget_spent"
                break
    assert checkpoint is not None
    return checkpoint


def encoded(reward: RewardModel, pairs: Sequence[Pair]) -> Rows:
    return [reward.encode(p.chosen) for p in pairs], [reward.encode(p.rejected) for p in pairs]


def evaluate(reward: RewardModel, rows: Rows, batch_tokens: int) -> dict[str, Any]:
    """The Bradley-Terry report on pairs, and how often the longer of the two is the better one (the null model)."""
    chosen, rejected = rows
    values = reward.rewards([*chosen, *rejected], batch_tokens)
    margins = [a - b for a, b in zip(values[: len(chosen)], values[len(chosen) :], strict=True)]
    longer = [float(len(a) > len(b)) + 0.5 * (len(a) == len(b)) for a, b in zip(chosen, rejected, strict=True)]
    return {**pair_report(margins), "longer_is_better": sum(longer) / len(longer)}


def draw(report: dict[str, Any], path: Path) -> None:
    """Confidence against accuracy on held-out pairs."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.2, 3.6), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    bins = report["calibration"]["bins"]
    axes.plot([0.5, 1], [0.5, 1], color="#999999", linewidth=1, label="calibrated")
    axes.plot([b["confidence"] for b in bins], [b["observed"] for b in bins], marker="o", label="held-out pairs")
    for b in bins:
        axes.annotate(f"n={b['n']}", (b["confidence"], b["observed"]), fontsize=7)
    axes.set_xlabel("confidence, sigmoid(|margin|)")
    axes.set_ylabel("share of pairs in the right order")
    axes.legend(fontsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
