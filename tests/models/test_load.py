"""Finding, loading and saving models; what the user is told when something is missing."""

from __future__ import annotations

import json
import threading

import pytest
import torch
from models.families import FAMILIES, build_family
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from agentrl.config.schema import LoraConfig, ModelConfig
from agentrl.errors import UserError
from agentrl.models import load, tiny
from agentrl.models.cache import build_once
from agentrl.models.template import Renderer

FP32 = torch.float32


@pytest.fixture
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("AGENTRL_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("AGENTRL_MODELS", raising=False)
    return tmp_path


def logits(model, n: int = 24) -> torch.Tensor:
    with torch.no_grad():
        return model(torch.arange(5, 5 + n)[None]).logits[0].float()


def test_tiny_is_the_same_every_time(own_cache, monkeypatch):
    first = load.resolve(ModelConfig(name="tiny"))
    monkeypatch.setenv("AGENTRL_CACHE", str(own_cache / "other"))
    torch.manual_seed(99)
    second = load.resolve(ModelConfig(name="tiny"))
    assert first != second
    a, b = load.load_model(first, FP32), load.load_model(second, FP32)
    assert all(torch.equal(x, b.state_dict()[k]) for k, x in a.state_dict().items())
    assert load.load_tokenizer(first).get_vocab() == load.load_tokenizer(second).get_vocab()
    assert 512 <= a.config.vocab_size <= 1024 and a.config.num_hidden_layers == 2
    assert a.lm_head.weight is a.model.embed_tokens.weight
    assert load.load_tokenizer(first).pad_token_id != load.load_tokenizer(first).eos_token_id


def test_tiny_can_write_any_text(own_cache):
    r = Renderer(load.load_tokenizer(tiny.folder()))
    text = "".join(map(chr, range(1, 400))) + "🙂"
    assert r.decode(r.encode(text)) == text


def test_local_folders_come_first(own_cache, monkeypatch):
    build_family("qwen2", own_cache / "models" / "mine")
    assert load.resolve(ModelConfig(name="mine")).endswith("models/mine")
    monkeypatch.setenv("AGENTRL_MODELS", str(own_cache / "elsewhere"))
    build_family("llama3", own_cache / "elsewhere" / "smollm2-135m")
    assert load.resolve(ModelConfig(name="smollm2-135m")).endswith("elsewhere/smollm2-135m")
    assert load.resolve(ModelConfig(path="models/mine")).endswith("models/mine")


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda p: ModelConfig(name="smolm2-135m"), ["model.name=smolm2-135m", "did you mean 'smollm2-135m'?"]),
        (lambda p: ModelConfig(path=str(p / "none")), ["model.path=", "no such folder"]),
        (lambda p: ModelConfig(path=str(p / "a-file")), ["is a file"]),
        (lambda p: ModelConfig(path=str(p / "empty")), ["is empty"]),
        (lambda p: ModelConfig(path=str(p / "run")), ["no config.json", "did you mean", "step-000005"]),
        (lambda p: ModelConfig(path=str(p / "no-weights")), ["no weights"]),
        (lambda p: ModelConfig(path="somebody/no-such-model"), ["model.path=somebody/no-such-model", "HF_HUB_OFFLINE"]),
    ],
)
def test_what_the_user_is_told(own_cache, monkeypatch, make, words):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    (own_cache / "a-file").write_text("")
    for folder in ("empty", "run/step-000005", "no-weights"):
        (own_cache / folder).mkdir(parents=True)
    (own_cache / "run" / "step-000005" / "config.json").write_text("{}")
    (own_cache / "no-weights" / "config.json").write_text("{}")
    with pytest.raises(UserError) as caught:
        load.resolve(make(own_cache))
    message = str(caught.value)
    assert all(w in message for w in words) and "\n" not in message


def test_check_checkpoint(own_cache):
    good = build_family("qwen2", own_cache / "step-000010")
    load.check_checkpoint(good)
    for bad, word in ((own_cache / "step-000011", "did you mean"), (own_cache, "config.json")):
        with pytest.raises(UserError, match=word):
            load.check_checkpoint(bad)
    (good / "tokenizer.json").unlink()
    with pytest.raises(UserError, match="no tokenizer"):
        load.check_checkpoint(good)


def test_broken_files_are_one_line(own_cache):
    folder = build_family("qwen2", own_cache / "m")
    (folder / "config.json").write_text(json.dumps({"model_type": "nothing-known"}))
    with pytest.raises(UserError, match="does not load") as caught:
        load.load_model(folder, FP32)
    assert "\n" not in str(caught.value)
    folder = build_family("qwen2", own_cache / "n")
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(UserError, match="does not load"):
        load.load_model(folder, FP32)


def test_missing_weights_are_never_random_ones(own_cache):
    folder = build_family("llama3", own_cache / "m")
    weights = load_file(folder / "model.safetensors")
    del weights["lm_head.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(UserError, match=r"1 weights are missing, among them lm_head.weight"):
        load.load_model(folder, FP32)
    (folder / "tokenizer.json").write_text("{")
    with pytest.raises(UserError, match="tokenizer does not load"):
        load.load_tokenizer(folder)


def test_compute_dtype(monkeypatch):
    assert load.compute_dtype("fp32") is FP32 and load.compute_dtype("bf16") is torch.bfloat16
    monkeypatch.setattr(load, "_native_bf16", lambda: False)
    assert load.compute_dtype("auto") is FP32
    with pytest.raises(UserError, match="did you mean 'bf16'"):
        load.compute_dtype("bf61")


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("dtype", [FP32, torch.bfloat16])
def test_families_load_and_save_the_same(name, dtype, tmp_path):
    folder = build_family(name, tmp_path / "a")
    tokenizer = load.load_tokenizer(folder)
    model = load.load_model(folder, dtype)
    assert not model.training and {p.dtype for p in model.parameters()} == {dtype}
    tied = model.lm_head.weight is model.get_input_embeddings().weight
    assert tied == model.config.tie_word_embeddings
    load.save_model(model, tokenizer, tmp_path / "b")
    load.check_checkpoint(tmp_path / "b")
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "b")
    assert torch.equal(logits(model), logits(again.eval()))
    assert (again.lm_head.weight is again.get_input_embeddings().weight) == tied
    other = AutoTokenizer.from_pretrained(tmp_path / "b")
    message = [{"role": "user", "content": "Who?"}]
    assert Renderer(other).prompt(message) == Renderer(tokenizer).prompt(message)


def test_sampling_settings_of_a_checkpoint_do_not_leak(tmp_path):
    folder = build_family("qwen2", tmp_path / "a")
    settings = {"top_k": 20, "top_p": 0.8, "temperature": 0.7, "do_sample": True, "forced_bos_token_id": 3}
    (folder / "generation_config.json").write_text(json.dumps({**settings, "eos_token_id": [2, 0]}))
    model = load.load_model(folder, FP32)
    assert model.generation_config.eos_token_id == [2, 0]
    load.save_model(model, load.load_tokenizer(folder), tmp_path / "b")
    saved = json.loads((tmp_path / "b" / "generation_config.json").read_text())
    assert not set(settings) & {k for k, v in saved.items() if v is not None}


def test_dropout_is_off_even_in_train_mode(tmp_path):
    folder = build_family("llama3", tmp_path / "a")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "attention_dropout": 0.5}))
    model = load.load_model(folder, FP32).train()
    assert torch.equal(logits(model), logits(model))


def test_a_tokenizer_without_template_or_pad_gets_plain_turns(tmp_path):
    folder = build_family("llama3", tmp_path / "a")
    (folder / "chat_template.jinja").unlink()
    config = json.loads((folder / "tokenizer_config.json").read_text())
    config.pop("pad_token")
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    with pytest.warns(UserWarning, match="no chat template"):
        tokenizer = load.load_tokenizer(folder)
    assert tokenizer.pad_token_id == tokenizer.eos_token_id
    r = Renderer(tokenizer)
    prompt = r.prompt([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Who?"}])
    assert r.decode(prompt) == "<|begin_of_text|>System: Be brief.\n\nUser: Who?\n\nAssistant:"
    assert r.end_of_turn_id == tokenizer.eos_token_id
    load.save_model(load.load_model(folder, FP32), tokenizer, tmp_path / "b")
    assert load.load_tokenizer(tmp_path / "b").chat_template == tokenizer.chat_template


def trained_lora(folder, seed: int = 0):
    model = load.load_model(folder, FP32, LoraConfig(enabled=True, rank=4, alpha=8))
    torch.manual_seed(seed)
    optimiser = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=1.0)
    for _ in range(3):
        ids = torch.arange(5, 29)[None]
        model(input_ids=ids, labels=ids).loss.backward()
        optimiser.step()
        optimiser.zero_grad()
    return model


@pytest.mark.parametrize("name", ["qwen3", "gemma2", "smollm-like"])
def test_lora_saves_merged_weights_and_goes_on_from_its_adapters(name, tmp_path):
    folder = build_family(name, tmp_path / "base")
    base = load.load_model(folder, FP32)
    model = trained_lora(folder)
    names = [n for n, p in model.named_parameters() if p.requires_grad]
    assert names and all("lora_" in n for n in names)
    before = {k: v.clone() for k, v in model.state_dict().items()}
    load.save_model(model, load.load_tokenizer(folder), tmp_path / "ckpt")
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    load.check_checkpoint(tmp_path / "ckpt")

    merged = load.load_model(tmp_path / "ckpt", FP32)
    assert not torch.allclose(logits(merged), logits(base), atol=1e-3)
    torch.testing.assert_close(logits(merged), logits(model), atol=1e-4, rtol=1e-4)
    assert set(merged.state_dict()) == set(base.state_dict())

    on = load.load_model(tmp_path / "ckpt", FP32, LoraConfig(enabled=True, rank=4, alpha=8))
    assert torch.equal(logits(on), logits(model))
    assert [n for n, p in on.named_parameters() if p.requires_grad] == names


def test_lora_errors(tmp_path):
    folder = build_family("qwen2", tmp_path / "base")
    with pytest.raises(UserError, match="targets=nothing_here"):
        load.load_model(folder, FP32, LoraConfig(enabled=True, targets="nothing_here"))
    load.save_model(trained_lora(folder), load.load_tokenizer(folder), tmp_path / "ckpt")
    folder.rename(tmp_path / "moved")
    with pytest.raises(UserError, match="base model of these adapters"):
        load.load_model(tmp_path / "ckpt", FP32, LoraConfig(enabled=True))
    load.load_model(tmp_path / "ckpt", FP32)  # the merged weights stand alone


def test_a_cached_folder_appears_whole(own_cache):
    seen = []

    def slow(folder):
        (folder / "weights").write_text("x")
        seen.append(folder)
        barrier.wait(timeout=10)
        (folder / "config.json").write_text("{}")

    barrier = threading.Barrier(2)
    threads = [threading.Thread(target=build_once, args=("m", slow)) for _ in range(2)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(set(seen)) == 2
    target = own_cache / "cache" / "models" / "m"
    assert sorted(p.name for p in target.parent.iterdir()) == ["m"]
    assert sorted(p.name for p in target.iterdir()) == ["config.json", "weights"]

    def broken(folder):
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        build_once("n", broken)
    assert sorted(p.name for p in target.parent.iterdir()) == ["m"]
