"""The implicit process reward model: step rewards, joint learning, every option, its cost and its state."""

from __future__ import annotations

import copy
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from learn.rows import make_groups
from rollout.kits import Kit, plain_logprobs

from agentrl.config.schema import LoraConfig, PrmConfig
from agentrl.envs.base import Outcome
from agentrl.learn.optimizer import MasterOptimizer
from agentrl.learn.packing import pack
from agentrl.learn.prm import ImplicitPrm
from agentrl.models.load import load_model
from agentrl.rollout.trajectory import Group, RewardComponent, Turn
from agentrl.runs.ledger import shape_of

CFG = PrmConfig(enabled=True, weights="full", learning_rate=1e-3)


def other(kit: Kit, seed: int = 1):
    """A model a little off the kit's."""
    model = copy.deepcopy(kit.model)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.02 * torch.randn(p.shape, generator=generator))
    return model


def prm_of(kit: Kit, cfg: PrmConfig = CFG, model=None, initial=None, budget: int = 4096) -> ImplicitPrm:
    model = copy.deepcopy(kit.model) if model is None else model
    return ImplicitPrm(model, MasterOptimizer(model), cfg, kit.model, budget, 1.0, initial)


def made(kit: Kit, **how) -> list[Group]:
    """Groups whose trajectories have turns."""
    groups = make_groups(kit, **how)
    for trajectory in (t for g in groups for t in g.trajectories):
        turns = int(trajectory.rows[0].turn.max()) + 1
        trajectory.turns = [Turn("", "", "", Outcome.OK, None, "", "stop_string") for _ in range(turns)]
    return groups


def component(trajectory) -> RewardComponent:
    return next(c for c in trajectory.reward.components if c.name == "implicit_step")


def per_turn(groups: list[Group]) -> list[list[float]]:
    return [component(t).per_turn for g in groups for t in g.trajectories]


def by_hand(kit: Kit, model, groups: list[Group]) -> list[list[float]]:
    """β · Σ over each turn's sampled tokens of log π_φ − log π_policy, with plain transformers forwards."""
    plain = copy.deepcopy(kit.plain)
    plain.load_state_dict(model.state_dict())
    found = []
    for trajectory in (t for g in groups for t in g.trajectories):
        row = trajectory.rows[0]
        ratio = plain_logprobs(plain, row.ids) - plain_logprobs(kit.plain, row.ids)
        mine = [
            float(ratio[torch.from_numpy(row.sampled & (row.turn == t))].sum()) for t in range(len(trajectory.turns))
        ]
        found.append([0.05 * v for v in mine])
    return found


def near(a: list[list[float]], b: list[list[float]], tolerance: float = 1e-5) -> None:
    assert [len(x) for x in a] == [len(x) for x in b]
    assert np.concatenate(a) == pytest.approx(np.concatenate(b), abs=tolerance)


def test_step_rewards_are_the_log_ratio_of_the_turns_tokens(kits):
    kit = kits("tiny")
    groups, model = made(kit), other(kit)
    expected = by_hand(kit, model, groups)
    totals = [t.reward.total for g in groups for t in g.trajectories]
    metrics = prm_of(kit, model=model).score(groups)
    near(per_turn(groups), expected)
    assert np.abs(np.concatenate(expected)).max() > 1e-3
    assert [t.reward.total for g in groups for t in g.trajectories] == totals  # the episode's reward stays
    for trajectory in groups[0].trajectories:
        mine = component(trajectory)
        assert mine.tier == "implicit_step" and mine.value == pytest.approx(sum(mine.per_turn))
        assert sum(map(np.sum, mine.per_token)) == pytest.approx(mine.value)
    every = np.concatenate(expected)
    assert metrics["prm/step_mean"] == pytest.approx(every.mean(), abs=1e-5)
    assert metrics["prm/step_std"] == pytest.approx(every.std(ddof=1), abs=1e-5)


def test_a_model_equal_to_the_policy_says_exactly_nothing(kits):
    """Full weights and fresh adapters: the first batch has step rewards of 0, not of noise."""
    kit = kits("tiny")
    adapters = load_model(kit.path, torch.float32, LoraConfig(True, 4, 8))
    adapters.set_attn_implementation("agentrl")
    for model, cfg in ((None, CFG), (adapters, replace(CFG, weights="lora"))):
        groups = made(kit)
        metrics = prm_of(kit, cfg, model).score(groups)
        assert not np.concatenate(per_turn(groups)).any()
        assert metrics["prm/loss"] == pytest.approx(math.log(2)) and metrics["prm/accuracy"] == 0.5
        assert metrics["prm/grad_norm"] > 0
        again = prm_of(kit, cfg, model) if model is None else None
        assert again is None or not again.score(made(kit))["prm/step_max"]


def test_the_order_of_scoring_and_learning(kits):
    """score_first: rewards of the weights before the batch; update_first: of those after. Accuracy: always before."""
    kit = kits("tiny")
    start = other(kit)
    found, metrics, weights = {}, {}, {}
    for order in ("score_first", "update_first"):
        groups = made(kit)
        prm = prm_of(kit, replace(CFG, order=order), copy.deepcopy(start))
        metrics[order] = prm.score(groups)
        found[order], weights[order] = per_turn(groups), prm.model
    for a, b in zip(weights["score_first"].parameters(), weights["update_first"].parameters(), strict=True):
        assert torch.equal(a, b)
    groups = made(kit)
    near(found["score_first"], by_hand(kit, start, groups))
    near(found["update_first"], by_hand(kit, weights["update_first"], groups))
    assert metrics["score_first"]["prm/margin"] == metrics["update_first"]["prm/margin"]
    assert metrics["update_first"]["prm/accuracy_fitted"] >= metrics["update_first"]["prm/accuracy"]
    forward = "cost/prm_tokens_forward"
    assert metrics["update_first"][forward] == 2 * metrics["score_first"][forward]


def test_the_references(kits):
    """policy: the live weights. sampled: what the engine noted. initial: a frozen copy."""
    kit = kits("tiny")
    model = other(kit)
    found = {}
    for reference in ("policy", "sampled", "initial"):
        groups = made(kit)
        cost = prm_of(kit, replace(CFG, reference=reference), copy.deepcopy(model), other(kit, 2)).score(groups)
        found[reference] = per_turn(groups)
        assert (cost["cost/prm_tokens_reference"] == 0) == (reference == "sampled")
    near(found["sampled"], found["policy"])  # the rows hold the policy's own log-probabilities
    assert np.abs(np.concatenate(found["initial"]) - np.concatenate(found["policy"])).max() > 1e-3


def test_batch_max(kits):
    kit = kits("tiny")
    plain, scaled = made(kit), made(kit)
    prm_of(kit, model=other(kit)).score(plain)
    metrics = prm_of(kit, replace(CFG, normalise="batch_max"), other(kit)).score(scaled)
    largest = max(abs(v) for own in per_turn(plain) for v in own)
    near([[v / largest for v in own] for own in per_turn(plain)], per_turn(scaled))
    assert metrics["prm/step_max"] == pytest.approx(1)


def test_pairs_come_from_the_verifier_or_from_the_reward(kits):
    kit = kits("tiny")
    groups = made(kit, groups=1)
    for member, (success, total) in enumerate([(1.0, 0.2), (0.0, 0.9), (0.0, 0.5), (0.0, 0.5)]):
        groups[0].trajectories[member].success = success
        groups[0].trajectories[member].reward.components = [RewardComponent("r", "verifiable", total)]
    assert prm_of(kit).score(groups)["prm/pairs"] == 3
    assert prm_of(kit, replace(CFG, pairs="better")).score(groups)["prm/pairs"] == 5
    assert prm_of(kit, replace(CFG, pairs="threshold", pair_threshold=0.4)).score(groups)["prm/pairs"] == 3
    assert prm_of(kit, replace(CFG, pairs="threshold", pair_threshold=0.0)).score(groups)["prm/pairs"] == 0


def test_without_pairs_it_scores_and_does_not_learn(kits):
    kit = kits("tiny")
    prm = prm_of(kit, model=other(kit))
    before = copy.deepcopy(prm.model.state_dict())
    metrics = prm.score(_all_failed(made(kit)))
    assert metrics["prm/pairs"] == 0 and "prm/accuracy" not in metrics and metrics["cost/prm_tokens_trained"] == 0
    assert all(torch.equal(v, before[k]) for k, v in prm.model.state_dict().items())
    assert metrics["prm/step_max"] > 0
    assert prm.score([])["prm/pairs"] == 0


def _all_failed(groups: list[Group]) -> list[Group]:
    for trajectory in (t for g in groups for t in g.trajectories):
        trajectory.success = 0.0
    return groups


def test_it_learns_to_tell_new_trajectories_apart(kits):
    """Success follows from the first word of the first action; everything else is new in every batch."""
    kit = kits("tiny")

    def labelled(seed: int) -> list[Group]:
        groups = made(kit, groups=4, members=6, seed=seed)
        for trajectory in (t for g in groups for t in g.trajectories):
            row = trajectory.rows[0]
            row.ids[np.flatnonzero(row.sampled)[0]] = 40 + trajectory.member % 2
            trajectory.success = float(trajectory.member % 2)
        return groups

    prm = prm_of(kit, replace(CFG, learning_rate=3e-3))
    history = [prm.score(labelled(seed)) for seed in range(8)]
    assert np.mean([m["prm/accuracy"] for m in history[-3:]]) > 0.8
    assert history[-1]["prm/margin"] > 0


def test_numbers_that_are_not_finite_are_not_scored(kits):
    kit = kits("tiny")
    model = other(kit)
    with torch.no_grad():
        next(model.parameters()).fill_(float("nan"))
    groups = made(kit)
    metrics = prm_of(kit, model=model).score(groups)
    assert metrics["prm/not_scored"] == 12 and math.isnan(metrics["prm/loss"])
    assert component(groups[0].trajectories[0]).value is None and "finite" in component(groups[0].trajectories[0]).error
    assert not groups[0].scored


def test_scoring_again_replaces(kits):
    kit = kits("tiny")
    groups = made(kit)
    prm = prm_of(kit, model=other(kit))
    prm.score(groups)
    prm.score(groups)
    assert sum(c.name == "implicit_step" for c in groups[0].trajectories[0].reward.components) == 1


def test_the_correlation_with_progress_and_with_length(kits):
    kit = kits("tiny")
    groups = made(kit)
    prm = prm_of(kit, model=other(kit))
    assert "prm/potential_correlation" not in prm.score(groups)
    pairs = []
    for trajectory in (t for g in groups for t in g.trajectories):
        potentials = np.cumsum([0.1 * (i % 3) for i in range(len(trajectory.turns) + 1)])
        for turn, value in zip(trajectory.turns, potentials, strict=False):
            turn.potential = float(value)
        trajectory.potential = float(potentials[-1])
        pairs += list(zip(component(trajectory).per_turn, np.diff(potentials), strict=True))
    metrics = prm_of(kit, model=other(kit)).score(groups)
    a, b = np.array(pairs).T
    assert metrics["prm/potential_correlation"] == pytest.approx(np.corrcoef(a, b)[0, 1], abs=1e-4)
    assert -1 <= metrics["prm/length_correlation"] <= 1


def test_the_cost(kits):
    """Forward over all rows, the reference over all rows, forward and backward over the rows in pairs."""
    kit = kits("tiny")
    groups = made(kit, flat=(1,))
    for trajectory in groups[1].trajectories:
        trajectory.success = 0.0
    prm = prm_of(kit)
    metrics = prm.score(groups)
    every = sum(len(b.ids) for b in pack([t.rows[0] for g in groups for t in g.trajectories], 4096))
    paired = sum(len(b.ids) for b in pack([t.rows[0] for g in (groups[0], groups[2]) for t in g.trajectories], 4096))
    assert metrics["cost/prm_tokens_forward"] == metrics["cost/prm_tokens_reference"] == every
    assert metrics["cost/prm_tokens_trained"] == paired < every
    batches = pack([t.rows[0] for g in groups for t in g.trajectories], 4096)
    pairs = sum(b.attended for b in batches), sum(b.attended for b in pack([
        t.rows[0] for g in (groups[0], groups[2]) for t in g.trajectories
    ], 4096))  # fmt: skip
    shape = shape_of(prm.model)
    assert metrics["cost/flops_prm"] == 2 * shape.forward(every, pairs[0]) + shape.training(paired, pairs[1])
    twice = prm_of(kit, replace(CFG, epochs=2)).score(made(kit, flat=(1,)))
    assert twice["cost/prm_tokens_forward"] == every + twice["cost/prm_tokens_trained"] / 2
    model = copy.deepcopy(kit.model)
    for p in list(model.parameters())[1:]:
        p.requires_grad_(False)  # as adapters do: no operations for gradients of frozen weights
    frozen = prm_of(kit, model=model).score(made(kit, flat=(1,)))
    saved = 2 * (shape.weights - shape_of(model).trainable) * paired
    assert frozen["cost/flops_prm"] == metrics["cost/flops_prm"] - saved < metrics["cost/flops_prm"]


@pytest.mark.parametrize("weights", ["full", "lora"])
def test_its_state_goes_on_bit_for_bit(kits, tmp_path, weights):
    kit = kits("tiny")
    cfg = replace(CFG, weights=weights)

    def fresh() -> ImplicitPrm:
        model = load_model(kit.path, torch.float32, LoraConfig(weights == "lora", 4, 8))
        model.set_attn_implementation("agentrl")
        return prm_of(kit, cfg, model)

    straight = fresh()
    for seed in range(2):
        straight.score(made(kit, seed=seed))
    straight.save(tmp_path)
    later = fresh()
    later.load(tmp_path)
    a, b = straight.score(made(kit, seed=3)), later.score(made(kit, seed=3))
    assert a == b and a["prm/step_max"] > 0
    for x, y in zip(straight.model.parameters(), later.model.parameters(), strict=True):
        assert torch.equal(x, y)
    if weights == "lora":
        base = [p for p in later.model.parameters() if not p.requires_grad]
        fixed = [p for p in fresh().model.parameters() if not p.requires_grad]
        assert base and all(torch.equal(x, y) for x, y in zip(base, fixed, strict=True))
