"""The decode step of Llama-like models in one call of compiled code."""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from agentrl.kernels.build import address, tile_library
from agentrl.kernels.families import known_layers, shape, weights, window


class _Shape(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_int64) for name in ("hidden", "middle", "heads", "capacity")),
        *((name, ctypes.c_float) for name in ("eps", "scale")),
    ]


class DecodeKernel:
    """One token for each of the first n slots of a KV cache: ids and lengths int64[n] → logits fp32 [n, V].

    The first ``shared[i]`` tokens of slot i may be read from slot ``leaders[i]``, where they are the same (int64[n]
    both): that saves reads, and changes no bit.

    The same as the model's own forward up to rounding (the reference in the tests), two to three times as fast. Make it
    with ``build``, which says None where it does not apply.
    """

    def __init__(self, kernel: ctypes.CDLL, model: PreTrainedModel, keys: list[Tensor], values: list[Tensor]):
        self.kernel = kernel
        self.decoder: Any = model.get_decoder()
        self.head: Tensor = model.get_output_embeddings().weight  # type: ignore[union-attr, assignment]
        config, s = model.config, shape(self.decoder.layers[0])
        self.shape = _Shape(
            hidden=config.hidden_size,
            middle=config.intermediate_size,
            heads=s.heads,
            capacity=keys[0].shape[2],
            eps=s.eps,
            scale=s.scale,
        )
        kernel.scratch.restype = ctypes.c_int64
        fields: list[int] = []
        for layer, k, v in zip(self.decoder.layers, keys, values, strict=True):
            fields += [0 if t is None else t.data_ptr() for t in (*weights(layer), k, v)] + [window(layer) or 0]
        self.layers = (ctypes.c_int64 * len(fields))(*fields)
        self.kept = (keys, values)  # the addresses above stay theirs

    def __call__(self, ids: Tensor, lengths: Tensor, leaders: Tensor, shared: Tensor) -> Tensor:
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
            *map(address, (self.decoder.norm.weight, hidden, cos, sin, lengths, leaders, shared)),
            ctypes.c_int64(n),
            address(memory),
        )
        logits = torch.empty(n, len(self.head), dtype=torch.bfloat16)
        sizes = (ctypes.c_int64(x) for x in (n, len(self.head), hidden.shape[1]))
        self.kernel.head(*map(address, (hidden, self.head, logits)), *sizes, address(memory))
        return logits.float()


def build(model: PreTrainedModel, keys: list[Tensor], values: list[Tensor]) -> DecodeKernel | None:
    """The kernel for a model and its KV cache (per layer [slots, K, capacity, D]), or None where it does not apply.

    It applies to Llama, Mistral, Qwen2 and Qwen3 decoders in bf16 without adapters, on Linux with a C++ compiler and a
    processor with AMX or AVX-512 bf16.
    """
    layers = known_layers(model)
    if layers is None or len(model.get_output_embeddings().weight) % 16:  # type: ignore[union-attr, arg-type]
        return None
    s = shape(layers[0])
    kernel = tile_library("decoder.cpp", f"SIZE={s.size}", f"GROUP={s.group}")
    return DecodeKernel(kernel, model, keys, values) if kernel is not None else None
