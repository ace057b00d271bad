"""Runs with a reward model that learns beside the policy: killed and gone on with, they are the run left alone."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from invariants.running import SMALL, assert_identical, kill_when, metrics_of, resume, same_bits, start, steps_of, train
from safetensors.torch import load_file

ISTAR = (
    "reward=implicit_step",
    "reward.components.verifiable.kind=random",
    "reward.prm.pairs=better",
    "reward.prm.learning_rate=1e-3",
    "algo=istar",
    "train.steps=3",
    "train.save_every=1",
)


def assert_same_prm(a: Path, b: Path) -> None:
    one, two = (load_file(f / "checkpoints/last/trainer/prm.safetensors") for f in (a, b))
    assert one.keys() == two.keys() and any(k.startswith("exp_avg/") for k in one)
    assert all(same_bits(one[k], two[k]) for k in one)


@pytest.fixture(scope="module")
def alone(tmp_path_factory, cold) -> Path:
    return train(tmp_path_factory.mktemp("istar") / "run", f"model.init={cold}", *ISTAR)


def test_the_run_is_worth_comparing(alone):
    metrics = metrics_of(alone)
    assert metrics[0]["prm/step_max"] == 0  # the model is still the policy
    assert all(m["prm/step_max"] > 0 and m["prm/pairs"] > 0 for m in metrics[1:])
    assert all(m["cost/flops_prm"] > 0 for m in metrics)


def test_killed_and_gone_on_with(alone, cold, tmp_path):
    folder = tmp_path / "run"
    values = {o.partition("=")[0]: o for o in (*SMALL, f"model.init={cold}", *ISTAR)}
    process = start(["train", *values.values(), f"run.dir={folder}"], folder.with_suffix(".log"))
    assert kill_when(process, lambda: steps_of(folder) == 2)
    process.join(60)
    assert process.exitcode == -signal.SIGKILL
    resume(folder)
    assert_identical(folder, alone)
    assert_same_prm(folder, alone)


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        ("reward.prm.weights=full", "reward.prm.order=update_first", "reward.prm.epochs=2", "algo=istar_token"),
        ("reward.prm.reference=initial", "algo=istar_merged", "model.dtype=bf16"),
        ("reward.prm.reference=sampled", "model.lora.enabled=true", "rollout.window=1"),
        ("reward=verifiable", "reward.components.verifiable.kind=random", "algo=dpo"),
        ("reward=verifiable", "reward.components.verifiable.kind=random", "algo=dpo", "algo.dpo.reference=policy"),
    ],
)
def test_every_kind_goes_on_bit_for_bit(cold, tmp_path, options):
    values = [o for o in ISTAR if not (o.startswith("reward") and "reward=verifiable" in options)]
    init = [f"model.init={cold}", *values, *options]
    straight = train(tmp_path / "straight", *init)
    later = train(tmp_path / "later", *init, "train.steps=2")
    resume(later, "train.steps=3")
    assert_identical(later, straight)
    if "algo=dpo" not in options:
        assert_same_prm(later, straight)
