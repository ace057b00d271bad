"""One bounded POST of JSON, for every server that this project talks to."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import httpx

LOCAL = ("127.0.0.1", "localhost", "::1")


class PostError(Exception):
    """No answer. ``kind``: ``timeout``, ``unavailable`` (refused or cut off), ``bad_response`` (too long, garbled)."""

    def __init__(self, kind: str, message: str):
        super().__init__(message)
        self.kind = kind


@dataclass(frozen=True)
class Answer:
    status: int
    content: bytes
    headers: Mapping[str, str]

    def detail(self) -> str:
        """The beginning of the content as one line, for an error's message."""
        return " ".join(self.content[:1000].decode(errors="replace").split())[:200]


class Poster:
    """Safe in many threads. Nothing is sent before :meth:`post`.

    Args:
        timeout_s: seconds for one POST, from sending to the last byte of the answer.
        max_bytes: of one answer.
    """

    def __init__(
        self,
        url: httpx.URL,
        timeout_s: float,
        max_bytes: int,
        headers: Mapping[str, str] | None = None,
        follow_redirects: bool = False,
    ):
        self.url, self.timeout_s, self.max_bytes = url, timeout_s, max_bytes
        self._client = httpx.Client(
            timeout=timeout_s,
            trust_env=url.host not in LOCAL,  # a proxy from the environment never serves this machine's own ports
            headers=dict(headers or {}),
            limits=httpx.Limits(max_connections=None),
            follow_redirects=follow_redirects,
        )

    def post(self, body: Mapping[str, Any]) -> Answer:
        """The answer, whatever its status. Raises PostError, whose message begins with the address."""
        deadline = time.monotonic() + self.timeout_s
        late = PostError("timeout", f"{self.url}: no complete answer within {self.timeout_s:g} s")
        try:
            with self._client.stream("POST", self.url, json=body) as response:
                content = bytearray()
                for chunk in response.iter_bytes():
                    content += chunk
                    # httpx bounds each read; a server that trickles must be bounded as a whole.
                    if time.monotonic() > deadline:
                        raise late
                    if len(content) > self.max_bytes:
                        raise PostError("bad_response", f"{self.url}: more than {self.max_bytes >> 20} MiB")
                return Answer(response.status_code, bytes(content), response.headers)
        except httpx.TimeoutException:
            raise late from None
        except httpx.DecodingError as error:
            raise PostError("bad_response", f"{self.url}: {error}") from None
        except httpx.HTTPError as error:
            raise PostError("unavailable", f"{self.url}: {error or type(error).__name__}") from None

    def close(self) -> None:
        self._client.close()


def http_address(text: str) -> httpx.URL | None:
    """The address, or None where it is not one of http or https with a host."""
    try:
        url = httpx.URL(text)
    except (httpx.InvalidURL, TypeError):
        return None
    return url if url.scheme in ("http", "https") and url.host else None
