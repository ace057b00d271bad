"""Episodes from the first prompt to the last token: rows, turns, stop reasons, scheduling."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from functools import partialmethod

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from models.families import FAMILIES
from rollout.kits import Kit
from rollout.scripted import KINDS, ScriptedEnv, ScriptedSpec, make_task, random_script

from agentrl.config.schema import EngineConfig, EnvConfig, RewardComponentConfig, RewardConfig, RolloutConfig
from agentrl.envs.base import EnvSpec, Observation, Outcome, Task, Transition
from agentrl.envs.search.spec import SearchSpec
from agentrl.rewards import build
from agentrl.rollout.collector import Collector
from agentrl.rollout.engine import LocalEngine, Sequence_
from agentrl.rollout.metrics import rollout_metrics
from agentrl.rollout.sampling import Sampling
from agentrl.rollout.trajectory import Group, Origin, StopReason, Trajectory

OK = {"kind": "ok", "text": "some text"}


class WatchedEngine(LocalEngine):
    """Also writes down every token that each sequence really went through the model with."""

    def __init__(self, *args):
        super().__init__(*args)
        self.seen: dict[int, tuple[Sequence_, list[int]]] = {}

    def start(self, prompt, shared, noise):
        sequence = super().start(prompt, shared, noise)
        self.seen[id(sequence)] = (sequence, list(prompt))
        return sequence

    def resume(self, sequence: Sequence_, ids, noise, keep=None):
        seen = self.seen[id(sequence)][1]
        del seen[keep:]
        seen.extend(ids)
        super().resume(sequence, ids, noise, keep)

    def step(self):
        ended = super().step()
        for sequence in ended:
            self.seen[id(sequence)][1].extend(sequence.action.ids)
        return ended


def collect(
    kit: Kit,
    spec: EnvSpec,
    tasks: Sequence[Task],
    members: int = 3,
    slots: int = 4,
    max_tokens: int = 300,
    max_turns: int = 4,
    max_turn_tokens: int = 10,
    max_obs_tokens: int = 24,
    workers: int = 4,
    deterministic: bool = True,
    seed: int = 0,
    on_progress=None,
) -> tuple[list[Group], LocalEngine]:
    engine = WatchedEngine(kit.model, kit.renderer, slots, max_tokens, spec.stop)
    env = EnvConfig(
        max_turns=max_turns, max_turn_tokens=max_turn_tokens, max_obs_tokens=max_obs_tokens, tool_workers=workers
    )
    scheduling = EngineConfig(slots=slots, deterministic=deterministic)
    collector = Collector(engine, kit.renderer, spec, env, RolloutConfig(max_tokens=max_tokens), scheduling)
    groups = collector.collect(tasks, members, Sampling(), seed, step=7, on_progress=on_progress)
    assert not engine.live and not engine.busy and not engine.prefixes
    return groups, engine


def check(kit: Kit, spec: EnvSpec, trajectory: Trajectory, max_turn_tokens: int = 10, max_tokens: int = 300) -> None:
    """Everything that holds for every trajectory."""
    renderer, row, turns = kit.renderer, trajectory.rows[0], trajectory.turns
    ids = row.ids.tolist()
    assert len({len(a) for a in (row.ids, row.origin, row.logprobs, row.turn, row.advantage)}) == 1
    prompt = renderer.prompt(spec.make().reset(trajectory.task))
    assert ids[: row.prompt_length] == prompt and len(trajectory.rows) == 1
    # Spans alternate exactly as the turns say.
    runs = [(k, len(list(g))) for k, g in itertools.groupby(zip(row.origin.tolist(), row.turn.tolist(), strict=True))]
    expected = [(Origin.PROMPT, -1)]
    for t, turn in enumerate(turns):
        expected.append((Origin.SAMPLED, t))
        if turn.observation is not None:
            expected.append((Origin.OBSERVATION, t))
    assert [k for k, _ in runs] == expected
    assert all(t.observation is not None for t in turns[:-1])
    # Text and tokens say the same.
    assert trajectory.text == renderer.decode(ids)
    at, text = row.prompt_length, renderer.span(ids, 0, row.prompt_length)
    for t, turn in enumerate(turns):
        n = int(((row.turn == t) & (row.origin == Origin.SAMPLED)).sum())
        assert 1 <= n <= max_turn_tokens
        ended = ids[at + n - 1] in renderer.end_ids
        assert turn.text == renderer.span(ids, at, at + n) and turn.text.startswith(turn.action)
        text += turn.text
        if turn.stop == "stop_string":
            assert turn.action.endswith(tuple(spec.stop)) and not ended
            assert min(turn.text.find(s) + len(s) for s in spec.stop if s in turn.text) == len(turn.action)
            assert not any(s in renderer.span(ids, at, at + n - 1) for s in spec.stop)
        elif turn.stop == "end_of_turn":
            assert ended and turn.action == renderer.span(ids, at, at + n - 1)
        else:
            assert turn.action == turn.text
            assert n == max_turn_tokens if turn.stop == "turn_token_limit" else len(row) == max_tokens
        assert not any(i in renderer.end_ids for i in ids[at : at + n - 1])
        at += n
        if turn.observation is not None:
            m = int(((row.turn == t) & (row.origin == Origin.OBSERVATION)).sum())
            assert renderer.decode(ids[at : at + m], start=False) == turn.observation
            text += renderer.span(ids, at, at + m)
            at += m
    assert at == len(row) <= max_tokens and text == trajectory.text
    assert (row.logprobs[~row.sampled] == 0).all() and (row.logprobs[row.sampled] <= 0).all()
    assert np.isfinite(row.logprobs).all() and (row.advantage == 0).all()
    assert (trajectory.error is not None) == (trajectory.stop_reason is StopReason.ERROR)
    assert trajectory.costs.tokens_sampled == row.sampled.sum()
    assert trajectory.costs.tool_calls == sum(t.tool_calls for t in turns)
    assert trajectory.costs.tool_seconds == pytest.approx(sum(t.tool_seconds for t in turns))


def everything(groups: list[Group]) -> list:
    """All that two equal rollouts share, bit for bit (times aside)."""
    return [
        (
            t.id,
            t.stop_reason,
            t.error,
            t.answer,
            t.text,
            t.rows[0].ids.tobytes(),
            t.rows[0].origin.tobytes(),
            t.rows[0].logprobs.tobytes(),
            t.rows[0].turn.tobytes(),
            [(u.text, u.action, u.observation, u.outcome, u.error, u.state_key, u.stop) for u in t.turns],
        )
        for g in groups
        for t in g.trajectories
    ]


def tasks_of(n: int, seed: int = 0) -> list[Task]:
    return [make_task(i, random_script(random.Random(f"{seed}/{i}"))) for i in range(n)]


@pytest.mark.parametrize("family", FAMILIES)
def test_rows_turns_and_text_agree_for_every_template(kits, family):
    kit, spec = kits(family), ScriptedSpec()
    groups, engine = collect(kit, spec, tasks_of(4))
    seen = {tuple(ids) for _, ids in engine.seen.values()}
    for trajectory in (t for g in groups for t in g.trajectories):
        check(kit, spec, trajectory)
        assert tuple(trajectory.rows[0].ids.tolist()) in seen  # the row is what went through the model
    stops = {u.stop for g in groups for t in g.trajectories for u in t.turns}
    assert "stop_string" in stops
    assert spec.closed == 12


def test_the_prompt_of_each_turn_extends_that_of_the_one_before(kits, monkeypatch):
    kit, spec = kits("tiny"), ScriptedSpec()
    prompts: dict[int, list[list[int]]] = {}

    class Recording(WatchedEngine):
        def step(self):
            for s in (s for s in self.live if s.action is not None and not s.action.ids):
                now = list(self.seen[id(s)][1])
                if prompts.setdefault(id(s), []) == [] or prompts[id(s)][-1] != now:
                    prompts[id(s)].append(now)
            return super().step()

    monkeypatch.setattr("test_collector.WatchedEngine", Recording)
    collect(kit, spec, tasks_of(3))
    longest = 0
    for turns in prompts.values():
        longest = max(longest, len(turns))
        for before, after in itertools.pairwise(turns):
            assert after[: len(before)] == before and len(after) > len(before)
    assert longest > 1


def test_the_search_environment(kits):
    kit, spec = kits("tiny"), SearchSpec()
    spec.prepare()
    tasks = list(itertools.islice(spec.tasks("train", 0), 2))
    groups, _ = collect(kit, spec, tasks, max_tokens=700, max_turn_tokens=24, max_obs_tokens=64)
    for g in groups:
        assert len(g.trajectories) == 3
        for t in g.trajectories:
            check(kit, spec, t, max_turn_tokens=24, max_tokens=700)
            assert t.policy_step == 7
            for u in t.turns[:-1]:
                assert u.outcome is Outcome.INVALID and u.observation
    metrics = rollout_metrics(groups)
    assert metrics["rollout/trajectories"] == 6 and metrics["rollout/turns"] > 1
    spec.close()


def one(kits, script, family: str = "tiny", members: int = 1, **limits) -> Trajectory:
    spec = ScriptedSpec(stop=limits.pop("stop", ("e", "0", ">")))
    kit = kits(family)
    groups, _ = collect(kit, spec, [make_task(0, script)], members=members, **limits)
    trajectory = groups[0].trajectories[0]
    keys = {k: v for k, v in limits.items() if k in ("max_turn_tokens", "max_tokens")}
    check(kit, spec, trajectory, **keys)
    assert spec.closed == members
    return trajectory


def test_done(kits):
    trajectory = one(kits, [OK, {"kind": "done"}])
    assert trajectory.stop_reason is StopReason.DONE and len(trajectory.turns) == 2
    assert trajectory.turns[0].tool_calls == 1 and trajectory.turns[0].tool_seconds == 0.25
    assert trajectory.turns[0].info == {"n": 1} and trajectory.turns[1].observation is None
    assert [u.state_key for u in trajectory.turns] == [f'["{trajectory.task.hash}", {n}]' for n in (0, 1)]


def test_turn_limit(kits):
    trajectory = one(kits, [OK], max_turns=3)
    assert trajectory.stop_reason is StopReason.TURN_LIMIT and len(trajectory.turns) == 3
    assert trajectory.turns[-1].observation is None and trajectory.rows[0].origin[-1] == Origin.SAMPLED


def test_an_exception_in_the_environment_is_an_error_of_infrastructure(kits):
    trajectory = one(kits, [OK, {"kind": "raise"}])
    assert trajectory.stop_reason is StopReason.ERROR
    assert trajectory.error == "step: ZeroDivisionError: a bug in the environment"
    assert trajectory.turns[1].outcome is Outcome.TOOL_ERROR


@pytest.mark.parametrize("method", ["reset", "state_key", "answer"])
def test_a_bug_anywhere_in_an_environment_ends_its_episode_only(kits, monkeypatch, method):
    plain = getattr(ScriptedEnv, method)

    def broken(self, *args):
        if method == "reset":
            self.task = args[0]
            self.number = args[0].seed
        elif not hasattr(self, "number"):
            self.number = self.task.seed
        if self.number == 0:
            raise KeyError("a bug")
        return plain(self, *args)

    monkeypatch.setattr(ScriptedEnv, method, broken)
    tasks = [make_task(n, [OK, {"kind": "done"}]) for n in range(2)]
    groups, _ = collect(kits("tiny"), ScriptedSpec(), tasks, members=2)
    for trajectory in groups[0].trajectories:
        assert trajectory.stop_reason is StopReason.ERROR and trajectory.error.endswith("KeyError: 'a bug'")
    assert [t.stop_reason for t in groups[1].trajectories] == [StopReason.DONE] * 2
    assert not groups[0].scored


WRONG = {
    "make": ConnectionError("no server"),
    "reset": "a text",
    "step": None,
    "step ": Transition(Observation("x"), False, "not an outcome"),
    "step  ": SystemExit(3),
    "state_key": 7,
    "answer": ["a"],
}


def test_values_of_a_wrong_form_end_their_episode_only(kits, monkeypatch):
    """A value of another type is found where it comes from, not where it would break a batch or a file."""
    names = list(WRONG)

    def wrong(self, method, *args):
        if method == "reset":
            self.task, self.name = args[0], dict(enumerate(names)).get(args[0].seed)
        if self.name is None or self.name.strip() != method:
            return plain[method](self, *args)
        value = WRONG[self.name]
        if isinstance(value, BaseException):
            raise value
        return value

    methods = ("reset", "step", "state_key", "answer")
    plain = {m: getattr(ScriptedEnv, m) for m in methods}
    for m in methods:
        monkeypatch.setattr(ScriptedEnv, m, partialmethod(wrong, m))
    spec = ScriptedSpec()
    made, make = itertools.count(), spec.make

    def first_fails():
        if next(made) == 0:
            raise WRONG["make"]
        return make()

    monkeypatch.setattr(spec, "make", first_fails)
    tasks = [make_task(n, [OK, {"kind": "done"}]) for n in range(len(names) + 1)]
    groups, _ = collect(kits("tiny"), spec, tasks, members=1)
    found = [g.trajectories[0] for g in groups]
    for name, trajectory in zip(names, found, strict=False):
        assert trajectory.stop_reason is StopReason.ERROR, name
        assert trajectory.error.startswith(f"{name.strip()}: "), trajectory.error
    assert found[-1].stop_reason is StopReason.DONE and found[-1].error is None


def test_a_task_twice_in_a_batch_is_sampled_from_other_streams(kits):
    task = make_task(0, [OK, {"kind": "done"}])
    groups, _ = collect(kits("tiny"), ScriptedSpec(), [task, task], members=3)
    trajectories = [t for g in groups for t in g.trajectories]
    assert [t.member for t in trajectories] == list(range(6))
    assert len({t.turns[0].text for t in trajectories}) == 6


def test_a_fatal_failure_is_an_error(kits):
    trajectory = one(kits, [{"kind": "fatal"}])
    assert trajectory.stop_reason is StopReason.ERROR and trajectory.error == "server down"
    assert trajectory.costs.tool_calls == 2


def test_an_observation_that_does_not_fit_ends_the_episode(kits):
    prompt = len(kits("tiny").renderer.prompt([{"role": "user", "content": "What now? 0"}]))
    script = [{"kind": "ok", "text": "a long text " * 20}]
    trajectory = one(kits, script, max_tokens=prompt + 25, max_obs_tokens=24, max_turn_tokens=10)
    assert trajectory.stop_reason is StopReason.CONTEXT_OVERFLOW
    assert trajectory.turns[-1].observation is None
    assert trajectory.rows[0].origin[-1] == Origin.SAMPLED  # the policy never saw what did not fit


def test_an_action_that_runs_into_the_context_ends_the_episode(kits):
    prompt = len(kits("tiny").renderer.prompt([{"role": "user", "content": "What now? 0"}]))
    trajectory = one(kits, [OK], max_tokens=prompt + 6, max_turn_tokens=10, stop=("never seen",))
    assert trajectory.stop_reason is StopReason.CONTEXT_OVERFLOW
    assert len(trajectory.turns) == 1 and trajectory.turns[0].stop == "context_overflow"
    assert len(trajectory.rows[0]) == prompt + 6


def test_the_environment_may_still_end_an_overflowing_episode(kits):
    prompt = len(kits("tiny").renderer.prompt([{"role": "user", "content": "What now? 0"}]))
    trajectory = one(kits, [{"kind": "done"}], max_tokens=prompt + 6, stop=("never seen",))
    assert trajectory.stop_reason is StopReason.DONE


def test_a_prompt_that_is_too_long_takes_no_action(kits):
    kit, spec = kits("tiny"), ScriptedSpec()
    tasks = [make_task(0, [OK], "word " * 100), make_task(1, [OK])]
    groups, _ = collect(kit, spec, tasks, members=2, max_tokens=60)
    for t in groups[0].trajectories:
        assert t.stop_reason is StopReason.CONTEXT_OVERFLOW and not t.turns
        assert not t.rows[0].sampled.any() and t.text == kit.renderer.decode(t.rows[0].ids.tolist())
    assert all(t.turns for t in groups[1].trajectories) and spec.closed == 4


def test_all_prompts_too_long(kits):
    groups, _ = collect(kits("tiny"), ScriptedSpec(), tasks_of(2), members=2, max_tokens=5)
    assert {t.stop_reason for g in groups for t in g.trajectories} == {StopReason.CONTEXT_OVERFLOW}


def test_observations_after_a_closed_message_get_the_template(kits):
    """What follows an end-of-turn token is a user message; what follows anything else goes on as bare text."""
    kit, spec = kits("qwen3"), ScriptedSpec(stop=())
    kinds = set()
    for seed in range(4):
        groups, _ = collect(kit, spec, [make_task(0, [OK])], members=8, slots=8, max_turn_tokens=40, seed=seed)
        for t in groups[0].trajectories:
            check(kit, spec, t, max_turn_tokens=40)
            for u in t.turns[:-1]:
                obs = Observation("some text", "\n<result>", "</result>\n")
                expected = kit.renderer.observation(obs, u.stop == "end_of_turn", 24)[1]
                assert u.observation == expected
                kinds.add(u.stop)
    assert kinds == {"end_of_turn", "turn_token_limit"}


def test_errors_are_never_scored(kits):
    spec = ScriptedSpec()
    tasks = [make_task(i, [{"kind": k}]) for i, k in enumerate(("raise", "fatal", "done"))]
    groups, _ = collect(kits("tiny"), spec, tasks, members=2)
    rewards = build(RewardConfig(components={"verifiable": RewardComponentConfig()}), spec, 0)
    rewards.score(groups, 0)
    assert [len(g.scored) for g in groups] == [0, 0, 2]
    for t in (t for g in groups[:2] for t in g.trajectories):
        assert t.reward.total is None and t.success is None


def test_members_draw_different_tokens_and_tasks_differ(kits):
    groups, _ = collect(kits("tiny"), ScriptedSpec(), tasks_of(2), members=6)
    firsts = [t.turns[0].text for g in groups for t in g.trajectories]
    assert len(set(firsts)) == len(firsts)
    again, _ = collect(kits("tiny"), ScriptedSpec(), tasks_of(2), members=6, seed=1)
    assert not set(firsts) & {t.turns[0].text for g in again for t in g.trajectories}


def test_slow_tools_change_nothing(kits):
    """Late and early answers, any number of threads: the same bits."""
    kit, tasks = kits("tiny"), tasks_of(4)
    expected = everything(collect(kit, ScriptedSpec(), tasks)[0])
    for workers in (1, 2, 16):
        groups, _ = collect(kit, ScriptedSpec(jitter=0.02), tasks, workers=workers)
        assert everything(groups) == expected


def test_without_determinism_every_episode_still_completes(kits):
    kit, spec = kits("tiny"), ScriptedSpec(jitter=0.02)
    expected = everything(collect(kit, ScriptedSpec(), tasks_of(4), slots=1)[0])
    groups, _ = collect(kit, spec, tasks_of(4), deterministic=False, workers=2)
    for t in (t for g in groups for t in g.trajectories):
        check(kit, spec, t)
    # In fp32 even the tokens are the same; only log-probabilities may differ in the last bits.
    assert [e[:7] for e in everything(groups)] == [e[:7] for e in expected]


def test_slots_and_task_order_do_not_change_tokens(kits):
    kit, tasks = kits("tiny"), tasks_of(4)
    expected = {e[0]: e[:7] for e in everything(collect(kit, ScriptedSpec(), tasks, slots=1)[0])}
    for slots, order in ((3, tasks), (64, tasks[::-1])):
        groups, _ = collect(kit, ScriptedSpec(), order, slots=slots)
        assert [g.task.id for g in groups] == [t.id for t in order]
        assert {e[0]: e[:7] for e in everything(groups)} == expected


def test_progress_counts_every_trajectory(kits):
    calls: list[tuple[int, int]] = []
    tasks = [*tasks_of(2), make_task(9, [OK], "word " * 400)]
    collect(kits("tiny"), ScriptedSpec(), tasks, members=2, on_progress=lambda *c: calls.append(c))
    assert calls == [(n, 6) for n in (3, 4, 5, 6)]


SCRIPTS = st.lists(
    st.fixed_dictionaries({"kind": st.sampled_from(KINDS), "text": st.text(max_size=30)}), min_size=1, max_size=5
)


@settings(max_examples=20, deadline=None)
@given(
    scripts=st.lists(SCRIPTS, min_size=1, max_size=3),
    stop=st.sampled_from([("e", "0", ">"), (), ("</search>", " a")]),
    slots=st.sampled_from([1, 2, 8]),
    max_tokens=st.integers(20, 120),
    turn_tokens=st.integers(1, 16),
    obs_tokens=st.integers(8, 40),
    seed=st.integers(0, 1000),
)
def test_any_environment(kits, scripts, stop, slots, max_tokens, turn_tokens, obs_tokens, seed):
    kit, spec = kits("tiny"), ScriptedSpec(stop=stop)
    tasks = [make_task(i, s) for i, s in enumerate(scripts)]
    groups, engine = collect(
        kit,
        spec,
        tasks,
        members=2,
        slots=slots,
        max_tokens=max_tokens,
        max_turn_tokens=turn_tokens,
        max_obs_tokens=obs_tokens,
        seed=seed,
    )
    seen = {tuple(ids) for _, ids in engine.seen.values()}
    for g in groups:
        for t in g.trajectories:
            check(kit, spec, t, max_turn_tokens=turn_tokens, max_tokens=max(max_tokens, t.rows[0].prompt_length))
            assert not t.turns or tuple(t.rows[0].ids.tolist()) in seen
            script = t.task.meta["script"]
            kinds = [script[min(n, len(script) - 1)]["kind"] for n in range(len(t.turns))]
            if t.stop_reason is StopReason.DONE:
                assert kinds[-1] == "done"
            elif t.stop_reason is StopReason.ERROR:
                assert kinds[-1] in ("raise", "fatal")
            elif t.stop_reason is StopReason.TURN_LIMIT:
                assert len(t.turns) == 4
            assert not set(kinds[:-1]) & {"done", "raise", "fatal"}
