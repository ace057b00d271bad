"""advise end to end: what is measured adds up, the page says it, and wrong input is one line."""

from __future__ import annotations

import json
import re

import pytest
from chat_server import MODEL, ChatServer, serving

from agentrl import cli
from agentrl.envs.base import Outcome, Task
from agentrl.rewards import Component, Scoring
from agentrl.rollout.trajectory import Group, StopReason, Trajectory, Turn
from agentrl.stages.advise import skill_of

SMALL = (
    "env.name=finding", "env.spec=stages.finding:FindingSpec", "model=tiny", "env.max_turns=2", "env.max_turn_tokens=8",
    "rollout.max_tokens=120", "engine.threads=1", "run.tracker=none", "advise.tasks=4", "advise.samples=2",
    "eval.tasks=2", "eval.variants=[new_world]", "run.root=outputs", "run.dir=run",
    "train.steps=2", "algo.prompts_per_step=1", "algo.group_size=2",
)  # fmt: skip


class AnyAnswer(Component):
    def score(self, item: Scoring) -> float:
        return float(any(item.episode.actions))


def group(number: int, *successes: float | None, outcome: Outcome = Outcome.OK) -> Group:
    """A task's samples; None is an infrastructure error."""
    task = Task(str(number), f"{number}?", {}, "train", "train", number)
    found = []
    for member, success in enumerate(successes):
        turns = [Turn("a", "a", None, outcome, None, "", "end_of_turn")]
        found.append(Trajectory(task, member, 0, rows=[], turns=turns, success=success))
        if success is None:
            found[-1].stop_reason, found[-1].error = StopReason.ERROR, "down"
    return Group(task, found)


def test_skill_adds_up_by_task():
    groups = [group(0, 1, 0, 0, 0), group(1, 0, 0, 0, 0), group(2, 1, 1, 1, 1), group(3, 0, 0, None, 0)]
    informed = [group(0, 1, 1, 1, 1), group(1, 0, 1, 0, 0), group(2, 0, 0, 0, 0), group(3, None, None, None, None)]
    skill = skill_of(groups, informed, 4, margin=0.05, seed=0)
    assert skill.pass_1.mean == pytest.approx((0.25 + 0 + 1 + 0) / 4) and skill.pass_1.n == 4
    assert skill.pass_k.mean == pytest.approx(2 / 3) and skill.pass_k.n == 3  # task 3 has not four judged samples
    assert skill.headroom.interval.mean == pytest.approx((0.75 + 0 + 0) / 3)
    assert skill.never.mean == pytest.approx(1 / 3)
    assert skill.informed is not None and skill.informed.mean == pytest.approx((1 + 0.25 + 0) / 3)
    assert skill.rescued is not None and (skill.rescued.mean, skill.rescued.n) == (1.0, 1)  # task 1; task 3 is unknown
    assert skill.invalid == 0


def test_skill_without_evidence_or_success():
    skill = skill_of([group(i, 0, 0, outcome=Outcome.INVALID) for i in range(3)], None, 2, 0.05, 0)
    assert skill.informed is None and skill.rescued is None and skill.invalid == 1
    assert skill.pass_k.mean == 0 and skill.headroom.interval.mean == 0


def test_nothing_judged():
    skill = skill_of([group(0, None, None)], None, 2, 0.05, 0)
    assert skill.pass_1.n == 0 and json.loads(json.dumps(skill.to_dict()))["pass_1"]["mean"] is None


def test_the_page_with_a_next_base_behind_an_endpoint(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with serving(ChatServer()) as server:
        remote = ["engine=openai", f"engine.url={server.url}", f"engine.model={MODEL}"]
        assert cli.main(["advise", *SMALL, *remote, "budget.tokens=20"]) == 0
    facts = json.loads((tmp_path / "run" / "advise.json").read_text())
    assert facts["recommendation"] == "prompt" and facts["policy"] == "base"
    assert (
        "budget.tokens does not fit" in facts["reasons"][0]
        and "2 steps of training take tokens " in facts["reasons"][0]
    )
    assert facts["skill"]["pass_1"]["mean"] == 0 and facts["skill"]["solved_with_evidence"]["n"] == 4
    assert facts["reward"]["holds"] is True and "the audit passed" in facts["reward"]["words"]
    assert facts["audit"]["passed"] and facts["audit"]["tasks"] == 4 and facts["next_base"]["next_base"] == MODEL
    assert facts["next_base"]["trained"] is False and facts["next_base"]["lift"]["n"] == 2
    page = (tmp_path / "run" / "advise.md").read_text()
    said = capsys.readouterr().out
    for words in ("prompt", "never solved in 2", "handed the evidence"):
        assert words in page and words in said
    tags = {p.name.rpartition("-")[0] for p in (tmp_path / "run" / "trajectories").iterdir()}
    assert tags > {
        "advise",
        "advise-evidence",
        "advise-policy",
        "advise-next-base",
        "audit-expert",
        "audit-empty-answer",
    }
    assert len(list((tmp_path / "outputs" / "forecasts").iterdir())) == 1  # the run of this config is held against it


def test_a_reward_that_is_no_reward(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["advise", *SMALL, "reward=random"]) == 0
    facts = json.loads((tmp_path / "run" / "advise.json").read_text())
    assert facts["recommendation"] == "fix the reward first" and "control arm" in facts["reasons"][0]
    assert facts["audit"] is None and facts["cost"]["holds"] is None


def test_a_reward_that_the_audit_catches(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    broken = ["reward.components.verifiable.kind=stages.test_advise:AnyAnswer"]
    assert cli.main(["advise", *SMALL, *broken]) == 0
    facts = json.loads((tmp_path / "run" / "advise.json").read_text())
    assert facts["recommendation"] == "fix the reward first" and "the audit failed" in facts["reasons"][0]
    assert not facts["audit"]["passed"]
    assert not (tmp_path / "outputs" / "forecasts").exists()  # nothing was spent on a forecast


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--next-base", "nowhere/at/all"], r"--next-base nowhere/at/all: "),
        (["--checkpoint", "gone"], r"--checkpoint gone: there is no such folder"),
        (["eval.temperature=0"], r"eval\.temperature=0"),
        (["advise.samples=1"], r"advise\.samples must be at least 2"),
        (["engine=openai", "engine.model=m", "--next-base", "tiny"], r"give one of the two"),
        (["engine=openai"], r"needs engine\.model"),
    ],
)
def test_wrong_input(tmp_path, monkeypatch, capsys, arguments, message):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["advise", *SMALL, *arguments]) == 2
    said = capsys.readouterr().err
    assert re.search(message, said) and said.count("\n") == 1 and not (tmp_path / "run").exists()
