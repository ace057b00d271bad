"""DPO from a file: pairs that were compared before the run, one optimiser step for each batch of them.

The pairs of step s follow from the config and s alone: all of them are shuffled anew for every pass.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from transformers import PreTrainedModel

from agentrl.config.schema import Config
from agentrl.errors import RunError, UserError
from agentrl.evaluate.panels import append_hashes
from agentrl.learn.dpo import DpoLearner
from agentrl.learn.optimizer import MasterOptimizer
from agentrl.learn.preference import Comparison, compare
from agentrl.learn.preference_data import PairOfRows, load_preferences
from agentrl.models.load import load_tokenizer, resolve, save_model
from agentrl.models.template import Renderer
from agentrl.rollout.trajectory import Row
from agentrl.runs.budget import Budget
from agentrl.runs.collapse import CollapseWatch
from agentrl.runs.folder import Run
from agentrl.runs.interrupt import Interrupt
from agentrl.runs.ledger import shape_of
from agentrl.runs.progress import Progress
from agentrl.stages.common import (
    available_cores,
    initial_model,
    load_state,
    save_state,
    trainable_model,
)


@dataclass
class PreferenceState:
    """Everything that moves during a run."""

    step: int
    learner: DpoLearner
    watch: CollapseWatch
    best: float = -math.inf

    def to_json(self) -> dict[str, Any]:
        best = None if math.isinf(self.best) else self.best
        updates, watch = self.learner.updates, self.watch.state_dict()
        return {"step": self.step, "updates": updates, "watch": watch, "best": best}

    def restore(self, state: dict[str, Any]) -> None:
        self.step, self.learner.updates = state["step"], state["updates"]
        self.watch.load_state_dict(state["watch"])
        self.best = -math.inf if state["best"] is None else state["best"]


def main(cfg: Config, run: Run, start: Path | None, checkpoint: Path | None, console: Console) -> Path:
    """Learn from ``algo.dpo.source``; returns the last checkpoint. Raises UserError, RunError, KeyboardInterrupt."""
    source = cfg.algo.dpo.source
    assert source is not None
    with run.ending():
        torch.set_num_threads(cfg.engine.threads or available_cores())
        started = time.monotonic()
        path = str(start) if start is not None else resolve(cfg.model)
        renderer = Renderer(load_tokenizer(path))
        found = load_preferences(source, renderer, cfg.algo.dpo, cfg.rollout.max_tokens)
        console.print(f"{source}: {found.summary()}")
        if not found.pairs:
            raise UserError(f"algo.dpo.source={source}: no usable pair: {found.summary()}")
        fitted, heldout = split(found.pairs, cfg.algo.dpo.holdout, cfg.train.seed)
        append_hashes(run.dir, sorted({p.hash for p in fitted if p.hash}))
        model = trainable_model(path, cfg.model.dtype, cfg.model.lora)
        state = new_state(cfg, model)
        if checkpoint is not None:
            state.restore(load_state(checkpoint, state.learner.optimizer))
        run.ledger.add("startup", wall_s=time.monotonic() - started)
        last = train(cfg, state, fitted, heldout, run, renderer, console)
    console.print(f"checkpoint: {last}")
    return last


def new_state(cfg: Config, model: PreTrainedModel) -> PreferenceState:
    """The state before the first step."""
    algo = cfg.algo
    optimizer = MasterOptimizer(model, algo.weight_decay, (algo.adam_beta1, algo.adam_beta2))
    learner = DpoLearner(
        model, optimizer, algo, cfg.train.micro_batch_tokens, cfg.rollout.temperature, initial_model(cfg)
    )
    return PreferenceState(0, learner, CollapseWatch())


def split(pairs: Sequence[PairOfRows], holdout: float, seed: int) -> tuple[list[PairOfRows], list[PairOfRows]]:
    """Pairs to learn from, and held-out ones (a share of the prompts: pairs of one prompt stay together).

    At least one prompt is learned from; with a single prompt nothing is held out.
    """
    prompts = sorted({p.prompt for p in pairs})
    random.Random(seed).shuffle(prompts)
    held = set(prompts[: min(math.ceil(len(prompts) * holdout), len(prompts) - 1)])
    return [p for p in pairs if p.prompt not in held], [p for p in pairs if p.prompt in held]


def batch_of(pairs: Sequence[PairOfRows], size: int, step: int, seed: int) -> list[PairOfRows]:
    """The pairs of step ``step`` (from 0): the next ``size`` of passes over all, each in a new order."""
    chosen: list[PairOfRows] = []
    orders: dict[int, list[int]] = {}
    for place in range(step * size, (step + 1) * size):
        epoch, index = divmod(place, len(pairs))
        if epoch not in orders:
            orders[epoch] = list(range(len(pairs)))
            random.Random(f"{seed}/{epoch}").shuffle(orders[epoch])
        chosen.append(pairs[orders[epoch][index]])
    return chosen


def comparison_of(pairs: Sequence[PairOfRows], cfg: Config) -> Comparison:
    """Pairs as a comparison in which a trajectory that stands in several of them is there once."""
    trajectories: dict[int, Sequence[Row]] = {}
    for pair in sorted(pairs, key=lambda p: p.prompt):  # neighbours with one prompt share it in packing
        for rows in (pair.better, pair.worse):
            trajectories.setdefault(id(rows), rows)
    place = {key: i for i, key in enumerate(trajectories)}
    return compare(
        list(trajectories.values()), [(place[id(p.better)], place[id(p.worse)]) for p in pairs], cfg.algo.dpo
    )


def train(
    cfg: Config,
    state: PreferenceState,
    pairs: Sequence[PairOfRows],
    heldout: Sequence[PairOfRows],
    run: Run,
    renderer: Renderer,
    console: Console,
) -> Path:
    """The training loop: one step from top to bottom."""
    learner = state.learner
    book = run.ledger
    book.shape, book.samples = shape_of(learner.model), False
    budget = Budget(cfg.budget, book)
    tested = comparison_of(heldout, cfg) if heldout else None
    last = run.checkpoints.last()
    with Progress("train", cfg.train.steps, done=state.step) as progress, Interrupt() as interrupt:
        while state.step < cfg.train.steps:
            if (spent := budget.spent()) is not None and last is not None:
                run.outcome = "budget_spent"
                console.print(f"{spent}: stopped after step {state.step}, saved")
                break
            started = time.monotonic()
            batch = batch_of(pairs, cfg.algo.dpo.batch_size, state.step, cfg.train.seed)
            metrics = learner.fit([comparison_of(batch, cfg)], lambda f: progress.tick(f, "update"))
            state.step = step = state.step + 1
            book.trained("update", metrics, time.monotonic() - started)
            ending = step == cfg.train.steps or interrupt.requested or budget.spent() is not None
            due = step % cfg.train.save_every == 0 or ending
            if due and tested is not None:
                began = time.monotonic()
                held = learner.evaluate(tested)
                book.trained("eval", held, time.monotonic() - began)
                metrics |= {f"dpo/heldout_{n}": v for n, v in held.items() if not n.startswith("train/")}
            metrics["epoch"] = step * cfg.algo.dpo.batch_size / len(pairs)
            warnings = state.watch.update(step, metrics, [])
            metrics["time/step_s"] = time.monotonic() - started
            metrics |= book.close(step)
            run.record(step, metrics)
            for warning in warnings:
                run.warn(step, warning.name, warning.message)
                console.print(f"[warning: {warning.name}] {warning.message}")
            progress.update(
                step,
                loss=metrics["loss/policy"],
                accuracy=metrics["dpo/accuracy"],
                heldout=metrics.get("dpo/heldout_accuracy"),
            )
            if due and not any(w.name == "not_finite" for w in warnings):
                with book.timed("save"):
                    last = save(cfg, state, run, renderer, metrics)
            if interrupt.requested:
                console.print(f"interrupted after step {step}; go on with: agentrl train run.resume={run.dir}")
                raise KeyboardInterrupt
            if warnings and cfg.train.stop_on_collapse:
                raise RunError(
                    f"stopped at step {step} on {warnings[0].name} (train.stop_on_collapse); "
                    f"the best checkpoint is {run.checkpoints.best()}"
                )
    if last is None:
        raise RunError("train.steps=0: nothing was trained and nothing saved")
    return last


def save(cfg: Config, state: PreferenceState, run: Run, renderer: Renderer, metrics: dict[str, float]) -> Path:
    """Save a checkpoint; it is the best one when it tells the held-out pairs apart at least as well as any before."""
    score = metrics.get("dpo/heldout_accuracy", -math.inf)
    best = score >= state.best
    state.best = max(state.best, score)

    def write(folder: Path) -> None:
        save_model(state.learner.model, renderer.tokenizer, folder)
        save_state(folder, state.learner.optimizer, state.to_json())

    return run.checkpoints.save(state.step, write, cfg.train.keep, best=best)
