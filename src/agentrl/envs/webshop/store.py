"""One read-only store of products, shared by every session: rows of bytes, an id index, and BM25 search."""

from __future__ import annotations

import hashlib
import mmap
import random
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TypeVar

import numpy as np

from agentrl.envs.webshop.product import Product
from agentrl.retrieval.bm25 import BM25, SMALL
from agentrl.retrieval.cache import cached, default_cache

K1, B = 0.9, 0.4  # Pyserini's, which the original's index is searched with
_FORMAT = 1  # of the row files: raise it when rows change


S = TypeVar("S", bound="Store")


class FileRows(Sequence[bytes]):
    """Rows in one file, mapped into memory: 8 bytes of our own memory per row; the kernel keeps what is in use."""

    def __init__(self, folder: Path):
        self._file = (folder / "rows").open("rb")
        self._map = mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ)
        self._ends = np.load(folder / "ends.npy")

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, index):  # type: ignore[no-untyped-def]
        start = int(self._ends[index - 1]) if index else 0
        return self._map[start : int(self._ends[index])]

    def close(self) -> None:
        self._map.close()
        self._file.close()


def _write(products: Iterable[Product], folder: Path) -> None:
    ends, asins, total = [], [], 0
    digest = hashlib.sha256()
    with (folder / "rows").open("wb") as file:
        for product in products:
            row = product.to_row()
            digest.update(row)
            file.write(row)
            total += len(row)
            ends.append(total)
            asins.append(product.asin)
    np.save(folder / "ends.npy", np.asarray(ends, dtype=np.int64))
    np.save(folder / "asins.npy", np.asarray(asins, dtype="U10").astype("S10"))
    (folder / "hash").write_text(digest.hexdigest()[:32])


class Store:
    """A catalogue. Reading and searching are thread-safe. ``hash`` is over the content (32 hex digits).

    It is also the corpus of its own search index (:class:`agentrl.retrieval.passages.Passages`).
    """

    def __init__(self, rows: Sequence[bytes], asins: np.ndarray, digest: str, cache: Path | None):
        self._rows = rows
        self._order = np.argsort(asins, kind="stable")
        self._sorted = asins[self._order]
        self.hash = digest
        self._cache = cache
        self._lock = threading.Lock()
        self._index: BM25 | None = None
        self._groups: dict[tuple[str, str], list[int]] | None = None
        self.product: Callable[[int], Product] = lru_cache(maxsize=4096)(self._product)
        """The product of a number."""

    @classmethod
    def of(cls: type[S], products: Iterable[Product]) -> S:
        """A store in memory."""
        rows, asins = [], []
        digest = hashlib.sha256()
        for product in products:
            rows.append(product.to_row())
            asins.append(product.asin)
            digest.update(rows[-1])
        return cls(rows, np.asarray(asins, dtype="U10").astype("S10"), digest.hexdigest()[:32], None)

    @classmethod
    def kept(cls, key: str, products: Callable[[], Iterable[Product]], cache: Path | None = None) -> Store:
        """A store in a file of the cache folder, written once. ``key`` names the source and its version."""
        name = "webshop-" + hashlib.sha256(f"{_FORMAT}|{key}".encode()).hexdigest()[:24]

        def load(folder: Path) -> Store:
            rows = FileRows(folder)
            return cls(rows, np.load(folder / "asins.npy"), (folder / "hash").read_text(), cache or default_cache())

        return cached(cache or default_cache(), name, lambda folder: _write(products(), folder), load)

    # --- as a corpus

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> tuple[str, str]:
        product = self.product(index)
        return product.asin, product.indexed

    def __iter__(self) -> Iterator[tuple[str, str]]:
        for row in self._rows:
            product = Product.from_row(row)
            yield product.asin, product.indexed

    def close(self) -> None:
        if isinstance(self._rows, FileRows):
            self._rows.close()

    # --- as a shop

    def _product(self, index: int) -> Product:
        return Product.from_row(self._rows[index])

    def products(self) -> Iterator[Product]:
        """All products in order, read one at a time."""
        return map(Product.from_row, self._rows)

    def find(self, asin: str) -> int | None:
        """The number of the product with an id, or None."""
        key = np.bytes_(asin.encode("ascii", "replace")[:11])
        at = int(np.searchsorted(self._sorted, key))
        return int(self._order[at]) if at < len(self._sorted) and self._sorted[at] == key else None

    def search(self, query: str, count: int, seed: int = 0) -> list[int]:
        """Numbers of at most ``count`` products for the words of a query, best first.

        The original's special queries: ``<r>`` draws by ``seed``; ``<a> attribute``, ``<c> category`` and ``<q> query``
        list products of one attribute, category or query, in catalogue order.
        """
        kind, _, rest = query.strip().partition(" ")
        if kind == "<r>":
            return random.Random(f"draw {seed}").sample(range(len(self)), min(count, len(self)))
        if kind in ("<a>", "<c>", "<q>"):
            return self._grouped().get((kind, rest.strip()), [])[:count]
        found = (self.find(hit.id) for hit in self._searcher().search([query], count)[0])
        return [index for index in found if index is not None]

    def prepare(self) -> None:
        """Build or open the search index."""
        self._searcher()

    def _searcher(self) -> BM25:
        with self._lock:
            if self._index is None:
                folder = None if len(self) < SMALL else self._cache or default_cache()
                self._index = BM25(self, k1=K1, b=B, cache=folder)
            return self._index

    def _grouped(self) -> dict[tuple[str, str], list[int]]:
        with self._lock:
            if self._groups is None:
                self._groups = {}
                for index, product in enumerate(self.products()):
                    keys = [("<c>", product.category), ("<q>", product.query)]
                    keys += [("<a>", attribute) for attribute in product.attributes]
                    for key in keys:
                        self._groups.setdefault(key, []).append(index)
            return self._groups
