"""BM25 in process through bm25s (Lucene's variant): built once, kept on disk, mapped into memory.

What counts as a word is decided here, for passages and queries alike (:func:`words`). Stop words rank passages but
never retrieve one: a hit shares at least one other word with the query. A query of nothing but stop words ("It",
"As It Was") finds only passages whose title is exactly these words.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import bm25s
import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from agentrl.errors import UserError
from agentrl.retrieval import Hit
from agentrl.retrieval.cache import cached, default_cache
from agentrl.retrieval.passages import Passages, open_passages
from agentrl.retrieval.ranking import best

_STOP_LIST = "a an and are as at be by for from in is it of on or that the to was were with"
STOP_WORDS = frozenset(_STOP_LIST.split(" "))
TITLE = "="  # prefix of the index word that stands for a whole title made of stop words; no word contains it

SMALL = 5_000  # passages: below this an index is built faster than a cached one is found, so none is kept on disk
SHOW = 20_000  # passages: from here on a progress bar is shown

_FORMAT = 1  # of tokenisation and cache layout: raise it when either changes
# A CJK character is a word of its own (there are no spaces to split at); else letters and digits of any script.
_WORD = re.compile(r"[぀-ヿ㐀-䶿一-鿿]|(?:(?![぀-ヿ㐀-䶿一-鿿])[^\W_])+")
_POSSESSIVE = re.compile(r"['’]s\b")
_ACCENTS = dict.fromkeys(range(0x300, 0x370))


def words(text: str) -> list[str]:
    """The words of a text in order: lower case, accents folded (``Zürcher`` → ``zurcher``), possessive ``'s`` dropped.

    One-letter words and digits stay words; punctuation separates. Nothing is stemmed.
    """
    if not text.isascii():
        text = unicodedata.normalize("NFKC", unicodedata.normalize("NFKD", text).translate(_ACCENTS))
    return _WORD.findall(_POSSESSIVE.sub("", text.lower()))


def _index_words(contents: str) -> list[str]:
    found = words(contents)
    title = words(contents.partition("\n")[0])
    if title and STOP_WORDS.issuperset(title):
        found.append(TITLE + " ".join(title))
    return found


class BM25:
    """A retriever over a corpus. ``cache`` is the folder for built indexes; None keeps the index in memory only."""

    def __init__(self, passages: Passages, k1: float = 1.5, b: float = 0.75, cache: Path | None = None):
        if not (k1 > 0 and 0 <= b <= 1):
            raise UserError(f"retriever.k1={k1} and retriever.b={b}: k1 must be above 0 and b between 0 and 1")
        self.passages = passages
        if cache is None:
            self._index: bm25s.BM25 | None = _build(passages, k1, b)
        else:
            recipe = f"{_FORMAT}|{bm25s.__version__}|{unicodedata.unidata_version}|{k1}|{b}|{passages.hash}"
            key = "bm25-" + hashlib.sha256(recipe.encode()).hexdigest()[:24]
            self._index = cached(cache, key, lambda folder: _save(_build(passages, k1, b), folder), _load)

    def search(self, queries: Sequence[str], topk: int) -> list[list[Hit]]:
        """See :class:`agentrl.retrieval.Retriever`. Equal scores are ordered by place in the corpus."""
        return [self._search(query, topk) for query in queries]

    def _search(self, query: str, topk: int) -> list[Hit]:
        if self._index is None or topk < 1:
            return []
        asked = words(query)
        content = [word for word in asked if word not in STOP_WORDS]
        common = [word for word in asked if word in STOP_WORDS] if content else []
        if asked and not content:
            content = [TITLE + " ".join(asked)]
        content_ids = self._index.get_tokens_ids(content)
        if not content_ids:
            return []
        scores = self._index.get_scores_from_ids(content_ids)
        found = np.flatnonzero(scores)
        scores = scores[found]
        common_ids = self._index.get_tokens_ids(common)
        if common_ids:
            scores = scores + self._index.get_scores_from_ids(common_ids)[found]
        return [Hit(*self.passages[int(found[i])], score=float(scores[i])) for i in best(scores, topk)]

    def close(self) -> None:
        self.passages.close()


def progress_bar(unit: str, total: int) -> Progress:
    """A bar on stderr for work over ``total`` passages; silent for small corpora and where there is no terminal."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn(unit),
        TimeRemainingColumn(),
    )
    return Progress(*columns, console=Console(stderr=True), disable=total < SHOW, transient=True)


class _Counted(list):
    """A list that reports each item as it is iterated: bm25s walks the corpus three times while it builds."""

    report: Callable[[], None]

    def __iter__(self) -> Iterator[Any]:
        for item in super().__iter__():
            self.report()
            yield item


def _build(passages: Passages, k1: float, b: float) -> bm25s.BM25 | None:
    """The index of a corpus; None when no passage holds a word (bm25s cannot build that)."""
    total = len(passages)
    with progress_bar("passages, four passes", total) as progress:
        task = progress.add_task("indexing, once", total=4 * total)
        done = 0

        def report() -> None:
            nonlocal done
            done += 1
            if done % 4096 == 0 or done == 4 * total:
                progress.update(task, completed=done)

        vocabulary: dict[str, int] = {}
        documents = _Counted()
        documents.report = report
        for _, contents in passages:
            # 4 bytes a word instead of a list of objects: a million passages fit in memory.
            documents.append(array("i", [vocabulary.setdefault(w, len(vocabulary)) for w in _index_words(contents)]))
            report()
        if not vocabulary:
            return None
        index = bm25s.BM25(k1=k1, b=b, method="lucene", backend="numpy", csc_backend="numpy")
        index.index((documents, vocabulary), create_empty_token=False, show_progress=False)
    return index


def _save(index: bm25s.BM25 | None, folder: Path) -> None:
    if index is None:
        (folder / "empty").touch()
    else:
        index.save(folder, show_progress=False)


def _load(folder: Path) -> bm25s.BM25 | None:
    if (folder / "empty").exists():
        return None
    return bm25s.BM25.load(folder, mmap=True, load_corpus=False, show_progress=False)


def open_bm25(
    corpus: str | Path | None = None,
    passages: Passages | Iterable[Mapping[str, Any]] | None = None,
    k1: float = 1.5,
    b: float = 0.75,
    cache: str | Path | None = None,
) -> BM25:
    """A BM25 retriever over a file or Hub corpus, or over rows in memory.

    Args:
        cache: folder for the index; None is ``$AGENTRL_CACHE`` or ``~/.cache/agentrl``. Corpora under 5,000 passages
            are indexed in memory each time.
    """
    store = open_passages(corpus, passages)
    folder = None if len(store) < SMALL else Path(cache) if cache else default_cache()
    return BM25(store, k1=k1, b=b, cache=folder)
