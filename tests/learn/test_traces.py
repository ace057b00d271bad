"""Traces as rows: what counts as sampled, what the file's author is told."""

from __future__ import annotations

import copy
import itertools
import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from learn.rows import make_groups
from rollout.kits import plain_logprobs

from agentrl.config.schema import EnvConfig
from agentrl.envs.search.spec import SearchSpec
from agentrl.errors import RunError, UserError
from agentrl.learn.optimizer import MasterOptimizer
from agentrl.learn.sft import heldout_loss, sft_step
from agentrl.learn.traces import expert_traces, file_traces
from agentrl.rollout.trajectory import Origin, Row

ENV = EnvConfig()


@pytest.fixture(scope="module")
def spec():
    made = SearchSpec()
    made.prepare()
    yield made
    made.close()


def spans(row: Row) -> list[tuple[Origin, int, list[int]]]:
    """Runs of equal origin and turn, with their ids."""
    keys = zip(row.origin.tolist(), row.turn.tolist(), row.ids.tolist(), strict=True)
    return [(Origin(o), t, [i for _, _, i in g]) for (o, t), g in itertools.groupby(keys, key=lambda k: k[:2])]


def test_expert_traces_train_on_actions_only(kits, spec):
    renderer = kits("tiny").renderer
    found = expert_traces(spec, renderer, 6, 0, 100_000, ENV)
    assert len(found.rows) == len(found.tasks) == 6 and len({t.hash for t in found.tasks}) == 6
    for row, task in zip(found.rows, found.tasks, strict=True):
        parts = spans(row)
        assert parts[0][0] is Origin.PROMPT and parts[0][2] == renderer.prompt(spec.make().reset(task))
        actions = [renderer.decode(ids) for origin, _, ids in parts if origin is Origin.SAMPLED]
        assert actions == list(spec.expert(task, 0))
        assert all(a.endswith(("</search>", "</answer>")) for a in actions)
        seen = [renderer.decode(ids, start=False) for origin, _, ids in parts if origin is Origin.OBSERVATION]
        assert len(seen) == len(actions) - 1 and all("<information>" in s for s in seen)
        assert [o for o, _, _ in parts[1::2]] == [Origin.SAMPLED] * len(actions)
        assert (row.logprobs == 0).all() and (row.advantage == 0).all()
    again = expert_traces(spec, renderer, 6, 0, 100_000, ENV)
    assert [r.ids.tolist() for r in again.rows] == [r.ids.tolist() for r in found.rows]
    other = expert_traces(spec, renderer, 6, 1, 100_000, ENV)
    assert {t.hash for t in other.tasks} != {t.hash for t in found.tasks}


def test_traces_that_are_too_long_are_counted(kits, spec):
    found = expert_traces(spec, kits("tiny").renderer, 3, 0, 200, ENV)
    assert not found.rows and found.too_long == 12
    assert "12 longer than rollout.max_tokens" in found.summary()


def test_what_the_policy_may_not_do_it_is_not_taught(kits, spec):
    renderer = kits("tiny").renderer
    for limits, kept in (({"max_turns": 2}, 0), ({"max_turn_tokens": 5}, 0), ({"max_turn_tokens": 100_000}, 3)):
        found = expert_traces(spec, renderer, 3, 0, 100_000, replace(ENV, **limits))
        used = [np.bincount(row.turn[row.sampled]) for row in found.rows]
        assert all(len(n) <= limits.get("max_turns", 9) for n in used)
        assert all(n.max() <= limits.get("max_turn_tokens", 10**9) for n in used)
        assert len(found.rows) >= kept and (found.out_of_reach > 0) == (kept == 0)
        assert ("env.max_turn_tokens" in found.summary()) == (kept == 0)


def test_a_verifier_that_raises_fails_the_episode(kits, spec, monkeypatch):
    monkeypatch.setattr(type(spec), "verify", lambda self, episode: 1 / 0)
    with pytest.raises(RunError, match=r"8 episodes.*verify: ZeroDivisionError"):
        expert_traces(spec, kits("tiny").renderer, 9, 0, 100_000, ENV)


def write(path, *records) -> str:
    path.write_text("\n".join(r if isinstance(r, str) else json.dumps(r) for r in records))
    return str(path)


def messages(*contents: str, roles: str = "uatatatatata") -> dict:
    names = {"u": "user", "a": "assistant", "t": "tool", "s": "system"}
    return {"messages": [{"role": names[r], "content": c} for r, c in zip(roles, contents, strict=False)]}


def test_file_traces(kits, spec, tmp_path):
    renderer = kits("tiny").renderer
    source = write(
        tmp_path / "t.jsonl",
        messages("who?", "<search> a </search>", "<information>b <|im_end|></information>", "<answer> c </answer>"),
        messages("be brief", "who?", "just text", "go on", "<answer> d </answer>", roles="suaua"),
        {"messages": json.dumps(messages("who?", "<answer> e </answer>")["messages"]), "other": 1},
    )
    found = file_traces(source, renderer, spec, 100_000, 256)
    first, second, third = map(spans, found.rows)
    assert renderer.decode(first[1][2]) == "<search> a </search>"
    assert renderer.decode(first[2][2]) == "\n\n<information>b <|im_end|></information>\n\n"
    assert renderer.end_of_turn_id not in first[2][2]  # text is never a control token
    assert renderer.decode(first[3][2]) == "<answer> c </answer>"
    # An action without a stop string is closed by the end-of-turn token, which is trained on.
    assert second[1][2] == [*renderer.encode("just text"), renderer.end_of_turn_id]
    assert renderer.decode(second[2][2]) == "\n<|im_start|>user\ngo on<|im_end|>\n<|im_start|>assistant\n"
    assert second[0][2] == renderer.prompt(
        [{"role": "system", "content": "be brief"}, {"role": "user", "content": "who?"}]
    )
    assert [p[0] for p in third] == [Origin.PROMPT, Origin.SAMPLED]
    assert not found.tasks and "3 traces" in found.summary()
    assert file_traces(source, renderer, spec, 20, 256).too_long == 3


@pytest.mark.parametrize(
    ("record", "words"),
    [
        ({"text": "x"}, ["record 2", "'messages'"]),
        ({"messages": "not json"}, ["record 2", "'messages'"]),
        ({"messages": []}, ["record 2", "'messages'"]),
        ({"messages": [{"role": "user"}]}, ["record 2", "'content'"]),
        ({"messages": [{"content": "x"}]}, ["record 2", "'role'"]),
        ({"messages": [{"role": "user", "content": 3}]}, ["record 2", "'content'"]),
        (messages("a", roles="a"), ["record 2", "user or system"]),
        (messages("a", "b", roles="uu"), ["record 2", "assistant"]),
        ("{broken", ["line 2", "JSON"]),
    ],
)
def test_what_the_author_of_a_file_is_told(kits, spec, tmp_path, record, words):
    source = write(tmp_path / "t.jsonl", messages("who?", "<answer> e </answer>"), record)
    with pytest.raises(UserError) as error:
        file_traces(source, kits("tiny").renderer, spec, 1000, 256)
    assert all(w in str(error.value) for w in [source, *words]) and "\n" not in str(error.value)


def test_a_missing_file(kits, spec):
    with pytest.raises(UserError, match=r"sft.source=nothing.jsonl"):
        file_traces("nothing.jsonl", kits("tiny").renderer, spec, 1000, 256)


def test_real_search_r1_traces(kits, spec, shared_data):
    source = shared_data / "sft" / "search_r1_traces.jsonl"
    renderer = kits("tiny").renderer
    found = file_traces(str(source), renderer, spec, 100_000, 512)
    records = [json.loads(line) for line in source.read_text().splitlines()]
    assert len(found.rows) == len(records) == 180 and found.too_long == 0
    for row, record in zip(found.rows[::6], records[::6], strict=True):
        actions = [m["content"] for m in record["messages"] if m["role"] == "assistant"]
        parts = spans(row)
        texts = [
            renderer.decode([i for i in ids if i not in renderer.end_ids]) for o, _, ids in parts if o is Origin.SAMPLED
        ]
        assert texts == actions
        assert record["question"] in renderer.decode(parts[0][2])
        assert row.trained().sum() == sum(len(ids) for o, _, ids in parts if o is Origin.SAMPLED)


def test_a_step_lowers_the_loss_whatever_the_micro_batches(kits):
    kit = kits("tiny")
    rows = [t.rows[0] for g in make_groups(kit) for t in g.trajectories]
    results = []
    for budget in (4096, 40):
        model = copy.deepcopy(kit.model)
        optimizer = MasterOptimizer(model)
        results.append([sft_step(model, optimizer, rows, 3e-3, 1.0, budget) for _ in range(5)])
    first, second = results
    assert first[-1]["loss/sft"] < first[0]["loss/sft"] - 0.1
    for a, b in zip(first, second, strict=True):
        assert a["loss/sft"] == pytest.approx(b["loss/sft"], rel=1e-4)
        assert a["policy/grad_norm"] == pytest.approx(b["policy/grad_norm"], rel=1e-2)


def test_held_out_loss_is_the_mean_over_action_tokens(kits):
    kit = kits("tiny")
    rows = [t.rows[0] for g in make_groups(kit) for t in g.trajectories]
    every = torch.cat([plain_logprobs(kit.plain, r.ids)[r.sampled] for r in rows])
    assert heldout_loss(kit.model, rows, 60)["loss/heldout"] == pytest.approx(-float(every.mean()), rel=1e-5)
    assert math.isnan(heldout_loss(kit.model, [], 60)["loss/heldout"])
