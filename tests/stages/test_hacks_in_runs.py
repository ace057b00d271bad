"""What train.on_hack does in a real run: tell, drop, stop."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from agentrl import cli
from agentrl.runs.trajectories import read_trajectories

TRAIN = [
    "train", "model=tiny", "env.name=calling", "env.spec=stages.calling:CallingSpec", "env.max_turns=2",
    "env.max_turn_tokens=6", "rollout.max_tokens=64", "engine.threads=1", "run.tracker=none", "run.dir=run",
    "algo.group_size=6", "algo.prompts_per_step=2", "train.steps=2", "reward=random",
]  # fmt: skip


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def lines(name: str) -> list[dict]:
    return [json.loads(line) for line in Path("run", name).read_text().splitlines()]


def test_an_honest_run_sees_nothing(capfd) -> None:
    assert cli.main(TRAIN) == 0
    assert not Path("run/hacks.jsonl").exists() and "hack" not in capfd.readouterr().err
    assert all(v == 0 for m in lines("metrics.jsonl") for k, v in m.items() if k.startswith("hack/"))


def test_warn_counts_and_names_examples(capfd) -> None:
    assert cli.main([*TRAIN, "env.options.violations=true"]) == 0
    events, metrics = lines("hacks.jsonl"), lines("metrics.jsonl")
    assert {e["name"] for e in events} == {"sandbox_violation"}
    total = sum(m["hack/sandbox_violation"] for m in metrics)
    assert total == sum(e["count"] for e in events) > 0 and all(m["group/dropped"] == 0 for m in metrics)
    said = capfd.readouterr().err
    assert said.count("[hack: sandbox_violation]") == 1  # said once, not at every step
    assert f"hack watch: sandbox_violation: {total:.0f} trajectories in {len(events)} steps" in said
    known = {t["id"] for step in (1, 2) for t in read_trajectories(f"run/trajectories/train-{step:06d}.parquet")}
    assert {i for e in events for i in e["examples"]} <= known
    assert cli.main(["report", "run"]) == 0 and "a way out" in Path("run/report.html").read_text()


def test_drop_takes_offenders_out_of_statistics_and_loss() -> None:
    assert cli.main([*TRAIN, "env.options.violations=true", "train.on_hack=drop"]) == 0
    for step, metrics in enumerate(lines("metrics.jsonl"), 1):
        records = read_trajectories(f"run/trajectories/train-{step:06d}.parquet")
        offenders = [t for t in records if t["excluded"] == "sandbox_violation"]
        assert len(offenders) == metrics["hack/sandbox_violation"] == metrics["group/dropped"]
        assert all(t["reward_total"] is not None for t in offenders)  # scored, and yet out
        assert not any(np.any(row["advantage"]) for t in offenders for row in t["rows"])
        rest = [t for t in records if t["excluded"] is None]
        assert metrics["group/size_mean"] == len(rest) / 2


def test_stop_saves_and_ends_the_run(capfd) -> None:
    assert cli.main([*TRAIN, "env.options.violations=true", "train.on_hack=stop"]) == 1
    said = capfd.readouterr().err
    assert "stopped after step 1 on sandbox_violation (train.on_hack=stop)" in said and "Traceback" not in said
    assert len(lines("metrics.jsonl")) == 1 and Path("run/checkpoints/step-000001").is_dir()
    assert json.loads(Path("run/run.json").read_text())["status"] == "failed"


def test_a_verifier_that_fails_is_an_event_and_no_reward() -> None:
    assert cli.main([*TRAIN, "env.options.crash=true"]) == 0
    records = [t for step in (1, 2) for t in read_trajectories(f"run/trajectories/train-{step:06d}.parquet")]
    failed = [t for t in records if t["success"] is None]
    assert sum(m["hack/verifier_exception"] for m in lines("metrics.jsonl")) == len(failed) > 0
