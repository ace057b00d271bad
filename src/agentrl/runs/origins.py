"""The text of a row, cut where the origin of its tokens changes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from agentrl.errors import RunError, UserError
from agentrl.runs.checkpoints import CheckpointStore
from agentrl.runs.folder import Run

if TYPE_CHECKING:
    from numpy.typing import NDArray

Decode = Callable[[list[int]], str]

ORIGINS = ("prompt", "sampled", "observation", "context")  # by the number in the origin column

_HIDDEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


@dataclass(frozen=True)
class Span:
    """Consecutive tokens ``start:end`` of one origin and turn, and the text they add."""

    origin: str
    turn: int
    start: int
    end: int
    text: str


def visible(text: str) -> str:
    """``text`` with every character that could act on a terminal (ANSI escapes, carriage returns, text-direction
    marks, lone surrogates) written as its escape. Newlines and tabs stay."""
    return _HIDDEN.sub(lambda m: m[0].encode("unicode_escape").decode(), text)


def sampled_label(stage: str) -> str:
    """What to call sampled tokens in the trajectories of a stage: an evaluation trains on none."""
    return "sampled (trained on)" if stage == "train" else "sampled"


def boundaries(ids: NDArray[np.int32], cuts: list[int], decode: Decode) -> list[int]:
    """Character offsets, in ``decode(ids)``, of the token offsets ``cuts`` (ascending).

    A character whose bytes are split over several tokens belongs to the token that completes it.
    """
    tokens = ids.tolist()
    whole = decode(tokens)
    offsets: list[int] = []
    low = 0
    for cut in cuts:
        if cut >= len(tokens):
            low = len(whole)
        elif cut > 0:
            prefix = decode(tokens[:cut])
            low = max(low, _common(prefix, whole))
        offsets.append(low)
    return offsets


def _common(prefix: str, whole: str) -> int:
    """Length of the common start; shorter than ``prefix`` where that ends inside a character (U+FFFD)."""
    if whole.startswith(prefix):
        return len(prefix)
    return next(i for i, (a, b) in enumerate(zip(prefix + "\0", whole + "\1", strict=False)) if a != b)


def spans(row: dict[str, Any], decode: Decode, every_token: bool = False) -> list[Span]:
    """The spans of a row as `read_trajectories` gives it; their texts join to ``decode(ids)``.

    With ``every_token``, one span a token (its text is empty when it only holds part of a character).
    """
    ids, origin, turn = row["ids"], row["origin"], row["turn"]
    n = len(ids)
    if n == 0:
        return []
    if every_token:
        starts = list(range(n))
    else:
        change = (origin[1:] != origin[:-1]) | (turn[1:] != turn[:-1])
        starts = [0, *(np.flatnonzero(change) + 1).tolist()]
    ends = [*starts[1:], n]
    whole = decode(ids.tolist())
    offsets = [0, *boundaries(ids, ends, decode)]
    return [
        Span(ORIGINS[int(origin[a])], int(turn[a]), a, b, whole[offsets[i] : offsets[i + 1]])
        for i, (a, b) in enumerate(zip(starts, ends, strict=True))
    ]


def last_ids(record: dict[str, Any]) -> list[int]:
    """The token ids of a trajectory's last row, which its ``text`` decodes."""
    return record["rows"][-1]["ids"].tolist() if record["rows"] else []


def find_decoder(run: Run, record: dict[str, Any]) -> Decode | None:
    """The ``decode`` of the tokenizer that wrote ``record``, or None when none of the run's tokenizers gives its text.

    Tried in order: the run's newest checkpoint, what the run started from or evaluated, the configured model.
    """
    ids = last_ids(record)
    for folder in _tokenizer_folders(run):
        try:
            decode = load_decode(folder)
        except Exception:
            continue  # a folder without a usable tokenizer: the next may have one
        if decode is not None and decode(ids) == record["text"]:
            return decode
    return None


def load_decode(folder: Path) -> Decode | None:
    """``decode(ids) -> text`` of a folder's tokenizer: special tokens kept, no clean-up; None if absent."""
    if (folder / "tokenizer.json").is_file():
        from tokenizers import Tokenizer

        fast = Tokenizer.from_file(str(folder / "tokenizer.json"))
        return lambda ids: str(fast.decode(ids, skip_special_tokens=False))
    if not (folder / "tokenizer_config.json").is_file():
        return None
    from transformers import AutoTokenizer

    slow: Any = AutoTokenizer.from_pretrained(str(folder))
    return lambda ids: str(slow.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False))


def _tokenizer_folders(run: Run) -> Iterator[Path]:
    checkpoint = CheckpointStore(run.dir).last()
    if checkpoint is not None:
        yield checkpoint
    facts = run.facts()
    for start in (facts.get("starts_from"), *(facts.get("checkpoints") or [])):  # the latter: policies of an evaluation
        if isinstance(start, str) and Path(start).is_dir():
            yield Path(start)
    cfg = run.config()
    for path in (cfg.model.init, cfg.model.path):
        if path and Path(path).is_dir():
            yield Path(path)
    try:
        from agentrl.models.load import resolve

        yield Path(resolve(cfg.model))
    except (UserError, RunError, ImportError):
        return
