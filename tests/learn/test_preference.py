"""Pairs, trajectory scores and the DPO loss: by hand, and against autograd through plain forwards."""

from __future__ import annotations

import copy
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from learn.rows import make_row
from rollout.kits import Kit

from agentrl.config.schema import PreferenceConfig
from agentrl.envs.base import Task
from agentrl.learn.forward import row_logprobs
from agentrl.learn.optimizer import MasterOptimizer
from agentrl.learn.preference import compare, dpo_loss, pair_metrics, pair_step, pairs_of, reference_logprobs
from agentrl.rollout.trajectory import Origin, RewardComponent, RewardRecord, Row, Trajectory

CFG = PreferenceConfig(beta=0.5, pairs="success")
TASK = Task("t", "?", {}, "train", "train")


def member(success: float | None, total: float | None = None) -> Trajectory:
    total = success if total is None else total
    record = RewardRecord([RewardComponent("verifiable", "verifiable", total)])
    return Trajectory(TASK, 0, 0, [], reward=record, success=success)


# pairs


def test_success_against_failure():
    group = [member(0.0), member(1.0), member(0.5), member(1.0), member(None, 1.0)]
    assert pairs_of(group, CFG) == [
        (1, 0),
        (1, 2),
        (3, 0),
        (3, 2),
    ]  # 0.5 is no success; an unverified member is in no pair
    assert pairs_of(group, replace(CFG, matching="one_to_one")) == [(1, 2), (3, 0)]
    assert pairs_of([member(1.0), member(1.0)], CFG) == [] == pairs_of([], CFG)


def test_reward_above_a_threshold():
    group = [member(0.0, 2.0), member(0.0, 7.0), member(0.0, 6.0)]
    assert pairs_of(group, replace(CFG, pairs="threshold", pair_threshold=6.0)) == [(1, 0), (1, 2)]
    assert pairs_of(group, replace(CFG, pairs="threshold")) == []  # the released code's "score > 0": all are positive


def test_better_against_worse():
    group = [member(0.0, 0.5), member(0.0, 0.5 + 1e-8), member(1.0, 0.9), member(0.0, 0.1)]
    better = replace(CFG, pairs="better")
    assert pairs_of(group, better) == [(2, 1), (2, 0), (2, 3), (1, 3), (0, 3)]  # 0.5 and 0.5 + noise are equal
    assert pairs_of(group, replace(better, matching="one_to_one")) == [(2, 3)]


def test_pairs_inside_shards_only():
    group = [member(1.0), member(1.0), member(0.0), member(0.0)]
    assert pairs_of(group, replace(CFG, pair_shards=2)) == [(0, 2), (1, 3)]
    assert pairs_of(group, replace(CFG, pair_shards=4)) == []


# scores and loss, by hand


def row(turns: list[int]) -> Row:
    """A row with the given number of sampled tokens a turn, and an observation between."""
    made = Row.from_prompt([5, 6])
    for turn, n in enumerate(turns):
        if turn:
            made.append([9], Origin.OBSERVATION, turn - 1)
        made.append(range(10, 10 + n), Origin.SAMPLED, turn, [-1.0] * n)
    return made


RATIOS = [torch.tensor([0.2, -0.1, 0.4]), torch.tensor([-0.3])]  # A: turns of 2 and 1 tokens; B: one turn, one token


@pytest.mark.parametrize(
    "score, a, b, loss",
    [
        ("sum", 0.25, -0.15, 0.513015),  # margin 0.4
        ("turn_mean", 0.125, -0.15, 0.565071),  # margin 0.275
        ("token_mean", 0.083333, -0.15, 0.583271),  # margin 0.233333
    ],
)
def test_two_trajectories_by_hand(score, a, b, loss):
    """β = 0.5. s(A) = 0.5 · 0.5 · w, s(B) = 0.5 · (−0.3); loss = log(1 + exp(−margin))."""
    both = compare([[row([2, 1])], [row([1])]], [(0, 1)], replace(CFG, score=score))
    zero = [torch.zeros(3), torch.zeros(1)]
    scores = both.scores(RATIOS, zero)
    assert scores.tolist() == pytest.approx([a, b], abs=1e-6)
    found = pair_metrics(scores, both)
    assert found["loss"] == pytest.approx(loss, abs=1e-6) and found["accuracy"] == 1.0
    assert found["margin"] == pytest.approx(a - b, abs=1e-6)


def test_the_slope_by_hand():
    """dL/ds(A) = −σ(−0.4) = −0.401312, and the opposite for B; each token of A has β times that."""
    scores = torch.tensor([0.25, -0.15], dtype=torch.float64, requires_grad=True)
    dpo_loss(scores, torch.tensor([0]), torch.tensor([1])).backward()
    assert scores.grad.tolist() == pytest.approx([-0.401312, 0.401312], abs=1e-6)


def test_equal_scores_are_half_right_and_no_pair_is_no_loss():
    both = compare([[row([1])], [row([1])]], [(0, 1)], CFG)
    found = pair_metrics(torch.zeros(2, dtype=torch.float64), both)
    assert found["loss"] == pytest.approx(math.log(2)) and found["accuracy"] == 0.5
    assert pair_metrics(torch.zeros(2), compare([[row([1])]], [], CFG)) == {}
    assert float(dpo_loss(torch.ones(2), torch.tensor([], dtype=torch.long), torch.tensor([], dtype=torch.long))) == 0


def test_several_rows_a_trajectory_add_up():
    """Windowed context: one row a step. The score is that of one row with all steps."""
    steps = []
    for turn in range(2):
        one = Row.from_prompt([5, 6])
        n = [2, 1][turn]
        one.append(range(10, 10 + n), Origin.SAMPLED, turn, [-1.0] * n)
        steps.append(one)
    for score in ("sum", "turn_mean", "token_mean"):
        cfg = replace(CFG, score=score)
        whole = compare([[row([2, 1])]], [], cfg).scores(RATIOS[:1], [torch.zeros(3)])
        parts = compare([steps], [], cfg).scores([RATIOS[0][:2], RATIOS[0][2:]], [torch.zeros(2), torch.zeros(1)])
        assert parts.tolist() == pytest.approx(whole.tolist())


# gradients


def comparison(kit: Kit, score: str):
    rng = np.random.default_rng(0)
    prompts = [rng.integers(3, kit.vocabulary, size=n).tolist() for n in (7, 11)]
    trajectories = [[make_row(prompts[i // 3], rng, kit.vocabulary, turns=1 + i % 3)] for i in range(6)]
    trajectories[0].append(make_row(prompts[0], rng, kit.vocabulary, turns=1))  # a second row
    trajectories[4] = [Row.from_prompt(prompts[1])]  # nothing sampled: score 0
    pairs = [(0, 1), (0, 2), (4, 3)]
    return trajectories, pairs, replace(CFG, score=score)


def plain_gradient(kit: Kit, trajectories, pairs, cfg, reference) -> tuple[float, dict[str, torch.Tensor]]:
    """The loss written out with plain forwards, and autograd's gradient."""
    model = copy.deepcopy(kit.plain)
    scores = []
    for number, rows in enumerate(trajectories):
        terms, turns = [], set()
        for r, own in enumerate(rows):
            if not own.sampled.any():
                continue
            ids = torch.from_numpy(own.ids).long()
            logp = torch.log_softmax(model(ids[None], use_cache=False).logits[0] / 0.8, -1)[:-1]
            logp = logp.gather(1, ids[1:, None]).squeeze(1)[torch.from_numpy(own.sampled[1:])]
            terms.append(logp - reference[number, r])
            turns |= set(own.turn[own.sampled].tolist())
        flat = torch.cat(terms) if terms else torch.zeros(1)
        length = {"sum": 1, "turn_mean": len(turns), "token_mean": len(flat)}[cfg.score]
        scores.append(cfg.beta * flat.sum() / max(1, length))
    losses = [-torch.log(torch.sigmoid(scores[a] - scores[b])) for a, b in pairs]
    loss = sum(losses) / len(pairs)
    loss.backward()
    return float(loss.detach()), {n: p.grad for n, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("score", ["sum", "turn_mean", "token_mean"])
@pytest.mark.parametrize("budget", [4096, 1])
def test_the_gradient_is_that_of_the_loss(kits, score, budget):
    kit = kits("tiny")
    trajectories, pairs, cfg = comparison(kit, score)
    batch = compare(trajectories, pairs, cfg)
    rng = np.random.default_rng(1)
    noise = [torch.from_numpy(rng.normal(0, 0.3, int(r.sampled.sum())).astype(np.float32)) for r in batch.rows]
    reference = [a + b for a, b in zip(row_logprobs(kit.model, batch.rows, 4096, 0.8), noise, strict=True)]
    places = [(i, r) for i, rows in enumerate(trajectories) for r, row in enumerate(rows) if row.sampled.any()]
    loss, expected = plain_gradient(kit, trajectories, pairs, cfg, dict(zip(places, reference, strict=True)))

    model = copy.deepcopy(kit.model)
    optimizer = MasterOptimizer(model)
    caught: dict[str, torch.Tensor] = {}
    optimizer.step = lambda rate, norm: caught.update({n: p.grad.clone() for n, p in optimizer.masters.items()}) or 1.0
    known = row_logprobs(model, batch.rows, budget, 0.8)
    done = pair_step(model, optimizer, batch, reference, 1e-3, 1.0, budget, 0.8)
    assert done.metrics["loss"] == pytest.approx(loss, rel=1e-5)
    gap = sum(float((caught[n] - g).square().sum()) for n, g in expected.items())
    size = sum(float(g.square().sum()) for g in expected.values())
    assert size > 0 and gap < 1e-8 * size
    # Row 5 stands in no pair: it costs nothing. What is known need not be computed again, and changes nothing.
    assert done.counts["train/tokens_forward"] == done.counts["train/tokens"] > 0
    assert done.counts["train/attended_forward"] == done.counts["train/attended"] > 0
    first = {n: g.clone() for n, g in caught.items()}
    again = pair_step(copy.deepcopy(model), optimizer, batch, reference, 1e-3, 1.0, budget, 0.8, known)
    assert "train/tokens_forward" not in again.counts and all(torch.equal(first[n], caught[n]) for n in first)


def test_learning_widens_the_margin_and_needs_pairs(kits):
    kit = kits("tiny")
    trajectories, pairs, cfg = comparison(kit, "sum")
    model = copy.deepcopy(kit.model)
    optimizer = MasterOptimizer(model)
    batch = compare(trajectories, pairs, cfg)
    reference = reference_logprobs("policy", batch.rows, model, None, 4096, 1.0)
    losses = [pair_step(model, optimizer, batch, reference, 1e-3, 1.0, 4096, 1.0).metrics["loss"] for _ in range(4)]
    assert losses[0] == pytest.approx(math.log(2)) and losses == sorted(losses, reverse=True)
    before = copy.deepcopy(model.state_dict())
    assert pair_step(model, optimizer, compare(trajectories, [], cfg), reference, 1e-3, 1.0, 4096, 1.0) is None
    assert all(torch.equal(a, before[n]) for n, a in model.state_dict().items())


def test_the_references(kits):
    kit = kits("tiny")
    trajectories, pairs, cfg = comparison(kit, "sum")
    rows = compare(trajectories, pairs, cfg).rows
    start = copy.deepcopy(kit.model)
    with torch.no_grad():
        next(start.parameters()).mul_(1.5)
    policy = reference_logprobs("policy", rows, kit.model, None, 4096, 1.0)
    assert all(torch.equal(a, b) for a, b in zip(policy, row_logprobs(kit.model, rows, 4096, 1.0), strict=True))
    initial = reference_logprobs("initial", rows, kit.model, start, 4096, 1.0)
    assert any((a - b).abs().max() > 1e-3 for a, b in zip(policy, initial, strict=True))
    for logp, row in zip(reference_logprobs("sampled", rows, kit.model, None, 4096, 1.0), rows, strict=True):
        assert torch.equal(logp, torch.full((int(row.sampled.sum()),), -1.0))
