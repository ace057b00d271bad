"""Gradients of weights, summed in fp32 where the optimiser keeps them."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor, nn

from agentrl.kernels.build import call, tile_library


class GradientSum:
    """The gradient of one weight over any number of products.

    A weight with an fp32 master (``weight.fp32_master``, set by the optimiser) has it added to the master's gradient at
    once: no bf16 gradient exists, and nothing is rounded between micro-batches. Any other weight gets it from
    ``result``.
    """

    def __init__(self, weight: Tensor):
        self.weight = weight
        self.master: nn.Parameter | None = getattr(weight, "fp32_master", None)
        self.own: Tensor | None = None

    def add_product(self, grad: Tensor, x: Tensor) -> None:
        """Add gradᵀ · x for a weight [outs, ins]; grad bf16 [T, outs], x bf16 [T, ins]."""
        total = self._total()
        kernel = _kernel(grad, x)
        if kernel is None:
            self.add((grad.t() @ x).float())
            return
        if total is None:
            self._set(torch.empty(self.weight.shape, dtype=torch.float32))
        sizes = (len(grad), grad.shape[1], x.shape[1], int(total is not None))
        call(kernel, "weight_gradient", grad, grad.stride(0), x, x.stride(0), self._total(), *sizes)

    def add(self, grad: Tensor) -> None:
        """Add an fp32 gradient of the weight's shape."""
        total = self._total()
        if total is None:
            self._set(grad)
        else:
            total += grad

    def result(self) -> Tensor | None:
        """What a backward pass returns for the weight: its gradient, or None where the master has it already."""
        return None if self.own is None else self.own.to(self.weight.dtype)

    def _total(self) -> Tensor | None:
        return self.own if self.master is None else self.master.grad

    def _set(self, total: Tensor) -> None:
        if self.master is None:
            self.own = total
        else:
            self.master.grad = total


def _kernel(grad: Tensor, x: Tensor) -> ctypes.CDLL | None:
    """The kernel where it applies: bf16 rows on a CPU with tiles and a compiler, widths in multiples of 32."""
    if grad.shape[1] % 32 or x.shape[1] % 32:
        return None
    if any(t.dtype != torch.bfloat16 or t.device.type != "cpu" or t.stride(1) != 1 for t in (grad, x)):
        return None
    return tile_library("linear.cpp")
