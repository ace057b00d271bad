"""Sampling a policy on panels, and what its trajectories add up to.

A trajectory that ended in an infrastructure error, or that the verifier could not judge, is counted and left out of
every mean: it is never a failure of the policy.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from agentrl.envs.base import Outcome, Task
from agentrl.evaluate.intervals import Interval, combine, mean_interval, paired_difference, pass_at_k
from agentrl.evaluate.panels import Panel
from agentrl.rollout.sampling import Sampling
from agentrl.rollout.trajectory import Group, StopReason, Trajectory


class Collects(Protocol):
    """What is asked of a collector (agentrl.rollout.collector.Collector)."""

    def collect(
        self,
        tasks: Sequence[Task],
        members: int,
        sampling: Sampling,
        seed: int,
        step: int,
        on_progress: Callable[[int, int], None] | None = None,
    ) -> list[Group]: ...


class Scores(Protocol):
    """What is asked of the rewards (agentrl.rewards.Rewards)."""

    def score(self, groups: list[Group], step: int) -> dict[str, float]: ...


@dataclass
class PolicyResult:
    """One policy on all panels: panel dicts as in eval.json, and the groups behind them."""

    name: str
    checkpoint: str | None
    model: str
    step: int
    panels: list[dict[str, Any]]
    groups: list[list[Group]]  # per panel, in the panel's task order
    gap: dict[str, Any]
    wall_s: float

    def to_dict(self) -> dict[str, Any]:
        """The policy's entry in eval.json."""
        return {
            "name": self.name,
            "checkpoint": self.checkpoint,
            "model": self.model,
            "step": self.step,
            "panels": self.panels,
            "gap": self.gap,
            "wall_s": self.wall_s,
        }


def evaluate_policy(
    collector: Collects,
    rewards: Scores,
    panels: Sequence[Panel],
    samples: int,
    sampling: Sampling,
    seed: int,
    *,
    name: str,
    model: str,
    checkpoint: str | None = None,
    step: int = 0,
    on_progress: Callable[[int, int], None] | None = None,
) -> PolicyResult:
    """Sample every task of every panel ``samples`` times in one call, so that slots never wait for a panel to end."""
    started = time.monotonic()
    groups = _sample(
        collector, rewards, [t for p in panels for t in p.tasks], samples, sampling, seed, step, on_progress
    )
    wall = time.monotonic() - started
    by_panel: list[list[Group]] = []
    start = 0
    for panel in panels:
        by_panel.append(groups[start : start + len(panel.tasks)])
        start += len(panel.tasks)
    all_tokens = sum(_tokens(g) for g in groups)
    entries = [
        summarise(panel, found, samples, seed, wall * sum(map(_tokens, found)) / all_tokens if all_tokens else 0.0)
        for panel, found in zip(panels, by_panel, strict=True)
    ]
    return PolicyResult(name, checkpoint, model, step, entries, by_panel, gap(panels, by_panel, seed), wall)


def summarise(panel: Panel, groups: Sequence[Group], samples: int, seed: int, wall_s: float) -> dict[str, Any]:
    """One panel's entry in eval.json.

    Means and ``turns``, ``tool_calls`` (per trajectory), ``stop_reasons``, ``invalid_actions`` and ``pass_at_k`` are
    over judged trajectories; ``cost`` sums over all, errored ones too, for they were paid for. All panels of a policy
    are sampled together, so a panel's ``wall_s`` is its share by tokens of the time that they took.
    """
    everything = [t for g in groups for t in g.trajectories]
    judged = [t for t in everything if is_judged(t)]
    score_names = sorted({name for t in judged for name in t.scores})
    return {
        "variant": panel.variant,
        "split": panel.split,
        "panel_hash": panel.hash,
        "n": len(panel.tasks),
        "note": panel.note,
        "success": mean_interval(per_task(groups), seed).to_dict(),
        "score": {name: mean_interval(per_task(groups, score_of(name)), seed).to_dict() for name in score_names},
        "pass_at_k": pass_at_ks(groups, samples, seed),
        "turns": _mean([len(t.turns) for t in judged]),
        "tool_calls": _mean([t.costs.tool_calls for t in judged]),
        "stop_reasons": dict(Counter(t.stop_reason.value for t in everything)),
        "invalid_actions": sum(turn.outcome is Outcome.INVALID for t in judged for turn in t.turns),
        "tool_errors": sum(turn.outcome is Outcome.TOOL_ERROR for t in everything for turn in t.turns),
        "trajectories": len(everything),
        "errors": sum(t.stop_reason is StopReason.ERROR for t in everything),
        "not_judged": sum(t.stop_reason is not StopReason.ERROR and t.success is None for t in everything),
        "cost": {
            "tokens_sampled": sum(t.costs.tokens_sampled for t in everything),
            "tokens_prefilled": sum(t.costs.tokens_prefilled for t in everything),
            "tool_calls": sum(t.costs.tool_calls for t in everything),
            "tool_seconds": round(sum(t.costs.tool_seconds for t in everything), 3),
            "wall_s": round(wall_s, 3),
        },
    }


def is_judged(trajectory: Trajectory) -> bool:
    """No infrastructure error, and the verifier gave a finding."""
    return trajectory.stop_reason is not StopReason.ERROR and trajectory.success is not None


def per_task(
    groups: Sequence[Group], value: Callable[[Trajectory], float | None] = lambda t: t.success
) -> list[list[float]]:
    """The values of each task's judged trajectories; tasks without any are left out."""
    found = [[v for t in g.trajectories if is_judged(t) and (v := value(t)) is not None] for g in groups]
    return [[float(v) for v in values] for values in found if values]


def score_of(name: str) -> Callable[[Trajectory], float | None]:
    """A reader of one verifier score, for `per_task`."""

    def read(trajectory: Trajectory) -> float | None:
        return trajectory.scores.get(name)

    return read


def pass_at_ks(groups: Sequence[Group], samples: int, seed: int) -> dict[str, dict[str, Any]]:
    """pass@k for k = 1, 2, 4 … and ``samples``, with bootstrap intervals over tasks.

    A success counts when it is full (1). Tasks with fewer than k judged samples are left out, and ``n`` says so.
    """
    ks = sorted({samples, *(2**i for i in range(samples.bit_length()) if 2**i <= samples)})
    successes = [[v >= 1 for v in values] for values in per_task(groups)]
    return {
        str(k): mean_interval([[pass_at_k(len(s), sum(s), k)] for s in successes if len(s) >= k], seed).to_dict()
        for k in ks
    }


def gap(panels: Sequence[Panel], groups: Sequence[Sequence[Group]], seed: int) -> dict[str, Any]:
    """Success on the training variant minus the mean over held-out variants (each weighs the same), and minus each.

    Empty when one of the two sides was not evaluated.
    """
    means = [mean_interval(per_task(g), seed) for g in groups]
    train = [m for p, m in zip(panels, means, strict=True) if p.split == "train" and not math.isnan(m.mean)]
    heldout = {
        p.variant: m for p, m in zip(panels, means, strict=True) if p.split != "train" and not math.isnan(m.mean)
    }
    if not train or not heldout:
        return {}
    share = 1 / len(heldout)
    return {
        "train": train[0].to_dict(),
        "heldout": combine(list(heldout.values()), [share] * len(heldout)).to_dict(),
        "success": combine([train[0], *heldout.values()], [1, *[-share] * len(heldout)]).to_dict(),
        "variants": {name: combine([train[0], m], [1, -1]).to_dict() for name, m in heldout.items()},
    }


def lift(panel: Panel, first: Sequence[Group], second: Sequence[Group], seed: int) -> Interval:
    """Success of the second policy minus the first on one panel, paired by task.

    Only tasks that both policies have a judged trajectory of take part; ``n`` says how many.
    """
    before, after = _by_task(first), _by_task(second)
    shared = [t.hash for t in panel.tasks if t.hash in before and t.hash in after]
    return paired_difference([before[h] for h in shared], [after[h] for h in shared], seed)


def lifts(panels: Sequence[Panel], results: Sequence[PolicyResult], seed: int) -> list[dict[str, Any]]:
    """Paired differences of every policy to each one before it, per panel, as in eval.json's ``paired``."""
    return [
        {
            "policy": result.name,
            "versus": earlier.name,
            "variant": panel.variant,
            "split": panel.split,
            "success": lift(panel, before, after, seed).to_dict(),
        }
        for number, result in enumerate(results)
        for earlier in results[:number]
        for panel, before, after in zip(panels, earlier.groups, result.groups, strict=True)
    ]


def quick_eval(
    collector: Collects,
    rewards: Scores,
    tasks: Sequence[Task],
    seed: int,
    step: int,
    sampling: Sampling | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> dict[str, float]:
    """One sample of each task, during training: ``eval/…`` numbers for metrics.jsonl.

    Sampling defaults to the untruncated distribution at temperature 1. Every step draws from the same random streams,
    so that the curve moves by the weights and not by the draw. Means of nothing are left out.
    """
    started = time.monotonic()
    plain = Sampling(temperature=1.0, top_p=1.0, top_k=0, min_p=0.0)
    groups = _sample(collector, rewards, tasks, 1, sampling or plain, seed, step, on_progress)
    everything = [t for g in groups for t in g.trajectories]
    judged = [t for t in everything if is_judged(t)]
    numbers: dict[str, float] = {
        "eval/n": len(judged),
        "eval/errors": len(everything) - len(judged),
        "time/eval_s": time.monotonic() - started,
    }
    if not judged:
        return numbers
    success = mean_interval(per_task(groups), seed)
    numbers |= {"eval/success": success.mean, "eval/success_low": success.low, "eval/success_high": success.high}
    for name in sorted({name for t in judged for name in t.scores}):
        numbers[f"eval/score/{name}"] = float(np.mean([t.scores[name] for t in judged if name in t.scores]))
    totals = [t.reward.total for t in judged if t.reward.total is not None]
    if totals:
        numbers["eval/reward"] = float(np.mean(totals))
    numbers["eval/turns"] = float(np.mean([len(t.turns) for t in judged]))
    numbers["eval/tool_calls"] = float(np.mean([t.costs.tool_calls for t in judged]))
    numbers["eval/tokens_sampled"] = float(np.mean([t.costs.tokens_sampled for t in judged]))
    return numbers


def _sample(
    collector: Collects,
    rewards: Scores,
    tasks: Sequence[Task],
    samples: int,
    sampling: Sampling,
    seed: int,
    step: int,
    on_progress: Callable[[int, int], None] | None,
) -> list[Group]:
    """Scored groups in task order. All policies draw from the same random streams (those of step 0), so that two of
    them differ by their weights and not by the draw."""
    groups = collector.collect(list(tasks), samples, sampling, seed, 0, on_progress)
    if [g.task.hash for g in groups] != [t.hash for t in tasks]:
        raise AssertionError("the collector must return one group a task, in the order of the tasks")
    for trajectory in (t for g in groups for t in g.trajectories):
        trajectory.policy_step = step
    rewards.score(groups, step)
    return groups


def _by_task(groups: Sequence[Group]) -> Mapping[str, list[float]]:
    found = {g.task.hash: [float(t.success) for t in g.trajectories if is_judged(t)] for g in groups}  # type: ignore[arg-type]
    return {task: values for task, values in found.items() if values}


def _tokens(group: Group) -> int:
    return sum(t.costs.tokens_sampled + t.costs.tokens_prefilled for t in group.trajectories)


def _mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if values else None
