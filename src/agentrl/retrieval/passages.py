"""Corpora: numbered passages that are read when asked for, not held as Python objects."""

from __future__ import annotations

import hashlib
import json
import os
from array import array
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from agentrl.data import as_text, load_rows, locate, parse_json
from agentrl.errors import UserError

if TYPE_CHECKING:
    import datasets


class Passages(Protocol):
    """A read-only corpus, numbered from 0. Reading is thread-safe."""

    hash: str  # hex digits over the content: equal hashes mean the same passages in the same order

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> tuple[str, str]:
        """(id, contents) of passage ``index``."""
        ...

    def __iter__(self) -> Iterator[tuple[str, str]]: ...

    def close(self) -> None: ...


def passage(row: Any, where: str) -> tuple[str, str]:
    """(id, contents) of a corpus row, which may also be ``{id, title, text}``.

    Raises UserError naming ``where`` and the field.
    """
    if not isinstance(row, Mapping):
        raise UserError(f"{where}: a passage must be an object with 'id' and 'contents', not {type(row).__name__}")
    key = as_text(row.get("id", row.get("_id")), f"{where}: field 'id'")
    contents = row.get("contents")
    if contents is None and isinstance(row.get("title"), str) and isinstance(row.get("text"), str):
        contents = f"{row['title']}\n{row['text']}"
    if not isinstance(contents, str):
        raise UserError(f"{where}: field 'contents' must be text, found {contents!r}")
    return key, contents


class ListPassages:
    """A small corpus in memory, from ``{"id", "contents"}`` rows."""

    def __init__(self, rows: Iterable[Mapping[str, Any]], name: str = "passages"):
        self._rows = [passage(row, f"{name}[{i}]") for i, row in enumerate(rows)]
        digest = hashlib.sha256()
        for key, contents in self._rows:
            digest.update(json.dumps([key, contents]).encode())
        self.hash = digest.hexdigest()[:32]

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> tuple[str, str]:
        return self._rows[index]

    def __iter__(self) -> Iterator[tuple[str, str]]:
        return iter(self._rows)

    def close(self) -> None:
        pass


class FilePassages:
    """A JSONL corpus that stays in its file: 8 bytes of memory per passage (where its line begins)."""

    def __init__(self, path: str | Path, name: str = ""):
        self.path = Path(path)
        self._name = f"corpus {name or path}"
        try:
            self._file = self.path.open("rb")
        except OSError as error:
            raise UserError(f"{self._name}: {error.strerror}") from None
        digest = hashlib.sha256()
        starts = array("q")
        numbers = array("q")  # line numbers, for messages
        offset = 0
        for number, line in enumerate(self._file, 1):
            digest.update(line)
            if line.strip():
                starts.append(offset)
                numbers.append(number)
            offset += len(line)
        starts.append(offset)
        self._starts = np.frombuffer(starts, dtype=np.int64)
        self._numbers = np.frombuffer(numbers, dtype=np.int64)
        self.hash = digest.hexdigest()[:32]

    def __len__(self) -> int:
        return len(self._starts) - 1

    def __getitem__(self, index: int) -> tuple[str, str]:
        start, end = int(self._starts[index]), int(self._starts[index + 1])
        # pread has no shared file position, so threads do not disturb one another.
        return self._parse(os.pread(self._file.fileno(), end - start, start), index)

    def __iter__(self) -> Iterator[tuple[str, str]]:
        index = 0
        with self.path.open("rb") as lines:
            for line in lines:
                if line.strip():
                    yield self._parse(line, index)
                    index += 1

    def _parse(self, line: bytes, index: int) -> tuple[str, str]:
        where = f"{self._name} line {int(self._numbers[index])}"
        return passage(parse_json(line.split(b"\n", 1)[0], where), where)

    def close(self) -> None:
        self._file.close()


class TablePassages:
    """A Parquet or Hub corpus, through ``datasets``: an Arrow table mapped from disk."""

    def __init__(self, table: datasets.Dataset, name: str):
        self._name = f"corpus {name}"
        self._table = table
        digest = hashlib.sha256()
        for key, contents in self:
            digest.update(json.dumps([key, contents]).encode())
        self.hash = digest.hexdigest()[:32]

    def __len__(self) -> int:
        return len(self._table)

    def __getitem__(self, index: int) -> tuple[str, str]:
        return passage(self._table[index], f"{self._name} row {index + 1}")

    def __iter__(self) -> Iterator[tuple[str, str]]:
        for index, row in enumerate(self._table):
            yield passage(row, f"{self._name} row {index + 1}")

    def close(self) -> None:
        pass


def open_passages(
    corpus: str | Path | None = None, passages: Passages | Iterable[Mapping[str, Any]] | None = None
) -> Passages:
    """A corpus from exactly one of: a file, folder or Hub id (JSONL is best for large ones), or rows in memory.

    A corpus that is open already may be given as ``passages``.

    Raises UserError saying what is wrong with it.
    """
    if (corpus is None) == (passages is None):
        raise UserError("a retriever needs exactly one of 'corpus' (file or Hub id) and 'passages' (list)")
    if passages is not None:
        return passages if hasattr(passages, "hash") else ListPassages(passages)  # type: ignore[return-value]
    assert corpus is not None
    files, table = locate(corpus)
    if table is not None:
        return TablePassages(table, str(corpus))
    if len(files) == 1 and not str(corpus).endswith((".json", ".csv", ".tsv")):
        return FilePassages(files[0], name=str(corpus))
    return ListPassages(load_rows(corpus), name=str(corpus))
