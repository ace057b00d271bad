"""Preference pairs from files: single-turn and multi-turn chats in the usual shapes, and our own trajectories.

Shapes of a record in JSON, JSONL, CSV or Parquet, told apart by its fields (docs/preferences.md shows each):

- ``chosen``/``rejected`` are texts or messages beside a prompt (``prompt``, ``conversations``, ``instruction`` …)
- ``chosen``/``rejected`` are whole conversations: messages, or transcripts with ``Human:`` and ``Assistant:`` (HH)
- ``response1``/``response2`` with verdicts ``annotator1``, ``annotator2`` … (PandaLM)
- a run's trajectories: groups of one task, paired by ``pairs_of``
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from agentrl.config.schema import DpoConfig
from agentrl.data import load_rows
from agentrl.envs.base import Message, Observation, Task
from agentrl.errors import UserError, nearest
from agentrl.learn.preference import pairs_of
from agentrl.models.template import Renderer
from agentrl.rollout.trajectory import Origin, RewardComponent, RewardRecord, Row, StopReason, Trajectory
from agentrl.runs import trajectories as stored

ROLES = {
    **dict.fromkeys(("system",), "system"),
    **dict.fromkeys(("user", "human", "observation", "tool", "function_response", "ipython"), "user"),
    **dict.fromkeys(("assistant", "gpt", "chatgpt", "bot", "model", "function_call"), "assistant"),
}
_SPEAKER = re.compile(r"(?:^|\n\n)(Human|Assistant):")
_PROMPTS = ("prompt", "conversations", "messages", "instruction", "question")


@dataclass(frozen=True)
class PairOfRows:
    """A better and a worse trajectory. ``prompt`` is equal for pairs of one prompt; ``hash``: its task's, if any."""

    better: Sequence[Row]
    worse: Sequence[Row]
    prompt: str
    hash: str | None = None


@dataclass
class Preferences:
    """Pairs to learn from, and how many records were left out and why."""

    pairs: list[PairOfRows] = field(default_factory=list)
    ties: int = 0  # no preference, or two equal texts
    too_long: int = 0  # longer than rollout.max_tokens
    unlike: int = 0  # the two begin differently: not answers to one prompt

    def summary(self) -> str:
        tokens = sum(int(r.sampled.sum()) for p in self.pairs for r in (*p.better, *p.worse))
        parts = [f"{len(self.pairs)} pairs, {tokens} tokens compared"]
        for count, why in (
            (self.ties, "without a preference"),
            (self.too_long, "longer than rollout.max_tokens"),
            (self.unlike, "with two different prompts"),
        ):
            if count:
                parts.append(f"{count} {why}")
        return "; ".join(parts)


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
    if not path.exists():
        raise UserError(f"algo.dpo.source={source}: no such file")
    rows = load_rows(path)
    if len(rows) and {"task_hash", "rows", "reward_total"} <= set(rows[0]):
        return trajectory_pairs(source, [path], renderer, cfg, max_tokens)
    return chat_pairs(((rows.where(i), row) for i, row in enumerate(rows)), renderer, max_tokens)


# chats


def chat_pairs(records: Iterable[tuple[str, Mapping[str, Any]]], renderer: Renderer, max_tokens: int) -> Preferences:
    """Pairs from (place, record)."""
    found = Preferences()
    for where, record in records:
        two = conversations(record, where)
        if two is None or two[0] == two[1]:
            found.ties += 1
            continue
        start = common_prompt(*two)
        if start is None:
            found.unlike += 1
            continue
        rows = [chat_row(c[:start], c[start:], renderer) for c in two]
        if max(map(len, rows)) > max_tokens:
            found.too_long += 1
            continue
        found.pairs.append(PairOfRows([rows[0]], [rows[1]], json.dumps(two[0][:start])))
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


def common_prompt(better: Sequence[Message], worse: Sequence[Message]) -> int | None:
    """How many messages are the prompt of both: up to the last assistant message before or at the first difference.

    Two answers to one prompt differ there; where what followed an answer differs first, that answer (the same in both,
    so it cancels) begins what is compared, and what followed it is an observation. None when the prompts differ.
    """
    same = 0
    while same < min(len(better), len(worse)) and better[same] == worse[same]:
        same += 1
    both = [c[same]["role"] == "assistant" if same < len(c) else False for c in (better, worse)]
    if all(both):
        return same or None
    earlier = [i for i in range(same) if better[i]["role"] == "assistant"]
    return earlier[-1] if earlier and earlier[-1] > 0 else None


def conversations(record: Mapping[str, Any], where: str) -> tuple[list[Message], list[Message]] | None:
    """The better and the worse conversation of a record; None when it states no preference. UserError otherwise."""
    if "response1" in record and "response2" in record:
        verdict = _verdict(record, where)
        prompt = _prompt(record, where)
        one, two = (
            [*prompt, {"role": "assistant", "content": _text(record, key, where)}] for key in ("response1", "response2")
        )
        return None if verdict == 0 else (one, two) if verdict == 1 else (two, one)
    if "chosen" not in record or "rejected" not in record:
        hint = nearest("chosen", [str(k) for k in record])
        raise UserError(
            f"{where}: a preference needs the fields 'chosen' and 'rejected', or 'response1', 'response2' and "
            f"'annotator1'; found {', '.join(map(str, record)) or 'none'} ({hint})"
        )
    has_prompt = any(record.get(name) for name in _PROMPTS)
    prompt = _prompt(record, where) if has_prompt else []
    better, worse = (_reply(record[key], has_prompt, f"{where}: field '{key}'") for key in ("chosen", "rejected"))
    better, worse = [*prompt, *better], [*prompt, *worse]
    for key, conversation in (("chosen", better), ("rejected", worse)):
        if conversation[-1]["role"] != "assistant":
            raise UserError(f"{where}: field '{key}' must end with a message of the assistant")
    return better, worse


def _verdict(record: Mapping[str, Any], where: str) -> int:
    """1 or 2 where more than half of the annotators say so, else 0."""
    names = [k for k in record if re.fullmatch(r"annotator\d+", str(k))]
    if not names:
        raise UserError(f"{where}: 'response1' and 'response2' need verdicts 'annotator1' … (1, 2, or 0 for a tie)")
    votes: Counter[int] = Counter()
    for name in names:
        if str(record[name]) not in ("0", "1", "2"):
            raise UserError(f"{where}: field '{name}' must be 1 (first), 2 (second) or 0 (tie), found {record[name]!r}")
        votes[int(record[name])] += 1
    winner, count = votes.most_common(1)[0]
    return winner if 2 * count > len(names) else 0


def _prompt(record: Mapping[str, Any], where: str) -> list[Message]:
    name = next((n for n in _PROMPTS if record.get(n)), None)
    if name is None:
        raise UserError(f"{where}: no prompt: one of the fields {', '.join(_PROMPTS)} is needed")
    value = record[name]
    if not isinstance(value, str):
        prompt = _messages(value, f"{where}: field '{name}'")
    elif _SPEAKER.match(value):
        prompt = _transcript(value, f"{where}: field '{name}'")
    else:
        extra = record.get("input")
        prompt = [{"role": "user", "content": f"{value}\n\n{extra}" if isinstance(extra, str) and extra else value}]
    while prompt and prompt[-1] == {"role": "assistant", "content": ""}:  # a transcript that ends in "Assistant:"
        prompt.pop()
    system = record.get("system")
    if isinstance(system, str) and system and prompt and prompt[0]["role"] != "system":
        prompt.insert(0, {"role": "system", "content": system})
    if not prompt or prompt[-1]["role"] != "user":
        raise UserError(f"{where}: field '{name}' must end with a message of the user")
    return prompt


def _reply(value: Any, has_prompt: bool, where: str) -> list[Message]:
    """What stands in ``chosen`` or ``rejected`` as messages."""
    if isinstance(value, Mapping):
        value = [value]
    if not isinstance(value, str):
        return _messages(value, where)
    if has_prompt:
        return [{"role": "assistant", "content": value}]
    if not _SPEAKER.match(value):
        raise UserError(
            f"{where} is a text without a prompt: give field 'prompt', or a transcript of Human: and Assistant:"
        )
    return _transcript(value, where)


def _transcript(text: str, where: str) -> list[Message]:
    """``\\n\\nHuman: … \\n\\nAssistant: …`` as messages."""
    parts = _SPEAKER.split(text)
    if parts[0].strip():
        raise UserError(f"{where} begins with text before 'Human:'")
    names = {"Human": "user", "Assistant": "assistant"}
    return [
        {"role": names[name], "content": content.strip()}
        for name, content in zip(parts[1::2], parts[2::2], strict=True)
    ]


def _messages(value: Any, where: str) -> list[Message]:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            value = None
    if not isinstance(value, Sequence) or isinstance(value, str) or not value:
        raise UserError(f"{where} must be text, a message or a list of messages")
    found: list[Message] = []
    for message in value:
        if not isinstance(message, Mapping):
            raise UserError(f"{where}: a message must be an object with role and content, found {message!r:.60}")
        role, content = message.get("role", message.get("from")), message.get("content", message.get("value"))
        if not isinstance(role, str) or not isinstance(content, str):
            raise UserError(f"{where}: every message needs a role and text (role/content, or from/value)")
        if role.lower() not in ROLES:
            raise UserError(f"{where}: there is no role '{role}'; {nearest(role, ROLES)}")
        found.append({"role": ROLES[role.lower()], "content": content})
    return found


def _text(record: Mapping[str, Any], key: str, where: str) -> str:
    if not isinstance(record[key], str):
        raise UserError(f"{where}: field '{key}' must be text, found {type(record[key]).__name__}")
    return str(record[key])


# trajectories


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
