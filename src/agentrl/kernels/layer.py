"""A whole decoder layer in a few calls: PyTorch's matrix products, and compiled code for all that stands between them.

The backward pass is written out, so that it keeps little (of a layer, 10 numbers a token for every number of its
hidden state) and adds the gradients of weights up in fp32 where the optimiser wants them. Norms and gates are computed
again rather than kept.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from agentrl.kernels.attention import TileAttention
from agentrl.kernels.build import call, library
from agentrl.kernels.families import Shape, Weights
from agentrl.kernels.linear import GradientSum


class Kept(NamedTuple):
    """What the backward pass needs. All are bf16 [T, …] but the sums of attention, fp32 [H, T].

    raw_q and raw_k are the projections before their own norm, where the family has one.
    """

    x: Tensor
    raw_q: Tensor | None
    raw_k: Tensor | None
    q: Tensor
    k: Tensor
    v: Tensor
    attended: Tensor
    sums: Tensor | None
    middle: Tensor
    gate: Tensor
    up: Tensor


Attend = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor | None]]


def available() -> bool:
    return library("layer.cpp") is not None


def forward(x: Tensor, cos: Tensor, sin: Tensor, attend: Attend, s: Shape, w: Weights) -> tuple[Tensor, Kept]:
    """bf16 [T, hidden] → the same behind the layer. cos, sin bf16 [T, D].

    ``attend`` gets q [H, T, D], k and v [K, T, D] and returns the output [H, T, D] and what its backward needs.
    """
    normed = norm(x, w.norm, s.eps)
    q, k = F.linear(normed, w.q, w.q_bias), F.linear(normed, w.k, w.k_bias)
    v = F.linear(normed, w.v, w.v_bias)
    raw_q, raw_k = q, k
    if w.q_norm is not None and w.k_norm is not None:
        q = norm(q.view(-1, s.size), w.q_norm, s.eps).view_as(q)
        k = norm(k.view(-1, s.size), w.k_norm, s.eps).view_as(k)
    _rotate(q, cos, sin, s)
    _rotate(k, cos, sin, s)
    out, sums = attend(_heads(q, s), _heads(k, s), _heads(v, s))
    attended = out.transpose(0, 1).reshape(len(x), -1)
    middle = x + F.linear(attended, w.o, w.o_bias)
    normed = norm(middle, w.mlp_norm, s.eps)
    gate, up = F.linear(normed, w.gate), F.linear(normed, w.up)
    out = torch.empty_like(gate)
    _call("gated", gate, up, out, gate.numel())
    own = w.q_norm is not None
    kept = Kept(x, raw_q if own else None, raw_k if own else None, q, k, v, attended, sums, middle, gate, up)
    return middle + F.linear(out, w.down), kept


class Layer(torch.autograd.Function):
    """x bf16 [T, hidden], cos and sin [T, D] → [T, hidden] for packed rows. Weights as in ``families.Weights``."""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, x: Tensor, cos: Tensor, sin: Tensor, attention: TileAttention, s: Shape, *weights: Tensor | None
    ) -> Tensor:
        w = Weights(*weights)  # type: ignore[arg-type]
        out, kept = forward(x, cos, sin, lambda q, k, v: attention.forward(q, k, v, s.scale), s, w)
        ctx.attention, ctx.shape = attention, s
        ctx.save_for_backward(cos, sin, *kept, *w)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        s: Shape = ctx.shape
        cos, sin, *rest = ctx.saved_tensors
        kept, w = Kept(*rest[: len(Kept._fields)]), Weights(*rest[len(Kept._fields) :])
        wanted = ctx.needs_input_grad[-len(w) :]
        sums: Any = Weights(*map(_sum, w, wanted))  # type: ignore[arg-type]  # a sum for each weight
        grad = grad.contiguous()

        grad_gate, grad_up, gated = (torch.empty_like(kept.gate) for _ in range(3))
        _call("gated_backward", kept.gate, kept.up, grad @ w.down, grad_gate, grad_up, gated, gated.numel())
        _add(sums.down, grad, gated)
        normed = norm(kept.middle, w.mlp_norm, s.eps)
        _add(sums.gate, grad_gate, normed)
        _add(sums.up, grad_up, normed)
        grad_normed = (grad_gate @ w.gate).addmm_(grad_up, w.up)
        grad = _norm_backward(kept.middle, w.mlp_norm, grad_normed, grad, s.eps, sums.mlp_norm)

        _add(sums.o, grad, kept.attended, sums.o_bias)
        q, k, v, attended = (_heads(x, s) for x in (kept.q, kept.k, kept.v, kept.attended))
        grads = ctx.attention.backward(q, k, v, attended, kept.sums, _heads(grad @ w.o, s), s.scale)
        grad_q, grad_k, grad_v = (g.transpose(0, 1).reshape(len(grad), -1) for g in grads)
        _rotate(grad_q, cos, sin, s, back=True)
        _rotate(grad_k, cos, sin, s, back=True)
        if w.q_norm is not None and w.k_norm is not None:
            grad_q = _head_norm_backward(kept.raw_q, w.q_norm, grad_q, s, sums.q_norm)
            grad_k = _head_norm_backward(kept.raw_k, w.k_norm, grad_k, s, sums.k_norm)
        normed = norm(kept.x, w.norm, s.eps)
        _add(sums.q, grad_q, normed, sums.q_bias)
        _add(sums.k, grad_k, normed, sums.k_bias)
        _add(sums.v, grad_v, normed, sums.v_bias)
        grad_normed = (grad_q @ w.q).addmm_(grad_k, w.k).addmm_(grad_v, w.v)
        grad = _norm_backward(kept.x, w.norm, grad_normed, grad, s.eps, sums.norm)
        return grad, None, None, None, None, *(total.result() if total else None for total in sums)


class Norm(torch.autograd.Function):
    """RMS norm: x bf16 [T, n], weight bf16 [n] → [T, n]."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:  # type: ignore[override]
        ctx.save_for_backward(x, weight)
        ctx.eps = eps
        return norm(x, weight, eps)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        x, weight = ctx.saved_tensors
        total = _sum(weight, ctx.needs_input_grad[1])
        grad_x = _norm_backward(x, weight, grad.contiguous(), None, ctx.eps, total)
        return grad_x, total.result() if total else None, None


def norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x / rms(x) · weight for contiguous bf16 [T, n]."""
    out = torch.empty_like(x)
    _call("norm", x, weight, out, *x.shape, eps)
    return out


def _norm_backward(
    x: Tensor, weight: Tensor, grad: Tensor, rest: Tensor | None, eps: float, total: GradientSum | None
) -> Tensor:
    """The gradient of x from that of its norm, plus ``rest``; the weight's goes to ``total``."""
    grad_x, grad_weight = torch.empty_like(x), torch.empty(len(weight))
    _call("norm_backward", x, weight, grad, rest, grad_x, grad_weight, *x.shape, eps)
    if total is not None:
        total.add(grad_weight)
    return grad_x


def _head_norm_backward(x: Tensor | None, weight: Tensor, grad: Tensor, s: Shape, total: GradientSum | None) -> Tensor:
    assert x is not None
    found = _norm_backward(x.view(-1, s.size), weight, grad.view(-1, s.size), None, s.eps, total)
    return found.view_as(grad)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor, s: Shape, back: bool = False) -> None:
    _call("rotate", x, cos, sin, len(x), x.shape[1] // s.size, s.size, int(back))


def _sum(weight: Tensor | None, wanted: bool) -> GradientSum | None:
    return GradientSum(weight) if weight is not None and wanted else None


def _add(total: GradientSum | None, grad: Tensor, x: Tensor, bias: GradientSum | None = None) -> None:
    """The gradients of a linear layer's weight and bias from those of its output, for inputs x."""
    if total is not None:
        total.add_product(grad, x)
    if bias is not None:
        bias.add(grad.sum(0, dtype=torch.float32))


def _heads(x: Tensor, s: Shape) -> Tensor:
    """[T, heads · D] as [heads, T, D]."""
    return x.view(len(x), -1, s.size).transpose(0, 1)


def _call(name: str, *arguments: Tensor | int | float | None) -> None:
    kernel: ctypes.CDLL | None = library("layer.cpp")
    assert kernel is not None
    call(kernel, name, *arguments)
