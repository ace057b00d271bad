"""The compiled decode step against the model's own forward."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from rollout.kits import load_kit, make_engine, make_jobs, play
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


def alone(lengths: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Slots that share nothing."""
    return torch.arange(len(lengths)), torch.zeros_like(lengths)


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
    logits = kernel(ids, lengths, *alone(lengths))
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
    together = kernel(ids, lengths, *alone(lengths))
    for n in (1, 3, 20):
        assert torch.equal(kernel(ids[:n], lengths[:n], *alone(lengths[:n])), together[:n])


@pytest.mark.parametrize("name", ["llama", "mistral"])
@torch.inference_mode()
def test_tokens_read_from_another_slot_change_no_bit(name):
    """Two groups with a prompt each, longer and shorter than a block of keys; their own copies of it are spoilt."""
    model, g = make_model(name, torch.bfloat16), torch.Generator().manual_seed(0)
    prompts = [torch.randint(0, 160, (n,), generator=g) for n in (70, 66)]
    ends = [torch.randint(0, 160, (n,), generator=g) for n in (1, 4, 2, 9, 6)]
    rows = [torch.cat([prompts[i % 2], end]) for i, end in enumerate(ends)]
    cache = filled(model, rows)
    ids, lengths = torch.stack([r[-1] for r in rows]), torch.tensor([len(r) - 1 for r in rows])
    kernel = decoder.build(model, cache.k, cache.v)
    assert kernel is not None
    expected = kernel(ids, lengths, *alone(lengths))
    leaders, shared = torch.tensor([0, 1, 0, 1, 0]), torch.tensor([70, 66, 70, 66, 40])
    if name == "llama":  # blocks of a window begin anywhere, so that any of them may be a slot's own
        for x in (*cache.k, *cache.v):
            x[2:4, :, :64] = 7.0
    assert torch.equal(kernel(ids, lengths, leaders, shared), expected)


def test_an_engine_that_reads_shared_prompts_once_samples_the_same(tmp_path, monkeypatch):
    """Slots free up and are filled again while others of the group go on; one slot alone shares nothing."""
    kit = load_kit("tiny", tmp_path)
    torch.manual_seed(0)
    config = LlamaConfig(**{**SIZES, "vocab_size": (kit.vocabulary + 15) // 16 * 16})
    kit.model = AutoModelForCausalLM.from_config(config).bfloat16().eval()
    kit.model.set_attn_implementation("agentrl")
    jobs = make_jobs(kit, groups=2, members=5, turns=2, limit=8)
    jobs = [replace(job, prompt=job.prompt * 5, limit=3 + i % 5) for i, job in enumerate(jobs)]
    shared: list[int] = []
    call = decoder.DecodeKernel.__call__

    def watched(self, ids, lengths, leaders, common):
        shared.append(int(((leaders != torch.arange(len(ids))) & (common >= 64)).sum()))
        return call(self, ids, lengths, leaders, common)

    monkeypatch.setattr(decoder.DecodeKernel, "__call__", watched)
    found = [play(make_engine(kit, slots), jobs) for slots in (4, 1)]
    assert max(shared) == 3
    for key, row in found[0].items():
        assert row.ids == found[1][key].ids


def test_other_models_go_on_with_pytorch():
    fp32 = make_model("llama", torch.float32)
    cache = KVCache(fp32, 2, 16)
    assert decoder.build(fp32, cache.k, cache.v) is None
    bf16 = make_model("llama", torch.bfloat16)
    cache = KVCache(bf16, 2, 16)
    bf16.model.layers[0].mlp.act_fn = torch.nn.GELU()
    bf16.config.hidden_act = "gelu"
    assert decoder.build(bf16, cache.k, cache.v) is None
