"""Advantages: from the rewards of a batch of groups to one number per trained token.

An estimator is a function of the groups and the config. For every scored member of every group it gives one number for
the whole trajectory, or one number per turn; ``annotate`` writes them on the tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Union

import numpy as np

from agentrl.algos import ESTIMATORS, baselines, choose
from agentrl.algos.baselines import equal, members, rewards_of
from agentrl.algos.gigpo import gigpo, repeated
from agentrl.algos.steps import episode_plus_step, step_rewards
from agentrl.config.schema import AlgoConfig
from agentrl.rollout.trajectory import Group, Row, Trajectory

Credit = Union[float, np.ndarray]
"""The advantage of a trajectory: one number for all its trained tokens, or float64[turns], one for each turn's."""

Estimator = Callable[[Sequence[Group], AlgoConfig], Sequence[Iterable[Credit]]]
"""Gives, for each group (at least one), the credit of its ``members`` in order."""


def _grpo(groups: Sequence[Group], cfg: AlgoConfig) -> Sequence[Iterable[Credit]]:
    return [baselines.grpo(rewards_of(g), cfg.std_eps) for g in groups]


def _dr_grpo(groups: Sequence[Group], cfg: AlgoConfig) -> Sequence[Iterable[Credit]]:
    return [baselines.dr_grpo(rewards_of(g)) for g in groups]


def _rloo(groups: Sequence[Group], cfg: AlgoConfig) -> Sequence[Iterable[Credit]]:
    return [baselines.rloo(rewards_of(g)) for g in groups]


def _reinforce_pp(groups: Sequence[Group], cfg: AlgoConfig) -> Sequence[Iterable[Credit]]:
    return baselines.reinforce_pp([rewards_of(g) for g in groups], _tokens(groups, cfg), cfg.std_eps)


def _reinforce_pp_baseline(groups: Sequence[Group], cfg: AlgoConfig) -> Sequence[Iterable[Credit]]:
    return baselines.reinforce_pp_baseline([rewards_of(g) for g in groups], _tokens(groups, cfg), cfg.std_eps)


def _episode_plus_step(groups: Sequence[Group], cfg: AlgoConfig) -> Sequence[Iterable[Credit]]:
    """GRPO's advantage of the episode's reward plus the standardised step rewards that components gave."""
    return [
        episode_plus_step(
            baselines.grpo(rewards_of(g), cfg.std_eps),
            list(map(step_rewards, members(g))),
            cfg.step_weight,
            cfg.std_eps,
        )
        for g in groups
    ]


_FUNCTIONS: Mapping[str, Estimator] = {
    "grpo": _grpo,
    "dr_grpo": _dr_grpo,
    "rloo": _rloo,
    "reinforce_pp": _reinforce_pp,
    "reinforce_pp_baseline": _reinforce_pp_baseline,
    "gigpo": gigpo,
    "episode_plus_step": _episode_plus_step,
}


def annotate(groups: Sequence[Group], cfg: AlgoConfig) -> dict[str, float]:
    """Write ``row.advantage`` on the trained tokens of every scored member, and 0 everywhere else.

    Trained are the sampled tokens; without ``mask_observations`` (an ablation) the observations too, with the advantage
    of the action that they answer. Errored and not scored members are in no mean or spread and get 0. Metrics:
    ``group/zero_spread`` (share of groups that teach nothing by their episodes' rewards: fewer than two scored members,
    or equal rewards), ``group/size_mean`` (scored members), ``group/dropped`` (members that left their group),
    ``group/repeated_states`` (share of turns whose ``cfg.anchor`` repeats in the group, whatever the estimator),
    ``advantage/mean_abs`` and ``advantage/max`` (of the absolute value, over trained tokens of scored members). Raises
    UserError for an unknown estimator.
    """
    estimator = _FUNCTIONS[choose("algo.estimator", cfg.estimator, ESTIMATORS)]
    for trajectory in (t for g in groups for t in g.trajectories):
        for row in trajectory.rows:
            row.advantage[:] = 0.0
    credits = estimator(groups, cfg) if groups else []
    pairs: list[tuple[Trajectory, Credit]] = []
    for group, values in zip(groups, credits, strict=True):
        pairs += zip(members(group), values, strict=True)
    for trajectory, credit in pairs:
        for row in trajectory.rows:
            trained = row.trained(cfg.mask_observations)
            row.advantage[trained] = credit if np.ndim(credit) == 0 else np.asarray(credit)[row.turn[trained]]
    return _metrics(groups, pairs, cfg)


def _trained_turns(rows: Sequence[Row], cfg: AlgoConfig) -> np.ndarray:
    """int16: the turn of every trained token of a trajectory."""
    return np.concatenate([r.turn[r.trained(cfg.mask_observations)] for r in rows])


def _tokens(groups: Sequence[Group], cfg: AlgoConfig) -> list[np.ndarray]:
    """int64[N] per group: trained tokens of its members."""
    return [np.array([len(_trained_turns(t.rows, cfg)) for t in members(g)], np.int64) for g in groups]


def _metrics(groups: Sequence[Group], pairs: Sequence[tuple[Trajectory, Credit]], cfg: AlgoConfig) -> dict[str, float]:
    rewards = [rewards_of(g) for g in groups]
    sizes = [len(r) for r in rewards]
    values: list[np.ndarray] = [np.zeros(0)]
    tokens: list[np.ndarray] = [np.zeros(0, dtype=np.int64)]  # trained tokens that carry the value beside them
    for trajectory, credit in pairs:
        turns, value = _trained_turns(trajectory.rows, cfg), np.atleast_1d(credit)
        values.append(np.abs(value))
        tokens.append(np.array([len(turns)]) if np.ndim(credit) == 0 else np.bincount(turns, minlength=len(value)))
    absolute, counts = np.concatenate(values), np.concatenate(tokens)
    total = int(counts.sum())
    return {
        "group/zero_spread": float(np.mean([equal(r) for r in rewards])) if groups else 0.0,
        "group/size_mean": float(np.mean(sizes)) if groups else 0.0,
        "group/dropped": float(sum(len(g.trajectories) for g in groups) - sum(sizes)),
        "group/repeated_states": repeated(groups, cfg.anchor),
        "advantage/mean_abs": float((absolute * counts).sum() / total) if total else 0.0,
        "advantage/max": float(absolute[counts > 0].max()) if total else 0.0,
    }
