"""Problem files: every shape, mistakes named by file, line and field, and the shared math files end to end."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agentrl.envs.base import Episode
from agentrl.envs.code.dataset import ProblemFiles
from agentrl.envs.code.spec import CodeSpec
from agentrl.errors import UserError

MATH = {
    "train": ["gsm8k_train.jsonl", "math_train.jsonl", "aime_1983_2023_train.jsonl"],
    "heldout": {"gsm8k": "gsm8k_test.jsonl", "svamp": "svamp.jsonl", "math500": "math500.jsonl", "amc23": "amc23.jsonl",
                "aime2024": "aime2024.jsonl", "aime2025": "aime2025.jsonl"},
}  # fmt: skip


def write(path: Path, *rows: object) -> str:
    path.write_text("\n".join(json.dumps(row) for row in rows))
    return str(path)


def truths(tmp_path: Path, *rows: object) -> list[dict]:
    files = ProblemFiles([write(tmp_path / "t.jsonl", *rows)], {})
    return [dict(t.truth) for t in files._load("train")]


def test_shapes(tmp_path: Path) -> None:
    found = truths(
        tmp_path,
        {"problem": "a", "answer": "0012"},
        {"question": "b", "answer": "First 2.\n#### 1,234"},
        {"problem": "c", "solution": r"so \boxed{\frac{1}{2}}"},
        {"prompt": [{"role": "user", "content": "d"}], "reward_model": {"ground_truth": "34"}},
        {"problem": "e", "answer": 1.50, "tolerance": 0.01, "unit": "cm"},
        {"problem": "f", "answer": ["1", "one"]},
        {"problem": "g", "answer": "B", "choices": ["x", "y"]},
        {"problem": "h", "tests": {"inputs": ["1\n"], "outputs": ["2"]}},
        {"problem": "i", "tests": json.dumps({"fn_name": "f", "inputs": [[1]], "outputs": [2]})},
    )
    assert [t.get("answer") for t in found[:7]] == ["0012", "1234", r"\frac{1}{2}", "34", "1.5", ["1", "one"], "B"]
    assert found[4]["tolerance"] == "0.01" and found[4]["unit"] == "cm" and found[6]["kind"] == "choice"
    assert found[7] == {"entry": None, "inputs": ["1\n"], "outputs": ["2"]} and found[8]["entry"] == "f"


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"answer": "1"}, "field 'problem' is missing"),
        ({"problem": " ", "answer": "1"}, "field 'problem' is empty"),
        ({"problem": "a"}, "field 'answer' is missing"),
        ({"problem": "a", "answer": ""}, "empty answer"),
        ({"problem": "a", "answer": []}, "no answer"),
        ({"problem": "a", "solution": r"\boxed{1"}, "no \\\\boxed"),
        ({"problem": "a", "answer": "1", "kind": "mth"}, "did you mean 'math'"),
        ({"problem": "a", "answer": "1", "tolerance": "-1"}, "at least 0"),
        ({"problem": "a", "answer": "1", "tolerance": "much"}, "at least 0"),
        ({"problem": "a", "answer": "A", "choices": "AB"}, "list of texts"),
        ({"problem": "a", "tests": {"inputs": []}}, "'inputs' and 'outputs'"),
        ({"problem": "a", "tests": {"inputs": ["1"], "outputs": []}}, "1 inputs and 0 outputs"),
        ({"problem": "a", "tests": {"inputs": [1], "outputs": [2]}}, "texts"),
        ({"problem": "a", "tests": {"inputs": [1], "outputs": [2], "fn_name": "f"}}, "list of arguments"),
        ({"problem": "a", "tests": {"inputs": [[1]], "outputs": [2], "fn_name": "f()"}}, "name of a function"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, row: dict, message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        truths(tmp_path, {"problem": "fine", "answer": "1"}, row)
    assert "line 2" in str(caught.value)


def test_a_held_out_problem_that_is_trained_on_is_refused(tmp_path: Path) -> None:
    train = write(tmp_path / "a.jsonl", {"problem": "What is 1 + 1?", "answer": "2"})
    held = write(tmp_path / "b.jsonl", {"problem": "what is  1+1", "answer": "2"})
    with pytest.raises(UserError, match="stand in the training files"):
        ProblemFiles([train], {"held": held}).tasks("held", 0)


def test_the_math_files_end_to_end(shared_data: Path, spec: CodeSpec) -> None:
    math = CodeSpec(files={**MATH, "root": str(shared_data / "math")})
    counts = {v: len(list(math.tasks(v, 0))) for v in math.variants()}
    assert counts == {
        "train": 1400,
        "gsm8k": 400,
        "svamp": 300,
        "math500": 500,
        "amc23": 40,
        "aime2024": 30,
        "aime2025": 30,
    }
    wrong = ("", "this is certainly not the answer 0417")
    for variant in math.variants():
        for task in math.tasks(variant, 0):
            answer = math.gold_answers(task)[0]
            assert math.verify(Episode(task, answer, [], [], [])).success == 1, task
            assert math.verify(Episode(task, f" $\\displaystyle {answer}$. ", [], [], [])).success == 1, task
            assert not any(math.verify(Episode(task, w, [], [], [])).success for w in wrong)
    assert set(math.data_hashes()) == {*MATH["train"], *MATH["heldout"].values()}
    math.close()


def test_math500_as_written_and_tidied_are_the_same_answers(shared_data: Path, spec: CodeSpec) -> None:
    """``answer_clean`` is the carrier's own tidying; both forms must be accepted for each other."""
    math = CodeSpec(files={"train": ["math500.jsonl"], "heldout": {}, "root": str(shared_data / "math")})
    rows = [json.loads(line) for line in (shared_data / "math" / "math500.jsonl").read_text().splitlines()]
    tasks = {t.id.rpartition("/")[2]: t for t in math.tasks("train", 0)}
    differ = [r for r in rows if r["answer"] != r["answer_clean"]]
    missed = [
        (r["answer"], r["answer_clean"])
        for r in differ
        if not math.verify(Episode(tasks[r["id"]], r["answer_clean"], [], [], [])).success
    ]
    assert len(differ) >= 50 and len(missed) <= 3, missed
    math.close()
