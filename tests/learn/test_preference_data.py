"""Preference files and stored trajectories as token rows."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from agentrl.config.schema import DpoConfig
from agentrl.envs.base import Outcome, Task
from agentrl.errors import UserError
from agentrl.learn.preference_data import load_preferences
from agentrl.models import tiny
from agentrl.models.load import load_tokenizer
from agentrl.models.template import Renderer
from agentrl.rollout.trajectory import (
    Group,
    Origin,
    RewardComponent,
    RewardRecord,
    Row,
    StopReason,
    Trajectory,
    Turn,
)
from agentrl.runs.trajectories import write_trajectories


@pytest.fixture(scope="module")
def renderer() -> Renderer:
    return Renderer(load_tokenizer(tiny.folder()))


def sampled(renderer: Renderer, row: Row) -> list[str]:
    """The text of each run of sampled tokens."""
    return [renderer.decode(row.ids[row.sampled & (row.turn == t)].tolist()) for t in np.unique(row.turn[row.sampled])]


def test_a_single_turn_chat(renderer, tmp_path):
    (tmp_path / "p.jsonl").write_text(json.dumps({"prompt": "Why?", "chosen": "Because.", "rejected": "No."}))
    found = load_preferences(str(tmp_path / "p.jsonl"), renderer, DpoConfig(), 100)
    (pair,) = found.pairs
    assert sampled(renderer, pair.better[0]) == ["Because.<|im_end|>"]
    assert sampled(renderer, pair.worse[0]) == ["No.<|im_end|>"]
    n = pair.better[0].prompt_length
    assert pair.better[0].ids[:n].tolist() == renderer.prompt([{"role": "user", "content": "Why?"}])


def test_what_the_user_says_in_between_is_an_observation(renderer, tmp_path):
    ask = {"role": "user", "content": "a"}
    chat = [ask, *({"role": r, "content": c} for r, c in (("assistant", "b"), ("user", "c"), ("assistant", "d")))]
    other = [ask, {"role": "assistant", "content": "x"}]
    (tmp_path / "p.json").write_text(json.dumps([{"chosen": chat, "rejected": other}]))
    (pair,) = load_preferences(str(tmp_path / "p.json"), renderer, DpoConfig(), 100).pairs
    row = pair.better[0]
    assert sampled(renderer, row) == ["b<|im_end|>", "d<|im_end|>"]
    assert "c" in renderer.decode(row.ids[row.origin == Origin.OBSERVATION].tolist(), start=False)
    assert renderer.decode(row.ids.tolist()) == renderer.tokenizer.apply_chat_template(chat, tokenize=False).rstrip(
        "\n"
    )


def test_long_ones_and_ties_are_counted(renderer, tmp_path):
    rows = [
        {"prompt": "p", "chosen": "a" * 500, "rejected": "b"},
        {"prompt": "p", "chosen": "same", "rejected": "same"},
        {"prompt": "p", "chosen": "a", "rejected": "b"},
    ]
    (tmp_path / "p.jsonl").write_text("\n".join(map(json.dumps, rows)))
    found = load_preferences(str(tmp_path / "p.jsonl"), renderer, DpoConfig(), 60)
    assert (len(found.pairs), found.too_long, found.ties) == (1, 1, 1)
    assert "1 longer than rollout.max_tokens" in found.summary() and "1 without a preference" in found.summary()


@pytest.mark.parametrize(
    "name, pairs",
    [("dpo_en_demo_160.json", 159), ("hh_rlhf_harmless_mild.jsonl", 40), ("pandalm_testset_v1.json", 441)],
)
def test_the_real_files(renderer, shared_data, name, pairs):
    found = load_preferences(str(shared_data / "preference" / name), renderer, DpoConfig(), 10**6)
    assert len(found.pairs) == pairs and found.too_long == 0
    assert all(p.better[0].sampled.any() and p.worse[0].sampled.any() for p in found.pairs)


# our own trajectories


def trajectory(renderer: Renderer, member: int, total: float | None, text: str, split: str = "train") -> Trajectory:
    row = Row.from_prompt(renderer.prompt([{"role": "user", "content": "q"}]))
    ids = renderer.encode(text)
    row.append(ids, Origin.SAMPLED, 0, [-1.0] * len(ids))
    record = RewardRecord([RewardComponent("r", "verifiable", total)])
    made = Trajectory(Task("t", "q", {}, "train", split), member, 3, [row], reward=record, success=total)
    made.turns = [Turn(text, text, None, Outcome.OK, None, "", "stop_string")]
    made.text = renderer.decode(row.ids.tolist())
    return made


def store(folder: Path, members: list[Trajectory], name: str = "train-000001.parquet") -> Path:
    path = folder / "trajectories" / name
    write_trajectories(path, [Group(members[0].task, members)])
    return path


def test_pairs_of_a_run(renderer, tmp_path):
    members = [trajectory(renderer, m, v, f"answer {m}") for m, v in enumerate([0.0, 1.0, 0.5])]
    broken = trajectory(renderer, 3, None, "broken")
    broken.stop_reason, broken.error = StopReason.ERROR, "server down"
    path = store(tmp_path, [*members, broken])
    for source in (path, tmp_path):
        found = load_preferences(str(source), renderer, DpoConfig(), 100)
        texts = [(renderer.decode(p.better[0].ids[-2:].tolist()), p.worse[0]) for p in found.pairs]
        assert len(texts) == 3 and {p.hash for p in found.pairs} == {members[0].task.hash}
        best = found.pairs[0].better[0]
        assert best.ids.tolist() == members[1].rows[0].ids.tolist()  # the tokens as they were sampled
        assert best.logprobs.tolist() == members[1].rows[0].logprobs.tolist()
    assert len(load_preferences(str(path), renderer, DpoConfig(pairs="success"), 100).pairs) == 2
    assert load_preferences(str(path), renderer, DpoConfig(), 5).pairs == []


def test_trajectories_that_must_not_be_learned_from(renderer, tmp_path):
    held = store(tmp_path / "a", [trajectory(renderer, m, float(m), "x", "heldout") for m in range(2)])
    with pytest.raises(UserError, match="held-out tasks"):
        load_preferences(str(held), renderer, DpoConfig(), 100)
    members = [trajectory(renderer, m, float(m), "x") for m in range(2)]
    members[0].text = "as another tokenizer would decode it"
    foreign = store(tmp_path / "b", members)
    with pytest.raises(UserError, match="another tokenizer"):
        load_preferences(str(foreign), renderer, DpoConfig(), 100)
    members[0].rows[0].ids[-1] = 10**6
    with pytest.raises(UserError, match="another tokenizer"):
        load_preferences(str(store(tmp_path / "c", members)), renderer, DpoConfig(), 100)
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=r"no trajectories/train-\*\.parquet"):
        load_preferences(str(tmp_path / "empty"), renderer, DpoConfig(), 100)
    store(tmp_path / "d", members, "eval-000001.parquet")  # a panel's trajectories are not training data
    with pytest.raises(UserError, match=r"no trajectories/train-\*\.parquet"):
        load_preferences(str(tmp_path / "d"), renderer, DpoConfig(), 100)
    (tmp_path / "bad.parquet").write_text("no parquet")
    with pytest.raises(UserError, match="Parquet"):
        load_preferences(str(tmp_path / "bad.parquet"), renderer, DpoConfig(), 100)
