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
from agentrl.algos.istar import episode_plus_step
from agentrl.config.schema import AlgoConfig
from agentrl.rollout.trajectory import Group, Trajectory

Credit = Union[float, np.ndarray, list[np.ndarray]]
"""The advantage of a trajectory: one number for all its trained tokens; or float64[turns], one for each turn's; or for
each row float64[n], one for each sampled token."""

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


_FUNCTIONS: Mapping[str, Estimator] = {
    "grpo": _grpo,
    "dr_grpo": _dr_grpo,
    "rloo": _rloo,
    "reinforce_pp": _reinforce_pp,
    "reinforce_pp_baseline": _reinforce_pp_baseline,
    "gigpo": gigpo,
    "episode_plus_step": episode_plus_step,
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
    credited = [(t, c) for g, cs in zip(groups, credits, strict=True) for t, c in zip(members(g), cs, strict=True)]
    for trajectory, credit in credited:
        for number, row in enumerate(trajectory.rows):
            trained = row.trained(cfg.mask_observations)
            if isinstance(credit, list):
                row.advantage[row.sampled] = credit[number]
            else:
                row.advantage[trained] = credit if np.ndim(credit) == 0 else np.asarray(credit)[row.turn[trained]]
    return _metrics(groups, cfg)


def _tokens(groups: Sequence[Group], cfg: AlgoConfig) -> list[np.ndarray]:
    """int64[N] per group: trained tokens of its members."""
    return [np.array([_trained(t, cfg).sum() for t in members(g)], np.int64) for g in groups]


def _trained(trajectory: Trajectory, cfg: AlgoConfig) -> np.ndarray:
    """bool: which tokens of all its rows are trained on."""
    return np.concatenate([row.trained(cfg.mask_observations) for row in trajectory.rows])


def _metrics(groups: Sequence[Group], cfg: AlgoConfig) -> dict[str, float]:
    rewards = [rewards_of(g) for g in groups]
    sizes = [len(r) for r in rewards]
    written = [np.zeros(0)]
    for trajectory in (t for g in groups for t in members(g)):
        values = np.concatenate([row.advantage for row in trajectory.rows])
        written.append(np.abs(values[_trained(trajectory, cfg)]).astype(np.float64))
    absolute = np.concatenate(written)
    return {
        "group/zero_spread": float(np.mean([equal(r) for r in rewards])) if groups else 0.0,
        "group/size_mean": float(np.mean(sizes)) if groups else 0.0,
        "group/dropped": float(sum(len(g.trajectories) for g in groups) - sum(sizes)),
        "group/repeated_states": repeated(groups, cfg.anchor),
        "advantage/mean_abs": float(absolute.mean()) if len(absolute) else 0.0,
        "advantage/max": float(absolute.max(initial=0.0)),
    }
