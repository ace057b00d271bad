"""What both sides of the benchmark share: the job, texts of an exact token length, memory. Imports neither side."""

from __future__ import annotations

import contextlib
import hashlib
import json
import random
import resource
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

WORDS = (
    "the of and to in is was for on as with by at from it an be this are that which or had not but have one all were "
    "their there been has when who will more no if out so said what up its about into than them can only other new"
)
FILLERS = (" a", ".", ",", " I", "!", " x", "\n")


@dataclass
class Job:
    """One step's work: ``prompts`` × ``members`` rows of prompt, then turns of sampled and observation tokens.

    All lengths are in tokens and exact. ``turns`` lists the turn counts to measure, one step each, after a warm-up
    step with short prompts. ``messages`` and ``warm_up`` are chat messages, one conversation a prompt.
    """

    model: str
    dtype: str  # "bf16" | "fp32" | "autocast" (TRL only: fp32 weights, bf16 products)
    turns: list[int]
    prompts: int = 4
    members: int = 8
    prompt_tokens: int = 272
    turn_tokens: int = 32
    observation_tokens: int = 80
    micro_batch: int = 4  # rows of one forward and backward in TRL
    micro_batch_tokens: int = 4096  # tokens of one forward and backward in agentrl
    threads: int = 1
    learning_rate: float = 1e-6
    seed: int = 0
    messages: list[list[dict[str, str]]] = field(default_factory=list)
    warm_up: list[list[dict[str, str]]] = field(default_factory=list)

    def row_tokens(self, turns: int) -> int:
        """Tokens of a row: no observation follows the last turn."""
        return self.prompt_tokens + turns * self.turn_tokens + (turns - 1) * self.observation_tokens

    def needed_tokens(self, turns: int) -> int:
        """Different tokens of a step: the members of a group have one prompt."""
        own = self.row_tokens(turns) - self.prompt_tokens
        return self.prompts * (self.prompt_tokens + self.members * own)

    @classmethod
    def read(cls, file: Path) -> Job:
        return cls(**json.loads(file.read_text()))

    def write(self, file: Path) -> None:
        file.write_text(json.dumps(asdict(self), indent=1))


WARM_UP_TURNS, WARM_UP_TOKENS = 2, 2


@dataclass
class Measured:
    """One step of one side. Seconds, bytes, and the token counts that prove the work was equal."""

    turns: int
    rollout_s: float
    update_s: float
    step_s: float
    cpu_s: float  # of all threads of the process: well under step_s × threads where something else had the cores
    peak_bytes: int
    rows: int
    prompt_hash: str  # of all prompts' ids, in order
    prompt_tokens: list[int]  # sorted distinct lengths over the rows: one value when all are equal
    sampled_tokens: list[int]
    row_tokens: list[int]


class Clock:
    """Times one step from its construction on, and counts its peak memory."""

    def __init__(self) -> None:
        reset_peak()
        self.start, self.cpu = time.perf_counter(), time.process_time()
        self.rollout = 0.0

    def measured(
        self, turns: int, prompts: Sequence[Sequence[int]], sampled: Sequence[int], rows: Sequence[int]
    ) -> Measured:
        """The finished step. ``prompts`` are ids, one list a row; ``sampled`` and ``rows`` are counts, one a row."""
        seconds = time.perf_counter() - self.start
        return Measured(
            turns=turns,
            rollout_s=self.rollout,
            update_s=seconds - self.rollout,
            step_s=seconds,
            cpu_s=time.process_time() - self.cpu,
            peak_bytes=peak_memory(),
            rows=len(rows),
            prompt_hash=hash_ids(prompts),
            prompt_tokens=sorted({len(p) for p in prompts}),
            sampled_tokens=sorted(set(sampled)),
            row_tokens=sorted(set(rows)),
        )


def save(file: Path, side: str, facts: dict[str, Any], steps: Sequence[Measured]) -> None:
    """Write a side's result so far: what was measured before a crash is kept."""
    file.write_text(json.dumps({"side": side, **facts, "steps": [asdict(s) for s in steps]}, indent=1))


def hash_ids(rows: Sequence[Sequence[int]]) -> str:
    """The same for equal token ids, whatever kind of integer holds them."""
    return hashlib.sha256(json.dumps([[int(i) for i in row] for row in rows]).encode()).hexdigest()[:16]


def text_of_length(tokens: int, count: Callable[[str], int], seed: int) -> str:
    """A text of common words for which ``count(text)`` is exactly ``tokens``. ValueError when none was found."""
    generator, words = random.Random(seed), WORDS.split()
    text = ""
    while count(longer := f"{text} {generator.choice(words)}") <= tokens:
        text = longer
    while (length := count(text)) < tokens:
        filler = next((f for f in FILLERS if count(text + f) == length + 1), None)
        if filler is None:
            break
        text += filler
    if length != tokens:
        raise ValueError(f"found no text of {tokens} tokens (but one of {length})")
    return text


def reset_peak() -> None:
    """Start counting peak memory anew, where the kernel can (Linux)."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def peak_memory() -> int:
    """Largest resident memory of this process since ``reset_peak``, in bytes."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
