"""Packing rows into micro-batches: no padding, and a prompt that several rows share is computed once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from agentrl.rollout.attention import PackedLayout, Segment
from agentrl.rollout.trajectory import Row


@dataclass
class MicroBatch:
    """Rows side by side, T flat tokens of which N are trained on.

    ids, positions int64[T]. Of the trained tokens: ``source`` int64[N] is the flat index whose hidden state predicts
    them, ``target`` int64[N] their id, ``row`` int64[N] the index of their row in the list that was packed,
    ``index`` int64[N] their place in that row; advantage, engine_logp fp32[N]; sampled bool[N].
    """

    ids: Tensor
    positions: Tensor
    segments: list[Segment]
    source: Tensor
    target: Tensor
    row: Tensor
    index: Tensor
    advantage: Tensor
    engine_logp: Tensor
    sampled: Tensor

    @property
    def attended(self) -> int:
        """Pairs of a token and a key that it attends to, itself among them."""
        lengths = [(s.end - s.start, s.prefix_end - s.prefix_start) for s in self.segments]
        return sum(n * prefix + n * (n + 1) // 2 for n, prefix in lengths)

    def layout(self) -> PackedLayout:
        return PackedLayout(self.segments)

    def to(self, device: torch.device) -> MicroBatch:
        moved: dict[str, Any] = {k: v.to(device) for k, v in vars(self).items() if isinstance(v, Tensor)}
        return replace(self, **moved)


def pack(rows: Sequence[Row], budget: int, mask_observations: bool = True) -> list[MicroBatch]:
    """Pack rows, in order, into micro-batches of at most ``budget`` tokens (a longer row stands alone).

    Neighbouring rows with the same prompt share it inside a micro-batch: its gradient is the sum over the rows, the
    same as if each row had carried its own copy.
    """
    batches: list[MicroBatch] = []
    members: list[int] = []
    used, prompt = 0, None
    for i, row in enumerate(rows):
        own = row.ids[: row.prompt_length].tobytes()
        cost = len(row) - (row.prompt_length if own == prompt else 0)
        if members and used + cost > budget:
            batches.append(_build(rows, members, mask_observations))
            members, used, cost = [], 0, len(row)
        members.append(i)
        used, prompt = used + cost, own
    if members:
        batches.append(_build(rows, members, mask_observations))
    return batches


def _build(rows: Sequence[Row], members: Sequence[int], mask_observations: bool) -> MicroBatch:
    ids: list[np.ndarray] = []
    positions: list[np.ndarray] = []
    segments: list[Segment] = []
    parts: dict[str, list[np.ndarray]] = {k: [] for k in ("source", "target", "row", "index", "adv", "logp", "sampled")}
    at, prompt, shared = 0, b"", (0, 0)
    for i in members:
        row = rows[i]
        n = row.prompt_length
        own = row.ids[:n].tobytes()
        if own != prompt:
            segments.append(Segment(at, at + n))
            ids.append(row.ids[:n])
            positions.append(np.arange(n))
            prompt, shared, at = own, (at, at + n), at + n
        rest = len(row) - n
        if rest == 0:
            continue
        segments.append(Segment(at, at + rest, *shared))
        ids.append(row.ids[n:])
        positions.append(np.arange(n, len(row)))
        index = np.flatnonzero(row.trained(mask_observations))
        # Token t is predicted at t - 1: inside the continuation, or at the shared prompt's last token.
        parts["source"].append(np.where(index > n, at + index - n - 1, shared[1] - 1))
        parts["target"].append(row.ids[index])
        parts["row"].append(np.full(len(index), i))
        parts["index"].append(index)
        parts["adv"].append(row.advantage[index])
        parts["logp"].append(row.logprobs[index])
        parts["sampled"].append(row.sampled[index])
        at += rest

    def tensor(name: str, dtype: torch.dtype) -> Tensor:
        return torch.from_numpy(np.concatenate(parts[name]) if parts[name] else np.zeros(0)).to(dtype)

    return MicroBatch(
        ids=torch.from_numpy(np.concatenate(ids)).long(),
        positions=torch.from_numpy(np.concatenate(positions)).long(),
        segments=segments,
        source=tensor("source", torch.long),
        target=tensor("target", torch.long),
        row=tensor("row", torch.long),
        index=tensor("index", torch.long),
        advantage=tensor("adv", torch.float32),
        engine_logp=tensor("logp", torch.float32),
        sampled=tensor("sampled", torch.bool),
    )
