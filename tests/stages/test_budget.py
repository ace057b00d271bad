"""Real runs that stop at each budget, go on with a larger one, and count exactly what they did."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from stages.calling import CallingEnv

from agentrl import cli

SMALL = [
    "model=tiny", "env.name=calling", "env.spec=stages.calling:CallingSpec", "env.max_turns=2", "env.max_turn_tokens=6",
    "rollout.max_tokens=64", "engine.threads=1", "run.tracker=none",
]  # fmt: skip
TRAIN = [*SMALL, "algo.group_size=4", "algo.prompts_per_step=2", "algo.learning_rate=1e-3", "run.dir=run"]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def read(path: str) -> dict:
    return json.loads(Path(path).read_text())


def lines() -> list[dict]:
    return [json.loads(line) for line in Path("run/metrics.jsonl").read_text().splitlines()]


def weights(run: str) -> bytes:
    return Path(run, "checkpoints/last/model.safetensors").read_bytes()


def test_a_run_stops_at_its_tokens_and_goes_on_with_more(capfd) -> None:
    assert cli.main(["train", *TRAIN, "train.steps=5", "train.save_every=9", "run.dir=whole"]) == 0
    steps = [json.loads(line) for line in Path("whole/metrics.jsonl").read_text().splitlines()]
    tokens = [m["cost/tokens_sampled"] + m["cost/tokens_prefilled"] for m in steps]
    whole = read("whole/ledger.json")
    assert whole["totals"]["tokens_sampled"] + whole["totals"]["tokens_prefilled"] == sum(tokens)
    assert whole["totals"]["tool_calls"] == sum(m["tools/calls"] for m in steps) == 5 * 8 * 2
    assert whole["totals"]["tokens_trained"] == sum(m["train/tokens"] for m in steps)
    assert whole["totals"]["flops"] == sum(m["cost/flops_sampling"] + m["cost/flops_training"] for m in steps) > 0
    seconds = whole["totals"]["wall_s"]
    assert sum(m["time/step_s"] for m in steps) < seconds < sum(m["time/step_s"] for m in steps) + 60

    limit = int(sum(tokens[:3]))
    capfd.readouterr()
    assert cli.main(["train", *TRAIN, "train.steps=5", "train.save_every=9", f"budget.tokens={limit}"]) == 0
    said = capfd.readouterr().err
    assert f"budget.tokens spent: {limit:,} of {limit:,}: stopped after step 3, saved" in said
    facts = read("run/run.json")
    assert facts["status"] == "budget_spent" and Path("run/checkpoints/step-000003").is_dir() and len(lines()) == 3
    assert "unfinished" not in read("run/ledger.json")["components"]

    assert cli.main(["train", "run.resume=run"]) == 0  # still spent: nothing is done
    assert read("run/run.json")["status"] == "budget_spent" and len(lines()) == 3
    assert cli.main(["train", "run.resume=run", "budget.tokens=null"]) == 0
    assert read("run/run.json")["status"] == "finished" and weights("run") == weights("whole")
    again = read("run/ledger.json")["totals"]
    counted = set(again) - {"wall_s", "tool_s", "money"}
    assert {k: again[k] for k in counted} == {k: whole["totals"][k] for k in counted}


def test_a_budget_that_ends_inside_a_step() -> None:
    """The batch is cut off and not learned from; its cost is counted, its tasks come again."""
    assert cli.main(["train", *TRAIN, "train.steps=3", "run.dir=whole"]) == 0
    assert cli.main(["train", *TRAIN, "train.steps=3", "budget.tool_calls=20"]) == 0
    found = read("run/ledger.json")
    assert read("run/run.json")["status"] == "budget_spent" and len(lines()) == 1
    assert found["components"]["rollout"]["tool_calls"] == 16 and found["components"]["unfinished"]["tool_calls"] >= 4
    assert 20 <= found["totals"]["tool_calls"] < 32
    assert CallingEnv.open == 0
    assert cli.main(["train", "run.resume=run", "budget.tool_calls=1000"]) == 0
    assert weights("run") == weights("whole") and len(lines()) == 3


def test_wall_and_money() -> None:
    slow = "env.options.seconds=0.2"
    assert cli.main(["train", *TRAIN, slow, "train.steps=50", "budget.wall=6"]) == 0
    found = read("run/ledger.json")
    assert read("run/run.json")["status"] == "budget_spent" and 6 <= found["totals"]["wall_s"] < 12
    prices = ["price.tool_call=0.5", "price.currency=EUR", "budget.money=16"]
    assert cli.main(["train", *TRAIN, *prices, "train.steps=5", "run.dir=priced"]) == 0
    found = read("priced/ledger.json")
    assert found["steps"] == 2 and found["totals"]["money"] == 16 and found["price"]["currency"] == "EUR"
    page = Path("priced/report.html")
    assert cli.main(["report", "priced"]) == 0 and "EUR" in page.read_text() and "budget_spent" in page.read_text()


def test_a_budget_smaller_than_a_step_saves_the_start() -> None:
    assert cli.main(["train", *TRAIN, "train.steps=2", "budget.tokens=10"]) == 0
    assert Path("run/checkpoints/last").resolve().name == "step-000000"
    assert cli.main(["train", "run.resume=run", "budget.tokens=null"]) == 0
    assert len(lines()) == 2


def test_the_cold_start_has_budgets_too() -> None:
    sft = [*SMALL, "sft.traces=8", "sft.batch_size=2", "sft.epochs=2", "run.dir=run"]
    assert cli.main(["sft-coldstart", *sft, "budget.tokens=60"]) == 0
    found = read("run/ledger.json")
    assert read("run/run.json")["status"] == "budget_spent" and found["totals"]["tokens_trained"] >= 60
    assert found["components"]["traces"]["tool_calls"] == 16
    assert found["totals"]["flops"] > 0 and Path("run/checkpoints/last").is_dir()
    assert cli.main(["sft-coldstart", *sft, "budget.tool_calls=5", "run.dir=none"]) == 0
    assert read("none/run.json")["status"] == "budget_spent" and not Path("none/checkpoints").exists()
    assert read("none/ledger.json")["totals"]["tool_calls"] == 6


def test_evaluation_keeps_the_policies_that_were_finished(capfd) -> None:
    assert cli.main(["train", *TRAIN, "train.steps=1"]) == 0
    policies = ["--base", "--checkpoint", "run"]
    evaluate = ["eval", *SMALL, "eval.tasks=4", *policies]
    assert cli.main([*evaluate, "run.dir=both", "price.tool_call=1"]) == 0
    both = read("both/ledger.json")
    assert (
        both["totals"]["tool_calls"] == 16 and both["totals"]["money"] == 16 and both["before"][0]["stage"] == "train"
    )
    assert cli.main([*evaluate, "run.dir=one", "budget.tool_calls=11"]) == 0
    assert [p["name"] for p in read("one/eval.json")["policies"]] == ["base"]
    assert read("one/run.json")["status"] == "budget_spent"
    capfd.readouterr()
    assert cli.main([*evaluate, "run.dir=nothing", "budget.tool_calls=3"]) == 0
    assert not Path("nothing/eval.json").exists() and "evaluated: none" in capfd.readouterr().out


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        ("budget.tokens=0", "at least 1"),
        ("budget.tokens=1.5", "whole number"),
        ("budget.wall=-3", "greater than 0"),
        ("budget.wall=nan", "greater than 0"),
        ("budget.wall=2h", "must be a number"),
        ("budget.money=5", "price=free"),
        ("budget.token=5", "budget.tokens"),
        ("price=cloud", "cloud_"),
        ("price.machine_hour=-1", "at least 0"),
        ("train.on_hack=halt", "warn"),
    ],
)
def test_bad_values_are_refused(bad: str, words: str, capsys) -> None:
    for command in ("train", "eval", "sft-coldstart"):
        assert cli.main([command, *SMALL, bad]) == 2
        error = capsys.readouterr().err
        assert words in error and error.count("\n") == 1
