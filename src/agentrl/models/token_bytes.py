"""Decoding by bytes: every token is a fixed byte string, so text only grows as ids are appended.

``tokenizer.decode`` lacks that property: with byte fallback, a later invalid byte turns earlier characters into U+FFFD,
and a leading space vanishes from any text that is decoded alone. Here the text of ids is the UTF-8 reading of their
bytes one after another, which equals ``tokenizer.decode`` wherever the bytes are valid text.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from transformers import PreTrainedTokenizerBase

from agentrl.errors import UserError
from agentrl.models.encoders import pipeline

_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class TokenBytes:
    """The bytes of every id of a byte-level BPE or a sentencepiece-like tokenizer (UserError for other kinds)."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase):
        steps = _flat(pipeline(tokenizer.backend_tokenizer)["decoder"])
        kinds = {s["type"] for s in steps}
        added = set(tokenizer.backend_tokenizer.get_added_tokens_decoder())
        tokens = tokenizer.convert_ids_to_tokens(list(range(max(tokenizer.get_vocab().values()) + 1)))
        self._strips = False
        if "ByteLevel" in kinds:
            table = _byte_level()
            self._table = [_level_bytes(t, table) for t in tokens]
        elif kinds & {"Metaspace", "ByteFallback", "Replace"}:
            fallback = "ByteFallback" in kinds
            self._table = [_piece_bytes(t, fallback and i not in added) for i, t in enumerate(tokens)]
            self._strips = any(
                (s["type"] == "Strip" and s.get("start", 0) > 0)
                or (s["type"] == "Metaspace" and s.get("prepend_scheme", "always") != "never")
                for s in steps
            )
        else:
            raise UserError(f"the tokenizer's decoder ({', '.join(sorted(kinds)) or 'none'}) is of no supported kind")

    def join(self, ids: Sequence[int]) -> bytes:
        """The bytes of `ids`; an id outside the vocabulary (padding rows of an embedding) has none."""
        table, size = self._table, len(self._table)
        return b"".join(table[i] if 0 <= i < size else b"" for i in ids)

    def decode(self, ids: Sequence[int], start: bool) -> str:
        data = self.join(ids)
        if start and self._strips and data[:1] == b" ":
            data = data[1:]
        return data.decode("utf-8", "replace")

    def span(self, ids: Sequence[int], start: int, end: int) -> str:
        """The characters whose first byte lies in ``ids[start:end]``. Looks only at the neighbourhood."""
        low, before = start, b""
        while low > 0 and len(before) < 4:
            low -= 1
            before = self.join(ids[low : low + 1]) + before
        inside = self.join(ids[start:end])
        high, after = end, b""
        while high < len(ids) and len(after) < 4:
            after += self.join(ids[high : high + 1])
            high += 1
        data = before + inside + after
        a = _boundary(data, len(before))
        b = _boundary(data, len(before) + len(inside))
        if self._strips and low == 0 and a == 0 and data[:1] == b" " and b > 0:
            a = 1
        return data[a:b].decode("utf-8", "replace")


def _boundary(data: bytes, position: int) -> int:
    """`position`, or the end of the character (or of the broken one) that it lies inside."""
    for lead in range(max(0, position - 3), position):
        if data[lead] >= 0xC2:
            try:
                width = len(data[lead : lead + 4].decode("utf-8")[0].encode())
            except UnicodeDecodeError as error:
                width = error.end if error.start == 0 else len(data[lead : lead + error.start].decode()[0].encode())
            if lead + width > position:
                return lead + width
    return position


def _flat(step: dict[str, Any] | None) -> list[dict[str, Any]]:
    if step is None:
        return []
    return [s for d in step["decoders"] for s in _flat(d)] if step["type"] == "Sequence" else [step]


@lru_cache(maxsize=1)
def _byte_level() -> dict[str, int]:
    """GPT-2's table: each byte as a printable character."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {chr(b): b for b in printable}
    others = [b for b in range(256) if b not in set(printable)]
    return table | {chr(256 + n): b for n, b in enumerate(others)}


def _level_bytes(token: str | None, table: dict[str, int]) -> bytes:
    if token is None:
        return b""
    if all(c in table for c in token):
        return bytes(table[c] for c in token)
    return token.encode()


def _piece_bytes(token: str | None, fallback: bool) -> bytes:
    if token is None:
        return b""
    match = _BYTE.fullmatch(token) if fallback else None
    return bytes([int(match[1], 16)]) if match else token.replace("\u2581", " ").encode()
