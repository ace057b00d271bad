from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentrl.config.schema import Config
from agentrl.errors import RunError
from agentrl.runs.checkpoints import MARKER, CheckpointStore, newest, read_marker
from agentrl.runs.folder import Run


def fill(folder: Path) -> None:
    (folder / "model.bin").write_bytes(b"w" * 1000)
    (folder / "trainer").mkdir()
    (folder / "trainer" / "state.bin").write_bytes(b"s" * 1000)


def test_last_best_and_the_newest_are_kept(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    for step in range(1, 8):
        store.save(step, fill, keep=2, best=step == 2)
    assert store.steps() == [2, 5, 6, 7]
    assert store.last() == store.path(7) and store.best() == store.path(2)
    assert os.readlink(tmp_path / "checkpoints/last") == "step-000007"
    assert os.readlink(tmp_path / "checkpoints/best") == "step-000002"
    store.mark_best(6)
    store.save(8, fill, keep=0)
    assert store.steps() == [6, 8] and (tmp_path / "checkpoints/best").resolve().name == "step-000006"
    store.mark_best(8)
    store.mark_best(6)  # an older one may become best again
    assert store.best() == store.path(6)
    with pytest.raises(ValueError, match="step 5"):
        store.mark_best(5)


def test_an_incomplete_folder_is_never_picked(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    store.save(1, fill, keep=9)
    store.save(2, fill, keep=9)
    shutil.copytree(store.path(2), store.path(3), ignore=shutil.ignore_patterns("checkpoint.json"))
    (store.path(2) / "trainer" / "state.bin").write_bytes(b"cut")
    assert store.steps() == [1] and store.last() == store.path(1)


def test_a_failing_writer_leaves_nothing_behind(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    store.save(1, fill, keep=9)

    def broken(folder: Path) -> None:
        fill(folder)
        raise KeyError("a bug")

    with pytest.raises(KeyError, match="a bug"):
        store.save(2, broken, keep=9)
    assert sorted(p.name for p in (tmp_path / "checkpoints").iterdir()) == ["last", "step-000001"]


def test_saving_a_step_again_replaces_it_and_a_killed_replacement_is_undone(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    store.save(1, fill, keep=9)
    store.save(1, lambda f: (f / "other").write_text("new") and None, keep=9)
    assert (store.path(1) / "other").read_text() == "new"
    os.rename(store.path(1), store.folder / ".old-step-000001")  # killed between the two renames
    (store.folder / ".tmp-step-000001").mkdir()
    store.clean()
    assert store.steps() == [1] and not list(store.folder.glob(".*"))


_WRITER = """
import os, sys
from pathlib import Path
from agentrl.runs.folder import Run
run = Run.open(sys.argv[1])
last = run.checkpoints.last()
step = int(last.name[5:]) if last else 0
run.rewind(step)
print("ready", flush=True)
def write(folder):
    (folder / "trainer").mkdir()
    for name in ("model.bin", "trainer/a.bin", "trainer/b.bin"):
        (folder / name).write_bytes(str(step).encode() * 100_000)
while True:
    step += 1
    run.record(step, {"x": step})
    run.checkpoints.save(step, write, keep=1, best=step % 3 == 0)
"""


def test_kill_minus_nine_at_any_moment_leaves_whole_checkpoints_and_metrics(config: Config) -> None:
    run = Run.create(config, "train", [])
    run.finish("interrupted")
    rng = random.Random(0)
    reached = 0
    for _ in range(10):
        process = subprocess.Popen([sys.executable, "-c", _WRITER, str(run.dir)], stdout=subprocess.PIPE)
        assert process.stdout is not None and process.stdout.readline() == b"ready\n"
        assert CheckpointStore(run.dir).steps() == [] or not list((run.dir / "checkpoints").glob(".old*"))
        time.sleep(rng.uniform(0, 0.4))
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
        store = CheckpointStore(run.dir)
        last = store.last()
        if last is None:
            continue
        step = int(last.name[5:])
        assert step >= reached
        reached = step
        for name in ("model.bin", "trainer/a.bin", "trainer/b.bin"):
            assert (last / name).read_bytes() == str(step).encode() * 100_000
        steps = [r["step"] for r in Run.open(run.dir).metrics()]
        assert steps == list(range(1, len(steps) + 1)) and len(steps) in (step, step + 1)
    assert reached > 3
    run = Run.open(run.dir)
    run.rewind(reached)
    names = {p.name for p in (run.dir / "checkpoints").iterdir()}
    assert not any(n.startswith(".") for n in names) and {"last", "best"} <= names
    assert (run.dir / "checkpoints/last").resolve().name == f"step-{reached:06d}"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system of 4 MiB; skipped where this user may not mount one."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(folder)]
    if shutil.which("mount") is None or subprocess.run(command, capture_output=True).returncode != 0:
        pytest.skip("cannot mount a small tmpfs (needs root)")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def _bytes(folder: Path) -> None:
    (folder / "model.bin").write_bytes(b"x" * 5_000_000)


def _safetensors(folder: Path) -> None:
    import torch
    from safetensors.torch import save_file

    save_file({"w": torch.zeros(1_300_000)}, str(folder / "model.safetensors"))


def _torch(folder: Path) -> None:
    import torch

    torch.save({"w": torch.zeros(1_300_000)}, folder / "optimizer.pt")


@pytest.mark.parametrize("write", [_bytes, _safetensors, _torch])
def test_a_full_disk_keeps_the_old_checkpoint_and_says_what_to_do(small_disk: Path, write: object) -> None:
    store = CheckpointStore(small_disk / "run")
    store.save(1, fill, keep=1)
    with pytest.raises(RunError) as error:
        store.save(2, write, keep=1)  # type: ignore[arg-type]
    message = str(error.value)
    assert "disk full while saving step 2" in message and "free" in message
    assert "step-000001" in message and f"run.resume={small_disk / 'run'}" in message and "\n" not in message
    assert store.steps() == [1] and sorted(p.name for p in store.folder.iterdir()) == ["last", "step-000001"]
    assert store.save(2, fill, keep=1) == store.path(2)


def test_a_file_size_limit_counts_as_a_full_disk(tmp_path: Path) -> None:
    import resource

    store = CheckpointStore(tmp_path)
    store.save(1, fill, keep=1)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, hard))
        with pytest.raises(RunError, match="disk full while saving step 2"):
            store.save(2, _bytes, keep=1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert store.last() == store.path(1)


def test_newest_looks_for_stage_environment_and_model(config: Config, tmp_path: Path) -> None:
    old = Run.create(config, "sft_coldstart", [])
    old.checkpoints.save(9, fill, keep=1)
    config.run.dir = "outputs/demo/sft"
    new = Run.create(config, "sft_coldstart", [])
    assert newest("outputs", "sft_coldstart", "search", "smollm2-135m") == old.checkpoints.path(9)
    new.checkpoints.save(1, fill, keep=1)
    config.run.dir, config.model.path = None, "elsewhere/model"
    Run.create(config, "sft_coldstart", []).checkpoints.save(1, fill, keep=1)
    assert newest("outputs", "sft_coldstart", "search", "smollm2-135m") == new.checkpoints.path(1)
    assert newest("outputs", "train", "search", "smollm2-135m") is None
    assert newest("nowhere", "train", "search", "smollm2-135m") is None
    marker = read_marker(new.checkpoints.path(1))
    assert (
        marker is not None
        and set(marker["files"]) == {"model.bin", "trainer/state.bin"}
        and MARKER not in marker["files"]
    )
