"""agentrl control: a run beside the same run without its reward, and one verdict: does the reward explain the gain?

The folder of a comparison: ``arms/`` holds ordinary training runs (``real``, unless a finished run was given, and one
for each control), ``evals/`` the outcomes of each policy, ``control.json`` and ``plots/control.png`` the result.
Whatever of these is finished is not done again when the comparison is resumed.
"""

from __future__ import annotations

import gc
import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from agentrl.config import compose
from agentrl.config.folders import config_folders, group_choices
from agentrl.config.schema import BudgetConfig, Config, RewardConfig
from agentrl.envs.base import EnvSpec
from agentrl.envs.registry import load_spec
from agentrl.errors import RunError, UserError, nearest
from agentrl.evaluate import falsify, tables
from agentrl.evaluate.falsify import Finding, Outcomes, Side, Verdict
from agentrl.evaluate.panels import Panel, eval_panels, history_of
from agentrl.runs import files
from agentrl.runs.budget import Budget
from agentrl.runs.checkpoints import CheckpointStore
from agentrl.runs.folder import Run, read_facts, resolve_run
from agentrl.runs.interrupt import Interrupt
from agentrl.runs.progress import Progress
from agentrl.stages.common import starting_point
from agentrl.stages.evaluate import Policy, evaluate_one

REAL, START = "real", "start"
TOOLS_OFF = "tools_off"


@dataclass(frozen=True)
class Arm:
    """One training run: what it is called, its reward, whether its tools answered, and where it is."""

    name: str
    reward: RewardConfig
    tools: str
    folder: Path


def main(cfg: Config, run_path: str | None = None, config_dirs: Sequence[str] = ()) -> Verdict:
    """Train the arms that are missing, evaluate all, and print the verdict.

    ``run_path``: a finished training run that is the real arm; ``cfg`` then counts for eval, control and run only.
    Raises UserError, RunError, KeyboardInterrupt.
    """
    console = Console()
    if cfg.run.resume:
        run = Run.open(resolve_run(cfg.run.resume, cfg.run.root))
        if run.facts().get("stage") != "control":
            raise UserError(
                f"run.resume={cfg.run.resume}: is a {run.facts().get('stage')} run; go on with `agentrl train`"
            )
        cfg = run.config()
        run.reopen()
    else:
        run, cfg = _begin(cfg, run_path, config_dirs)
    console.print(Text(f"control of {cfg.env.name}, run {run.dir}"), soft_wrap=True)
    try:
        with run.ending():
            result, verdict = _compare(cfg, run, _arms(cfg, run), console)
    except KeyboardInterrupt:
        console.print(Text(f"go on with: agentrl control run.resume={run.dir}"), soft_wrap=True)
        raise
    _show(result, run, console)
    return verdict


def _begin(cfg: Config, run_path: str | None, config_dirs: Sequence[str]) -> tuple[Run, Config]:
    """The folder of a new comparison, and the config that all its arms share."""
    rewards = {name: _reward(name, config_dirs) for name in _names(cfg, config_dirs)}
    real: Path | None = None
    if run_path is not None:
        real = resolve_run(run_path, cfg.run.root).resolve()
        theirs = _finished_run(real, run_path)
        start = (read_facts(real) or {}).get("starts_from")
        cfg = replace(theirs, eval=cfg.eval, control=cfg.control, run=cfg.run)
    else:
        found = starting_point(cfg, ("sft",))
        start = str(found.resolve()) if found else None
    # What was found goes into the stored config: a resumed comparison must not look for something newer.
    cfg = replace(cfg, model=replace(cfg.model, init=start))
    spec = load_spec(cfg.env)
    with closing(spec):  # a wrong panel is known now, not after hours of training
        _panels(cfg, spec, [start, real])
    run = Run.create(cfg, "control", sys.argv)
    arms = {
        name: {"reward": asdict(reward or cfg.reward), "tools": "off" if name == TOOLS_OFF else cfg.env.tools}
        for name, reward in rewards.items()
    }
    run.update(starts_from=start, real_run=str(real) if real else None, arms=arms)
    return run, cfg


def _names(cfg: Config, config_dirs: Sequence[str]) -> list[str]:
    known = [*group_choices(config_folders(config_dirs)).get("reward", []), TOOLS_OFF]
    names = list(dict.fromkeys(cfg.control.arms))
    if not names:
        raise UserError("control.arms is empty: name at least one control, e.g. control.arms=[random]")
    for name in names:
        if name not in known:
            raise UserError(f"control.arms: there is no reward '{name}'; {nearest(name, known)}")
    return names


def _reward(name: str, config_dirs: Sequence[str]) -> RewardConfig | None:
    """The reward of a control arm; None: that of the real arm."""
    return None if name == TOOLS_OFF else compose([f"reward={name}"], config_dirs).reward


def _finished_run(folder: Path, named: str) -> Config:
    facts = read_facts(folder) or {}
    if facts.get("stage") != "train":
        raise UserError(f"--run {named}: is a {facts.get('stage')} run; a control arm needs a training run")
    if CheckpointStore(folder).last() is None:
        raise UserError(f"--run {named}: has no checkpoint that could be compared with a control arm")
    if facts.get("status") == "running":
        raise UserError(f"--run {named}: has not ended; finish it with `agentrl train run.resume={named}`")
    start = facts.get("starts_from")
    if start is not None and not Path(start).is_dir():
        raise UserError(f"--run {named}: the checkpoint that it began from, {start}, is gone")
    return Run.open(folder).config()


def _arms(cfg: Config, run: Run) -> list[Arm]:
    """The real arm, then the controls, as run.json holds them."""
    from omegaconf import OmegaConf

    facts = run.facts()
    real = facts.get("real_run")
    arms = [Arm(REAL, cfg.reward, cfg.env.tools, Path(real) if real else run.dir / "arms" / REAL)]
    for name, how in facts["arms"].items():
        reward: Any = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(RewardConfig), how["reward"]))
        arms.append(Arm(name, reward, how["tools"], run.dir / "arms" / f"control-{name}"))
    return arms


def _compare(cfg: Config, run: Run, arms: Sequence[Arm], console: Console) -> tuple[dict[str, Any], Verdict]:
    checkpoints: dict[str, Path] = {}
    steps = cfg.train.steps
    for number, arm in enumerate(arms, 1):
        console.print(Text(f"arm {number}/{len(arms)}: {_title(arm)}", "bold"), soft_wrap=True)
        checkpoints[arm.name] = _train(cfg, arm, steps, run, console)
        if arm.name == REAL:
            steps = _step(checkpoints[REAL])
            if steps == 0:
                raise RunError("the real arm took no step, so there is nothing to compare")
    notes = [
        f"{_title(arm)} ended at step {_step(checkpoints[arm.name])}, the real arm at step {steps}: not matched"
        for arm in arms
        if _step(checkpoints[arm.name]) != steps
    ]
    gc.collect()
    spec = load_spec(cfg.env)
    with closing(spec):
        panels = _panels(cfg, spec, [cfg.model.init, *checkpoints.values()])
        run.update(panel_hashes={p.variant: p.hash for p in panels}, checkpoints=[str(c) for c in checkpoints.values()])
        spec.prepare()
        start = Path(cfg.model.init) if cfg.model.init else None
        policies = {START: Policy("cold start" if start else "base", start, run.facts()["model"], 0)}
        for arm in arms:
            step = _step(checkpoints[arm.name])
            policies[arm.name] = Policy(_title(arm), checkpoints[arm.name], run.facts()["model"], step)
        played = _evaluate(cfg, spec, policies, panels, run)
    return _result(cfg, run, arms, policies, played, panels, notes)


def _train(cfg: Config, arm: Arm, steps: int, run: Run, console: Console) -> Path:
    """The arm's last checkpoint, trained now unless that was done before."""
    from agentrl.stages import train

    facts, last = read_facts(arm.folder), CheckpointStore(arm.folder).last()
    finished = facts is not None and facts.get("status") not in ("running", "interrupted", "failed")
    if last is not None and (finished or run.facts().get("real_run") == str(arm.folder)):
        console.print(Text(f"  already there: {last}"), soft_wrap=True)
        return last
    where = replace(cfg.run, dir=str(arm.folder), root=str(arm.folder.parent), resume=None)
    if facts is None:
        files.remove(arm.folder)  # killed before it was a run
    else:
        where = replace(where, resume=str(arm.folder))
    env = replace(cfg.env, tools=arm.tools)
    # All arms take the same steps, whatever becomes of them.
    training = replace(cfg.train, steps=steps, stop_on_collapse=cfg.train.stop_on_collapse and arm.name == REAL)
    if arm.name != REAL:
        training.on_hack = "warn"  # a control arm may be nothing but what the hack watch looks for
    # A budget ends the real arm; the controls take as many steps as it did.
    budget = cfg.budget if arm.name == REAL else BudgetConfig()
    return train.main(replace(cfg, env=env, reward=arm.reward, train=training, run=where, budget=budget))


def _step(checkpoint: Path) -> int:
    return int(checkpoint.name.rpartition("-")[2])


def _title(arm: Arm) -> str:
    if arm.name == REAL:
        return f"real (reward={arm.reward.name})"
    return "control (env.tools=off)" if arm.name == TOOLS_OFF else f"control (reward={arm.reward.name})"


def _panels(cfg: Config, spec: EnvSpec, checkpoints: Sequence[Path | str | None]) -> list[Panel]:
    """The training variant (or what eval.variants names first) and all held-out ones, free of every arm's tasks."""
    trained: set[str] = set()
    for checkpoint in checkpoints:
        trained |= history_of(checkpoint).hashes
    panels = eval_panels(spec, cfg.eval, heldout=True, trained_on=trained)
    if not any(p.tasks for p in panels):
        raise UserError("no panel has a task that was not trained on; nothing can be compared")
    return [p for p in panels if p.tasks]


@dataclass(frozen=True)
class Played:
    """A policy's panel entries, as in eval.json, and its outcomes: variant → task hash → successes."""

    panels: list[dict[str, Any]]
    success: Mapping[str, Outcomes]


def _evaluate(
    cfg: Config, spec: EnvSpec, policies: Mapping[str, Policy], panels: Sequence[Panel], run: Run
) -> dict[str, Played]:
    """Every policy on all panels; what ``evals/`` holds of the same panels is taken from there."""
    hashes = {p.variant: p.hash for p in panels}
    played: dict[str, Played] = {}
    (run.dir / "evals").mkdir(exist_ok=True)
    with Progress("evaluate", len(policies)) as progress, Interrupt() as interrupt:
        for number, (name, policy) in enumerate(policies.items(), 1):
            path = run.dir / "evals" / f"{name}.json"
            stored = _stored(path, hashes, policy)
            if stored is None:
                progress.tick(0.0, f"{policy.name}: loading")
                found = evaluate_one(cfg, spec, policy, panels, progress, Budget(BudgetConfig(), run.ledger))
                if cfg.run.trajectories:
                    groups = [g for panel in found.groups for g in panel]
                    run.save_trajectories(policy.step, groups, tag=f"eval-{name}")
                success = {
                    p.variant: {g.task.hash: _successes(g) for g in groups if _successes(g)}
                    for p, groups in zip(panels, found.groups, strict=True)
                }
                stored = {"checkpoint": str(policy.checkpoint), "panel_hashes": hashes, "panels": found.panels}
                stored["success"] = success
                files.write_json(path, stored)
            played[name] = Played(stored["panels"], stored["success"])
            progress.update(number)
            if interrupt.requested:
                raise KeyboardInterrupt
    return played


def _successes(group: Any) -> list[float]:
    from agentrl.evaluate.runner import is_judged

    return [float(t.success) for t in group.trajectories if is_judged(t)]


def _stored(path: Path, hashes: Mapping[str, str], policy: Policy) -> dict[str, Any] | None:
    try:
        stored: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    same = stored["panel_hashes"] == hashes and stored["checkpoint"] == str(policy.checkpoint)
    return stored if same else None


def _result(
    cfg: Config,
    run: Run,
    arms: Sequence[Arm],
    policies: Mapping[str, Policy],
    played: Mapping[str, Played],
    panels: Sequence[Panel],
    notes: Sequence[str],
) -> tuple[dict[str, Any], Verdict]:
    """Judge, and write control.json and the plot."""
    names = [a.name for a in arms if a.name != REAL]
    sides = {name: _sides(cfg, played, name, panels) for name in names}
    if not all(sides.values()):
        raise RunError("no task was judged for every arm: nothing can be compared (see trajectories/)")
    verdict = falsify.judge(sides)
    result = {
        "env": cfg.env.name,
        "verdict": verdict.to_dict(),
        "margin": cfg.control.margin,
        "controls": {
            name: {
                "sides": [s.to_dict() for s in sides[name]],
                "variants": [
                    {
                        "variant": p.variant,
                        "split": p.split,
                        "lift": _difference(cfg, played[name], played[REAL], p).to_dict(),
                        "gain": _difference(cfg, played[START], played[REAL], p).to_dict(),
                    }
                    for p in panels
                ],
            }
            for name in names
        },
        "policies": [
            {"arm": key, "name": p.name, "checkpoint": str(p.checkpoint) if p.checkpoint else None, "step": p.step}
            | {"panels": played[key].panels}
            for key, p in policies.items()
        ],
        "arms": [
            {"arm": a.name, "run": str(a.folder), "reward": asdict(a.reward), "tools": a.tools}
            | {"costs": (read_facts(a.folder) or {}).get("costs")}
            for a in arms
        ],
        "matched": {"seed": cfg.train.seed, "starts_from": cfg.model.init, "steps": policies[REAL].step},
        "panels": {p.variant: {"split": p.split, "hash": p.hash, "n": len(p.tasks), "note": p.note} for p in panels},
        "notes": list(notes),
    }
    files.write_json(run.dir / "control.json", result)
    curves = {_title(a): Run.open(a.folder).metrics() for a in arms}
    tables.write_control_plot(result, curves, run.dir / "plots" / "control.png")
    return result, verdict


def _sides(cfg: Config, played: Mapping[str, Played], control: str, panels: Sequence[Panel]) -> list[Side]:
    """The sides on which every policy has a judged task, the training variant first."""
    sides = []
    for split, name in (("train", "training variant"), ("heldout", "held out")):
        variants = [p.variant for p in panels if p.split == split]

        def pooled(arm: str, variants: Sequence[str] = variants) -> dict[str, Sequence[float]]:
            return {f"{v}/{task}": s for v in variants for task, s in played[arm].success[v].items()}

        start, other, real = pooled(START), pooled(control), pooled(REAL)
        if start.keys() & real.keys() and other.keys() & real.keys():
            args = (start, other, real, cfg.control.margin, cfg.eval.seed)
            sides.append(falsify.judge_side(name, split, variants, *args))
    return sides


def _difference(cfg: Config, first: Played, second: Played, panel: Panel) -> falsify.Difference:
    args = (cfg.control.margin, cfg.eval.seed)
    return falsify.difference(first.success[panel.variant], second.success[panel.variant], *args)


def _show(result: Mapping[str, Any], run: Run, console: Console) -> None:
    from agentrl.runs import report

    console.print(tables.control_table(result))
    for note in result["notes"]:
        console.print(Text(f"note: {note}", "yellow"), soft_wrap=True)
    console.print(
        Text("One run an arm: the intervals are over tasks and draws, not over training seeds.", "dim"), soft_wrap=True
    )
    colour = {Finding.EXPLAINS: "green", Finding.DOES_NOT: "red", Finding.CANNOT_TELL: "yellow"}
    finding = Finding(result["verdict"]["finding"])
    console.print(Text(f"verdict: {result['verdict']['text']}", f"bold {colour[finding]}"), soft_wrap=True)
    console.print(Text(f"wrote {run.dir / 'control.json'}, {run.dir / 'plots' / 'control.png'}"), soft_wrap=True)
    console.print(Text(f"report: {report.write(run.dir)}"), soft_wrap=True)
