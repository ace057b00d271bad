"""Small random models of the supported families, with tokenizers and chat templates of each family's kind.

Nothing is downloaded: tokenizers are trained in-process on a page of text, weights are random (seeded), and the chat
templates are written here in the style of each family, with the behaviour that matters: a default system text
(smollm-like, qwen2), stripping (llama3, gemma), dropping earlier thinking (qwen3), no system role (gemma2), a system
text folded by the template (gemma3), no newline between turns and pad == eos (mistral), pad == eos (smollm-like).
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from agentrl.models import load
from agentrl.models.tiny import TEXT

FAMILIES = ("smollm-like", "llama3", "qwen2", "qwen3", "gemma2", "gemma3", "mistral")
TOKENIZERS = (*FAMILIES, "unigram")
"""``unigram`` is a tokenizer only: a sentencepiece Unigram model whose vocabulary holds its control tokens."""

CHATML = (
    "{%- for m in messages -%}"
    "{%- if loop.first and m.role != 'system' -%}"
    "{{ '<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n' }}{%- endif -%}"
    "{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>' + '\n' }}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\n' }}{%- endif -%}"
)
LLAMA3 = (
    "{{ bos_token }}{%- for m in messages -%}"
    "{{ '<|start_header_id|>' + m.role + '<|end_header_id|>\n\n' + (m.content | trim) + '<|eot_id|>' }}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{%- endif -%}"
)
QWEN3 = (
    "{%- for m in messages -%}"
    "{%- set text = m.content -%}"
    "{%- if m.role == 'assistant' and not loop.last and '</think>' in text -%}"
    "{%- set text = text.split('</think>')[-1].lstrip('\n') -%}"
    "{%- endif -%}"
    "{{ '<|im_start|>' + m.role + '\n' + text + '<|im_end|>\n' }}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\n' }}"
    "{%- if enable_thinking is defined and not enable_thinking -%}{{ '<think>\n\n</think>\n\n' }}{%- endif -%}"
    "{%- endif -%}"
)
GEMMA2 = (
    "{{ bos_token }}{%- if messages[0].role == 'system' -%}{{ raise_exception('no system role here') }}{%- endif -%}"
    "{%- for m in messages -%}"
    "{%- if (m.role == 'user') != (loop.index0 % 2 == 0) -%}{{ raise_exception('roles must alternate') }}{%- endif -%}"
    "{{ '<start_of_turn>' + ('model' if m.role == 'assistant' else m.role) + '\n' "
    " + (m.content | trim) + '<end_of_turn>\n' }}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ '<start_of_turn>model\n' }}{%- endif -%}"
)
GEMMA3 = (
    "{{ bos_token }}{%- set ns = namespace(first='') -%}"
    "{%- if messages[0].role == 'system' -%}{%- set ns.first = messages[0].content + '\n\n' -%}"
    "{%- set rest = messages[1:] -%}{%- else -%}{%- set rest = messages -%}{%- endif -%}"
    "{%- for m in rest -%}"
    "{{ '<start_of_turn>' + ('model' if m.role == 'assistant' else m.role) + '\n' + (ns.first if loop.first else '')"
    " + (m.content | trim) + '<end_of_turn>\n' }}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ '<start_of_turn>model\n' }}{%- endif -%}"
)
MISTRAL = (
    "{{ bos_token }}{%- set ns = namespace(system='') -%}"
    "{%- for m in messages -%}"
    "{%- if m.role == 'system' -%}{%- set ns.system = m.content + '\n\n' -%}"
    "{%- elif m.role == 'user' -%}{{ '[INST] ' + ns.system + m.content + ' [/INST]' }}{%- set ns.system = '' -%}"
    "{%- else -%}{{ ' ' + m.content + eos_token }}{%- endif -%}"
    "{%- endfor -%}"
)


def build_family(name: str, folder: Path) -> Path:
    """Save a random two-layer model of the family and its tokenizer as a Hugging Face folder; returns `folder`."""
    tokenizer = build_tokenizer(name)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(FAMILIES.index(name))
        model = _model(name, tokenizer)
        load.save_model(model, tokenizer, folder)
    return folder


def _model(name: str, tokenizer: PreTrainedTokenizerFast) -> PreTrainedModel:
    size = len(tokenizer)
    common: dict = {
        "vocab_size": size if name != "qwen2" else size + (-size) % 128,  # Qwen pads its embedding
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 2048,
        "initializer_range": 0.1,
        "tie_word_embeddings": name not in ("llama3", "mistral"),
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    if name == "smollm-like":
        return LlamaForCausalLM(LlamaConfig(**common))
    if name == "llama3":
        rope = {
            "rope_type": "llama3",
            "rope_theta": 500000.0,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 256,
        }
        return LlamaForCausalLM(LlamaConfig(**common, rope_parameters=rope))
    if name == "qwen2":
        return Qwen2ForCausalLM(Qwen2Config(**common))
    if name == "qwen3":
        return Qwen3ForCausalLM(Qwen3Config(**common, head_dim=16))
    if name == "gemma2":
        soft = {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0}
        return Gemma2ForCausalLM(
            Gemma2Config(**common, **soft, head_dim=16, query_pre_attn_scalar=16, sliding_window=16)
        )
    if name == "gemma3":
        kinds = ["sliding_attention", "full_attention"]
        more = {"head_dim": 16, "query_pre_attn_scalar": 16, "sliding_window": 16, "layer_types": kinds}
        return Gemma3ForCausalLM(Gemma3TextConfig(**common, **more))
    if name == "mistral":
        return MistralForCausalLM(MistralConfig(**common, head_dim=16, sliding_window=24))
    raise ValueError(f"no family {name}; there are {', '.join(FAMILIES)}")


def build_tokenizer(name: str) -> PreTrainedTokenizerFast:
    """The tokenizer of a family (or ``unigram``), with its chat template."""
    if name == "smollm-like":
        backend = _byte_level(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
        backend.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        )
        names = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>", "pad_token": "<|im_end|>"}
        return _fast(backend, CHATML, unk_token="<|endoftext|>", **names)
    if name == "llama3":
        special = [
            "<|begin_of_text|>",
            "<|end_of_text|>",
            "<|start_header_id|>",
            "<|end_header_id|>",
            "<|eot_id|>",
            "<|pad|>",
        ]
        backend = _byte_level(special, ignore_merges=True)
        backend.post_processor = processors.TemplateProcessing(
            single="<|begin_of_text|> $A",
            special_tokens=[("<|begin_of_text|>", backend.token_to_id("<|begin_of_text|>"))],
        )
        names = {"bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>", "pad_token": "<|pad|>"}
        return _fast(backend, LLAMA3, **names)
    if name in ("qwen2", "qwen3"):
        backend = _byte_level(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
        backend.normalizer = normalizers.NFC()
        extra = ["<tool_call>", "</tool_call>"] + (["<think>", "</think>"] if name == "qwen3" else [])
        backend.add_tokens([AddedToken(t, special=False, normalized=False) for t in extra])
        names = {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
        return _fast(backend, CHATML if name == "qwen2" else QWEN3, **names)
    if name in ("gemma2", "gemma3"):
        backend = _pieces(
            ["<pad>", "<eos>", "<bos>", "<unk>", "<start_of_turn>", "<end_of_turn>"], ["\n\n", "\n\n\n", "</s>"]
        )
        backend.normalizer = normalizers.Replace(" ", "▁")
        backend.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
        backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
        names = {"bos_token": "<bos>", "eos_token": "<eos>", "pad_token": "<pad>", "unk_token": "<unk>"}
        return _fast(backend, GEMMA2 if name == "gemma2" else GEMMA3, **names)
    names = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "</s>", "unk_token": "<unk>"}
    if name == "mistral":
        backend = _pieces(["<unk>", "<s>", "</s>"], [])
        backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
        backend.decoder = decoders.Sequence(
            [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
        )
        return _fast(backend, MISTRAL, **names)
    if name == "unigram":
        return _fast(_unigram(["<unk>", "<s>", "</s>"]), MISTRAL, **names)
    raise ValueError(f"no tokenizer {name}; there are {', '.join(TOKENIZERS)}")


def _fast(backend: Tokenizer, template: str, **names: str) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(tokenizer_object=backend, chat_template=template, **names)


def _byte_level(special: list[str], ignore_merges: bool = False) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    words = Regex(r"'[a-z]+|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(words, "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        special_tokens=special,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXT.splitlines(keepends=True), trainer)
    return tokenizer


_BYTES = [f"<0x{n:02X}>" for n in range(256)]


def _pieces(special: list[str], added: list[str]) -> Tokenizer:
    """Sentencepiece-like BPE with byte fallback: spaces written as ▁, all bytes as <0xXX>."""
    trained = Tokenizer(models.BPE())
    trained.normalizer = normalizers.Replace(" ", "▁")
    trained.pre_tokenizer = pre_tokenizers.Split(Regex(r"▁+"), "merged_with_next")
    trainer = trainers.BpeTrainer(vocab_size=300, show_progress=False)
    trained.train_from_iterator(TEXT.splitlines(keepends=True), trainer)
    model = json.loads(trained.to_str())["model"]
    words = sorted(model["vocab"], key=model["vocab"].get)
    everything = [*special, *added, *_BYTES, *(w for w in words if w not in added)]
    merges = [tuple(m) for m in model["merges"]]
    bpe = models.BPE(
        vocab={w: i for i, w in enumerate(everything)},
        merges=merges,
        unk_token="<unk>",
        fuse_unk=True,
        byte_fallback=True,
    )
    tokenizer = Tokenizer(bpe)
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in special])
    tokenizer.add_tokens([AddedToken(t, special=False, normalized=False) for t in added])
    return tokenizer


def _unigram(special: list[str]) -> Tokenizer:
    trained = Tokenizer(models.Unigram())
    trained.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    trainer = trainers.UnigramTrainer(vocab_size=300, show_progress=False)
    trained.train_from_iterator(TEXT.splitlines(keepends=True), trainer)
    words = [(w, s) for w, s in json.loads(trained.to_str())["model"]["vocab"] if w not in special]
    vocabulary = [(t, 0.0) for t in special] + [(b, -20.0) for b in _BYTES] + words
    tokenizer = Tokenizer(models.Unigram(vocabulary, special.index("<unk>"), byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    tokenizer.decoder = decoders.Sequence(
        [decoders.ByteFallback(), decoders.Metaspace(prepend_scheme="always"), decoders.Fuse()]
    )
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in special])
    return tokenizer
