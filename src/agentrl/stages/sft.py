"""The cold start: supervised fine-tuning on traces that the verifier accepted."""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from agentrl.config.schema import Config
from agentrl.envs.base import Task
from agentrl.errors import RunError, UserError
from agentrl.evaluate.panels import record_hashes
from agentrl.learn.optimizer import MasterOptimizer, learning_rate
from agentrl.learn.sft import heldout_loss, sft_step
from agentrl.learn.traces import Traces, expert_traces, file_traces
from agentrl.rollout.trajectory import Row
from agentrl.runs.budget import Budget, BudgetSpent
from agentrl.runs.folder import Run
from agentrl.runs.interrupt import Interrupt
from agentrl.runs.ledger import shape_of
from agentrl.runs.progress import Progress, plain_console
from agentrl.stages.common import RolloutKit, load_rollout

MAX_GRAD_NORM = 1.0


def main(cfg: Config) -> Path | None:
    """Run the cold start; returns the best checkpoint, None when a budget was spent before the first step.

    Raises UserError, RunError, KeyboardInterrupt.
    """
    console = plain_console()
    if cfg.run.resume:
        raise UserError("run.resume works for train; a cold start is short, so start it again")
    run = Run.create(cfg, "sft", sys.argv)
    start = cfg.model.init or f"the base model {cfg.model.path or cfg.model.name}"
    console.print(f"cold start of {start} on {cfg.env.name}, run {run.dir}")
    with run.ending():
        with run.ledger.timed("startup"):
            kit = load_rollout(cfg, cfg.model.init)
        init = str(Path(cfg.model.init).resolve()) if cfg.model.init else None
        run.update(starts_from=init, data_hashes=dict(kit.spec.data_hashes()), environment=dict(kit.spec.facts()))
        try:
            checkpoint = fit(cfg, kit, run, console)
        except BudgetSpent as spent:
            console.print(f"{spent}: stopped before the first step, so there is no checkpoint")
            run.outcome, checkpoint = "budget_spent", None
    if checkpoint is not None:
        console.print(f"checkpoint: {checkpoint}")
    return checkpoint


def fit(cfg: Config, kit: RolloutKit, run: Run, console: Console) -> Path:
    """Make the traces and train on them for ``sft.epochs``, keeping a checkpoint whenever the held-out loss falls.

    A budget that is spent after a step ends the run like its last step; BudgetSpent when it is spent before the first.
    """
    book = run.ledger
    book.shape = shape_of(kit.model)
    budget = Budget(cfg.budget, book)
    tasks, traces = load_traces(cfg, kit, budget, console)
    record_hashes(run.dir, tasks)
    unseen = traces[: max(1, round(len(traces) * cfg.sft.holdout))] if cfg.sft.holdout > 0 else []
    heldout = [row for trace in unseen for row in trace]
    fitted = traces[len(unseen) :]
    if not fitted:
        raise RunError(f"{len(traces)} traces leave nothing to train on beside sft.holdout={cfg.sft.holdout}")
    steps = -(-len(fitted) // cfg.sft.batch_size)
    total = steps * cfg.sft.epochs
    optimizer = MasterOptimizer(kit.model)
    best, worse, step, checkpoint = float("inf"), 0, 0, None
    spent: BudgetSpent | None = None
    with Progress("sft-coldstart", total) as progress, Interrupt() as interrupt:
        for epoch in range(cfg.sft.epochs):
            order = list(range(len(fitted)))
            random.Random(cfg.sft.seed * 1000 + epoch).shuffle(order)
            for i in range(steps):
                started = time.monotonic()
                chosen = order[i * cfg.sft.batch_size : (i + 1) * cfg.sft.batch_size]
                batch = [row for j in chosen for row in fitted[j]]
                rate = learning_rate(cfg.sft.learning_rate, step, cfg.sft.warmup_steps, total)
                metrics = sft_step(kit.model, optimizer, batch, rate, MAX_GRAD_NORM, cfg.train.micro_batch_tokens)
                step += 1
                seconds = time.monotonic() - started
                metrics |= {"epoch": epoch + (i + 1) / steps, "policy/learning_rate": rate, "time/step_s": seconds}
                book.trained("update", metrics, seconds)
                spent = budget.spent() if step < total else None
                ending = i == steps - 1 or interrupt.requested or spent is not None
                if ending and heldout:
                    started = time.monotonic()
                    held = heldout_loss(kit.model, heldout, cfg.train.micro_batch_tokens)
                    book.trained("eval", held, time.monotonic() - started)
                    metrics |= held
                metrics |= book.close(step)
                run.record(step, metrics)
                progress.update(
                    step,
                    loss=metrics["loss/sft"],
                    heldout=metrics.get("loss/heldout"),
                    tokens_s=metrics["train/tokens"] / seconds,
                )
                if ending:
                    break
            loss = metrics.get("loss/heldout", float("nan"))
            if loss < best or not heldout or checkpoint is None:
                best, worse = loss, 0
                with book.timed("save"):
                    checkpoint = run.checkpoints.save(step, kit.save, keep=0, best=True)
            else:
                worse += 1
            if interrupt.requested:
                raise KeyboardInterrupt
            if spent is not None:
                console.print(f"{spent}: stopped after step {step} of {total}, saved")
                run.outcome = "budget_spent"
                break
            if worse > cfg.sft.patience:
                console.print(f"the held-out loss has not fallen for {worse} epochs: stopping early")
                break
    assert checkpoint is not None
    return checkpoint


def load_traces(
    cfg: Config, kit: RolloutKit, budget: Budget, console: Console
) -> tuple[Sequence[Task], list[list[Row]]]:
    """Traces from ``sft.source``, or from the environment's expert, each as rows. RunError when there is none,
    BudgetSpent when playing them spent a budget."""
    book = budget.ledger
    limit, window = cfg.rollout.max_tokens, cfg.rollout.window
    if cfg.sft.source:
        with book.timed("traces"):
            found = file_traces(cfg.sft.source, kit.renderer, kit.spec, limit, cfg.env.max_obs_tokens, window)
    else:
        counted = Traces()

        def show(traces: Traces) -> None:
            n = len(traces.traces)
            progress.tick(n / cfg.sft.traces, f"{n}/{cfg.sft.traces}")
            book.add(
                "traces",
                tool_calls=traces.tool_calls - counted.tool_calls,
                tool_s=traces.tool_seconds - counted.tool_seconds,
            )
            counted.tool_calls, counted.tool_seconds = traces.tool_calls, traces.tool_seconds
            budget.check()

        with Progress("expert traces", 1) as progress, book.timed("traces"):
            found = expert_traces(
                kit.spec, kit.renderer, cfg.sft.traces, cfg.sft.seed, limit, cfg.env, on_progress=show, window=window
            )
    console.print(found.summary())
    if not found.traces:
        raise RunError(f"no usable trace: {found.summary()}")
    traces = list(found.traces)
    random.Random(cfg.sft.seed).shuffle(traces)
    return found.tasks, traces
