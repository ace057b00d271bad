"""The original's files: products, attributes and human instructions, read as WebShop's loader reads them.

The big files are one JSON array or object each (gigabytes); they are read piece by piece, never as a whole.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from agentrl.envs.webshop.product import NO_PRICE, Product
from agentrl.errors import UserError

CHUNK = 1 << 20
_SPACE = re.compile(r"[\s,]*")
_BLANK = re.compile(r"\s*")
_DOLLARS = re.compile(r"[^\d.]")


class _Pieces:
    """A JSON file read piece by piece: ``text`` from ``at`` on is what is not used yet."""

    def __init__(self, file: IO[str]):
        self._file = file
        self._decoder = json.JSONDecoder()
        self.text, self.at = "", 0

    def more(self) -> bool:
        piece = self._file.read(max(CHUNK, len(self.text) - self.at))
        self.text, self.at = self.text[self.at :] + piece, 0
        return bool(piece)

    def peek(self) -> str:
        """The next character that is neither space nor comma, not taken; empty at the end."""
        while True:
            self.at = _SPACE.match(self.text, self.at).end()  # type: ignore[union-attr]
            if self.at < len(self.text) or not self.more():
                return self.text[self.at : self.at + 1]

    def value(self) -> Any:
        """The value that begins here. It is whole only when what follows it is there too: 1 may go on as 1.5."""
        failure = ValueError("it ends in the middle of a value")
        while True:
            self.peek()
            try:
                found, end = self._decoder.raw_decode(self.text, self.at)
                end = _BLANK.match(self.text, end).end()  # type: ignore[union-attr]
                if self.text[end : end + 1] in (",", "]", "}", ":"):
                    self.at = end
                    return found
            except ValueError as error:
                failure = error
            if not self.more():
                raise failure


def stream(path: Path) -> Iterator[tuple[str, Any]]:
    """The items of a file's top-level array, or the values of its top-level object, as (key, value).

    The key of an array's item is its number from 1. Memory is that of the largest item. Raises UserError for a file
    that cannot be read or is no such JSON.
    """
    try:
        with path.open(encoding="utf-8-sig") as file:
            pieces = _Pieces(file)
            opening = pieces.peek()
            if opening not in ("[", "{"):
                raise UserError(f"{path}: must be a JSON array or object")
            pieces.at += 1
            number = 0
            while (after := pieces.peek()) not in ("]", "}"):
                if not after:
                    raise ValueError("it ends before its last bracket")
                number += 1
                key = str(number)
                if opening == "{":
                    key = str(pieces.value())
                    if pieces.peek() != ":":
                        raise ValueError(f"a ':' is missing after {key!r}")
                    pieces.at += 1
                yield key, pieces.value()
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: not valid JSON ({error})") from None


def products(items: Path, attributes: Path, limit: int | None = None) -> Iterator[Product]:
    """The products of ``items`` with the attributes of ``attributes``; ``limit`` takes the first so many of the file.

    As in the original, a product without a plain ten-letter id and the second product of one id are left out. Raises
    UserError naming file, item and field.
    """
    # JSON text takes a tenth of the memory of the objects.
    known = {asin: json.dumps(value).encode() for asin, value in stream(attributes)}
    seen: set[str] = set()
    for number, item in stream(items):
        if limit is not None and int(number) > limit:
            return
        where = f"{items}, item {number}"
        if not isinstance(item, Mapping):
            raise UserError(f"{where}: a product must be an object, found {type(item).__name__}")
        asin = _text(item, "asin", where)
        if asin == "nan" or not 0 < len(asin) <= 10 or asin in seen:
            continue
        seen.add(asin)
        extra = known.get(asin)
        yield _product(asin, item, json.loads(extra) if extra else {}, where)


def _product(asin: str, item: Mapping[str, Any], extra: Mapping[str, Any], where: str) -> Product:
    bullets = item.get("small_description") or []
    if not isinstance(extra, Mapping):
        raise UserError(f"{where}: the attributes of {asin!r} must be an object, found {type(extra).__name__}")
    return Product(
        asin=asin,
        title=_text(item, "name", where),
        description=str(item.get("full_description") or ""),
        bullets=[str(b) for b in bullets] if isinstance(bullets, list) else [str(bullets)],
        category=_text(item, "category", where),
        query=_text(item, "query", where).lower().strip(),
        product_category=_text(item, "product_category", where),
        prices=_prices(item.get("pricing"), where),
        options=_options(item.get("customization_options") or {}, where),
        attributes=_list(extra, "attributes", where) or ["DUMMY_ATTR"],
        rating=str(item.get("average_rating") or ""),
        instruction=extra.get("instruction"),
        instruction_attributes=_list(extra, "instruction_attributes", where),
    )


def _options(found: Any, where: str) -> dict[str, list[str]]:
    """Option name → values, lower case; names without a value are left out."""
    try:
        values = {name.lower(): [str(c["value"]) for c in contents] for name, contents in found.items() if contents}
    except (AttributeError, KeyError, TypeError):
        raise UserError(
            f"{where}: field 'customization_options' must map names to lists of objects with a 'value', "
            f"found {found!r:.120}"
        ) from None
    return {name: [v.strip().replace("/", " | ").lower() for v in own] for name, own in values.items()}


def _list(extra: Mapping[str, Any], key: str, where: str) -> list[str]:
    value = extra.get(key) or []
    if not isinstance(value, list):
        raise UserError(f"{where}: '{key}' of the file of attributes must be a list, found {value!r:.80}")
    return [str(v) for v in value]


def _text(item: Mapping[str, Any], key: str, where: str) -> str:
    value = item.get(key)
    if not isinstance(value, str):
        raise UserError(f"{where}: field '{key}' must be text, found {value!r}")
    return value


def _prices(text: Any, where: str) -> list[float]:
    """``$1,299.00`` → [1299.0]; ``$10.00$20.00`` → [10.0, 20.0]; nothing → [100.0]."""
    if not text:
        return [NO_PRICE]
    try:
        found = [float(_DOLLARS.sub("", part)) for part in str(text).split("$")[1:]]
    except ValueError:
        raise UserError(f"{where}: field 'pricing' must hold dollar amounts, found {text!r}") from None
    return found[:2] or [NO_PRICE]


def human_instructions(path: Path) -> dict[str, list[Mapping[str, Any]]]:
    """``{asin: instructions}`` of the file of human goals. Raises UserError naming the asin and the field."""
    found: dict[str, list[Mapping[str, Any]]] = {}
    for asin, entries in stream(path):
        if not isinstance(entries, list):
            raise UserError(f"{path}: the value of {asin!r} must be a list of instructions")
        for entry in entries:
            for key, kind in (("instruction", str), ("instruction_attributes", list), ("instruction_options", list)):
                if not isinstance(entry, Mapping) or not isinstance(entry.get(key), kind):
                    raise UserError(f"{path}: {asin!r}: an instruction needs '{key}', a {kind.__name__}")
        found[asin] = entries
    return found
