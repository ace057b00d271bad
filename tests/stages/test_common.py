"""Task streams with a cursor, where a stage starts, and what a resumed run may change."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from agentrl import cli
from agentrl.envs.base import EnvSpec, Task
from agentrl.errors import RunError, UserError
from agentrl.runs.folder import Run
from agentrl.stages.common import TaskStream, load_rollout, load_state, save_state, starting_point
from agentrl.stages.train import new_state


class Finite(EnvSpec):
    """Five tasks, or as many as asked for."""

    name = "finite"

    def __init__(self, length: int = 5):
        self.length = length

    def variants(self):
        return {"train": "a few"}

    def tasks(self, variant: str, seed: int, start: int = 0) -> Iterator[Task]:
        return (Task(str(i), "?", {}, variant, "train", i) for i in range(start, self.length))

    def make(self):
        raise NotImplementedError

    def verify(self, episode):
        raise NotImplementedError


def ids(tasks: list[Task]) -> str:
    return "".join(t.id for t in tasks)


def test_a_stream_starts_over_when_it_ends():
    stream = TaskStream(Finite(), "train", 0)
    assert ids(stream.next(3)) == "012" and ids(stream.next(4)) == "3401" and ids(stream.next(12)) == "234012340123"


@pytest.mark.parametrize("cursor", range(12))
def test_a_restored_cursor_goes_on_with_the_same_tasks(cursor):
    straight = ids(TaskStream(Finite(), "train", 0).next(20))
    stream = TaskStream(Finite(), "train", 0)
    stream.next(cursor)
    restored = TaskStream(Finite(), "train", 0, stream.cursor)
    assert ids(restored.next(20 - cursor)) == straight[cursor:]


def test_no_tasks_at_all():
    with pytest.raises(RunError, match="no tasks of variant 'train'"):
        TaskStream(Finite(0), "train", 0).next(1)


def test_where_a_stage_starts(config, tmp_path):
    cfg = config()
    assert starting_point(cfg, ("sft",)) is None
    kit = load_rollout(cfg, None)
    run = Run.create(cfg, "sft", ["agentrl"])
    saved = run.checkpoints.save(1, kit.save, keep=0)
    run.finish()
    cfg.run.root = str(tmp_path)
    found = starting_point(cfg, ("sft",))
    assert found is not None and found.resolve() == saved.resolve()
    assert starting_point(cfg, ("train",)) is None
    cfg.model.init = str(saved)
    assert starting_point(cfg, ("train",)) == saved
    cfg.model.init = str(tmp_path / "nowhere")
    with pytest.raises(UserError, match="no such folder"):
        starting_point(cfg, ("train",))


def test_the_trainer_state_comes_back(config, tmp_path):
    cfg = config()
    kit = load_rollout(cfg, None)
    state = new_state(cfg, kit)
    state.step, state.learner.updates, state.best = 7, 9, 0.25
    state.stream.next(3)
    save_state(tmp_path, state.learner.optimizer, state.to_json())
    other = new_state(cfg, kit)
    other.restore(load_state(tmp_path, other.learner.optimizer))
    assert other.to_json() == state.to_json()
    assert ids(other.stream.next(2)) == ids(state.stream.next(2))


def test_a_resumed_run_keeps_its_config(config, tmp_path, capsys):
    Run.create(config(), "train", ["agentrl"]).finish()
    assert cli.main(["train", f"run.resume={tmp_path / 'run'}", "algo.learning_rate=1"]) == 2
    message = capsys.readouterr().err
    assert "algo.learning_rate" in message and "train.steps" in message and message.count("\n") == 1
