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


def uniforms(n: int, *key: object) -> np.ndarray:
    """float64[n] in [0, 1): the random stream that belongs to a key such as (seed, step, task hash, member, turn).

    Stateless: what a trajectory draws depends on nothing but its key and the index of the token.
    """
    digest = hashlib.sha256(repr(key).encode()).digest()
    return np.random.Generator(np.random.Philox(key=int.from_bytes(digest[:16], "little"))).random(n)


def draw(logits: Tensor, sampling: Sampling, u: Tensor) -> tuple[Tensor, Tensor]:
    """Draw one token a row by inverting the cumulative distribution.

    logits fp32 [n, V]; u float64 [n] in [0, 1). Returns token ids int64 [n] and their log-probabilities fp32 [n] under
    the temperature-scaled, *untruncated* softmax: the distribution that the policy loss differentiates (at temperature
    0, the unscaled one).
    """
    logprobs = torch.log_softmax(logits / (sampling.temperature or 1.0), dim=-1)
    if sampling.temperature == 0:
        tokens = logits.argmax(dim=-1)
    else:
        probs = truncate(logprobs.exp(), sampling)
        mass = probs.cumsum(dim=-1, dtype=torch.float64)
        # The first token whose cumulative mass exceeds u × total: a token of probability 0 can never be chosen.
        target = (u.to(mass.device) * mass[:, -1]).unsqueeze(1)
        tokens = torch.searchsorted(mass, target, right=True).squeeze(1)
        tokens = torch.where(tokens < logits.shape[-1], tokens, probs.argmax(dim=-1))
    return tokens, logprobs.gather(1, tokens[:, None]).squeeze(1)


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
