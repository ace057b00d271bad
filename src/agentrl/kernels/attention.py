"""The backward pass of packed attention in compiled code."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from agentrl.kernels.build import cpu_flags, library


class _Strided(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("head", ctypes.c_int64), ("token", ctypes.c_int64)]


class _Segment(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_int64) for name in ("start", "end", "prefix_start", "prefix_end")),
        ("sums", ctypes.c_void_p),
    ]


def attention_backward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    grad: Tensor,
    segments: Sequence[Any],
    sums: Sequence[Tensor],
    scale: float,
) -> tuple[Tensor, Tensor, Tensor] | None:
    """Gradients of q [H, T, D], k and v [K, T, D] in bf16, or None where the kernel does not apply.

    ``out`` and its gradient ``grad`` are [H, T, D]; ``sums`` has fp32 [H, n], the log of the softmax's denominator, for
    every segment of n tokens.
    """
    heads, _, size = q.shape
    group = heads // len(k)
    tensors = (q, k, v, out, grad)
    if (
        "amx_bf16" not in cpu_flags()
        or size % 32
        or any(x.dtype != torch.bfloat16 or x.device.type != "cpu" or x.stride(2) != 1 for x in tensors)
    ):
        return None
    families = _families(segments)
    kernel = library("attention.cpp", f"SIZE={size}", f"GROUP={group}")
    if families is None or kernel is None or kernel.request_tiles() != 0:
        return None
    grads = (torch.empty_like(q), torch.empty_like(k), torch.empty_like(v))
    rows = (_Segment * len(segments))(
        *(
            _Segment(s.start, s.end, s.prefix_start, s.prefix_end, x.data_ptr())
            for s, x in zip(segments, sums, strict=True)
        )
    )
    kernel.attention_backward(
        *(ctypes.byref(_Strided(x.data_ptr(), x.stride(0), x.stride(1))) for x in (*tensors, *grads)),
        rows,
        (ctypes.c_int64 * len(families))(*families),
        ctypes.c_int64(len(families) - 1),
        ctypes.c_int64(len(k)),
        ctypes.c_float(scale),
    )
    return grads


def _families(segments: Sequence[Any]) -> list[int] | None:
    """Where each family begins, and the end: a segment without a prefix and those behind it that continue all of it."""
    starts = []
    base = None
    for i, s in enumerate(segments):
        if s.prefix_end == s.prefix_start:
            starts.append(i)
            base = s
        elif base is None or (s.prefix_start, s.prefix_end) != (base.start, base.end):
            return None
    return [*starts, len(segments)]
