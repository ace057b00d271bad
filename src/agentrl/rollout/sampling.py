"""Drawing tokens. The distribution is set here and nowhere else: a model's generation_config is never consulted."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class Sampling:
    """temperature 0 is greedy; top_p 1, top_k 0 and min_p 0 are off."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0

    @property
    def truncated(self) -> bool:
        """True when tokens are not drawn from the whole temperature-scaled distribution."""
        return self.temperature == 0 or self.top_p < 1 or self.top_k > 0 or self.min_p > 0


TOP = 64  # tokens that get noise of their own; the rest of the vocabulary is one more candidate


def stream(n: int, *key: object) -> np.ndarray:
    """int64[n]: the random stream that belongs to a key such as (seed, step, task hash, member, turn).

    Stateless: what a trajectory draws depends on nothing but its key and the index of the token.
    """
    digest = hashlib.sha256(repr(key).encode()).digest()
    generator = np.random.Generator(np.random.Philox(key=int.from_bytes(digest[:16], "little")))
    return generator.integers(-(2**63), 2**63 - 1, size=n, dtype=np.int64)


def draw(logits: Tensor, sampling: Sampling, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Draw one token a row by the Gumbel-max rule.

    logits fp32 [n, V]; noise int64 [n] from ``stream``. Returns token ids int64 [n] and their log-probabilities fp32
    [n] under the temperature-scaled, *untruncated* softmax: the distribution that the policy loss differentiates (at
    temperature 0, the unscaled one).

    Gumbel noise belongs to token ids, so a rounding error in the logits changes a draw only when two perturbed
    candidates all but tie; inverting a cumulative sum over the vocabulary would change one draw in a thousand. The
    rule is exact for any partition of the vocabulary: the ``TOP`` likeliest tokens compete with the rest as a whole,
    and only where the rest wins, its cumulative distribution is inverted.
    """
    logprobs = torch.log_softmax(logits / (sampling.temperature or 1.0), dim=-1)
    if sampling.temperature == 0:
        tokens = logits.argmax(dim=-1)
    else:
        probs = truncate(logprobs.exp(), sampling)
        top, ids = largest(probs, TOP)
        rest = (probs.sum(-1, keepdim=True) - top.sum(-1, keepdim=True)).clamp(min=0.0)
        candidates = torch.cat([ids, torch.full_like(ids[:, :1], -1)], dim=1)
        gumbel = -torch.log(-torch.log(hashed_uniforms(noise[:, None], candidates)))
        winner = (torch.cat([top, rest], dim=1).double().log() + gumbel).argmax(dim=1, keepdim=True)
        tokens = candidates.gather(1, winner).squeeze(1)
        for row in torch.nonzero(tokens < 0).flatten().tolist():
            left = probs[row].scatter(0, ids[row], 0.0).cumsum(0, dtype=torch.float64)
            u = hashed_uniforms(noise[row : row + 1], torch.full_like(noise[:1], -2))
            # The first token whose cumulative mass exceeds u × total: one of probability 0 can never be it.
            token = torch.searchsorted(left, u * left[-1], right=True)
            tokens[row] = token if left[-1] > 0 and token < len(left) else ids[row, 0]
    return tokens, logprobs.gather(1, tokens[:, None]).squeeze(1)


def largest(values: Tensor, k: int, block: int = 64) -> tuple[Tensor, Tensor]:
    """The k largest of each row of [n, V] and their indices, as ``topk`` finds them (all of them where V < k).

    The k largest lie in the k blocks with the largest maxima, so a long row is sorted through two short ones.
    """
    n, size = values.shape
    blocks = size // block
    if blocks <= k:
        return values.topk(min(k, size), dim=-1)
    whole = values[:, : blocks * block].view(n, blocks, block)
    chosen = whole.amax(dim=-1).topk(k, dim=-1, sorted=False).indices
    index = (chosen[:, :, None] * block + torch.arange(block, device=values.device)).flatten(1)
    rest = torch.arange(blocks * block, size, device=values.device).expand(n, -1)
    index = torch.cat([index, rest], dim=1)
    found, place = values.gather(1, index).topk(k, dim=-1)
    return found, index.gather(1, place)


def hashed_uniforms(key: Tensor, ids: Tensor) -> Tensor:
    """float64 in (0, 1) for every pair of an int64 key and an int64 id (SplitMix64's finaliser; broadcasts)."""
    x = key + ids * -7046029254386353131
    x = (x ^ _shift(x, 30)) * -4658895280553007687
    x = (x ^ _shift(x, 27)) * -7723592293110705685
    x = x ^ _shift(x, 31)
    return (_shift(x, 12).double() + 0.5) / 2**52


def _shift(x: Tensor, by: int) -> Tensor:
    """Logical right shift of int64."""
    return (x >> by) & ((1 << (64 - by)) - 1)


def truncate(probs: Tensor, sampling: Sampling) -> Tensor:
    """Zero the tokens that top-k, min-p and top-p exclude, in that order; [n, V] → [n, V], not renormalised."""
    if sampling.top_k > 0:
        kth = probs.topk(min(sampling.top_k, probs.shape[-1]), dim=-1).values[:, -1:]
        probs = probs.masked_fill(probs < kth, 0.0)
    if sampling.min_p > 0:
        probs = probs.masked_fill(probs < sampling.min_p * probs.amax(dim=-1, keepdim=True), 0.0)
    if sampling.top_p < 1:
        ordered, index = probs.sort(dim=-1, descending=True, stable=True)
        before = ordered.cumsum(dim=-1) - ordered
        outside = before >= sampling.top_p * ordered.sum(dim=-1, keepdim=True)
        outside[:, 0] = False
        probs = probs.masked_fill(torch.zeros_like(outside).scatter(1, index, outside), 0.0)
    return probs
