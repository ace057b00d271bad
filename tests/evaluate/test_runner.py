"""How trajectories add up: errors are counted and never zeros, samples cluster by task, pairs are by task."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

import pytest

from agentrl.envs.base import EnvSpec, Outcome, Task
from agentrl.evaluate import runner, tables
from agentrl.evaluate.intervals import wilson
from agentrl.evaluate.panels import Panel, build_panel
from agentrl.rollout.sampling import Sampling
from agentrl.rollout.trajectory import Costs, Group, StopReason, Trajectory, Turn

PLAIN = Sampling(1.0, 1.0, 0, 0.0)


def make(task: Task, member: int, success: float | None, error: bool = False) -> Trajectory:
    """A finished trajectory as collector and rewards leave it."""
    return Trajectory(
        task,
        member,
        0,
        rows=[],
        turns=[
            Turn("a", "a", "b", Outcome.INVALID, "why", "", "end_of_turn"),
            Turn("c", "c", None, Outcome.OK, None, "", "eos"),
        ],
        stop_reason=StopReason.ERROR if error else StopReason.DONE,
        error="server down" if error else None,
        success=None if error else success,
        scores={} if success is None or error else {"f1": success / 2 + 0.5},
        costs=Costs(tokens_sampled=10, tokens_prefilled=30, tool_calls=1, tool_seconds=0.25),
    )


class Canned:
    """Collector and rewards in one, for aggregation only: outcomes come from a function of task index and member."""

    def __init__(self, outcome: Callable[[int, int], float | str | None]) -> None:
        self.outcome = outcome

    def collect(self, tasks, members, sampling, seed, step, on_progress=None) -> list[Group]:  # type: ignore[no-untyped-def]
        groups = []
        for index, task in enumerate(tasks):
            found = [self.outcome(index, m) for m in range(members)]
            groups.append(
                Group(task, [make(task, m, None if f == "error" else f, f == "error") for m, f in enumerate(found)])  # type: ignore[arg-type]
            )
        return groups

    def score(self, groups: Sequence[Group], step: int) -> dict[str, float]:
        return {}


@pytest.fixture
def panels(toy: EnvSpec) -> list[Panel]:
    return [build_panel(toy, v, 8, 1) for v in ("train", "bigger", "few")]


def evaluate(
    panels: list[Panel], outcome: Callable[[int, int], float | str | None], samples: int = 1, name: str = "p"
) -> runner.PolicyResult:
    canned = Canned(outcome)
    return runner.evaluate_policy(canned, canned, panels, samples, PLAIN, 0, name=name, model="toy", step=4)


def test_panel_entry(panels: list[Panel]) -> None:
    result = evaluate(panels, lambda i, m: float(i < 6))
    train, bigger, few = result.panels
    expected = wilson(6, 8)
    assert train["success"] == expected.to_dict() and bigger["success"]["mean"] == 0
    assert (train["variant"], train["split"], train["panel_hash"]) == ("train", "train", panels[0].hash)
    assert few["n"] == 3 and "only 3" in few["note"]
    assert train["score"]["f1"]["mean"] == 0.875
    assert train["turns"] == 2 and train["tool_calls"] == 1 and train["stop_reasons"] == {"done": 8}
    assert train["invalid_actions"] == 8 and train["pass_at_k"]["1"]["mean"] == 0.75
    cost = train["cost"]
    assert (cost["tokens_sampled"], cost["tokens_prefilled"], cost["tool_calls"], cost["tool_seconds"]) == (
        80,
        240,
        8,
        2,
    )
    assert sum(p["cost"]["wall_s"] for p in result.panels) == pytest.approx(result.wall_s, abs=0.01)
    assert all(t.policy_step == 4 for groups in result.groups for g in groups for t in g.trajectories)
    json.dumps(result.to_dict(), allow_nan=False)


def test_errors_are_counted_and_never_zero(panels: list[Panel]) -> None:
    outcomes = {0: "error", 1: None}  # task 0: infrastructure; task 1: the verifier failed
    train = evaluate(panels, lambda i, m: outcomes.get(i, 1.0)).panels[0]
    assert train["success"]["mean"] == 1 and train["success"]["n"] == 6
    assert train["errors"] == 1 and train["not_judged"] == 1 and train["n"] == 8 and train["trajectories"] == 8
    assert train["cost"]["tokens_sampled"] == 80 and train["stop_reasons"] == {"error": 1, "done": 7}


def test_all_errors_give_no_number(panels: list[Panel]) -> None:
    result = evaluate(panels, lambda i, m: "error")
    assert result.panels[0]["success"]["mean"] is None and result.panels[0]["turns"] is None and result.gap == {}
    json.dumps(result.to_dict(), allow_nan=False)


def test_several_samples(panels: list[Panel]) -> None:
    train = evaluate(panels, lambda i, m: float(m < i % 3), samples=6).panels[0]
    assert sorted(train["pass_at_k"], key=int) == ["1", "2", "4", "6"]
    assert train["success"]["n"] == 8 and train["success"]["method"] == "bootstrap"
    assert train["pass_at_k"]["1"]["mean"] == pytest.approx(train["success"]["mean"])
    assert train["pass_at_k"]["6"]["mean"] == 5 / 8


def test_pass_at_k_leaves_out_tasks_with_too_few_judged_samples(panels: list[Panel]) -> None:
    train = evaluate(panels, lambda i, m: "error" if i == 0 and m == 0 else 1.0, samples=2).panels[0]
    assert train["pass_at_k"]["1"]["n"] == 8 and train["pass_at_k"]["2"]["n"] == 7


def test_gap(panels: list[Panel]) -> None:
    """Train 1, bigger 0, few 0: the gap is 1 and clearly so."""
    gap = evaluate(panels, lambda i, m: float(i < 8)).gap
    assert gap["success"]["mean"] == 1 and gap["success"]["low"] > 0.5 and set(gap["variants"]) == {"bigger", "few"}
    assert gap["heldout"]["mean"] == 0 and gap["train"]["mean"] == 1
    assert evaluate(panels[1:], lambda i, m: 1.0).gap == {}


def test_lift_is_paired_by_task_and_skips_errors(panels: list[Panel]) -> None:
    before = evaluate(panels, lambda i, m: float(i % 2), name="before")
    after = evaluate(panels, lambda i, m: "error" if i == 0 else 1.0, name="after")
    entries = runner.lifts(panels, [before, after], 0)
    assert [(e["variant"], e["success"]["n"]) for e in entries] == [("train", 7), ("bigger", 8), ("few", 3)]
    assert entries[0]["success"]["mean"] == pytest.approx(3 / 7)
    assert runner.lifts(panels, [before], 0) == []
    lines = tables.lift_lines(entries)
    assert lines[0] == "after against before, paired by task:" and "train" in lines[1] and "training" in lines[1]


def test_wrong_order_from_a_collector_is_refused(panels: list[Panel]) -> None:
    class Shuffled(Canned):
        def collect(self, *args, **kwargs) -> list[Group]:  # type: ignore[no-untyped-def]
            return super().collect(*args, **kwargs)[::-1]

    canned = Shuffled(lambda i, m: 1.0)
    with pytest.raises(AssertionError, match="order of the tasks"):
        runner.evaluate_policy(canned, canned, panels, 1, PLAIN, 0, name="p", model="toy")


def test_quick_eval(panels: list[Panel]) -> None:
    canned = Canned(lambda i, m: "error" if i == 0 else float(i < 4))
    numbers = runner.quick_eval(canned, canned, panels[0].tasks, seed=0, step=3)
    assert numbers["eval/success"] == pytest.approx(3 / 7) and numbers["eval/n"] == 7 and numbers["eval/errors"] == 1
    assert numbers["eval/success_low"] < 3 / 7 < numbers["eval/success_high"] and numbers["eval/turns"] == 2
    nothing = Canned(lambda i, m: "error")
    assert "eval/success" not in runner.quick_eval(nothing, nothing, panels[0].tasks, seed=0, step=3)
