"""DPO on the policy: pairs of sampled groups, minibatches, references, cost."""

from __future__ import annotations

import copy
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from learn.rows import make_groups
from rollout.kits import Kit

from agentrl.config.schema import AlgoConfig, DpoConfig
from agentrl.learn.dpo import DpoLearner
from agentrl.learn.optimizer import MasterOptimizer
from agentrl.learn.preference import compare
from agentrl.rollout.trajectory import Origin, Row

CFG = AlgoConfig(loss="dpo", learning_rate=1e-3, dpo=DpoConfig(pairs="better"))


def learner_of(kit: Kit, cfg: AlgoConfig = CFG, budget: int = 4096, reference=None) -> DpoLearner:
    model = copy.deepcopy(kit.model)
    return DpoLearner(model, MasterOptimizer(model), cfg, budget, reference=reference or kit.model)


def weights(learner: DpoLearner) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in learner.model.parameters()])


def test_the_policy_learns_from_the_pairs_of_each_group(kits):
    kit = kits("tiny")
    groups = make_groups(kit, flat=(1,))
    learner = learner_of(kit)
    first = learner.update(groups)
    wins = [sum(t.reward.total for t in g.trajectories) for g in groups]
    assert first["dpo/pairs"] == sum(w * (4 - w) for w in wins)
    assert first["loss/policy"] == pytest.approx(math.log(2)) and first["dpo/accuracy"] == 0.5
    assert first["train/rows"] == 8  # the flat group costs nothing
    second = learner.update(groups)
    assert second["loss/policy"] < first["loss/policy"] and second["dpo/margin"] > 0
    assert learner.updates == 2 and second["policy/grad_norm"] > 0
    # scores and reference without a gradient, the loss with one
    assert first["train/tokens_forward"] == 2 * first["train/tokens"]
    assert first["train/attended_forward"] == 2 * first["train/attended"] > first["train/tokens"]


def test_epochs_and_minibatches_keep_the_reference_of_the_start(kits):
    kit = kits("tiny")
    groups = make_groups(kit)
    steps = learner_of(kit, replace(CFG, epochs=2, minibatches=3))
    metrics = steps.update(groups)
    assert steps.updates == 6 and metrics["train/rows"] == 24
    moving = learner_of(kit, replace(CFG, epochs=2, minibatches=3, dpo=replace(CFG.dpo, reference="policy")))
    moving.update(groups)
    assert torch.equal(weights(steps), weights(moving))  # the policy at the start of the batch is the initial one
    moving.update(groups)
    steps.update(groups)
    assert not torch.equal(weights(steps), weights(moving))
    sampled = learner_of(kit, replace(CFG, dpo=replace(CFG.dpo, reference="sampled")))
    assert sampled.update(groups)["loss/policy"] == pytest.approx(math.log(2), abs=1e-4)


def test_a_batch_without_pairs_changes_nothing(kits):
    kit = kits("tiny")
    learner = learner_of(kit)
    before = weights(learner)
    metrics = learner.update(make_groups(kit, flat=(0, 1, 2)))
    assert metrics["dpo/pairs"] == 0 and metrics["train/tokens"] == 0 and learner.updates == 0
    assert torch.equal(weights(learner), before) and learner.update([])["dpo/pairs"] == 0


def test_observations_have_no_part_in_it(kits):
    """Two trajectories that differ only in what they were answered last have the same score."""
    kit = kits("tiny")
    rng = np.random.default_rng(0)
    row = Row.from_prompt(rng.integers(3, kit.vocabulary, 5).tolist())
    row.append([9, 8], Origin.SAMPLED, 0, [-1.0, -1.0])
    row.append([7, 6, 5], Origin.OBSERVATION, 0)
    better, worse = copy.deepcopy(row), copy.deepcopy(row)
    worse.ids[-2] = 40  # the two differ in an observation only, behind the last action
    reference = copy.deepcopy(kit.model)
    with torch.no_grad():
        next(reference.parameters()).mul_(1.5)
    found = learner_of(kit, reference=reference).evaluate(compare([[better], [worse]], [(0, 1)], CFG.dpo))
    assert abs(found["better"]) > 1e-3 and found["margin"] == pytest.approx(0, abs=1e-7)


def test_micro_batches_change_only_rounding(kits):
    kit = kits("tiny")
    a, b = learner_of(kit), learner_of(kit, budget=1)
    groups = make_groups(kit)
    x, y = a.update(groups), b.update(groups)
    assert x["policy/grad_norm"] == pytest.approx(y["policy/grad_norm"], rel=1e-3)
    assert (weights(a) - weights(b)).abs().mean() < 1e-5
