"""Conversations as token ids that only ever grow.

The prompt is rendered once by the tokenizer's own chat template. What follows an assistant turn is a *delta*: the ids
that the template puts between an assistant message and the next one, found by rendering a conversation of sentinel
words and reading what stands around them. So whatever a template does to whole conversations (adding a system
text, stripping, dropping earlier thinking), the ids already in a row stay as they are.

Text never becomes a control token, wherever it comes from: it is encoded by copies of the tokenizer that do not know
them. Only the template's own markup and the policy's sampling put such tokens into a row.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from transformers import PreTrainedTokenizerBase

from agentrl.envs.base import Message, Observation
from agentrl.errors import UserError
from agentrl.models.encoders import Encoder
from agentrl.models.token_bytes import TokenBytes

END_MARKS = (
    "<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<end_of_turn>", "<turn|>", "<|end|>", "<|end_of_turn|>",
    "<|endoftext|>", "<|end_of_text|>", "<eos>", "</s>",
)  # fmt: skip
"""Tokens that end a message in the known families, where the tokenizer has them as special tokens."""

_WORDS = ("Sentinelalpha", "Sentinelbeta", "Sentinelgamma")


class Renderer:
    """Messages and observations as ids, for one tokenizer. Immutable after construction; safe in several threads.

    ``end_of_turn_id``: the token that closes an assistant message. ``end_ids``: all tokens that end one when sampled.
    Raises UserError when the chat template cannot render a user/assistant/user conversation.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase):
        self.tokenizer = tokenizer
        backend = tokenizer.backend_tokenizer
        tokens = backend.get_added_tokens_decoder()
        # whitespace among the added tokens (Gemma has runs of newlines) is ordinary text
        harmless = {i: t for i, t in tokens.items() if not t.special and t.content.isspace()}
        ordinary = {i: t for i, t in tokens.items() if not t.special}
        self._whole = Encoder(backend, tokens, inner=False)  # as the tokenizer encodes a rendered conversation
        self._markup = Encoder(backend, tokens, inner=True)  # the template's own text inside a conversation
        self._plain = Encoder(backend, ordinary, inner=True)  # what people wrote for the policy, or in its place
        self._foreign = Encoder(backend, harmless, inner=True)  # what tools returned
        # the token that the model writes for unknown characters may come out of plain text, and means nothing
        unknown = tokenizer.get_vocab().get(getattr(backend.model, "unk_token", tokenizer.unk_token) or "")
        self._control = frozenset(tokens) - frozenset(ordinary)
        self._not_plain = self._control - {unknown}
        self._not_foreign = frozenset(tokens) - frozenset(harmless) - {unknown}
        marks = {t.content: i for i, t in tokens.items() if i not in harmless}
        self._template = _dateless(tokenizer.chat_template)
        self._bytes = TokenBytes(tokenizer)
        self._folds_system = self._must_fold_system()
        self._strips = self._template_strips()
        self._knows_tools = self._shows_tools()
        self.end_of_turn_id, between, tail = self._find_delta(marks)
        self._before_user, self._after_user = between, tail
        # special only: Gemma has </s> among its ordinary HTML tokens
        known = frozenset(i for mark, i in marks.items() if mark in END_MARKS and i in self._control)
        self.end_ids: frozenset[int] = known | {int(tokenizer.eos_token_id), self.end_of_turn_id}

    # conversations

    def prompt(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = ()) -> list[int]:
        """The conversation by the chat template, with its special tokens, ready for the assistant's next word.

        ``tools`` (JSON-schema functions) are shown by the template where it knows tools, else as a system text in
        Hermes' form. Message contents cannot add control tokens. Raises UserError when the template refuses the
        messages.
        """
        if tools and not self._knows_tools:
            messages, tools = [*hermes_system(tools, messages)], ()
        messages = self._folded(messages)
        ids = self._whole(self._render(messages, tools))
        words = [_word(i, messages) for i in range(len(messages))]
        bare = self._render([{**m, "content": w} for m, w in zip(messages, words, strict=True)], tools)
        if self._count_control(ids) == self._count_control(self._whole(bare)):
            return ids
        # a content holds the text of a control token: encode the template's text and the contents apart
        contents = {
            w: m["content"].strip() if self._strips else m["content"] for w, m in zip(words, messages, strict=True)
        }
        pieces = re.split("(" + "|".join(words) + ")", bare)
        ids = self._whole(pieces[0])
        for piece in pieces[1:]:
            ids += self.encode(contents[piece]) if piece in contents else self._markup(piece)
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
        return self._plain.without(self._not_plain, text)

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

    def _outside(self, text: str) -> list[int]:
        return self._foreign.without(self._not_foreign, text)

    def _count_control(self, ids: Iterable[int]) -> int:
        return sum(i in self._control for i in ids)

    def _fit(self, obs: Observation, limit: int) -> list[int]:
        ids = self._outside(obs.before + obs.text + obs.after)
        if len(ids) <= limit:
            return ids
        offsets = self._foreign.with_offsets(obs.text)[1]
        total = len(offsets)
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

    def _render(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = ()) -> str:
        try:
            text = self.tokenizer.apply_chat_template(
                list(messages),
                tools=[dict(t) for t in tools] or None,
                chat_template=self._template,
                tokenize=False,
                add_generation_prompt=True,
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

    def _shows_tools(self) -> bool:
        """Whether the template writes the tools it is given into the conversation."""
        name, user, _ = _WORDS
        tool = {"type": "function", "function": {"name": name, "description": "", "parameters": {"type": "object"}}}
        try:
            return name in self._render([{"role": "user", "content": user}], [tool])
        except UserError:
            return False

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
        return closing, self._markup(between), self._markup(tail)


def hermes_system(tools: Sequence[Mapping[str, Any]], messages: Sequence[Message]) -> list[Message]:
    """The messages with a system text that shows the tools, in the form of the Hermes and Qwen models."""
    signatures = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
    text = (
        f"You can call these functions:\n<tools>\n{signatures}\n</tools>\nTo call one, write its name and arguments "
        'as JSON: <tool_call>\n{"name": NAME, "arguments": ARGUMENTS}\n</tool_call>'
    )
    if messages and messages[0]["role"] == "system":
        return [{"role": "system", "content": f"{messages[0]['content']}\n\n{text}"}, *messages[1:]]
    return [{"role": "system", "content": text}, *messages]


def _dateless(template: Any) -> Any:
    """Templates that write today's date (Llama 3.2, SmolLM3) get a fixed one, so that runs can be repeated."""
    return re.sub(r"strftime_now\([^()]*\)", "'26 Jul 2024'", template) if isinstance(template, str) else None


def _word(index: int, messages: Sequence[Message]) -> str:
    """A word that stands in no message, to mark where message `index` goes."""
    salt = 0
    while any(f"Sentinel{salt}x{index}x" in m["content"] for m in messages):
        salt += 1
    return f"Sentinel{salt}x{index}x"
