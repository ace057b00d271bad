"""One update, from annotated groups to weights: invariances, the mask, old log-probabilities, the reference."""

from __future__ import annotations

import copy
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from learn.rows import make_groups
from rollout.kits import Kit, plain_logprobs

from agentrl.algos import advantages
from agentrl.config.schema import AlgoConfig, LoraConfig
from agentrl.learn.optimizer import MasterOptimizer
from agentrl.learn.policy import PolicyLearner
from agentrl.models.load import load_model, load_tokenizer, save_model
from agentrl.rollout.trajectory import Group, Origin, RewardComponent, RewardRecord, Row, StopReason, Trajectory

CFG = AlgoConfig(learning_rate=1e-3, importance_cap=None)


def learner_of(kit: Kit, cfg: AlgoConfig, budget: int = 4096, reference=None) -> PolicyLearner:
    model = copy.deepcopy(kit.model)
    optimizer = MasterOptimizer(model, cfg.weight_decay, (cfg.adam_beta1, cfg.adam_beta2))
    return PolicyLearner(model, optimizer, cfg, budget, reference=reference)


def gradient(learner: PolicyLearner, groups: list[Group]) -> dict[str, torch.Tensor]:
    """The gradient of the first optimiser step, caught on its way into the optimiser."""
    caught: dict[str, torch.Tensor] = {}

    def keep(rate: float, max_norm: float) -> float:
        if not caught:
            caught.update({n: p.grad.clone() for n, p in learner.optimizer.masters.items() if p.grad is not None})
        return step(rate, max_norm)

    step, learner.optimizer.step = learner.optimizer.step, keep  # type: ignore[method-assign]
    learner.update(groups)
    return caught


def near(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor], tolerance: float = 1e-4) -> None:
    assert a.keys() == b.keys() and a
    size = math.sqrt(sum(float(x.square().sum()) for x in b.values()))
    gap = math.sqrt(sum(float((x - b[n]).square().sum()) for n, x in a.items()))
    assert size > 0 and gap < tolerance * size


def annotated(kit: Kit, cfg: AlgoConfig = CFG, **how) -> list[Group]:
    groups = make_groups(kit, **how)
    advantages.annotate(groups, cfg)
    return groups


@pytest.mark.parametrize("aggregation", ["token_mean", "seq_mean_token_mean", "seq_mean_token_sum", "constant"])
@pytest.mark.parametrize("loss", ["clip", "gspo", "cispo"])
def test_micro_batches_do_not_change_the_gradient(kits, loss, aggregation):
    kit = kits("tiny")
    cfg = replace(CFG, loss=loss, aggregation=aggregation, aggregation_constant=20.0)
    groups = annotated(kit, cfg)
    whole = gradient(learner_of(kit, cfg), groups)
    for budget in (1, 60):
        near(gradient(learner_of(kit, cfg, budget), groups), whole)


def test_micro_batches_change_neither_metrics_nor_weights(kits):
    kit = kits("tiny")
    cfg = replace(CFG, minibatches=2, epochs=2, kl_coef=0.05, importance_cap=2.0)
    groups = annotated(kit, cfg)
    results = []
    for budget in (4096, 50):
        learner = learner_of(kit, cfg, budget, reference=kit.model)
        results.append((learner.update(groups), learner.model))
    (a, first), (b, second) = results
    assert a.keys() == b.keys()
    for name in {n for n in a if not n.startswith(("train/tokens", "train/attended"))}:
        assert a[name] == pytest.approx(b[name], rel=2e-3, abs=1e-5), name
    for x, y in zip(first.parameters(), second.parameters(), strict=True):
        # Adam's first steps are nearly signs: where a gradient is all rounding, its direction is free.
        assert (x - y).abs().mean() < 1e-5


def test_the_first_step_is_the_policy_gradient(kits):
    """Against REINFORCE written out with plain forwards: sum of weight × advantage × log-probability."""
    kit = kits("tiny")
    groups = annotated(kit)
    mine = gradient(learner_of(kit, CFG), groups)
    plain = copy.deepcopy(kit.plain)
    rows = [t.rows[0] for g in groups for t in g.trajectories]
    total = sum(int(r.sampled.sum()) for r in rows)
    for row in rows:
        ids = torch.from_numpy(row.ids).long()
        logp = torch.log_softmax(plain(ids[None], use_cache=False).logits[0], -1)[:-1]
        logp = logp.gather(1, ids[1:, None]).squeeze(1)
        (-(logp * torch.from_numpy(row.advantage)[1:]).sum() / total).backward()
    norm = math.sqrt(sum(float(p.grad.square().sum()) for p in plain.parameters()))
    near(mine, {n: p.grad for n, p in plain.named_parameters()}, 1e-3)
    assert learner_of(kit, CFG).update(groups)["policy/grad_norm"] == pytest.approx(norm, rel=1e-3)


def test_rows_without_advantage_can_be_left_out(kits, monkeypatch):
    """A flat group is not computed; computing it all the same gives the same weights."""
    kit = kits("tiny")
    groups = annotated(kit, flat=(1,))
    skipping = learner_of(kit, CFG)
    metrics = skipping.update(groups)
    assert metrics["train/rows"] == 8
    everything = learner_of(kit, CFG)
    real = np.any
    monkeypatch.setattr(np, "any", lambda a, *k, **w: True)
    assert everything.update(groups)["train/rows"] == 12
    monkeypatch.setattr(np, "any", real)
    for a, b in zip(skipping.model.parameters(), everything.model.parameters(), strict=True):
        assert (a - b).abs().mean() < 1e-6


def test_a_batch_without_any_advantage_changes_no_weight(kits):
    """It is still watched: a run whose groups have all become equal is the one whose entropy matters."""
    kit = kits("tiny")
    learner = learner_of(kit, CFG)
    groups = annotated(kit, flat=(0, 1, 2))
    metrics = learner.update(groups)
    assert metrics["train/rows"] == metrics["train/tokens"] == 0 and "policy/grad_norm" not in metrics
    assert 0 < metrics["train/tokens_forward"] <= learner.micro_batch_tokens
    assert metrics["loss/policy"] == 0 and str(metrics["loss/policy"]) == "0.0"
    assert metrics["policy/engine_kl"] < 1e-6
    everything = learner_of(kit, replace(CFG, kl_coef=0.1), reference=kit.model).update(groups)
    assert metrics["policy/entropy"] == pytest.approx(everything["policy/entropy"], rel=0.1)
    assert all(torch.equal(a, b) for a, b in zip(learner.model.parameters(), kit.model.parameters(), strict=True))


def test_no_groups_at_all(kits):
    learner = learner_of(kits("tiny"), CFG)
    assert learner.update([]) == {}


@pytest.mark.parametrize(
    "cfg", [CFG, replace(CFG, minibatches=3), replace(CFG, kl_coef=0.1)], ids=["plain", "minis", "kl"]
)
def test_a_row_that_is_only_a_prompt_has_no_loss(kits, cfg):
    """Its prompt was too long to act; it is scored, and shares its group's baseline, but trains nothing."""
    kit = kits("tiny")
    groups = make_groups(kit)
    task = groups[2].task
    empty = Trajectory(
        task, 9, 0, [Row.from_prompt(range(5, 60))], stop_reason=StopReason.CONTEXT_OVERFLOW,
        reward=RewardRecord([RewardComponent("verifiable", "verifiable", 0.0)]),
    )  # fmt: skip
    groups.append(Group(task, [empty]))
    groups[0].trajectories.append(replace(empty, task=groups[0].task))
    advantages.annotate(groups, cfg)
    learner = learner_of(kit, cfg, budget=60, reference=kit.model if cfg.kl_coef else None)
    metrics = learner.update(groups)
    assert all(math.isfinite(v) for v in metrics.values()) and metrics["policy/grad_norm"] > 0


def test_errored_members_are_not_trained_on(kits):
    kit = kits("tiny")
    groups, more = make_groups(kit), make_groups(kit)
    bad = more[0].trajectories[3]
    bad.stop_reason, bad.error = StopReason.ERROR, "server down"
    groups[0].trajectories.pop(3)
    for g in (groups, more):
        advantages.annotate(g, CFG)
    near(gradient(learner_of(kit, CFG), more), gradient(learner_of(kit, CFG), groups), 1e-6)


def test_observations_are_trained_on_only_without_the_mask(kits):
    kit = kits("tiny")
    groups = annotated(kit)
    masked = gradient(learner_of(kit, CFG), groups)
    changed = copy.deepcopy(groups)
    for row in (t.rows[0] for g in changed for t in g.trajectories):
        row.advantage[row.origin == Origin.OBSERVATION] = 5.0  # must not matter
    near(gradient(learner_of(kit, CFG), changed), masked, 1e-6)
    cfg = replace(CFG, mask_observations=False)
    open_groups = annotated(kit, cfg)
    row = next(t.rows[0] for g in open_groups for t in g.trajectories if (t.rows[0].origin == Origin.OBSERVATION).any())
    assert row.advantage[row.origin == Origin.OBSERVATION].any() or not row.advantage.any()
    unmasked = gradient(learner_of(kit, cfg), open_groups)
    gap = sum(float((a - masked[n]).square().sum()) for n, a in unmasked.items())
    assert gap > 1e-3 * sum(float(a.square().sum()) for a in masked.values())


def test_the_ablation_trains_the_observation_tokens(kits):
    """A few steps push up what positive trajectories observed, and leave it alone with the mask."""
    kit = kits("tiny")
    moved = {}
    for mask in (True, False):
        cfg = replace(CFG, mask_observations=mask, learning_rate=1e-2, estimator="dr_grpo")
        groups = annotated(kit, cfg)
        learner = learner_of(kit, cfg)
        for _ in range(3):
            learner.update(groups)
        plain = copy.deepcopy(kit.plain)
        plain.load_state_dict(learner.model.state_dict())
        gains = []
        for t in (t for g in groups for t in g.trajectories):
            row = t.rows[0]
            seen = row.origin == Origin.OBSERVATION
            if seen.any() and row.advantage[row.sampled].min() > 0:
                gains.append(plain_logprobs(plain, row.ids)[seen] - plain_logprobs(kit.plain, row.ids)[seen])
        moved[mask] = float(torch.cat(gains).mean())
    assert moved[False] > moved[True] + 0.3


def test_later_steps_use_the_log_probabilities_from_before_the_update(kits):
    """With minibatches and epochs the ratio is to the weights at the start, not to the engine's numbers."""
    kit = kits("tiny")
    cfg = replace(CFG, minibatches=2, epochs=3, learning_rate=3e-3)
    groups = annotated(kit, cfg)
    learner = learner_of(kit, cfg)
    metrics = learner.update(groups)
    assert learner.updates == 6
    assert metrics["policy/approx_kl"] > 0 and abs(metrics["policy/ratio_mean"] - 1) > 1e-6
    wrong = copy.deepcopy(groups)
    for row in (t.rows[0] for g in wrong for t in g.trajectories):
        row.logprobs[row.sampled] -= 1.0
    other = learner_of(kit, cfg)
    other.update(wrong)
    for a, b in zip(learner.model.parameters(), other.model.parameters(), strict=True):
        assert torch.equal(a, b)


def test_one_step_needs_no_old_forward(kits, monkeypatch):
    kit = kits("tiny")
    groups = annotated(kit)
    learner = learner_of(kit, CFG)
    monkeypatch.setattr(PolicyLearner, "_logprobs", None)  # would fail
    metrics = learner.update(groups)
    assert metrics["policy/ratio_mean"] == 1.0 and metrics["policy/approx_kl"] == 0.0
    assert metrics["policy/engine_kl"] < 1e-6


def test_importance_correction_weighs_by_the_engine(kits):
    kit = kits("tiny")
    cfg = replace(CFG, importance_cap=2.0)
    groups = annotated(kit)
    for row in (t.rows[0] for g in groups for t in g.trajectories):
        row.logprobs[row.sampled] -= math.log(1.5)  # the engine held every token for less likely than the trainer does
    mine = gradient(learner_of(kit, cfg), groups)
    plain = gradient(learner_of(kit, CFG), groups)
    near(mine, {n: 1.5 * g for n, g in plain.items()}, 1e-3)


def test_kl_to_a_reference_pulls_towards_it(kits):
    """Without any reward the KL term alone brings a policy back to the reference."""
    kit = kits("tiny")
    cfg = replace(CFG, kl_coef=1.0, kl_estimator="k2", learning_rate=1e-3)
    groups = annotated(kit, cfg, flat=(0, 1, 2))
    learner = learner_of(kit, cfg, reference=copy.deepcopy(kit.model).requires_grad_(False))
    with torch.no_grad():
        noise = torch.Generator().manual_seed(0)
        for p in learner.model.parameters():
            p.add_(0.03 * torch.randn(p.shape, generator=noise))
    losses = [learner.update(groups) for _ in range(8)]
    assert losses[-1]["policy/ref_kl"] < 0.5 * losses[0]["policy/ref_kl"]
    assert losses[0]["train/rows"] == 12  # with a KL term every row has a gradient


def test_progress_runs_from_zero_to_one(kits):
    kit = kits("tiny")
    cfg = replace(CFG, minibatches=2, epochs=2)
    seen: list[float] = []
    learner_of(kit, cfg, budget=60).update(annotated(kit, cfg), seen.append)
    assert seen == sorted(seen) and seen[-1] == 1.0 and seen[0] > 0


def test_lora_moves_adapters_only_and_reloads_with_equal_outputs(kits, tmp_path):
    kit = kits("tiny")
    lora = LoraConfig(enabled=True, rank=4, alpha=8)
    model = load_model(kit.path, torch.float32, lora)
    model.set_attn_implementation("agentrl")
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    cfg = replace(CFG, learning_rate=1e-2)
    learner = PolicyLearner(model, MasterOptimizer(model), cfg, 4096)
    groups = annotated(kit)
    for _ in range(2):
        learner.update(groups)
    for name, p in model.named_parameters():
        assert torch.equal(p, before[name]) != ("lora_" in name), name
    save_model(model, load_tokenizer(kit.path), tmp_path / "saved")
    merged = load_model(tmp_path / "saved", torch.float32)
    again = load_model(tmp_path / "saved", torch.float32, lora)
    row = groups[0].trajectories[0].rows[0]
    ids = torch.from_numpy(row.ids).long()[None]
    model.set_attn_implementation("eager")
    with torch.no_grad():
        mine = model(ids, use_cache=False).logits
        assert not torch.allclose(mine, kit.plain(ids, use_cache=False).logits, atol=1e-3)
        torch.testing.assert_close(merged(ids, use_cache=False).logits, mine, atol=1e-4, rtol=0)
        torch.testing.assert_close(again(ids, use_cache=False).logits, mine, atol=1e-6, rtol=0)
