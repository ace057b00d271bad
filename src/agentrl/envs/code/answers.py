"""Finding the answer in a text: boxed, in a fence, or (only where asked for) the last number."""

from __future__ import annotations

import re

_BOX = re.compile(r"\\boxed\s*\{")
_OPENING = re.compile(r"[ \t]*```[ \t]*(\w*)")
_NUMBER = re.compile(r"(?<![\w.])[-+]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?:/\d+)?(?![\w/])")

PYTHON = ("", "python", "py", "python3")
"""What may stand behind the opening of a fence."""


class Unclosed(ValueError):
    """The last ``\\boxed{`` never closes, so it is not known what the answer is."""


def boxed(text: str) -> str | None:
    """The content of the last ``\\boxed{…}``, braces matched, or None without one. Raises Unclosed."""
    start = None
    for match in _BOX.finditer(text):
        start = match.end()
    if start is None:
        return None
    depth, i = 1, start
    while i < len(text):
        if text[i] == "\\":
            i += 2
            continue
        depth += {"{": 1, "}": -1}.get(text[i], 0)
        if depth == 0:
            return text[start:i].strip()
        i += 1
    raise Unclosed


def fenced(text: str) -> list[tuple[str, str]]:
    """(language, content) of every fenced block, in order; the fences stand on lines of their own."""
    found: list[tuple[str, str]] = []
    language: str | None = None
    block: list[str] = []
    for line in text.split("\n"):  # one pass: a pattern over the whole text takes quadratic time where many fences open
        if language is None:
            opening = _OPENING.match(line)
            language, block = (opening.group(1).lower() if opening else None), []
        elif line.strip(" \t\r") == "```":
            found.append((language, "".join(f"{kept}\n" for kept in block)))
            language = None
        else:
            block.append(line)
    return found


def last_number(text: str) -> str | None:
    """The last number written in the text. Lenient, and easily wrong: only used where a config asks for it."""
    found = _NUMBER.findall(text)
    return found[-1] if found else None
