"""Runs, groups and a byte-level tokenizer, made as the real stages make them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from agentrl.config.schema import Config
from agentrl.envs.base import Outcome, Task
from agentrl.rollout.trajectory import (
    Costs,
    Group,
    Origin,
    RewardComponent,
    RewardRecord,
    Row,
    StopReason,
    Trajectory,
    Turn,
)
from agentrl.runs.folder import Run


def byte_tokenizer(folder: Path) -> None:
    """A tokenizer.json with one token a byte, so that a multi-byte character is split over tokens."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))


@pytest.fixture
def encode(tmp_path: Path) -> Callable[[str], list[int]]:
    from tokenizers import Tokenizer

    folder = tmp_path / "tokenizer"
    folder.mkdir()
    byte_tokenizer(folder)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    return lambda text: list(tokenizer.encode(text).ids)


def make_trajectory(
    task: Task,
    member: int,
    step: int,
    encode: Callable[[str], list[int]],
    parts: tuple[str, str, str] = ("Q: who?\n", "<search>é🙂</search>", "\n<information>x</information>"),
    reward: float | None = 1.0,
    stop: StopReason = StopReason.DONE,
) -> Trajectory:
    prompt, action, observation = parts
    row = Row.from_prompt(encode(prompt))
    ids = encode(action)
    row.append(ids, Origin.SAMPLED, 0, [-0.5] * len(ids))
    row.append(encode(observation), Origin.OBSERVATION, 0)
    row.advantage[row.sampled] = np.float32(0.25)
    components = [RewardComponent("verifiable", "verifiable", reward, 1.0, 0.01)]
    return Trajectory(
        task=task,
        member=member,
        policy_step=step,
        rows=[row],
        turns=[Turn(action, action, observation, Outcome.OK, None, "s0", "stop_string", None, 1, 0.1, {"query": "é"})],
        stop_reason=stop,
        error="search server down" if stop is StopReason.ERROR else None,
        answer="x" if reward else None,
        text="".join(parts),
        reward=RewardRecord(components),
        success=reward,
        scores={} if reward is None else {"f1": reward},
        costs=Costs(len(ids), len(row) - len(ids), 1, 0.1),
    )


@pytest.fixture
def groups(encode: Callable[[str], list[int]]) -> list[Group]:
    """Two groups: successes and failures; one member of the second ended in an error."""
    made = []
    for k in range(2):
        task = Task(f"atlas/{k}", f"who is {k}?", {"answers": ["x"]}, "train", "train", seed=k)
        members = [make_trajectory(task, m, 3, encode, reward=float(m == 0)) for m in range(3)]
        made.append(Group(task, members))
    made[1].trajectories[2] = make_trajectory(made[1].task, 2, 3, encode, reward=None, stop=StopReason.ERROR)
    return made


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Config:
    """A Config whose outputs lie in the test's own folder, without a tracker."""
    monkeypatch.chdir(tmp_path)
    cfg = Config()
    cfg.run.tracker = "none"
    return cfg


@pytest.fixture
def run(config: Config, tmp_path: Path) -> Run:
    """A run with a checkpoint that holds the byte tokenizer."""
    made = Run.create(config, "train", ["agentrl", "train", "env=search"])
    made.checkpoints.save(3, byte_tokenizer, keep=1)
    return made
