"""Preference pairs: read from files in the usual shapes, or made of a run's trajectories of the same task."""

from __future__ import annotations

import itertools
import json
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agentrl.data import as_text, load_rows
from agentrl.envs.base import Message
from agentrl.errors import RunError, UserError
from agentrl.rewards.transcript import conversation
from agentrl.runs import trajectories

SHAPES = (
    "prompt/chosen/rejected (text or messages), conversations/chosen/rejected (ShareGPT), chosen/rejected transcripts "
    "of 'Human:' and 'Assistant:' turns (HH), or instruction/response1/response2/annotator1… (PandaLM)"
)
_TURN = re.compile(r"(?:^|\n\n)(Human|Assistant):[ ]?")
_ROLES = {"human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant", "system": "system"}


@dataclass(frozen=True)
class Pair:
    """Two conversations that begin alike; ``prompt`` (JSON) is what they share, and pairs are split by it."""

    prompt: str
    chosen: list[Message]
    rejected: list[Message]


@dataclass
class Pairs:
    """Pairs, what was left out and why, and the hashes of the tasks behind them (pairs of trajectories)."""

    pairs: list[Pair] = field(default_factory=list)
    ties: int = 0
    equal: int = 0
    task_hashes: list[str] = field(default_factory=list)

    def add(self, prompt: Sequence[Message], chosen: Sequence[Message], rejected: Sequence[Message]) -> None:
        if list(chosen) == list(rejected):
            self.equal += 1
            return
        key = json.dumps(list(prompt), sort_keys=True)
        self.pairs.append(Pair(key, [*prompt, *chosen], [*prompt, *rejected]))

    def summary(self) -> str:
        text = f"{len(self.pairs)} pairs of {len({p.prompt for p in self.pairs})} prompts"
        text += f"; {self.ties} without a majority left out" if self.ties else ""
        return text + (f"; {self.equal} of equal texts left out" if self.equal else "")


def load_pairs(source: str, per_task: int, seed: int) -> Pairs:
    """Pairs from a file, data set or run folder. UserError names the row and what is wrong; RunError: there is none."""
    folder = Path(source).expanduser()
    found = run_pairs(folder, per_task, seed) if (folder / "run.json").is_file() else file_pairs(source)
    if not found.pairs:
        why = "no task has trajectories of different success" if found.task_hashes == [] and folder.is_dir() else ""
        raise RunError(f"reward_model.source={source}: {found.summary()}{': ' + why if why else ''}")
    return found


def split(pairs: Sequence[Pair], holdout: float, seed: int) -> tuple[list[Pair], list[Pair]]:
    """(fitted, held-out) pairs. Pairs of one prompt stay together, so that no held-out prompt was trained on."""
    prompts = sorted({p.prompt for p in pairs})
    random.Random(seed).shuffle(prompts)
    kept = set(prompts[: max(1, round(len(prompts) * holdout))]) if holdout > 0 else set()
    return [p for p in pairs if p.prompt not in kept], [p for p in pairs if p.prompt in kept]


# --- files


def file_pairs(source: str) -> Pairs:
    """One pair for every row of a file or data set, in any of ``SHAPES``."""
    found = Pairs()
    rows = load_rows(source)
    for index, row in enumerate(rows):
        where = rows.where(index)
        if "response1" in row and "response2" in row:
            _votes(row, where, found)
            continue
        if "chosen" not in row or "rejected" not in row:
            raise UserError(
                f"{where}: not a preference pair; its fields are {', '.join(map(str, row))}, expected {SHAPES}"
            )
        prompt = _messages(row.get("prompt", row.get("conversations", [])), "user", f"{where}: prompt")
        chosen = _messages(row["chosen"], "assistant", f"{where}: chosen")
        rejected = _messages(row["rejected"], "assistant", f"{where}: rejected")
        if not prompt:
            same = itertools.takewhile(lambda both: both[0] == both[1], zip(chosen, rejected, strict=False))
            shared = sum(1 for _ in same)
            while shared and chosen[shared - 1]["role"] != "user":
                shared -= 1
            prompt, chosen, rejected = chosen[:shared], chosen[shared:], rejected[shared:]
        if not any(m["role"] == "user" for m in prompt):
            raise UserError(f"{where}: chosen and rejected share no user message that they answer")
        for name, reply in (("chosen", chosen), ("rejected", rejected)):
            if not reply or any(m["role"] == "system" for m in reply) or reply[0]["role"] != "assistant":
                raise UserError(f"{where}: {name} must begin with an assistant message")
        found.add(prompt, chosen, rejected)
    return found


def _messages(value: Any, role: str, where: str) -> list[Message]:
    """Text, a message or a list of them (OpenAI's or ShareGPT's keys), or an HH transcript, as messages."""
    if isinstance(value, str):
        parts = _TURN.split(value)
        if len(parts) > 1 and not parts[0].strip():
            turns = zip(parts[1::2], parts[2::2], strict=True)
            return [{"role": _ROLES[speaker.lower()], "content": text} for speaker, text in turns]
        return [{"role": role, "content": value}] if value or role == "assistant" else []
    if isinstance(value, Mapping):
        value = [value]
    if not isinstance(value, Sequence):
        raise UserError(f"{where} must be text or messages, found {type(value).__name__}")
    messages: list[Message] = []
    for item in value:
        if not isinstance(item, Mapping):
            raise UserError(f"{where}: a message must be an object with role and content")
        speaker, text = item.get("role", item.get("from")), item.get("content", item.get("value"))
        if _ROLES.get(str(speaker)) is None or not isinstance(text, str):
            raise UserError(
                f"{where}: a message needs a role ({', '.join(_ROLES)}) and text, found {dict(item)!r:.120}"
            )
        messages.append({"role": _ROLES[str(speaker)], "content": text})
    return messages


def _votes(row: Mapping[str, Any], where: str, found: Pairs) -> None:
    """A row with several annotators: 1 first, 2 second, 0 tie. The side with more than half of the votes wins."""
    votes = [str(v) for k, v in row.items() if str(k).startswith("annotator")]
    if not votes or any(v not in ("0", "1", "2") for v in votes) or "instruction" not in row:
        raise UserError(f"{where}: expected instruction, response1, response2 and votes 0, 1, 2 in annotator1…")
    asked = [as_text(row[k], f"{where}: {k}") for k in ("instruction", "input") if row.get(k) not in (None, "")]
    replies = [[{"role": "assistant", "content": as_text(row[k], f"{where}: {k}")}] for k in ("response1", "response2")]
    winner = next((side for side in ("1", "2") if 2 * votes.count(side) > len(votes)), None)
    if winner is None:
        found.ties += 1
        return
    chosen, rejected = replies if winner == "1" else replies[::-1]
    found.add([{"role": "user", "content": "\n\n".join(asked)}], chosen, rejected)


# --- runs


def run_pairs(folder: Path, per_task: int, seed: int) -> Pairs:
    """At most ``per_task`` random pairs of trajectories of one task, the one with the higher ``success`` chosen.

    UserError for trajectories of held-out tasks.
    """
    found = Pairs()
    tasks: dict[str, list[tuple[float, list[Message]]]] = {}
    for _, _, path in trajectories.list_files(folder):
        for record in trajectories.read_trajectories(path):
            if record["split"] == "heldout":
                raise UserError(
                    f"reward_model.source={folder}: {path.name} holds trajectories of held-out tasks "
                    f"({record['variant']}); what is learned from them cannot be evaluated on them"
                )
            if record["success"] is None or record["stop_reason"] == "error":
                continue
            messages = conversation(record["question"], [(t["action"], t["observation"]) for t in record["turns"]])
            tasks.setdefault(record["task_hash"], []).append((record["success"], messages))
    for task, played in sorted(tasks.items()):
        unequal = [(a, b) for a, b in itertools.combinations(played, 2) if a[0] != b[0]]
        if not unequal:
            continue
        found.task_hashes.append(task)
        for one, two in random.Random(f"{seed}/{task}").sample(unequal, min(per_task, len(unequal))):
            better, worse = (one, two) if one[0] > two[0] else (two, one)
            found.add(better[1][:1], better[1][1:], worse[1][1:])
    return found
