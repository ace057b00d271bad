"""Log-probabilities of tokens from the last hidden states, with logits that exist only a chunk at a time."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from agentrl.kernels.build import library

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
            _call(
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
        grad_hidden, grad_weight = torch.empty_like(hidden), None
        for part in _chunks(len(hidden)):
            logits = hidden[part] @ weight.t()
            _call(
                "token_logprobs_backward",
                *(logits, target[part], log_sum[part], grad[part], *logits.shape, ctx.temperature),
            )
            grad_hidden[part] = logits @ weight
            if ctx.needs_input_grad[1]:
                product = logits.t() @ hidden[part]
                grad_weight = product if grad_weight is None else grad_weight + product
        return grad_hidden, grad_weight, None, None


def _chunks(n: int) -> Iterator[slice]:
    return (slice(start, start + CHUNK) for start in range(0, n, CHUNK))


def _call(name: str, *arguments: Tensor | int | float) -> None:
    function: Callable[..., None] = getattr(library("logits.cpp"), name)
    function(*map(_argument, arguments))


def _argument(x: Tensor | int | float) -> ctypes.c_void_p | ctypes.c_int64 | ctypes.c_float:
    if isinstance(x, Tensor):
        return ctypes.c_void_p(x.data_ptr())
    return ctypes.c_int64(x) if isinstance(x, int) else ctypes.c_float(x)
