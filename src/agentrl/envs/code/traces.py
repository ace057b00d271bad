"""Imported traces: chats with calls of a code interpreter, in whichever wire format, as actions of this environment."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from agentrl.envs.code import answers
from agentrl.envs.code.protocol import Tags, ToolCalls, Wire
from agentrl.errors import UserError

_OUTPUT = re.compile(r"^\s*<(interpreter|tool_response)>\s*(.*?)\s*</\1>\s*$", re.DOTALL)


def messages_in(wire: Wire, messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The messages with every action written in ``wire``.

    Calls are read from ``tool_calls``, from ``<tool_call>`` JSON or from ``<code>`` tags; what answers one (a tool
    message, or a user message after a call) is written as an output of ``wire``. The last assistant message without a
    call gives the answer: the one in its box or answer tags. Raises UserError for a call that cannot be read.
    """
    first = next((i for i, m in enumerate(messages) if m["role"] == "assistant"), len(messages))
    converted: list[Mapping[str, Any]] = list(messages[:first])
    for message in messages[first:]:
        if message["role"] != "assistant":
            converted.append({"role": "tool", "content": _output(wire, str(message.get("content") or ""))})
            continue
        content = message.get("content") or ""
        if not isinstance(content, str):
            raise UserError("a message's 'content' must be text")
        text = "".join(_action(wire, content, list(message.get("tool_calls") or [])))
        converted.append({"role": "assistant", "content": text})
    return converted


def _action(wire: Wire, content: str, calls: list[Any]) -> Iterator[str]:
    if len(calls) > 1:
        raise UserError("one message makes one call here, found several in 'tool_calls'")
    if calls:
        yield wire.write_code(content.strip(), _code(calls[0]))
        return
    for reader, opening in ((Tags(), "<code>"), (ToolCalls(), "<tool_call>")):
        if opening in content:
            parsed = reader.parse(content, program=False, last_number=False)
            if parsed.kind != "code":
                raise UserError(f"a call cannot be read: {parsed.text}")
            yield wire.write_code(content.partition(opening)[0].strip(), parsed.text)
            return
    found = _final(content)
    if found is None:
        yield content
        return
    # The sentence around a box stays as the reasoning; the answer itself is written once, in the form of the wire.
    thought = content.partition("<answer>")[0].strip() if "<answer>" in content else ""
    yield wire.write_answer(thought, found, program=False)


def _final(content: str) -> str | None:
    parsed = Tags().parse(content, program=False, last_number=False)
    if parsed.kind == "answer":
        return parsed.text
    try:
        return answers.boxed(content)
    except answers.Unclosed:
        return None


def _code(call: Any) -> str:
    function = call.get("function", call) if isinstance(call, Mapping) else {}
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except ValueError:
            raise UserError("a call's 'arguments' are not JSON") from None
    code = arguments.get("code") if isinstance(arguments, Mapping) else None
    if not isinstance(code, str):
        raise UserError("a call needs 'arguments' with the text 'code'")
    return code


def _output(wire: Wire, content: str) -> str:
    match = _OUTPUT.match(content)
    shown = wire.output(match.group(2) if match else content.strip())
    return f"{shown.before}{shown.text}{shown.after}".strip("\n")
