"""The eval stage end to end, with the tiny model and the real engine, environment and run folder."""

from __future__ import annotations

import json
import shutil
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from agentrl.config import compose
from agentrl.envs.registry import load_spec
from agentrl.errors import UserError
from agentrl.evaluate.panels import record_hashes
from agentrl.models.load import load_model, load_tokenizer, resolve, save_model
from agentrl.stages import evaluate


def config(tmp_path: Path, *more: str) -> Any:
    small = ["env=search", "model=tiny", "engine.threads=1", "engine.slots=8", "eval.tasks=3", "rollout.max_tokens=448"]
    limits = ["env.max_turn_tokens=8", "env.max_turns=2", "run.tracker=none", "model.dtype=fp32"]
    return compose([*small, *limits, f"run.root={tmp_path / 'outputs'}", *more])


def make_run(tmp_path: Path, name: str, stage: str, step: int, starts_from: Path | None = None, seed: int = 0) -> Path:
    """A finished run with one real checkpoint of the tiny model; seed changes nothing but the recorded tasks."""
    import torch

    from agentrl.runs.folder import Run

    cfg = config(tmp_path, f"run.dir={tmp_path / 'outputs' / name}")
    run = Run.create(cfg, stage, ["test"])
    run.update(starts_from=str(starts_from) if starts_from else None)
    record_hashes(run.dir, islice(load_spec(cfg.env).tasks("train", seed), 4))
    path = resolve(cfg.model)
    model, tokenizer = load_model(path, torch.float32), load_tokenizer(path)
    saved = run.checkpoints.save(step, lambda folder: save_model(model, tokenizer, folder), keep=1)
    run.finish()
    return saved


def test_newest_checkpoint_and_base_on_all_variants(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sft = make_run(tmp_path, "sft", "sft", 3)
    make_run(tmp_path, "rl", "train", 7, starts_from=sft, seed=1)
    cfg = config(tmp_path)
    path = evaluate.main(cfg, heldout=True, checkpoints=[], base=True)
    result = json.loads(path.read_text())
    assert [p["name"] for p in result["policies"]] == ["base", "RL (train step 7)"]
    assert result["panels"] == result["policies"][-1]["panels"] and result["gap"] == result["policies"][-1]["gap"]
    variants = list(load_spec(cfg.env).variants())
    assert [p["variant"] for p in result["panels"]] == variants
    assert [p["split"] for p in result["panels"]] == ["train"] + ["heldout"] * (len(variants) - 1)
    for panel in result["panels"]:
        assert panel["n"] == 3 and panel["success"]["low"] <= panel["success"]["mean"] <= panel["success"]["high"]
        assert sum(panel["stop_reasons"].values()) == 3 and panel["cost"]["tokens_sampled"] > 0
    # Base and checkpoint hold the same weights and draw from the same streams, so they do exactly the same.
    alike = ("success", "score", "turns", "stop_reasons", "invalid_actions")
    for one, other in zip(result["policies"][0]["panels"], result["policies"][1]["panels"], strict=True):
        assert {k: one[k] for k in alike} == {k: other[k] for k in alike}
        assert one["cost"]["tokens_sampled"] == other["cost"]["tokens_sampled"]
    assert {p["variant"]: p["success"]["mean"] for p in result["paired"]} == dict.fromkeys(variants, 0.0)
    assert (
        result["training"]["tasks"] == 8 and len(result["training"]["runs"]) == 2 and not result["training"]["unknown"]
    )
    assert result["sampling"]["temperature"] == cfg.eval.temperature
    folder = path.parent
    assert (folder / "plots" / "eval.png").stat().st_size > 10_000 and (folder / "report.html").is_file()
    facts = json.loads((folder / "run.json").read_text())
    assert facts["status"] == "finished" and facts["panel_hashes"] == {
        p["variant"]: p["panel_hash"] for p in result["panels"]
    }
    files = sorted(p.name for p in (folder / "trajectories").glob("*.parquet"))
    assert files == ["eval-base-000000.parquet", "eval-rl-train-step-7-000007.parquet"]
    said = capsys.readouterr().out
    assert "newest checkpoint" in said and "held-out" in said and "paired by task" in said and "report.html" in said


def test_the_base_model_may_be_tried_on_fewer_tasks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    checkpoint = make_run(tmp_path, "sft", "sft", 3)
    cfg = config(tmp_path, "eval.base_tasks=1")
    result = json.loads(evaluate.main(cfg, heldout=False, checkpoints=[str(checkpoint)], base=True).read_text())
    base, cold = (policy["panels"][0] for policy in result["policies"])
    assert (base["n"], cold["n"]) == (1, 3) and base["panel_hash"] != cold["panel_hash"]
    assert base["success"]["n"] == 1 and result["paired"][0]["success"]["n"] == 1
    assert "n=1 " in capsys.readouterr().out


def test_variants_may_get_numbers_of_tasks_of_their_own(tmp_path: Path) -> None:
    cfg = config(tmp_path, "eval.tasks=1", "eval.variant_tasks.new_world=2", "eval.variants=[train,new_world]")
    result = json.loads(evaluate.main(cfg, heldout=False, checkpoints=[], base=True).read_text())
    assert [(p["variant"], p["n"]) for p in result["panels"]] == [("train", 1), ("new_world", 2)]
    with pytest.raises(UserError, match="no variant 'newworld'; did you mean 'new_world'"):
        evaluate.main(config(tmp_path, "eval.variant_tasks={newworld: 2}"), heldout=False, checkpoints=[], base=True)
    with pytest.raises(UserError, match="new_world=0"):
        evaluate.main(config(tmp_path, "eval.variant_tasks={new_world: 0}"), heldout=False, checkpoints=[], base=True)


def test_policy_names_are_unique_and_runs_stand_for_their_last_checkpoint(tmp_path: Path) -> None:
    from rich.console import Console

    one, two = make_run(tmp_path, "one", "train", 2), make_run(tmp_path, "two", "train", 2)
    sft = make_run(tmp_path, "sft", "sft", 5)
    given = [str(sft), str(one.parent / "last"), str(two.parent.parent), str(one)]
    found = evaluate.find_policies(config(tmp_path), given, False, Console(quiet=True))
    assert [p.name for p in found] == ["cold start (sft step 5)", "RL (train step 2)", "RL (train step 2, two)"]
    assert [p.checkpoint for p in found] == [sft.resolve(), one.resolve(), two.resolve()]


def test_a_heldout_task_in_training_stops_the_evaluation(tmp_path: Path) -> None:
    checkpoint = make_run(tmp_path, "rl", "train", 1)
    cfg = config(tmp_path)
    spec = load_spec(cfg.env)
    variant = next(v for v in spec.variants() if v != spec.train_variant)
    record_hashes(checkpoint.parent.parent, islice(spec.tasks(variant, cfg.eval.seed), 2))
    with pytest.raises(UserError, match=f"variant '{variant}' was trained on"):
        evaluate.main(cfg, heldout=True, checkpoints=[], base=False)
    assert not list((tmp_path / "outputs").glob("*/*eval*"))  # refused before a run was made


def test_trained_on_tasks_are_replaced_and_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    checkpoint = make_run(tmp_path, "rl", "train", 1)
    cfg = config(tmp_path)
    stream = load_spec(cfg.env).tasks("train", cfg.eval.seed)
    record_hashes(checkpoint.parent.parent, islice(stream, 2))
    result = json.loads(evaluate.main(cfg, False, [str(checkpoint)], False).read_text())
    assert [p["note"] for p in result["panels"]] == ["2 trained-on tasks replaced by fresh ones"]
    assert result["gap"] == {} and result["paired"] == []
    assert "2 trained-on tasks" in capsys.readouterr().out


def test_what_a_user_may_get_wrong(tmp_path: Path) -> None:
    cfg = config(tmp_path)
    with pytest.raises(UserError, match=r"no checkpoint of env=search model=tiny.*sft-coldstart"):
        evaluate.main(cfg, False, [], False)
    with pytest.raises(UserError, match="no such folder"):
        evaluate.main(cfg, False, [str(tmp_path / "nothing")], False)
    checkpoint = make_run(tmp_path, "rl", "train", 1)
    shutil.copytree(checkpoint, tmp_path / "broken")
    (tmp_path / "broken" / "config.json").unlink()
    with pytest.raises(UserError, match="broken"):
        evaluate.main(cfg, False, [str(tmp_path / "broken")], False)
    with pytest.raises(UserError, match="greedy samples"):
        evaluate.main(config(tmp_path, "eval.samples=2", "eval.temperature=0"), False, [], True)
    with pytest.raises(UserError, match="did you mean 'new_world'"):
        evaluate.main(config(tmp_path, "eval.variants=[new_wrld]"), True, [], True)


def test_a_prompted_model_behind_an_endpoint_beside_a_checkpoint(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same weights, served and in process, on the same panels; costs from the server's own counts."""
    from chat_server import MODEL, ChatServer, refuse, serving

    from agentrl import cli

    checkpoint = make_run(tmp_path, "sft", "sft", 3)
    with serving(ChatServer()) as server:
        server.faults.append(refuse(500))
        remote = ["engine=openai", f"engine.url={server.url}", f"engine.model={MODEL}", "engine.slots=3"]
        path = evaluate.main(
            config(tmp_path, *remote, "engine.retries=0"), heldout=False, checkpoints=[str(checkpoint)], base=False
        )
    result = json.loads(path.read_text())
    assert [p["name"] for p in result["policies"]] == [f"prompted {MODEL}", "cold start (sft step 3)"]
    prompted, local = (p["panels"][0] for p in result["policies"])
    assert prompted["errors"] == 1 and prompted["success"]["n"] == 2 and local["success"]["n"] == 3
    assert prompted["panel_hash"] == local["panel_hash"]
    assert prompted["cost"]["tokens_sampled"] > 0 and prompted["cost"]["tokens_prefilled"] > 100
    assert result["paired"][0]["success"]["n"] == 2
    capsys.readouterr()
    assert cli.main(["inspect", str(path.parent), "--tag", f"eval-prompted-{MODEL}", "--show", "3"]) == 0
    assert "user: Answer the question" in capsys.readouterr().out


def test_every_policy_is_paired_with_each_before_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sft = make_run(tmp_path, "sft", "sft", 3)
    rl = make_run(tmp_path, "rl", "train", 7, starts_from=sft, seed=1)
    path = evaluate.main(config(tmp_path), heldout=False, checkpoints=[str(sft), str(rl)], base=True)
    pairs = [(p["policy"], p["versus"]) for p in json.loads(path.read_text())["paired"]]
    base, cold, last = "base", "cold start (sft step 3)", "RL (train step 7)"
    assert pairs == [(cold, base), (last, base), (last, cold)]
    said = capsys.readouterr().out
    assert f"{last} against {base}, paired" in said and f"{last} against {cold}, paired" in said
    page = (path.parent / "report.html").read_text()
    assert "trained on)" not in page and '<span class="sampled">sampled</span>' in page
