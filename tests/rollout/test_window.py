"""Windowed context: rows, tokens and log-probabilities against append-only ones, sampled by the real engine."""

from __future__ import annotations

import random
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from rollout.kits import Kit, make_engine, plain_logprobs
from rollout.scripted import ScriptedSpec, make_task, random_script
from rollout.test_collector import WatchedEngine

from agentrl.algos.advantages import annotate
from agentrl.config.schema import AlgoConfig, EngineConfig, EnvConfig, RolloutConfig
from agentrl.learn.optimizer import MasterOptimizer
from agentrl.learn.policy import PolicyLearner
from agentrl.models.load import load_model
from agentrl.rollout.collector import Collector
from agentrl.rollout.sampling import Sampling, stream
from agentrl.rollout.trajectory import Group, Origin, RewardComponent, RewardRecord, Row, StopReason, Trajectory
from agentrl.rollout.window import in_windows, kept, step_row

TASKS = [make_task(n, random_script(random.Random(f"window/{n}"))) for n in range(5)]


def collect(kit: Kit, window: int | None, slots: int = 4, max_tokens: int = 400, turns: int = 6) -> list[Group]:
    spec = ScriptedSpec()
    engine = WatchedEngine(kit.model, kit.renderer, slots, max_tokens, spec.stop)
    env = EnvConfig(max_turns=turns, max_turn_tokens=8, max_obs_tokens=24, tool_workers=2)
    rollout = RolloutConfig(max_tokens=max_tokens, window=window)
    collector = Collector(engine, kit.renderer, spec, env, rollout, EngineConfig(slots=slots))
    groups = collector.collect(TASKS, 2, Sampling(), 0, step=1)
    assert not engine.live and not engine.busy
    prefilled = engine.stats.tokens_prefilled
    trajectories = [t for g in groups for t in g.trajectories]
    assert sum(t.costs.tokens_prefilled for t in trajectories) == prefilled
    assert sum(t.costs.tokens_sampled for t in trajectories) == engine.stats.tokens_sampled
    # The last row of every trajectory is what its slot held at the end.
    held = {tuple(ids) for _, ids in engine.seen.values()}
    assert all(tuple(t.rows[-1].ids.tolist()) in held for t in trajectories if t.turns)
    return groups


def sampled(row: Row) -> tuple[list[int], np.ndarray]:
    return row.ids[row.sampled].tolist(), row.logprobs[row.sampled]


def pairs(a: list[Group], b: list[Group]) -> list[tuple[Trajectory, Trajectory]]:
    return [p for x, y in zip(a, b, strict=True) for p in zip(x.trajectories, y.trajectories, strict=True)]


def test_a_window_over_everything_is_the_append_only_context(kits) -> None:
    """The same tokens are sampled with the same log-probabilities, bit for bit, and every row is a prefix."""
    plain, windowed = collect(kits("tiny"), None), collect(kits("tiny"), 6)
    turns = 0
    for one, many in pairs(plain, windowed):
        turns = max(turns, len(one.turns))
        assert [t.action for t in one.turns] == [t.action for t in many.turns]
        assert (one.stop_reason, one.costs.tokens_prefilled) == (many.stop_reason, many.costs.tokens_prefilled)
        assert len(many.rows) == max(1, len(many.turns)) and len(one.rows) == 1
        whole = one.rows[0]
        assert np.concatenate([sampled(r)[1] for r in many.rows]).tobytes() == sampled(whole)[1].tobytes()
        for turn, row in enumerate(many.rows):
            assert row.ids.tolist() == whole.ids[: len(row)].tolist()
            assert set(row.turn[row.sampled].tolist()) <= {turn}
            assert not (row.origin[row.prompt_length :] == Origin.PROMPT).any()
        for made, row in zip(in_windows(whole, 6, kits("tiny").renderer), many.rows, strict=False):
            for name in ("ids", "origin", "turn", "logprobs"):
                assert getattr(made, name).tobytes() == getattr(row, name).tobytes()
    assert turns == 6


@pytest.mark.parametrize(("window", "slots"), [(1, 4), (2, 1), (2, 10)])
def test_rows_hold_what_was_sampled_in_them(kits, window: int, slots: int) -> None:
    """Log-probabilities agree with a plain forward over the row, whatever stood in the slot before."""
    kit = kits("tiny")
    cut = 0
    for trajectory in (t for g in collect(kit, window, slots) for t in g.trajectories):
        for turn, row in enumerate(trajectory.rows):
            expected = plain_logprobs(kit.plain, row.ids.tolist())[torch.from_numpy(row.sampled)]
            assert sampled(row)[1] == pytest.approx(expected.numpy(), abs=2e-4)
            text = kit.renderer.decode(row.ids.tolist())
            assert (f"[{turn - window} earlier steps not shown]" in text) == (turn > window)
            assert (Origin.CONTEXT in row.origin) == (turn > 0)
            cut += turn > window
            shown = set(row.turn[row.origin == Origin.CONTEXT].tolist()) - {-1}
            assert shown == set(range(max(0, turn - window), turn))
            assert set(row.turn[row.origin == Origin.OBSERVATION].tolist()) <= {turn - 1}
        for turn, (before, after) in enumerate(pairwise(trajectory.rows)):
            again = after.ids[(after.origin == Origin.CONTEXT) & (after.turn == turn)].tolist()
            assert again == sampled(before)[0]
    assert cut > 3


def test_slots_do_not_change_what_is_sampled(kits) -> None:
    for a, b in pairs(collect(kits("tiny"), 2, slots=1), collect(kits("tiny"), 2, slots=10)):
        assert [sampled(r)[0] for r in a.rows] == [sampled(r)[0] for r in b.rows]


def test_a_window_goes_on_where_a_growing_row_would_be_full(kits) -> None:
    grown, windowed = collect(kits("tiny"), None, max_tokens=100), collect(kits("tiny"), 1, max_tokens=100)
    count = [
        sum(t.stop_reason is StopReason.CONTEXT_OVERFLOW for g in gs for t in g.trajectories)
        for gs in (grown, windowed)
    ]
    assert count[0] > count[1]
    assert all(len(r) <= 100 for g in windowed for t in g.trajectories for r in t.rows)


ids = st.lists(st.integers(3, 60), min_size=1, max_size=5)


@settings(max_examples=60)
@given(prompt=ids, steps=st.lists(st.tuples(ids, st.one_of(ids, st.just([]))), max_size=6), window=st.integers(1, 7))
def test_cutting_a_row_and_building_it_agree(kits, prompt, steps, window) -> None:
    renderer = kits("tiny").renderer
    whole = Row.from_prompt(prompt)
    for turn, (action, observation) in enumerate(steps):
        whole.append(action, Origin.SAMPLED, turn, [-0.5] * len(action))
        whole.append(observation, Origin.OBSERVATION, turn)
    rows = in_windows(whole, window, renderer)
    assert len(rows) == len(steps)
    for turn, row in enumerate(rows):
        built = step_row(prompt, steps[:turn], window, renderer)
        assert row.ids[: len(built)].tolist() == built.ids.tolist()
        assert sampled(row)[0] == list(steps[turn][0])
        if turn < window:
            assert row.ids.tolist() == whole.ids[: len(row)].tolist()
    # an observation stands with that origin in one row only
    new = [row.ids[row.origin == Origin.OBSERVATION].tolist() for row in rows]
    assert new == [[], *[list(o) for _, o in steps]][: len(new)]
    for before, after in pairwise(rows):
        n = kept(before, after)
        assert n < len(after) and before.ids[:n].tolist() == after.ids[:n].tolist()


@pytest.mark.parametrize("drop", [0, 1, 2, 9])
def test_the_engine_forgets_tokens(kits, drop: int) -> None:
    """A slot that is cut back and goes on is a fresh slot with the same tokens."""
    kit = kits("tiny")
    prompt, more = list(range(20, 40)), [50, 51, 52]

    def act(engine, sequence):
        while not engine.step():
            pass
        action, sequence.action = sequence.action, None
        return action

    engine = make_engine(kit, 2)
    sequence = engine.start(prompt, "p", stream(6, "first"))
    first = act(engine, sequence)
    row = (prompt + first.ids)[: len(prompt) + len(first.ids) - drop]
    engine.resume(sequence, more, stream(6, "second"), len(row))
    continued = act(engine, sequence)
    fresh = make_engine(kit, 2)
    expected = act(fresh, fresh.start(row + more, "p", stream(6, "second")))
    assert continued.ids == expected.ids and continued.logprobs == pytest.approx(expected.logprobs, abs=1e-5)
    assert sequence.length + len(sequence.waiting) == len(row) + len(more) + len(continued.ids)


@pytest.mark.parametrize("aggregation", ["token_mean", "seq_mean_token_mean", "seq_mean_token_sum", "constant"])
def test_both_contexts_have_the_same_gradient(kits, aggregation: str) -> None:
    """With a window over everything, loss and gradient are those of the append-only rows in every aggregation."""
    found = []
    for window in (None, 6):
        groups = collect(kits("tiny"), window)
        for trajectory in (t for g in groups for t in g.trajectories):
            value = float(trajectory.member == 0)
            trajectory.reward = RewardRecord([RewardComponent("verifiable", "verifiable", value)])
        cfg = AlgoConfig(estimator="grpo", aggregation=aggregation, aggregation_constant=10.0, max_grad_norm=1e9)
        metrics = annotate(groups, cfg)
        model = load_model(kits("tiny").path, torch.float32)
        model.set_attn_implementation("agentrl")
        learner = PolicyLearner(model, MasterOptimizer(model), cfg, micro_batch_tokens=700)
        found.append((metrics, learner.update(groups)))
    (one, first), (two, second) = found
    assert one == pytest.approx(two)
    for name in ("loss/policy", "policy/grad_norm", "policy/entropy", "policy/engine_kl"):
        assert first[name] == pytest.approx(second[name], rel=1e-3, abs=1e-6), name
    assert second["train/rows"] > first["train/rows"] and second["train/tokens"] > first["train/tokens"]
