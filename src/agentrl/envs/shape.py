"""The form of what an environment gives back: what training holds every episode against, and ``check-env`` too."""

from __future__ import annotations

import json
from collections.abc import Mapping
from numbers import Integral, Real

from agentrl.envs.base import Observation, Outcome, Transition


def wrong_prompt(messages: object) -> str | None:
    """What is wrong with the messages of ``Environment.reset``, or None."""
    if not isinstance(messages, (list, tuple)) or not messages:
        return f"the prompt is {_kind(messages)}, not a list of messages"
    for message in messages:
        texts = message.values() if isinstance(message, Mapping) else ()
        if not isinstance(message, Mapping) or set(message) != {"role", "content"} or not _all_text(*texts):
            return f"a message is {{'role': text, 'content': text}}, not {message!r:.80}"
    return None if messages[-1]["role"] == "user" else "the prompt must end with a user message"


def wrong_transition(transition: object) -> str | None:
    """What is wrong with the value of ``Environment.step``, or None."""
    if not isinstance(transition, Transition):
        return f"step returned {_kind(transition)}, not a Transition"
    t = transition
    seen = t.observation
    if (seen is None) != bool(t.done):
        return "observation must be None exactly when done"
    if seen is not None and not (isinstance(seen, Observation) and _all_text(seen.text, seen.before, seen.after)):
        return f"observation is {seen!r:.80}, not an Observation of texts"
    if not isinstance(t.outcome, Outcome):
        return f"outcome is {t.outcome!r:.80}, not an Outcome"
    if t.error is not None and not isinstance(t.error, str):
        return f"error is {_kind(t.error)}, not text"
    for name, kind in (("tool_calls", Integral), ("tool_seconds", Real)):
        if not isinstance(getattr(t, name), kind):
            return f"{name} is {getattr(t, name)!r:.80}, not a number"
    if not isinstance(t.info, Mapping):
        return f"info is {_kind(t.info)}, not a mapping"
    try:
        json.dumps(dict(t.info))
    except (TypeError, ValueError, RecursionError) as error:
        return f"info is not JSON-serialisable ({error})"
    return None


def _all_text(*values: object) -> bool:
    return all(isinstance(v, str) for v in values)


def _kind(value: object) -> str:
    return "None" if value is None else f"a {type(value).__name__}"
