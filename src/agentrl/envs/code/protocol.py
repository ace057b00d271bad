"""The two wire formats that the field calls ReTool, over the same tasks.

An action is what the policy wrote in one turn. It is only ever parsed, never evaluated.

``tags``
    Free reasoning, then ``<code>``, a python fence and ``</code>``, or ``<answer>`` … ``</answer>``. The first
    complete element counts; what follows it is not looked at. Nothing inside an element acts as a tag, and nothing
    inside an ``<interpreter>`` block that the policy wrote itself counts.
``tool_call``
    The native form of the Hermes and Qwen models: ``<tool_call>{"name": "code_interpreter", "arguments": {"code":
    …}}</tool_call>`` ends the policy's message, and the output comes as the next message. A message without a call
    gives the answer, in ``\\boxed{}`` or answer tags. What stands before the last ``</think>`` does not count.
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from agentrl.envs.base import Observation
from agentrl.envs.code import answers
from agentrl.errors import nearest

TOOL = {
    "type": "function",
    "function": {
        "name": "code_interpreter",
        "description": "Runs a Python program and returns what it prints.",
        "parameters": {
            "type": "object",
            "properties": {"code": {"type": "string", "description": "The program."}},
            "required": ["code"],
        },
    },
}
NAME = "code_interpreter"

_ELEMENT = re.compile(r"<(code|answer|interpreter)>")
_OUR_TAG = re.compile(r"</?(?:code|answer|interpreter)>")
_LOOKS_LIKE_TAG = re.compile(
    r"<(\s*/?\s*(?:code|answer|interpreter|tool_call|tool_response|think)\b[^<>]*)>?", re.IGNORECASE
)
_CALL = re.compile(r"<tool_call>(.*?)(</tool_call>|$)", re.DOTALL)
_TAGGED = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)


@dataclass(frozen=True)
class Action:
    """``kind`` is "code", "answer" or "invalid". ``text`` is the program, the answer, or what the policy is told."""

    kind: str
    text: str
    reason: str = ""  # of an invalid action, one word for metrics


def neutralise(text: str) -> str:
    """Tool output, with whatever looks like a tag of a protocol in square brackets: it cannot act as one."""
    return _LOOKS_LIKE_TAG.sub(lambda m: f"[{m.group(1)}]", text)


class Wire(ABC):
    """A wire format: reading actions, showing outputs, and writing an expert's actions."""

    stop: Sequence[str] = ()
    tools: Sequence[dict[str, Any]] = ()
    grammar: str = ""

    @abstractmethod
    def parse(self, action: str, program: bool, last_number: bool) -> Action:
        """Read one action. Never raises.

        ``program``: the answer is a program in a fence, not a value. ``last_number``: an action with neither a call
        nor an answer counts as answering with the last number in it.
        """

    @abstractmethod
    def how(self, program: bool) -> str:
        """One sentence: what the policy may write."""

    @abstractmethod
    def output(self, text: str, note: str = "") -> Observation:
        """What a program printed, as the policy reads it; ``note`` follows outside the block."""

    @abstractmethod
    def message(self, text: str) -> Observation:
        """A word from the environment that is no program's output."""

    @abstractmethod
    def write_code(self, thought: str, code: str) -> str:
        """An action that runs a program."""

    @abstractmethod
    def write_answer(self, thought: str, answer: str, program: bool) -> str:
        """An action that answers."""

    def _answer(self, text: str, program: bool) -> Action:
        """The answer in the text of an answer."""
        if program:
            blocks = [code for language, code in answers.fenced(text) if language in answers.PYTHON]
            if not blocks or not blocks[-1].strip():
                return self._invalid("no_program", "the answer holds no program in a ```python fence", program)
            return Action("answer", blocks[-1])
        try:
            found = answers.boxed(text)
        except answers.Unclosed:
            return self._invalid("unclosed_box", "\\boxed{ is not closed", program)
        value = " ".join((text if found is None else found).split())
        return Action("answer", value) if value else self._invalid("empty_answer", "the answer is empty", program)

    def _invalid(self, reason: str, words: str, program: bool) -> Action:
        return Action("invalid", f"Invalid: {words}. {self.how(program)}", reason)

    def _neither(self, text: str, last_number: bool, reason: str, words: str, program: bool) -> Action:
        """An action with neither a call nor an answer."""
        number = answers.last_number(text) if last_number and not program else None
        return Action("answer", number) if number is not None else self._invalid(reason, words, program)


class Tags(Wire):
    """``<code>`` and ``<interpreter>``, as in the ReTool paper and its repository."""

    stop = ("</code>", "</answer>")
    grammar = "reasoning, then <code>, a ```python fence and </code>, or <answer> \\boxed{result} </answer>"

    def parse(self, action: str, program: bool, last_number: bool) -> Action:
        start, wrote_output = 0, False
        while (match := _ELEMENT.search(action, start)) is not None:
            tag = match.group(1)
            end = action.find(f"</{tag}>", match.end())
            if tag == "interpreter":
                wrote_output = True
                if end < 0:
                    break
                start = end + len("</interpreter>")
                continue
            if end < 0:
                inner = next((t for t in self.stop if t != f"</{tag}>" and action.rstrip().endswith(t)), "")
                within = f"; {inner} ended your turn inside it" if inner else ""
                return self._invalid(f"unclosed_{tag}", f"<{tag}> was not closed{within}", program)
            body = action[match.end() : end]
            return self._code(body, program) if tag == "code" else self._tagged(body, program)
        if wrote_output:
            return self._invalid("own_output", "only the sandbox writes <interpreter>", program)
        return self._neither(action, last_number, "no_tag", "there is neither <code> nor <answer>", program)

    def _code(self, body: str, program: bool) -> Action:
        blocks = answers.fenced(body)
        if not blocks:
            words = "the ```python fence is not closed" if "```" in body else "<code> holds no ```python fence"
            return self._invalid("unclosed_fence" if "```" in body else "no_fence", words, program)
        if len(blocks) > 1:
            return self._invalid("several_fences", "<code> holds more than one fence", program)
        language, code = blocks[0]
        if language not in answers.PYTHON:
            return self._invalid("language", f"only Python runs here, not {language}", program)
        if not code.strip():
            return self._invalid("empty_code", "the program is empty", program)
        return Action("code", code)

    def _tagged(self, body: str, program: bool) -> Action:
        if not program and _OUR_TAG.search(body):
            return self._invalid("nested", "a tag stands inside <answer>", program)
        return self._answer(body, program)

    def how(self, program: bool) -> str:
        result = "your program in a ```python fence" if program else "\\boxed{result}"
        return f"Write <code>, a ```python fence and </code> to run Python, or <answer> {result} </answer> to finish."

    def output(self, text: str, note: str = "") -> Observation:
        after = f"\n</interpreter>\n{note}\n\n" if note else "\n</interpreter>\n\n"
        return Observation(neutralise(text), "\n\n<interpreter>\n", after)

    def message(self, text: str) -> Observation:
        return Observation(f"\n\n{text}\n\n")

    def write_code(self, thought: str, code: str) -> str:
        return f"{thought}\n<code>\n```python\n{code.strip()}\n```\n</code>".lstrip()

    def write_answer(self, thought: str, answer: str, program: bool) -> str:
        result = f"```python\n{answer.strip()}\n```" if program else f"\\boxed{{{answer}}}"
        return f"{thought}\n<answer>\n{result}\n</answer>".lstrip()


class ToolCalls(Wire):
    """Native tool calls in Hermes' and Qwen's form."""

    tools = (TOOL,)
    grammar = '<tool_call>{"name": "code_interpreter", "arguments": {"code": …}}</tool_call>, or \\boxed{result}'

    def parse(self, action: str, program: bool, last_number: bool) -> Action:
        spoken = action.rpartition("</think>")[2]
        if "<think>" in spoken:
            return self._invalid("unclosed_think", "<think> was not closed", program)
        calls = _CALL.findall(spoken)
        if len(calls) > 1:
            return self._invalid("several_calls", "one message makes one call", program)
        if calls:
            body, end = calls[0]
            if not end:
                return self._invalid("unclosed_call", "<tool_call> was not closed", program)
            return self._call(body, program)
        tagged = _TAGGED.findall(spoken, 0, spoken.rfind("</answer>") + len("</answer>"))
        if tagged or "\\boxed" in spoken or (program and answers.fenced(spoken)):
            return self._answer(tagged[-1] if tagged else spoken, program)
        return self._neither(spoken, last_number, "no_call", "there is neither a call nor an answer", program)

    def _call(self, body: str, program: bool) -> Action:
        def wrong(words: str) -> Action:
            return self._invalid("malformed_call", words, program)

        try:
            call = json.loads(body)
        except json.JSONDecodeError as error:
            hint = "; a line break inside a text is written \\n" if "control character" in error.msg else ""
            return wrong(f"the call is not JSON ({error.msg} at character {error.pos}{hint})")
        except (ValueError, RecursionError):
            return wrong("the call is not JSON that can be read")
        if not isinstance(call, dict) or "name" not in call:
            return wrong("a call is a JSON object with name and arguments")
        if call["name"] != NAME:
            return self._invalid("unknown_tool", f"there is no tool {str(call['name'])[:40]!r}, only {NAME}", program)
        arguments = call.get("arguments")
        if isinstance(arguments, str):  # OpenAI's wire form
            try:
                arguments = json.loads(arguments)
            except (ValueError, RecursionError):
                return wrong("arguments is not JSON")
        if not isinstance(arguments, dict):
            return wrong('arguments must be an object, {"code": …}')
        for name in arguments:
            if name != "code":
                return wrong(f"{NAME} takes no argument {name[:40]!r}; {nearest(name, ['code'])}")
        code = arguments.get("code")
        if not isinstance(code, str):
            return wrong("arguments.code must be text" if "code" in arguments else "arguments.code is missing")
        if any("\ud800" <= c <= "\udfff" for c in code):
            return wrong("the code holds half a surrogate pair")
        if not code.strip():
            return self._invalid("empty_code", "the program is empty", program)
        return Action("code", code)

    def how(self, program: bool) -> str:
        result = "your program in a ```python fence" if program else "\\boxed{result}"
        return f"Call {NAME} with the argument code to run Python, or finish with {result}."

    def output(self, text: str, note: str = "") -> Observation:
        after = f"\n</tool_response>\n{note}" if note else "\n</tool_response>"
        return Observation(neutralise(text), "<tool_response>\n", after)

    def message(self, text: str) -> Observation:
        return Observation(text)

    def write_code(self, thought: str, code: str) -> str:
        call = json.dumps({"name": NAME, "arguments": {"code": code.strip()}}, ensure_ascii=False)
        return f"{thought}\n<tool_call>\n{call}\n</tool_call>".lstrip()

    def write_answer(self, thought: str, answer: str, program: bool) -> str:
        result = f"```python\n{answer.strip()}\n```" if program else f"\\boxed{{{answer}}}"
        return f"{thought}\n{result}".lstrip()


WIRES: dict[str, type[Wire]] = {"tags": Tags, "tool_call": ToolCalls}
