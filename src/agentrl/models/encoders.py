"""Encoders: one tokenizer's model under different rules of what is matched before it.

Each shares the vocabulary and merges of the tokenizer it is made from (they are not copied, so making one takes no
time) and has its own list of added tokens and its own normalisation. Nothing in it changes after construction.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tokenizers import AddedToken, Encoding, Tokenizer, models


def pipeline(backend: Tokenizer) -> dict[str, Any]:
    """The normalizer, pre_tokenizer and decoder of a tokenizer as JSON-able data, without its vocabulary."""
    frame = Tokenizer(models.BPE())
    for part in ("normalizer", "pre_tokenizer", "decoder"):
        step = getattr(backend, part)
        if step is not None:
            setattr(frame, part, step)
    return dict(json.loads(frame.to_str()))


class Encoder:
    """Text to ids: the model of `backend`, with only the added tokens in `added` honoured.

    `inner` is for text that stands inside a conversation: no space is put before it.
    """

    def __init__(self, backend: Tokenizer, added: Mapping[int, AddedToken], inner: bool):
        frame = pipeline(backend)
        if inner:
            frame["normalizer"] = _without_prefix(frame["normalizer"])
            frame["pre_tokenizer"] = _without_prefix(frame["pre_tokenizer"])
        steps = Tokenizer.from_str(json.dumps(frame))
        self._tokenizer = Tokenizer(backend.model)
        if steps.normalizer is not None:
            self._tokenizer.normalizer = steps.normalizer
        if steps.pre_tokenizer is not None:
            self._tokenizer.pre_tokenizer = steps.pre_tokenizer
        self._tokenizer.add_special_tokens([t for t in added.values() if t.special])
        self._tokenizer.add_tokens([t for t in added.values() if not t.special])
        # tokens outside the model's own vocabulary get new numbers here; this gives the right ones back
        own = {self._tokenizer.token_to_id(t.content): i for i, t in added.items()}
        self._renumber = {a: b for a, b in own.items() if a != b}

    def __call__(self, text: str) -> list[int]:
        """The ids of `text`; lone surrogates (from a tool's JSON) are read as question marks."""
        return self.with_offsets(text)[0]

    def with_offsets(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """The ids of `text`, and for each the characters (start, end) of `text` that it stands for."""
        if not text.isascii():
            text = text.encode("utf-8", "replace").decode("utf-8")
        encoding: Encoding = self._tokenizer.encode(text, add_special_tokens=False)
        if not self._renumber:
            return encoding.ids, encoding.offsets
        return [self._renumber.get(i, i) for i in encoding.ids], encoding.offsets

    def without(self, forbidden: frozenset[int], text: str) -> list[int]:
        """The ids of `text`, with every forbidden token spelled out in smaller pieces.

        Leaving a token out of the added ones is not enough where the model's own vocabulary has it too (a Unigram model
        finds ``</s>`` there, and BPE with ignore_merges takes any whole word).
        """
        ids, offsets = self.with_offsets(text)
        if forbidden.isdisjoint(ids):
            return ids
        safe: list[int] = []
        for token, (a, b) in zip(ids, offsets, strict=True):
            if token not in forbidden:
                safe.append(token)
            elif b - a > 1:
                safe += self.without(forbidden, text[a : a + 1]) + self.without(forbidden, text[a + 1 : b])
        return safe


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
