"""What an environment may give back."""

from __future__ import annotations

import pytest

from agentrl.envs.base import Observation, Outcome, Task, Transition
from agentrl.envs.shape import wrong_prompt, wrong_transition
from agentrl.errors import RunError

USER = {"role": "user", "content": "hi"}


@pytest.mark.parametrize(
    ("messages", "part"),
    [
        (None, "None"),
        ("hi", "a str"),
        ([], "a list"),
        (["hi"], "'hi'"),
        ([{"role": "user"}], "{'role': 'user'}"),
        ([{**USER, "content": 5}], "5"),
        ([USER, {"role": "assistant", "content": "yes"}], "end with a user message"),
    ],
)
def test_prompts(messages: object, part: str) -> None:
    assert part in (wrong_prompt(messages) or "")
    assert wrong_prompt([{"role": "system", "content": "rules"}, USER]) is None


@pytest.mark.parametrize(
    ("transition", "part"),
    [
        (None, "step returned None"),
        ((Observation("x"), False), "a tuple"),
        (Transition("x", False), "not an Observation"),
        (Transition(Observation(5), False), "not an Observation"),
        (Transition(None, False), "exactly when done"),
        (Transition(Observation("x"), True), "exactly when done"),
        (Transition(Observation("x"), False, "ok!"), "'ok!'"),
        (Transition(Observation("x"), False, Outcome.INVALID, ValueError("x")), "error is a ValueError"),
        (Transition(Observation("x"), False, tool_calls=1.5), "tool_calls is 1.5"),
        (Transition(Observation("x"), False, tool_seconds="1"), "tool_seconds is '1'"),
        (Transition(Observation("x"), False, info=None), "info is None"),
        (Transition(Observation("x"), False, info={"a": {1}}), "not JSON-serialisable"),
    ],
)
def test_transitions(transition: object, part: str) -> None:
    assert part in (wrong_transition(transition) or "")
    assert wrong_transition(Transition(None, True, tool_calls=2, info={"a": [1, None]})) is None


def test_a_task_that_is_not_json_is_named() -> None:
    with pytest.raises(RunError, match=r"task t7: .* there is a set in it"):
        _ = Task("t7", "q", {"a": {1}}, "train", "train").hash
