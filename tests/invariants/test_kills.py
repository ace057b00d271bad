"""Processes killed at any moment, and stopped by Ctrl-C: going on gives the bits of the run that was left alone."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from invariants.running import (
    SMALL,
    assert_identical,
    kill_when,
    metrics_of,
    resume,
    same_bits,
    start,
    steps_of,
    tokens_of,
    weights_of,
)

ARGUMENTS = ("train.steps=4", "train.save_every=2")


def begin(folder: Path, cold: Path):
    log = folder.with_suffix(".log")
    return start(["train", *SMALL, f"model.init={cold}", *ARGUMENTS, f"run.dir={folder}"], log)


def killed(process) -> None:
    process.join(60)
    assert process.exitcode == -signal.SIGKILL


def test_killed_in_the_middle_of_a_batch(whole, cold, tmp_path):
    """Step 4 is under way: the checkpoint of step 2 is the newest, and step 3 is done again."""
    folder = tmp_path / "run"
    process = begin(folder, cold)
    assert kill_when(process, lambda: steps_of(folder) == 3)
    killed(process)
    assert steps_of(folder) == 3 and json.loads((folder / "run.json").read_text())["status"] == "running"
    resume(folder)
    assert_identical(folder, whole)
    facts = json.loads((folder / "run.json").read_text())
    assert facts["status"] == "finished" and [r["step"] for r in facts["resumed"]] == [2]


def test_killed_before_the_first_checkpoint(whole, cold, tmp_path):
    folder = tmp_path / "run"
    process = begin(folder, cold)
    assert kill_when(process, lambda: steps_of(folder) == 1)
    killed(process)
    assert not any((folder / "checkpoints").glob("step-*"))
    resume(folder)
    assert_identical(folder, whole)


def test_killed_while_a_checkpoint_is_written(whole, cold, tmp_path):
    folder = tmp_path / "run"
    checkpoints = folder / "checkpoints"
    process = begin(folder, cold)
    assert kill_when(process, lambda: any(checkpoints.glob(".*step-000004*/*")))
    killed(process)
    resume(folder)
    assert_identical(folder, whole)
    assert not [p.name for p in checkpoints.iterdir() if p.name.startswith(".")]


def interrupt(argv: list[str], folder: Path, log: Path) -> int:
    """A run in a real process of its own, sent Ctrl-C in its second step; returns its exit code."""
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with log.open("a") as out:
        process = subprocess.Popen([sys.executable, "-m", "agentrl", *argv], stdout=out, stderr=out, env=environment)
        end = time.monotonic() + 240
        while steps_of(folder) < 1 and process.poll() is None and time.monotonic() < end:
            time.sleep(0.001)
        process.send_signal(signal.SIGINT)
        return process.wait(240)


def test_ctrl_c_finishes_the_step_saves_and_exits_130(whole, cold, tmp_path):
    folder, log = tmp_path / "run", tmp_path / "run.log"
    assert interrupt(["train", *SMALL, f"model.init={cold}", *ARGUMENTS, f"run.dir={folder}"], folder, log) == 130
    text = log.read_text()
    assert "run.resume=" in text and "Traceback" not in text
    done = steps_of(folder)
    assert 1 <= done < 4 and (folder / "checkpoints" / f"step-{done:06d}").is_dir()
    assert json.loads((folder / "run.json").read_text())["status"] == "interrupted"
    resume(folder)
    assert_identical_but_for_checkpoints(folder, whole)


def test_ctrl_c_twice_ends_a_run_whose_tool_hangs(tmp_path):
    (tmp_path / "hanging.py").write_text(
        "import pathlib, time\n"
        "from stages.calling import CallingEnv, CallingSpec\n"
        "class Env(CallingEnv):\n"
        "    def step(self, action):\n"
        "        pathlib.Path('called').touch()\n"
        "        time.sleep(3600)\n"
        "class Spec(CallingSpec):\n"
        "    def make(self):\n"
        "        return Env(self)\n"
    )
    argv = ["train", "model=tiny", "env.name=h", "env.spec=hanging:Spec", "env.max_turn_tokens=4", "engine.threads=1"]
    argv += ["rollout.max_tokens=64", "algo.group_size=2", "algo.prompts_per_step=1", "run.tracker=none", "run.dir=run"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    command = [sys.executable, "-m", "agentrl", *argv]
    with (tmp_path / "log").open("w") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, env=environment, cwd=tmp_path)
        try:
            end = time.monotonic() + 240
            while not (tmp_path / "called").exists() and process.poll() is None and time.monotonic() < end:
                time.sleep(0.05)
            process.send_signal(signal.SIGINT)
            while "press Ctrl-C again" not in (tmp_path / "log").read_text() and time.monotonic() < end:
                time.sleep(0.05)
            process.send_signal(signal.SIGINT)
            assert process.wait(240) == 130, (tmp_path / "log").read_text()
        finally:
            process.kill()
    assert json.loads((tmp_path / "run" / "run.json").read_text())["status"] == "interrupted"


def assert_identical_but_for_checkpoints(folder: Path, whole: Path) -> None:
    """An extra checkpoint was saved, and may be the best one; everything else is the same."""
    assert metrics_of(folder) == metrics_of(whole)
    one, two = weights_of(folder), weights_of(whole)
    assert all(same_bits(one[k], two[k]) for k in two)
    assert all(tokens_of(folder, s) == tokens_of(whole, s) for s in range(1, 5))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_killed_at_random_moments_again_and_again(whole, cold, tmp_path, seed):
    """Up to eight kills in loading, sampling, updating, saving or rewinding, until a run gets through."""
    rng = random.Random(seed)
    folder, log = tmp_path / "run", tmp_path / "run.log"
    kills = 0
    for _ in range(8):
        begun = (folder / "config.yaml").exists() and (folder / "run.json").exists()
        if not begun:  # killed before there was a run: nothing to go on with
            shutil.rmtree(folder, ignore_errors=True)
        process = start(["train", f"run.resume={folder}"], log) if begun else begin(folder, cold)
        moment = time.monotonic() + rng.uniform(0.1, 3.0)
        kills += kill_when(process, lambda moment=moment: time.monotonic() > moment)
        process.join(240)
        if process.exitcode == 0:
            break
        assert process.exitcode == -signal.SIGKILL, log.read_text()[-3000:]
    assert kills
    resume(folder)
    assert_identical(folder, whole)
