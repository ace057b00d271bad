"""iStar's advantage (arXiv 2509.19199 section 3): an episode's and its steps' rewards, each relative to its group.

Every difference between the paper and its released code is an option of ``algo`` (docs/istar.md); the defaults are the
paper's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Union

import numpy as np

from agentrl.algos.baselines import equal, members, rewards_of
from agentrl.algos.steps import step_rewards
from agentrl.config.schema import AlgoConfig
from agentrl.envs.base import Outcome
from agentrl.rollout.trajectory import Group, Trajectory

Credits = list[Union[np.ndarray, list[np.ndarray]]]


def relative(values: np.ndarray, baseline: np.ndarray, base: str, std: bool, eps: float) -> np.ndarray:
    """float64[V]: ``values`` relative to the n numbers in ``baseline``.

    ``base`` grpo: v − mean; rloo: n / (n − 1) · (v − mean), which for a v among them is v − the mean of the others.
    With ``std`` divided by their sample standard deviation + ``eps``. Exactly 0 for fewer than two numbers, and for
    equal ones (without ``std`` only where the values are equal as well).
    """
    n = len(baseline)
    if n < 2 or (equal(baseline) and (std or equal(values))):
        return np.zeros_like(values)
    scale = 1.0 if base == "grpo" else n / (n - 1)
    return scale * (values - baseline.mean()) / (baseline.std(ddof=1) + eps if std else 1.0)


def episode_plus_step(groups: Sequence[Group], cfg: AlgoConfig) -> list[Credits]:
    """A(a_t) = A^E + ``cfg.step_weight`` · A^S(a_t) for the turns of every member of every group.

    A^E is the episode's reward relative to those of the group (``cfg.base``, ``cfg.episode_std``), A^S the turn's step
    reward relative to all step rewards of the group (``cfg.step_std``), or with ``cfg.step_baseline=first`` to those of
    first turns. With ``cfg.step_merged`` there is one reward a turn instead, R_i + step_weight · r_it, relative to all
    of them. With ``cfg.step_level=token`` all of this is done for sampled tokens in place of turns.

    Returns, per member, float64[turns]; at token level float64[n] for each row.
    """
    return [_group(group, cfg) for group in groups]


def _group(group: Group, cfg: AlgoConfig) -> Credits:
    scored, rewards = members(group), rewards_of(group)
    if not scored:
        return []
    by_token = cfg.step_level == "token"
    # Units are turns, or tokens in the order of the rows; `turns` says to which turn each belongs.
    turns = [_token_turns(t) if by_token else np.arange(len(t.turns)) for t in scored]
    steps = [_token_rewards(t) if by_token else step_rewards(t) for t in scored]
    outcome = [np.full(len(s), r) for s, r in zip(steps, rewards, strict=True)]
    for trajectory, own, reward, total in zip(scored, turns, steps, outcome, strict=True):
        invalid = np.array([turn.outcome is Outcome.INVALID for turn in trajectory.turns], dtype=bool)
        total -= cfg.episode_invalid_penalty * invalid[own]
        last = np.append(own[1:] != own[:-1], True)[: len(own)]
        reward -= cfg.step_invalid_penalty * (invalid[own] & last)

    def relate(values: Sequence[np.ndarray], baseline: np.ndarray, std: bool) -> list[np.ndarray]:
        found = relative(np.concatenate(values), baseline, cfg.base, std, cfg.std_eps)
        return np.split(found, np.cumsum([len(v) for v in values])[:-1])

    if cfg.step_merged:
        merged = [total + cfg.step_weight * step for total, step in zip(outcome, steps, strict=True)]
        advantages = relate(merged, _baseline(merged, turns, cfg), cfg.episode_std)
    else:
        episode = relate(outcome, rewards, cfg.episode_std)
        step = relate(steps, _baseline(steps, turns, cfg), cfg.step_std)
        advantages = [e + cfg.step_weight * s for e, s in zip(episode, step, strict=True)]
    if not by_token:
        return list(advantages)
    sizes = [[int(row.sampled.sum()) for row in t.rows] for t in scored]
    return [np.split(a, np.cumsum(own)[:-1]) for a, own in zip(advantages, sizes, strict=True)]


def _baseline(values: Sequence[np.ndarray], turns: Sequence[np.ndarray], cfg: AlgoConfig) -> np.ndarray:
    """The rewards that others are relative to: all of them, or those of first turns only."""
    if cfg.step_baseline == "first":
        values = [v[own == 0] for v, own in zip(values, turns, strict=True)]
    return np.concatenate(values)


def _token_turns(trajectory: Trajectory) -> np.ndarray:
    return np.concatenate([row.turn[row.sampled] for row in trajectory.rows]).astype(np.int64)


def _token_rewards(trajectory: Trajectory) -> np.ndarray:
    """float64: the weighted sum of the components that reward tokens, for all sampled tokens of all rows."""
    total = np.zeros(sum(int(row.sampled.sum()) for row in trajectory.rows))
    for component in trajectory.reward.components:
        if component.per_token is not None:
            total += component.weight * np.concatenate(component.per_token)
    return total
