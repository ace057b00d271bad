"""Preference pairs in the shapes that are about, by hand and from the real files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agentrl.errors import RunError, UserError
from agentrl.learn.preferences import Pair, file_pairs, load_pairs, split

ASK = [{"role": "user", "content": "Why?"}]
GOOD, BAD = [{"role": "assistant", "content": "Because."}], [{"role": "assistant", "content": "No."}]

ROWS = {
    "text": {"prompt": "Why?", "chosen": "Because.", "rejected": "No."},
    "messages": {"prompt": ASK, "chosen": GOOD, "rejected": BAD},
    "implicit prompt": {"chosen": [*ASK, *GOOD], "rejected": [*ASK, *BAD]},
    "one message": {"prompt": ASK, "chosen": GOOD[0], "rejected": BAD[0]},
    "sharegpt": {
        "conversations": [{"from": "human", "value": "Why?"}],
        "chosen": {"from": "gpt", "value": "Because."},
        "rejected": {"from": "gpt", "value": "No."},
    },
    "hh": {
        "chosen": "\n\nHuman: Why?\n\nAssistant: Because.",
        "rejected": "\n\nHuman: Why?\n\nAssistant: No.",
    },
    "pandalm": {
        "instruction": "Why?", "input": "", "response1": "No.", "response2": "Because.",
        "annotator1": 2, "annotator2": 1, "annotator3": 2,
    },
}  # fmt: skip


def write(folder: Path, *rows: object) -> str:
    path = folder / "pairs.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in rows))
    return str(path)


@pytest.mark.parametrize("shape", ROWS)
def test_every_shape_gives_the_same_pair(shape: str, tmp_path: Path) -> None:
    found = file_pairs(write(tmp_path, ROWS[shape]))
    assert found.pairs == [Pair(json.dumps(ASK, sort_keys=True), [*ASK, *GOOD], [*ASK, *BAD])]


def test_a_transcript_parts_where_the_two_differ(tmp_path: Path) -> None:
    start = "\n\nHuman: a\n\nAssistant: b\n\nHuman: c: d"
    rows = {"chosen": f"{start}\n\nAssistant: e\n\nHuman: f\n\nAssistant: g", "rejected": f"{start}\n\nAssistant: h"}
    (pair,) = file_pairs(write(tmp_path, rows)).pairs
    assert [m["content"] for m in json.loads(pair.prompt)] == ["a", "b", "c: d"]
    assert [m["content"] for m in pair.chosen[3:]] == ["e", "f", "g"] and len(pair.rejected) == 4


def test_ties_and_equal_texts_are_left_out_and_counted(tmp_path: Path) -> None:
    tie = {**ROWS["pandalm"], "annotator2": 0, "annotator3": 1}
    equal = {"prompt": "p", "chosen": "x", "rejected": "x"}
    found = file_pairs(write(tmp_path, tie, equal, ROWS["text"]))
    assert (len(found.pairs), found.ties, found.equal) == (1, 1, 1)
    assert "1 without a majority" in found.summary() and "1 of equal texts" in found.summary()
    with pytest.raises(RunError, match="0 pairs"):
        load_pairs(write(tmp_path, tie), 4, 0)


@pytest.mark.parametrize(
    ("row", "part"),
    [
        ({"question": "q", "answer": "a"}, "not a preference pair; its fields are question, answer"),
        ({"prompt": "p", "chosen": 3, "rejected": "b"}, "chosen must be text or messages, found int"),
        ({"prompt": "p", "chosen": [{"role": "robot", "content": "x"}], "rejected": "b"}, "chosen: a message needs"),
        ({"prompt": ASK, "chosen": ASK, "rejected": "b"}, "chosen must begin with an assistant message"),
        ({"chosen": "a", "rejected": "b"}, "share no user message"),
        ({**ROWS["pandalm"], "annotator1": 3}, "votes 0, 1, 2"),
    ],
)
def test_other_rows_are_refused_with_their_place(row: object, part: str, tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        file_pairs(write(tmp_path, ROWS["text"], row))
    assert part in str(caught.value) and "line 2" in str(caught.value)


def test_the_split_keeps_a_prompt_on_one_side() -> None:
    pairs = [Pair(f"p{i // 3}", [], []) for i in range(60)]
    fitted, heldout = split(pairs, 0.2, seed=1)
    assert len(heldout) == 12 and len(fitted) == 48
    assert not {p.prompt for p in fitted} & {p.prompt for p in heldout}
    assert split(pairs, 0.2, seed=1) == (fitted, heldout) != split(pairs, 0.2, seed=2)
    assert split(pairs, 0.0, seed=1) == (pairs, [])


@pytest.mark.parametrize(
    ("name", "count"),
    [("dpo_en_demo_160.json", 159), ("hh_rlhf_harmless_mild.jsonl", 40), ("pandalm_testset_v1.json", 434)],
)
def test_the_real_files(shared_data: Path, name: str, count: int) -> None:
    found = file_pairs(str(shared_data / "preference" / name))
    assert count - 5 <= len(found.pairs) <= count + 70  # PandaLM: unanimous rows, and those with two of three
    assert all(p.chosen[-1]["role"] == "assistant" for p in found.pairs)
