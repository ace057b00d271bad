"""WebShop through the command line: check-env, play, and the three stages on a tiny model."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from agentrl.cli import main
from agentrl.config.composing import compose
from agentrl.envs import check, play
from agentrl.envs.webshop.spec import WebShopSpec
from agentrl.runs import report

SMALL = ["env=webshop", "env.options.per_kind=6"]


def test_check_env(capsys: pytest.CaptureFixture[str]) -> None:
    check.main(compose(SMALL, []), tasks=4)
    assert "solves" in capsys.readouterr().out


def test_check_env_on_the_real_files(shared_data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    check.main(compose(["env=webshop_files", f"env.options.files.root={shared_data}/webshop"], []), tasks=4)
    assert "solves" in capsys.readouterr().out


def test_a_person_shops(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    cfg = compose(SMALL, [])
    spec = WebShopSpec(**cfg.env.options)
    task = next(iter(spec.tasks("train", 0)))
    actions = spec.expert(task, 0)
    assert actions is not None
    typed = [a[:1] + " " + a[a.index("[") + 1 : -1] for a in actions]  # `s words` and `c text`
    monkeypatch.setattr("sys.stdin", io.StringIO("\n".join(["?", "c buy now", *typed, "q"]) + "\n"))
    monkeypatch.setenv("COLUMNS", "200")
    play.main(cfg)
    out = capsys.readouterr().out
    assert task.question in out and "`s text` for search[text]" in out and "nothing to click" in out
    assert "[Buy Now]" in out and "success 1.00" in out and "options 1.00" in out


def test_three_stages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    common = [*SMALL, "model=tiny", "engine.threads=1", "run.tracker=none"]

    def stage(name: str, *rest: str) -> Path:
        folder = tmp_path / name
        assert main([name, *common, f"run.dir={folder}", *rest]) == 0
        return folder

    stage("sft-coldstart", "sft.traces=4", "sft.epochs=1")
    trained = stage(
        "train",
        "reward=graded",
        "train.steps=1",
        "algo.prompts_per_step=1",
        "algo.group_size=2",
        "env.max_turn_tokens=8",
    )
    metrics = [json.loads(line) for line in (trained / "metrics.jsonl").read_text().splitlines()]
    assert metrics[0]["reward/graded/mean"] == metrics[0]["score/score/mean"] and "success/mean" in metrics[0]
    page = report.write(trained).read_text()
    assert "Search page." in page and "Your errand" in page and "turn by turn" in page
    done = stage("eval", "--heldout", "eval.tasks=1", "env.max_turns=2", "env.max_turn_tokens=8")
    panels = json.loads((done / "eval.json").read_text())["panels"]
    assert [p["variant"] for p in panels] == list(WebShopSpec().variants())
