"""Rows from files, folders and the Hub, with text kept as the text in the file.

JSON Lines, JSON and CSV are read here, because a reader that guesses types turns ISO dates into timestamps, ``0012``
into 12.0 and ``NA`` into null. Parquet, dataset folders and Hub ids go through ``datasets``; where those hold JSON or
CSV files, the files are found and fetched by ``datasets`` and still read here.
"""

from __future__ import annotations

import csv
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentrl.errors import UserError, nearest

if TYPE_CHECKING:
    import datasets

LINES = (".jsonl", ".ndjson", ".json")
TABLES = {".csv": ",", ".tsv": "\t"}
PACKED = (".gz", ".zst", ".xz", ".bz2")


class _Written(float):
    """A JSON number with a point, that remembers how it was written."""

    text: str


def _written(text: str) -> _Written:
    number = _Written(text)
    number.text = text
    return number


def _not_json(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def parse_json(text: str | bytes, where: str) -> Any:
    """The JSON value of ``text``; UserError names ``where`` when it is not JSON or holds text that UTF-8 cannot."""
    try:
        if isinstance(text, bytes):
            text = text.decode("utf-8-sig")
        if "\\ud" in text or "\\uD" in text:
            # Half a surrogate pair is valid JSON but no valid text: tokenizers and hashes fail on it much later.
            json.dumps(json.loads(text), ensure_ascii=False).encode()
        return json.loads(text, parse_float=_written, parse_constant=_not_json)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{where}: not valid JSON ({error})") from None


def as_text(value: Any, where: str) -> str:
    """A scalar as the text in the file: text itself, numbers as written, ``true``/``false``. UserError otherwise."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, _Written):
        return value.text
    if isinstance(value, (int, float)):
        return str(value)
    raise UserError(f"{where} must be text, found {'null' if value is None else f'{value!r} ({type(value).__name__})'}")


class Rows(Sequence[Mapping[str, Any]]):
    """Rows of one data set. ``name`` and :meth:`where` are for messages; ``hash`` is over the content (16 hex)."""

    def __init__(self, name: str, rows: Sequence[Mapping[str, Any]], places: Sequence[str] | None = None):
        self.name = name
        self._rows = rows
        self._places = places

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: Any) -> Any:
        return self._rows[index]

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        return iter(self._rows)

    def where(self, index: int) -> str:
        """``file line n`` (or ``row n``) of a row, for messages."""
        return self._places[index] if self._places else f"{self.name} row {index + 1}"

    @property
    def hash(self) -> str:
        digest = hashlib.sha256()
        for row in self:
            digest.update(json.dumps(row, sort_keys=True, default=str).encode())
        return digest.hexdigest()[:16]


def load_rows(source: str | Path, split: str | None = None) -> Rows:
    """All rows of a JSONL, JSON, CSV, TSV or Parquet file (also packed), a data set folder, or a Hub data set.

    Args:
        source: path, or Hub id as ``owner/name``, ``owner/name:config`` or ``owner/name:config:split``.
        split: split of a folder or Hub data set; default ``train``.

    Raises UserError naming the file, the line and what is wrong.
    """
    files, table = locate(source, split)
    if table is not None:
        return Rows(str(source), table)
    rows: list[Mapping[str, Any]] = []
    places: list[str] = []
    for file in files:
        name = str(source) if len(files) == 1 else f"{source} ({Path(file).name})"
        for place, row in _read(Path(file), name, _suffix(Path(source)) or _suffix(Path(file))):
            if not isinstance(row, Mapping):
                raise UserError(f"{place}: a row must be a JSON object, found {type(row).__name__}")
            rows.append(row)
            places.append(place)
    return Rows(str(source), rows, places)


def locate(source: str | Path, split: str | None = None) -> tuple[list[str], datasets.Dataset | None]:
    """Local files to be read as JSON or CSV, or else the typed table that ``datasets`` loads from disk."""
    path = Path(source).expanduser()
    suffix = _suffix(path)
    if path.is_file():
        if suffix in LINES or suffix in TABLES:
            return [_unpacked(path)], None
        if suffix == ".parquet":
            import datasets

            try:
                return [], datasets.Dataset.from_parquet(str(path))
            except Exception as error:  # pyarrow and datasets share no base class for "this is no Parquet file"
                raise UserError(f"{source}: cannot be read as Parquet ({_first_line(error)})") from None
        raise UserError(f"{source}: unknown file type; use .jsonl, .json, .csv, .tsv or .parquet")
    if not path.is_dir() and (suffix or str(source).count("/") != 1 or str(source)[0] in "./~"):
        raise UserError(_missing(source, path))
    return _through_datasets(str(path) if path.is_dir() else str(source), split)


def _through_datasets(source: str, split: str | None) -> tuple[list[str], datasets.Dataset | None]:
    import datasets

    name, config = source, None
    if not Path(source).is_dir():
        name, *rest = source.split(":")
        config = rest[0] or None if rest else None
        split = split or (rest[1] if len(rest) > 1 else None)
    split = split or "train"
    try:
        builder = datasets.load_dataset_builder(name, config)
        found = builder.config.data_files
        if builder.info.builder_name in ("json", "csv") and found:
            if split not in found:
                raise UserError(f"{source}: no split {split!r}; {nearest(split, found)}")
            return list(datasets.DownloadManager().download_and_extract([str(f) for f in found[split]])), None
        table = datasets.load_dataset(name, config, split=split)
    except UserError:
        raise
    except Exception as error:  # no repository, network, config or split: unrelated classes
        raise UserError(f"{source}: cannot be loaded as a data set ({_first_line(error)})") from None
    assert isinstance(table, datasets.Dataset)
    return [], table


def _read(path: Path, name: str, suffix: str) -> Iterator[tuple[str, Any]]:
    """(place, row) pairs of one JSON, JSONL or CSV file."""
    if suffix in TABLES:
        with path.open(encoding="utf-8-sig", newline="") as text:
            reader = csv.DictReader(text, delimiter=TABLES[suffix], strict=True)
            try:
                for row in reader:
                    place = f"{name} line {reader.line_num}"
                    if None in row or None in row.values():
                        raise UserError(f"{place}: has not as many fields as the header")
                    yield place, row
            except (csv.Error, UnicodeDecodeError) as error:
                raise UserError(f"{name} line {reader.line_num}: {error}") from None
        return
    with path.open("rb") as file:
        if suffix == ".json" and file.read(256).lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"["):
            for i, row in enumerate(parse_json(path.read_bytes(), name), 1):
                yield f"{name} item {i}", row
            return
        file.seek(0)
        for number, line in enumerate(file, 1):
            if line.strip():
                place = f"{name} line {number}"
                yield place, parse_json(line, place)


def _suffix(path: Path) -> str:
    """The file type, looking through a packing suffix: ``.jsonl`` of ``a.jsonl.gz``; empty when it is none we read."""
    suffixes = [s.lower() for s in path.suffixes if s.lower() not in PACKED]
    known = (*LINES, *TABLES, ".parquet")
    return suffixes[-1] if suffixes and suffixes[-1] in known else ""


def _unpacked(path: Path) -> str:
    if path.suffix.lower() not in PACKED:
        return str(path)
    import datasets

    return str(datasets.DownloadManager().download_and_extract(str(path)))


def _missing(source: str | Path, path: Path) -> str:
    folder = path.parent
    if not folder.is_dir():
        return f"{source}: no such file (there is no folder {folder})"
    names = [p.name for p in folder.iterdir()]
    hint = nearest(path.name, names)
    return f"{source}: no such file" + (f"; {hint}" if hint.startswith("did you mean") else f" in {folder}")


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
