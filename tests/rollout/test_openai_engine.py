"""Episodes over a chat endpoint: a real model behind a real server, in real environments."""

from __future__ import annotations

import pytest
from chat_server import MODEL, ChatServer, refuse, say, serving
from rollout.scripted import ScriptedSpec, make_task

from agentrl.config import compose
from agentrl.envs.base import Observation, Outcome
from agentrl.envs.registry import load_spec
from agentrl.errors import RunError, UserError
from agentrl.rollout.openai_engine import ChatCollector, shorten
from agentrl.rollout.sampling import Sampling
from agentrl.rollout.trajectory import StopReason


@pytest.fixture(scope="module")
def shared():
    with serving(ChatServer()) as server:
        yield server


@pytest.fixture
def server(shared):
    shared.requests.clear()
    shared.faults.clear()
    shared.key, shared.usage = None, True
    return shared


def collector(server: ChatServer, spec, *overrides: str) -> ChatCollector:
    cfg = compose(
        ["engine=openai", f"engine.url={server.url}", f"engine.model={MODEL}", "engine.slots=2", "engine.retries=0",
         "env.max_turns=3", "env.max_turn_tokens=8", *overrides]
    )  # fmt: skip
    return ChatCollector(spec, cfg.env, cfg.rollout, cfg.engine)


def scripts(*kinds: str):
    return make_task(0, [{"kind": k, "text": "hello"} for k in kinds])


def test_an_episode_is_recorded_as_the_local_engine_would(server):
    spec = ScriptedSpec()
    task = scripts("ok", "invalid", "done")
    (group,) = collector(server, spec).collect([task], 2, Sampling(), seed=1, step=7)
    assert [t.member for t in group.trajectories] == [0, 1]
    for t in group.trajectories:
        assert t.stop_reason is StopReason.DONE and t.policy_step == 7 and t.rows == []
        assert [turn.outcome for turn in t.turns] == [Outcome.OK, Outcome.INVALID, Outcome.OK]
        assert t.turns[0].observation == "\n<result>hello</result>\n" and t.turns[2].observation is None
        assert all(turn.text.startswith(turn.action) for turn in t.turns) and t.answer == (t.turns[-1].action or None)
        assert t.costs.tool_calls == 2 and t.costs.tool_seconds == pytest.approx(0.5, abs=0.1)
        assert 3 <= t.costs.tokens_sampled <= 24 and t.costs.tokens_prefilled > 30
        assert "user: <result>hello</result>" in t.text
    assert spec.closed == 2
    last = server.requests[-1]["messages"]
    assert [m["role"] for m in last] == ["user", "assistant", "user", "assistant", "user"]
    # Members and turns draw from streams of their own, and the same seed draws the same.
    assert len({r["seed"] for r in server.requests}) == 6
    (again,) = collector(server, spec).collect([task], 2, Sampling(), seed=1, step=7)
    assert [t.text for t in again.trajectories] == [t.text for t in group.trajectories]


def test_actions_are_cut_at_the_stop_string_here(server):
    spec = load_spec(compose(["env=search"]).env)
    task = next(iter(spec.tasks("train", 0)))
    gold = spec.gold_answers(task)[0]
    server.faults.extend(
        [say("<search> a river </search> and <answer> x </answer>"), say(f"<answer> {gold} </answer>, I think")]
    )
    (group,) = collector(server, spec, "engine.slots=1").collect([task], 1, Sampling(), 0, 0)
    (t,) = group.trajectories
    assert [turn.action for turn in t.turns] == ["<search> a river </search>", f"<answer> {gold} </answer>"]
    assert t.turns[0].text.endswith("<answer> x </answer>") and t.turns[0].stop == "stop_string"
    assert t.answer == gold and t.stop_reason is StopReason.DONE and t.turns[0].tool_calls == 1
    assert "<information>" in server.requests[1]["messages"][-1]["content"]
    assert server.requests[1]["messages"][1]["content"] == "<search> a river </search>"


def test_limits(server):
    task = scripts("ok")
    (group,) = collector(server, ScriptedSpec(), "env.max_turns=2").collect([task], 1, Sampling(), 0, 0)
    assert group.trajectories[0].stop_reason is StopReason.TURN_LIMIT and len(group.trajectories[0].turns) == 2
    for usage in (True, False):  # without counts, characters stand in
        server.usage = usage
        (group,) = collector(server, ScriptedSpec(), "env.max_turns=50", "rollout.max_tokens=60").collect(
            [task], 1, Sampling(), 0, 0
        )
        assert group.trajectories[0].stop_reason is StopReason.CONTEXT_OVERFLOW and group.trajectories[0].turns
        assert server.requests[-1]["max_tokens"] <= 8


@pytest.mark.parametrize("kinds", [("fatal",), ("raise",), ("ok", "raise")])
def test_a_broken_environment_ends_its_own_episode(server, kinds):
    tasks = [scripts("done"), make_task(1, [{"kind": k, "text": ""} for k in kinds])]
    fine, broken = collector(server, ScriptedSpec()).collect(tasks, 1, Sampling(), 0, 0)
    assert fine.trajectories[0].stop_reason is StopReason.DONE
    assert broken.trajectories[0].stop_reason is StopReason.ERROR and broken.trajectories[0].error


def test_a_failed_call_is_an_error_of_its_episode_and_never_a_zero(server):
    server.faults.append(refuse(429))
    tasks = [make_task(i, [{"kind": "done"}]) for i in range(3)]
    groups = collector(server, ScriptedSpec(), "engine.slots=1").collect(tasks, 1, Sampling(), 0, 0)
    first, *others = [g.trajectories[0] for g in groups]
    assert first.stop_reason is StopReason.ERROR and first.error.startswith("rate_limit: ")
    assert all(t.stop_reason is StopReason.DONE for t in others)


def test_nothing_came_through(server):
    server.faults.extend([refuse(503)] * 4)
    tasks = [make_task(i, [{"kind": "done"}]) for i in range(4)]
    with pytest.raises(RunError, match="all 4 episodes failed: unavailable"):
        collector(server, ScriptedSpec()).collect(tasks, 1, Sampling(), 0, 0)


def test_a_wrong_key_or_model_stops_at_once(server, monkeypatch):
    tasks = [make_task(i, [{"kind": "done"}]) for i in range(40)]
    server.key = "right"
    with pytest.raises(UserError, match="OPENAI_API_KEY"):
        collector(server, ScriptedSpec()).collect(tasks, 1, Sampling(), 0, 0)
    server.key = None
    with pytest.raises(UserError, match=r"does not exist"):
        collector(server, ScriptedSpec(), "engine.model=tony").collect(tasks, 1, Sampling(), 0, 0)
    assert len(server.requests) < 20


def test_truncation_that_the_protocol_does_not_have(server):
    with pytest.raises(UserError, match="top_k"):
        collector(server, ScriptedSpec()).collect([scripts("done")], 1, Sampling(top_k=5), 0, 0)


@pytest.mark.parametrize("size", [0, 10, 79, 80, 81, 5000])
def test_observations_are_cut_in_the_middle(size):
    text = "".join(chr(97 + i % 26) for i in range(size))
    shown = shorten(Observation(text, "<i>", "</i>"), 21)
    assert shown.startswith("<i>" + text[:30]) and shown.endswith(text[size - 30 :] + "</i>" if size > 30 else "</i>")
    assert (shown == f"<i>{text}</i>") == (size <= 77)
    assert len(shown) < 84 + 40


@pytest.mark.parametrize("stage", ["train", "sft"])
def test_it_is_for_evaluation_only(stage):
    with pytest.raises(UserError, match="evaluation only"):
        compose(["engine=openai", "engine.model=m"], stage=stage)
    with pytest.raises(UserError, match=r"engine\.model"):
        compose(["engine=openai"], stage="eval")


def test_a_window_shows_the_task_and_the_last_steps(server):
    spec = ScriptedSpec()
    task = scripts("ok", "ok", "ok", "done")
    run = collector(server, spec, "rollout.window=1", "env.max_turns=4", "engine.slots=1")
    (group,) = run.collect([task], 1, Sampling(), seed=1, step=0)
    (trajectory,) = group.trajectories
    sent = [r["messages"] for r in server.requests]
    assert [len(m) for m in sent] == [1, 3, 3, 3] and len(trajectory.turns) == 4
    assert sent[1][0]["content"] == task.question
    for number in (2, 3):
        assert sent[number][0]["content"] == f"{task.question}\n[{number - 1} earlier steps not shown]"
        assert sent[number][1]["content"] == trajectory.turns[number - 1].action
