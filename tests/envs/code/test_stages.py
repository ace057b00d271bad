"""The environment through the three stages, on a tiny model: formats, metrics, reward components."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agentrl import cli

SMALL = ["model=tiny", "engine.threads=1", "run.tracker=none", "rollout.max_tokens=1200", "env.max_turn_tokens=24"]


def command(*args: str) -> None:
    assert cli.main([*args]) == 0


@pytest.mark.parametrize("name", ["tags", pytest.param("tool_call", marks=pytest.mark.slow)])
def test_cold_start_train_and_eval(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.chdir(tmp_path)
    env = ["env=code", f"env.options.format={name}", "env.options.sandbox.limits.wall_s=120", "env.max_turns=3", *SMALL]
    command("sft-coldstart", *env, "sft.traces=6", "sft.batch_size=3", "sft.epochs=1", "run.dir=sft")
    facts = json.loads(Path("sft/run.json").read_text())
    assert facts["environment"]["sandbox"]["level"] >= 1
    command(
        "train", *env, "reward=retool", "model.init=sft/checkpoints/last", "train.steps=1", "algo.group_size=2",
        "algo.prompts_per_step=2", "run.dir=rl",
    )  # fmt: skip
    metrics = json.loads(Path("rl/metrics.jsonl").read_text().splitlines()[0])
    for key in ("used_code", "calls", "error", "correct", "answered", "correct_with_code"):
        assert f"score/{key}/mean" in metrics
    assert -1 <= metrics["reward/mean"] <= 1 and metrics["reward/mean"] == metrics["reward/verifiable/mean"]
    assert metrics["reward/tool_use/mean"] >= 0 and metrics["reward/runs/mean"] >= 0
    command("eval", *env, "eval.tasks=2", "eval.variants=[train,unseen]", "--checkpoint", "rl", "run.dir=eval")
    panels = json.loads(Path("eval/eval.json").read_text())["panels"]
    assert [p["variant"] for p in panels] == ["train", "unseen"]
    assert {"used_code", "calls", "error", "correct"} <= set(panels[0]["score"])


@pytest.mark.parametrize("experiment", ["code_demo"])
def test_the_demo_composes(experiment: str, capsys: pytest.CaptureFixture[str]) -> None:
    command("train", "env=code", f"experiment={experiment}", "--cfg")
    shown = capsys.readouterr().out
    assert "CodeSpec" in shown and "max_calls: 4" in shown
