"""Attention of packed rows for training, with its own backward pass.

One autograd node for all segments of a micro-batch: cutting segments out of q, k and v with autograd's own slicing
would fill a whole-size gradient for every segment. On a CPU with tiles (kernels/tiles.h) both passes are one call of a
kernel of ``agentrl.kernels``. Elsewhere the backward pass recomputes the probabilities and runs on batched matrix
products, which with bf16 units is about three times as fast as the fused kernel's backward; its elementwise parts are
compiled.
Where no compiler is present, ``attend_row`` with autograd does the same, slower.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from agentrl.kernels import attention
from agentrl.models.compiled import compiled


@compiled
def _probabilities(scores: Tensor, lse: Tensor, scale: float) -> Tensor:
    """Causal softmax from raw scores [H, n, m] and log-sum-exp [H, n, 1]; the queries are the last n of m tokens."""
    n, m = scores.shape[-2:]
    rows = torch.arange(n, device=scores.device)[:, None] + (m - n)
    mask = torch.arange(m, device=scores.device)[None] <= rows
    return torch.where(mask, torch.exp(scores.float() * scale - lse), 0.0).to(scores.dtype)


@compiled
def _score_gradient(probs: Tensor, grad_probs: Tensor, delta: Tensor, scale: float) -> Tensor:
    return (probs.float() * (grad_probs.float() - delta) * scale).to(probs.dtype)


class PackedAttention(torch.autograd.Function):
    """q [H, T, D], k and v [K, T, D] → [H, T, D], for a ``PackedLayout``. Plain causal attention only."""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, layout: Any, scale: float
    ) -> Tensor:
        ctx.kernel = layout.kernel(len(q), len(k), q.shape[2]) if attention.suits(q, k, v) else None
        ctx.segments, ctx.scale = layout.segments, scale
        if ctx.kernel:
            out, sums = ctx.kernel.forward(q, k, v, scale)
        else:
            out, sums = _forward(q, k, v, layout.segments, layout.masks, scale)
        ctx.save_for_backward(q, k, v, out, sums)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        q, k, v, out, sums = ctx.saved_tensors
        grad = grad if grad.stride(2) == 1 else grad.contiguous()
        if ctx.kernel:
            grads = ctx.kernel.backward(q, k, v, out, sums, grad, ctx.scale)
        else:
            grads = _backward(q, k, v, out, sums, grad, ctx.segments, ctx.scale)
        return *grads, None, None


def _forward(
    q: Tensor, k: Tensor, v: Tensor, segments: Sequence[Any], masks: dict[Any, Tensor], scale: float
) -> tuple[Tensor, Tensor]:
    """Output, and fp32 [H, T] logs of the softmax's denominators."""
    out, sums = torch.empty_like(q), torch.empty(q.shape[:2])
    for s in segments:
        keys, values = _with_prefix(k, s), _with_prefix(v, s)
        n, m = s.end - s.start, keys.shape[1]
        bias = None
        if n != m:
            if ("bias", n, m) not in masks:
                seen = torch.arange(m)[None] <= torch.arange(n)[:, None] + (m - n)
                masks["bias", n, m] = torch.zeros(n, m, dtype=q.dtype).masked_fill(~seen, float("-inf"))
            bias = masks["bias", n, m]
        part, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            q[None, :, s.start : s.end], keys[None], values[None], 0.0, n == m, attn_mask=bias, scale=scale
        )
        out[:, s.start : s.end] = part[0]
        sums[:, s.start : s.end] = lse[0]
    return out, sums


def _backward(
    q: Tensor, k: Tensor, v: Tensor, out: Tensor, sums: Tensor, grad: Tensor, segments: Sequence[Any], scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    grad_q = torch.zeros_like(q)
    grad_k, grad_v = torch.zeros_like(k), torch.zeros_like(v)
    kv_heads, size = k.shape[0], q.shape[-1]
    for s in segments:
        keys, values = _with_prefix(k, s), _with_prefix(v, s)
        n, m, heads = s.end - s.start, keys.shape[1], q.shape[0]
        # The query heads that share a key head become rows of one product: no key is expanded.
        rows = q[:, s.start : s.end].reshape(kv_heads, -1, size)
        grad_rows = grad[:, s.start : s.end].reshape(kv_heads, -1, size)
        delta = (grad[:, s.start : s.end].float() * out[:, s.start : s.end].float()).sum(-1, keepdim=True)
        scores = torch.bmm(rows, keys.transpose(1, 2)).view(heads, n, m)
        probs = _probabilities(scores, sums[:, s.start : s.end, None], scale)
        grad_probs = torch.bmm(grad_rows, values.transpose(1, 2)).view(heads, n, m)
        grad_scores = _score_gradient(probs, grad_probs, delta, scale).view(kv_heads, -1, m)
        grad_q[:, s.start : s.end] = torch.bmm(grad_scores, keys).view(heads, n, size)
        _add(grad_k, torch.bmm(grad_scores.transpose(1, 2), rows), s)
        _add(grad_v, torch.bmm(probs.view(kv_heads, -1, m).transpose(1, 2), grad_rows), s)
    return grad_q, grad_k, grad_v


def _with_prefix(x: Tensor, s: Any) -> Tensor:
    """The segment's own tokens behind those of its prefix, [K, m, D]."""
    own = x[:, s.start : s.end]
    return own if s.prefix_end == s.prefix_start else torch.cat([x[:, s.prefix_start : s.prefix_end], own], dim=1)


def _add(total: Tensor, part: Tensor, s: Any) -> None:
    """Add a segment's key or value gradient [K, m, D] to prefix and own tokens."""
    prefix = s.prefix_end - s.prefix_start
    total[:, s.prefix_start : s.prefix_end] += part[:, :prefix]
    total[:, s.start : s.end] += part[:, prefix:]
