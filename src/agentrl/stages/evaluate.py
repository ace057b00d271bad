"""agentrl eval: policies on the training variant and held-out variants, side by side, with intervals."""

from __future__ import annotations

import gc
import re
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.text import Text

from agentrl.allocator import give_back
from agentrl.config.schema import Config
from agentrl.envs.registry import load_spec
from agentrl.errors import UserError
from agentrl.evaluate import tables
from agentrl.evaluate.panels import History, Panel, eval_panels, history_of
from agentrl.runs import files
from agentrl.runs.budget import Budget, BudgetSpent
from agentrl.runs.checkpoints import newest, resolve_checkpoint
from agentrl.runs.folder import Run, model_key, read_facts
from agentrl.runs.ledger import Ledger, shape_of
from agentrl.runs.progress import Progress

if TYPE_CHECKING:
    from agentrl.envs.base import EnvSpec
    from agentrl.evaluate.runner import PolicyResult
    from agentrl.rollout.collector import Collector
    from agentrl.rollout.openai_engine import ChatCollector


@dataclass(frozen=True)
class Policy:
    """What is evaluated: a checkpoint folder, or the base model (checkpoint None)."""

    name: str
    checkpoint: Path | None
    model: str
    step: int
    remote: bool = False  # the model behind the endpoint of engine=openai


def main(cfg: Config, heldout: bool, checkpoints: list[str], base: bool) -> Path | None:
    """Evaluate and return the path of eval.json; None when a budget was spent before the first policy was done.

    ``heldout`` adds all held-out variants to the training one (eval.variants names them instead). Without
    ``checkpoints`` the newest one of this environment and model is taken; ``base`` puts the base model first.
    UserError: no or broken checkpoint, unknown variant, a held-out task that was trained on.
    """
    console = Console()
    if cfg.eval.samples < 1:
        raise UserError(f"eval.samples={cfg.eval.samples}: at least one sample per task")
    if cfg.eval.samples > 1 and cfg.eval.temperature == 0:
        raise UserError(
            f"eval.samples={cfg.eval.samples} with eval.temperature=0: greedy samples of one task are all the same; "
            "set eval.samples=1 or a temperature above 0"
        )
    policies = find_policies(cfg, checkpoints, base, console)
    history = History()
    for policy in policies:
        history.merge(history_of(policy.checkpoint))

    spec = load_spec(cfg.env)
    panels = _panels(cfg, spec, heldout, history, console)
    run = Run.create(cfg, "eval", sys.argv)
    with run.ending(), closing(spec):
        run.update(
            panel_hashes={p.variant: p.hash for p in panels},
            checkpoints=[str(p.checkpoint) if p.checkpoint else None for p in policies],
        )
        files.write_json(run.dir / "panels.json", _panel_file(panels))
        spec.prepare()
        results = _evaluate_all(cfg, spec, policies, panels, run, console)
        if not results:
            return None
        result = assemble(cfg, panels, results, history)
        files.write_json(run.dir / "eval.json", result)
        run.update(data_hashes=dict(spec.data_hashes()), environment=dict(spec.facts()))
        tables.write_plot(result, run.dir / "plots" / "eval.png")
    _show(console, result, run)
    return run.dir / "eval.json"


def find_policies(cfg: Config, checkpoints: Sequence[str], base: bool, console: Console) -> list[Policy]:
    """The base model first if asked for, then the model of engine=openai, then the checkpoints as given. Without any
    of these the newest checkpoint. Names are unique."""
    from agentrl.models.load import check_checkpoint

    chosen = list(dict.fromkeys(resolve_checkpoint(path) for path in checkpoints))
    remote = cfg.engine.name == "openai"
    if not chosen and not remote:
        root, env, model = cfg.run.root, cfg.env.name, model_key(cfg.model)
        found = newest(root, "train", env, model) or newest(root, "sft", env, model)
        if found is not None:
            chosen = [found]
            console.print(Text(f"evaluating the newest checkpoint: {found}"), soft_wrap=True)
        elif not base:
            raise UserError(
                f"no checkpoint of env={env} model={model} below {root}/: make one with `agentrl sft-coldstart "
                f"env={env}`, or name one with --checkpoint PATH, or evaluate the base model with --base"
            )
        else:
            console.print(
                Text(f"no checkpoint of env={env} model={model} below {root}/: the base model alone"), soft_wrap=True
            )
    policies = [Policy("base", None, model_key(cfg.model), 0)] if base else []
    if remote:
        policies.append(Policy(f"prompted {cfg.engine.model}", None, str(cfg.engine.model), 0, remote=True))
    for folder in chosen:
        check_checkpoint(folder)
        policies.append(describe(folder, cfg, {p.name for p in policies}))
    return policies


def describe(folder: Path, cfg: Config, taken: set[str]) -> Policy:
    """A checkpoint folder as a policy, named by its stage and step, unlike those ``taken``."""
    facts: Mapping[str, Any] = read_facts(folder.parent.parent) or {}
    stage, number = str(facts.get("stage", "")), folder.name.rpartition("-")[2]
    step = int(number) if number.isdigit() else 0
    where = folder.parent.parent.name
    if stage.startswith("sft"):
        name, longer = f"cold start (sft step {step})", f"cold start (sft step {step}, {where})"
    elif stage == "train":
        name, longer = f"RL (train step {step})", f"RL (train step {step}, {where})"
    else:
        name, longer = folder.name, str(folder)
    candidates = [name, longer, *(f"{longer} #{i}" for i in range(2, 1000))]
    return Policy(
        next(c for c in candidates if c not in taken), folder, str(facts.get("model", model_key(cfg.model))), step
    )


def _panels(cfg: Config, spec: EnvSpec, heldout: bool, history: History, console: Console) -> list[Panel]:
    panels = []
    for panel in eval_panels(spec, cfg.eval, heldout, history.hashes):
        if panel.note:
            console.print(Text(f"panel {panel.variant}: {panel.note}"), soft_wrap=True)
        if panel.tasks:
            panels.append(panel)
    if not panels:
        raise UserError("no panel has a task that was not trained on; nothing can be evaluated")
    for gap in history.gaps:
        console.print(Text(f"warning: {gap}", "yellow"), soft_wrap=True)
    return panels


def _panel_file(panels: Sequence[Panel]) -> dict[str, Any]:
    return {
        p.variant: {"split": p.split, "hash": p.hash, "tasks": [{"id": t.id, "hash": t.hash} for t in p.tasks]}
        for p in panels
    }


def _evaluate_all(
    cfg: Config, spec: EnvSpec, policies: Sequence[Policy], panels: Sequence[Panel], run: Run, console: Console
) -> list[PolicyResult]:
    """The policies that were evaluated until a budget was spent. One that was cut off is left out: its finished
    episodes are the short ones."""
    results: list[PolicyResult] = []
    budget = Budget(cfg.budget, run.ledger)
    with Progress("eval", len(policies)) as progress:
        for number, policy in enumerate(policies, 1):
            progress.tick(0.0, f"{policy.name}: loading")
            try:
                base = policy.checkpoint is None and not policy.remote
                shown = [p.first(cfg.eval.base_tasks) for p in panels] if base else panels
                result = evaluate_one(cfg, spec, policy, shown, progress, budget)
            except BudgetSpent as spent:
                run.outcome = "budget_spent"
                done = ", ".join(p.name for p in policies[: len(results)]) or "none"
                console.print(
                    Text(f"{spent}: stopped at policy {number} of {len(policies)}; evaluated: {done}"), soft_wrap=True
                )
                break
            finally:
                run.ledger.close(number)
            groups = [g for panel in result.groups for g in panel]
            if cfg.run.trajectories:
                slug = re.sub(r"\W+", "-", policy.name).strip("-").lower()
                run.save_trajectories(policy.step, groups, tag="eval" if len(policies) == 1 else f"eval-{slug}")
            success = [p["success"]["mean"] for p in result.panels if p["success"]["mean"] is not None]
            progress.update(number, success=sum(success) / len(success) if success else None)
            results.append(result)
    return results


def evaluate_one(
    cfg: Config, spec: EnvSpec, policy: Policy, panels: Sequence[Panel], progress: Progress, budget: Budget
) -> PolicyResult:
    """Load the policy, sample it on the panels and add up. Raises BudgetSpent."""
    from agentrl import rewards
    from agentrl.evaluate.runner import evaluate_policy
    from agentrl.rollout.sampling import Sampling

    budget.check()
    book = budget.ledger
    scorers = rewards.build(cfg.reward, spec, cfg.eval.seed)
    started = time.monotonic()

    def show(finished: int, total: int) -> None:
        rate = finished / max(1e-6, time.monotonic() - started)
        progress.tick(finished / total, f"{policy.name}: {finished}/{total} episodes", episodes_s=rate)

    with acting(cfg, spec, policy, book) as collector:
        collector.on_step = budget.checking(collector.counts)
        started = time.monotonic()
        component = "unfinished"
        try:
            result = evaluate_policy(
                collector,
                scorers,
                panels,
                cfg.eval.samples,
                Sampling(cfg.eval.temperature, cfg.eval.top_p, cfg.eval.top_k, cfg.eval.min_p),
                cfg.eval.seed,
                name=policy.name,
                model=policy.model,
                checkpoint=str(policy.checkpoint) if policy.checkpoint else None,
                step=policy.step,
                on_progress=show,
            )
            component = "eval"
        finally:
            book.sampled(component, collector.take_counts(), time.monotonic() - started)
            book.scored(component, scorers.take_costs())
    return result


@contextmanager
def acting(cfg: Config, spec: EnvSpec, policy: Policy, book: Ledger) -> Iterator[Collector | ChatCollector]:
    """A collector for a policy: its weights in this process (whose shape ``book`` counts with), or the endpoint that
    serves it.

    Two policies never share the memory: let go of one collector before asking for the next.
    """
    if policy.remote:
        from agentrl.rollout.openai_engine import ChatCollector

        with closing(ChatCollector(spec, cfg.env, cfg.rollout, cfg.engine)) as chat:
            yield chat
        return
    from agentrl.stages import common

    _free()  # what the policy before left
    with book.timed("startup"):
        kit = common.load_rollout(cfg, policy.checkpoint, spec)
    book.shape = shape_of(kit.model)
    yield kit.collector


def _free() -> None:
    import torch

    gc.collect()
    give_back()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def assemble(cfg: Config, panels: Sequence[Panel], results: Sequence[PolicyResult], history: History) -> dict[str, Any]:
    """The content of eval.json. ``panels`` and ``gap`` at the top are those of the last policy."""
    from agentrl.evaluate.runner import lifts

    last = results[-1].to_dict()
    sampling = {k: getattr(cfg.eval, k) for k in ("temperature", "top_p", "top_k", "min_p", "samples", "tasks", "seed")}
    return {
        "env": cfg.env.name,
        "policy": last["name"],
        "panels": last["panels"],
        "gap": last["gap"],
        "policies": [r.to_dict() for r in results],
        "paired": lifts(panels, results, cfg.eval.seed),
        "sampling": sampling,
        "limits": {
            "max_turns": cfg.env.max_turns,
            "max_turn_tokens": cfg.env.max_turn_tokens,
            "max_obs_tokens": cfg.env.max_obs_tokens,
            "max_tokens": cfg.rollout.max_tokens,
            "window": cfg.rollout.window,
        },
        "training": {"tasks": len(history.hashes), "runs": history.runs, "unknown": history.gaps},
    }


def _show(console: Console, result: Mapping[str, Any], run: Run) -> None:
    console.print(Text(tables.heading(result)), soft_wrap=True)
    console.print(tables.results_table(result))
    for line in tables.lift_lines(result["paired"]):
        console.print(Text(line), soft_wrap=True)
    console.print(Text(f"wrote {run.dir / 'eval.json'}, {run.dir / 'plots' / 'eval.png'}"), soft_wrap=True)
    from agentrl.runs import report

    console.print(Text(f"report: {report.write(run.dir)}"), soft_wrap=True)
