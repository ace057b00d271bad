"""Both wire formats: what counts as an action, and what a malformed one is told."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.envs.code import answers
from agentrl.envs.code.protocol import WIRES, Tags, ToolCalls, neutralise

TAGS, CALLS = Tags(), ToolCalls()
FENCED = "```python\nprint(1)\n```"


def call(arguments: object, name: str = "code_interpreter") -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


@pytest.mark.parametrize(
    ("text", "kind", "found"),
    [
        (f"I run it.\n<code>\n{FENCED}\n</code>", "code", "print(1)\n"),
        ("<code>\n```py\nx = 1\n\nprint(x)\n```\n</code>", "code", "x = 1\n\nprint(x)\n"),
        ("<code>\n```\nprint(2)\n```</code>", "code", "print(2)\n"),
        ("<answer>\n\\boxed{42}\n</answer>", "answer", "42"),
        ("<answer> 42 </answer>", "answer", "42"),
        ("<answer>\\boxed{1} or \\boxed{\\frac{1}{2}}</answer>", "answer", "\\frac{1}{2}"),
        ("<answer>\\boxed{\\{1, 2\\}}</answer>", "answer", "\\{1, 2\\}"),
        ("<answer>1</answer><answer>2</answer>", "answer", "1"),
        (f"<code>\n{FENCED}\n</code><answer>2</answer>", "code", "print(1)\n"),
        ("<interpreter>\n5\n</interpreter> so <answer>5</answer>", "answer", "5"),
        ('<code>\n```python\nprint("<answer>5</answer>")\n```\n</code>', "code", 'print("<answer>5</answer>")\n'),
        ("</code></answer> <answer>3</answer>", "answer", "3"),
        ("<code>\r\n```python\r\nprint(1)\r\n```\r\n</code>", "code", "print(1)\r\n"),
        # malformed
        ("", "invalid", "no_tag"),
        ("the answer is 5", "invalid", "no_tag"),
        ("<CODE>x</CODE>", "invalid", "no_tag"),
        ("<code>print(1)</code>", "invalid", "no_fence"),
        ("<code>\n```python\nprint(1)\n</code>", "invalid", "unclosed_fence"),
        (f"<code>\n{FENCED}\n{FENCED}\n</code>", "invalid", "several_fences"),
        ("<code>\n```cpp\nint x;\n```\n</code>", "invalid", "language"),
        ("<code>\n```python\n  \n```\n</code>", "invalid", "empty_code"),
        (f"<code>\n{FENCED}\n", "invalid", "unclosed_code"),
        ('<code>\n```python\nprint("<answer>5</answer>', "invalid", "unclosed_code"),
        ("<answer>\\boxed{5", "invalid", "unclosed_answer"),
        ("<answer>\\boxed{5 </answer>", "invalid", "unclosed_box"),
        ("<answer> </answer>", "invalid", "empty_answer"),
        ("<answer>\\boxed{}</answer>", "invalid", "empty_answer"),
        ("<answer><code>x</code></answer>", "invalid", "nested"),
        ("<interpreter>5</interpreter>", "invalid", "own_output"),
        ("<interpreter>5 <answer>5</answer>", "invalid", "own_output"),
    ],
)
def test_tags(text: str, kind: str, found: str) -> None:
    action = TAGS.parse(text, program=False, last_number=False)
    assert action.kind == kind
    assert (action.reason if kind == "invalid" else action.text) == found
    if kind == "invalid":
        assert action.text.startswith("Invalid: ") and "<code>" in action.text and "<answer>" in action.text


@pytest.mark.parametrize(
    ("text", "kind", "found"),
    [
        (call({"code": "print(1)"}), "code", "print(1)"),
        ("Let me see.\n" + call({"code": "a = 1\nprint(a)"}), "code", "a = 1\nprint(a)"),
        (call(json.dumps({"code": "print(1)"})), "code", "print(1)"),
        ("<think> <tool_call> no </think>\n" + call({"code": "1"}), "code", "1"),
        ("So the answer is \\boxed{7}.", "answer", "7"),
        ("<answer> 7 </answer>", "answer", "7"),
        ("<think> \\boxed{1} </think> \\boxed{2}", "answer", "2"),
        # malformed
        ("", "invalid", "no_call"),
        ("the answer is 5", "invalid", "no_call"),
        ("<think> \\boxed{1}", "invalid", "unclosed_think"),
        ('<tool_call>\n{"name": "code_interpreter"', "invalid", "unclosed_call"),
        ("<tool_call>print(1)</tool_call>", "invalid", "malformed_call"),
        (call({"code": "x"}).replace('"x"', '"a\nb"'), "invalid", "malformed_call"),
        ("<tool_call>[1]</tool_call>", "invalid", "malformed_call"),
        ("<tool_call>" + "[" * 100_000 + "</tool_call>", "invalid", "malformed_call"),
        ("<tool_call>" + "9" * 10_000 + "</tool_call>", "invalid", "malformed_call"),
        (call({"code": 1}), "invalid", "malformed_call"),
        (call({"code": None}), "invalid", "malformed_call"),
        (call({}), "invalid", "malformed_call"),
        (call("not json"), "invalid", "malformed_call"),
        (call({"code": "1", "cod": "2"}), "invalid", "malformed_call"),
        (call({"code": "'\ud800'"}), "invalid", "malformed_call"),
        (call({"code": " "}), "invalid", "empty_code"),
        (call({"code": "1"}, "python"), "invalid", "unknown_tool"),
        (call({"code": "1"}) + call({"code": "2"}), "invalid", "several_calls"),
        ("\\boxed{5", "invalid", "unclosed_box"),
    ],
)
def test_native_calls(text: str, kind: str, found: str) -> None:
    action = CALLS.parse(text, program=False, last_number=False)
    assert action.kind == kind, action
    assert (action.reason if kind == "invalid" else action.text) == found


def test_a_native_call_is_told_what_is_wrong() -> None:
    told = [
        CALLS.parse(text, False, False).text
        for text in (call({"cod": "1"}), "<tool_call>{'name': 1}</tool_call>", call({"code": "1"}, "search"))
    ]
    assert "did you mean 'code'" in told[0]
    assert "not JSON" in told[1] and "character 1" in told[1]
    assert "no tool 'search'" in told[2]


@pytest.mark.parametrize("name", list(WIRES))
def test_what_an_expert_writes_is_read_back(name: str) -> None:
    wire = WIRES[name]()
    code = 'for i in range(3):\n    print("a\\n", i)'
    action = wire.parse(wire.write_code("A thought.", code), program=False, last_number=False)
    assert action.kind == "code" and action.text.strip() == code
    assert wire.parse(wire.write_answer("Done.", "1/2", False), False, False).text == "1/2"
    program = wire.parse(wire.write_answer("Done.", code, True), program=True, last_number=False)
    assert program.kind == "answer" and program.text.strip() == code
    assert wire.parse(wire.write_answer("Done.", "1/2", False), program=True, last_number=False).kind == "invalid"


@pytest.mark.parametrize("name", list(WIRES))
def test_the_last_number_counts_only_where_asked_for(name: str) -> None:
    wire = WIRES[name]()
    for text, number in (("it is 1,234.5 or 17", "17"), ("so -3/4.", "-3/4"), ("no number", None)):
        assert wire.parse(text, program=False, last_number=False).kind == "invalid"
        lenient = wire.parse(text, program=False, last_number=True)
        assert (lenient.text if lenient.kind == "answer" else None) == number
    assert wire.parse("17", program=True, last_number=True).kind == "invalid"


PIECES = [
    "<code>", "</code>", "<answer>", "</answer>", "<interpreter>", "</interpreter>", "<tool_call>", "</tool_call>",
    "\\boxed{", "}", "<think>", "</think>", "print(1)", "```python\n", "\n```", "\n",
    '{"name": "code_interpreter", ', '"arguments": {"code": "1"}}',
]  # fmt: skip


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.one_of(st.sampled_from(PIECES), st.text(max_size=8)), max_size=14).map("".join),
    st.booleans(),
    st.booleans(),
)
def test_no_text_raises(text: str, program: bool, last_number: bool) -> None:
    for name in WIRES:
        action = WIRES[name]().parse(text, program, last_number)
        assert action.kind in ("code", "answer", "invalid")
        assert bool(action.reason) == (action.kind == "invalid") and action.text.strip()


@pytest.mark.parametrize("piece", ["```a\n", "<answer>", "<code>", "<tool_call>", "\\boxed{", "<interpreter>", "1,"])
@pytest.mark.parametrize("name", list(WIRES))
def test_reading_takes_one_pass(name: str, piece: str) -> None:
    """A quadratic reader would need many minutes for these."""
    for text in (piece * (1_000_000 // len(piece)), f"<code>{piece * (1_000_000 // len(piece))}</code>"):
        assert WIRES[name]().parse(text, True, True).kind == "invalid"


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=60))
def test_output_cannot_act_as_a_tag(text: str) -> None:
    shown = neutralise(f"{text}</interpreter><answer>1</answer>{text}")
    assert "</interpreter>" not in shown and "<answer>" not in shown
    assert neutralise("a < b and c > d, x<y>z, <html>") == "a < b and c > d, x<y>z, <html>"


def test_boxes() -> None:
    assert answers.boxed("none") is None
    assert answers.boxed(r"\boxed {a} and \boxed{b{c}}") == "b{c}"
    assert answers.boxed(r"\boxed{\}}") == r"\}"
    with pytest.raises(answers.Unclosed):
        answers.boxed(r"\boxed{1} then \boxed{2")
