"""The text protocol: what counts as an action, how results are shown, and what a wrong action is told.

An action is the policy's text up to its stop string. It is read once, left to right:

* Inside ``<think>`` nothing counts until ``</think>``; the same holds for an ``<information>`` block that the policy
  wrote itself. An element that never closes hides everything after it.
* Outside, the first complete ``<search>…</search>`` or ``<answer>…</answer>`` is the action. Whatever follows it is not
  looked at, so of several answers in one action the first counts.
* Between the two tags no other tag of the protocol may stand: ``<search> x <answer> y </answer>`` is malformed, not
  an answer.
* Closing tags without an opening one are ignored. Tags are lower case, without spaces or attributes.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

TAGS = ("think", "search", "information", "answer")
STOP = ("</search>", "</answer>")

_TAG = re.compile(r"<(/?)(think|search|information|answer)>")
_LOOKS_LIKE_TAG = re.compile(r"<(\s*/?\s*(?:think|search|information|answer)\b[^<>]*)>?", re.IGNORECASE)
_WELL_FORMED = re.compile(
    r"\s*<think>(?P<think>.*?)</think>\s*<(?P<kind>search|answer)>(?P<text>.*?)</(?P=kind)>\s*", re.DOTALL
)

HOW = "Write <search> query </search> to look something up, or <answer> answer </answer> to finish."
FEEDBACK = {
    "no_tag": "Invalid: there is no <search> or <answer>. " + HOW,
    "unclosed_think": "Invalid: <think> was not closed. Think briefly and close it with </think>. " + HOW,
    "unclosed": "Invalid: {tag} was not closed. Be brief and close it. " + HOW,
    "nested": "Invalid: {tag} must be closed before another tag. " + HOW,
    "own_information": "Invalid: only the search tool writes <information>. " + HOW,
    "empty_search": "Invalid: the search query is empty. Put words between <search> and </search>.",
    "empty_answer": "Invalid: the answer is empty. Put it between <answer> and </answer>.",
}
NO_SEARCH_LEFT = "No search is left. Give your answer now: <answer> answer </answer>."
LAST_SEARCH = "That was the last search. Now give your answer: <answer> answer </answer>."
NO_RESULTS = "No results were found for this query."


@dataclass(frozen=True)
class Action:
    """``kind`` is "search", "answer" or "invalid"; ``text`` the query or answer, or the FEEDBACK key of the reason."""

    kind: str
    text: str
    tag: str = ""


def parse(action: str) -> Action:
    """Read one action by the rules above. Never raises."""
    hidden: str | None = None  # the think or information block we are in
    opened: tuple[str, int] | None = None  # the search or answer element we are in, and where its text starts
    wrote_information = False
    for match in _TAG.finditer(action):
        closing, tag = match.group(1) == "/", match.group(2)
        if hidden is not None:
            if closing and tag == hidden:
                hidden = None
            continue
        if opened is not None:
            kind, start = opened
            if not closing or tag != kind:
                return Action("invalid", "nested", kind)
            text = " ".join(action[start : match.start()].split())
            return Action(kind, text) if text else Action("invalid", f"empty_{kind}", kind)
        if closing:
            continue
        if tag in ("think", "information"):
            hidden = tag
            wrote_information |= tag == "information"
        else:
            opened = (tag, match.end())
    if hidden == "think":
        return Action("invalid", "unclosed_think")
    if wrote_information:
        return Action("invalid", "own_information")
    if opened is not None:
        return Action("invalid", "unclosed", opened[0])
    return Action("invalid", "no_tag")


def feedback(action: Action) -> str:
    """What the policy is told about an invalid action: the reason and both valid forms."""
    return FEEDBACK[action.text].format(tag=f"<{action.tag}>")


def well_formed(action: str) -> bool:
    """Whether an action is one non-empty ``<think>``, one non-empty ``<search>`` or ``<answer>``, and nothing else."""
    match = _WELL_FORMED.fullmatch(action)
    if match is None or not match["think"].strip() or not match["text"].strip():
        return False
    return not _TAG.search(match["think"]) and not _TAG.search(match["text"])


def neutralise(text: str) -> str:
    """Text from outside, with whatever looks like a protocol tag in square brackets: it cannot act as one."""
    return _LOOKS_LIKE_TAG.sub(lambda m: f"[{m.group(1)}]", text)


class Found(Protocol):
    """What a hit must have; ``agentrl.retrieval.Hit`` does."""

    @property
    def title(self) -> str: ...

    @property
    def text(self) -> str: ...


def render(hits: Sequence[Found]) -> str:
    """Search results, one ``Doc {i}(Title: {title}) {text}`` line each, as Search-R1 writes them."""
    if not hits:
        return NO_RESULTS
    lines = []
    for i, hit in enumerate(hits, 1):
        title, text = (" ".join(part.split()) for part in (hit.title, hit.text))
        lines.append(neutralise(f"Doc {i}(Title: {title}) {text}"))
    return "\n".join(lines)
