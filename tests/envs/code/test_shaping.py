"""Optional reward components: golden numbers of verl's recipe, and that they are apart from the outcome."""

from __future__ import annotations

import pytest

from agentrl.config import compose
from agentrl.envs.base import Episode, Outcome, Task, Verdict
from agentrl.envs.code.shaping import Runs, ToolUse
from agentrl.envs.code.spec import CodeSpec
from agentrl.rewards import build
from agentrl.rewards.base import Scoring
from agentrl.rollout.trajectory import Row, Trajectory, Turn

TASK = Task("t", "What is 6 * 7?", {"answer": "42", "kind": "number"}, "train", "train")


def scoring(statuses: list[str], success: float) -> Scoring:
    turns = [Turn("", "", "", Outcome.OK, None, "", "stop_string", tool_calls=1, info={"status": s}) for s in statuses]
    trajectory = Trajectory(TASK, 0, 0, [Row.from_prompt([1])], turns)
    return Scoring(trajectory, Episode(TASK, "", [], [], []), Verdict(success), None, 0)


@pytest.mark.parametrize(("turns", "score"), [(2, -1.0), (4, -0.9), (8, -0.7), (10, -0.6), (16, -0.6)])
def test_tool_use_with_minus_one_is_the_score_of_verls_recipe(turns: int, score: float) -> None:
    calls = (turns - 2) // 2
    bonus = ToolUse(CodeSpec(), 0)
    assert -1 + bonus.score(scoring(["ok"] * calls, 0.0)) == pytest.approx(score)
    assert bonus.score(scoring(["ok"] * calls, 1.0)) == 0


def test_the_share_of_programs_that_ran() -> None:
    runs = Runs(CodeSpec(), 0)
    assert runs.score(scoring(["ok", "error", "timeout_cpu", "ok"], 0.0)) == 0.5
    assert runs.score(scoring([], 0.0)) == 0


def test_retool_pays_plus_and_minus_one() -> None:
    cfg = compose(["env=code", "reward=retool"])
    rewards = build(cfg.reward, CodeSpec(), 0)
    outcome = rewards.components["verifiable"]
    assert [outcome.score(scoring(["ok"], s)) for s in (1.0, 0.0, 0.5)] == [1.0, -1.0, 0.0]
    assert rewards.weights == {"verifiable": 1.0, "tool_use": 0.0, "runs": 0.0}
