"""scripts/compare_credit.py: what is summed, how a run is extended to its budget, and a small comparison as a whole."""

from __future__ import annotations

import importlib
import json
import math
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

REPO = Path(__file__).resolve().parents[1]


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(REPO / "scripts"))
    return importlib.import_module("compare_credit")


def step(cost: float, success: float = 0.5) -> dict[str, Any]:
    """A line of metrics.jsonl."""
    flops = {"cost/flops_sampling": cost / 4, "cost/flops_training": cost / 2, "cost/flops_prm": cost / 4}
    return {**flops, "cost/tokens_sampled": 99.0, "success/mean": success, "time/step_s": 1.0, "train/tokens": 10.0}


def test_a_run_is_extended_up_to_its_budget(script: ModuleType, tmp_path: Path) -> None:
    settings = script.Settings(tmp_path, 100.0, 8, 1000)
    assert script.cost(step(8.0)) == 8.0
    assert script.steps_to([], settings) == 3
    assert script.steps_to([step(8.0), step(10.0), step(9.0)], settings) == 3 + 7  # 73 left at 10
    assert script.steps_to([step(10.0)] * 9 + [step(8.0)], settings) == 10  # 2 left: nothing more
    assert script.steps_to([step(1.0)] * 4, script.Settings(tmp_path, 100.0, 8, 6)) == 6
    done: list[dict[str, Any]] = []
    while (steps := script.steps_to(done, settings)) > len(done):
        done += [step(5.0 + 5.0 / (1 + n)) for n in range(len(done), steps)]  # steps get cheaper as a policy improves
    assert 94 <= sum(map(script.cost, done)) <= 100  # less than a step is left


def test_intervals_are_those_of_student(script: ModuleType) -> None:
    mean, low, high = script.mean_interval([0.2, 0.4, 0.6])
    half = 4.303 * 0.2 / math.sqrt(3)
    assert (mean, low, high) == pytest.approx((0.4, 0.4 - half, 0.4 + half))
    assert math.isnan(script.mean_interval([0.5])[1])


def test_numbers_and_table_from_runs(script: ModuleType, tmp_path: Path) -> None:
    runs: dict[int, dict[str, Path]] = {}
    for seed in (0, 1):
        runs[seed] = {}
        for arm, lines in (("GRPO", [step(30.0, 0.0), step(10.0, 1.0)]), ("GiGPO", [step(40.0, 0.5 + seed / 2)])):
            runs[seed][arm] = folder = tmp_path / f"seed{seed}" / arm
            folder.mkdir(parents=True)
            (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        success = (0.1, 0.3 + seed / 10, 0.6)
        policies = [{"panels": [{"variant": "train", "success": {"mean": s}}]} for s in success]
        (tmp_path / f"seed{seed}" / "eval").mkdir()
        (tmp_path / f"seed{seed}" / "eval" / "eval.json").write_text(json.dumps({"policies": policies}))
    settings = script.Settings(tmp_path, 40.0, 8, 100)
    found = script.measure(settings, [0, 1], ["GRPO", "GiGPO"], runs)
    one = found["arms"]["GRPO"][0]
    assert one["cost"] == [30.0, 40.0] and one["height"] == 0.25 and one["final"] == {"train": 0.3}
    text = script.table(found)
    assert "| cold start | – | – | – | – | – | 0.10 [0.10, 0.10] | – |" in text
    assert "| GRPO | 2 | 0 | 25 % |" in text
    row = next(line for line in text.splitlines() if line.startswith("| GiGPO"))
    assert "| 0.60 [0.60, 0.60] | +0.25 [" in row
    script.plot(found, tmp_path / "credit.png")
    assert (tmp_path / "credit.png").stat().st_size > 5000


def test_what_a_kill_or_an_earlier_try_left_is_no_result(script: ModuleType, tmp_path: Path, monkeypatch) -> None:
    """An evaluation of fewer steps or other arms is made anew; a folder that is no run yet is put aside."""
    made: list[str] = []

    def agentrl(*arguments: str, log: Path) -> None:
        run = Path(next(a for a in arguments if a.startswith("run.dir=")).partition("=")[2])
        assert not run.exists()
        made.append(f"{arguments[0]} {run.name}")
        (run / "checkpoints" / "step-000003").mkdir(parents=True)
        (run / "metrics.jsonl").write_text("".join(json.dumps(step(1.0)) + "\n" for _ in range(3)))
        (run / "eval.json").write_text("{}")
        (run / "run.json").write_text('{"status": "finished"}')

    monkeypatch.setattr(script, "agentrl", agentrl)
    settings = script.Settings(tmp_path, 100.0, 8, 3)
    begun = tmp_path / "seed0" / "GRPO"
    begun.mkdir(parents=True)
    (begun / "config.yaml").write_text("")  # killed between config.yaml and run.json
    run = script.train(settings, "GRPO", 0, tmp_path)
    assert made == ["train GRPO"] and (begun.parent / "GRPO.0" / "config.yaml").exists()
    script.evaluate(settings, 0, {"GRPO": run}, tmp_path)
    script.evaluate(settings, 0, {"GRPO": run}, tmp_path)
    assert made == ["train GRPO", "eval eval"]
    script.evaluate(settings, 0, {"GRPO": run, "RLOO": run}, tmp_path)
    assert made[2:] == ["eval eval"]
    (run / "metrics.jsonl").write_text(json.dumps(step(1.0)) + "\n")
    script.evaluate(settings, 0, {"GRPO": run, "RLOO": run}, tmp_path)
    assert made[3:] == ["eval eval"]


@pytest.mark.slow
def test_a_small_comparison_and_going_on_with_it(script: ModuleType, tmp_path: Path, capsys, monkeypatch) -> None:
    monkeypatch.setattr(script, "SFT", ("sft.traces=20", "sft.epochs=1"))
    arguments = [f"--out={tmp_path}", "--seeds=1", "--max-steps=2", "--tasks=4", "--jobs=1"]
    script.main([*arguments, "--arms", "GRPO"])
    first = (tmp_path / "seed0" / "GRPO" / "metrics.jsonl").read_text()
    script.main([*arguments, "--arms", "GRPO"])  # all is there: nothing runs
    assert (tmp_path / "seed0" / "GRPO" / "metrics.jsonl").read_text() == first and first.count("\n") == 2
    assert "| GRPO | 2 |" in capsys.readouterr().out
    assert {p.name for p in tmp_path.glob("credit.*")} == {"credit.json", "credit.md", "credit.png"}
