from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentrl.envs.base import Outcome, Task
from agentrl.errors import RunError
from agentrl.rollout.trajectory import (
    Costs,
    Group,
    RewardComponent,
    RewardRecord,
    Row,
    StopReason,
    Trajectory,
    Turn,
)
from agentrl.runs.folder import Run
from agentrl.runs.trajectories import read_trajectories, write_trajectories

texts = st.text(max_size=12)
numbers = st.floats(allow_nan=False, allow_infinity=False, width=32)


@st.composite
def rows(draw: st.DrawFn) -> Row:
    n = draw(st.integers(0, 6))

    def array(values: st.SearchStrategy, dtype: type) -> np.ndarray:
        return np.asarray(draw(st.lists(values, min_size=n, max_size=n)), dtype=dtype)

    return Row(
        ids=array(st.integers(0, 2**31 - 1), np.int32),
        origin=array(st.integers(0, 2), np.uint8),
        logprobs=array(numbers, np.float32),
        turn=array(st.integers(-1, 2**15 - 1), np.int16),
        advantage=array(numbers, np.float32),
    )


turns = st.builds(
    Turn,
    text=texts,
    action=texts,
    observation=st.none() | texts,
    outcome=st.sampled_from(Outcome),
    error=st.none() | texts,
    state_key=texts,
    stop=st.just("stop_string"),
    tool_calls=st.integers(0, 3),
    tool_seconds=numbers,
    info=st.dictionaries(texts, st.none() | texts | st.integers(-9, 9) | st.lists(texts, max_size=2), max_size=2),
)
components = st.builds(
    RewardComponent,
    name=texts,
    tier=st.just("verifiable"),
    value=st.none() | numbers,
    weight=numbers,
    seconds=numbers,
    per_turn=st.none() | st.lists(numbers, max_size=3),
    error=st.none() | texts,
)
task = Task("t/1", "2024-01-02?", {"answers": ["0012"]}, "train", "train")
trajectories = st.builds(
    Trajectory,
    task=st.just(task),
    member=st.integers(0, 9),
    policy_step=st.integers(0, 10**6),
    rows=st.lists(rows(), max_size=3),
    turns=st.lists(turns, max_size=2),
    stop_reason=st.sampled_from(StopReason),
    error=st.none() | texts,
    answer=st.none() | texts | st.sampled_from(["0012", "NA", "None", "2024-01-02"]),
    text=texts,
    reward=st.builds(RewardRecord, st.lists(components, max_size=2)),
    success=st.none() | numbers,
    scores=st.dictionaries(texts, numbers, max_size=2),
    costs=st.builds(Costs, *[st.integers(0, 10**9)] * 3, numbers),
)


@settings(deadline=None, max_examples=40, suppress_health_check=list(HealthCheck))
@given(st.lists(trajectories, max_size=3))
def test_what_is_written_comes_back(made: list[Trajectory]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = write_trajectories(Path(folder) / "train-000001.parquet", [Group(task, made)])
        back = read_trajectories(path) if path else []
    assert len(back) == len(made)
    for record, t in zip(back, made, strict=True):
        assert (record["id"], record["task_hash"], record["question"]) == (t.id, task.hash, task.question)
        assert (record["answer"], record["error"], record["text"]) == (t.answer, t.error, t.text)
        assert (record["success"], record["reward_total"]) == (t.success, t.reward.total)
        assert record["scores"] == t.scores and record["stop_reason"] == t.stop_reason.value
        assert record["costs"] == vars(t.costs)
        kept = [{k: v for k, v in vars(c).items() if k != "per_token"} for c in t.reward.components]
        assert record["reward"] == kept
        assert record["turns"] == [{**vars(turn), "outcome": turn.outcome.value} for turn in t.turns]
        for got, row in zip(record["rows"], t.rows, strict=True):
            for name, array in vars(row).items():
                assert got[name].dtype == array.dtype
                np.testing.assert_array_equal(got[name], array)


def test_a_lone_surrogate_is_written_as_its_escape(tmp_path: Path) -> None:
    broken = Trajectory(task, 0, 0, [], text="a\ud800b", answer="é")
    path = write_trajectories(tmp_path / "train-000001.parquet", [Group(task, [broken])])
    assert path is not None
    record = read_trajectories(path)[0]
    assert record["text"] == "a\\ud800b" and record["answer"] == "é"


def test_datasets_loads_the_files(run: Run, groups: list[Group], tmp_path: Path) -> None:
    import datasets

    for step in (1, 2):
        run.save_trajectories(step, groups)
    assert run.save_trajectories(3, [], tag="eval") is None  # an empty file would not load
    files = [str(p) for p in sorted((run.dir / "trajectories").glob("*.parquet"))]
    loaded = datasets.load_dataset("parquet", data_files=files, split="train", cache_dir=str(tmp_path / "cache"))
    assert len(loaded) == 12
    first = groups[0].trajectories[0]
    assert loaded[0]["rows"][0]["ids"] == first.rows[0].ids.tolist()
    assert loaded[0]["scores"] == [{"name": "f1", "value": 1.0}]
    assert loaded[0]["costs"]["tokens_sampled"] == first.costs.tokens_sampled


def test_a_file_that_is_no_parquet_is_named(tmp_path: Path) -> None:
    path = tmp_path / "train-000001.parquet"
    path.write_bytes(b"PAR1")
    with pytest.raises(RunError, match="train-000001"):
        read_trajectories(path)
