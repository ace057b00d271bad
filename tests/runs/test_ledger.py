"""Counting: operations against hand-worked numbers, sums by component, prices, and kills that count nothing twice."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from transformers import LlamaConfig, LlamaForCausalLM

from agentrl.config.schema import BudgetConfig, Config, PriceConfig
from agentrl.learn.packing import pack
from agentrl.rollout.trajectory import Origin, Row
from agentrl.runs.budget import Budget, BudgetSpent
from agentrl.runs.folder import Run
from agentrl.runs.ledger import BOOK, Ledger, ModelShape, Spent, money, shape_of

SHAPE = ModelShape(weights=100, trainable=100, attention=10)
COUNTS = {
    "tokens_sampled": 3.0,
    "tokens_prefilled": 4.0,
    "attended_sampled": 18.0,
    "attended_prefilled": 10.0,
    "tool_calls": 2.0,
    "tool_s": 0.5,
}


def book(folder: Path, **prices: float) -> Ledger:
    made = Ledger(folder, "train", PriceConfig(**prices))
    made.shape = SHAPE
    return made


def test_operations_by_hand() -> None:
    assert SHAPE.forward(3, 18) == 2 * 100 * 3 + 4 * 10 * 18
    assert SHAPE.training(3, 18) == 6 * 100 * 3 + 12 * 10 * 18
    assert ModelShape(100, 5, 10).training(3, 0) == (4 * 100 + 2 * 5) * 3


@pytest.mark.parametrize("tied", [True, False])
def test_the_shape_of_a_model(tied: bool) -> None:
    config = LlamaConfig(
        vocab_size=50,
        hidden_size=8,
        intermediate_size=16,
        num_hidden_layers=3,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=6,
        tie_word_embeddings=tied,
    )
    model = LlamaForCausalLM(config)
    layer = 8 * 12 + 2 * 8 * 6 + 12 * 8 + 3 * 8 * 16 + 2 * 8  # q; k, v; o; MLP; norms
    expected = 3 * layer + 8 + 50 * 8  # the head; an untied input embedding is only looked up
    assert shape_of(model) == ModelShape(expected, expected, 3 * 2 * 6)
    for p in model.model.layers.parameters():
        p.requires_grad_(False)
    assert shape_of(model).trainable == 8 + 50 * 8


def test_attended_pairs_of_packed_rows() -> None:
    """Prompt of 3 computed once for two rows of 2 and 4 more tokens; each token sees what is before it and itself."""
    rows = [Row.from_prompt([1, 2, 3]) for _ in range(2)]
    for row, n in zip(rows, (2, 4), strict=True):
        row.append(list(range(n)), Origin.SAMPLED, 0, [0.0] * n)
    (batch,) = pack(rows, 1000)
    assert len(batch.ids) == 9 and batch.attended == (1 + 2 + 3) + (4 + 5) + (4 + 5 + 6 + 7)
    assert sum(b.attended for b in pack(rows, 5)) == (1 + 2 + 3 + 4 + 5) + (1 + 2 + 3 + 4 + 5 + 6 + 7)


def test_a_step_by_component(tmp_path: Path) -> None:
    ledger = book(tmp_path, machine_hour=3.6, tool_call=0.5, judge_call=1.0, judge_tokens_in=2e6, judge_tokens_out=4e6)
    ledger.sampled("rollout", COUNTS, seconds=9.0)
    ledger.scored("rollout", {"cost/judge_calls": 2, "cost/judge_tokens_in": 7, "cost/judge_tokens_out": 1,
                              "cost/prm_tokens_trained": 5, "time/rewards_s": 1.0})  # fmt: skip
    ledger.trained("update", {"train/tokens": 6, "train/attended": 21, "train/tokens_forward": 6}, seconds=2.0)
    metrics = ledger.close(1)
    sampling, training = 200 * 7 + 40 * 28, 600 * 6 + 120 * 21 + 200 * 6
    assert metrics["cost/flops_sampling"] == sampling and metrics["cost/flops_training"] == training
    found = json.loads((tmp_path / "ledger.json").read_text())
    parts = found["components"]
    assert parts["rollout"]["wall_s"] == 8 and parts["rewards"]["wall_s"] == 1 and parts["update"]["wall_s"] == 2
    assert parts["judge"] == {"calls": 2, "tokens_in": 7, "tokens_out": 1, "flops": 0, "money": 2 + 14 + 4}
    assert parts["rollout"]["flops_decode"] == 600 + 720 and parts["rollout"]["flops_prefill"] == 800 + 400
    totals = found["totals"]
    assert totals["flops"] == sampling + training and totals["tool_calls"] == 2 and totals["tool_s"] == 0.5
    assert totals["judge_calls"] == 2 and totals["prm_tokens_trained"] == 5 and totals["wall_s"] == 11
    assert metrics["cost/money"] == pytest.approx(3.6 * 11 / 3600 + 2 * 0.5 + 20)
    assert totals["money"] == pytest.approx(metrics["cost/money"], abs=1e-6)
    assert ledger.spent().tokens == 3 + 4 + 7 + 1


def test_prices_of_an_api_policy() -> None:
    price = PriceConfig(policy_tokens_in=1.0, policy_tokens_out=3.0)
    assert money(price, "eval", {"tokens_prefilled": 2e6, "tokens_sampled": 1e6}) == 5.0


def test_seconds_that_no_clock_saw_are_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("agentrl.runs.ledger.time.monotonic", lambda: now[0])
    ledger = book(tmp_path)
    now[0] = 104.0
    with ledger.timed("startup"):
        now[0] = 107.0
    assert ledger.spent().wall == 7
    ledger.close(0)
    now[0] = 108.0
    ledger.close(1)
    assert ledger.totals() == {"wall_s": 8}
    assert ledger.components["other"]["wall_s"] == 5 and ledger.components["startup"]["wall_s"] == 3


def test_a_resumed_run_counts_each_step_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps 3 and 4 were lost: they are done again, and what they cost before is told apart."""
    monkeypatch.chdir(tmp_path)
    cfg = Config()
    cfg.run.tracker, cfg.run.dir = "none", "run"
    run = Run.create(cfg, "train", [])

    def steps(run: Run, first: int, last: int) -> None:
        run.ledger.shape = SHAPE
        for step in range(first, last + 1):
            run.ledger.sampled("rollout", {**COUNTS, "tokens_sampled": float(step)})
            run.record(step, run.ledger.close(step))

    steps(run, 1, 4)
    with open(run.dir / BOOK, "a") as file:
        file.write('{"step": 5, "rollout": {"tokens_sam')  # killed while writing
    run._lock.close()
    for _ in range(2):  # killed again before anything was done
        again = Run.open(run.dir)
        again.rewind(2)
        again._lock.close()
    assert again.ledger.totals()["tokens_sampled"] == 1 + 2
    again = Run.open(run.dir)
    again.rewind(2)
    steps(again, 3, 4)
    again.finish()
    found = json.loads((run.dir / "ledger.json").read_text())
    assert found["totals"]["tokens_sampled"] == 1 + 2 + 3 + 4 and found["totals"]["tool_calls"] == 8
    assert found["redone"]["tokens_sampled"] == 3 + 4 and found["redone"]["tool_calls"] == 4
    assert found["steps"] == 4 and again.facts()["costs"] == found["totals"]
    again = Run.open(run.dir)
    again.rewind(0)
    assert again.ledger.totals() == {} and again.ledger.summary()["redone"]["tool_calls"] == 12


def test_the_first_budget_that_is_spent(tmp_path: Path) -> None:
    ledger = book(tmp_path, tool_call=2.0)
    budget = Budget(BudgetConfig(tokens=10, tool_calls=4, money=100.0), ledger)
    ledger.sampled("rollout", COUNTS)
    assert budget.spent() is None
    assert budget.spent(Spent(tokens=3)) is None  # a running step may land on the limit
    assert str(budget.spent(Spent(tokens=4))) == "budget.tokens spent: 11 of 10"
    check = budget.checking(lambda: {"tool_calls": 3.0})
    assert check is not None
    with pytest.raises(BudgetSpent, match=r"budget\.tool_calls spent: 5 of 4"):
        check()
    ledger.close(1)
    assert str(budget.spent(Spent(money=97))) == "budget.money spent: 101 USD of 100 USD"
    ledger.add("tools", tool_calls=2)
    assert str(budget.spent()) == "budget.tool_calls spent: 4 of 4"
    assert Budget(BudgetConfig(), ledger).checking(dict) is None


def test_the_cold_start_counts_trained_tokens(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path, "sft", PriceConfig())
    ledger.trained("update", {"train/tokens": 50})
    assert ledger.spent().tokens == 50


def test_runs_before_this_one(tmp_path: Path) -> None:
    for name, start in (("sft", None), ("train", "sft"), ("eval", None)):
        folder = tmp_path / name
        folder.mkdir()
        facts = {"stage": name, "starts_from": str(tmp_path / start / "checkpoints/step-000001") if start else None}
        if name == "eval":
            facts["checkpoints"] = [str(tmp_path / "train/checkpoints/step-000002"), None]
        (folder / "run.json").write_text(json.dumps(facts))
        ledger = Ledger(folder, name, PriceConfig())
        ledger.add("update", tokens_trained=len(name))
        ledger.close(1)
    found = Ledger(tmp_path / "eval", "eval", PriceConfig()).summary()["before"]
    assert [(b["stage"], b["totals"]["tokens_trained"]) for b in found] == [("train", 5), ("sft", 3)]
