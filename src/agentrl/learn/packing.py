"""Packing rows into micro-batches: no padding, and a beginning that several rows share is computed once."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

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

    Neighbouring rows share the beginning of their prompts where that saves tokens: a group its whole prompt, rows of
    different tasks what the environment says to all. The gradient of a shared token is the sum over the rows, the same
    as if each row had carried its own copy.
    """
    batches: list[MicroBatch] = []
    families: list[Family] = []
    members: list[int] = []
    for i in range(len(rows)):
        grown = _families(rows, [*members, i])
        if members and sum(f.tokens(rows) for f in grown) > budget:
            batches.append(_build(rows, families, mask_observations))
            members, grown = [], _families(rows, [i])
        families = grown
        members.append(i)
    if members:
        batches.append(_build(rows, families, mask_observations))
    return batches


class Family(NamedTuple):
    """Neighbouring rows whose first ``shared`` tokens are the same and are computed once."""

    members: list[int]
    shared: int

    def tokens(self, rows: Sequence[Row]) -> int:
        return sum(len(rows[i]) for i in self.members) - self.saved

    @property
    def saved(self) -> int:
        return (len(self.members) - 1) * self.shared


def _families(rows: Sequence[Row], members: Sequence[int]) -> list[Family]:
    """Rows with one prompt, then neighbouring families joined where that saves tokens."""
    families: list[Family] = []
    for prompt, group in itertools.groupby(members, lambda i: rows[i].ids[: rows[i].prompt_length].tobytes()):
        families.append(Family(list(group), len(prompt) // rows[0].ids.itemsize))
        while len(families) > 1:
            *others, left, right = families
            both = Family([*left.members, *right.members], _common(rows, left, right))
            if both.saved <= left.saved + right.saved:
                break
            families = [*others, both]
    return families


def _common(rows: Sequence[Row], left: Family, right: Family) -> int:
    """How many tokens all members of two families begin with, none of them behind a prompt."""
    n = min(left.shared, right.shared)
    differs = np.flatnonzero(rows[left.members[0]].ids[:n] != rows[right.members[0]].ids[:n])
    return int(differs[0]) if len(differs) else n


def _build(rows: Sequence[Row], families: Sequence[Family], mask_observations: bool) -> MicroBatch:
    ids: list[np.ndarray] = []
    positions: list[np.ndarray] = []
    segments: list[Segment] = []
    parts: dict[str, list[np.ndarray]] = {k: [] for k in ("source", "target", "row", "index", "adv", "logp", "sampled")}
    at = 0
    for members, n in families:
        shared = (at, at + n)
        if n:
            segments.append(Segment(*shared))
            ids.append(rows[members[0]].ids[:n])
            positions.append(np.arange(n))
            at += n
        for i in members:
            row = rows[i]
            rest = len(row) - n
            if rest == 0:
                continue
            segments.append(Segment(at, at + rest, *shared))
            ids.append(row.ids[n:])
            positions.append(np.arange(n, len(row)))
            index = np.flatnonzero(row.trained(mask_observations))
            # Token t is predicted at t - 1: inside the continuation, or at the last shared token.
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
