"""``model=tiny``: a randomly initialised two-layer Llama with its own small tokenizer, the same on every machine.

It knows nothing; it is for tests and for trying an environment in seconds. Byte-level BPE over all 256 bytes, so any
text can be written; ChatML-like markup with its own pad token.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from agentrl.models.cache import build_once

VOCABULARY = 768
SEED = 0
SPECIAL = ("<|pad|>", "<|im_start|>", "<|im_end|>")

CHAT_TEMPLATE = (
    "{%- for message in messages -%}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}{%- endif -%}"
)

TEXT = """\
You are given a question. Think about it first, then search for what you do not know, and give the answer at the end.
<think> I need to find who wrote the book. </think> <search> who wrote the book </search>
<information> Doc 1 (Title: The River) The River is a novel of the author who was born in the old city. </information>
<think> The information says where the author was born. Now I can answer. </think> <answer> the old city </answer>
Answer the given question. You must reason inside <think> and </think> every time you get new information. If you lack
knowledge, call a search engine by <search> query </search> and it will return the top results between <information>
and </information>. You can search as many times as you want. When no more knowledge is needed, write the answer
inside <answer> and </answer>, without explanation. For example, <answer> Beijing </answer>. Question: which company
was founded first? The company was founded in 1987 by two brothers, and moved to the north of the country in 1994.
My previous action is invalid. If I want to search, I should put the query between <search> and </search>. If I want
to give the final answer, I should put the answer between <answer> and </answer>. Let me try again.
def solve(numbers): return sum(n * n for n in numbers if n % 2 == 0)  # 0 1 2 3 4 5 6 7 8 9 10 12 20 100
There are three rooms: a kitchen, a hall and a garden. The key is on the table; the door is locked. Go north, take the
key, open the door, look around, put it down. What is the name of the person that they met there, and when was it?
"""


def folder() -> Path:
    """The cached Hugging Face folder of the tiny model, built on first use (well under a second)."""
    key = f"{TEXT}{CHAT_TEMPLATE}{VOCABULARY}{SEED}{SPECIAL}:2"
    digest = hashlib.sha256(key.encode()).hexdigest()[:8]
    return build_once(f"tiny-{digest}", _build)


def _build(target: Path) -> None:
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    from agentrl.models.load import plain_generation_config, quiet

    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=list(SPECIAL),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    backend.train_from_iterator(TEXT.splitlines(keepends=True), trainer)
    pad, start, end = SPECIAL
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token=start, eos_token=end, pad_token=pad, chat_template=CHAT_TEMPLATE
    )
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=8192,
        tie_word_embeddings=True,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng(devices=[]), quiet():
        torch.manual_seed(SEED)
        model = LlamaForCausalLM(config).float()
        model.generation_config = plain_generation_config(model)
        model.save_pretrained(target)
    tokenizer.model_max_length = config.max_position_embeddings
    tokenizer.save_pretrained(target)
