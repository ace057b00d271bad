"""Messages between the harness and the inside. Both ends are ours; nothing is read from the program's output."""

from __future__ import annotations

import json
import os
import socket
import struct
from typing import Any, NamedTuple

# PID 1 to the harness, one SEQPACKET message each.
READY, FAILED, ENDED = 1, 2, 3
# What the program's own interpreter says about how it ended: untrusted, only ever chooses between names of a failure.
CLAIMS = ("", "exception", "memory", "exit")
ROLLED_BACK = "rolled back"  # PID 1's own word: the cell ended its process

_WORDS = (*CLAIMS, ROLLED_BACK)
_REPORT = struct.Struct("<BBidQ")


class Report(NamedTuple):
    """What PID 1 saw. ``code`` is the exit code, or minus the signal."""

    kind: int
    claim: str = ""
    code: int = 0
    cpu_s: float = 0.0
    max_rss: int = 0
    text: str = ""

    def pack(self) -> bytes:
        head = _REPORT.pack(self.kind, _WORDS.index(self.claim), self.code, self.cpu_s, self.max_rss)
        return head + self.text.encode()[:1000]

    @classmethod
    def unpack(cls, data: bytes) -> Report:
        kind, claim, *numbers = _REPORT.unpack_from(data)
        code, cpu_s, max_rss = numbers
        text = data[_REPORT.size :].decode("utf-8", "replace")
        return cls(kind, _WORDS[claim], code, cpu_s, max_rss, text)


_ORDER = struct.Struct("<QQIIIQQI")


class Order(NamedTuple):
    """What one program is given before its source: its seed and its limits (bytes, seconds, counts)."""

    seed: int
    address_space: int
    cpu_s: int
    processes: int
    open_files: int
    file_bytes: int
    stack_bytes: int
    source_length: int

    def pack(self) -> bytes:
        return _ORDER.pack(*self)

    @classmethod
    def read(cls, fd: int) -> Order:
        """Raises EOFError where the harness has gone."""
        return cls(*_ORDER.unpack(read_exactly(fd, _ORDER.size)))


def read_exactly(fd: int, length: int) -> bytes:
    """Raises EOFError where the pipe ends before."""
    parts = []
    while length:
        part = os.read(fd, min(length, 1 << 16))
        if not part:
            raise EOFError
        parts.append(part)
        length -= len(part)
    return b"".join(parts)


def send_json(sock: socket.socket, message: dict[str, Any], fds: tuple[int, ...] = ()) -> None:
    socket.send_fds(sock, [json.dumps(message).encode()], fds)


def receive_json(sock: socket.socket) -> tuple[dict[str, Any] | None, list[int]]:
    """The next message with its descriptors; None at the end of the connection."""
    data, fds, _, _ = socket.recv_fds(sock, 1 << 16, 32)
    return (json.loads(data) if data else None), list(fds)
