"""Advantage estimators, policy losses and DAPO's parts. Formulas and sources: docs/algorithms.md."""

from __future__ import annotations

from agentrl.config.schema import AlgoConfig
from agentrl.errors import UserError, nearest

ESTIMATORS = ("grpo", "dr_grpo", "rloo", "reinforce_pp", "reinforce_pp_baseline")
LOSSES = ("clip", "gspo", "cispo")
AGGREGATIONS = ("token_mean", "seq_mean_token_mean", "seq_mean_token_sum", "constant")
KL_KINDS = ("k1", "k2", "k3")


def choose(key: str, value: str, choices: tuple[str, ...]) -> str:
    """``value`` if it is one of ``choices``, else UserError naming the key and the nearest valid choice."""
    if value not in choices:
        raise UserError(f"{key}={value} is unknown: {nearest(value, choices)}")
    return value


def check(cfg: AlgoConfig) -> None:
    """Raise UserError for settings that cannot work together or make no sense. Imports no torch."""
    choose("algo.estimator", cfg.estimator, ESTIMATORS)
    choose("algo.loss", cfg.loss, LOSSES)
    choose("algo.aggregation", cfg.aggregation, AGGREGATIONS)
    choose("algo.kl_estimator", cfg.kl_estimator, KL_KINDS)
    if cfg.group_size < 2 and cfg.estimator != "reinforce_pp":
        raise UserError(
            f"algo.group_size={cfg.group_size}: algo.estimator={cfg.estimator} compares the members of a group, "
            "so it needs at least 2 (reinforce_pp works with 1)"
        )
    if cfg.aggregation == "constant" and not (cfg.aggregation_constant and cfg.aggregation_constant > 0):
        raise UserError(
            f"algo.aggregation_constant={cfg.aggregation_constant}: algo.aggregation=constant needs a positive "
            "number of tokens here, e.g. the most tokens a trajectory may sample"
        )
    if cfg.clip_low < 0 or cfg.clip_high < 0:
        raise UserError(f"algo.clip_low={cfg.clip_low} and algo.clip_high={cfg.clip_high} must not be negative")
    if cfg.dual_clip is not None and cfg.dual_clip <= 1:
        raise UserError(f"algo.dual_clip={cfg.dual_clip} must be greater than 1 (3 and 10 are usual), or null")
    if cfg.importance_cap is not None and cfg.importance_cap <= 0:
        raise UserError(
            f"algo.importance_cap={cfg.importance_cap} must be positive (2 is usual), or null for no correction"
        )
    if cfg.overlong_buffer > 0 and cfg.overlong_limit <= cfg.overlong_buffer:
        raise UserError(
            f"algo.overlong_limit={cfg.overlong_limit} must be greater than algo.overlong_buffer="
            f"{cfg.overlong_buffer}: both count sampled tokens, and the penalty grows over the buffer up to the limit"
        )
