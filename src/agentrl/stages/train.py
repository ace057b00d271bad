"""RL: sample groups, score them, annotate advantages, update, record. ``train`` is the loop; read it first."""

from __future__ import annotations

import math
import sys
import time
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from transformers import PreTrainedModel

from agentrl.algos import advantages, overlong
from agentrl.algos.sampling_filter import has_spread
from agentrl.config.schema import Config, LoraConfig
from agentrl.errors import RunError
from agentrl.evaluate.panels import Panel, build_panel, record_hashes
from agentrl.evaluate.runner import quick_eval
from agentrl.learn.dpo import DpoLearner
from agentrl.learn.optimizer import MasterOptimizer
from agentrl.learn.policy import PolicyLearner
from agentrl.learn.prm import ImplicitPrm
from agentrl.models.load import resolve
from agentrl.rewards import Rewards, build, reward_metrics
from agentrl.rollout.metrics import rollout_metrics
from agentrl.rollout.sampling import Sampling
from agentrl.rollout.trajectory import Group, StopReason
from agentrl.runs import ledger
from agentrl.runs.collapse import CollapseWatch
from agentrl.runs.folder import Run, resolve_run
from agentrl.runs.interrupt import Interrupt
from agentrl.runs.progress import Progress
from agentrl.stages import preference
from agentrl.stages.common import (
    RolloutKit,
    TaskStream,
    initial_model,
    load_rollout,
    load_state,
    save_state,
    starting_point,
    trainable_model,
)

SELF_TEST_TASKS = 32
PANEL_SEED_OFFSET = 500_009  # the small panel evaluated during training is not the final one


@dataclass
class TrainState:
    """Everything that moves during a run; what is not here is derived from the config and the step."""

    step: int  # finished steps
    stream: TaskStream
    learner: PolicyLearner | DpoLearner
    watch: CollapseWatch
    prm: ImplicitPrm | None = None
    best: float = -math.inf

    def save(self, folder: Path) -> None:
        """Write everything into a checkpoint's folder, beside the policy's weights."""
        save_state(folder, self.learner.optimizer, self.to_json())
        if self.prm is not None:
            self.prm.save(folder / "trainer")

    def load(self, checkpoint: Path) -> None:
        """Go on exactly from what ``save`` wrote."""
        self.restore(load_state(checkpoint, self.learner.optimizer))
        if self.prm is not None:
            self.prm.load(checkpoint / "trainer")

    def to_json(self) -> dict[str, Any]:
        best = None if math.isinf(self.best) else self.best
        return {
            "step": self.step,
            "cursor": self.stream.cursor,
            "updates": self.learner.updates,
            "watch": self.watch.state_dict(),
            "best": best,
        }

    def restore(self, state: dict[str, Any]) -> None:
        self.step, self.learner.updates = state["step"], state["updates"]
        self.stream.cursor = state["cursor"]
        self.watch.load_state_dict(state["watch"])
        self.best = -math.inf if state["best"] is None else state["best"]


def main(cfg: Config, steps: int | None = None) -> Path:
    """Run or resume RL; returns the last checkpoint. Raises UserError, RunError, KeyboardInterrupt.

    A resumed run follows the config stored in its folder; ``steps`` is a new number of steps for it.
    """
    console = Console(stderr=True)
    cfg, run, start, checkpoint = begin(cfg, steps, console)
    if cfg.algo.dpo.source is not None:
        return preference.main(cfg, run, start, checkpoint, console)
    with run.ending():
        kit = load_rollout(cfg, start)
        rewards = build(cfg.reward, kit.spec, cfg.train.seed)
        state = new_state(cfg, kit)
        if checkpoint is not None:
            state.load(checkpoint)
        else:
            run.update(data_hashes=dict(kit.spec.data_hashes()), environment=dict(kit.spec.facts()))
            rewards.self_test(TaskStream(kit.spec, kit.spec.train_variant, cfg.train.seed).next(SELF_TEST_TASKS))
        last = train(cfg, kit, rewards, state, run, console)
    console.print(f"checkpoint: {last}")
    return last


def begin(cfg: Config, steps: int | None, console: Console) -> tuple[Config, Run, Path | None, Path | None]:
    """Make or reopen the run: its config, its folder, the weights to load (None: the base model), the checkpoint to
    go on from.
    """
    if cfg.run.resume:
        run = Run.open(resolve_run(cfg.run.resume, cfg.run.root))
        checkpoint = run.checkpoints.last()
        resume, cfg = cfg.run.resume, run.config()
        cfg.run.resume = resume
        cfg.train.steps = steps or cfg.train.steps
        start = checkpoint or (Path(cfg.model.init) if cfg.model.init else None)
        run.rewind(0 if checkpoint is None else int(checkpoint.name.split("-")[1]))
        console.print(f"going on with {run.dir} from {checkpoint or 'its start'}")
        return cfg, run, start, checkpoint
    start = starting_point(cfg, ("sft",))
    # What was found goes into the stored config: a resumed run must not look for something newer.
    cfg = replace(cfg, model=replace(cfg.model, init=str(start.resolve()) if start else None))
    cfg.algo.dpo.source, cfg.reward.prm.init = map(absolute, (cfg.algo.dpo.source, cfg.reward.prm.init))
    run = Run.create(cfg, "train", sys.argv)
    run.update(starts_from=cfg.model.init)
    console.print(f"RL on {cfg.env.name} with reward={cfg.reward.name}, algo={cfg.algo.name}, run {run.dir}")
    if start is None:
        console.print(
            f"starting from the base model {cfg.model.path or cfg.model.name}: no cold start was found, so formats "
            f"will be learned slowly (make one with: agentrl sft-coldstart env={cfg.env.name})"
        )
    else:
        console.print(f"starting from {start}")
    return cfg, run, start, None


def absolute(path: str | None) -> str | None:
    """A path of the config as it must stand in a run that may be resumed from another folder."""
    return None if path is None else str(Path(path).expanduser().resolve())


def train(cfg: Config, kit: RolloutKit, rewards: Rewards, state: TrainState, run: Run, console: Console) -> Path:
    """The training loop: one step from top to bottom."""
    panel = small_panel(cfg, kit, run)
    parameters = kit.model.num_parameters()
    last = run.checkpoints.last()
    with Progress("train", cfg.train.steps, done=state.step) as progress, Interrupt() as interrupt:
        while state.step < cfg.train.steps:
            step = state.step + 1
            clock = Clock()
            groups, metrics = sample(cfg, kit, rewards, state, run, progress)
            clock.lap("time/rollout_s")
            metrics |= engine_metrics(kit, clock)
            metrics |= overlong.apply(groups, cfg.algo)
            if state.prm is not None:
                metrics |= state.prm.score(groups, lambda f: progress.tick(0.5 + f / 4, "reward model"))
                clock.lap("time/prm_s")
            metrics |= advantages.annotate(groups, cfg.algo)
            metrics |= state.learner.update(groups, lambda f: progress.tick(0.5 + f / 2, "update"))
            clock.lap("time/update_s")
            state.step = step
            if panel is not None and step % cfg.train.eval_every == 0:
                metrics |= quick_eval(kit.collector, rewards, panel.tasks, cfg.train.seed, step)
                clock.lap("time/eval_s")
                kit.engine.take_stats()  # the next step counts its own work only
            warnings = state.watch.update(step, metrics, groups)
            metrics |= clock.metrics()
            metrics |= ledger.operations(metrics, parameters)
            if cfg.run.trajectories:
                run.save_trajectories(step, groups)
            run.record(step, metrics)
            for warning in warnings:
                run.warn(step, warning.name, warning.message)
                console.print(f"[warning: {warning.name}] {warning.message}", markup=False)
            progress.update(
                step,
                reward=metrics.get("reward/mean"),
                success=metrics.get("success/mean"),
                entropy=metrics.get("policy/entropy"),
                tokens_s=metrics["rollout/tokens_per_s"],
            )
            collapsed = bool(warnings) and cfg.train.stop_on_collapse
            broken = any(w.name == "not_finite" for w in warnings)
            due = step % cfg.train.save_every == 0 or step == cfg.train.steps
            if not broken and (due or interrupt.requested or collapsed):
                last = save(cfg, kit, state, run, metrics)
            if interrupt.requested:
                console.print(f"interrupted after step {step}; go on with: agentrl train run.resume={run.dir}")
                raise KeyboardInterrupt
            if collapsed:
                raise RunError(
                    f"stopped at step {step} on {warnings[0].name} (train.stop_on_collapse); "
                    f"the best checkpoint is {run.checkpoints.best()}"
                )
    if last is None:
        raise RunError("train.steps=0: nothing was trained and nothing saved")
    return last


def new_state(cfg: Config, kit: RolloutKit) -> TrainState:
    """The state before the first step, for the weights that ``kit`` holds."""
    algo, prm = cfg.algo, cfg.reward.prm
    optimizer = MasterOptimizer(kit.model, algo.weight_decay, (algo.adam_beta1, algo.adam_beta2))
    dpo = algo.loss == "dpo"
    compared = (algo.dpo.reference if dpo else None, prm.reference if prm.enabled else None)
    initial = initial_model(cfg) if algo.kl_coef != 0 or "initial" in compared else None
    kind: type[DpoLearner] | type[PolicyLearner] = DpoLearner if dpo else PolicyLearner
    learner = kind(kit.model, optimizer, algo, cfg.train.micro_batch_tokens, cfg.rollout.temperature or 1.0, initial)
    state = TrainState(0, TaskStream(kit.spec, kit.spec.train_variant, cfg.train.seed), learner, CollapseWatch())
    if prm.enabled:
        state.prm = new_prm(cfg, kit.model, initial)
    return state


def new_prm(cfg: Config, policy: PreTrainedModel, initial: PreTrainedModel | None) -> ImplicitPrm:
    """The process reward model before it has learned anything."""
    prm = cfg.reward.prm
    lora = LoraConfig(prm.weights == "lora", prm.lora_rank, prm.lora_alpha)
    model = trainable_model(prm.init or cfg.model.init or resolve(cfg.model), cfg.model.dtype, lora)
    optimizer = MasterOptimizer(model, 0.0, (cfg.algo.adam_beta1, cfg.algo.adam_beta2))
    temperature = cfg.rollout.temperature or 1.0
    return ImplicitPrm(model, optimizer, prm, policy, cfg.train.micro_batch_tokens, temperature, initial)


def sample(
    cfg: Config, kit: RolloutKit, rewards: Rewards, state: TrainState, run: Run, progress: Progress
) -> tuple[list[Group], dict[str, float]]:
    """Sample and score the step's groups with the weights after ``state.step`` steps.

    With ``algo.dynamic_sampling_rounds`` groups without reward spread are replaced, at most that many times, by groups
    of the next tasks (DAPO's dynamic sampling); what is still without spread after that is kept, so that the batch has
    its size. Metrics are over everything that was sampled.
    """
    algo = cfg.algo
    sampling = Sampling(cfg.rollout.temperature, cfg.rollout.top_p, cfg.rollout.top_k, cfg.rollout.min_p)
    kept: list[Group] = []
    spare: list[Group] = []
    everything: list[Group] = []
    counts: Counter[str] = Counter()
    for _ in range(1 + algo.dynamic_sampling_rounds):
        tasks = state.stream.next(algo.prompts_per_step - len(kept))
        record_hashes(run.dir, tasks)
        groups = kit.collector.collect(
            tasks,
            algo.group_size,
            sampling,
            cfg.train.seed,
            state.step,
            lambda done, total: progress.tick(done / total / 2, f"rollout {done}/{total}"),
        )
        rewards.score(groups, state.step)
        counts.update(rewards.counts)
        everything += groups
        if algo.dynamic_sampling_rounds == 0:
            kept = groups
            break
        kept += [g for g in groups if has_spread(g)]
        spare += [g for g in groups if not has_spread(g)]
        if len(kept) == algo.prompts_per_step:
            break
    sampled = [t for g in everything for t in g.trajectories]
    if all(t.stop_reason is StopReason.ERROR for t in sampled):
        raise RunError(f"all {len(sampled)} episodes of step {state.step + 1} failed: {sampled[0].error}")
    if all(t.reward.total is None for t in sampled):
        reason = next((c.error for t in sampled for c in t.reward.components if c.error), "no reason given")
        raise RunError(f"none of the {len(sampled)} episodes of step {state.step + 1} could be scored: {reason}")
    kept += spare[: algo.prompts_per_step - len(kept)]
    metrics = reward_metrics(everything) | rollout_metrics(everything) | dict(counts)
    metrics["group/sampled"] = float(len(everything))
    return kept, metrics


def save(cfg: Config, kit: RolloutKit, state: TrainState, run: Run, metrics: dict[str, float]) -> Path:
    """Save a checkpoint; it is the best one when its evaluation (or else the training success) is the highest yet."""
    score = metrics.get("eval/success", metrics.get("success/mean", -math.inf))
    best = score > state.best
    state.best = max(state.best, score)

    def write(folder: Path) -> None:
        kit.save(folder)
        state.save(folder)

    return run.checkpoints.save(state.step, write, cfg.train.keep, best=best)


def small_panel(cfg: Config, kit: RolloutKit, run: Run) -> Panel | None:
    """The panel evaluated every ``train.eval_every`` steps: training variant, tasks of another seed.

    It chooses the best checkpoint, so its tasks count as used: the final evaluation takes others.
    """
    if cfg.train.eval_every <= 0:
        return None
    seed = cfg.eval.seed + PANEL_SEED_OFFSET
    panel = build_panel(kit.spec, kit.spec.train_variant, cfg.train.eval_tasks, seed)
    record_hashes(run.dir, panel.tasks)
    return panel


def engine_metrics(kit: RolloutKit, clock: Clock) -> dict[str, float]:
    """Speed and fill of the engine over the step."""
    stats = kit.engine.take_stats()
    return {
        "rollout/tokens_per_s": stats.tokens_sampled / max(clock.laps["time/rollout_s"], 1e-9),
        "rollout/decode_steps": float(stats.decode_steps),
        "rollout/slot_use": stats.tokens_sampled / max(1, stats.slot_steps),
    }


class Clock:
    """Laps of one step, in seconds."""

    def __init__(self) -> None:
        self.start = self.last = time.monotonic()
        self.laps: dict[str, float] = {}

    def lap(self, name: str) -> None:
        now = time.monotonic()
        self.laps[name], self.last = now - self.last, now

    def metrics(self) -> dict[str, float]:
        return self.laps | {"time/step_s": time.monotonic() - self.start}
