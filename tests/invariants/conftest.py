from __future__ import annotations

import json
from pathlib import Path

import pytest
from invariants.running import finish, start, train

from agentrl.envs.search.env import prompt


@pytest.fixture(scope="session")
def cold(tmp_path_factory) -> Path:
    """A tiny model that has learned to search and answer by rote: its runs have tool calls and different ends."""
    folder = tmp_path_factory.mktemp("cold")
    records = []
    for n in range(16):
        word, last = ("river", "company", "author", "city")[n % 4], ("north", "Rome", "1987", "garden")[n // 4 % 4]
        records.append(
            {
                "messages": [
                    {"role": "user", "content": prompt(f"Where is the {word}", 5)},
                    {"role": "assistant", "content": f"<search> the {word} </search>"},
                    {"role": "tool", "content": f"<information>Doc 1(Title: {word}) {last}</information>"},
                    {"role": "assistant", "content": f"<answer> {last} </answer>"},
                ]
            }
        )
    source = folder / "traces.jsonl"
    source.write_text("\n".join(map(json.dumps, records)))
    wanted = [
        f"sft.source={source}", "sft.epochs=25", "sft.batch_size=8", "sft.learning_rate=1e-2", "sft.holdout=0",
    ]  # fmt: skip
    rest = ["env=search", "model=tiny", "engine.threads=1", "run.tracker=none", f"run.dir={folder / 'run'}"]
    log = folder / "log"
    finish(start(["sft-coldstart", *wanted, *rest], log), log)
    return folder / "run" / "checkpoints" / "last"


@pytest.fixture(scope="session")
def whole(tmp_path_factory, cold) -> Path:
    """An uninterrupted run of four steps with a checkpoint every second one."""
    return train(tmp_path_factory.mktemp("whole") / "run", f"model.init={cold}", "train.steps=4", "train.save_every=2")
