"""Causal attention over packed rows in compiled code, for training."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from agentrl.kernels.build import tile_library


class _Strided(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("head", ctypes.c_int64), ("token", ctypes.c_int64)]


class _Segment(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int64) for name in ("start", "end", "prefix_start", "prefix_end")]


class TileAttention:
    """Forward and backward for fixed segments; make it with ``build``, which says None where it does not apply.

    q, out and their gradients are bf16 [H, T, D], k and v [K, T, D]; sums fp32 [H, T] are the logs of the softmax's
    denominators.
    """

    def __init__(self, kernel: ctypes.CDLL, segments: Sequence[Any], families: list[int]):
        self.kernel = kernel
        rows = [_Segment(s.start, s.end, s.prefix_start, s.prefix_end) for s in segments]
        self.segments = (_Segment * len(rows))(*rows)
        self.families = (ctypes.c_int64 * len(families))(*families)

    def forward(self, q: Tensor, k: Tensor, v: Tensor, scale: float) -> tuple[Tensor, Tensor]:
        """Output and sums."""
        out, sums = torch.empty_like(q), torch.empty(q.shape[:2])
        self._call("attention", (q, k, v, out), sums, len(k), scale)
        return out, sums

    def backward(
        self, q: Tensor, k: Tensor, v: Tensor, out: Tensor, sums: Tensor, grad: Tensor, scale: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Gradients of q, k and v from that of the output."""
        grads = (torch.empty_like(q), torch.empty_like(k), torch.empty_like(v))
        self._call("attention_backward", (q, k, v, out, grad, *grads), sums, len(k), scale)
        return grads

    def _call(self, name: str, tensors: Sequence[Tensor], sums: Tensor, heads: int, scale: float) -> None:
        assert all(x.stride(2) == 1 for x in tensors)
        getattr(self.kernel, name)(
            *(ctypes.byref(_Strided(x.data_ptr(), x.stride(0), x.stride(1))) for x in tensors),
            ctypes.c_void_p(sums.data_ptr()),
            ctypes.c_int64(sums.shape[1]),
            self.segments,
            self.families,
            *(ctypes.c_int64(n) for n in (len(self.families) - 1, heads)),
            ctypes.c_float(scale),
        )


def suits(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Whether the kernel can take such tensors: bf16 on a CPU, a head's vector in one piece."""
    return all(x.dtype == torch.bfloat16 and x.device.type == "cpu" and x.stride(2) == 1 for x in (q, k, v))


def build(heads: int, kv_heads: int, size: int, segments: Sequence[Any]) -> TileAttention | None:
    """The kernel for heads of ``size`` numbers, a multiple of 32, on a CPU with tiles and a compiler; else None."""
    if size % 32:
        return None
    families = _families(segments)
    kernel = tile_library("attention.cpp", f"SIZE={size}", f"GROUP={heads // kv_heads}")
    if families is None or kernel is None:
        return None
    return TileAttention(kernel, segments, families)


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
