"""The compiled decode step against the model's own forward."""

from __future__ import annotations

import pytest
import torch
from transformers import LlamaConfig, MistralConfig, PreTrainedModel, Qwen2Config, Qwen3Config
from transformers.models.auto import AutoModelForCausalLM

from agentrl.kernels import decoder
from agentrl.rollout.attention import Chunk, DecodeLayout, KVCache, PrefillLayout, head_logits, hidden_states

SIZES = {
    "vocab_size": 160,
    "hidden_size": 96,
    "intermediate_size": 160,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "tie_word_embeddings": True,
}
CONFIGS = {
    "llama": LlamaConfig(**SIZES),
    "llama, plain heads, biases": LlamaConfig(**{**SIZES, "num_key_value_heads": 6, "attention_bias": True}),
    "qwen2": Qwen2Config(**{**SIZES, "hidden_size": 192, "head_dim": 32}),
    "qwen3": Qwen3Config(**{**SIZES, "head_dim": 64, "tie_word_embeddings": False}),
    "mistral": MistralConfig(**{**SIZES, "sliding_window": 24}),
}


pytestmark = pytest.mark.usefixtures("compiling")


def make_model(name: str, dtype: torch.dtype) -> PreTrainedModel:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(CONFIGS[name])
    with torch.no_grad():
        for key, p in model.named_parameters():
            if "norm" in key or "bias" in key:  # not all ones and zeros
                p.add_(torch.randn_like(p) * 0.2)
    model.set_attn_implementation("agentrl")
    return model.to(dtype).eval()


def filled(model: PreTrainedModel, rows: list[torch.Tensor]) -> KVCache:
    """A cache whose slot i holds all but the last token of row i."""
    cache = KVCache(model, len(rows), 80)
    for slot, row in enumerate(rows):
        n = len(row) - 1
        layout = PrefillLayout(cache, [Chunk(slot, 0, n, 0)])
        hidden_states(model, row[:-1], torch.arange(n), layout)
    return cache


def random_rows(n: int) -> list[torch.Tensor]:
    g = torch.Generator().manual_seed(n)
    return [torch.randint(0, 160, (2 + (7 * i) % 60,), generator=g) for i in range(n)]


@pytest.mark.parametrize("n", [1, 5, 16, 17, 70])
@pytest.mark.parametrize("name", CONFIGS)
@torch.inference_mode()
def test_logits_and_cache_equal_the_models_own(name, n):
    """As near to the fp32 model as PyTorch's bf16 kernels are, for full tiles, part of one, and more than four."""
    rows = random_rows(n)
    model, exact = make_model(name, torch.bfloat16), make_model(name, torch.float32)
    exact.load_state_dict(model.state_dict())
    ids, lengths = torch.stack([r[-1] for r in rows]), torch.tensor([len(r) - 1 for r in rows])
    found = []
    for m in (model, exact):
        cache = filled(m, rows)
        found.append(head_logits(m, hidden_states(m, ids, lengths, DecodeLayout(cache, lengths))))
    reference, truth = found
    expected, cache = cache, filled(model, rows)
    kernel = decoder.build(model, cache.k, cache.v)
    assert kernel is not None
    logits = kernel(ids, lengths)
    error, usual = (logits - truth).abs(), (reference - truth).abs()
    assert error.max() < 2 * usual.max() + 1e-3
    assert error.mean() < 1.2 * usual.mean() + 1e-4
    for own, other in zip((*cache.k, *cache.v), (*expected.k, *expected.v), strict=True):
        for slot, length in enumerate(lengths.tolist()):
            torch.testing.assert_close(own[slot, :, length].float(), other[slot, :, length], atol=0.06, rtol=0.06)
            assert not own[slot, :, length + 1 :].any()


@torch.inference_mode()
def test_a_row_does_not_depend_on_the_others():
    model, rows = make_model("llama", torch.bfloat16), random_rows(40)
    ids, lengths = torch.stack([r[-1] for r in rows]), torch.tensor([len(r) - 1 for r in rows])
    cache = filled(model, rows)
    kernel = decoder.build(model, cache.k, cache.v)
    assert kernel is not None
    together = kernel(ids, lengths)
    for n in (1, 3, 20):
        assert torch.equal(kernel(ids[:n], lengths[:n]), together[:n])


def test_other_models_go_on_with_pytorch():
    fp32 = make_model("llama", torch.float32)
    cache = KVCache(fp32, 2, 16)
    assert decoder.build(fp32, cache.k, cache.v) is None
    bf16 = make_model("llama", torch.bfloat16)
    cache = KVCache(bf16, 2, 16)
    bf16.model.layers[0].mlp.act_fn = torch.nn.GELU()
    bf16.config.hidden_act = "gelu"
    assert decoder.build(bf16, cache.k, cache.v) is None
