"""Rewards of single steps."""

from __future__ import annotations

import numpy as np

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
