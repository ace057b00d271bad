"""Early warnings: a run that is about to be lost says so, with a named reason, numbers and what to try.

Each rule looks at means over a few steps and must hold for several steps in a row, so that one noisy batch of a few
prompts raises nothing. Only numbers that are not finite warn at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from statistics import fmean
from typing import Any

import numpy as np

from agentrl.rollout.trajectory import Group, Trajectory

WINDOW = 5  # steps in a mean
PATIENCE = 3  # steps in a row that a rule must hold
REPEAT = 10  # steps after which a warning that still holds is given again
HISTORY = 3 * WINDOW  # steps kept per series: the present window and two before it
NGRAM = 8  # tokens
RUN = 16  # equal characters in a row


@dataclass(frozen=True)
class Warning_:
    """``name`` is the reason (stable, for scripts), ``message`` one line for a person."""

    name: str
    message: str


def repetition(groups: Sequence[Group]) -> float:
    """Mean over trajectories of the share of what the policy wrote that repeats itself, in [0, 1].

    Per trajectory the larger of: the share of 8-grams of sampled token ids (inside one turn) that were written before
    in the same trajectory, and the share of characters of its actions that stand in runs of 16 or more equal ones.
    """
    values = [max(_repeated_ngrams(t), _repeated_characters(t)) for g in groups for t in g.trajectories]
    return fmean(values) if values else 0.0


def _repeated_ngrams(trajectory: Trajectory) -> float:
    seen: set[bytes] = set()
    total = repeated = 0
    for row in trajectory.rows:
        for turn in np.unique(row.turn[row.sampled]):
            ids = np.ascontiguousarray(row.ids[row.sampled & (row.turn == turn)])
            for start in range(len(ids) - NGRAM + 1):
                gram = ids[start : start + NGRAM].tobytes()
                total += 1
                repeated += gram in seen
                seen.add(gram)
    return repeated / total if total else 0.0


def _repeated_characters(trajectory: Trajectory) -> float:
    text = "".join(turn.text for turn in trajectory.turns)
    runs = (sum(1 for _ in run) for _, run in groupby(text))
    return sum(length for length in runs if length >= RUN) / len(text) if text else 0.0


def positive_logprob(groups: Sequence[Group]) -> float | None:
    """Mean log-probability at sampling time of the tokens with positive advantage; None when there are none."""
    parts = [r.logprobs[r.sampled & (r.advantage > 0)] for g in groups for t in g.trajectories for r in t.rows]
    values = np.concatenate(parts) if parts else np.zeros(0)
    return float(values.mean(dtype=np.float64)) if len(values) else None


class CollapseWatch:
    """Watches a run step by step. Its state is a plain dict of numbers and lists, so it can be checkpointed."""

    def __init__(self) -> None:
        self._series: dict[str, list[float]] = {}  # the last HISTORY values
        self._first: dict[str, list[float]] = {}  # the first WINDOW values: how the run began
        self._best: dict[str, float] = {}  # the highest window mean so far
        self._streak: dict[str, int] = {}  # steps in a row that a rule holds

    def state_dict(self) -> dict[str, Any]:
        """Everything the watch remembers, JSON-able."""
        return {
            "series": {k: list(v) for k, v in self._series.items()},
            "first": {k: list(v) for k, v in self._first.items()},
            "best": dict(self._best),
            "streak": dict(self._streak),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from ``state_dict()``."""
        self._series = {k: list(v) for k, v in state["series"].items()}
        self._first = {k: list(v) for k, v in state["first"].items()}
        self._best = dict(state["best"])
        self._streak = dict(state["streak"])

    def update(self, step: int, metrics: Mapping[str, float], groups: Sequence[Group]) -> list[Warning_]:
        """Take one step's metrics and annotated groups; return the warnings to give now.

        Read from ``metrics`` where present: ``policy/entropy``, ``reward/mean``, ``success/mean``,
        ``group/zero_spread``, ``policy/engine_kl``, ``policy/approx_kl``, ``policy/ratio_tail``,
        ``policy/importance_truncated``; all are searched for numbers that are not finite.
        """
        for name in _WATCHED:
            if name in metrics:
                self._add(name, float(metrics[name]))
        self._add("repetition", repetition(groups))
        likelihood = positive_logprob(groups)
        if likelihood is not None:
            self._add("positive_logprob", likelihood)

        found: dict[str, str] = {}
        broken = sorted(k for k, v in metrics.items() if isinstance(v, (int, float)) and not math.isfinite(v))
        if broken:
            numbers = ", ".join(f"{k}={metrics[k]}" for k in broken[:5])
            found["not_finite"] = (
                f"{numbers}: not finite. Go back to the last checkpoint; try a lower algo.learning_rate, a smaller "
                "algo.max_grad_norm, or model.dtype=fp32"
            )
        for name, rule in _RULES.items():
            message = rule(self)
            if message:
                found[name] = message
        warnings = []
        for name in ("not_finite", *_RULES):
            streak = self._streak.get(name, 0) + 1 if name in found else 0
            self._streak[name] = streak
            first = 1 if name == "not_finite" else PATIENCE
            if streak >= first and (streak - first) % REPEAT == 0:
                warnings.append(Warning_(name, f"step {step}: {found[name]}"))
        return warnings

    def _add(self, name: str, value: float) -> None:
        if not math.isfinite(value):
            return
        first = self._first.setdefault(name, [])
        if len(first) < WINDOW:
            first.append(value)
        series = self._series.setdefault(name, [])
        series.append(value)
        del series[:-HISTORY]
        mean = self._now(name)
        if mean is not None:
            self._best[name] = max(mean, self._best.get(name, -math.inf))

    def _now(self, name: str, back: int = 0) -> float | None:
        """Mean of the last WINDOW values, or of the window ``back`` windows ago; None when there are too few."""
        series = self._series.get(name, [])
        end = len(series) - back * WINDOW
        return fmean(series[end - WINDOW : end]) if end >= WINDOW else None

    def _start(self, name: str) -> float | None:
        """Mean of the first WINDOW values; None when there are too few."""
        first = self._first.get(name, [])
        return fmean(first) if len(first) == WINDOW else None


_WATCHED = (
    "policy/entropy",
    "reward/mean",
    "success/mean",
    "group/zero_spread",
    "policy/engine_kl",
    "policy/approx_kl",
    "policy/ratio_tail",
    "policy/importance_truncated",
)


def _entropy_collapse(watch: CollapseWatch) -> str | None:
    now, start = watch._now("policy/entropy"), watch._start("policy/entropy")
    if now is None or start is None or not (now < 0.2 * start and now < 0.1):
        return None
    return (
        f"entropy fell to {now:.4f} nats per token from {start:.4f} at the start: the policy no longer explores. Try a "
        "higher algo.clip_high (0.28), a lower algo.learning_rate, or algo.kl_coef=0.001"
    )


def _entropy_explosion(watch: CollapseWatch) -> str | None:
    now, start = watch._now("policy/entropy"), watch._start("policy/entropy")
    if now is None or start is None or not (now > 3 * start and now > 1.0):
        return None
    return (
        f"entropy rose to {now:.3f} nats per token from {start:.3f} at the start: the policy is turning to noise. Go "
        "back to an earlier checkpoint; try a lower algo.learning_rate or algo.kl_coef=0.001"
    )


def _likelihood_falling(watch: CollapseWatch) -> str | None:
    now, best = watch._now("positive_logprob"), watch._best.get("positive_logprob")
    if now is None or best is None or not (best - now > 0.2 and now < 1.5 * best):
        return None
    before, earlier = watch._now("positive_logprob", back=1), watch._now("positive_logprob", back=2)
    phase = "decay"
    if before is not None and earlier is not None:
        fall, fall_before = before - now, earlier - before
        phase = "accelerated decay" if fall > max(1.5 * fall_before, 0.05) else "slow decay"
    return (
        f"actions with positive advantage are getting less likely: {now:.3f} nats per token, {best:.3f} at best "
        f"({phase}; lazy likelihood displacement, arXiv 2512.04220, goes before collapse). Try a lower "
        "algo.learning_rate, algo.kl_coef=0.001, or stop at the best checkpoint"
    )


def _zero_spread(watch: CollapseWatch) -> str | None:
    now = watch._now("group/zero_spread")
    if now is None or now < 0.9:
        return None
    level = watch._now("success/mean")
    if level is None:
        level = watch._now("reward/mean")
    known = "" if level is None else f" at a mean of {level:.2f}"
    if level is not None and level > 0.9:
        advice = "The tasks are solved: use harder ones, or stop here"
    elif level is not None and level < 0.1:
        advice = "The tasks are too hard for now: train the cold start longer, or use easier tasks"
    else:
        advice = "Try a larger algo.group_size or a higher rollout.temperature"
    return (
        f"{now:.0%} of the groups have equal rewards{known}, so almost nothing is learned. {advice}; "
        "algo.dynamic_sampling_rounds=3 looks for groups with a spread"
    )


def _repetition(watch: CollapseWatch) -> str | None:
    now, start = watch._now("repetition"), watch._start("repetition")
    if now is None or start is None or not (now > 0.2 and now > 2 * start):
        return None
    return (
        f"{now:.0%} of what the policy writes repeats itself ({start:.0%} at the start). Read it with `agentrl "
        "inspect`; try a lower algo.learning_rate or a lower env.max_turn_tokens, and check the reward for an exploit"
    )


def _reward_drop(watch: CollapseWatch) -> str | None:
    now, best = watch._now("reward/mean"), watch._best.get("reward/mean")
    if now is None or best is None or not best - now > max(0.1, 0.4 * abs(best)):
        return None
    return (
        f"mean reward is {now:.3f}, {best:.3f} at best (over {WINDOW} steps). Go back to the best checkpoint; try a "
        "lower algo.learning_rate or algo.kl_coef=0.001"
    )


def _engine_mismatch(watch: CollapseWatch) -> str | None:
    gap, truncated = watch._now("policy/engine_kl"), watch._now("policy/importance_truncated")
    if not ((gap or 0.0) > 0.02 or (truncated or 0.0) > 0.05):
        return None
    return (
        f"engine and trainer disagree about the sampled tokens: KL {gap or 0.0:.4f} nats per token, "
        f"{truncated or 0.0:.1%} of the importance weights at their cap. Try model.dtype=fp32; check that the engine "
        "has the newest weights"
    )


def _large_steps(watch: CollapseWatch) -> str | None:
    change, tail = watch._now("policy/approx_kl"), watch._now("policy/ratio_tail")
    if not ((change or 0.0) > 0.1 or (tail or 0.0) > 0.1):
        return None
    return (
        f"the policy moves too far within one batch: KL {change or 0.0:.4f} nats per token, {tail or 0.0:.1%} of the "
        "tokens have a ratio outside [0.5, 2]. Try a lower algo.learning_rate, or fewer algo.epochs or algo.minibatches"
    )


_RULES: Mapping[str, Callable[[CollapseWatch], str | None]] = {
    "entropy_collapse": _entropy_collapse,
    "entropy_explosion": _entropy_explosion,
    "likelihood_falling": _likelihood_falling,
    "zero_spread": _zero_spread,
    "repetition": _repetition,
    "reward_drop": _reward_drop,
    "engine_mismatch": _engine_mismatch,
    "large_steps": _large_steps,
}
