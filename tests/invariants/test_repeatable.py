"""What must not change a run, does not; what must, does. Whole runs through the command line."""

from __future__ import annotations

import pytest
from invariants.running import assert_identical, metrics_of, resume, same_bits, tokens_of, train, weights_of


def test_the_run_is_worth_comparing(whole):
    metrics = metrics_of(whole)
    assert [m["step"] for m in metrics] == [1, 2, 3, 4]
    assert sum(m["tools/calls"] for m in metrics) > 0
    assert all(m["policy/grad_norm"] > 0 for m in metrics)
    assert len({tuple(t) for t in tokens_of(whole, 1)}) > 2


def test_the_same_seed_gives_the_same_bits(whole, cold, tmp_path):
    again = train(tmp_path / "run", f"model.init={cold}", "train.steps=4", "train.save_every=2")
    assert_identical(again, whole)


def test_another_seed_gives_another_run(whole, cold, tmp_path):
    other = train(tmp_path / "run", f"model.init={cold}", "train.steps=1", "train.seed=1")
    assert tokens_of(other, 1) != tokens_of(whole, 1)


def test_slots_do_not_change_tokens(whole, cold, tmp_path):
    other = train(tmp_path / "run", f"model.init={cold}", "train.steps=2", "engine.slots=2")
    for step in (1, 2):
        assert tokens_of(other, step) == tokens_of(whole, step)


def test_micro_batches_change_nothing_but_rounding(whole, cold, tmp_path):
    other = train(tmp_path / "run", f"model.init={cold}", "train.steps=2", "train.micro_batch_tokens=700")
    assert tokens_of(other, 1) == tokens_of(whole, 1)
    a, b = metrics_of(other)[0], metrics_of(whole)[0]
    assert a["train/tokens"] > b["train/tokens"]  # a prompt is computed once in each micro-batch
    for name in set(a) - {"stage", "train/tokens", "train/attended", "cost/flops_training"}:
        assert a[name] == pytest.approx(b[name], rel=1e-3, abs=1e-5), name
    expected = weights_of(whole, "step-000002")
    gaps = [float((x - expected[k]).abs().mean()) for k, x in weights_of(other).items() if x.ndim > 1]
    assert max(gaps) < 1e-4


def test_the_mask_makes_a_difference(whole, cold, tmp_path):
    other = train(tmp_path / "run", f"model.init={cold}", "train.steps=2", "algo.mask_observations=false")
    assert tokens_of(other, 1) == tokens_of(whole, 1)
    a, b = metrics_of(other)[0], metrics_of(whole)[0]
    assert a["reward/mean"] == b["reward/mean"] and a["policy/grad_norm"] != pytest.approx(b["policy/grad_norm"], 0.01)
    expected = weights_of(whole, "step-000002")
    assert not any(same_bits(x, expected[k]) for k, x in weights_of(other).items() if x.ndim > 1)


VARIANTS = {
    "masters": ["model.dtype=bf16"],
    "everything": [
        "algo.kl_coef=0.05",
        "algo.minibatches=2",
        "algo.dynamic_sampling_rounds=2",
        "train.eval_every=1",
        "train.eval_tasks=2",
        "engine.slots=3",
    ],
    "lora": ["model.lora.enabled=true", "algo.kl_coef=0.05"],
    "compiled": ["model.dtype=bf16"],
}
SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in ("masters", "lora", "compiled")]


@pytest.mark.parametrize("name", ["everything", *SLOW])
def test_going_on_is_as_if_never_stopped(name, cold, tmp_path, monkeypatch):
    """Three steps at once, and two steps with a third added later."""
    monkeypatch.setenv("AGENTRL_COMPILE", "1" if name == "compiled" else "0")
    init = [f"model.init={cold}", *VARIANTS[name], "train.save_every=1"]
    straight = train(tmp_path / "straight", *init, "train.steps=3")
    later = train(tmp_path / "later", *init, "train.steps=2")
    resume(later, "train.steps=3")
    assert_identical(later, straight)
