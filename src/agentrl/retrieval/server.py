"""The retrieval server alone, as Search-R1 clients speak to it (``agentrl serve-search``)."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any, Optional

import uvicorn
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field

from agentrl.errors import UserError
from agentrl.retrieval import RetrievalError, Retriever
from agentrl.retrieval.bm25 import open_bm25

MAX_TOPK = 1000


class Retrieve(BaseModel):
    """The request. A null ``topk`` means the server's default."""

    queries: list[str]
    topk: Optional[int] = Field(default=None, ge=1, le=MAX_TOPK)
    return_scores: bool = False


def make_app(retriever: Retriever, topk: int, facts: dict[str, Any]) -> FastAPI:
    """The app: ``POST /retrieve`` and ``GET /health`` (which answers ``facts``)."""
    app = FastAPI(title="agentrl search", docs_url=None, redoc_url=None)

    # Plain functions: FastAPI runs each request in a thread of its pool, so requests do not queue up.
    @app.post("/retrieve")
    def retrieve(request: Retrieve) -> dict[str, Any]:
        found = retriever.search(request.queries, request.topk or topk)
        if request.return_scores:
            return {"result": [[{"document": _document(h), "score": h.score} for h in hits] for hits in found]}
        return {"result": [[_document(h) for h in hits] for hits in found]}

    @app.get("/health")
    def health() -> dict[str, Any]:
        return {"status": "ok", "topk": topk, **facts}

    @app.exception_handler(RequestValidationError)
    def invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        problems = [f"{'.'.join(str(p) for p in e['loc'])}: {e['msg']}" for e in error.errors()]
        return JSONResponse({"detail": "; ".join(problems)}, status_code=422)

    @app.exception_handler(RetrievalError)
    def failed(request: Request, error: RetrievalError) -> JSONResponse:
        return JSONResponse({"detail": str(error)}, status_code=503)

    return app


def _document(hit: Any) -> dict[str, str]:
    return {"id": hit.id, "contents": hit.contents}


class _Server(uvicorn.Server):
    ready = ""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if not self.should_exit:
            print(self.ready, flush=True)


def main(corpus: str | Path, host: str = "127.0.0.1", port: int = 8000, topk: int = 3) -> None:
    """Serve a corpus until Ctrl-C. One line on stdout says when requests are answered, and where (port 0: a free one).

    Raises UserError for a corpus that cannot be read or an address that cannot be taken.
    """
    if not 1 <= topk <= MAX_TOPK:
        raise UserError(f"topk={topk} must be between 1 and {MAX_TOPK}")
    listener = _bind(host, port)  # first: an index may take minutes, a taken port is known at once
    with listener:
        retriever = open_bm25(corpus)
        passages = retriever.passages
        app = make_app(retriever, topk, {"passages": len(passages), "corpus_hash": passages.hash})
        try:
            listener.listen(1024)  # only now: a client that comes too early is refused, not left waiting
        except OSError as error:
            raise _taken(host, port, error) from None
        server = _Server(uvicorn.Config(app, log_level="warning", access_log=False))
        address = f"[{host}]" if ":" in host else host
        server.ready = (
            f"serving {len(passages):,} passages at http://{address}:{listener.getsockname()[1]}/retrieve "
            f"(topk {topk}; Ctrl-C ends it)"
        )
        try:
            server.run(sockets=[listener])
        except KeyboardInterrupt:  # uvicorn has already finished the requests under way
            pass
        finally:
            retriever.close()


def _bind(host: str, port: int) -> socket.socket:
    if not 0 <= port <= 65535:
        raise UserError(f"port={port} must be between 0 and 65535")
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        raise UserError(f"host={host!r}: {error.strerror}") from None
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
    except OSError as error:
        listener.close()
        raise _taken(host, port, error) from None
    return listener


def _taken(host: str, port: int, error: OSError) -> UserError:
    return UserError(f"cannot serve at {host}:{port}: {error.strerror}; choose another --port or --host")
