"""`agentrl train-reward` through the command line, and the reward model it wrote as a reward."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from rewards.test_rewards import Sums, group
from transformers import AutoModelForSequenceClassification

from agentrl import cli
from agentrl.config.schema import Config, RewardComponentConfig, RewardConfig
from agentrl.envs.base import Outcome, Task
from agentrl.errors import UserError
from agentrl.rewards import build
from agentrl.rewards.transcript import of_trajectory
from agentrl.rollout.trajectory import Group, Row, Trajectory, Turn
from agentrl.runs.folder import Run
from agentrl.runs.ledger import shape_of

SMALL = (
    "model=tiny", "engine.threads=1", "run.tracker=none", "reward_model.learning_rate=3e-3",
    "reward_model.batch_size=8", "reward_model.warmup_steps=0",
)  # fmt: skip


def pairs_file(path: Path, count: int = 60) -> Path:
    """The answer that names its number is preferred."""
    rows = [{"prompt": f"{i}?", "chosen": f"<answer> the {i} </answer>", "rejected": "who knows"} for i in range(count)]
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("reward")
    source = pairs_file(folder / "pairs.jsonl")
    wanted = [f"reward_model.source={source}", "reward_model.epochs=2", f"run.dir={folder / 'run'}"]
    assert cli.main(["train-reward", *SMALL, *wanted, f"run.root={folder}"]) == 0
    return folder / "run"


def test_it_reports_accuracy_and_calibration_on_held_out_pairs(trained: Path) -> None:
    report = json.loads((trained / "reward_model.json").read_text())["heldout"]
    assert report["n"] == 6 and report["accuracy"]["mean"] == 1.0 and report["longer_is_better"] == 1.0
    assert report["log_loss"] < 0.3 and report["calibration"]["ece"] is not None
    assert (trained / "plots" / "calibration.png").is_file()
    lines = [json.loads(line) for line in (trained / "metrics.jsonl").read_text().splitlines()]
    assert len(lines) == 14 and lines[-1]["heldout/accuracy"] == 1.0
    facts = json.loads((trained / "run.json").read_text())
    assert (facts["stage"], facts["status"]) == ("train_reward", "finished") and facts["source"].endswith("pairs.jsonl")


def test_its_costs_are_in_the_ledger(trained: Path) -> None:
    parts = json.loads((trained / "ledger.json").read_text())["components"]
    lines = [json.loads(line) for line in (trained / "metrics.jsonl").read_text().splitlines()]
    assert parts["update"]["tokens_trained"] == sum(m["train/tokens"] for m in lines)
    shape = shape_of(AutoModelForSequenceClassification.from_pretrained(trained / "checkpoints" / "best"))
    expected = sum(shape.training(m["train/tokens"], m["train/attended"]) for m in lines)
    assert parts["update"]["flops_training"] == pytest.approx(expected) and parts["eval"]["flops_forward"] > 0
    assert parts["save"]["wall_s"] > 0


def test_a_budget_ends_it_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    wanted = [f"reward_model.source={pairs_file(tmp_path / 'p.jsonl')}", "run.dir=run", "budget.tokens=500"]
    assert cli.main(["train-reward", *SMALL, *wanted]) == 0
    facts, report = (json.loads(Path("run", name).read_text()) for name in ("run.json", "reward_model.json"))
    assert facts["status"] == "budget_spent" and facts["costs"]["tokens_trained"] >= 500 and report["step"] < 7
    assert Path("run/checkpoints/best/config.json").is_file()


def test_the_checkpoint_is_a_reward(trained: Path) -> None:
    options = {"path": str(trained / "checkpoints" / "best")}
    rewards = build(RewardConfig("m", {"model": RewardComponentConfig("model", options=options)}), Sums(), 0)
    made = group("the 2", "", "4")
    rewards.score([made], step=0)
    values = [t.reward.total for t in made.trajectories]
    assert all(v is not None for v in values) and len(set(values)) == 3
    record = made.trajectories[0].reward.components[0]
    assert record.tier == "learned" and record.seconds > 0
    costs = rewards.take_costs()
    component = rewards.components["model"]
    rows = [component.reward_model.encode(of_trajectory(t)) for t in made.trajectories]
    pairs = sum(len(r) * (len(r) + 1) // 2 for r in rows)
    tokens = sum(map(len, rows))
    assert costs["cost/reward_model_tokens_forward"] == tokens
    assert costs["cost/reward_model_flops_forward"] == component.shape.forward(tokens, pairs)
    assert made.trajectories[0].success == 0.0  # success is always the verifier's


def test_pairs_of_a_runs_trajectories_and_rl_against_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run = Run.create(Config(), "train", ["agentrl"])
    groups = []
    for i in range(12):
        task = Task(f"t{i}", f"question {i}", {}, "train", "train")
        members = []
        for member, (answer, success) in enumerate([("river", 1.0), ("city", 0.0), ("city hall", 0.0), ("x", None)]):
            turn = Turn(answer, answer, None, Outcome.OK, None, "s", "stop_string")
            made = Trajectory(task, member, 0, [Row.from_prompt([1])], [turn], success=success)
            members.append(made)
        groups.append(Group(task, members))
    run.save_trajectories(1, groups)
    run.finish()
    wanted = [f"reward_model.source={run.dir}", "reward_model.pairs_per_task=1", "reward_model.holdout=0.25"]
    assert cli.main(["train-reward", *SMALL, *wanted, "run.dir=rm"]) == 0
    report = json.loads(Path("rm/reward_model.json").read_text())["heldout"]
    assert report["n"] == 3
    fitted_on = set(Path("rm/task_hashes.txt").read_text().split())
    assert len(fitted_on) == 12

    calling = ["env.name=calling", "env.spec=stages.calling:CallingSpec", "env.max_turns=2", "env.max_turn_tokens=6"]
    reward = ["reward=model", "reward.components.model.options.path=rm/checkpoints/best"]
    beside = ["reward.components.verifiable.kind=verifiable", "reward.components.verifiable.weight=0"]
    sizes = ["train.steps=1", "algo.group_size=2", "algo.prompts_per_step=1", "rollout.max_tokens=64", "run.dir=rl"]
    assert cli.main(["train", *SMALL, *calling, *reward, *beside, *sizes]) == 0
    (step,) = (json.loads(line) for line in Path("rl/metrics.jsonl").read_text().splitlines())
    assert step["reward/mean"] == step["reward/model/mean"] and step["reward/verifiable/mean"] == step["success/mean"]
    parts = json.loads(Path("rl/ledger.json").read_text())["components"]
    assert parts["reward_model"]["flops_forward"] > 0
    assert set(Path("rl/task_hashes.txt").read_text().split()) > fitted_on  # the policy learned of these tasks too
    path = Run.open("rl").config().reward.components["model"].options["path"]
    assert Path(path) == (tmp_path / "rm" / "checkpoints" / "best").resolve()  # a resumed run finds it from anywhere


def test_held_out_trajectories_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    run = Run.create(Config(), "eval", ["agentrl"])
    made = Trajectory(Task("t", "q", {}, "later", "heldout"), 0, 0, [Row.from_prompt([1])], success=1.0)
    run.save_trajectories(0, [Group(made.task, [made])], tag="eval")
    run.finish()
    assert cli.main(["train-reward", *SMALL, f"reward_model.source={run.dir}"]) == 2
    assert "held-out tasks (later)" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("overrides", "part"),
    [
        ([], "reward_model.source: give a file"),
        (["reward_model.source=nowhere.jsonl"], "nowhere.jsonl: no such file"),
        (["reward_model.source=p.jsonl", "model.lora.enabled=true"], "model.lora.enabled"),
        (["reward_model.source=p.jsonl", "reward_model.holdout=1"], "less than 1"),
        (["reward_model.sorce=p.jsonl"], "reward_model.source"),
    ],
)
def test_wrong_input_is_one_line(overrides, part, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    pairs_file(tmp_path / "p.jsonl", 4)
    assert cli.main(["train-reward", "model=tiny", *overrides]) == 2
    err = capsys.readouterr().err
    assert part in err and err.count("\n") == 1 and not Path("outputs").exists()


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({}, "path: give a reward model's folder"),
        ({"path": "./nowhere"}, "there is no such folder"),
        ({"path": "x/y", "max_tokens": 0}, "max_tokens=0"),
    ],
)
def test_a_wrong_model_reward_names_the_option(options: dict, part: str) -> None:
    with pytest.raises(UserError) as caught:
        build(RewardConfig("m", {"model": RewardComponentConfig("model", options=options)}), Sums(), 0)
    assert part in str(caught.value) and "reward.components.model.options" in str(caught.value)
