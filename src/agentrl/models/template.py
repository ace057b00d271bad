"""Conversations as token ids that only ever grow.

The prompt is rendered once by the tokenizer's own chat template. What follows an assistant turn is a *delta*: the ids
that the template puts between an assistant message and the next one, found by rendering a conversation of sentinel
words and reading what stands around them. So whatever a template does to whole conversations (adding a system
text, stripping, dropping earlier thinking), the ids already in a row stay as they are.

Text never becomes a control token, wherever it comes from: it is encoded by copies of the tokenizer that do not know
them. Only the template's own markup and the policy's sampling put such tokens into a row.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterable, Sequence
from typing import Any

from tokenizers import Encoding, Tokenizer
from transformers import PreTrainedTokenizerBase

from agentrl.envs.base import Message, Observation
from agentrl.errors import UserError
from agentrl.models.token_bytes import TokenBytes

END_MARKS = (
    "<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<end_of_turn>", "<turn|>", "<|end|>", "<|end_of_turn|>",
    "<|endoftext|>", "<|end_of_text|>", "<eos>", "</s>",
)  # fmt: skip
"""Tokens that end a message in the known families, where the tokenizer has them as added tokens."""

_WORDS = ("Sentinelalpha", "Sentinelbeta", "Sentinelgamma")


class Renderer:
    """Messages and observations as ids, for one tokenizer. Immutable after construction; safe in several threads.

    ``end_of_turn_id``: the token that closes an assistant message. ``end_ids``: all tokens that end one when sampled.
    Raises UserError when the chat template cannot render a user/assistant/user conversation.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase):
        self.tokenizer = tokenizer
        spec = json.loads(tokenizer.backend_tokenizer.to_str())
        # whitespace among the added tokens (Gemma has runs of newlines) is ordinary text
        added = {t["content"] for t in spec["added_tokens"] if t["special"] or not t["content"].isspace()}
        control = {t["content"] for t in spec["added_tokens"] if t["special"]} | (added & set(END_MARKS))
        copies: dict[str, Tokenizer] = {}
        self._whole = _copy(spec, set(), False, copies)  # as the tokenizer encodes a rendered conversation
        self._markup = _copy(spec, set(), True, copies)  # the template's own text inside a conversation
        self._plain = _copy(spec, control, True, copies)  # what people wrote for the policy
        self._foreign = _copy(spec, added, True, copies)  # what tools returned
        vocabulary = tokenizer.get_vocab()
        ids = {content: vocabulary[content] for content in added if content in vocabulary}
        # a token that the model itself writes for unknown characters may come out of plain text, and means nothing
        unknown = vocabulary.get(_unknown_token(spec) or "")
        self._control = frozenset(ids[content] for content in control if content in ids)
        self._not_plain = self._control - {unknown}
        self._not_foreign = frozenset(ids.values()) - {unknown}
        self._template = _dateless(tokenizer.chat_template)
        self._bytes = TokenBytes(tokenizer, spec)
        self._folds_system = self._must_fold_system()
        self._strips = self._template_strips()
        self.end_of_turn_id, between, tail = self._find_delta(ids)
        self._before_user, self._after_user = between, tail
        marks = {ids[mark] for mark in END_MARKS if mark in ids}
        self.end_ids: frozenset[int] = frozenset(marks | {int(tokenizer.eos_token_id), self.end_of_turn_id})

    # conversations

    def prompt(self, messages: Sequence[Message]) -> list[int]:
        """The conversation by the chat template, with its special tokens, ready for the assistant's next word.

        Message contents cannot add control tokens. Raises UserError when the template refuses the messages.
        """
        messages = self._folded(messages)
        ids = self._encode(self._whole, self._render(messages))
        words = [_word(i, messages) for i in range(len(messages))]
        bare = self._render([{**m, "content": w} for m, w in zip(messages, words, strict=True)])
        if self._count_control(ids) == self._count_control(self._encode(self._whole, bare)):
            return ids
        # a content holds the text of a control token: encode the template's text and the contents apart
        contents = {
            w: m["content"].strip() if self._strips else m["content"] for w, m in zip(words, messages, strict=True)
        }
        pieces = re.split("(" + "|".join(words) + ")", bare)
        ids = self._encode(self._whole, pieces[0])
        for piece in pieces[1:]:
            ids += self.encode(contents[piece]) if piece in contents else self._encode(self._markup, piece)
        return ids

    def observation(self, obs: Observation, ended_turn: bool, max_tokens: int) -> tuple[list[int], str]:
        """The ids to append for `obs`, and the text they decode to in a row.

        With `ended_turn` (the policy closed its message with a token of ``end_ids``) that is a user message holding
        the observation, and the start of the next assistant message; the closing token is not repeated. Without, the
        observation goes on inside the assistant's message, as bare text. ``before + text + after`` takes at most
        `max_tokens` tokens: the middle of ``text`` is cut on character boundaries and the cut is marked (only
        ``before``, the marker and ``after`` stay when even they exceed the limit).
        """
        ids = self._fit(obs, max_tokens)
        if ended_turn:
            ids = [*self._before_user, *ids, *self._after_user]
        return ids, self.decode(ids, start=False)

    def encode(self, text: str) -> list[int]:
        """`text` as the policy could have written it: no special tokens, added or honoured.

        Non-special added vocabulary such as Qwen3's ``<think>`` is used as the model would use it; in observations
        it is spelled out like everything else.
        """
        return self._checked(self._encode(self._plain, text), text, self._plain, self._not_plain)

    # text

    def decode(self, ids: Sequence[int], start: bool = True) -> str:
        """The text of `ids`, special tokens included; bytes that are no UTF-8 show as U+FFFD.

        ``start=False`` keeps the leading space that some tokenizers drop at the start of a text.
        """
        return self._bytes.decode(ids, start)

    def span(self, ids: Sequence[int], start: int, end: int) -> str:
        """The text that ``ids[start:end]`` add to the row `ids`.

        Spans that follow each other make up the whole text: a character whose bytes lie in two spans belongs to
        the one where it starts.
        """
        return self._bytes.span(ids, start, end)

    # encoding

    @staticmethod
    def _encoding(backend: Tokenizer, text: str) -> Encoding:
        if not text.isascii():
            text = text.encode("utf-8", "replace").decode("utf-8")  # lone surrogates, from a tool's JSON
        return backend.encode(text, add_special_tokens=False)

    def _encode(self, backend: Tokenizer, text: str) -> list[int]:
        return list(self._encoding(backend, text).ids)

    def _outside(self, text: str) -> list[int]:
        return self._checked(self._encode(self._foreign, text), text, self._foreign, self._not_foreign)

    def _checked(self, ids: list[int], text: str, backend: Tokenizer, forbidden: frozenset[int]) -> list[int]:
        """`ids`, with every forbidden token spelled out in smaller pieces.

        Removing a token from the list of added tokens is not enough where the model's own vocabulary has it too (a
        Unigram model finds ``</s>`` there, and BPE with ignore_merges takes any whole word).
        """
        if forbidden.isdisjoint(ids):
            return ids
        encoding = self._encoding(backend, text)
        safe: list[int] = []
        for token, (a, b) in zip(encoding.ids, encoding.offsets, strict=True):
            if token not in forbidden:
                safe.append(token)
                continue
            piece = text[a:b]
            if len(piece) > 1:
                for part in (piece[:1], piece[1:]):
                    safe += self._checked(self._encode(backend, part), part, backend, forbidden)
        return safe

    def _count_control(self, ids: Iterable[int]) -> int:
        return sum(i in self._control for i in ids)

    def _fit(self, obs: Observation, limit: int) -> list[int]:
        ids = self._outside(obs.before + obs.text + obs.after)
        if len(ids) <= limit:
            return ids
        encoding = self._encoding(self._foreign, obs.text)
        offsets, total = encoding.offsets, len(encoding.ids)
        keep = min(total, limit)
        while True:
            head, tail = (keep + 1) // 2, keep // 2
            left = offsets[head][0] if head < total else len(obs.text)
            right = max(left, offsets[total - tail - 1][1]) if tail else len(obs.text)
            marker = f" [... {total - keep} tokens cut ...] "
            ids = self._outside(obs.before + obs.text[:left] + marker + obs.text[right:] + obs.after)
            if len(ids) <= limit or keep == 0:
                return ids
            keep = max(0, keep - max(1, len(ids) - limit))

    # the chat template

    def _render(self, messages: Sequence[Message]) -> str:
        try:
            text = self.tokenizer.apply_chat_template(
                list(messages), chat_template=self._template, tokenize=False, add_generation_prompt=True
            )
        except Exception as error:  # jinja's errors and the template's own raise_exception
            roles = ", ".join(m["role"] for m in messages)
            raise UserError(f"the model's chat template refuses messages with the roles {roles}: {error}") from error
        return str(text)

    def _must_fold_system(self) -> bool:
        """Whether the template refuses or silently drops a system message."""
        system, user, _ = _WORDS
        try:
            text = self._render([{"role": "system", "content": system}, {"role": "user", "content": user}])
        except UserError:
            return True
        return system not in text

    def _folded(self, messages: Sequence[Message]) -> list[Message]:
        if not self._folds_system:
            return list(messages)
        system = "\n\n".join(m["content"] for m in messages if m["role"] == "system")
        rest = [dict(m) for m in messages if m["role"] != "system"]
        if system and rest and rest[0]["role"] == "user":
            rest[0]["content"] = f"{system}\n\n{rest[0]['content']}"
        elif system:
            rest.insert(0, {"role": "user", "content": system})
        return rest

    def _template_strips(self) -> bool:
        return f"  {_WORDS[0]}" not in self._render([{"role": "user", "content": f"  {_WORDS[0]}"}])

    def _find_delta(self, added: dict[str, int]) -> tuple[int, list[int], list[int]]:
        """(closing id, ids between it and a user's text, ids from there to the assistant's text)."""
        first, answer, second = _WORDS
        text = self._render(
            [
                {"role": "user", "content": first},
                {"role": "assistant", "content": answer},
                {"role": "user", "content": second},
            ]
        )
        match = re.search(f"{answer}(.*?){second}(.*)$", text, re.DOTALL)
        if match is None:
            raise UserError("the model's chat template loses messages of a user/assistant/user conversation")
        between, tail = match.groups()
        closing = int(self.tokenizer.eos_token_id)
        for mark in sorted(added, key=len, reverse=True):
            if between.lstrip().startswith(mark):
                closing = added[mark]
                between = between.lstrip()[len(mark) :]
                break
        return closing, self._encode(self._markup, between), self._encode(self._markup, tail)


def _copy(spec: dict[str, Any], drop: set[str], inner: bool, made: dict[str, Tokenizer]) -> Tokenizer:
    """A copy of the tokenizer without the added tokens in `drop` and without truncation or padding.

    `inner` is for text that stands inside a conversation: no space is put before it. `made` holds the copies so far:
    for most tokenizers some are the same, and reading a large vocabulary takes time.
    """
    new = dict(spec, truncation=None, padding=None)
    new["added_tokens"] = [t for t in spec["added_tokens"] if t["content"] not in drop]
    if inner:
        new["normalizer"] = _without_prefix(copy.deepcopy(spec.get("normalizer")))
        new["pre_tokenizer"] = _without_prefix(copy.deepcopy(spec.get("pre_tokenizer")))
    text = json.dumps(new)
    if text not in made:
        made[text] = Tokenizer.from_str(text)
    return made[text]


def _without_prefix(step: dict[str, Any] | None) -> dict[str, Any] | None:
    if step is None or step["type"] == "Prepend":
        return None
    if step["type"] == "Sequence":
        key = "normalizers" if "normalizers" in step else "pretokenizers"
        step[key] = [s for s in map(_without_prefix, step[key]) if s is not None]
    if step["type"] == "Metaspace":
        step["prepend_scheme"] = "never"
    if step["type"] == "ByteLevel" and "add_prefix_space" in step:
        step["add_prefix_space"] = False
    return step


def _unknown_token(spec: dict[str, Any]) -> str | None:
    """The token that the tokenizer's model writes for what it cannot spell, if it has one."""
    model = spec["model"]
    if model.get("unk_id") is not None:
        return str(model["vocab"][model["unk_id"]][0])
    return model.get("unk_token")


def _dateless(template: Any) -> Any:
    """Templates that write today's date (Llama 3.2, SmolLM3) get a fixed one, so that runs can be repeated."""
    return re.sub(r"strftime_now\([^()]*\)", "'26 Jul 2024'", template) if isinstance(template, str) else None


def _word(index: int, messages: Sequence[Message]) -> str:
    """A word that stands in no message, to mark where message `index` goes."""
    salt = 0
    while any(f"Sentinel{salt}x{index}x" in m["content"] for m in messages):
        salt += 1
    return f"Sentinel{salt}x{index}x"
