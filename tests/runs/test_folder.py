from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.config.schema import Config
from agentrl.errors import RunError, UserError
from agentrl.rollout.trajectory import Group
from agentrl.runs import files
from agentrl.runs.folder import Run, resolve_run


def test_two_runs_in_one_second_get_two_folders_and_latest_is_the_second(config: Config) -> None:
    first, second = (Run.create(config, "train", []) for _ in range(2))
    assert first.dir != second.dir
    assert first.dir.parent.parent == Path("outputs")
    assert os.path.realpath("outputs/latest") == os.path.realpath(second.dir)
    assert not os.path.isabs(os.readlink("outputs/latest"))
    assert resolve_run("latest") == second.dir
    opened = Run.open("outputs/latest")
    Run.create(config, "train", [])
    assert opened.dir == second.dir  # it stays the run that it was when another one starts


def test_config_comes_back_equal(config: Config) -> None:
    config.env.options = {"hops": [1, 2], "corpus": None}
    config.algo.learning_rate = 1e-5
    assert Run.create(config, "train", []).config() == config


def test_run_json_names_what_the_run_stands_on(config: Config) -> None:
    run = Run.create(config, "train", ["agentrl", "train"])
    run.update(panel_hashes={"train": "abc"}, starts_from=Path("a/b"))
    run.ledger.add("rollout", tokens_sampled=12)
    run.finish()
    facts = Run.open(run.dir).facts()
    assert facts["command"] == ["agentrl", "train"]
    assert facts["versions"]["torch"] and facts["hardware"]["cores"] >= 1
    assert facts["panel_hashes"] == {"train": "abc"} and facts["starts_from"] == "a/b"
    assert facts["status"] == "finished" and facts["finished"] >= facts["started"]
    assert facts["costs"]["tokens_sampled"] == 12


def test_run_dir_is_refused_when_something_is_in_it(config: Config, tmp_path: Path) -> None:
    config.run.dir = str(tmp_path / "mine")
    Run.create(config, "train", []).finish()
    with pytest.raises(UserError, match=r"already holds a train run \(finished\).*run\.resume="):
        Run.create(config, "train", [])
    other = tmp_path / "other"
    other.mkdir()
    (other / "notes.txt").write_text("keep me")
    config.run.dir = str(other)
    with pytest.raises(UserError, match=r"not empty.*new run\.dir"):
        Run.create(config, "train", [])
    config.run.dir = str(other / "notes.txt")
    with pytest.raises(UserError, match="is a file"):
        Run.create(config, "train", [])
    assert (other / "notes.txt").read_text() == "keep me"


def test_metrics_are_valid_json_whatever_the_numbers(config: Config) -> None:
    run = Run.create(config, "train", [])
    run.record(1, {"a": float("nan"), "b": float("-inf"), "c": np.float32(0.5), "d": np.int64(3), "e": True})
    text = (run.dir / "metrics.jsonl").read_text()
    assert json.loads(text, parse_constant=pytest.fail) == {
        "step": 1,
        "stage": "train",
        "a": None,
        "b": None,
        "c": 0.5,
        "d": 3,
        "e": 1,
    }
    with pytest.raises(ValueError, match="one line a step"):
        run.record(1, {})
    with pytest.raises(TypeError, match="name"):
        run.record(2, {"name": "text"})


def test_rewind_drops_everything_after_the_step(config: Config, groups: list[Group]) -> None:
    run = Run.create(config, "train", [])
    for step in range(1, 6):
        run.record(step, {"x": step})
        run.warn(step, "entropy", "low")
        run.save_trajectories(step, groups)
    for step in (2, 4):
        run.checkpoints.save(step, lambda f: None, keep=5)
    with open(run.dir / "metrics.jsonl", "a") as file:
        file.write('{"step": 6, "x"')  # what a kill in the middle of a write leaves
    run.finish("interrupted")

    again = Run.open(run.dir)
    assert [r["step"] for r in again.metrics()] == [1, 2, 3, 4, 5]
    again.rewind(2)
    again.record(3, {"x": 33})
    assert [r["x"] for r in again.metrics()] == [1, 2, 33]
    assert [w["step"] for w in again.warnings()] == [1, 2]
    assert sorted(p.name for p in (run.dir / "trajectories").iterdir()) == [
        "train-000001.parquet",
        "train-000002.parquet",
    ]
    assert again.checkpoints.steps() == [2]
    assert again.facts()["status"] == "running"


@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=5), st.data())
def test_a_metrics_file_cut_anywhere_reads_as_its_whole_lines(values: list[int], data: st.DataObject) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "metrics.jsonl"
        for step, value in enumerate(values):
            files.append_line(path, json.dumps({"step": step, "é": value}, ensure_ascii=False))
        whole = path.read_bytes()
        cut = data.draw(st.integers(0, len(whole)))
        path.write_bytes(whole[:cut])
        assert len(list(files.json_lines(path))) == whole[:cut].count(b"\n")


def test_another_process_cannot_write_to_the_same_run(config: Config) -> None:
    run = Run.create(config, "train", [])
    code = f"from agentrl.runs.folder import Run; Run.open({str(run.dir.absolute())!r}).rewind(0)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "another process is writing" in done.stderr
    run.finish()
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_tensorboard_shows_each_step_once_after_a_resume(config: Config) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    config.run.tracker = "tensorboard"
    run = Run.create(config, "train", [])
    for step in (1, 2, 3):
        run.record(step, {"reward/mean": step, "bad": float("nan")})
    run.finish("interrupted")
    again = Run.open(run.dir)
    again.rewind(1)
    for step in (2, 3):
        again.record(step, {"reward/mean": 10 * step})
    again.finish()
    events = EventAccumulator(str(run.dir / "tensorboard"))
    events.Reload()
    assert [(e.step, e.value) for e in events.Scalars("reward/mean")] == [(1, 1), (2, 20), (3, 30)]


def test_a_tracker_that_is_missing_or_unknown_is_named(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    config.run.tracker = "tensorbord"
    with pytest.raises(UserError, match="did you mean 'tensorboard'"):
        Run.create(config, "train", [])
    import importlib.util

    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "wandb" else real(name))
    config.run.tracker = "wandb"
    with pytest.raises(UserError, match="pip install wandb"):
        Run.create(config, "train", [])
    assert not Path("outputs").exists()


def test_runs_are_found_by_suffix_and_the_nearest_is_named(config: Config) -> None:
    first = Run.create(config, "train", [])
    config.env.name = "maze"
    second = Run.create(config, "train", [])
    assert resolve_run("maze") == second.dir
    assert resolve_run(str(first.dir)) == first.dir
    with pytest.raises(UserError, match="did you mean"):
        resolve_run(second.dir.name + "x")
    with pytest.raises(UserError, match="no run at"):
        Run.open("outputs")
    config.run.dir = "outputs/other/my-maze"
    Run.create(config, "train", [])
    with pytest.raises(UserError, match="maze fits 2 runs"):
        resolve_run("maze")


def test_a_full_disk_leaves_the_metrics_whole(config: Config) -> None:
    import resource

    run = Run.create(config, "train", [])
    run.record(1, {"x": 1})
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    size = (run.dir / "metrics.jsonl").stat().st_size
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size + 10, hard))
        with pytest.raises(RunError, match=r"disk full while writing metrics\.jsonl"):
            run.record(2, {"x": 2})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    run.record(2, {"x": 2})
    assert [r["step"] for r in run.metrics()] == [1, 2]


def test_a_full_disk_at_the_end_does_not_hide_why_the_run_failed(config: Config) -> None:
    import resource

    run = Run.create(config, "train", [])
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (10, hard))
        run.finish("failed")
        with pytest.raises(RunError, match=r"disk full while writing ledger\.jsonl"):
            run.finish("finished")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert run.facts()["status"] == "running" and not list(run.dir.glob(".tmp*"))
