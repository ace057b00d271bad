"""The cold start as a stage: from traces to a checkpoint."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from agentrl.errors import RunError, UserError
from agentrl.models.load import check_checkpoint, load_model
from agentrl.runs.checkpoints import CheckpointStore
from agentrl.runs.interrupt import Interrupt
from agentrl.stages import sft

SMALL = ("sft.traces=8", "sft.batch_size=4", "sft.epochs=3", "sft.learning_rate=1e-2", "sft.holdout=0.25")


def lines() -> list[dict]:
    return [json.loads(line) for line in Path("run/metrics.jsonl").read_text().splitlines()]


def test_the_loss_falls_and_the_best_checkpoint_stays(config):
    checkpoint = sft.main(config(*SMALL))
    check_checkpoint(checkpoint)
    metrics = lines()
    assert [m["step"] for m in metrics] == [1, 2, 3, 4, 5, 6]  # 6 of 8 traces, two steps an epoch
    assert metrics[-1]["loss/sft"] < metrics[0]["loss/sft"] - 0.5
    held = [m["loss/heldout"] for m in metrics if "loss/heldout" in m]
    assert len(held) == 3 and held[-1] < held[0]
    best = CheckpointStore("run").best()
    assert best is not None and best.name == checkpoint.name
    facts = json.loads(Path("run/run.json").read_text())
    assert facts["stage"] == "sft" and facts["status"] == "finished" and facts["data_hashes"]
    assert len(Path("run/task_hashes.txt").read_text().split()) == 8
    load_model(checkpoint, torch.float32)


def test_the_same_cold_start_twice(config):
    a = sft.main(config(*SMALL, "run.dir=a"))
    b = sft.main(config(*SMALL, "run.dir=b"))
    assert (a / "model.safetensors").read_bytes() == (b / "model.safetensors").read_bytes()


def test_it_stops_when_the_held_out_loss_rises(config):
    """A rate so high that every epoch is worse than the first."""
    sft.main(config(*SMALL, "sft.learning_rate=3", "sft.epochs=6", "sft.patience=1", "sft.warmup_steps=0"))
    held = [m["loss/heldout"] for m in lines() if "loss/heldout" in m]
    assert len(held) < 6 or held[-1] < min(held[:-1])


def test_ctrl_c_saves_and_stops(config, monkeypatch):
    class Asked(Interrupt):
        requested = property(lambda self: True, lambda self, value: None)  # type: ignore[assignment]

    monkeypatch.setattr(sft, "Interrupt", Asked)
    with pytest.raises(KeyboardInterrupt):
        sft.main(config(*SMALL))
    assert len(lines()) == 1 and CheckpointStore("run").last() is not None
    assert json.loads(Path("run/run.json").read_text())["status"] == "interrupted"


def test_traces_from_a_file(config, tmp_path):
    turns = [{"role": "user", "content": "where?"}, {"role": "assistant", "content": "<answer> here </answer>"}]
    (tmp_path / "t.jsonl").write_text("\n".join([json.dumps({"messages": turns})] * 4))
    sft.main(config("sft.source=t.jsonl", "sft.holdout=0", "sft.batch_size=2", "sft.learning_rate=1e-2"))
    assert lines()[-1]["loss/sft"] < lines()[0]["loss/sft"]


def test_nothing_to_train_on(config):
    with pytest.raises(RunError, match=r"no usable trace.*longer than rollout.max_tokens"):
        sft.main(config("sft.traces=2", "rollout.max_tokens=220", "env.max_turn_tokens=8", "env.max_obs_tokens=8"))
    assert json.loads(Path("run/run.json").read_text())["status"] == "failed"
    with pytest.raises(RunError, match=r"1 traces leave nothing"):
        sft.main(config("sft.traces=1", "run.dir=other"))


def test_it_cannot_be_resumed(config, tmp_path):
    (tmp_path / "there").mkdir()
    with pytest.raises(UserError, match=r"run.resume"):
        sft.main(config("run.resume=there"))
