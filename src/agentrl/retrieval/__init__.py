"""Retrievers: text queries in, ranked passages out.

One protocol, three kinds behind :func:`build`: ``bm25`` (in process), ``http`` (any Search-R1-compatible server) and
``dense`` (an encoder, optional). All of them are safe to call from several threads at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from agentrl.errors import UserError, nearest


@dataclass(frozen=True)
class Hit:
    """One passage found. ``contents`` is title, newline, text (the ``{id, contents}`` corpus shape)."""

    id: str
    contents: str
    score: float

    @property
    def title(self) -> str:
        """The first line of ``contents``, without the quotes that the wiki-18 dump puts around it."""
        title = self.contents.partition("\n")[0].strip()
        if len(title) > 1 and title[0] == title[-1] == '"':
            return title[1:-1]
        return title

    @property
    def text(self) -> str:
        """Everything after the first line; the whole of ``contents`` when it has one line only."""
        first, newline, rest = self.contents.partition("\n")
        return rest.strip() if newline else first.strip()


class RetrievalError(Exception):
    """Search infrastructure failed (never the agent's fault).

    ``kind`` is ``"timeout"``, ``"unavailable"`` (refused, closed, 429, 5xx) or ``"bad_response"`` (not the protocol's
    shape).
    """

    def __init__(self, kind: str, message: str):
        super().__init__(message)
        self.kind = kind


class Retriever(Protocol):
    def search(self, queries: Sequence[str], topk: int) -> list[list[Hit]]:
        """At most ``topk`` hits per query, best first; one inner list per query in the same order, also for no query.

        A query that matches nothing gives an empty list. Raises :class:`RetrievalError` when the search itself fails.
        """
        ...

    def close(self) -> None:
        """Release files and connections."""
        ...


KINDS = ("bm25", "http", "dense")


def build(options: Mapping[str, Any]) -> Retriever:
    """The retriever that ``options`` describe: ``kind`` (default ``bm25``) and that kind's keyword arguments.

    * ``bm25``: ``corpus`` (JSONL/Parquet file or Hub id) or ``passages`` (list of ``{"id", "contents"}``), ``k1``,
      ``b``, ``cache``
    * ``http``: ``url``, ``timeout_s``, ``retries``, ``backoff_s``
    * ``dense``: ``model`` (encoder folder, package or Hub id), ``corpus`` or ``passages``, ``query_prefix``,
      ``passage_prefix``, ``max_tokens``, ``batch_size``, ``cache``

    Raises UserError for an unknown kind or option.
    """
    arguments = dict(options)
    kind = arguments.pop("kind", "bm25")
    if kind not in KINDS:
        raise UserError(f"retriever.kind={kind!r} is not a retriever; {nearest(str(kind), KINDS)}")
    # The kinds are imported here so that choosing one does not import another's libraries.
    if kind == "bm25":
        from agentrl.retrieval.bm25 import open_bm25 as opener
    elif kind == "http":
        from agentrl.retrieval.http import open_http as opener  # type: ignore[assignment]
    else:
        from agentrl.retrieval.dense import open_dense as opener  # type: ignore[assignment]
    import inspect

    known = inspect.signature(opener).parameters
    for name in arguments:
        if name not in known:
            raise UserError(f"retriever.{name} is not an option of the {kind} retriever; {nearest(name, known)}")
    return opener(**arguments)


__all__ = ["Hit", "RetrievalError", "Retriever", "build"]
