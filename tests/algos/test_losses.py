"""Losses against golden numbers, against a naive reference under autograd, and under every cut into micro-batches."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from agentrl.algos import AGGREGATIONS, KL_KINDS, LOSSES
from agentrl.algos.losses import (
    aggregation_weights,
    importance_weight,
    kl,
    policy_loss,
    sequence_log_ratio,
    summarise,
)
from agentrl.config.schema import AlgoConfig
from agentrl.errors import UserError

torch.set_num_threads(1)


def make(lengths: list[int], seed: int = 0, spread: float = 0.5) -> dict[str, Tensor]:
    """Random tokens of sequences with these lengths; advantages are constant in a sequence, some are 0."""
    draw = torch.Generator().manual_seed(seed)
    n = sum(lengths)
    old = -torch.rand(n, generator=draw) * 3 - 0.05
    seq = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    per_sequence = torch.randn(len(lengths), generator=draw)
    per_sequence[torch.rand(len(lengths), generator=draw) < 0.15] = 0.0
    engine = old + 0.7 * torch.randn(n, generator=draw)
    engine[torch.rand(n, generator=draw) < 0.1] = math.nan
    return {
        "logp": old + spread * torch.randn(n, generator=draw),
        "old_logp": old,
        "advantage": per_sequence[seq],
        "engine_logp": engine,
        "ref_logp": old + 0.5 * torch.randn(n, generator=draw),
        "seq": seq,
    }


def naive_loss(data: dict[str, Tensor], lengths: list[int], cfg: AlgoConfig) -> Tensor:
    """Token by token and sequence by sequence, from the formulas alone, in float64."""
    start, sequences = 0, []
    for length in lengths:
        s = slice(start, start + length)
        start += length
        logp, old = data["logp"][s], data["old_logp"][s]
        losses = []
        sequence_ratio = torch.exp(sum(logp[t] - old[t] for t in range(length)) / length)
        for t in range(length):
            a = data["advantage"][s][t]
            low, high = 1 - cfg.clip_low, 1 + cfg.clip_high
            # GSPO for advantages that are equal in a sequence: the sequence objective itself, once per token.
            ratio = sequence_ratio if cfg.loss == "gspo" else torch.exp(logp[t] - old[t])
            if cfg.loss == "cispo":
                objective = min(max(ratio.item(), low), high) * a * logp[t]
            else:
                clipped = torch.clamp(ratio, low, high)
                objective = ratio * a if (ratio * a).item() <= (clipped * a).item() else clipped * a
                if cfg.dual_clip is not None and float(a) < 0 and objective.item() < float(cfg.dual_clip * a):
                    objective = cfg.dual_clip * a
            engine = float(data["engine_logp"][s][t])
            if cfg.importance_cap is not None and not math.isnan(engine):
                objective = objective * min(math.exp(float(old[t]) - engine), cfg.importance_cap)
            d = logp[t] - data["ref_logp"][s][t]
            penalty = {"k1": d, "k2": d * d / 2, "k3": torch.exp(-d) + d - 1}[cfg.kl_estimator]
            losses.append(-objective + cfg.kl_coef * penalty)
        sequences.append(losses)
    if cfg.aggregation == "token_mean":
        return sum(sum(x) for x in sequences) / sum(lengths)
    if cfg.aggregation == "seq_mean_token_mean":
        return sum(sum(x) / len(x) for x in sequences) / len(lengths)
    divisor = cfg.aggregation_constant if cfg.aggregation == "constant" else 1.0
    return sum(sum(x) / divisor for x in sequences) / len(lengths)


def whole(data: dict[str, Tensor], lengths: list[int], cfg: AlgoConfig, parts: list[int] | None = None):
    """Loss, gradient in logp and metrics; ``parts``: number of sequences in each micro-batch."""
    weights = aggregation_weights(torch.tensor(lengths), cfg.aggregation, cfg.aggregation_constant)
    logp = data["logp"].clone().requires_grad_(True)
    loss, sums, first = torch.zeros(()), {}, 0
    for count in parts or [len(lengths)]:
        inside = (data["seq"] >= first) & (data["seq"] < first + count)
        seq = data["seq"][inside]
        piece, stats = policy_loss(
            logp[inside],
            data["old_logp"][inside],
            data["advantage"][inside],
            weights[seq],
            seq - first,
            cfg,
            engine_logp=data["engine_logp"][inside],
            ref_logp=data["ref_logp"][inside],
        )
        piece.backward()
        loss = loss + piece.detach()
        sums = {k: sums.get(k, 0.0) + v for k, v in stats.items()}
        first += count
    return loss, logp.grad, summarise(sums)


@pytest.mark.parametrize(
    ("mode", "value"),
    [("token_mean", 1.75), ("seq_mean_token_mean", 1.5), ("seq_mean_token_sum", 7.0), ("constant", 0.7)],
)
def test_golden_aggregation(mode: str, value: float) -> None:
    lengths = torch.tensor([2, 6])
    weights = aggregation_weights(lengths, mode, 10.0)
    losses = torch.tensor([1.0] * 2 + [2.0] * 6)
    assert float((torch.repeat_interleave(weights, lengths) * losses).sum()) == pytest.approx(value)
    assert weights.dtype == torch.float32


@pytest.mark.parametrize("mode", AGGREGATIONS)
def test_sequences_without_trained_tokens_do_not_count(mode: str) -> None:
    weights = aggregation_weights(torch.tensor([2, 0, 6]), mode, 10.0)
    assert weights.tolist() == [
        aggregation_weights(torch.tensor([2, 6]), mode, 10.0)[0],
        0.0,
        aggregation_weights(torch.tensor([2, 6]), mode, 10.0)[1],
    ]
    assert aggregation_weights(torch.tensor([0, 0]), mode, 10.0).tolist() == [0.0, 0.0]


def test_aggregation_needs_a_known_mode_and_a_constant() -> None:
    with pytest.raises(UserError, match="did you mean 'token_mean'"):
        aggregation_weights(torch.tensor([1]), "token-mean")
    with pytest.raises(UserError, match="aggregation_constant"):
        aggregation_weights(torch.tensor([1]), "constant")


@pytest.mark.parametrize(
    ("d", "k1", "k2", "k3"), [(0.2, 0.2, 0.02, 0.0187), (-1.0, -1.0, 0.5, 0.7183), (0.0, 0.0, 0.0, 0.0)]
)
def test_golden_kl(d: float, k1: float, k2: float, k3: float) -> None:
    for kind, value in zip(KL_KINDS, (k1, k2, k3), strict=True):
        assert float(kl(torch.tensor([d - 2.0]), torch.tensor([-2.0]), kind)) == pytest.approx(value, abs=5e-5)


@pytest.mark.parametrize("kind", KL_KINDS)
def test_kl_estimates_the_kl(kind: str) -> None:
    """k1 and k3 are unbiased: their mean under the policy is the KL. k2 is close for close distributions."""
    policy, reference = torch.tensor([0.5, 0.3, 0.2]).log(), torch.tensor([0.45, 0.32, 0.23]).log()
    true = float((policy.exp() * (policy - reference)).sum())
    mean = float((policy.exp() * kl(policy, reference, kind)).sum())
    assert mean == pytest.approx(true, rel=0.1 if kind == "k2" else 1e-4)


def test_kl_stays_finite() -> None:
    far = torch.tensor([-500.0, 500.0], requires_grad=True)
    for kind in KL_KINDS:
        value = kl(far, torch.zeros(2), kind)
        (gradient,) = torch.autograd.grad(value.sum(), far)
        assert torch.isfinite(value).all() and torch.isfinite(gradient).all()
    assert kl(far, torch.zeros(2), "k3").max() <= 10


def test_golden_gspo() -> None:
    logp, old = torch.tensor([-1.0, -2.0, -0.5]), torch.tensor([-1.1, -1.8, -0.7])
    seq = torch.zeros(3, dtype=torch.long)
    assert sequence_log_ratio(logp - old, seq).exp().tolist() == pytest.approx([1.0339] * 3, abs=5e-5)
    assert (logp - old).exp().tolist() == pytest.approx([1.1052, 0.8187, 1.2214], abs=5e-5)
    third = torch.full((3,), 1 / 3)
    cfg = AlgoConfig(loss="gspo", clip_low=0.2, clip_high=0.2)
    loss, _ = policy_loss(logp, old, torch.ones(3), third, seq, cfg)
    assert float(loss) == pytest.approx(-1.0339, abs=5e-5)
    tight = AlgoConfig(loss="gspo", clip_low=3e-4, clip_high=4e-4)
    loss, stats = policy_loss(logp, old, torch.ones(3), third, seq, tight)
    assert float(loss) == pytest.approx(-1.0004, abs=1e-6)
    assert summarise(stats)["policy/clip_high"] == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("advantage", "ratio", "dual", "objective", "gradient"),
    [
        (1.0, 1.1, None, 1.1, 1.1),  # inside: r A, with gradient r A in the log-probability
        (1.0, 1.5, None, 1.28, 0.0),  # a good action that is likelier already: clipped above
        (1.0, 0.5, None, 0.5, 0.5),  # a good action that became unlikely: never clipped
        (-1.0, 0.5, None, -0.8, 0.0),  # a bad action that is unlikely already: clipped below
        (-1.0, 1.5, None, -1.5, -1.5),
        (-1.0, 5.0, None, -5.0, -5.0),
        (-1.0, 5.0, 3.0, -3.0, 0.0),  # dual clip bounds it
        (-1.0, 2.5, 3.0, -2.5, -2.5),
        (1.0, 5.0, 3.0, 1.28, 0.0),  # and leaves positive advantages alone
    ],
)
def test_clip_case_by_case(
    advantage: float, ratio: float, dual: float | None, objective: float, gradient: float
) -> None:
    logp = torch.tensor([math.log(ratio) - 1], requires_grad=True)
    cfg = AlgoConfig(clip_low=0.2, clip_high=0.28, dual_clip=dual)
    one, seq = torch.ones(1), torch.zeros(1, dtype=torch.long)
    loss, _ = policy_loss(logp, torch.tensor([-1.0]), torch.tensor([advantage]), one, seq, cfg)
    loss.backward()
    assert float(loss.detach()) == pytest.approx(-objective, abs=1e-5)
    assert float(logp.grad) == pytest.approx(-gradient, abs=1e-5)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@pytest.mark.parametrize("dual", [None, 3.0])
def test_loss_and_gradient_match_the_naive_reference(loss: str, aggregation: str, dual: float | None) -> None:
    for seed, kind in itertools.product(range(4), KL_KINDS):
        lengths = [3, 1, 5, 2]
        data = make(lengths, seed, spread=1.0)
        cfg = AlgoConfig(
            loss=loss,
            clip_high=0.28,
            dual_clip=dual,
            aggregation=aggregation,
            aggregation_constant=7.0,
            kl_coef=0.1,
            kl_estimator=kind,
            # Weights that differ inside a sequence make GSPO's token form another objective than its sequence form.
            importance_cap=None if loss == "gspo" else 2.0,
        )
        value, gradient, _ = whole(data, lengths, cfg)
        exact = {k: v.double() if v.is_floating_point() else v for k, v in data.items()}
        exact["logp"].requires_grad_(True)
        expected = naive_loss(exact, lengths, cfg)
        expected.backward()
        assert float(value) == pytest.approx(expected.item(), rel=1e-5, abs=1e-6)
        assert torch.allclose(gradient.double(), exact["logp"].grad, rtol=1e-4, atol=1e-6)


def test_gspo_weighs_each_tokens_gradient_by_its_own_importance() -> None:
    data = make([4])
    data["advantage"] = torch.ones(4)
    cfg = AlgoConfig(loss="gspo", clip_low=5.0, clip_high=50.0, aggregation="seq_mean_token_mean")
    value, gradient, _ = whole(data, [4], cfg)
    s = (data["logp"] - data["old_logp"]).mean().exp()
    c = importance_weight(data["old_logp"], data["engine_logp"], 2.0)[0]
    assert torch.allclose(gradient, -s * c / 4)
    assert float(value) == pytest.approx(float(-(s * c).mean()))


@settings(max_examples=15, deadline=None)
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@given(lengths=st.lists(st.integers(1, 6), min_size=2, max_size=8), seed=st.integers(0, 999), cut=st.data())
def test_micro_batches_change_nothing(loss: str, aggregation: str, lengths: list[int], seed: int, cut) -> None:
    parts, left = [], len(lengths)
    while left:
        parts.append(cut.draw(st.integers(1, left)))
        left -= parts[-1]
    cfg = AlgoConfig(loss=loss, aggregation=aggregation, aggregation_constant=11.0, kl_coef=0.05)
    data = make(lengths, seed)
    value, gradient, metrics = whole(data, lengths, cfg)
    split_value, split_gradient, split_metrics = whole(data, lengths, cfg, parts)
    assert float(split_value) == pytest.approx(float(value), rel=1e-5, abs=1e-6)
    assert torch.equal(split_gradient, gradient) or torch.allclose(split_gradient, gradient, rtol=1e-6, atol=1e-8)
    assert split_metrics == pytest.approx(metrics, rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_on_policy_first_update_is_the_plain_policy_gradient(loss: str, aggregation: str) -> None:
    """With old_logp = logp.detach() every ratio is 1, and the gradient is that of -sum w A l, whatever the loss."""
    lengths = [3, 1, 5, 2]
    data = make(lengths)
    data["old_logp"] = data["logp"].clone()
    cfg = AlgoConfig(
        loss=loss, aggregation=aggregation, aggregation_constant=7.0, importance_cap=None, clip_low=0.0, clip_high=0.0
    )
    _, gradient, metrics = whole(data, lengths, cfg)
    weights = aggregation_weights(torch.tensor(lengths), aggregation, 7.0)[data["seq"]]
    assert torch.allclose(gradient, -weights * data["advantage"])
    assert metrics["policy/ratio_mean"] == pytest.approx(1.0)
    assert metrics["policy/approx_kl"] == metrics["policy/clip_low"] == metrics["policy/clip_high"] == 0.0


@pytest.mark.parametrize("loss", LOSSES)
def test_zero_advantage_gives_exactly_zero_gradient(loss: str) -> None:
    data = make([3, 4])
    data["advantage"].zero_()
    value, gradient, _ = whole(data, [3, 4], AlgoConfig(loss=loss))
    assert float(value) == 0.0 and not gradient.any()


@pytest.mark.parametrize("loss", LOSSES)
def test_absurd_ratios_stay_finite(loss: str) -> None:
    data = make([2, 2])
    data["logp"] = torch.tensor([-1e4, -1.0, -1e-3, -200.0])
    data["old_logp"] = torch.tensor([-1e-3, -1.0, -1e4, -1.0])
    data["advantage"] = torch.tensor([1.0, 1.0, -1.0, -1.0])
    value, gradient, metrics = whole(data, [2, 2], AlgoConfig(loss=loss, kl_coef=0.1))
    assert torch.isfinite(value) and torch.isfinite(gradient).all()
    assert all(math.isfinite(v) for v in metrics.values())


def test_the_importance_weight_is_truncated_detached_and_only_where_the_engine_said_something() -> None:
    old = torch.tensor([-1.0, -1.0, -1.0, -1.0], requires_grad=True)
    engine = torch.tensor([-1.5, -3.0, math.nan, -math.inf])
    weight, known = importance_weight(old, engine, 2.0)
    assert weight.tolist() == pytest.approx([math.exp(0.5), 2.0, 1.0, 1.0])
    assert known.tolist() == [True, True, False, False] and not weight.requires_grad
    assert importance_weight(old, engine, None)[0].tolist() == [1.0] * 4
    assert importance_weight(old, None, 2.0)[0].tolist() == [1.0] * 4


def test_statistics_are_means_under_every_aggregation() -> None:
    """One sequence each of ratio 2 and 1/2 with the same length: any aggregation weighs them equally."""
    half = math.log(2)
    data = make([2, 2])
    data["old_logp"] = torch.full((4,), -2.0)
    data["logp"] = torch.tensor([half, half, -half, -half]) - 2
    data["advantage"] = torch.tensor([1.0, 1.0, -1.0, -1.0])
    data["engine_logp"] = torch.tensor([-2.0, -2 - 2 * half, math.nan, math.nan])
    for aggregation in AGGREGATIONS:
        cfg = AlgoConfig(aggregation=aggregation, aggregation_constant=9.0, importance_cap=2.0)
        metrics = whole(data, [2, 2], cfg)[2]
        assert metrics["policy/clip_low"] == pytest.approx(0.5)
        assert metrics["policy/clip_high"] == pytest.approx(0.5)
        assert metrics["policy/ratio_mean"] == pytest.approx(1.25)
        assert metrics["policy/approx_kl"] == pytest.approx(((1 - half) + (half - 0.5)) / 2, abs=1e-6)
        assert metrics["policy/engine_kl"] == pytest.approx((4 - 1 - 2 * half) / 2, rel=1e-5)
        assert metrics["policy/importance_mean"] == pytest.approx(1.5)
        assert metrics["policy/importance_truncated"] == pytest.approx(0.5)
        assert not any(k.startswith("_") for k in metrics)


def test_unknown_names_give_the_nearest() -> None:
    data = make([2, 3])
    args = [data[k] for k in ("logp", "old_logp", "advantage")]
    with pytest.raises(UserError, match=r"algo.loss=gpso is unknown: did you mean 'gspo'"):
        policy_loss(*args, torch.full((5,), 0.2), data["seq"], AlgoConfig(loss="gpso"))
    with pytest.raises(UserError, match=r"algo.kl_estimator=k4"):
        kl(data["logp"], data["ref_logp"], "k4")


def test_without_engine_and_reference() -> None:
    data = make([2, 3])
    args = [data[k] for k in ("logp", "old_logp", "advantage")]
    loss, stats = policy_loss(*args, torch.full((5,), 0.2), data["seq"], AlgoConfig())
    assert torch.isfinite(loss) and "policy/engine_kl" not in stats and "loss/kl" not in stats
    with pytest.raises(ValueError, match="ref_logp"):
        policy_loss(*args, torch.full((5,), 0.2), data["seq"], AlgoConfig(kl_coef=0.1))


def test_bf16_inputs_are_computed_in_fp32() -> None:
    data = make([2, 3])
    args = [data[k].bfloat16() for k in ("logp", "old_logp", "advantage")]
    loss, stats = policy_loss(*args, torch.full((5,), 0.2), data["seq"], AlgoConfig())
    assert loss.dtype == torch.float32 and all(v.dtype == torch.float32 for v in stats.values())
