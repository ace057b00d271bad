"""DAPO's overlong shaping: a soft penalty before the length limit (arXiv 2503.14476 section 3.4, eq. 13)."""

from __future__ import annotations

from collections.abc import Sequence

from agentrl.config.schema import AlgoConfig
from agentrl.rollout.trajectory import Group, RewardComponent, StopReason, Trajectory

NAME = "overlong"


def overlong_penalty(length: int, limit: int, buffer: int, factor: float = 1.0) -> float:
    """0 up to limit - buffer tokens, then linear down to -factor at the limit, and -factor beyond.

    ``buffer`` 0 is off: always 0.
    """
    if buffer <= 0:
        return 0.0
    over = (length - (limit - buffer)) / buffer
    return -factor * min(over, 1.0) if over > 0 else 0.0


def sampled_tokens(trajectory: Trajectory) -> int:
    """How many tokens the policy sampled in the whole trajectory."""
    return sum(int(row.sampled.sum()) for row in trajectory.rows)


def apply(groups: Sequence[Group], cfg: AlgoConfig) -> dict[str, float]:
    """Add the penalty to every reward record as its own component ``overlong`` (tier "shaping", weight 1).

    The trainer calls it after ``Rewards.score`` and before ``advantages.annotate``; ``success`` is not touched.
    Errored trajectories are left alone. Calling it again replaces the component. Returns ``reward/overlong/mean`` and
    ``reward/overlong/share`` (of trajectories with a penalty); nothing when off.
    """
    if cfg.overlong_buffer <= 0:
        return {}
    values = []
    for trajectory in (t for g in groups for t in g.trajectories if t.stop_reason is not StopReason.ERROR):
        length = sampled_tokens(trajectory)
        value = overlong_penalty(length, cfg.overlong_limit, cfg.overlong_buffer, cfg.overlong_factor)
        record = trajectory.reward
        record.components = [c for c in record.components if c.name != NAME]
        # A record in which nothing was scored stays unscored: a penalty alone would make it a reward.
        if record.components:
            record.components.append(RewardComponent(NAME, "shaping", value))
            values.append(value)
    if not values:
        return {}
    return {
        "reward/overlong/mean": sum(values) / len(values),
        "reward/overlong/share": sum(v < 0 for v in values) / len(values),
    }
