"""A judge behind HTTP: a real local model that answers `POST /v1/chat/completions`, and misbehaves when it is told to.

With ``response_format`` it decodes under the schema, as real servers do; without, it samples freely.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import torch

from agentrl.rewards.judge_client import Request
from agentrl.rewards.judge_local import LocalChat


class JudgeServer(ThreadingHTTPServer):
    """``faults`` are taken one per request, before the model is asked: a status, "slow", "trickle", "garbage",
    "empty", "close", or "quote" (the reply repeats the last user message in front of its own verdict)."""

    daemon_threads = True

    def __init__(self, chat: LocalChat) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.chat = chat
        self.faults: list[Any] = []
        self.requests: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.lock = threading.Lock()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1"

    def free_text(self, body: dict[str, Any]) -> str:
        """What the model says when nothing constrains it."""
        model, renderer = self.chat._load()
        ids = renderer.prompt(body["messages"])
        torch.manual_seed(body["seed"])
        with torch.no_grad():
            out = model.generate(
                torch.tensor([ids]), max_new_tokens=min(24, body["max_tokens"]), do_sample=body["temperature"] > 0
            )
        return str(renderer.decode(out[0, len(ids) :].tolist(), start=False))


class Handler(BaseHTTPRequestHandler):
    server: JudgeServer

    def log_message(self, *args: Any) -> None:
        pass

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        with self.server.lock:
            self.server.requests.append(body)
            self.server.headers.append(dict(self.headers))
            fault = self.server.faults.pop(0) if self.server.faults else None
        if self.path != "/v1/chat/completions":
            return self.answer(404, b"no such path")
        if isinstance(fault, int):
            return self.answer(fault, b"told to", {"Retry-After": "0.01"} if fault == 429 else {})
        if fault == "close":
            return self.connection.close()
        if fault == "slow":
            time.sleep(5.0)
        if fault == "garbage":
            return self.answer(200, b"<html>not json</html>")
        if fault == "trickle":
            self.send_response(200)
            self.send_header("Content-Length", "1000")
            self.end_headers()
            with suppress(OSError):  # the client has gone
                for _ in range(60):
                    self.wfile.write(b" ")
                    self.wfile.flush()
                    time.sleep(0.1)
            return None
        schema = body.get("response_format", {}).get("json_schema", {}).get("schema")
        if schema is None:
            text = self.server.free_text(body)
        else:
            request = Request(body["messages"], schema, body["temperature"], body["max_tokens"], body["seed"])
            text = self.server.chat.complete(request).text
        if fault == "quote":
            text = "The agent wrote:\n" + body["messages"][-1]["content"].split("The data ends here.")[0] + "\n" + text
        choice = {"message": {"role": "assistant", "content": None if fault == "empty" else text}}
        usage = {"prompt_tokens": 100, "completion_tokens": 10}
        return self.answer(200, json.dumps({"choices": [choice], "usage": usage}).encode())

    def answer(self, status: int, data: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(data)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        with suppress(OSError):  # the client has gone
            self.wfile.write(data)


@contextmanager
def serving(chat: LocalChat) -> Iterator[JudgeServer]:
    server = JudgeServer(chat)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
