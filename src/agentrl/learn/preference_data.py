"""Token rows of preference pairs: chats from files (preferences.py reads them), and our own trajectories as sampled."""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from agentrl.config.schema import DpoConfig
from agentrl.envs.base import Message, Observation, Task
from agentrl.errors import UserError
from agentrl.learn.preference import pairs_of
from agentrl.learn.preferences import file_pairs
from agentrl.models.template import Renderer
from agentrl.rollout.trajectory import Origin, RewardComponent, RewardRecord, Row, StopReason, Trajectory
from agentrl.runs import trajectories as stored


@dataclass(frozen=True)
class PairOfRows:
    """A better and a worse trajectory. ``prompt`` is equal for pairs of one prompt; ``hash``: its task's, if any."""

    better: Sequence[Row]
    worse: Sequence[Row]
    prompt: str
    hash: str | None = None


@dataclass
class Preferences:
    """Pairs to learn from, and what was left out and why."""

    pairs: list[PairOfRows] = field(default_factory=list)
    ties: int = 0  # no preference, two equal texts, or a group without members of different worth
    too_long: int = 0  # longer than rollout.max_tokens

    def summary(self) -> str:
        tokens = sum(int(r.sampled.sum()) for p in self.pairs for r in (*p.better, *p.worse))
        text = f"{len(self.pairs)} pairs, {tokens} tokens compared"
        text += f"; {self.ties} without a preference" if self.ties else ""
        return text + (f"; {self.too_long} longer than rollout.max_tokens" if self.too_long else "")


def load_preferences(source: str, renderer: Renderer, cfg: DpoConfig, max_tokens: int) -> Preferences:
    """All usable pairs of a file of preferences, of a run folder, or of one of its trajectory files.

    UserError names the file, the record and the field.
    """
    path = Path(source).expanduser()
    if path.is_dir():
        files = [file for _, _, file in stored.list_files(path, tag="train")]
        if not files:
            raise UserError(f"algo.dpo.source={source}: the folder holds no trajectories/train-*.parquet of a run")
        return trajectory_pairs(source, files, renderer, cfg, max_tokens)
    if _holds_trajectories(path):
        return trajectory_pairs(source, [path], renderer, cfg, max_tokens)
    return chat_pairs(str(path), renderer, max_tokens)


def _holds_trajectories(path: Path) -> bool:
    if path.suffix != ".parquet":
        return False
    try:
        return {"task_hash", "rows", "reward"} <= set(pq.read_schema(path).names)
    except (OSError, ValueError):  # not readable as Parquet: load_rows says so
        return False


def chat_pairs(source: str, renderer: Renderer, max_tokens: int) -> Preferences:
    """Pairs of chats. What both begin with is the prompt; behind it messages of the assistant are compared."""
    read = file_pairs(source)
    found = Preferences(ties=read.ties + read.equal)
    for pair in read.pairs:
        start = len(json.loads(pair.prompt))
        rows = [chat_row(c[:start], c[start:], renderer) for c in (pair.chosen, pair.rejected)]
        if max(map(len, rows)) > max_tokens:
            found.too_long += 1
        else:
            found.pairs.append(PairOfRows([rows[0]], [rows[1]], pair.prompt))
    return found


def chat_row(prompt: Sequence[Message], rest: Sequence[Message], renderer: Renderer) -> Row:
    """A prompt, then replies of the assistant, each with its end-of-turn token; the user's are observations."""
    row = Row.from_prompt(renderer.prompt(prompt))
    turn = -1
    for message in rest:
        if message["role"] == "assistant":
            turn += 1
            ids = [*renderer.encode(message["content"]), renderer.end_of_turn_id]
            row.append(ids, Origin.SAMPLED, turn, [0.0] * len(ids))
        else:
            ids, _ = renderer.observation(Observation(message["content"]), ended_turn=True, max_tokens=sys.maxsize)
            row.append(ids, Origin.OBSERVATION, turn)
    return row


def trajectory_pairs(
    source: str, files: Sequence[Path], renderer: Renderer, cfg: DpoConfig, max_tokens: int
) -> Preferences:
    """Pairs inside every group (one task, one policy step) of stored trajectories, tokens as they were sampled.

    UserError for trajectories of held-out tasks, and for tokens of another model's tokenizer.
    """
    found = Preferences()
    for file in files:
        groups: dict[tuple[str, int], list[Trajectory]] = defaultdict(list)
        for record in stored.read_trajectories(file):
            if record["split"] == "heldout":
                raise UserError(
                    f"algo.dpo.source={source}: {file.name} holds trajectories of held-out tasks "
                    f"({record['variant']}); what is learned from them cannot be evaluated on them"
                )
            trajectory = _trajectory(record)
            if trajectory.stop_reason is StopReason.ERROR or trajectory.reward.total is None:
                continue
            row = trajectory.rows[-1]
            if int(row.ids.max(initial=0)) >= len(renderer.tokenizer) or _decoded(row, renderer) != record["text"]:
                raise UserError(
                    f"algo.dpo.source={source}: {record['id']} in {file.name} was sampled with another tokenizer than "
                    "this model's"
                )
            groups[record["task_hash"], record["policy_step"]].append(trajectory)
        for (task_hash, _), members in groups.items():
            if max(len(row) for t in members for row in t.rows) > max_tokens:
                kept = [t for t in members if max(map(len, t.rows)) <= max_tokens]
                found.too_long += len(members) - len(kept)
                members = kept
            pairs = pairs_of(members, cfg)
            found.ties += not pairs
            found.pairs += [PairOfRows(members[a].rows, members[b].rows, task_hash, task_hash) for a, b in pairs]
    return found


def _decoded(row: Row, renderer: Renderer) -> str:
    return renderer.decode(row.ids.tolist()).encode("utf-8", "backslashreplace").decode()


def _trajectory(record: Mapping[str, Any]) -> Trajectory:
    """A stored trajectory, with what comparing it needs: its rows and its reward."""
    components = [
        RewardComponent(c["name"], c["tier"], c["value"], c["weight"], per_turn=c["per_turn"]) for c in record["reward"]
    ]
    return Trajectory(
        Task(record["task_id"], record["question"], {}, record["variant"], record["split"]),
        record["member"],
        record["policy_step"],
        [Row(**{name: np.asarray(row[name]) for name in row}) for row in record["rows"]],
        stop_reason=StopReason(record["stop_reason"]),
        error=record["error"],
        reward=RewardRecord(components),
        success=record["success"],
    )
