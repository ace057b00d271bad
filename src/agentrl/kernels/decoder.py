"""The decode step of Llama-like models in one call of compiled code."""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from agentrl.kernels.build import cpu_flags, library

LAYERS = ("LlamaDecoderLayer", "MistralDecoderLayer", "Qwen2DecoderLayer", "Qwen3DecoderLayer")


class _Shape(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_int64) for name in ("hidden", "middle", "heads", "capacity")),
        *((name, ctypes.c_float) for name in ("eps", "scale")),
    ]


class DecodeKernel:
    """One token for each of the first n slots of a KV cache: ids and lengths int64[n] → logits fp32 [n, V].

    The same as the model's own forward up to rounding (the reference in the tests), two to three times as fast. Make it
    with ``build``, which says None where it does not apply.
    """

    def __init__(self, kernel: ctypes.CDLL, model: PreTrainedModel, keys: list[Tensor], values: list[Tensor]):
        self.kernel = kernel
        self.decoder: Any = model.get_decoder()
        self.head: Tensor = model.get_output_embeddings().weight  # type: ignore[union-attr, assignment]
        config = model.config
        first = self.decoder.layers[0].self_attn
        self.shape = _Shape(
            hidden=config.hidden_size,
            middle=config.intermediate_size,
            heads=config.num_key_value_heads,
            capacity=keys[0].shape[2],
            eps=config.rms_norm_eps,
            scale=first.scaling,
        )
        kernel.scratch.restype = ctypes.c_int64
        fields = [
            field
            for layer, k, v in zip(self.decoder.layers, keys, values, strict=True)
            for field in _layer(layer, k, v)
        ]
        self.layers = (ctypes.c_int64 * len(fields))(*fields)
        self.kept = (keys, values)  # the addresses above stay theirs

    def __call__(self, ids: Tensor, lengths: Tensor) -> Tensor:
        n = len(ids)
        hidden = self.decoder.embed_tokens(ids).contiguous()
        cos, sin = (x[0].contiguous() for x in self.decoder.rotary_emb(hidden[None], lengths[None]))
        size = max(
            self.kernel.scratch(ctypes.byref(self.shape), ctypes.c_int64(n)), (n + 15) // 16 * 16 * hidden.shape[1]
        )
        memory = torch.empty(size, dtype=torch.bfloat16)
        self.kernel.decode(
            ctypes.byref(self.shape),
            self.layers,
            ctypes.c_int64(len(self.decoder.layers)),
            *map(_address, (self.decoder.norm.weight, hidden, cos, sin, lengths)),
            ctypes.c_int64(n),
            _address(memory),
        )
        logits = torch.empty(n, len(self.head), dtype=torch.bfloat16)
        sizes = (ctypes.c_int64(x) for x in (n, len(self.head), hidden.shape[1]))
        self.kernel.head(*map(_address, (hidden, self.head, logits)), *sizes, _address(memory))
        return logits.float()


def build(model: PreTrainedModel, keys: list[Tensor], values: list[Tensor]) -> DecodeKernel | None:
    """The kernel for a model and its KV cache (per layer [slots, K, capacity, D]), or None where it does not apply.

    It applies to Llama, Mistral, Qwen2 and Qwen3 decoders in bf16 without adapters, on Linux with a C++ compiler and a
    processor with AMX tiles.
    """
    decoder: Any = model.get_decoder() if hasattr(model, "get_decoder") else None
    layers = getattr(decoder, "layers", None)
    if "amx_bf16" not in cpu_flags() or not layers or any(type(x).__name__ not in LAYERS for x in layers):
        return None
    config = model.config
    attention = layers[0].self_attn
    group = config.num_attention_heads // config.num_key_value_heads
    size = keys[0].shape[3]
    widths = (config.hidden_size, config.intermediate_size, config.num_key_value_heads * size)
    plain = (
        config.hidden_act == "silu"
        and not getattr(config, "mlp_bias", False)
        and all(p.dtype == torch.bfloat16 and p.device.type == "cpu" and p.is_contiguous() for p in model.parameters())
        and all(type(m) is nn.Linear for m in (attention.q_proj, attention.o_proj, layers[0].mlp.gate_proj))
        and all(width % 32 == 0 for width in widths)
        and len(model.get_output_embeddings().weight) % 16 == 0  # type: ignore[union-attr, arg-type]
        and size % 32 == 0
        and group <= 8
    )
    if not plain:
        return None
    kernel = library("decoder.cpp", f"SIZE={size}", f"GROUP={group}")
    return DecodeKernel(kernel, model, keys, values) if kernel is not None and kernel.request_tiles() == 0 else None


def _layer(layer: Any, keys: Tensor, values: Tensor) -> list[int]:
    """``struct Layer`` of decoder.cpp."""
    a, mlp = layer.self_attn, layer.mlp
    projections = (a.q_proj, a.k_proj, a.v_proj)
    tensors = [
        layer.input_layernorm.weight,
        *(p.weight for p in projections),
        *(p.bias for p in projections),
        *(getattr(getattr(a, name, None), "weight", None) for name in ("q_norm", "k_norm")),
        a.o_proj.weight,
        a.o_proj.bias,
        layer.post_attention_layernorm.weight,
        *(p.weight for p in (mlp.gate_proj, mlp.up_proj, mlp.down_proj)),
        keys,
        values,
    ]
    # Qwen's windows differ between layers; Mistral has one for all.
    window = a.sliding_window if hasattr(a, "sliding_window") else getattr(a.config, "sliding_window", None)
    return [0 if t is None else t.data_ptr() for t in tensors] + [window or 0]


def _address(x: Tensor) -> ctypes.c_void_p:
    return ctypes.c_void_p(x.data_ptr())
