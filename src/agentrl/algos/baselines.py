"""What estimators are made of: baselines and scales over the rewards of a group or of a batch, in float64.

R_i are the rewards of the N members of a group that were scored.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from agentrl.rollout.trajectory import Group, Trajectory

# Rewards that went through fp32 arithmetic in different orders differ by a few units in the last place (2^-23).
EQUAL_WITHIN = 4 * 2.0**-23


def equal(rewards: np.ndarray) -> bool:
    """Whether rewards float64[N] are the same number up to fp32 noise: max - min <= 4 ulp of max(1, max |R|).

    Every estimator asks this first: dividing by the spread of equal rewards would blow noise up to advantages
    of order one. Fewer than two rewards are equal by definition.
    """
    if len(rewards) < 2:
        return True
    return float(rewards.max() - rewards.min()) <= EQUAL_WITHIN * max(1.0, float(np.abs(rewards).max()))


def grpo(rewards: np.ndarray, eps: float) -> np.ndarray:
    """(R_i - mean) / (std + eps), sample standard deviation (n - 1): DeepSeekMath (arXiv 2402.03300) section 4.1.2.

    rewards float64[N] → float64[N]. Equal rewards, and a group of one, give exactly 0.
    """
    if equal(rewards):
        return np.zeros_like(rewards)
    return (rewards - rewards.mean()) / (rewards.std(ddof=1) + eps)


def dr_grpo(rewards: np.ndarray) -> np.ndarray:
    """R_i - mean: Dr. GRPO (arXiv 2503.20783) section 3.2. Equal rewards, and a group of one, give exactly 0.

    The method is this estimator together with ``algo.aggregation=constant``.
    """
    if equal(rewards):
        return np.zeros_like(rewards)
    return rewards - rewards.mean()


def rloo(rewards: np.ndarray) -> np.ndarray:
    """R_i - mean of the others = N / (N - 1) * (R_i - mean): Ahmadian et al. (arXiv 2402.14740) section 2.2.

    Equal rewards, and a group of one, give exactly 0. It is not divided by the spread of the others, which is 0 for
    the one member that differs.
    """
    if equal(rewards):
        return np.zeros_like(rewards)
    n = len(rewards)
    return n / (n - 1) * (rewards - rewards.mean())


def whiten(values: np.ndarray, tokens: np.ndarray, eps: float) -> np.ndarray:
    """(x - mean) / (std + eps) over all tokens of the batch, where trajectory i has tokens[i] tokens of values[i].

    values float64[N], tokens int64[N] → float64[N]. The standard deviation is the sample one over tokens. Equal
    values give exactly 0. This is REINFORCE++'s global normalisation (arXiv 2501.03262).
    """
    used = values[tokens > 0]
    if equal(used):
        return np.zeros_like(values)
    n = tokens.sum()
    mean = (tokens * values).sum() / n
    variance = (tokens * (values - mean) ** 2).sum() / (n - 1)
    return (values - mean) / (math.sqrt(variance) + eps)


def reinforce_pp(rewards: Sequence[np.ndarray], tokens: Sequence[np.ndarray], eps: float) -> list[np.ndarray]:
    """REINFORCE++ (arXiv 2501.03262): token return-to-go, gamma = 1, whitened over the batch's trained tokens.

    The only reward is the outcome after the last token, so the return-to-go of every token is R_i. No group is
    needed. rewards and tokens: one array[N] per group; returns the same shapes.
    """
    whitened = whiten(np.concatenate(rewards), np.concatenate(tokens), eps)
    return np.split(whitened, np.cumsum([len(r) for r in rewards])[:-1])


def reinforce_pp_baseline(rewards: Sequence[np.ndarray], tokens: Sequence[np.ndarray], eps: float) -> list[np.ndarray]:
    """REINFORCE++-baseline (arXiv 2501.03262): R_i - group mean, then whitened over the batch's trained tokens.

    Groups of equal rewards count in the batch's mean and spread, but their own advantage stays exactly 0: the token-
    weighted batch mean is not 0 when lengths differ, and must not push on a group that has nothing to tell.
    """
    whitened = reinforce_pp([dr_grpo(r) for r in rewards], tokens, eps)
    return [np.zeros_like(r) if equal(r) else a for r, a in zip(rewards, whitened, strict=True)]


def members(group: Group) -> list[Trajectory]:
    """The members that count for the group's statistics: no infrastructure error, and a finite reward."""
    return [t for t in group.scored if math.isfinite(t.reward.total)]  # type: ignore[arg-type]


def rewards_of(group: Group) -> np.ndarray:
    """float64[N]: total rewards of ``members(group)``, in order."""
    return np.array([t.reward.total for t in members(group)], dtype=np.float64)
