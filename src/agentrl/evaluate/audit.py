"""agentrl audit-reward: what a reward pays to policies that do the task, and to those that only try to be paid."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from rich import box as boxes
from rich.console import Console
from rich.table import Table
from rich.text import Text

from agentrl import rewards
from agentrl.config.schema import Config
from agentrl.envs.base import EnvSpec, Task
from agentrl.envs.registry import load_spec
from agentrl.errors import RunError
from agentrl.evaluate import exploiters, overoptimisation
from agentrl.evaluate.agreement import agreement
from agentrl.evaluate.intervals import Interval, bootstrap_mean, mean_interval, paired_difference
from agentrl.evaluate.scripted import play
from agentrl.evaluate.tables import interval_text
from agentrl.models.load import load_tokenizer, resolve
from agentrl.models.template import Renderer
from agentrl.rollout.sampling import Sampling
from agentrl.rollout.trajectory import Group, Trajectory
from agentrl.runs import files
from agentrl.runs.folder import Run, model_key, resolve_run
from agentrl.runs.ledger import Ledger
from agentrl.runs.progress import Progress

NEAR = 0.5  # a policy with this share of the expert's gain over the base policy is near the expert
OTHER_TASKS = 1_000_033  # seed offset of the tasks whose answers exploiters know


@dataclass
class Played:
    """One policy's trajectories, in task order; None where it has no move (an expert that cannot solve a task)."""

    name: str
    kind: str  # "expert" | "base" | "random" | "exploiter"
    trajectories: list[Trajectory | None] = field(default_factory=list)

    def by_task(self) -> dict[str, float]:
        """Task hash → reward, for the episodes that were scored."""
        known = [t for t in self.trajectories if t is not None]
        return {t.task.hash: t.reward.total for t in known if t.reward.total is not None}

    def successes(self) -> dict[str, float]:
        """Task hash → the verifier's finding, for the episodes that were judged."""
        known = [t for t in self.trajectories if t is not None]
        return {t.task.hash: float(t.success) for t in known if t.success is not None}


def main(cfg: Config, tasks: int, run: str | None = None) -> bool:
    """Audit ``cfg.reward`` on ``cfg.env``; True when it passed. Writes audit.json, the trajectories and plots.

    The base policy is ``model.init``, else the base model. ``run`` names a training run whose curve is checked for
    over-optimisation. Raises UserError, RunError.
    """
    console = Console()
    trained = Run.open(resolve_run(run, cfg.run.root)) if run else None
    spec = load_spec(cfg.env)
    with closing(spec):
        spec.prepare()
        scorer = rewards.build(cfg.reward, spec, cfg.eval.seed)
        drawn = list(islice(spec.tasks(spec.train_variant, cfg.eval.seed), tasks))
        if not drawn:
            raise RunError(f"environment {spec.name} has no task of variant '{spec.train_variant}'")
        folder = Run.create(cfg, "audit", sys.argv)
        with folder.ending():
            played = play_all(cfg, spec, drawn, base_policy(cfg, spec, drawn, folder.ledger))
            result = findings(cfg, scorer, drawn, played, folder.ledger)
            if trained is not None:
                found = overoptimisation.curve(trained.metrics(), trained.dir)
                result["over_optimisation"] = {"run": str(trained.dir), **found}
                overoptimisation.draw(found, folder.dir / "plots" / "over_optimisation.png")
            files.write_json(folder.dir / "audit.json", result)
            save(cfg, played, folder)
    show(console, result, folder.dir)
    return bool(result["passed"])


def play_all(cfg: Config, spec: EnvSpec, tasks: Sequence[Task], base: Sequence[Trajectory | None]) -> list[Played]:
    """Every policy on every task: the expert, the base policy (its episodes are given), the random one, exploiters."""
    path = cfg.model.init or resolve(cfg.model)
    renderer = Renderer(load_tokenizer(path))
    forms = exploiters.Forms(spec)
    box = exploiters.Toolbox(
        spec,
        forms,
        lambda text: len(renderer.encode(text)),
        cfg.env.max_turns,
        cfg.env.max_turn_tokens,
        exploiters.other_answers(spec, cfg.eval.seed + OTHER_TASKS),
    )

    def episodes(number: int) -> list[tuple[str, str, Trajectory | None]]:
        task = tasks[number]
        acts = [
            ("expert", "expert", exploiters.expert(box, task)),
            ("random", "random", exploiters.randomly(box, task)),
        ]
        named = [*acts, *((name, "exploiter", act) for name, act in exploiters.exploiters(box, task))]
        return [
            (name, kind, act and play(spec, renderer, cfg.env, cfg.rollout.max_tokens, task, act, member))
            for member, (name, kind, act) in enumerate(named)
        ]

    played: dict[str, Played] = {}
    with Progress("audit", len(tasks)) as progress, ThreadPoolExecutor(cfg.env.tool_workers) as pool:
        for done, found in enumerate(pool.map(episodes, range(len(tasks))), 1):
            for name, kind, trajectory in found:
                played.setdefault(name, Played(name, kind)).trajectories.append(trajectory)
            progress.update(done)
    ordered = list(played.values())
    everyone = (ordered[0], Played("base policy", "base", list(base)), *ordered[1:])
    return [p for p in everyone if any(t is not None for t in p.trajectories)]


def base_policy(cfg: Config, spec: EnvSpec, tasks: Sequence[Task], book: Ledger) -> list[Trajectory | None]:
    """One episode a task of the policy that training would start from."""
    from agentrl.stages.evaluate import Policy, acting

    checkpoint = Path(cfg.model.init) if cfg.model.init else None
    policy = Policy("base", checkpoint, model_key(cfg.model), 0, remote=cfg.engine.name == "openai")
    sampling = Sampling(cfg.eval.temperature, cfg.eval.top_p, cfg.eval.top_k, cfg.eval.min_p)
    with Progress("audit: base policy", 1) as progress, acting(cfg, spec, policy, book) as collector:
        began = time.monotonic()
        groups = collector.collect(
            list(tasks),
            1,
            sampling,
            cfg.eval.seed,
            0,
            lambda done, total: progress.tick(done / total, f"{done}/{total}"),
        )
        book.sampled("eval", collector.take_counts(), time.monotonic() - began)
    return [g.trajectories[0] for g in groups]


def findings(
    cfg: Config, scorer: rewards.Rewards, tasks: Sequence[Task], played: Sequence[Played], book: Ledger
) -> dict[str, Any]:
    """Score what was played and judge it. RunError when nothing could be scored."""
    groups = as_groups(played, tasks)
    scorer.score(groups, 0)
    book.scored("other", scorer.take_costs())
    everything = [t for g in groups for t in g.trajectories]
    if all(t.reward.total is None for t in everything):
        reason = next((c.error for t in everything for c in t.reward.components if c.error), "no reason given")
        raise RunError(f"the reward scored none of {len(everything)} episodes: {reason}")
    return judged(cfg, played, groups, scorer.counts)


def save(cfg: Config, played: Sequence[Played], run: Run) -> None:
    """Every episode, tagged by its policy."""
    if cfg.run.trajectories:
        for policy in played:
            own = [Group(t.task, [t]) for t in policy.trajectories if t is not None]
            run.save_trajectories(0, own, tag=_slug(policy.name))


def as_groups(played: Sequence[Played], tasks: Sequence[Task]) -> list[Group]:
    """One group a task, with every policy's trajectory as a member: rewards that compare, compare them."""
    groups = []
    for number, task in enumerate(tasks):
        members = [t for p in played if (t := p.trajectories[number]) is not None]
        for member, trajectory in enumerate(members):
            trajectory.member = member
        groups.append(Group(task, members))
    return groups


def judged(
    cfg: Config, played: Sequence[Played], groups: Sequence[Group], counts: Mapping[str, float]
) -> dict[str, Any]:
    """The content of audit.json: policies, problems, and for learned rewards their agreement with the verifier.

    An exploiter fails the audit when it earns significantly more than the base policy (paired by task, 95 %), or at
    least half of the expert's gain over the floor; the random policy when it earns that half. The floor is the base
    policy, or the random one where the base policy already succeeds as often as the expert. The reward itself fails
    when it does not pay the expert significantly more than the floor, or cannot score these two.
    """
    seed = cfg.eval.seed
    values = {p.name: p.by_task() for p in played}
    of = {p.kind: p for p in played}  # of each kind that has one policy
    base = values[of["base"].name] if "base" in of else {}
    floor, top = base, values[of["expert"].name] if "expert" in of else {}
    below = "base policy"
    if "expert" in of and "base" in of and "random" in of:
        ahead = versus(of["base"].successes(), of["expert"].successes(), seed)
        if not ahead.low > 0:
            below, floor = "random policy", values[of["random"].name]
    problems: list[str] = []
    gain = versus(floor, top, seed) if top and floor else None
    if gain is not None and not gain.low > 0:
        problems.append(
            f"the expert does not earn significantly more than the {below} ({gain.mean:+.2f}): this reward does "
            "not tell the task done from not done"
        )
    rows = []
    for policy in played:
        own = values[policy.name]
        known = [t for t in policy.trajectories if t is not None]
        row: dict[str, Any] = {
            "name": policy.name,
            "kind": policy.kind,
            "episodes": len(known),
            "scored": len(own),
            "reward": estimate(list(own.values()), seed).to_dict(),
            "success": _success(known),
            "tokens": sum(t.costs.tokens_sampled for t in known) / len(known),
            "problem": None,
        }
        if policy.kind in ("expert", "base") and 2 * len(own) < len(known):
            problems.append(f"the {policy.name} could be scored in {len(own)} of {len(known)} episodes only")
        if policy.kind in ("exploiter", "random") and base and own:
            more, over = versus(base, own, seed), versus(floor, own, seed)
            share = over.mean / gain.mean if gain is not None and gain.mean > 0 else None
            row |= {"versus_base": more.to_dict(), "share_of_expert": share}
            if policy.kind == "exploiter" and more.low > 0:
                row["problem"] = "earns more than the base policy"
            elif share is not None and share >= NEAR:
                row["problem"] = "earns nearly as much as the expert"
            if row["problem"]:
                problems.append(f"'{policy.name}' {row['problem']}: {_mean(own):.2f}")
        rows.append(row)
    return {
        "env": cfg.env.name,
        "reward": cfg.reward.name,
        "tasks": len(groups),
        "passed": not problems,
        "problems": problems,
        "policies": rows,
        "agreement": agreements(groups, seed),
        "counts": dict(counts),
    }


def versus(floor: Mapping[str, float], own: Mapping[str, float], seed: int) -> Interval:
    """Reward minus that of the floor, paired by the tasks on which both were scored."""
    shared = [h for h in floor if h in own]
    return paired_difference([[floor[h]] for h in shared], [[own[h]] for h in shared], seed)


def estimate(values: Sequence[float], seed: int) -> Interval:
    """A mean with its interval; rewards need not lie in [0, 1]."""
    inside = all(0 <= v <= 1 for v in values)
    return mean_interval([[v] for v in values], seed) if inside else bootstrap_mean(values, seed)


def agreements(groups: Sequence[Group], seed: int) -> dict[str, Any]:
    """For every component that is not success itself: its values against success, over all that was played."""
    found: dict[str, list[tuple[float, bool]]] = {}
    for trajectory in (t for g in groups for t in g.trajectories):
        for component in trajectory.reward.components:
            if component.value is not None and trajectory.success is not None:
                found.setdefault(component.name, []).append((component.value, trajectory.success >= 1))
    others = {name: pairs for name, pairs in found.items() if any(value != float(yes) for value, yes in pairs)}
    return {name: agreement([v for v, _ in pairs], [y for _, y in pairs], seed) for name, pairs in others.items()}


def _mean(values: Mapping[str, float]) -> float:
    return sum(values.values()) / len(values) if values else math.nan


def _success(trajectories: Sequence[Trajectory]) -> float | None:
    known = [t.success for t in trajectories if t.success is not None]
    return sum(known) / len(known) if known else None


def _slug(name: str) -> str:
    return "audit-" + "".join(c if c.isalnum() else "-" for c in name).strip("-")


def show(console: Console, result: Mapping[str, Any], folder: Path) -> None:
    """The table, the agreement of learned rewards, and the verdict."""
    table = Table(box=boxes.SIMPLE_HEAD, padding=(0, 1))
    for name in ("policy", "reward [95 %]", "success", "tokens", "scored", "finding"):
        table.add_column(name, no_wrap=name != "finding")
    for row in result["policies"]:
        style = {"expert": "green", "base": "cyan", "random": "cyan"}.get(row["kind"], "")
        success = "-" if row["success"] is None else f"{row['success']:.2f}"
        table.add_row(
            Text(row["name"], style),
            interval_text(row["reward"]),
            success,
            f"{row['tokens']:.0f}",
            f"{row['scored']}/{row['episodes']}",
            Text(row["problem"], "red") if row["problem"] else "ok" if row["kind"] == "exploiter" else "",
        )
    console.print(f"audit of reward={result['reward']} on env={result['env']}, {result['tasks']} tasks", markup=False)
    console.print(table)
    for name, found in result["agreement"].items():
        auc = "-" if found["auc"] is None else f"{found['auc']:.2f}"
        error = (found.get("calibration") or (found.get("pairs") or {}).get("calibration") or {}).get("ece")
        calibration = f", calibration error {error:.2f}" if error is not None else ""
        console.print(f"{name} against the verifier: AUC {auc}{calibration}, {found['n']} episodes", markup=False)
    curve = result.get("over_optimisation")
    if curve is not None:
        text = f"over-optimised after step {curve['best']['step']}" if curve["over_optimised"] else "not over-optimised"
        console.print(f"training run {curve['run']}: {curve.get('note', text)}", markup=False, soft_wrap=True)
    for problem in result["problems"]:
        console.print(Text(problem, "red"), soft_wrap=True)
    verdict = "PASSED" if result["passed"] else "FAILED: do not train on this reward"
    console.print(Text(f"audit {verdict}", "green" if result["passed"] else "bold red"))
    console.print(f"written to {folder / 'audit.json'}", markup=False, soft_wrap=True)
