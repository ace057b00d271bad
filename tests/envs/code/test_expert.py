"""Expert and imported traces, in both wire formats, as token rows."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import pytest

from agentrl.config.schema import EnvConfig
from agentrl.envs.base import Episode
from agentrl.envs.code.expert import slip
from agentrl.envs.code.protocol import WIRES
from agentrl.envs.code.spec import CodeSpec
from agentrl.envs.code.traces import messages_in
from agentrl.errors import UserError
from agentrl.learn.traces import Traces, file_traces, play
from agentrl.models import tiny
from agentrl.models.load import load_tokenizer
from agentrl.models.template import Renderer


@pytest.fixture(scope="module")
def renderer() -> Renderer:
    return Renderer(load_tokenizer(tiny.folder()))


@pytest.fixture
def in_format(spec: CodeSpec) -> Callable[..., CodeSpec]:
    def make(name: str, **options: object) -> CodeSpec:
        made = CodeSpec(format=name, **options)  # type: ignore[arg-type]
        made._sandbox = spec.sandbox()
        return made

    return make


@pytest.mark.parametrize("name", list(WIRES))
@pytest.mark.parametrize("tasks", ["problems", "programs"])
def test_the_expert_solves_every_variant(
    in_format: Callable[..., CodeSpec], renderer: Renderer, name: str, tasks: str
) -> None:
    chosen = in_format(name, tasks=tasks)
    for variant in chosen.variants():
        for task in islice(chosen.tasks(variant, 5), 3):
            actions = chosen.expert(task, 0)
            assert actions and list(actions) == list(chosen.expert(task, 0) or [])
            assert all(a.endswith(tuple(chosen.stop)) for a in actions) or not chosen.stop
            row = play(chosen, renderer, task, actions, EnvConfig(max_obs_tokens=400), Traces())
            assert row is not None, (task, actions)
            text = renderer.decode(row.ids.tolist())
            assert ("<interpreter>" in text or not task.truth.get("example", "x")) or name == "tool_call"
            ends = int((row.ids[row.prompt_length :] == renderer.end_of_turn_id).sum())
            assert ends == (0 if name == "tags" else 2 * len(actions) - 1)


def test_some_traces_show_an_error_and_its_correction(spec: CodeSpec) -> None:
    corrected = 0
    for task in islice(spec.tasks("train", 7), 24):
        actions = spec.expert(task, 0) or []
        corrected += len(actions) == 3
        if len(actions) == 3:
            env = spec.make()
            env.reset(task)
            first = env.step(actions[0])
            assert first.info["status"] == "error"
    assert 1 <= corrected <= 10


def test_slips_stop_a_program() -> None:
    import random

    program = "from math import comb\nprint(sum(comb(5, k) for k in range(3)))"
    slips = {slip(program, random.Random(i)) for i in range(20)}
    assert len(slips) >= 3 and program not in slips and None not in slips
    for broken in slips:
        with pytest.raises((NameError, SyntaxError)):
            exec(str(broken), {})


@pytest.mark.parametrize("name", list(WIRES))
def test_imported_traces(in_format: Callable[..., CodeSpec], renderer: Renderer, shared_data: Path, name: str) -> None:
    chosen = in_format(name)
    path = shared_data / "sft" / "code_interpreter_traces.jsonl"
    found = file_traces(str(path), renderer, chosen, 100_000, 400)
    assert len(found.rows) == 242 and not found.too_long
    answered = 0
    for line in path.read_text().splitlines():
        record = json.loads(line)
        messages = chosen.trace_messages(record["messages"])
        programs = [chosen.wire.parse(m["content"], False, False) for m in messages if m["role"] == "assistant"]
        wanted = [
            m["tool_calls"][0]["function"]["arguments"]["code"] for m in record["messages"] if m.get("tool_calls")
        ]
        assert [p.text.strip() for p in programs if p.kind == "code"] == [w.strip() for w in wanted]
        answered += programs[-1].kind == "answer"
    assert answered == 242
    text = renderer.decode(found.rows[0].ids.tolist())
    assert ("<tool_response>" if name == "tool_call" else "</interpreter>\n\n") in text


@pytest.mark.parametrize("written", list(WIRES))
@pytest.mark.parametrize("name", list(WIRES))
def test_traces_convert_between_the_formats(name: str, written: str) -> None:
    source, target = WIRES[written](), WIRES[name]()
    shown = source.output("42")
    messages = [
        {"role": "system", "content": "s"},
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": source.write_code("I run it.", "print(42)")},
        {"role": "user", "content": (shown.before + shown.text + shown.after).strip()},
        {"role": "assistant", "content": source.write_answer("So.", "42", False)},
    ]
    converted = messages_in(target, messages)
    assert [m["role"] for m in converted] == ["system", "user", "assistant", "tool", "assistant"]
    assert converted[2]["content"] == target.write_code("I run it.", "print(42)")
    assert target.parse(converted[4]["content"], False, False).text == "42"
    output = target.output("42")
    assert converted[3]["content"] == (output.before + output.text + output.after).strip("\n")


@pytest.mark.parametrize(
    ("message", "words"),
    [
        ({"content": "", "tool_calls": [{}, {}]}, "one call"),
        ({"content": "", "tool_calls": [{"function": {"arguments": "nope"}}]}, "not JSON"),
        ({"content": "", "tool_calls": [{"function": {"arguments": {}}}]}, "'code'"),
        ({"content": "<tool_call>{</tool_call>"}, "cannot be read"),
        ({"content": ["a"]}, "must be text"),
    ],
)
def test_traces_that_cannot_be_read_are_named(message: dict, words: str) -> None:
    with pytest.raises(UserError, match=words):
        messages_in(WIRES["tags"](), [{"role": "user", "content": "q"}, {"role": "assistant", **message}])


def test_a_trace_is_judged_like_an_episode(spec: CodeSpec) -> None:
    task = next(spec.tasks("train", 0))
    assert spec.verify(Episode(task, "certainly not", [], [], [])).success == 0
    assert spec.expert(task, 0) is not None
