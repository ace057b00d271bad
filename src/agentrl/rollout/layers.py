"""Known decoder families with whole layers in compiled code, for training forwards and for prefill.

What a layer cannot have that way (a window that leaves something out, another dtype, a processor without tiles)
goes through the model's own modules, which are the reference in the tests.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from agentrl.kernels import layer as kernel
from agentrl.kernels.families import known_layers, shape, weights, window
from agentrl.rollout.attention import How, PackedLayout, PrefillLayout


def use_kernels(model: PreTrainedModel) -> None:
    """Let compiled code stand for the layers and the last norm of a model that the kernels know; else do nothing."""
    layers = known_layers(model)
    if layers is None or not kernel.available():
        return
    for layer in layers:
        layer.forward = types.MethodType(_layer_forward(type(layer).forward), layer)
    norm: Any = model.get_decoder().norm
    norm.forward = types.MethodType(_norm_forward(type(norm).forward), norm)


def _layer_forward(plain: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def forward(
        self: Any, hidden_states: Tensor, position_embeddings: Any = None, layout: Any = None, **rest: Any
    ) -> Tensor:
        out = None
        if hidden_states.dtype == torch.bfloat16 and len(hidden_states) == 1:
            cos, sin = (x[0].contiguous() for x in position_embeddings)
            out = _compute(self, hidden_states[0], cos, sin, layout)
        if out is None:
            return plain(self, hidden_states, position_embeddings=position_embeddings, layout=layout, **rest)
        return out[None]

    return forward


def _compute(layer: Any, x: Tensor, cos: Tensor, sin: Tensor, layout: Any) -> Tensor | None:
    """The layer's output [T, hidden]; None where the kernels do not apply."""
    s, w = shape(layer), weights(layer)
    if isinstance(layout, PackedLayout) and layout.plain(window(layer)):
        attention = layout.kernel(s.heads * s.group, s.heads, s.size)
        return None if attention is None else kernel.Layer.apply(x, cos, sin, attention, s, *w)
    if isinstance(layout, PrefillLayout) and not torch.is_grad_enabled():
        how, index = How(s.scale, window(layer), None), layer.self_attn.layer_idx
        return kernel.forward(x, cos, sin, lambda q, k, v: (layout.attend(index, q, k, v, how), None), s, w)[0]
    return None


def _norm_forward(plain: Callable[[Any, Tensor], Tensor]) -> Callable[..., Tensor]:
    def forward(self: Any, hidden_states: Tensor) -> Tensor:
        if hidden_states.dtype != torch.bfloat16:
            return plain(self, hidden_states)
        flat = hidden_states.reshape(-1, hidden_states.shape[-1])
        return kernel.Norm.apply(flat, self.weight, self.variance_epsilon).view_as(hidden_states)

    return forward
