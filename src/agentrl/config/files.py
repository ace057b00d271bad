"""The YAML files behind a composed config: which one set a key, and what YAML 1.1 would silently misread."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from agentrl.errors import UserError

LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(frozen=True)
class File:
    """One YAML file with the dotted prefix its keys get ("" for the root)."""

    path: Path
    prefix: str
    data: Any

    def sets(self, key: str) -> bool:
        """Whether this file has the dotted key."""
        if self.prefix:
            if not key.startswith(self.prefix + "."):
                return False
            key = key[len(self.prefix) + 1 :]
        node = self.data
        for part in key.split("."):
            if not isinstance(node, dict) or part not in node:
                return False
            node = node[part]
        return True


def read(path: Path, prefix: str) -> File:
    """Read and lint one file. Raises UserError naming file and line."""
    shown = os.path.relpath(path)
    text = path.read_text(encoding="utf-8")
    try:
        node = yaml.compose(text, Loader=LOADER)
        data = yaml.load(text, Loader=LOADER)
    except yaml.YAMLError as error:
        raise UserError(yaml_message(error, shown)) from None
    if node is not None:
        _lint(node, shown)
    return File(path, prefix, data)


def yaml_message(error: yaml.YAMLError, shown: str) -> str:
    """One line for a YAML syntax error."""
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or str(error).splitlines()[0]
    line = f":{mark.line + 1}" if mark else ""
    return f"{shown}{line}: not valid YAML: {problem}"


def _lint(node: yaml.Node, shown: str) -> None:
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            _lint(key, shown)
            _lint(value, shown)
    elif isinstance(node, yaml.SequenceNode):
        for value in node.value:
            _lint(value, shown)
    elif isinstance(node, yaml.ScalarNode) and not node.style:  # plain, not quoted
        raw, kind = node.value, node.tag.rpartition(":")[2]
        at = f"{shown}:{node.start_mark.line + 1}"
        if kind == "bool" and raw.lower() not in ("true", "false"):
            meant = "true" if raw.lower() in ("yes", "on", "y") else "false"
            raise UserError(f'{at}: YAML reads {raw} as {meant}; write {meant}, or "{raw}" for the text')
        if kind in ("int", "float") and (":" in raw or re.match(r"[-+]?0[0-9_]", raw)):
            value = yaml.safe_load(raw)
            raise UserError(f'{at}: YAML reads {raw} as {value}; write {value}, or "{raw}" for the text')


def setter(files: Sequence[File], key: str) -> File | None:
    """The last file (in order of composition) that sets the key."""
    return next((f for f in reversed(files) if f.sets(key)), None)
