"""GiGPO (arXiv 2505.10978): the episode's advantage, plus that of each step among the steps taken in the same state."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from agentrl.algos.baselines import dr_grpo, equal, grpo, members, rewards_of
from agentrl.algos.steps import discounted_returns, step_rewards
from agentrl.config.schema import AlgoConfig
from agentrl.rollout.trajectory import Group, Trajectory


def gigpo(groups: Sequence[Group], cfg: AlgoConfig) -> list[list[np.ndarray]]:
    """A_it = A^E_i + ``cfg.step_weight`` · A^S_it for the turns of every member of every group: eq. 8.

    A^E is the episode's reward minus the mean of the group's, A^S the turn's discounted return minus the mean return of
    its cluster: all turns of the group with the same anchor. Both are divided by their sample standard deviation
    + std_eps with ``cfg.episode_std`` and ``cfg.step_std`` (the paper's F = std; else F = 1). A cluster of one, and
    equal returns, give exactly 0: where no anchor repeats, this is ``grpo`` (F = std) or ``dr_grpo`` (F = 1).

    Returns, per member, float64[turns].
    """
    return [_group(group, cfg) for group in groups]


def _group(group: Group, cfg: AlgoConfig) -> list[np.ndarray]:
    scored, rewards = members(group), rewards_of(group)
    turns = np.array([len(t.turns) for t in scored], dtype=np.int64)
    episode = episode_advantages(rewards, turns if cfg.episode_baseline == "row" else None, cfg)
    found = returns(scored, rewards, cfg.discount)
    step = step_advantages([anchors(t, cfg.anchor) for t in scored], found, cfg)
    return [e + cfg.step_weight * s for e, s in zip(episode, step, strict=True)]


def episode_advantages(rewards: np.ndarray, rows: np.ndarray | None, cfg: AlgoConfig) -> np.ndarray:
    """float64[N]: rewards relative to the group's mean, over trajectories or, with ``rows``, over their rows.

    ``rows`` int64[N]: as verl-agent does by default, a trajectory counts once for each of its steps, so that long
    ones, which mostly fail, weigh more.
    """
    if rows is None:
        return grpo(rewards, cfg.std_eps) if cfg.episode_std else dr_grpo(rewards)
    repeated = np.repeat(rewards, rows)
    if equal(repeated):
        return np.zeros_like(rewards)
    return (rewards - repeated.mean()) / (repeated.std(ddof=1) + cfg.std_eps if cfg.episode_std else 1.0)


def returns(trajectories: Sequence[Trajectory], rewards: np.ndarray, discount: float) -> list[np.ndarray]:
    """Per trajectory float64[turns]: discounted returns of its steps' rewards and, at its last turn, its episode's."""
    found = []
    for trajectory, reward in zip(trajectories, rewards, strict=True):
        steps = step_rewards(trajectory)
        steps[-1:] += reward
        found.append(discounted_returns(steps, discount))
    return found


def anchors(trajectory: Trajectory, anchor: str) -> list[str | None]:
    """What each turn's action was taken in: the environment's full state, or the text that the policy read last.

    None before the first action with ``observation``: what was read there is the task, the same for the whole group.
    """
    if anchor == "state":
        return [turn.state_key for turn in trajectory.turns]
    return [None, *(turn.observation for turn in trajectory.turns)][: len(trajectory.turns)]


def step_advantages(
    keys: Sequence[Sequence[str | None]], values: Sequence[np.ndarray], cfg: AlgoConfig
) -> list[np.ndarray]:
    """Per trajectory float64[turns]: returns relative to those of all turns of the group with the same key."""
    clusters: dict[str | None, list[int]] = {}
    for index, key in enumerate(key for own in keys for key in own):
        clusters.setdefault(key, []).append(index)
    flat = np.concatenate([np.zeros(0), *values])
    advantages = np.zeros_like(flat)
    for cluster in clusters.values():
        advantages[cluster] = grpo(flat[cluster], cfg.std_eps) if cfg.step_std else dr_grpo(flat[cluster])
    return np.split(advantages, np.cumsum([len(v) for v in values])[:-1]) if len(values) else []


def repeated(groups: Sequence[Group], anchor: str) -> float:
    """Share of turns (of scored members) whose anchor another turn of the group has too."""
    turns = shared = 0
    for group in groups:
        counts = Counter(key for t in members(group) for key in anchors(t, anchor))
        turns += sum(counts.values())
        shared += sum(n for n in counts.values() if n > 1)
    return shared / turns if turns else 0.0
