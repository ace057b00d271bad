"""From plain YAML data to the typed Config, with errors that name the key, the value and the nearest valid name."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Union

from agentrl.config import rules
from agentrl.config.schema import Config
from agentrl.errors import UserError, nearest

Where = Callable[[str, Any], str]
"""Dotted key and value → where it was set, e.g. ``algo.group_size=zero`` or ``configs/algo/mine.yaml: …``."""


def hints(cls: type) -> dict[str, Any]:
    """Field name → type of a dataclass of the schema."""
    return typing.get_type_hints(cls)


def leaf_keys(cls: type = Config, prefix: str = "") -> Iterator[str]:
    """Every dotted key of the schema that holds a value."""
    for name, tp in hints(cls).items():
        if dataclasses.is_dataclass(tp):
            yield from leaf_keys(typing.cast(type, tp), f"{prefix}{name}.")
        else:
            yield prefix + name


def key_type(key: str) -> Any:
    """The type at a dotted key. Raises UserError with the nearest key when the schema has no such key.

    Below an open mapping (``env.options``, a reward component's ``options``) every key is allowed, with type Any.
    """
    tp: Any = Config
    parts = key.split(".")
    for i, part in enumerate(parts):
        if dataclasses.is_dataclass(tp):
            fields = hints(typing.cast(type, tp))
            if part not in fields:
                raise UserError(f"there is no key '{key}'; {_nearest_key(parts, i, list(fields))}")
            tp = fields[part]
        elif typing.get_origin(tp) is dict:
            tp = typing.get_args(tp)[1]
        elif tp is Any:
            return Any
        else:
            parent = ".".join(parts[:i])
            raise UserError(f"there is no key '{key}'; '{parent}' is a single value")
    return tp


def _nearest_key(parts: list[str], bad: int, siblings: list[str]) -> str:
    """Prefer the same last name elsewhere, then a close sibling, then a close last name anywhere."""
    leaves = list(leaf_keys())
    same = [k for k in leaves if k.split(".")[-1] == parts[-1]]
    if same:
        return "did you mean " + " or ".join(f"'{k}'" for k in same) + "?"
    prefix = ".".join(parts[:bad])
    hint = closest(parts[bad], siblings)
    if hint:
        return f"did you mean '{prefix + '.' if prefix else ''}{hint}'?"
    return f"valid keys{' in ' + prefix if prefix else ''}: " + ", ".join(sorted(siblings))


def closest(name: str, choices: list[str]) -> str | None:
    """The one choice that ``name`` starts with (``enviroment`` → ``env``) or starts, or that is close by spelling."""
    starts = {c for c in choices if (len(c) > 2 and name.startswith(c)) or (len(name) > 1 and c.startswith(name))}
    if len(starts) == 1:
        return starts.pop()
    hint = nearest(name, choices)
    return hint.split("'")[1] if hint.startswith("did you mean") else None


def build(data: Mapping[str, Any], where: Where, text: Mapping[str, str]) -> Config:
    """Plain nested data → Config, every value typed and held against its choices and bounds.

    ``text`` maps a key set on the command line to what was typed, so that text stays as typed (``no``, ``1.0``).
    """
    return typing.cast(Config, _build(Config, data, "", where, text))


def _build(tp: Any, value: Any, key: str, where: Where, text: Mapping[str, str]) -> Any:
    if dataclasses.is_dataclass(tp):
        if not isinstance(value, Mapping):
            raise UserError(f"{where(key, value)}: {key} is a group of keys, not a single value")
        fields = hints(typing.cast(type, tp))
        for name in value:
            full = f"{key}.{name}" if key else str(name)
            try:
                key_type(full)
            except UserError as error:
                raise UserError(f"{where(full, value[name])}: {error}") from None
        return typing.cast(type, tp)(
            **{
                name: _build(fields[name], item, f"{key}.{name}" if key else name, where, text)
                for name, item in value.items()
            }
        )
    if typing.get_origin(tp) is dict:
        if value is None:
            return {}
        if not isinstance(value, Mapping):
            raise UserError(f"{where(key, value)}: {key} is a mapping, e.g. {{name: value}}")
        item_type = typing.get_args(tp)[1]
        return {str(n): _build(item_type, v, f"{key}.{n}", where, text) for n, v in value.items()}
    typed = coerce(tp, value, key, where, text)
    if typed is not None:
        rules.check_value(key, typed, where(key, value))
    return typed


def coerce(tp: Any, value: Any, key: str, where: Where, text: Mapping[str, str]) -> Any:
    """``value`` as type ``tp`` (bool, int, float, str, list of them, Optional, Any). Raises UserError."""
    args = typing.get_args(tp)
    if typing.get_origin(tp) in (Union, types.UnionType):
        if type(None) in args and value is None:
            return None
        rest = [a for a in args if a is not type(None)]
        return coerce(rest[0], value, key, where, text) if len(rest) == 1 else value
    wrong = where(key, value)
    if tp is bool:
        if isinstance(value, bool):
            return value
        raise UserError(f"{wrong}: {key} must be true or false")
    if tp is int:
        if isinstance(value, int) and not isinstance(value, bool):
            return value
        if isinstance(value, float) and value.is_integer():
            return int(value)
        raise UserError(f"{wrong}: {key} must be a whole number")
    if tp is float:
        if isinstance(value, (int, float, str)) and not isinstance(value, bool):
            try:
                return float(value)  # YAML 1.1 reads 1e-5 as text
            except ValueError:
                pass
        raise UserError(f"{wrong}: {key} must be a number")
    if tp is str:
        if isinstance(value, str):
            return value
        if key in text and not isinstance(value, (list, dict)) and value is not None:
            return text[key]
        if value is None:
            raise UserError(f"{wrong}: {key} cannot be null")
        kind = "a list" if isinstance(value, list) else "a mapping" if isinstance(value, dict) else "something else"
        raise UserError(f"{wrong}: {key} is text, but this reads as {kind}; {quoted(key, value, text)}")
    if typing.get_origin(tp) is list:
        if not isinstance(value, list):
            raise UserError(f"{wrong}: {key} is a list, e.g. {key}=[a,b]")
        return [coerce(args[0], v, key, where, {key: str(v)} if key in text else {}) for v in value]
    return value


def quoted(key: str, value: Any, text: Mapping[str, str]) -> str:
    """How to write a value so that it is read as text, on the command line or in YAML."""
    if key in text:
        return f"to mean the text, quote it: {shell_quoted(key, text[key])}"
    return f'to mean the text, put it in quotes: {key.split(".")[-1]}: "{value}"'


def shell_quoted(key: str, raw: str) -> str:
    """``'key="raw"'``, as typed in a shell."""
    inner = raw.strip("\"'").replace("\\", "\\\\").replace('"', '\\"')
    body = f'{key}="{inner}"'.replace("'", "'\\''")
    return f"'{body}'"
