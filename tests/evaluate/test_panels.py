"""Panels are deterministic, distinct and apart from training; a policy's history is followed to its beginning."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path

import pytest

from agentrl.envs.base import EnvSpec
from agentrl.errors import UserError
from agentrl.evaluate.panels import build_panel, choose_variants, history_of, record_hashes


def test_panel_is_deterministic_and_distinct(toy: EnvSpec) -> None:
    one, two = build_panel(toy, "bigger", 20, seed=5), build_panel(toy, "bigger", 20, seed=5)
    assert one == two and one.hash == two.hash and len(one.hash) == 16
    assert len({t.hash for t in one.tasks}) == 20 and one.split == "heldout" and one.note is None
    assert build_panel(toy, "bigger", 20, seed=6).hash != one.hash
    assert build_panel(toy, "train", 20, seed=5).split == "train"


def test_trained_on_tasks_of_the_training_variant_are_replaced(toy: EnvSpec) -> None:
    stream = list(islice(toy.tasks("train", 5), 12))
    panel = build_panel(toy, "train", 10, 5, trained_on={stream[0].hash, stream[3].hash})
    assert panel.tasks == tuple(t for i, t in enumerate(stream) if i not in (0, 3))
    assert panel.replaced == 2 and "2 trained-on tasks" in (panel.note or "")


def test_heldout_task_in_training_is_refused(toy: EnvSpec) -> None:
    leaked = list(islice(toy.tasks("bigger", 5), 8))[7]
    with pytest.raises(UserError, match=rf"bigger-5-7.*{leaked.hash}"):
        build_panel(toy, "bigger", 10, 5, trained_on={leaked.hash})


def test_short_and_stuck_streams_end_and_say_so(toy: EnvSpec) -> None:
    panel = build_panel(toy, "few", 10, 0)
    assert len(panel.tasks) == 3 and "only 3 of 10" in (panel.note or "")
    assert len(build_panel(toy, "stuck", 10, 0).tasks) == 1


def test_variant_names(toy: EnvSpec) -> None:
    assert choose_variants(toy, None, heldout=False) == ["train"]
    assert choose_variants(toy, None, heldout=True) == ["train", "bigger", "few", "stuck"]
    assert choose_variants(toy, ["few"], heldout=True) == ["few"]
    with pytest.raises(UserError, match="'biger'; did you mean 'bigger'"):
        build_panel(toy, "biger", 1, 0)
    with pytest.raises(UserError, match=r"eval\.tasks=0"):
        build_panel(toy, "train", 0, 0)


def _run(toy: EnvSpec, folder: Path, seed: int, starts_from: str | None) -> Path:
    checkpoint = folder / "checkpoints" / "step-000002"
    checkpoint.mkdir(parents=True)
    (folder / "run.json").write_text(json.dumps({"starts_from": starts_from}))
    record_hashes(folder, islice(toy.tasks("train", seed), 3))
    return checkpoint


def test_history_follows_the_chain(tmp_path: Path, toy: EnvSpec) -> None:
    sft = _run(toy, tmp_path / "sft", 1, "org/base-model")
    rl = _run(toy, tmp_path / "rl", 2, str(sft))
    (rl.parent / "last").symlink_to(rl.name)
    again = _run(toy, tmp_path / "again", 3, "../rl/checkpoints/last")  # relative to the run folder
    history = history_of(again)
    assert history.hashes == {t.hash for seed in (1, 2, 3) for t in islice(toy.tasks("train", seed), 3)}
    assert [Path(r).name for r in history.runs] == ["again", "rl", "sft"] and history.gaps == []


def test_history_of_a_loop_and_of_a_base_model(tmp_path: Path, toy: EnvSpec) -> None:
    one = _run(toy, tmp_path / "one", 1, str(tmp_path / "two"))
    _run(toy, tmp_path / "two", 2, str(one))
    assert len(history_of(one).runs) == 2
    assert history_of(None).gaps == []
    base = tmp_path / "base"
    base.mkdir()
    assert history_of(_run(toy, tmp_path / "sft", 1, str(base))).gaps == []


def test_what_is_not_known_is_named(tmp_path: Path, toy: EnvSpec) -> None:
    (tmp_path / "copied").mkdir()
    assert "no run folder" in history_of(tmp_path / "copied").gaps[0]
    rl = _run(toy, tmp_path / "rl", 1, str(tmp_path / "gone" / "checkpoints" / "step-000001"))
    assert "is gone" in history_of(rl).gaps[0]
    (tmp_path / "rl" / "task_hashes.txt").unlink()
    assert "task_hashes.txt" in history_of(rl).gaps[0]


def test_a_torn_line_does_not_swallow_the_next_hash(tmp_path: Path, toy: EnvSpec) -> None:
    first, second = islice(toy.tasks("train", 0), 2)
    checkpoint = _run(toy, tmp_path / "r", 9, None)
    (tmp_path / "r" / "task_hashes.txt").write_text(first.hash[:9])
    record_hashes(tmp_path / "r", [first, second])
    assert history_of(checkpoint).hashes == {first.hash, second.hash}
