"""The text protocol: what counts as an action. It is the original's grammar, ``search[words]`` and ``click[text]``.

An action is the policy's text up to the first ``]``. The last line must be the action and nothing else; lines before it
are free text that counts for nothing, and so does everything inside ``<think>`` and ``</think>``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

STOP = ("]",)
HOW = "Write search[words], or click[text] with something to click on the page."

_ACTION = re.compile(r"(search|click)\s*\[([^\[\]]*)\]", re.IGNORECASE)
_THINK = re.compile(r"<think>.*?</think>", re.DOTALL)


@dataclass(frozen=True)
class Action:
    """``kind`` is search, click or invalid; ``text`` is the argument (lower case, single spaces) or what is wrong."""

    kind: str
    text: str


def parse(text: str) -> Action:
    """Read an action; never raises."""
    outside = _THINK.sub("\n", text)
    if "<think>" in outside:
        return Action("invalid", "the thought is not closed: end it with </think>, and write no ] in it")
    lines = outside.strip().split("\n")
    last = lines[-1].strip()
    found = _ACTION.fullmatch(last)
    if found is None:
        if not outside.strip():
            return Action("invalid", "nothing was written")
        if re.search(rf"(?<!\w){_ACTION.pattern}", last, re.IGNORECASE):
            return Action("invalid", "the action must stand alone on its line")
        if re.match(r"(?i)(search|click)\s*\[", last):
            return Action(
                "invalid", "the bracket is not closed" if "]" not in last else "no [ or ] inside the brackets"
            )
        return Action("invalid", "this is no action")
    kind, argument = found[1].lower(), " ".join(found[2].split()).lower()
    if not argument:
        return Action("invalid", f"{kind}[] is empty")
    return Action(kind, argument)
