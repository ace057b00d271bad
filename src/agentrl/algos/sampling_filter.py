"""DAPO's dynamic sampling: which groups are worth training on (arXiv 2503.14476 section 3.2)."""

from __future__ import annotations

from agentrl.algos.baselines import equal, rewards_of
from agentrl.algos.overlong import overlong_penalty
from agentrl.rollout.trajectory import Group

__all__ = ["has_spread", "overlong_penalty"]


def has_spread(group: Group) -> bool:
    """Whether the group teaches something: two or more scored members whose rewards differ by more than noise."""
    return not equal(rewards_of(group))
