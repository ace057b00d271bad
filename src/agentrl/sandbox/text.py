"""Turning a program's bytes into text that is safe to show: nothing in it is trusted."""

from __future__ import annotations

import re

# CSI and other escape sequences, then OSC/DCS/... strings up to their terminator, then a lone escape.
_ESCAPES = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\|$)|\x1b[ -/]*[0-~]?|\x9b[0-?]*[ -/]*[@-~]"
)
# C0 but tab and newline, DEL, C1, and what reorders or hides text.
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff]")


def clean(data: bytes) -> str:
    """Decoded as UTF-8 with replacement; carriage returns as newlines; no control sequences."""
    text = data.decode("utf-8", "replace").replace("\r\n", "\n").replace("\r", "\n")
    return _CONTROLS.sub("", _ESCAPES.sub("", text))


def cut_middle(text: str, limit: int) -> str:
    """At most ``limit`` characters of ``text``, from both ends, with a note of how many are missing between them."""
    if len(text) <= limit:
        return text
    tail = limit // 3
    return f"{text[: limit - tail]}\n[... {len(text) - limit} characters cut ...]\n{text[len(text) - tail :]}"


class Kept:
    """The first and the last bytes of a stream of any length; memory is bounded by ``limit`` bytes and one read.

    ``total`` counts all bytes, ``dropped`` those that are gone.
    """

    def __init__(self, limit: int):
        self._limit = limit
        self._head = bytearray()
        self._tail = bytearray()
        self.total = 0

    def add(self, data: bytes) -> None:
        self.total += len(data)
        room = self._limit - self._limit // 2 - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        self._tail += data
        if len(self._tail) > self._limit:
            del self._tail[: len(self._tail) - self._limit // 2]

    @property
    def dropped(self) -> int:
        return self.total - len(self._head) - min(len(self._tail), self._limit // 2)

    def text(self) -> str:
        """What was kept, cleaned, with a note where bytes are missing."""
        tail = bytes(self._tail[-(self._limit // 2) :]) if self._limit // 2 else b""
        if not self.dropped:
            return clean(bytes(self._head) + tail)
        return (
            f"{clean(_whole_end(bytes(self._head)))}\n[... {self.dropped} bytes cut ...]\n{clean(_whole_start(tail))}"
        )


def _whole_end(data: bytes) -> bytes:
    """Without a UTF-8 character that the cut has split."""
    for back in range(1, min(4, len(data)) + 1):
        byte = data[-back]
        if byte >= 0xC0:
            return data if back >= (2 if byte < 0xE0 else 3 if byte < 0xF0 else 4) else data[:-back]
        if byte < 0x80:
            return data
    return data


def _whole_start(data: bytes) -> bytes:
    for i in range(min(3, len(data))):
        if not 0x80 <= data[i] < 0xC0:
            return data[i:]
    return data[min(3, len(data)) :]
