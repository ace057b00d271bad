"""RL: sample groups, score them, annotate advantages, update, record. ``train`` is the loop; read it first."""

from __future__ import annotations

import math
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from transformers import PreTrainedModel

from agentrl.algos import advantages, overlong
from agentrl.algos.sampling_filter import has_spread
from agentrl.allocator import give_back
from agentrl.config.rules import CHANGEABLE, check_budget
from agentrl.config.schema import Config, LoraConfig
from agentrl.errors import RunError, UserError
from agentrl.evaluate.panels import Panel, append_hashes, build_panel, history_of, record_hashes
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
from agentrl.runs.budget import Budget, BudgetSpent
from agentrl.runs.collapse import CollapseWatch
from agentrl.runs.folder import Run, resolve_run
from agentrl.runs.hacks import HackWatch, hack_lines, hack_metrics
from agentrl.runs.interrupt import Interrupt
from agentrl.runs.ledger import shape_of
from agentrl.runs.progress import Progress, plain_console
from agentrl.stages import estimate, preference
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
    hacks: HackWatch
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
            "hacks": self.hacks.state_dict(),
            "best": best,
        }

    def restore(self, state: dict[str, Any]) -> None:
        self.step, self.learner.updates = state["step"], state["updates"]
        self.stream.cursor = state["cursor"]
        self.watch.load_state_dict(state["watch"])
        self.hacks.load_state_dict(state["hacks"])
        self.best = -math.inf if state["best"] is None else state["best"]


def main(cfg: Config, given: AbstractSet[str] = frozenset()) -> Path:
    """Run or resume RL; returns the last checkpoint. Raises UserError, RunError, KeyboardInterrupt.

    A resumed run follows the config stored in its folder, but for those of ``CHANGEABLE`` that are among the ``given``
    keys: they are taken from ``cfg``.
    """
    console = plain_console()
    cfg, run, start, checkpoint = begin(cfg, given, console)
    if cfg.algo.dpo.source is not None:
        return preference.main(cfg, run, start, checkpoint, console)
    with run.ending():
        with run.ledger.timed("startup"):
            kit = load_rollout(cfg, start)
            rewards = build(cfg.reward, kit.spec, cfg.train.seed)
            state = new_state(cfg, kit)
            if checkpoint is not None:
                state.load(checkpoint)
            else:
                run.update(data_hashes=dict(kit.spec.data_hashes()), environment=dict(kit.spec.facts()))
                rewards.self_test(TaskStream(kit.spec, kit.spec.train_variant, cfg.train.seed).next(SELF_TEST_TASKS))
        try:
            last = train(cfg, kit, rewards, state, run, console)
        finally:
            for line in hack_lines(run.hacks()):
                console.print(line)
        for line in estimate.end(run, state.step):
            console.print(line)
    console.print(f"checkpoint: {last}")
    return last


def begin(cfg: Config, given: AbstractSet[str], console: Console) -> tuple[Config, Run, Path | None, Path | None]:
    """Make or reopen the run: its config, its folder, the weights to load (None: the base model), the checkpoint to
    go on from.
    """
    if cfg.run.resume:
        run = Run.open(resolve_run(cfg.run.resume, cfg.run.root))
        if (stage := run.facts().get("stage")) != "train":
            raise UserError(
                f"run.resume={cfg.run.resume}: {run.dir} is a run of {stage}; only those of train go on here"
            )
        checkpoint = run.checkpoints.last()
        new, cfg = cfg, run.config()
        cfg.run.resume = new.run.resume
        for key in sorted(given & CHANGEABLE):
            group, _, name = key.partition(".")
            setattr(getattr(cfg, group), name, getattr(getattr(new, group), name))
        check_budget(cfg)
        start = checkpoint or (Path(cfg.model.init) if cfg.model.init else None)
        run.rewind(0 if checkpoint is None else int(checkpoint.name.split("-")[1]))
        console.print(f"going on with {run.dir} from {checkpoint or 'its start'}")
        return cfg, run, start, checkpoint
    start = starting_point(cfg, ("sft",))
    # What was found goes into the stored config: a resumed run must not look for something newer.
    cfg = replace(cfg, model=replace(cfg.model, init=str(start.resolve()) if start else None))
    learned = [cfg.reward.prm.init] if cfg.reward.prm.init else []
    for component in cfg.reward.components.values():
        path = component.options.get("path") if component.kind == "model" else None
        if path and Path(path).is_dir():  # else a Hub id
            learned.append(path)
    run = Run.create(cfg, "train", sys.argv)
    run.update(starts_from=cfg.model.init)
    # What a reward was fitted on is no fresh task for the policy that it taught.
    append_hashes(run.dir, sorted({h for folder in learned for h in history_of(folder).hashes}))
    console.print(f"RL on {cfg.env.name} with reward={cfg.reward.name}, algo={cfg.algo.name}, run {run.dir}")
    if start is None:
        console.print(
            f"starting from the base model {cfg.model.path or cfg.model.name}: no cold start was found, so formats "
            f"will be learned slowly (make one with: agentrl sft-coldstart env={cfg.env.name})"
        )
    else:
        console.print(f"starting from {start}")
    return cfg, run, start, None


def train(cfg: Config, kit: RolloutKit, rewards: Rewards, state: TrainState, run: Run, console: Console) -> Path:
    """The training loop: one step from top to bottom."""
    panel = small_panel(cfg, kit, run)
    book = run.ledger
    book.shape = shape_of(kit.model)
    budget = Budget(cfg.budget, book)
    last = run.checkpoints.last()
    rewards.take_costs()  # what came before the run's steps is not theirs
    broken = False
    if told := estimate.begin(cfg, run, state.step):
        console.print(told)
    with Progress("train", cfg.train.steps, done=state.step) as progress, Interrupt() as interrupt:
        while state.step < cfg.train.steps:
            step = state.step + 1
            clock = Clock()
            try:
                with within(budget, kit, rewards, state):
                    groups, metrics = sample(cfg, kit, rewards, state, run, progress)
            except BudgetSpent as spent:
                if last is None or (last.name != run.checkpoints.path(state.step).name and not broken):
                    last = save(cfg, kit, state, run, {})
                run.outcome = "budget_spent"
                console.print(
                    f"{spent}: stopped after step {state.step}, saved; to go on with a larger budget: "
                    f"agentrl train run.resume={run.dir} budget.{spent.name}=…",
                )
                break
            clock.lap("time/rollout_s")
            counts = kit.collector.take_counts()
            book.sampled("rollout", counts, clock.laps["time/rollout_s"])
            book.scored("rollout", rewards.take_costs())
            metrics |= engine_metrics(counts, clock)
            hacks = state.hacks.update(step, groups)
            metrics |= hack_metrics(hacks)
            metrics |= overlong.apply(groups, cfg.algo)
            if state.prm is not None:
                metrics |= state.prm.score(groups, lambda f: progress.tick(0.5 + f / 4, "reward model"))
                clock.lap("time/prm_s")
                book.service("prm", metrics, clock.laps["time/prm_s"])
            metrics |= advantages.annotate(groups, cfg.algo)
            metrics |= state.learner.update(groups, lambda f: progress.tick(0.5 + f / 2, "update"))
            give_back()
            clock.lap("time/update_s")
            book.trained("update", metrics, clock.laps["time/update_s"])
            state.step = step
            if panel is not None and step % cfg.train.eval_every == 0:
                metrics |= quick_eval(kit.collector, rewards, panel.tasks, cfg.train.seed, step)
                clock.lap("time/eval_s")
                book.sampled("eval", kit.collector.take_counts(), clock.laps["time/eval_s"])
                book.scored("eval", rewards.take_costs())
            for event in hacks:
                run.hack(step, event)
                if event.new:
                    text = f"[hack: {event.name}] step {step}: {event.message} ({event.count} trajectories, e.g. "
                    console.print(f"{text}{', '.join(event.examples)})")
            hacked = hacks[0] if hacks and cfg.train.on_hack == "stop" else None
            warnings = state.watch.update(step, metrics, groups)
            metrics |= clock.metrics()
            if cfg.run.trajectories:
                run.save_trajectories(step, groups)
            metrics |= book.close(step)
            run.record(step, metrics)
            if told := estimate.begin(cfg, run, step):
                console.print(told)
            for warning in warnings:
                run.warn(step, warning.name, warning.message)
                console.print(f"[warning: {warning.name}] {warning.message}")
            progress.update(
                step,
                reward=metrics.get("reward/mean"),
                success=metrics.get("success/mean"),
                entropy=metrics.get("policy/entropy"),
                tokens_s=metrics["rollout/tokens_per_s"],
            )
            collapsed = bool(warnings) and cfg.train.stop_on_collapse
            broken = any(w.name == "not_finite" for w in warnings)
            due = step % cfg.train.save_every == 0 or step == cfg.train.steps or budget.spent() is not None
            due = due or (panel is not None and quality(cfg, metrics) > state.best)
            if not broken and (due or interrupt.requested or collapsed or hacked):
                with book.timed("save"):
                    last = save(cfg, kit, state, run, metrics)
            if interrupt.requested:
                console.print(f"interrupted after step {step}; go on with: agentrl train run.resume={run.dir}")
                raise KeyboardInterrupt
            if hacked is not None:
                raise RunError(
                    f"stopped after step {step} on {hacked.name} (train.on_hack=stop): {hacked.message}; "
                    f"e.g. {', '.join(hacked.examples)}; nothing was learned from these; saved {last}"
                )
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
    stream = TaskStream(kit.spec, kit.spec.train_variant, cfg.train.seed)
    hacks = HackWatch(kit.spec, exclude=cfg.train.on_hack != "warn")
    state = TrainState(0, stream, learner, CollapseWatch(), hacks)
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
        state.hacks.screen(groups)
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


@contextmanager
def within(budget: Budget, kit: RolloutKit, rewards: Rewards, state: TrainState) -> Iterator[None]:
    """Around the sampling of a step: raises BudgetSpent as soon as a budget is spent.

    A batch that is cut off is never learned from (its finished episodes are the short ones): its cost is counted as
    unfinished, and its tasks come again when the run goes on.
    """
    budget.check()
    cursor, started = state.stream.cursor, time.monotonic()
    kit.collector.on_step = budget.checking(kit.collector.counts)
    try:
        yield
    except BudgetSpent:
        budget.ledger.sampled("unfinished", kit.collector.take_counts(), time.monotonic() - started)
        budget.ledger.scored("unfinished", rewards.take_costs())
        state.stream = TaskStream(kit.spec, state.stream.variant, state.stream.seed, cursor)
        raise
    finally:
        kit.collector.on_step = None


def save(cfg: Config, kit: RolloutKit, state: TrainState, run: Run, metrics: dict[str, float]) -> Path:
    """Save a checkpoint; it is the best one when its ``quality`` is the highest yet."""
    score = quality(cfg, metrics)
    best = score > state.best
    state.best = max(state.best, score)

    def write(folder: Path) -> None:
        kit.save(folder)
        state.save(folder)

    return run.checkpoints.save(state.step, write, cfg.train.keep, best=best)


def quality(cfg: Config, metrics: Mapping[str, float]) -> float:
    """By what the best checkpoint is chosen: success on the small panel where the run has one, else in training.

    -inf for a step that was not evaluated: the two are numbers of different tasks.
    """
    return metrics.get("eval/success" if cfg.train.eval_every > 0 else "success/mean", -math.inf)


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


def engine_metrics(counts: Mapping[str, float], clock: Clock) -> dict[str, float]:
    """Speed and fill of the engine over the step, from ``Collector.take_counts``."""
    return {
        "rollout/tokens_per_s": counts["tokens_sampled"] / max(clock.laps["time/rollout_s"], 1e-9),
        "rollout/decode_steps": counts["decode_steps"],
        "rollout/slot_use": counts["tokens_sampled"] / max(1.0, counts["slot_steps"]),
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
