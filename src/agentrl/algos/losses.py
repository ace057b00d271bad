"""Policy losses: per-token objectives on annotated tokens, and the weights that aggregate them.

Everything is 1-D over the trained tokens of whole sequences of one micro-batch, and computed in fp32. The loss is
``sum_t weight_t * loss_t`` with weights from counts over the *whole* optimiser batch, so how the batch is cut into
micro-batches changes neither the loss nor its gradient. l, l_old: log-probabilities under the current weights and
under the weights at the start of the update; r = exp(l - l_old); A: advantage.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from agentrl.algos import AGGREGATIONS, KL_KINDS, LOSSES, choose
from agentrl.config.schema import AlgoConfig
from agentrl.errors import UserError

LOG_RATIO_MAX = 20.0  # exp(±20) is as good as infinity and 0, and stays finite in fp32
TAIL = 2.0  # a ratio outside [1/2, 2] is counted as a tail


def aggregation_weights(lengths: Tensor, mode: str, constant: float | None = None) -> Tensor:
    """Weight of every trained token of each sequence, so that ``loss = sum_t weight_t * loss_t``.

    lengths: integer[S], trained tokens of all S sequences of the optimiser batch (not of one micro-batch). Returns
    fp32[S]. Sequences without trained tokens get 0 and do not count in S. With T = sum of lengths:

    - ``token_mean``: 1 / T (DAPO, arXiv 2503.14476 eq. 8)
    - ``seq_mean_token_mean``: 1 / (S * length) (GRPO, arXiv 2402.03300 eq. 3)
    - ``seq_mean_token_sum``: 1 / S
    - ``constant``: 1 / (S * constant) (Dr. GRPO, arXiv 2503.20783); UserError without a positive constant
    """
    choose("algo.aggregation", mode, AGGREGATIONS)
    n = lengths.to(torch.float64)
    some = n > 0
    sequences = some.sum().clamp(min=1)
    if mode == "token_mean":
        weights = some / n.sum().clamp(min=1)
    elif mode == "seq_mean_token_mean":
        weights = some / (sequences * n.clamp(min=1))
    elif mode == "seq_mean_token_sum":
        weights = some / sequences
    else:
        if constant is None or constant <= 0:
            raise UserError(f"algo.aggregation_constant={constant}: algo.aggregation=constant needs a positive number")
        weights = some / (sequences * constant)
    return weights.to(torch.float32)


def kl(logp: Tensor, ref_logp: Tensor, kind: str) -> Tensor:
    """Per-token estimate of KL(policy || reference) from tokens of the policy; fp32, differentiable in ``logp``.

    With d = logp - ref_logp: k1 = d, k2 = d² / 2, k3 = exp(-d) + d - 1 (Schulman, "Approximating KL divergence",
    2020). d is clamped to ±20 and k3 to at most 10, as in verl, so one outlier cannot own the gradient. As a loss on
    on-policy tokens, k1 has zero expected gradient, k2 the gradient of the KL, and k3 that of KL(reference || policy).
    """
    choose("algo.kl_estimator", kind, KL_KINDS)
    d = (logp.float() - ref_logp.float()).clamp(-LOG_RATIO_MAX, LOG_RATIO_MAX)
    if kind == "k1":
        return d
    if kind == "k2":
        return d.square() / 2
    return (torch.exp(-d) + d - 1).clamp(max=10.0)


def clip_objective(ratio: Tensor, advantage: Tensor, low: float, high: float, dual: float | None = None) -> Tensor:
    """min(r A, clip(r, 1 - low, 1 + high) A): PPO (arXiv 1707.06347 eq. 7), asymmetric as in DAPO (2503.14476 eq. 8).

    With ``dual`` = c > 1, negative advantages give max(that, c A): dual-clip PPO (arXiv 1912.09729 eq. 5).
    """
    objective = torch.minimum(ratio * advantage, ratio.clamp(1 - low, 1 + high) * advantage)
    if dual is not None:
        objective = torch.where(advantage < 0, torch.maximum(objective, dual * advantage), objective)
    return objective


def cispo_objective(logp: Tensor, ratio: Tensor, advantage: Tensor, low: float, high: float) -> Tensor:
    """sg(clip(r, 1 - low, 1 + high)) A l: CISPO (arXiv 2506.13585 eq. 4). Every token keeps a gradient."""
    return ratio.detach().clamp(1 - low, 1 + high) * advantage * logp


def sequence_log_ratio(log_ratio: Tensor, seq: Tensor) -> Tensor:
    """GSPO's log s: the mean of the log ratio over the tokens of each sequence, given back at every token [N]."""
    size = int(seq.max()) + 1 if seq.numel() else 0
    total = torch.zeros(size, dtype=log_ratio.dtype, device=log_ratio.device).index_add(0, seq, log_ratio)
    count = torch.bincount(seq, minlength=size).clamp(min=1)
    return (total / count)[seq]


def importance_weight(old_logp: Tensor, engine_logp: Tensor | None, cap: float | None) -> tuple[Tensor, Tensor]:
    """Truncated importance weight min(exp(l_old - l_engine), cap), fp32[N], detached; and where it applies, bool[N].

    Corrects for an engine whose distribution differs from the trainer's (kernels, precision, staleness). The weight
    is 1 where ``engine_logp`` is not finite, and everywhere without ``engine_logp`` or ``cap``.
    Source: Yao et al., "Your efficient RL framework secretly brings you off-policy RL training" (2025), TIS.
    """
    ones = torch.ones_like(old_logp, dtype=torch.float32)
    if engine_logp is None:
        return ones, torch.zeros_like(ones, dtype=torch.bool)
    known = torch.isfinite(engine_logp)
    if cap is None:
        return ones, known
    gap = (old_logp.detach().float() - engine_logp.float()).clamp(-LOG_RATIO_MAX, LOG_RATIO_MAX)
    return torch.where(known, gap.exp().clamp(max=cap), ones).detach(), known


def policy_loss(
    logp: Tensor,
    old_logp: Tensor,
    advantage: Tensor,
    weight: Tensor,
    seq: Tensor,
    cfg: AlgoConfig,
    engine_logp: Tensor | None = None,
    ref_logp: Tensor | None = None,
) -> tuple[Tensor, dict[str, Tensor]]:
    """The loss of one micro-batch, to be minimised, and its statistics as weighted sums.

    All tensors are [N] over the trained tokens of whole sequences; ``seq`` int64 numbers the sequences inside the
    micro-batch; ``weight`` comes from ``aggregation_weights`` over the whole batch. ``logp`` carries the gradient;
    ``old_logp`` may be ``logp.detach()`` for an on-policy first update (ratio exactly 1, right gradient).
    ``engine_logp``: log-probabilities at sampling time, not finite where unknown. ``ref_logp`` is needed when
    ``kl_coef`` is not 0. Returns an fp32 scalar and detached scalars: add them up over micro-batches and
    give the sum to ``summarise``.
    """
    choose("algo.loss", cfg.loss, LOSSES)
    logp, old_logp = logp.float(), old_logp.detach().float()
    advantage, weight = advantage.detach().float(), weight.detach().float()
    correction, known = importance_weight(old_logp, engine_logp, cfg.importance_cap)
    if cfg.loss == "gspo":
        # Value: the sequence's ratio. Gradient: through each token's own log-probability (GSPO-token, arXiv 2507.18071
        # eq. 14), which for equal advantages in a sequence is the gradient of the sequence objective.
        mean = sequence_log_ratio(logp - old_logp, seq).detach()
        log_ratio = (logp - logp.detach() + mean).clamp(-LOG_RATIO_MAX, 10.0)
    else:
        log_ratio = (logp - old_logp).clamp(-LOG_RATIO_MAX, LOG_RATIO_MAX)
    ratio = log_ratio.exp()
    if cfg.loss == "cispo":
        objective = cispo_objective(logp, ratio, advantage, cfg.clip_low, cfg.clip_high)
    else:
        objective = clip_objective(ratio, advantage, cfg.clip_low, cfg.clip_high, cfg.dual_clip)
    policy = -(weight * correction * objective).sum()
    loss = policy
    sums = {"loss/policy": policy.detach()}
    if cfg.kl_coef != 0:
        if ref_logp is None:
            raise ValueError("kl_coef is not 0, so policy_loss needs ref_logp")
        penalty = (weight * kl(logp, ref_logp.detach(), cfg.kl_estimator)).sum()
        loss = loss + cfg.kl_coef * penalty
        sums["loss/kl"] = cfg.kl_coef * penalty.detach()
    sums.update(_statistics(logp.detach(), old_logp, ratio.detach(), advantage, weight, cfg))
    if engine_logp is not None:
        sums.update(_engine_statistics(old_logp, engine_logp.detach().float(), correction, known, weight, cfg))
    if ref_logp is not None:
        sums["policy/ref_kl"] = (weight * kl(logp.detach(), ref_logp.detach(), "k3")).sum()
    return loss, sums


def _statistics(
    logp: Tensor, old_logp: Tensor, ratio: Tensor, advantage: Tensor, weight: Tensor, cfg: AlgoConfig
) -> dict[str, Tensor]:
    """Weighted sums about the step from the old to the new weights. Clipped: the clip decides the value."""
    d = (logp - old_logp).clamp(-LOG_RATIO_MAX, LOG_RATIO_MAX)
    below, above = ratio < 1 - cfg.clip_low, ratio > 1 + cfg.clip_high
    if cfg.loss != "cispo":  # there the sign of the advantage does not matter
        below, above = below & (advantage < 0), above & (advantage > 0)
    return {
        "_weight": weight.sum(),
        "policy/clip_low": (weight * below).sum(),
        "policy/clip_high": (weight * above).sum(),
        "policy/ratio_mean": (weight * ratio).sum(),
        "policy/ratio_tail": (weight * ((ratio > TAIL) | (ratio < 1 / TAIL))).sum(),
        "policy/approx_kl": (weight * (d.exp() - 1 - d)).sum(),
    }


def _engine_statistics(
    old_logp: Tensor, engine_logp: Tensor, correction: Tensor, known: Tensor, weight: Tensor, cfg: AlgoConfig
) -> dict[str, Tensor]:
    """Weighted sums about engine and trainer, over tokens whose engine log-probability is known."""
    w = weight * known
    d = torch.where(known, old_logp - engine_logp, torch.zeros_like(old_logp)).clamp(-LOG_RATIO_MAX, LOG_RATIO_MAX)
    truncated = d.exp() > cfg.importance_cap if cfg.importance_cap is not None else torch.zeros_like(known)
    return {
        "_engine_weight": w.sum(),
        "policy/engine_kl": (w * (d.exp() - 1 - d)).sum(),
        "policy/importance_mean": (w * correction).sum(),
        "policy/importance_truncated": (w * truncated).sum(),
    }


_OVER_ENGINE = ("policy/engine_kl", "policy/importance_mean", "policy/importance_truncated")


def summarise(sums: Mapping[str, Tensor | float]) -> dict[str, float]:
    """Batch metrics from ``policy_loss`` statistics added up over all micro-batches of one optimiser step.

    ``loss/…`` are sums already. ``policy/…`` are divided by the total weight of the tokens they are about, which is 1
    for the two mean aggregations and not for the others. Names that start with an underscore are left out.
    """
    values = {name: float(value) for name, value in sums.items()}
    weight, engine = values.get("_weight", 0.0), values.get("_engine_weight", 0.0)
    result = {}
    for name, value in values.items():
        if name.startswith("loss/"):
            result[name] = value + 0.0  # a loss of nothing is 0, not -0
        elif not name.startswith("_"):
            total = engine if name in _OVER_ENGINE else weight
            if total > 0:
                result[name] = value / total
    return result
