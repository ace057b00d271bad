"""Attention over ragged tokens, plugged into any Hugging Face decoder through its attention interface.

The decoder is called with one flat row of tokens, shape [1, T]; who may attend to whom is decided by a *layout* that
travels through the model's keyword arguments. Training uses ``PackedLayout`` (several rows side by side, members of a
group sharing their prompt); the engine uses ``PrefillLayout`` and ``DecodeLayout`` over its KV slots. Heads are
grouped (GQA) without expanding keys or values.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel

from agentrl.kernels import attention
from agentrl.kernels.attention import TileAttention
from agentrl.models import compiled
from agentrl.rollout.packed_attention import PackedAttention

ATTENTION = "agentrl"


class Layout(Protocol):
    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, how: How) -> Tensor:
        """q [H, T, D], k and v [K, T, D] of the T new tokens → output [H, T, D]."""
        ...


class How(NamedTuple):
    """What the model asks of its attention: score scale, sliding window (tokens) and logit soft cap, if any."""

    scale: float
    window: int | None
    softcap: float | None


def ragged_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    layout: Layout,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """The function registered with transformers. query [1, H, T, D], key and value [1, K, T, D] → [1, T, H, D]."""
    scale = scaling if scaling is not None else query.shape[-1] ** -0.5
    how = How(scale, sliding_window, softcap)
    out = layout.attend(module.layer_idx, query[0], key[0], value[0], how)  # type: ignore[arg-type]
    return out.transpose(0, 1).unsqueeze(0), None


AttentionInterface.register(ATTENTION, ragged_attention)


def hidden_states(model: PreTrainedModel, ids: Tensor, positions: Tensor, layout: Layout) -> Tensor:
    """Last hidden states [T, hidden] of flat tokens: ids int64[T], positions int64[T] within their own row."""
    decoder = base_model(model).get_decoder()
    out = decoder(input_ids=ids[None], position_ids=positions[None], use_cache=False, layout=layout)
    return out.last_hidden_state[0]


def head_logits(model: PreTrainedModel, hidden: Tensor) -> Tensor:
    """fp32 logits [N, V] of hidden states [N, hidden], with the family's own scaling and soft capping."""
    base = base_model(model)
    config = base.config.get_text_config()
    head = cast(nn.Module, base.get_output_embeddings())
    logits: Tensor = head(hidden).float()
    if scale := getattr(config, "logit_scale", None):  # Cohere
        logits = logits * scale
    if scale := getattr(config, "logits_scaling", None):  # Granite
        logits = logits / scale
    if cap := getattr(config, "final_logit_softcapping", None):  # Gemma 2
        logits = torch.tanh(logits / cap) * cap
    return logits


def plain_head(model: PreTrainedModel) -> Tensor | None:
    """The head's weight [V, hidden] where logits are nothing but hidden · weightᵀ, else None."""
    base = base_model(model)
    config = base.config.get_text_config()
    head: Any = base.get_output_embeddings()
    scaled = ("logit_scale", "logits_scaling", "final_logit_softcapping")
    if type(head) is not nn.Linear or head.bias is not None or any(getattr(config, name, None) for name in scaled):
        return None
    return cast(Tensor, head.weight)


def base_model(model: PreTrainedModel) -> PreTrainedModel:
    """The transformers model itself, also when peft wraps it."""
    return cast(Any, model).get_base_model() if hasattr(model, "get_base_model") else model


def causal_mask(queries: int, keys: int, window: int | None, device: torch.device) -> Tensor:
    """bool[queries, keys], True where a query may look; the queries are the last tokens of the keys' row."""
    distance = torch.arange(keys - queries, keys, device=device)[:, None] - torch.arange(keys, device=device)[None]
    mask = distance >= 0
    return mask if window is None else mask & (distance < window)


def attend_row(q: Tensor, k: Tensor, v: Tensor, how: How, masks: dict[tuple[int, int, int | None], Tensor]) -> Tensor:
    """Causal attention of one row's last tokens: q [H, n, D] over k and v [K, m, D], m ≥ n → [H, n, D].

    ``masks`` caches masks by (n, m, window) for the layers of one forward.
    """
    n, m = q.shape[1], k.shape[1]
    window = how.window if how.window is not None and how.window < m else None
    if n == m and window is None and how.softcap is None:
        out = F.scaled_dot_product_attention(
            q[None], k[None], v[None], is_causal=True, scale=how.scale, enable_gqa=True
        )
        return out[0]
    key = (n, m, window)
    if key not in masks:
        masks[key] = causal_mask(n, m, window, q.device)
    if how.softcap is None:
        out = F.scaled_dot_product_attention(
            q[None], k[None], v[None], attn_mask=masks[key], scale=how.scale, enable_gqa=True
        )
        return out[0]
    return capped_attention(q, k, v, masks[key], how.scale, how.softcap)


def capped_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scale: float, cap: float) -> Tensor:
    """Attention with soft-capped scores (Gemma 2), which no fused kernel offers. Shapes [..., heads, tokens, D]."""
    groups = q.shape[-3] // k.shape[-3]
    k, v = k.repeat_interleave(groups, dim=-3), v.repeat_interleave(groups, dim=-3)
    scores = (q @ k.transpose(-1, -2)).float() * scale
    scores = torch.tanh(scores / cap) * cap
    scores = scores.masked_fill(~mask, float("-inf"))
    return scores.softmax(-1).to(q.dtype) @ v


class Segment(NamedTuple):
    """A run of new tokens [start, end) that continues the prefix tokens [prefix_start, prefix_end)."""

    start: int
    end: int
    prefix_start: int = 0
    prefix_end: int = 0


class PackedLayout:
    """Rows packed side by side for training; a segment may continue a prefix that other segments share."""

    def __init__(self, segments: Sequence[Segment]):
        self.segments = segments
        self.longest = max(s.end - s.start + s.prefix_end - s.prefix_start for s in segments)
        self.masks: dict[Any, Tensor] = {}
        self.kernels: dict[tuple[int, int, int], TileAttention | None] = {}

    def kernel(self, heads: int, kv_heads: int, size: int) -> TileAttention | None:
        """The compiled attention for such heads, made once for all layers; None where there is none."""
        key = (heads, kv_heads, size)
        if key not in self.kernels:
            self.kernels[key] = attention.build(*key, self.segments)
        return self.kernels[key]

    def plain(self, window: int | None) -> bool:
        """Whether a layer's window leaves out nothing."""
        return window is None or window >= self.longest

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, how: How) -> Tensor:
        if how.softcap is None and self.plain(how.window) and q.device.type == "cpu" and compiled.available():
            return PackedAttention.apply(q, k, v, self, how.scale)
        parts = []
        for s in self.segments:
            keys, values = k[:, s.start : s.end], v[:, s.start : s.end]
            if s.prefix_end > s.prefix_start:
                keys = torch.cat([k[:, s.prefix_start : s.prefix_end], keys], dim=1)
                values = torch.cat([v[:, s.prefix_start : s.prefix_end], values], dim=1)
            parts.append(attend_row(q[:, s.start : s.end], keys, values, how, self.masks))
        return torch.cat(parts, dim=1)


class KVCache:
    """Keys and values of a fixed number of slots: k and v are [layers, slots, K, max_tokens, D].

    Memory is slots × max_tokens whatever the batch. Layers may differ in head shape, so each has its own tensor.
    """

    def __init__(self, model: PreTrainedModel, slots: int, max_tokens: int):
        config = base_model(model).config.get_text_config()
        parameter = next(model.parameters())
        heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        shape = (slots, heads, max_tokens, size)
        make = lambda: torch.zeros(shape, dtype=parameter.dtype, device=parameter.device)  # noqa: E731
        self.k = [make() for _ in range(config.num_hidden_layers)]
        self.v = [make() for _ in range(config.num_hidden_layers)]

    def copy(self, source: int, targets: Sequence[int], length: int) -> None:
        """Copy the first ``length`` tokens of one slot into others."""
        for target in targets:
            for cache in (*self.k, *self.v):
                cache[target, :, :length] = cache[source, :, :length]

    def read(self, slot: int, length: int) -> list[Tensor]:
        """A copy of the first ``length`` tokens of a slot, to write into slots that free up later."""
        return [cache[slot, :, :length].clone() for cache in (*self.k, *self.v)]

    def write(self, slot: int, saved: list[Tensor]) -> None:
        for cache, part in zip((*self.k, *self.v), saved, strict=True):
            cache[slot, :, : part.shape[1]] = part


class Chunk(NamedTuple):
    """New tokens [start, end) of the flat row that go into a slot behind its first ``length`` tokens."""

    slot: int
    start: int
    end: int
    length: int


class PrefillLayout:
    """Ragged chunks of new tokens, each attending to its own slot's tokens and, causally, to itself."""

    def __init__(self, cache: KVCache, chunks: Sequence[Chunk]):
        self.cache, self.chunks = cache, chunks
        self.masks: dict[tuple[int, int, int | None], Tensor] = {}

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, how: How) -> Tensor:
        keys, values = self.cache.k[layer], self.cache.v[layer]
        parts = []
        for c in self.chunks:
            total = c.length + c.end - c.start
            keys[c.slot, :, c.length : total] = k[:, c.start : c.end]
            values[c.slot, :, c.length : total] = v[:, c.start : c.end]
            row = q[:, c.start : c.end]
            parts.append(attend_row(row, keys[c.slot, :, :total], values[c.slot, :, :total], how, self.masks))
        return torch.cat(parts, dim=1)


class DecodeLayout:
    """One new token for each of the first n slots; token i goes into slot i at position ``lengths[i]``."""

    def __init__(self, cache: KVCache, lengths: Tensor):
        self.cache, self.lengths = cache, lengths
        self.n, self.live = len(lengths), int(lengths.max()) + 1
        self.slots = torch.arange(self.n, device=lengths.device)
        self.masks: dict[int | None, Tensor] = {}

    def mask(self, window: int | None, dtype: torch.dtype) -> Tensor:
        """Additive [n, 1, 1, live]."""
        if window not in self.masks:
            position = torch.arange(self.live, device=self.lengths.device)[None]
            seen = position <= self.lengths[:, None]
            if window is not None:
                seen &= position > self.lengths[:, None] - window
            mask = torch.zeros(seen.shape, dtype=dtype, device=seen.device).masked_fill(~seen, float("-inf"))
            self.masks[window] = mask[:, None, None]
        return self.masks[window]

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, how: How) -> Tensor:
        keys, values = self.cache.k[layer], self.cache.v[layer]
        keys[self.slots, :, self.lengths] = k.transpose(0, 1)
        values[self.slots, :, self.lengths] = v.transpose(0, 1)
        keys, values = keys[: self.n, :, : self.live], values[: self.n, :, : self.live]
        heads, kv_heads, size = q.shape[0], k.shape[0], q.shape[-1]
        # The query heads that share a key head stand in the query-length dimension: no key is expanded.
        rows = q.transpose(0, 1).reshape(self.n, kv_heads, heads // kv_heads, size)
        mask = self.mask(how.window, q.dtype)
        if how.softcap is None:
            out = F.scaled_dot_product_attention(rows, keys, values, attn_mask=mask, scale=how.scale)
        else:
            out = capped_attention(rows, keys, values, mask == 0, how.scale, how.softcap)
        return out.reshape(self.n, heads, size).transpose(0, 1)
