"""Log-probabilities of tokens from the last hidden states, with logits that exist only a chunk at a time."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from agentrl.kernels.build import call, library
from agentrl.kernels.linear import GradientSum

CHUNK = 1024  # tokens whose logits exist at one time


def available(hidden: Tensor, weight: Tensor) -> bool:
    """Whether ``TokenLogprobs`` applies: bf16 on a CPU, with a compiler."""
    return (
        all(x.dtype == torch.bfloat16 and x.device.type == "cpu" for x in (hidden, weight))
        and weight.is_contiguous()
        and library("logits.cpp") is not None
    )


class TokenLogprobs(torch.autograd.Function):
    """hidden bf16 [N, hidden], weight bf16 [V, hidden], target int64 [N], temperature → fp32 [N] twice.

    Log-probabilities under softmax(hidden · weightᵀ / temperature), and entropies, which carry no gradient. The
    backward pass computes the logits of a chunk again and turns them into their own gradient in place.
    """

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, hidden: Tensor, weight: Tensor, target: Tensor, temperature: float
    ) -> tuple[Tensor, Tensor]:
        logp, entropy, log_sum = (torch.empty(len(hidden)) for _ in range(3))
        for part in _chunks(len(hidden)):
            logits = hidden[part] @ weight.t()
            call(
                _library(),
                "token_logprobs",
                *(logits, target[part], *logits.shape, temperature),
                *(logp[part], entropy[part], log_sum[part]),
            )
        ctx.save_for_backward(hidden, weight, target, log_sum)
        ctx.temperature = temperature
        ctx.mark_non_differentiable(entropy)
        return logp, entropy

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        hidden, weight, target, log_sum = ctx.saved_tensors
        grad = grad.contiguous()
        grad_hidden, total = torch.empty_like(hidden), GradientSum(weight)
        for part in _chunks(len(hidden)):
            logits = hidden[part] @ weight.t()
            call(
                _library(),
                "token_logprobs_backward",
                *(logits, target[part], log_sum[part], grad[part], *logits.shape, ctx.temperature),
            )
            grad_hidden[part] = logits @ weight
            if ctx.needs_input_grad[1]:
                total.add_product(logits, hidden[part])
        return grad_hidden, total.result(), None, None


def _chunks(n: int) -> Iterator[slice]:
    return (slice(start, start + CHUNK) for start in range(0, n, CHUNK))


def _library() -> ctypes.CDLL:
    found = library("logits.cpp")
    assert found is not None
    return found
