"""An OpenAI-compatible chat server for tests: the tiny model on the local engine, behind real HTTP.

``faults`` lets it misbehave as real servers do: a queue of answers that the next requests get instead of the model's.
"""

from __future__ import annotations

import hashlib
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response

from agentrl.models import tiny
from agentrl.models.load import load_model, load_tokenizer
from agentrl.models.template import Renderer
from agentrl.rollout.engine import LocalEngine
from agentrl.rollout.sampling import Sampling, stream

MODEL = "tiny"


class ChatServer:
    """``url`` is its base address; ``requests`` holds every body it was sent.

    ``faults``: callables ``body → Response``, used up one a request. ``key``: the only bearer token it takes.
    ``usage``: whether it counts tokens in its answers.
    """

    def __init__(self, checkpoint: str | None = None, max_tokens: int = 2048) -> None:
        path = checkpoint or str(tiny.folder())
        self.renderer = Renderer(load_tokenizer(path))
        self.model = load_model(path, torch.float32)
        self.model.set_attn_implementation("agentrl")
        self.max_tokens = max_tokens
        self.engine = LocalEngine(self.model, self.renderer, 1, max_tokens)
        self.requests: list[dict[str, Any]] = []
        self.faults: deque[Callable[[dict[str, Any]], Response]] = deque()
        self.key: str | None = None
        self.usage = True
        self._lock = threading.Lock()
        self.url = ""

    def app(self) -> FastAPI:
        app = FastAPI()

        @app.post("/v1/chat/completions")
        def complete(body: dict[str, Any], request: Request) -> Response:
            with self._lock:
                self.requests.append(body)
                fault = self.faults.popleft() if self.faults else None
            if fault is not None:
                return fault(body)
            if self.key is not None and request.headers.get("authorization") != f"Bearer {self.key}":
                return JSONResponse({"error": {"message": "Incorrect API key provided"}}, status_code=401)
            if body["model"] != MODEL:
                message = f"The model `{body['model']}` does not exist"
                return JSONResponse({"error": {"message": message}}, status_code=404)
            with self._lock:
                return JSONResponse(self._answer(body))

        return app

    def _answer(self, body: dict[str, Any]) -> dict[str, Any]:
        prompt = self.renderer.prompt(body["messages"])
        key = hashlib.sha256(repr((body["messages"], body.get("seed"))).encode()).hexdigest()
        limit = min(body["max_tokens"], self.max_tokens - len(prompt))
        self.engine.sampling = Sampling(body.get("temperature", 1.0), body.get("top_p", 1.0))
        sequence = self.engine.start(prompt, key, stream(limit, key))
        while not self.engine.step():
            pass
        action = sequence.action
        assert action is not None
        sequence.action = None
        self.engine.finish(sequence)
        ended = action.stop == "end_of_turn"
        ids = action.ids[:-1] if ended else action.ids
        answer: dict[str, Any] = {
            "object": "chat.completion",
            "model": MODEL,
            "choices": [
                {
                    "index": 0,
                    "message": {"role": "assistant", "content": self.renderer.decode(ids, start=False)},
                    "finish_reason": "stop" if ended else "length",
                }
            ],
        }
        if self.usage:
            counts = {"prompt_tokens": len(prompt), "completion_tokens": len(action.ids)}
            answer["usage"] = counts | {"total_tokens": sum(counts.values())}
        return answer


@contextmanager
def serving(server: ChatServer) -> Iterator[ChatServer]:
    """The server, listening on a free port of this machine until the block ends."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(128)
        server.url = f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
        running = uvicorn.Server(uvicorn.Config(server.app(), log_level="error", access_log=False))
        thread = threading.Thread(target=lambda: running.run(sockets=[listener]), daemon=True)
        thread.start()
        while not running.started:
            time.sleep(0.005)
        try:
            yield server
        finally:
            running.should_exit = True
            thread.join(10)


def refuse(status: int, **headers: str) -> Callable[[dict[str, Any]], Response]:
    """A fault: an HTTP error with a message, as vendors send it."""
    return lambda body: JSONResponse({"error": {"message": f"no, {status}"}}, status_code=status, headers=headers)


def say(content: Any, finish: str = "stop") -> Callable[[dict[str, Any]], Response]:
    """A fault: these words instead of the model's, without token counts."""
    choice = {"message": {"role": "assistant", "content": content}, "finish_reason": finish}
    return lambda body: JSONResponse({"choices": [choice]})


def raw(content: bytes, kind: str = "application/json") -> Callable[[dict[str, Any]], Response]:
    """A fault: any bytes with status 200."""
    return lambda body: Response(content, media_type=kind)


def sleep(seconds: float) -> Callable[[dict[str, Any]], Response]:
    """A fault: an answer that comes too late."""

    def late(body: dict[str, Any]) -> Response:
        time.sleep(seconds)
        return raw(b"{}")(body)

    return late
