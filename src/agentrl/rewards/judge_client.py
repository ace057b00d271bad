"""Who answers a judge's question: an OpenAI-compatible endpoint. Failures have a kind, and are never a verdict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from agentrl.chat import ChatClient, ChatError
from agentrl.envs.base import Message
from agentrl.errors import UserError

KINDS = ("timeout", "rate_limit", "unavailable", "refused", "bad_response", "invalid")
"""Kinds of failures: the first three are worth another try, and so is a reply that is no verdict (``invalid``)."""


class JudgeError(Exception):
    """A call that gave no verdict. ``retry_after_s``: seconds that the server asked to wait, if it did."""

    def __init__(self, kind: str, message: str, retry_after_s: float = 0.0):
        super().__init__(f"{kind}: {message}")
        self.kind = kind
        self.retry_after_s = retry_after_s


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
    """An OpenAI-compatible endpoint. ``json_schema=False`` sends no schema, for servers that refuse one."""

    def __init__(
        self, endpoint: str, model: str, api_key_env: str | None, timeout_s: float, workers: int, json_schema: bool
    ):
        try:
            self._client = ChatClient(endpoint, model, api_key_env, timeout_s, retries=0)
        except UserError as error:
            raise UserError(f"endpoint: {error}") from None
        self.workers, self.json_schema = workers, json_schema
        self.identity = f"{self._client.url}#{model}"

    def complete(self, request: Request) -> Completion:
        schema = request.schema if self.json_schema else None
        try:
            reply = self._client.complete(
                request.messages, request.max_tokens, request.temperature, seed=request.seed, schema=schema
            )
        except ChatError as error:
            kind = error.kind if error.kind in KINDS else "refused"
            raise JudgeError(kind, str(error).partition(": ")[2], error.retry_after_s) from None
        return Completion(reply.text, reply.tokens_prompt or 0, reply.tokens_sampled or 0)
