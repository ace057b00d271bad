"""Who answers a judge's question: an OpenAI-compatible endpoint. Failures have a kind, and are never a verdict."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import httpx

from agentrl.envs.base import Message
from agentrl.errors import UserError

KINDS = ("timeout", "rate_limited", "unavailable", "refused", "bad_response", "invalid")
"""Kinds of failures: the first three are worth another try, and so is a reply that is no verdict (``invalid``)."""

MAX_BYTES = 4 << 20


class JudgeError(Exception):
    """A call that gave no verdict. ``retry_after``: seconds that the server asked to wait, if it did."""

    def __init__(self, kind: str, message: str, retry_after: float | None = None):
        super().__init__(f"{kind}: {message}")
        self.kind = kind
        self.retry_after = retry_after


@dataclass(frozen=True)
class Request:
    """One chat completion under a JSON schema."""

    messages: Sequence[Message]
    schema: Mapping[str, Any]
    temperature: float
    max_tokens: int
    seed: int


@dataclass(frozen=True)
class Completion:
    text: str
    tokens_in: int
    tokens_out: int


class Chat(Protocol):
    """Something that completes a chat. ``identity`` says which model answers; it is part of the cache key."""

    identity: str
    workers: int

    def complete(self, request: Request) -> Completion:
        """Raises JudgeError."""
        ...


class HttpChat:
    """``POST {endpoint}/chat/completions``. The API key is read from the environment and never stored or shown.

    ``timeout_s`` bounds a whole call, from sending to the last byte. ``json_schema=False`` leaves out
    ``response_format`` for servers that refuse it.
    """

    def __init__(
        self, endpoint: str, model: str, api_key_env: str | None, timeout_s: float, workers: int, json_schema: bool
    ):
        try:
            url = httpx.URL(endpoint)
        except (httpx.InvalidURL, TypeError):
            url = httpx.URL("")
        if url.scheme not in ("http", "https") or not url.host:
            raise UserError(f"endpoint={endpoint!r} is not an address like http://127.0.0.1:8000/v1")
        if url.userinfo:
            raise UserError(
                "endpoint: leave credentials out of the address; api_key_env names the variable with the key"
            )
        self.url = url.copy_with(path=url.path.rstrip("/") + "/chat/completions")
        self.model, self.workers, self.timeout_s, self.json_schema = model, workers, timeout_s, json_schema
        self.identity = f"{url}#{model}"
        key = os.environ.get(api_key_env) if api_key_env else None
        # A proxy from the environment never serves this machine's own ports.
        local = url.host in ("127.0.0.1", "localhost", "::1")
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        self.client = httpx.Client(timeout=timeout_s, trust_env=not local, headers=headers)

    def complete(self, request: Request) -> Completion:
        body: dict[str, Any] = {
            "model": self.model,
            "messages": list(request.messages),
            "temperature": request.temperature,
            "max_tokens": request.max_tokens,
            "seed": request.seed,
        }
        if self.json_schema:
            shape = {"name": "verdict", "strict": True, "schema": request.schema}
            body["response_format"] = {"type": "json_schema", "json_schema": shape}
        return _parsed(self._post(body))

    def _post(self, body: Mapping[str, Any]) -> bytes:
        deadline = time.monotonic() + self.timeout_s
        late = JudgeError("timeout", f"no complete answer within {self.timeout_s:g} s")
        try:
            with self.client.stream("POST", self.url, json=body) as response:
                data = bytearray()
                for chunk in response.iter_bytes():
                    data += chunk
                    if time.monotonic() > deadline:
                        raise late
                    if len(data) > MAX_BYTES:
                        raise JudgeError("bad_response", f"more than {MAX_BYTES >> 20} MiB")
                _check_status(response, bytes(data))
                return bytes(data)
        except httpx.TimeoutException:
            raise late from None
        except httpx.DecodingError as error:
            raise JudgeError("bad_response", str(error)) from None
        except httpx.HTTPError as error:
            raise JudgeError("unavailable", str(error) or type(error).__name__) from None


def _check_status(response: httpx.Response, data: bytes) -> None:
    status = response.status_code
    if status == 200:
        return
    detail = " ".join(data[:1000].decode(errors="replace").split())[:200]
    if status == 429:
        try:
            wait = float(response.headers.get("retry-after", ""))
        except ValueError:  # absent, or a date
            wait = None
        raise JudgeError("rate_limited", f"HTTP 429: {detail}", wait)
    if status >= 500 or status == 408:
        raise JudgeError("unavailable", f"HTTP {status}: {detail}")
    raise JudgeError("refused", f"HTTP {status}: {detail}")


def _parsed(data: bytes) -> Completion:
    try:
        answer = json.loads(data)
        message = answer["choices"][0]["message"]
        usage = answer.get("usage") or {}
        tokens = [int(usage.get(name) or 0) for name in ("prompt_tokens", "completion_tokens")]
        text = message.get("content")
    except (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError) as error:
        raise JudgeError("bad_response", f"not a chat completion ({type(error).__name__})") from None
    if not isinstance(text, str):
        raise JudgeError("refused", "the judge gave no text" + (" (refusal)" if message.get("refusal") else ""))
    return Completion(text, *tokens)
