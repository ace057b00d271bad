"""Command-line overrides in Hydra's grammar, one at a time, so that every mistake is one clear line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentrl.config.typed import closest, key_type, leaf_keys, shell_quoted
from agentrl.errors import UserError, nearest


@dataclass(frozen=True)
class Value:
    """``key=value`` for a dotted key, or its removal from an open mapping (``~key``)."""

    key: str
    value: Any
    typed: str  # the whole override as it was typed
    raw: str | None  # the text after "=", or None where it was quoted (then value already is the text)
    remove: bool = False


def parse(overrides: Sequence[str], groups: Mapping[str, Sequence[str]]) -> tuple[list[str], list[Value]]:
    """Split overrides into group choices (Hydra strings, checked to exist) and values (keys checked to exist).

    Raises UserError naming the key, the value and the nearest valid choice.
    """
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.core.override_parser.types import OverrideType, QuotedString
    from hydra.errors import HydraException

    parser = OverridesParser.create()
    chosen: list[str] = []
    values: list[Value] = []
    for text in overrides:
        name, equals, raw = text.partition("=")
        key = name.strip().lstrip("+~")
        removes = name.startswith("~")
        if not equals and not removes:
            raise UserError(_not_an_override(text, groups))
        if not removes:
            _check_known(key, raw, text, groups)
        try:
            parsed = parser.parse_override(text)
        except HydraException:
            raise UserError(f"{text}: the value needs quotes: {shell_quoted(name, raw)}") from None
        if parsed.is_sweep_override():
            raise UserError(
                f"{text}: one value for a key (sweeps are not run); a list is written {key}=[{raw}], "
                f"text with commas {shell_quoted(name, raw)}"
            )
        if key in groups:
            if removes:
                raise UserError(f"{text}: a group cannot be removed; choose one of: {', '.join(groups[key])}")
            chosen.append(f"{key}={raw}")
            continue
        if removes:
            _check_removable(key, text)
        value = parsed.value()
        is_quoted = isinstance(parsed._value, QuotedString)
        values.append(Value(key, value, text, None if is_quoted else raw, parsed.type is OverrideType.DEL))
    return chosen, values


def _check_known(key: str, raw: str, text: str, groups: Mapping[str, Sequence[str]]) -> None:
    if key in groups:
        if raw not in groups[key] and not (raw == "null" and key == "experiment"):
            raise UserError(f"{text}: there is no {key} '{raw}'; {nearest(raw, groups[key])}")
        return
    if not key:
        raise UserError(f"{text}: there is no key before '='; write key=value")
    if "." not in key:
        hint = closest(key, [*groups, *{k.split(".")[0] for k in leaf_keys()}])
        if hint and all(k.split(".")[-1] != key for k in leaf_keys()):
            raise UserError(f"{text}: there is no key '{key}'; did you mean '{hint}'?")
    try:
        key_type(key)
    except UserError as error:
        raise UserError(f"{text}: {error}") from None


def _check_removable(key: str, text: str) -> None:
    parent = key.rpartition(".")[0]
    if parent != "reward.components" and not (parent + ".").startswith(("env.options.", "reward.components.")):
        raise UserError(f"{text}: only env.options.* and reward.components.* can be removed")


def _not_an_override(text: str, groups: Mapping[str, Sequence[str]]) -> str:
    if text in groups:
        return f"{text}: '=' is missing; write {text}=NAME with one of: {', '.join(groups[text])}"
    for group, names in groups.items():
        if text in names:
            return f"{text}: '=' is missing; did you mean '{group}={text}'?"
    if text in set(leaf_keys()):
        return f"{text}: '=' is missing; write {text}=VALUE"
    hint = closest(text, [*groups, *leaf_keys()])
    return f"{text}: '=' is missing; write key=value" + (f", e.g. {hint}=VALUE" if hint else "")
