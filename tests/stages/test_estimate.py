"""Forecasts: the arithmetic by hand, and a real calibration held against the real run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agentrl import cli
from agentrl.config import compose
from agentrl.runs.ledger import Spent
from agentrl.stages.estimate import against_fact, amount, forecast, from_lines, key_of

SMALL = [
    "model=tiny", "env.name=calling", "env.spec=stages.calling:CallingSpec", "env.max_turns=2", "env.max_turn_tokens=6",
    "rollout.max_tokens=64", "engine.threads=1", "run.tracker=none", "algo.group_size=4", "algo.prompts_per_step=2",
]  # fmt: skip


def test_the_arithmetic() -> None:
    steps = [Spent(tokens=100, wall=2.0), Spent(tokens=120, wall=4.0)]
    found = forecast(11, Spent(tokens=90, wall=7.0), steps, Spent(wall=5.0), "USD")
    assert found.mean == Spent(tokens=90 + 10 * 110, wall=5 + 7 + 10 * 3) and found.calibration == 3
    # t = 3.078 for two samples; wall: s = sqrt 2, so 3.078 · sqrt 2 / sqrt 2 / 3 of the repeated 30, with 10 % drift
    assert found.error.wall == pytest.approx(30 * (1.026**2 + 0.1**2) ** 0.5)
    assert forecast(1, Spent(wall=7.0), [], Spent(), "USD").mean.wall == 7
    assert forecast(3, Spent(wall=7.0), [], Spent(), "USD").error.wall == pytest.approx(14 * (0.25**2 + 0.1**2) ** 0.5)


def test_saves_and_evaluations_count_as_often_as_they_come() -> None:
    cfg = compose([*SMALL, "train.steps=20", "train.save_every=5", "train.eval_every=10", "price.tool_call=1"])
    lines = [
        {"step": 0, "startup": {"wall_s": 4}},
        {"step": 1, "rollout": {"wall_s": 3, "tool_calls": 2, "tokens_sampled": 50}},
        {"step": 2, "rollout": {"wall_s": 1, "tool_calls": 2, "tokens_sampled": 50}},
        {"step": 2, "eval": {"wall_s": 6, "tokens_sampled": 8}},
        {"step": 2, "save": {"wall_s": 2}},
    ]  # fmt: skip
    found = from_lines(cfg, lines)
    assert found.mean == Spent(tokens=20 * 50 + 2 * 8, tool_calls=40, wall=4 + 3 + 19 * 1 + 2 * 6 + 4 * 2, money=40)
    cfg.train.steps = 9  # saved at 5 and at the end, never evaluated
    assert from_lines(cfg, lines).mean.wall == 4 + 3 + 8 * 1 + 2 * 2


def test_forecast_against_fact() -> None:
    found = forecast(11, Spent(wall=10.0), [Spent(wall=10.0)] * 2, Spent(), "USD")
    lines = against_fact(found, Spent(wall=140.0))
    assert len(lines) == 2 and "1:50 ± 10.0 s" in lines[1] and "fact         2:20   +27%, outside" in lines[1]
    assert "outside" not in against_fact(found, Spent(wall=105.0))[1]
    assert amount("money", 0.012342, "EUR") == "0.01234 EUR" and amount("tokens", 1234567.0, "") == "1,234,567"


def test_what_a_forecast_depends_on() -> None:
    key = key_of(compose(SMALL))
    assert key == key_of(compose([*SMALL, "run.dir=elsewhere", "budget.wall=5", "sft.traces=3"]))
    assert key != key_of(compose([*SMALL, "train.steps=3"])) and key != key_of(compose([*SMALL, "algo.group_size=3"]))


def test_estimate_then_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd) -> None:
    monkeypatch.chdir(tmp_path)
    wanted = [*SMALL, "train.steps=8", "price.tool_call=0.5", "budget.tool_calls=500", "budget.money=10"]
    assert cli.main(["estimate", *wanted, "--steps", "2"]) == 0
    said = capfd.readouterr().out
    assert (
        "tool_calls 128 ± 30   budget 500: fits" in said and "64 USD ± 15.08 USD   budget 10 USD: does not fit" in said
    )
    assert [p.name for p in Path("outputs").iterdir()] == ["forecasts"]  # the calibration left nothing behind

    assert cli.main(["train", *wanted, "budget.money=null", "run.dir=run"]) == 0
    said = capfd.readouterr().err
    assert "forecast of 8 steps: " in said and "forecast (from 2 steps) against fact:" in said
    assert "fact          128   +0%" in said
    tokens = json.loads(Path("run/run.json").read_text())["forecast"]["mean"]["tokens"]
    total = json.loads(Path("run/ledger.json").read_text())["totals"]
    assert tokens == pytest.approx(total["tokens_sampled"] + total["tokens_prefilled"], rel=0.25)

    assert cli.main(["train", *SMALL, "train.steps=6", "run.dir=own"]) == 0  # nothing was estimated: its own forecast
    assert "forecast (from 3 steps) against fact:" in capfd.readouterr().err


def test_what_cannot_be_estimated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["estimate", *SMALL, "train.steps=0"]) == 2
    assert "nothing to estimate" in capsys.readouterr().err
    assert cli.main(["estimate", *SMALL, "--steps", "0"]) == 2
