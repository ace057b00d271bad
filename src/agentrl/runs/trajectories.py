"""Trajectories on disk: one parquet file per step and tag, one row a trajectory.

The files load with ``datasets.load_dataset("parquet", data_files=...)``; ``read_trajectories`` gives the same rows with
numpy arrays for tokens.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from agentrl.runs import files

if TYPE_CHECKING:
    import pyarrow as pa

    from agentrl.rollout.trajectory import Group, Trajectory

_NAME = re.compile(r"(.+)-(\d+)\.parquet")
_TOKENS = {"ids": np.int32, "origin": np.uint8, "logprobs": np.float32, "turn": np.int16, "advantage": np.float32}


def path_of(run_dir: Path, tag: str, step: int) -> Path:
    return run_dir / "trajectories" / f"{tag}-{step:06d}.parquet"


def parse_name(path: Path) -> tuple[str, int] | None:
    """(tag, step) of a trajectory file's name, or None for another file."""
    match = _NAME.fullmatch(path.name)
    return None if match is None or path.name.startswith(files.TEMP) else (match[1], int(match[2]))


def schema() -> pa.Schema:
    """The parquet schema: ``scores`` is name/value pairs (maps do not load in `datasets`), a turn's ``info`` JSON."""
    import pyarrow as pa

    row = pa.struct(
        [
            ("ids", pa.list_(pa.int32())),
            (
                "origin",
                pa.list_(pa.uint8()),
            ),  # 0 prompt, 1 sampled, 2 observation, 3 context (earlier steps, shown again in a window)
            ("logprobs", pa.list_(pa.float32())),
            ("turn", pa.list_(pa.int16())),
            ("advantage", pa.list_(pa.float32())),
        ]
    )
    turn = pa.struct(
        [
            ("text", pa.string()),
            ("action", pa.string()),
            ("observation", pa.string()),
            ("outcome", pa.string()),
            ("error", pa.string()),
            ("state_key", pa.string()),
            ("stop", pa.string()),
            ("potential", pa.float64()),  # null: the environment has none
            ("tool_calls", pa.int32()),
            ("tool_seconds", pa.float64()),
            ("info", pa.string()),
        ]
    )
    component = pa.struct(
        [
            ("name", pa.string()),
            ("tier", pa.string()),
            ("value", pa.float64()),  # null: not scored
            ("weight", pa.float64()),
            ("seconds", pa.float64()),
            ("per_turn", pa.list_(pa.float64())),
            ("error", pa.string()),
        ]
    )
    costs = pa.struct(
        [
            ("tokens_sampled", pa.int64()),
            ("tokens_prefilled", pa.int64()),
            ("tool_calls", pa.int64()),
            ("tool_seconds", pa.float64()),
        ]
    )
    return pa.schema(
        [
            ("id", pa.string()),
            ("task_id", pa.string()),
            ("task_hash", pa.string()),
            ("variant", pa.string()),
            ("split", pa.string()),
            ("member", pa.int32()),
            ("policy_step", pa.int64()),
            ("question", pa.string()),
            ("rows", pa.list_(row)),
            ("text", pa.string()),
            ("turns", pa.list_(turn)),
            ("stop_reason", pa.string()),
            ("error", pa.string()),
            ("answer", pa.string()),
            ("potential", pa.float64()),
            ("success", pa.float64()),
            ("scores", pa.list_(pa.struct([("name", pa.string()), ("value", pa.float64())]))),
            ("reward", pa.list_(component)),
            ("reward_total", pa.float64()),
            ("excluded", pa.string()),
            ("costs", costs),
        ]
    )


def _text(value: str | None) -> str | None:
    """Parquet strings are UTF-8: a lone surrogate (a tool's broken JSON) is written as its escape."""
    return None if value is None else value.encode("utf-8", "backslashreplace").decode()


def _json(value: Mapping[str, Any]) -> str:
    return json.dumps(dict(value), default=str)  # ASCII, so surrogates are escaped


def _record(t: Trajectory) -> dict[str, Any]:
    return {
        "id": _text(t.id),
        "task_id": _text(t.task.id),
        "task_hash": t.task.hash,
        "variant": _text(t.task.variant),
        "split": t.task.split,
        "member": t.member,
        "policy_step": t.policy_step,
        "question": _text(t.task.question),
        "rows": [{name: getattr(row, name) for name in _TOKENS} for row in t.rows],
        "text": _text(t.text),
        "turns": [
            {
                "text": _text(turn.text),
                "action": _text(turn.action),
                "observation": _text(turn.observation),
                "outcome": turn.outcome.value,
                "error": _text(turn.error),
                "state_key": _text(turn.state_key),
                "stop": turn.stop,
                "potential": turn.potential,
                "tool_calls": turn.tool_calls,
                "tool_seconds": turn.tool_seconds,
                "info": _json(turn.info),
            }
            for turn in t.turns
        ],
        "stop_reason": t.stop_reason.value,
        "error": _text(t.error),
        "answer": _text(t.answer),
        "potential": t.potential,
        "success": t.success,
        "scores": [{"name": _text(name), "value": float(value)} for name, value in t.scores.items()],
        "reward": [
            {
                "name": c.name,
                "tier": c.tier,
                "value": c.value,
                "weight": c.weight,
                "seconds": c.seconds,
                "per_turn": None if c.per_turn is None else [float(v) for v in c.per_turn],
                "error": _text(c.error),
            }
            for c in t.reward.components
        ],
        "reward_total": t.reward.total,
        "excluded": t.excluded,
        "costs": {
            "tokens_sampled": t.costs.tokens_sampled,
            "tokens_prefilled": t.costs.tokens_prefilled,
            "tool_calls": t.costs.tool_calls,
            "tool_seconds": t.costs.tool_seconds,
        },
    }


def write_trajectories(path: Path, groups: Iterable[Group]) -> Path | None:
    """Write every member of ``groups`` to ``path``, atomically, and return it.

    Without any trajectory nothing is written (`datasets` cannot load an empty file): None. RunError when the disk is
    full or refuses.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    records = [_record(t) for group in groups for t in group.trajectories]
    if not records:
        return None
    table = pa.Table.from_pylist(records, schema=schema())
    temp = path.parent / f"{files.TEMP}{path.name}-{os.getpid()}"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(temp, "wb") as file:
            pq.write_table(table, file, compression="zstd")
            file.flush()
            os.fsync(file.fileno())
        os.replace(temp, path)
    except BaseException as error:
        files.remove(temp)
        if isinstance(error, OSError):
            raise files.write_failed(path.name, error, path.parent) from error
        raise
    files.fsync_dir(path.parent)
    return path


def read_trajectories(path: Path | str) -> list[dict[str, Any]]:
    """The rows of one trajectory file, as dicts with the columns of ``schema``.

    Tokens are numpy arrays (int32 ids, uint8 origin, float32 logprobs, int16 turn, float32 advantage), ``scores`` is a
    dict and every turn's ``info`` is parsed. RunError when the file is not readable.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        records: list[dict[str, Any]] = pq.ParquetFile(path).read().to_pylist()
    except (OSError, pa.ArrowException) as error:
        raise files.RunError(f"cannot read trajectories from {path}: {error}") from error
    for record in records:
        for row in record["rows"]:
            for name, dtype in _TOKENS.items():
                row[name] = np.asarray(row[name], dtype=dtype)
        for turn in record["turns"]:
            turn["info"] = json.loads(turn["info"])
        record["scores"] = {pair["name"]: pair["value"] for pair in record["scores"]}
    return records


def turn_credit(record: Mapping[str, Any]) -> list[str]:
    """What each turn of a record from ``read_trajectories`` was credited with: the rewards of the components that
    reward steps, and the mean advantage of its sampled tokens; empty texts where it was with nothing."""
    from agentrl.rollout.trajectory import Origin

    count = len(record["turns"])
    sums, tokens = np.zeros(count), np.zeros(count)
    for row in record["rows"]:
        sampled = row["origin"] == Origin.SAMPLED
        np.add.at(sums, row["turn"][sampled], row["advantage"][sampled])
        np.add.at(tokens, row["turn"][sampled], 1)
    steps = [(c["name"], c["per_turn"]) for c in record["reward"] if c["per_turn"] is not None]
    found = []
    for turn in range(count):
        parts = [f"{name} {values[turn]:+.3g}" for name, values in steps]
        parts += [f"advantage {sums[turn] / tokens[turn]:+.3g}"] if sums.any() and tokens[turn] else []
        found.append(", ".join(parts))
    return found


def list_files(run_dir: Path, tag: str | None = None, step: int | None = None) -> list[tuple[str, int, Path]]:
    """(tag, step, path) of the run's trajectory files, by step; a killed writer's leftovers are not among them."""
    folder = run_dir / "trajectories"
    if not folder.is_dir():
        return []
    found = []
    for path in folder.iterdir():
        name = parse_name(path)
        if name is not None and tag in (None, name[0]) and step in (None, name[1]):
            found.append((name[0], name[1], path))
    return sorted(found, key=lambda item: (item[1], item[0]))
