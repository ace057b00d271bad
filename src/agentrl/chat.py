"""Client of any OpenAI-compatible chat endpoint: bounded retries, typed errors, token counts.

``POST …/chat/completions`` with ``{"model", "messages", "max_tokens", "temperature", …}``; the answer's
``choices[0].message.content`` and ``tool_calls``, ``finish_reason`` and ``usage`` are read, everything else is ignored.
A tool call becomes text, as Hermes and Qwen models write it: ``<tool_call>{"name": …, "arguments": …}</tool_call>``.
"""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any

import httpx

from agentrl.errors import UserError
from agentrl.post import Poster, PostError, http_address

MAX_BYTES = 16 << 20  # of one response
MAX_WAIT_S = 60.0  # before a retry, whatever the server asks for
RETRIED = ("timeout", "rate_limit", "unavailable")


class ChatError(Exception):
    """A call that gave no reply. ``kind`` is one of

    ``timeout``, ``rate_limit`` (HTTP 429), ``unavailable`` (refused, cut off, HTTP 5xx): these were tried again;
    ``auth`` (HTTP 401, 403), ``not_found`` (HTTP 404: the model or the address), ``bad_request`` (any other status),
    ``bad_response`` (not the protocol): these were not.
    """

    def __init__(self, kind: str, message: str, retry_after_s: float = 0.0):
        super().__init__(f"{kind}: {message}")
        self.kind = kind
        self.retry_after_s = retry_after_s


@dataclass(frozen=True)
class Reply:
    """``finish`` is the server's finish_reason ("stop", "length", …); tokens are None when it did not count them."""

    text: str
    finish: str
    tokens_prompt: int | None
    tokens_sampled: int | None
    seconds: float  # of the call that succeeded
    attempts: int


class ChatClient:
    """One model behind one endpoint. Safe in many threads. Nothing is sent before ``complete``.

    Args:
        url: ``http://host:port/v1`` or the whole address up to ``/chat/completions``.
        api_key_env: environment variable that holds the key; None, unset or empty sends none. The key is never stored.
        timeout_s: seconds for one try, from sending to the last byte.
        retries: further tries after a time-out, HTTP 429 or 5xx, or a refused or broken connection.
        backoff_s: seconds before the first retry, doubled each time, with jitter; a longer Retry-After header wins.
        extra: merged into every request body; a null removes a field that some servers do not take.
    """

    def __init__(
        self,
        url: str,
        model: str,
        api_key_env: str | None = "OPENAI_API_KEY",
        timeout_s: float = 60.0,
        retries: int = 3,
        backoff_s: float = 1.0,
        extra: Mapping[str, Any] | None = None,
    ):
        self.url, self.model = _endpoint(url), model
        self.timeout_s, self.retries, self.backoff_s = timeout_s, retries, backoff_s
        self.extra = dict(extra or {})
        self.api_key_env = api_key_env
        key = os.environ.get(api_key_env, "").strip() if api_key_env else ""
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._poster = Poster(self.url, timeout_s, MAX_BYTES, headers)

    def complete(
        self,
        messages: Sequence[Mapping[str, str]],
        max_tokens: int,
        temperature: float = 1.0,
        top_p: float = 1.0,
        seed: int | None = None,
        tools: Sequence[Mapping[str, Any]] = (),
        schema: Mapping[str, Any] | None = None,
    ) -> Reply:
        """The assistant's next message. Raises ChatError after the last try.

        ``tools`` are JSON-schema functions; ``schema`` is the JSON schema that the server must hold the reply to.
        """
        body: dict[str, Any] = {
            "model": self.model,
            "messages": [dict(m) for m in messages],
            "max_tokens": max_tokens,
            "temperature": temperature,
        }
        if top_p < 1:
            body["top_p"] = top_p
        if seed is not None:
            body["seed"] = seed
        if tools:
            body["tools"] = [dict(t) for t in tools]
        if schema is not None:
            shape = {"name": "reply", "strict": True, "schema": dict(schema)}
            body["response_format"] = {"type": "json_schema", "json_schema": shape}
        body = {k: v for k, v in {**body, **self.extra}.items() if v is not None}
        for attempt in range(self.retries + 1):
            started = time.monotonic()
            try:
                text, finish, prompt, sampled = _parse(self._post(body), str(self.url))
                return Reply(text, finish, prompt, sampled, time.monotonic() - started, attempt + 1)
            except ChatError as error:
                if error.kind not in RETRIED or attempt == self.retries:
                    raise
                # Jitter, so that episodes that failed together do not come back together.
                wait = self.backoff_s * 2**attempt * random.uniform(0.5, 1.0)
                time.sleep(min(MAX_WAIT_S, max(wait, error.retry_after_s)))
        raise AssertionError("unreachable: the last attempt returns or raises")

    def _post(self, body: Mapping[str, Any]) -> bytes:
        try:
            answer = self._poster.post(body)
        except PostError as error:
            raise ChatError(error.kind, str(error)) from None
        if answer.status == 200:
            return answer.content
        kind = {401: "auth", 403: "auth", 404: "not_found", 408: "timeout", 429: "rate_limit"}.get(answer.status)
        if kind is None:
            kind = "unavailable" if answer.status >= 500 else "bad_request"
        hint = f" (the key is read from {self.api_key_env})" if kind == "auth" else ""
        message = f"{self.url}: HTTP {answer.status}{hint}: {answer.detail()}"
        raise ChatError(kind, message, _seconds(answer.headers.get("retry-after")))

    def close(self) -> None:
        self._poster.close()


def _parse(answer: bytes, url: str) -> tuple[str, str, int | None, int | None]:
    try:
        data = json.loads(answer)
        choice = data["choices"][0]
        message = choice["message"]
        content = message.get("content")
        if isinstance(content, list):  # content parts
            content = "".join(str(part.get("text") or "") for part in content)
        if content is None:
            content = ""
        if not isinstance(content, str):
            raise ValueError(f"content is {type(content).__name__}, not text")
        for call in message.get("tool_calls") or []:
            function = {key: call["function"][key] for key in ("name", "arguments")}
            content = f"{content}\n<tool_call>\n{json.dumps(function, ensure_ascii=False)}\n</tool_call>".lstrip()
        usage = data.get("usage") or {}
        return (
            content,
            str(choice.get("finish_reason") or "stop"),
            _count(usage.get("prompt_tokens")),
            _count(usage.get("completion_tokens")),
        )
    except (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError) as error:
        reason = f"no {error}" if isinstance(error, KeyError) else str(error)
        raise ChatError("bad_response", f"{url}: not the chat protocol: {reason[:300]}") from None


def _count(value: Any) -> int | None:
    return int(value) if isinstance(value, (int, float)) and not isinstance(value, bool) and value >= 0 else None


def _seconds(header: str | None) -> float:
    """Retry-After as seconds from now: a number or an HTTP date; 0 for anything else."""
    if not header:
        return 0.0
    try:
        return max(0.0, float(header))
    except ValueError:
        pass
    try:
        return max(0.0, parsedate_to_datetime(header).timestamp() - time.time())
    except (TypeError, ValueError):
        return 0.0


def _endpoint(url: str) -> httpx.URL:
    parsed = http_address(url)
    if parsed is None:
        raise UserError(f"'{url}' is not the address of a chat endpoint, like http://127.0.0.1:8000/v1")
    if parsed.userinfo:
        raise UserError("leave credentials out of an endpoint's address; api_key_env names the variable with the key")
    path = parsed.path.rstrip("/")
    if path.endswith("/chat/completions"):
        return parsed.copy_with(path=path)
    return parsed.copy_with(path=f"{path or '/v1'}/chat/completions")
