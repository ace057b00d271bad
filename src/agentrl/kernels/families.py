"""The decoders that the kernels know: Llama, Mistral, Qwen2 and Qwen3 in bf16 on a CPU that can use tiles.h."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from agentrl.kernels.build import can_use_tiles

LAYERS = ("LlamaDecoderLayer", "MistralDecoderLayer", "Qwen2DecoderLayer", "Qwen3DecoderLayer")


class Weights(NamedTuple):
    """Of one layer. Matrices are [out, in]; what a family does not have is None. ``struct Layer`` of decoder.cpp."""

    norm: Tensor
    q: Tensor
    k: Tensor
    v: Tensor
    q_bias: Tensor | None
    k_bias: Tensor | None
    v_bias: Tensor | None
    q_norm: Tensor | None
    k_norm: Tensor | None
    o: Tensor
    o_bias: Tensor | None
    mlp_norm: Tensor
    gate: Tensor
    up: Tensor
    down: Tensor


class Shape(NamedTuple):
    """heads: of keys; group: query heads that share one; size: of a head's vector."""

    heads: int
    group: int
    size: int
    eps: float
    scale: float


def known_layers(model: PreTrainedModel) -> list[Any] | None:
    """The model's layers where the kernels can stand for them, else None."""
    decoder: Any = model.get_decoder() if hasattr(model, "get_decoder") else None
    layers = getattr(decoder, "layers", None)
    if not can_use_tiles() or not layers or any(type(x).__name__ not in LAYERS for x in layers):
        return None
    config, s = model.config, shape(layers[0])
    widths = (config.hidden_size, config.intermediate_size, s.heads * s.size, s.size)
    first = layers[0]
    plain = (
        config.hidden_act == "silu"
        and not getattr(config, "mlp_bias", False)
        and all(p.dtype == torch.bfloat16 and p.device.type == "cpu" and p.is_contiguous() for p in model.parameters())
        and all(type(m) is nn.Linear for m in (first.self_attn.q_proj, first.self_attn.o_proj, first.mlp.gate_proj))
        and all(width % 32 == 0 for width in widths)
        and s.group <= 8
    )
    return list(layers) if plain else None


def shape(layer: Any) -> Shape:
    a = layer.self_attn
    heads = a.config.num_key_value_heads
    group = a.config.num_attention_heads // heads
    return Shape(heads, group, a.head_dim, layer.input_layernorm.variance_epsilon, a.scaling)


def weights(layer: Any) -> Weights:
    a, mlp = layer.self_attn, layer.mlp
    return Weights(  # type: ignore[call-arg]
        layer.input_layernorm.weight,
        *(p.weight for p in (a.q_proj, a.k_proj, a.v_proj)),
        *(p.bias for p in (a.q_proj, a.k_proj, a.v_proj)),
        *(getattr(getattr(a, name, None), "weight", None) for name in ("q_norm", "k_norm")),
        a.o_proj.weight,
        a.o_proj.bias,
        layer.post_attention_layernorm.weight,
        *(p.weight for p in (mlp.gate_proj, mlp.up_proj, mlp.down_proj)),
    )


def window(layer: Any) -> int | None:
    """Tokens that a layer's attention sees. Qwen's windows differ between layers; Mistral has one for all."""
    a = layer.self_attn
    found = a.sliding_window if hasattr(a, "sliding_window") else getattr(a.config, "sliding_window", None)
    return found or None
