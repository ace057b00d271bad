"""The local engine: continuous batching over a fixed number of KV slots, in process.

A sequence is started once and keeps its slot and its KV over all turns: ``start`` → (``step`` … → ended action →
``resume`` with the observation's ids)* → ``finish``. A prompt shared by several sequences is prefilled once, and so is
the beginning that prompts of different tasks share, as long as one that has it is live. The last token of whatever is
new (prompt or observation) is not prefilled but fed to the next decode step, so that there is one place where tokens
are sampled.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from transformers import PreTrainedModel

from agentrl.kernels import decoder
from agentrl.models.template import Renderer
from agentrl.rollout.attention import Chunk, DecodeLayout, KVCache, PrefillLayout, head_logits, hidden_states
from agentrl.rollout.sampling import Sampling, draw

PREFILL_TOKENS = 4096  # tokens of one prefill forward; more wait for the next
WORTH_COPYING = 16  # tokens; fewer are computed again in the time that it takes to copy them


@dataclass
class Action:
    """What was sampled in one turn: ids and logprobs have the same length; ``stop`` says why it ended."""

    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    stop: str = ""  # "stop_string" | "end_of_turn" | "turn_token_limit"


@dataclass
class Sequence_:
    """One token sequence inside the engine."""

    prompt: tuple[int, ...]
    shared: object  # sequences with an equal key have the same prompt and share its prefill
    slot: int = -1
    length: int = 0  # tokens in the KV slot
    waiting: list[int] = field(default_factory=list)  # tokens that are not in the KV slot yet
    noise: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    action: Action | None = None  # being sampled; None between turns
    prefilled: int = 0  # tokens computed for this sequence that were not sampled by it
    origin: Sequence_ | None = None  # the one that computed the first `common` tokens of the slot; they were copied
    common: int = 0


@dataclass
class EngineStats:
    """Counts since the last ``take``: where the engine's work went."""

    decode_steps: int = 0
    slot_steps: int = 0  # decode steps × slots in the batch
    tokens_sampled: int = 0
    tokens_prefilled: int = 0
    attended_sampled: int = 0  # pairs of a token and a key that it attends to, itself among them
    attended_prefilled: int = 0


class LocalEngine:
    """Samples actions for many sequences at once. Not thread-safe: one caller drives it."""

    def __init__(
        self, model: PreTrainedModel, renderer: Renderer, slots: int, max_tokens: int, stop: Sequence[str] = ()
    ):
        self.model, self.renderer = model, renderer
        self.max_tokens = max_tokens
        self.slots = slots
        self.stop = StopStrings(renderer, stop)
        self.device = next(model.parameters()).device
        self.cache: KVCache | None = None
        self.kernel: decoder.DecodeKernel | None = None
        self.live: list[Sequence_] = []  # live[i] sits in slot i
        self.queue: deque[Sequence_] = deque()
        self.prefixes: dict[object, tuple[Sequence_, list[torch.Tensor]]] = {}
        self.sampling = Sampling()
        self.stats = EngineStats()

    def start(self, prompt: Sequence[int], shared: object, noise: np.ndarray) -> Sequence_:
        """Queue a new sequence; its first action begins when a slot is free. len(noise) bounds the action."""
        sequence = Sequence_(tuple(prompt), shared, waiting=list(prompt), noise=noise, action=Action())
        self.queue.append(sequence)
        return sequence

    def resume(self, sequence: Sequence_, ids: Sequence[int], noise: np.ndarray, keep: int | None = None) -> None:
        """Append observation ids and begin the next action.

        Of the tokens before, the first ``keep`` stay in the KV slot, by default all. At least one must be new, or wait.
        """
        if keep is not None:
            sequence.waiting = sequence.waiting[: max(0, keep - sequence.length)]
            sequence.length = min(sequence.length, keep)
            sequence.common = min(sequence.common, keep)
        sequence.waiting.extend(ids)
        sequence.noise, sequence.action = noise, Action()

    @torch.inference_mode()
    def finish(self, sequence: Sequence_) -> None:
        """Free the slot. The last slot's sequence moves into the hole, so that live slots stay in front."""
        assert self.cache is not None
        last = self.live.pop()
        if last is not sequence:
            self.cache.copy(last.slot, [sequence.slot], last.length)
            last.slot = sequence.slot
            self.live[last.slot] = last
        sequence.slot = -1

    @property
    def busy(self) -> bool:
        """True when a step would sample something."""
        return bool(self.queue) or any(s.action is not None for s in self.live)

    @torch.inference_mode()
    def step(self) -> list[Sequence_]:
        """Admit, prefill and decode one token for every sequence that is acting; return those whose action ended."""
        if self.cache is None:
            self.cache = KVCache(self.model, self.slots, self.max_tokens)
            self.kernel = decoder.build(self.model, self.cache.k, self.cache.v)
        self._admit()
        self._prefill([s for s in self.live if s.action is not None and len(s.waiting) > 1])
        acting = [s for s in self.live if s.action is not None]
        if not acting:
            return []
        # Slots of sequences that wait for a tool ride along (their live KV is never written): the batch stays a slice.
        n = 1 + max(s.slot for s in acting)
        batch = self.live[:n]
        ids = torch.tensor([s.waiting[-1] if s.waiting else 0 for s in batch], device=self.device)
        lengths = torch.tensor([s.length for s in batch], device=self.device)
        noise = torch.tensor([int(s.noise[len(s.action.ids)]) if s.action else 0 for s in batch], device=self.device)
        tokens, logprobs = draw(self._logits(batch, ids, lengths), self.sampling, noise)
        self.stats.decode_steps += 1
        self.stats.slot_steps += n
        self.stats.tokens_sampled += len(acting)
        self.stats.attended_sampled += sum(s.length + 1 for s in acting)
        token_list, logprob_list = tokens.tolist(), logprobs.tolist()
        return [s for s in acting if self._append(s, token_list[s.slot], logprob_list[s.slot])]

    def _logits(self, batch: Sequence[Sequence_], ids: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        """fp32 [n, V] for one new token in each of the first n slots."""
        assert self.cache is not None
        if self.kernel is not None:
            first: dict[int, Sequence_] = {}
            leaders = [first.setdefault(id(s.origin), s) for s in batch]
            shared = [min(s.common, leader.common) for s, leader in zip(batch, leaders, strict=True)]
            return self.kernel(ids, lengths, torch.tensor([s.slot for s in leaders]), torch.tensor(shared))
        hidden = hidden_states(self.model, ids, lengths, DecodeLayout(self.cache, lengths))
        return head_logits(self.model, hidden)

    def _append(self, sequence: Sequence_, token: int, logprob: float) -> bool:
        """Take a sampled token; True when it ends the action."""
        action = sequence.action
        assert action is not None
        sequence.length += 1
        sequence.waiting = [token]
        action.ids.append(token)
        action.logprobs.append(logprob)
        if token in self.renderer.end_ids:
            action.stop = "end_of_turn"
        elif self.stop.reached(action.ids):
            action.stop = "stop_string"
        elif len(action.ids) == len(sequence.noise):
            action.stop = "turn_token_limit"
        return bool(action.stop)

    def _admit(self) -> None:
        """Move queued sequences into free slots, in order. The first of a shared prompt computes it."""
        assert self.cache is not None
        computed = list(self.live)
        fresh = []
        while self.queue and len(self.live) < self.slots:
            sequence = self.queue.popleft()
            sequence.slot = len(self.live)
            self.live.append(sequence)
            fresh.append(sequence)
        leaders: dict[object, Sequence_] = {}
        for sequence in fresh:
            if sequence.shared not in self.prefixes:
                leaders.setdefault(sequence.shared, sequence)
        self._prefill_prompts([s for s in leaders.values() if len(s.waiting) > 1], computed)
        still_queued = {s.shared for s in self.queue}
        for sequence in fresh:
            leader = leaders.get(sequence.shared)
            sequence.common = len(sequence.prompt) - 1
            if leader is sequence:
                sequence.origin = sequence
                if sequence.shared in still_queued:
                    self.prefixes[sequence.shared] = (sequence, self.cache.read(sequence.slot, sequence.length))
                continue
            if leader is not None:
                sequence.origin = leader
                self.cache.copy(leader.slot, [sequence.slot], leader.length)
            else:
                sequence.origin, saved = self.prefixes[sequence.shared]
                self.cache.write(sequence.slot, saved)
            sequence.length = len(sequence.prompt) - 1
            sequence.waiting = [sequence.prompt[-1]]
        for key in [k for k in self.prefixes if k not in still_queued]:
            del self.prefixes[key]

    def _prefill_prompts(self, fresh: Sequence[Sequence_], computed: Sequence[Sequence_]) -> None:
        """Compute new prompts, each behind the longest beginning of it that a live sequence has in its slot."""
        assert self.cache is not None
        if fresh and not computed:  # the first alone, then the others behind what they share with it
            self._prefill(fresh[:1])
            fresh[0].common = fresh[0].length
            computed, fresh = fresh[:1], fresh[1:]
        for sequence in fresh:
            most = len(sequence.prompt) - 1  # one must wait for the decode step
            shared = [min(most, s.common, shared_beginning(sequence.prompt, s.prompt)) for s in computed]
            length = max(shared)
            if length >= WORTH_COPYING:
                self.cache.copy(computed[shared.index(length)].slot, [sequence.slot], length)
                sequence.length, sequence.waiting = length, sequence.waiting[length:]
        self._prefill([s for s in fresh if len(s.waiting) > 1])

    def _prefill(self, sequences: Sequence[Sequence_]) -> None:
        """Compute all waiting tokens but the last of each sequence, in ragged batches."""
        batch: list[Sequence_] = []
        for sequence in sequences:
            if batch and sum(len(s.waiting) - 1 for s in batch) + len(sequence.waiting) - 1 > PREFILL_TOKENS:
                self._prefill_batch(batch)
                batch = []
            batch.append(sequence)
        if batch:
            self._prefill_batch(batch)

    def _prefill_batch(self, batch: Sequence[Sequence_]) -> None:
        assert self.cache is not None
        ids: list[int] = []
        positions: list[int] = []
        chunks = []
        for s in batch:
            new = s.waiting[:-1]
            chunks.append(Chunk(s.slot, len(ids), len(ids) + len(new), s.length))
            positions.extend(range(s.length, s.length + len(new)))
            self.stats.attended_prefilled += len(new) * s.length + len(new) * (len(new) + 1) // 2
            ids.extend(new)
            s.length += len(new)
            s.prefilled += len(new)
            s.waiting = s.waiting[-1:]
        layout = PrefillLayout(self.cache, chunks)
        hidden_states(
            self.model, torch.tensor(ids, device=self.device), torch.tensor(positions, device=self.device), layout
        )
        self.stats.tokens_prefilled += len(ids)

    def take_stats(self) -> EngineStats:
        """The counts so far; counting starts anew."""
        stats, self.stats = self.stats, EngineStats()
        return stats

    def rest(self) -> None:
        """Give the memory of the KV slots back until the next step. Only when no sequence is live."""
        assert not self.live
        self.cache = self.kernel = None

    def clear(self) -> None:
        """Forget every sequence, whatever it is doing."""
        self.live.clear()
        self.queue.clear()
        self.prefixes.clear()


def shared_beginning(a: Sequence[int], b: Sequence[int]) -> int:
    """How many tokens two sequences have in common before the first that differs."""
    low, high = 0, min(len(a), len(b))
    while low < high:  # by halves, because slices are compared much faster than tokens
        middle = (low + high + 1) // 2
        low, high = (middle, high) if a[low:middle] == b[low:middle] else (low, middle - 1)
    return low


class StopStrings:
    """Finds stop strings in sampled ids without decoding at every token.

    Only a token whose text contains the last character of some stop string can complete one, so only then is the
    action's tail decoded and searched. The stop string may end inside a token.
    """

    def __init__(self, renderer: Renderer, stop: Sequence[str]):
        self.renderer, self.stop = renderer, tuple(stop)
        last = {s[-1] for s in self.stop}
        if not last.issubset(map(chr, range(128))):
            last.add("\ufffd")  # a token may hold only the last bytes of a character
        ids = renderer.tokenizer.get_vocab().values()
        self.candidates = {i for i in ids if not last.isdisjoint(renderer.decode([i], start=False))}
        self.tail = 4 * max((len(s) for s in self.stop), default=0) + 8  # a character is at most 4 byte tokens

    def reached(self, ids: Sequence[int]) -> bool:
        """True when the newest token completes a stop string."""
        if not self.stop or ids[-1] not in self.candidates:
            return False
        return self.end(self.renderer.decode(ids[-self.tail :], start=False)) is not None

    def end(self, text: str) -> int | None:
        """Index just behind the first stop string in a text, or None."""
        ends = [i + len(s) for s in self.stop if (i := text.find(s)) >= 0]
        return min(ends, default=None)
