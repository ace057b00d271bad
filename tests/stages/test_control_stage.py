"""A comparison with control arms through the command line: arms matched, one verdict, nothing finished done twice."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path

import pytest
from invariants.running import SMALL, finish, kill_when, start, steps_of, weights_of

from agentrl import cli
from agentrl.runs.folder import Run

ARGUMENTS = (
    *(a for a in SMALL if not a.startswith("reward=")),
    "reward=format_only",
    "train.steps=2",
    "train.save_every=1",
    "eval.tasks=4",
    "eval.variants=[train,new_world]",
    "control.margin=0.9",  # so wide that four tasks are enough for a no
)


def control(folder: Path, *more: str) -> int:
    return cli.main(["control", *ARGUMENTS, f"run.root={folder.parent}", f"run.dir={folder}", *more])


def outcome(folder: Path) -> dict:
    """control.json without what a clock or a path decides."""
    result = json.loads((folder / "control.json").read_text())
    for policy in result["policies"]:
        policy.pop("checkpoint")
        for panel in policy["panels"]:
            panel["cost"].pop("wall_s"), panel["cost"].pop("tool_seconds")
    for arm in result["arms"]:
        arm.pop("costs"), arm.pop("run")
    return result


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("control") / "whole"
    log = folder.with_suffix(".log")
    finish(
        start(["control", *ARGUMENTS, f"run.root={folder.parent}", f"run.dir={folder}"], log), log, code=3, seconds=1200
    )
    return folder


def test_arms_are_matched_and_judged(whole):
    result = outcome(whole)
    assert result["verdict"]["finding"] == "does_not" and list(result["controls"]) == ["random"]
    assert [s["side"] for s in result["controls"]["random"]["sides"]] == ["training variant", "held out"]
    assert [p["arm"] for p in result["policies"]] == ["start", "real", "random"]
    assert all(p["panels"][0]["n"] == 4 for p in result["policies"])
    real, other = whole / "arms" / "real", whole / "arms" / "control-random"
    assert Run.open(real).config().reward.name == "format_only" and Run.open(other).config().reward.name == "random"
    a, b = (Run.open(folder).config() for folder in (real, other))
    a.reward, a.run = b.reward, b.run
    assert a == b  # all else is the same
    assert (real / "task_hashes.txt").read_text() == (other / "task_hashes.txt").read_text()
    assert steps_of(real) == steps_of(other) == 2
    assert (whole / "plots" / "control.png").stat().st_size > 10_000
    page = (whole / "report.html").read_text()
    assert "does not explain the gain" in page and "data:image/png" in page
    log = whole.with_suffix(".log").read_text()
    assert re.search(r"^verdict: the reward does not explain the gain", log, re.MULTILINE) and "Traceback" not in log
    assert json.loads((whole / "run.json").read_text())["status"] == "finished"


def test_a_run_with_a_control_reward_is_never_found_as_the_newest_checkpoint(whole, capsys):
    assert cli.main(["eval", "env=search", "model=tiny", f"run.root={whole.parent}"]) == 2
    assert "no checkpoint" in capsys.readouterr().err


@pytest.mark.parametrize("moment", ["training", "evaluating"])
def test_killed_and_resumed(whole, tmp_path, moment):
    folder, log = tmp_path / "run", tmp_path / "log"
    process = start(["control", *ARGUMENTS, f"run.root={tmp_path}", f"run.dir={folder}"], log)
    arm = folder / "arms" / "control-random"
    when = {
        "training": lambda: steps_of(arm) >= 1,
        "evaluating": lambda: (folder / "evals" / "start.json").is_file(),
    }
    assert kill_when(process, when[moment])
    process.join(60)
    assert process.exitcode == -signal.SIGKILL and not (folder / "control.json").exists()
    real = (folder / "arms" / "real" / "run.json").stat().st_mtime_ns
    finish(start(["control", f"run.resume={folder}"], log), log, code=3, seconds=1200)
    assert outcome(folder) == outcome(whole)
    assert (folder / "arms" / "real" / "run.json").stat().st_mtime_ns == real
    assert log.read_text().count("  already there: ") == (1 if moment == "training" else 2)


def test_a_finished_run_gets_its_control_arm_only(whole, tmp_path, capsys):
    real = whole / "arms" / "real"
    folder = tmp_path / "run"
    mine = ["eval.tasks=4", "eval.variants=[train,new_world]", "control.margin=0.9", f"run.dir={folder}"]
    assert cli.main(["control", "--run", str(real), *mine, f"run.root={tmp_path}"]) == 3
    assert not (folder / "arms" / "real").exists()
    one, two = (weights_of(f / "arms" / "control-random") for f in (folder, whole))
    assert all(one[k].equal(two[k]) for k in two)
    assert outcome(folder)["controls"] == outcome(whole)["controls"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["control.arms=[rnadom]"], r"control\.arms: .*'rnadom'; did you mean 'random'"),
        (["control.arms=[]"], r"control\.arms is empty"),
        (["control.margin=0"], r"control\.margin must be greater than 0"),
        (["eval.variants=[nowhere]"], r"no variant 'nowhere'"),
        (["--run", "REAL", "train.steps=5"], r"train\.steps: with --run"),
        (["--run", "REAL", "env=search"], r"env: with --run"),
        (["--run", "WHOLE"], r"is a control run"),
        (["--run", "nowhere"], r"no run nowhere"),
        (["run.resume=REAL"], r"is a train run; go on with `agentrl train`"),
        (["run.resume=WHOLE", "eval.tasks=3"], r"give nothing beside it"),
        (["engine=openai", "engine.model=m"], r"evaluation only"),
    ],
)
def test_wrong_input_is_said_before_anything_is_trained(whole, tmp_path, monkeypatch, capsys, arguments, message):
    monkeypatch.chdir(tmp_path)
    paths = {"REAL": str(whole / "arms" / "real"), "WHOLE": str(whole)}
    filled = [re.sub("REAL|WHOLE", lambda m: paths[m[0]], a) for a in arguments]
    own = [] if "--run" in filled or filled[0].startswith("run.resume") else ["env=search", "model=tiny"]
    assert cli.main(["control", *own, *filled]) == 2
    said = capsys.readouterr().err
    assert re.search(message, said) and said.count("\n") == 1
    assert not (tmp_path / "outputs").exists()
