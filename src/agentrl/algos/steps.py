"""Rewards of single steps, and the advantage made of an episode's and its steps' rewards."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from agentrl.algos.baselines import grpo
from agentrl.rollout.trajectory import Trajectory


def step_rewards(trajectory: Trajectory) -> np.ndarray:
    """float64[turns]: the weighted sum of the components that reward steps; zeros where there is none."""
    total = np.zeros(len(trajectory.turns))
    for component in trajectory.reward.components:
        if component.per_turn is not None:
            total += component.weight * np.asarray(component.per_turn, dtype=np.float64)
    return total


def discounted_returns(rewards: np.ndarray, discount: float) -> np.ndarray:
    """R_t = sum over k of discount^k * r_(t + k); float64[T] → float64[T]."""
    returns = np.array(rewards, dtype=np.float64)
    for t in range(len(returns) - 2, -1, -1):
        returns[t] += discount * returns[t + 1]
    return returns


def episode_plus_step(episode: np.ndarray, steps: Sequence[np.ndarray], weight: float, eps: float) -> list[np.ndarray]:
    """A_it = A^E_i + weight * (r_it - mean) / (std + eps), over a group's steps: iStar (arXiv 2509.19199) section 3.

    episode float64[N]: the episodes' advantages; steps: N arrays float64[T_i] of step rewards, whose mean and sample
    standard deviation are those of all sum(T_i) steps. Returns N arrays float64[T_i]. Equal step rewards, and a single
    step, add exactly 0.
    """
    if not len(steps):
        return []
    relative = grpo(np.concatenate(steps), eps)
    parts = np.split(relative, np.cumsum([len(s) for s in steps])[:-1])
    return [e + weight * part for e, part in zip(episode, parts, strict=True)]
