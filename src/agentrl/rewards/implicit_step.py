"""Step rewards of the implicit process reward model: from log-ratios of tokens to one reward a turn, and how they look.

They stand in the reward record as a component that rewards steps: the episode's total is that of the other components,
and an estimator that reads steps (``algo=istar``) adds them. Formula and options: docs/istar.md.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from agentrl.config.schema import PrmConfig
from agentrl.rewards.potential import progress
from agentrl.rollout.trajectory import RewardComponent, Trajectory

NAME = "implicit_step"


def record(
    trajectories: Sequence[Trajectory], ratios: Sequence[Sequence[np.ndarray]], cfg: PrmConfig, seconds: float = 0.0
) -> dict[str, float]:
    """Write component ``implicit_step`` into the reward record of every trajectory; metrics of what was written.

    ``ratios``: for each trajectory, float64[n] for each of its rows, log π_φ − log π_ref of the n sampled tokens.
    ``per_token`` is β times that; ``per_turn`` its sum over the tokens of each turn, 0 for a turn without any;
    ``value`` the sum over turns. With ``cfg.normalise=batch_max`` all are divided by the largest absolute step reward
    of the batch. A trajectory with a step reward that is not a finite number is *not scored*, and leaves its group.
    """
    tokens = [[cfg.beta * ratio for ratio in own] for own in ratios]
    turns = [over_turns(t, own) for t, own in zip(trajectories, tokens, strict=True)]
    scale = 1.0
    if cfg.normalise == "batch_max":
        scale = max((float(np.abs(r).max()) for r in turns if len(r) and np.isfinite(r).all()), default=0.0) or 1.0
    for trajectory, by_turn, by_token in zip(trajectories, turns, tokens, strict=True):
        component = RewardComponent(NAME, "implicit_step", None, seconds=seconds)
        if np.isfinite(by_turn).all():
            component.per_turn = (by_turn / scale).tolist()
            component.per_token = [values / scale for values in by_token]
            component.value = float((by_turn / scale).sum())
        else:
            component.error = "the process reward model gave a number that is not finite"
        kept = [c for c in trajectory.reward.components if c.name != NAME]
        trajectory.reward.components = [*kept, component]
    return watch(trajectories)


def over_turns(trajectory: Trajectory, tokens: Sequence[np.ndarray]) -> np.ndarray:
    """float64[turns]: sums over the sampled tokens of each turn, from float64[n] for each row."""
    total = np.zeros(len(trajectory.turns))
    for row, values in zip(trajectory.rows, tokens, strict=True):
        np.add.at(total, row.turn[row.sampled], values)
    return total


def watch(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """What the step rewards look like, and what they agree with.

    ``prm/step_mean``, ``prm/step_std``, ``prm/step_max`` (of the absolute value) over turns. Pearson's r over all
    turns, left out where one side does not vary: ``prm/length_correlation`` with the turn's number of sampled tokens (a
    sum over tokens can end up counting them), ``prm/potential_correlation`` with the progress that the turn made by
    ``Environment.potential``, where the environment has one. ``prm/not_scored``: trajectories without step rewards.
    """
    rewards: list[np.ndarray] = []
    lengths: list[np.ndarray] = []
    moved: list[np.ndarray] = []
    with_potential: list[np.ndarray] = []
    missing = 0
    for trajectory in trajectories:
        own = next((c.per_turn for c in trajectory.reward.components if c.name == NAME), None)
        if own is None:
            missing += 1
            continue
        values = np.asarray(own, dtype=np.float64)
        rewards.append(values)
        lengths.append(over_turns(trajectory, [np.ones(int(row.sampled.sum())) for row in trajectory.rows]))
        made = progress(trajectory)
        if made is not None:
            with_potential.append(values)
            moved.append(np.asarray(made, dtype=np.float64))
    every = np.concatenate(rewards) if rewards else np.zeros(0)
    metrics = {"prm/not_scored": float(missing)}
    if len(every):
        metrics["prm/step_mean"] = float(every.mean())
        metrics["prm/step_std"] = float(every.std(ddof=1)) if len(every) > 1 else 0.0
        metrics["prm/step_max"] = float(np.abs(every).max())
        pairs = {"length": (every, np.concatenate(lengths))}
        if moved:
            pairs["potential"] = (np.concatenate(with_potential), np.concatenate(moved))
        for name, (a, b) in pairs.items():
            r = correlation(a, b)
            if r is not None:
                metrics[f"prm/{name}_correlation"] = r
    return metrics


def correlation(a: np.ndarray, b: np.ndarray) -> float | None:
    """Pearson's r of two float64[N]; None when one of them does not vary."""
    if len(a) < 2 or np.ptp(a) == 0 or np.ptp(b) == 0:
        return None
    return float(np.corrcoef(a, b)[0, 1])
