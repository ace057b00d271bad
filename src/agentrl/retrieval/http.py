"""Client of any Search-R1-compatible retrieval server.

``POST /retrieve`` with ``{"queries": [...], "topk": n, "return_scores": true}``. The answer is
``{"result": [[{"document": {...}, "score": s}, ...], ...]}`` or, from servers that give no scores,
``{"result": [[{...}, ...], ...]}``: one inner list per query, in order.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Mapping, Sequence
from typing import Any

import httpx

from agentrl.data import as_text
from agentrl.errors import UserError
from agentrl.post import Poster, PostError, http_address
from agentrl.retrieval import Hit, RetrievalError
from agentrl.retrieval.passages import passage

MAX_BYTES = 64 << 20  # of one response: more is not an answer to a few queries


class HttpRetriever:
    """See :func:`open_http`."""

    def __init__(self, url: str, timeout_s: float, retries: int, backoff_s: float):
        self.url = _endpoint(url)
        self._retries = retries
        self._backoff_s = backoff_s
        self._poster = Poster(self.url, timeout_s, MAX_BYTES, follow_redirects=True)

    def search(self, queries: Sequence[str], topk: int) -> list[list[Hit]]:
        """See :class:`agentrl.retrieval.Retriever`. Blank queries are not sent: they find nothing.

        Raises RetrievalError after the last try.
        """
        asked = [i for i, query in enumerate(queries) if query.strip()]
        results: list[list[Hit]] = [[] for _ in queries]
        if not asked or topk < 1:
            return results
        answer = self._post({"queries": [queries[i] for i in asked], "topk": topk, "return_scores": True})
        for i, hits in zip(asked, _parse(answer, len(asked), str(self.url)), strict=True):
            results[i] = hits[:topk]
        return results

    def _post(self, body: Mapping[str, Any]) -> bytes:
        for attempt in range(self._retries + 1):
            try:
                return self._try(body)
            except RetrievalError as error:
                if error.kind == "bad_response" or attempt == self._retries:
                    raise
                # Jitter, so that trajectories that failed together do not come back together.
                time.sleep(self._backoff_s * 2**attempt * random.uniform(0.5, 1.0))
        raise AssertionError("unreachable: the last attempt returns or raises")

    def _try(self, body: Mapping[str, Any]) -> bytes:
        try:
            answer = self._poster.post(body)
        except PostError as error:
            raise RetrievalError(error.kind, str(error)) from None
        if answer.status == 200:
            return answer.content
        kind = "unavailable" if answer.status == 429 or answer.status >= 500 else "bad_response"
        raise RetrievalError(kind, f"{self.url}: HTTP {answer.status}: {answer.detail()}")

    def close(self) -> None:
        self._poster.close()


def _parse(answer: bytes, queries: int, url: str) -> list[list[Hit]]:
    try:
        result = json.loads(answer)["result"]
        if not isinstance(result, list) or len(result) != queries:
            count = len(result) if isinstance(result, list) else type(result).__name__
            raise ValueError(f"expected {queries} result lists, got {count}")
        return [[_hit(item, f"result[{i}][{j}]") for j, item in enumerate(hits)] for i, hits in enumerate(result)]
    except (ValueError, KeyError, TypeError, UserError, RecursionError) as error:
        reason = f"no {error}" if isinstance(error, KeyError) else str(error)
        raise RetrievalError("bad_response", f"{url}: not the retrieval protocol: {reason[:300]}") from None


def _hit(item: Any, where: str) -> Hit:
    scored = isinstance(item, Mapping) and "document" in item
    document = item["document"] if scored else item
    if isinstance(document, Mapping) and "id" not in document and "_id" not in document:
        document = {**document, "id": ""}  # web search servers have no ids
    key, contents = passage(document, where)
    return Hit(key, contents, float(as_text(item.get("score", 0.0), f"{where}.score")) if scored else 0.0)


def _endpoint(url: str) -> httpx.URL:
    parsed = http_address(url)
    if parsed is None:
        raise UserError(f"retriever.url={url!r} is not an address like http://127.0.0.1:8000/retrieve")
    return parsed.copy_with(path="/retrieve") if parsed.path in ("", "/") else parsed


def open_http(
    url: str = "http://127.0.0.1:8000/retrieve", timeout_s: float = 30.0, retries: int = 2, backoff_s: float = 0.5
) -> HttpRetriever:
    """A client of the server at ``url`` (``/retrieve`` is added to a bare host). Nothing is sent before a search.

    Args:
        timeout_s: seconds for one try, from sending to the last byte of the answer.
        retries: further tries after a time-out, a refused connection, HTTP 429 or 5xx. Others are not tried again.
        backoff_s: seconds before the first retry, doubled each time, with jitter.
    """
    for name, value, least in (("timeout_s", timeout_s, 1e-3), ("retries", retries, 0), ("backoff_s", backoff_s, 0)):
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not value >= least:
            raise UserError(f"retriever.{name}={value!r} must be a number of at least {least:g}")
    return HttpRetriever(url, float(timeout_s), int(retries), float(backoff_s))
