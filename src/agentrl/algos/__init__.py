"""Advantage estimators, policy losses and DAPO's parts. Formulas and sources: docs/algorithms.md."""

from __future__ import annotations

from agentrl.errors import UserError, nearest

ESTIMATORS = ("grpo", "dr_grpo", "rloo", "reinforce_pp", "reinforce_pp_baseline", "gigpo", "episode_plus_step")
LOSSES = ("clip", "gspo", "cispo")
AGGREGATIONS = ("token_mean", "seq_mean_token_mean", "seq_mean_token_sum", "constant")
KL_KINDS = ("k1", "k2", "k3")


def choose(key: str, value: str, choices: tuple[str, ...]) -> str:
    """``value`` if it is one of ``choices``, else UserError naming the key and the nearest valid choice."""
    if value not in choices:
        raise UserError(f"{key}={value} is unknown: {nearest(value, choices)}")
    return value
