"""Which checkpoint is the best one, what starts from a run folder, and what does not go on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agentrl import cli

SMALL = [
    "model=tiny", "env.name=calling", "env.spec=stages.calling:CallingSpec", "env.max_turns=2", "env.max_turn_tokens=6",
    "rollout.max_tokens=64", "engine.threads=1", "run.tracker=none", "algo.group_size=2", "algo.prompts_per_step=2",
]  # fmt: skip


def test_only_an_evaluated_step_can_be_best(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd) -> None:
    """Step 2 is evaluated, and saved for it; what step 3 scored in training says nothing beside that."""
    monkeypatch.chdir(tmp_path)
    given = ["train.steps=3", "train.save_every=3", "train.eval_every=2", "train.eval_tasks=2"]
    assert cli.main(["train", *SMALL, *given, "run.dir=run"]) == 0
    folder = Path("run/checkpoints")
    assert (folder / "best").resolve().name == "step-000002" and (folder / "last").resolve().name == "step-000003"
    for line in (json.loads(text) for text in Path("run/metrics.jsonl").read_text().splitlines()):
        assert {"loss/policy", "policy/entropy", "policy/engine_kl", "group/zero_spread"} <= set(line)

    # A run folder stands for its last checkpoint, whatever folder the run goes on in.
    assert cli.main(["train", *SMALL, "train.steps=1", "run.dir=next", "model.init=run"]) == 0
    started = json.loads(Path("next/run.json").read_text())["starts_from"]
    assert started == str((folder / "step-000003").resolve())

    # A run of another stage is told from one of train before anything of it is touched.
    before = sorted(Path("next").rglob("*"))
    (Path("next/run.json")).write_text(Path("next/run.json").read_text().replace('"train",', '"sft",', 1))
    capfd.readouterr()
    assert cli.main(["train", "run.resume=next"]) == 2
    assert (
        "run.resume=next: next is a run of sft" in capfd.readouterr().err and sorted(Path("next").rglob("*")) == before
    )
