"""agentrl advise: should you train at all? Measures the conditions, recommends, and says why, on one page."""

from __future__ import annotations

import copy
import gc
import sys
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

from rich.console import Console
from rich.markdown import Markdown
from rich.text import Text

from agentrl import rewards
from agentrl.config import compose
from agentrl.config.folders import config_folders, group_choices
from agentrl.config.rules import check_together
from agentrl.config.schema import BudgetConfig, Config
from agentrl.envs.base import EnvSpec, Outcome
from agentrl.envs.informed import with_evidence
from agentrl.envs.registry import load_spec
from agentrl.errors import RunError, UserError
from agentrl.evaluate import audit
from agentrl.evaluate.advice import Advice, Condition, Rental, Skill, decide
from agentrl.evaluate.falsify import difference
from agentrl.evaluate.intervals import mean_interval, pass_at_k
from agentrl.evaluate.panels import Panel, build_panel, eval_panels, history_of
from agentrl.evaluate.runner import PolicyResult, is_judged
from agentrl.evaluate.tables import interval_text
from agentrl.rollout.trajectory import Group
from agentrl.runs import files
from agentrl.runs.budget import NAMES, Budget
from agentrl.runs.checkpoints import newest, resolve_checkpoint
from agentrl.runs.folder import Run, model_key
from agentrl.runs.progress import Progress
from agentrl.stages import estimate
from agentrl.stages.common import TaskStream, starting_point
from agentrl.stages.evaluate import Policy, describe, evaluate_one
from agentrl.stages.train import SELF_TEST_TASKS

UNPRICED = "the cost was not measured: the reward comes first"


@dataclass(frozen=True)
class Measured:
    """The numbers behind the page."""

    reward: Condition
    cost: Condition
    skill: Skill
    rental: Rental | None
    policy: str
    variant: str
    heldout: Sequence[str]
    audit: dict[str, Any] | None  # audit.json; None where there was nothing to audit


def main(
    cfg: Config, next_base: str | None = None, checkpoint: str | None = None, config_dirs: Sequence[str] = ()
) -> Advice:
    """Measure, write advise.md and advise.json, and print the page. Raises UserError and RunError.

    ``next_base``: a model name, folder or Hub id that might replace the base; with engine=openai it is the model behind
    the endpoint. ``checkpoint``: the trained policy that is held against it; default: the newest one.
    """
    console = Console()
    local = replace(cfg, engine=replace(cfg.engine, name="local"))
    check_together(local, "train")  # it is this training that is advised on
    start = starting_point(cfg, ("sft",))
    local = replace(local, model=replace(cfg.model, init=str(start.resolve()) if start else None))
    policy = describe(start, cfg, set()) if start else Policy("base", None, model_key(cfg.model), 0)
    successor = _successor(cfg, next_base, config_dirs)
    trained = _trained(cfg, checkpoint) if successor else None
    history = history_of(policy.checkpoint)
    history.merge(history_of(trained.checkpoint if trained else None))
    spec = load_spec(cfg.env)
    with closing(spec):
        own = build_panel(spec, spec.train_variant, cfg.advise.tasks, cfg.eval.seed, history.hashes)
        if not own.tasks:
            raise UserError(f"variant {own.variant} has no task that was not trained on; nothing can be measured")
        others = []
        if successor:
            every = eval_panels(spec, cfg.eval, heldout=True, trained_on=history.hashes)
            panels = [p for p in every if p.variant != spec.train_variant]
            others = [p for p in panels if p.tasks]
            if not others:
                raise UserError(f"--next-base: environment {spec.name} has no held-out task to compare on")
        run = Run.create(cfg, "advise", sys.argv)
        with run.ending():
            run.update(panel_hashes={p.variant: p.hash for p in [own, *others]})
            spec.prepare()
            with Progress("advise", 2 + 2 * bool(successor)) as progress:
                skill, result = _skill(local, spec, policy, own, run, progress)
                rental = None
                if successor:
                    rental = _rental(cfg, local, spec, trained or policy, successor, others, run, progress)
                    rental = replace(rental, trained=trained is not None)
            reward, audited = _reward_condition(local, spec, result, run)
            run.ledger.close(1)
            cost = _cost_condition(local) if reward.holds is not False else Condition(None, UNPRICED)
            heldout = [p.variant for p in others]
            measured = Measured(reward, cost, skill, rental, policy.name, own.variant, heldout, audited)
            advice = decide(reward, cost, skill, rental, _has_expert(spec, own))
            page = _page(cfg, measured, advice)
            files.write_atomic(run.dir / "advise.md", page.encode())
            files.write_json(run.dir / "advise.json", _facts(cfg, measured, advice))
    console.print(Markdown(page))
    console.print(Text(f"wrote {run.dir / 'advise.md'}, {run.dir / 'advise.json'}"), soft_wrap=True)
    return advice


def _successor(cfg: Config, name: str | None, config_dirs: Sequence[str]) -> tuple[Config, Policy] | None:
    """The next base model as a policy, with the config that loads it."""
    if cfg.engine.name == "openai":
        if name is not None:
            raise UserError("--next-base: with engine=openai the next base is engine.model; give one of the two")
        return cfg, Policy(f"prompted {cfg.engine.model}", None, str(cfg.engine.model), 0, remote=True)
    if name is None:
        return None
    if name in group_choices(config_folders(config_dirs)).get("model", []):
        model = compose([f"model={name}"], config_dirs).model
    else:
        model = replace(cfg.model, path=name)
    from agentrl.models.load import resolve

    try:
        resolve(model)
    except UserError as error:
        raise UserError(f"--next-base {name}: {error}") from None
    return replace(cfg, model=replace(model, init=None)), Policy(f"prompted {name}", None, name, 0)


def _trained(cfg: Config, checkpoint: str | None) -> Policy | None:
    """The policy that was trained: the one named, else the newest; None when there is none yet."""
    found = (
        resolve_checkpoint(checkpoint)
        if checkpoint
        else newest(cfg.run.root, "train", cfg.env.name, model_key(cfg.model))
    )
    return describe(found, cfg, set()) if found else None


def _reward_condition(
    cfg: Config, spec: EnvSpec, played: PolicyResult, run: Run
) -> tuple[Condition, dict[str, Any] | None]:
    """Can a reward be defined? The verifier on its own gold and wrong answers, then the audit, in which the policy's
    first samples are the base policy's; with the audit's findings."""
    built = rewards.build(cfg.reward, spec, cfg.train.seed)
    if all(component.tier == "control" for component in built.components.values()):
        why = f"reward={cfg.reward.name} is a control arm: it pays for something else than the task"
        return Condition(False, why), None
    tasks = [g.task for g in played.groups[0]]
    base = [copy.copy(g.trajectories[0]) for g in played.groups[0]]
    try:
        tried = built.self_test(TaskStream(spec, spec.train_variant, cfg.train.seed).next(SELF_TEST_TASKS))
        everyone = audit.play_all(cfg, spec, tasks, base)
        found = audit.findings(cfg, built, tasks, everyone, run.ledger)
    except RunError as error:
        return Condition(False, str(error)), None
    audit.save(cfg, everyone, run)
    if not found["passed"]:
        some = "; ".join(found["problems"][:3]) + ("; …" if len(found["problems"]) > 3 else "")
        return Condition(False, f"the audit failed: {some}"), found
    exploiters = sum(p["kind"] == "exploiter" for p in found["policies"])
    gold = f"the verifier takes all of {tried} gold answers, " if tried else "no gold answers were there to try; "
    return Condition(True, f"{gold}and the audit passed: {exploiters} exploiters on {len(tasks)} tasks"), found


def _cost_condition(cfg: Config) -> Condition:
    """Are rollouts affordable? The forecast of the training run (``agentrl estimate``, else measured now) against the
    budget."""
    found = estimate.stored(cfg)
    try:
        if found is None:
            gc.collect()  # the policy that was just evaluated
            found = estimate.calibrate(cfg, min(estimate.OWN_STEPS, cfg.train.steps))
            estimate.store(cfg, found)
    except RunError as error:
        return Condition(None, f"the cost could not be measured: {error}")
    known = [f"{name} {found.text(name)}" for name in NAMES if getattr(found.mean, name)]
    words = f"{found.steps} steps of training take {', '.join(known)} (from {found.calibration} steps measured here)"
    fits = {name: found.fits(name, limit) for name in NAMES if (limit := getattr(cfg.budget, name)) is not None}
    if not fits:
        return Condition(None, f"{words}; no budget was given")
    holds = False if False in fits.values() else None if None in fits.values() else True
    said = [f"budget.{name} {estimate.FITS[answer]}" for name, answer in fits.items()]
    return Condition(holds, f"{words}; {', '.join(said)}")


def _skill(
    cfg: Config, spec: EnvSpec, policy: Policy, panel: Panel, run: Run, progress: Progress
) -> tuple[Skill, PolicyResult]:
    """pass@1, pass@k and success with the evidence, on fresh tasks of the training variant."""
    k = cfg.advise.samples
    several = replace(cfg, eval=replace(cfg.eval, samples=k))
    plain = evaluate_one(several, spec, policy, [panel], progress, Budget(BudgetConfig(), run.ledger))
    _save(several, run, plain, "advise")
    progress.update(1)
    given = None
    if any(spec.evidence(task) is not None for task in panel.tasks):
        given = evaluate_one(
            several, with_evidence(spec), policy, [panel], progress, Budget(BudgetConfig(), run.ledger)
        )
        _save(several, run, given, "advise-evidence")
    progress.update(2)
    return skill_of(plain.groups[0], given.groups[0] if given else None, k, cfg.control.margin, cfg.eval.seed), plain


def skill_of(groups: Sequence[Group], informed: Sequence[Group] | None, k: int, margin: float, seed: int) -> Skill:
    """Adds up ``k`` samples a task. Tasks with fewer than k judged samples take part in pass@1 only."""
    found = {g.task.hash: _successes(g) for g in groups}
    found = {task: values for task, values in found.items() if values}
    whole = {task: values for task, values in found.items() if len(values) >= k}
    one = {t: [pass_at_k(len(v), sum(x >= 1 for x in v), 1)] for t, v in whole.items()}
    any_of = {t: [pass_at_k(len(v), sum(x >= 1 for x in v), k)] for t, v in whole.items()}
    turns = [turn for g in groups for t in g.trajectories if is_judged(t) for turn in t.turns]
    given = {g.task.hash: values for g in informed or () if (values := _successes(g))}
    never = [t for t, v in found.items() if not any(x >= 1 for x in v)]
    rescued = [[float(any(x >= 1 for x in given[t]))] for t in never if t in given]
    return Skill(
        k,
        mean_interval([[float(x >= 1) for x in v] for v in found.values()], seed),
        mean_interval(list(any_of.values()), seed),
        difference(one, any_of, margin, seed),
        mean_interval([[float(x >= 1) for x in v] for v in given.values()], seed) if given else None,
        mean_interval(rescued, seed) if rescued else None,
        sum(turn.outcome is Outcome.INVALID for turn in turns) / max(1, len(turns)),
    )


def _successes(group: Group) -> list[float]:
    return [float(t.success) for t in group.trajectories if is_judged(t) and t.success is not None]


def _rental(
    cfg: Config,
    local: Config,
    spec: EnvSpec,
    policy: Policy,
    successor: tuple[Config, Policy],
    panels: Sequence[Panel],
    run: Run,
    progress: Progress,
) -> Rental:
    """The trained policy minus the next base model, prompted, on the same held-out tasks."""
    played = []
    for number, (how, who) in enumerate([(local, policy), successor], 3):
        result = evaluate_one(how, spec, who, panels, progress, Budget(BudgetConfig(), run.ledger))
        _save(cfg, run, result, f"advise-{'policy' if who is policy else 'next-base'}")
        played.append({f"{g.task.variant}/{g.task.hash}": _successes(g) for groups in result.groups for g in groups})
        progress.update(number)
    ours, theirs = ({task: values for task, values in p.items() if values} for p in played)
    lift = difference(theirs, ours, cfg.control.margin, cfg.eval.seed)
    return Rental(policy.name, successor[1].model, True, lift)


def _save(cfg: Config, run: Run, result: PolicyResult, tag: str) -> None:
    if cfg.run.trajectories:
        run.save_trajectories(result.step, [g for panel in result.groups for g in panel], tag=tag)


def _has_expert(spec: EnvSpec, panel: Panel) -> bool:
    return any(spec.expert(task, 0) is not None for task in panel.tasks[:4])


def _facts(cfg: Config, measured: Measured, advice: Advice) -> dict[str, Any]:
    return {
        "env": cfg.env.name,
        "model": model_key(cfg.model),
        "policy": measured.policy,
        **advice.to_dict(),
        "reward": measured.reward.to_dict(),
        "audit": measured.audit,
        "cost": measured.cost.to_dict(),
        "skill": measured.skill.to_dict(),
        "next_base": measured.rental.to_dict() if measured.rental else None,
        "panels": {"skill": measured.variant, "next_base": list(measured.heldout)},
        "sampling": {"tasks": cfg.advise.tasks, "samples": cfg.advise.samples, "temperature": cfg.eval.temperature},
        "margin": cfg.control.margin,
    }


def _page(cfg: Config, measured: Measured, advice: Advice) -> str:
    """The page as Markdown."""
    skill = measured.skill
    mark = {True: "yes", False: "**no**", None: "open"}
    lines = [
        f"# Should you train? {cfg.env.name}, {model_key(cfg.model)}, {measured.policy}",
        "",
        f"**Recommendation: {advice.recommendation.value}**",
        "",
        *(f"- {reason}" for reason in advice.reasons),
        "",
        "| condition | | measured |",
        "|---|---|---|",
        f"| a reward can be defined | {mark[measured.reward.holds]} | {_cell(measured.reward.words)} |",
        f"| rollouts are affordable | {mark[measured.cost.holds]} | {_cell(measured.cost.words)} |",
        f"| the gap is in strategy | {mark[skill.headroom.answer]} | "
        f"pass@{skill.k} minus pass@1: {interval_text(skill.headroom.to_dict(), signed=True)} |",
        f"| it outlives the next base | {_outlives(measured.rental)} |",
        "",
        f"Fresh tasks of variant {measured.variant}, {skill.k} samples each, temperature {cfg.eval.temperature:g}; "
        "95 % intervals over tasks:",
        "",
        "| | share of tasks | n |",
        "|---|---|---|",
        _row("pass@1", skill.pass_1),
        _row(f"pass@{skill.k}", skill.pass_k),
        _row(f"never solved in {skill.k}", skill.never),
    ]
    if skill.informed is not None:
        lines.append(_row("pass@1 when handed the evidence", skill.informed))
    if skill.rescued is not None:
        lines.append(_row("of the never solved: solved at least once with the evidence", skill.rescued))
    lines.append(f"| actions not understood | {skill.invalid:.2f} | |")
    return "\n".join(lines) + "\n"


def _row(name: str, value: Any) -> str:
    return f"| {name} | {interval_text(value.to_dict())} | {value.n} |"


def _outlives(rental: Rental | None) -> str:
    if rental is None:
        return "not measured | give --next-base MODEL"
    difference = interval_text(rental.lift.to_dict(), signed=True)
    n = rental.lift.interval.n
    return f"{rental.finding} | {_cell(rental.policy)} minus {_cell(rental.next_base)}, held out: {difference}, n={n}"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
