from __future__ import annotations

import copy
import io
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rich.console import Console

from agentrl.envs.base import Task
from agentrl.errors import UserError
from agentrl.rollout.trajectory import Group, RewardComponent
from agentrl.runs import inspect, report
from agentrl.runs.folder import Run
from agentrl.runs.origins import find_decoder, spans, visible
from agentrl.runs.trajectories import read_trajectories, turn_credit

from .conftest import make_trajectory

Encode = Callable[[str], list[int]]


def shown(run: Run, colour: bool = False, **filters: object) -> str:
    buffer = io.StringIO()
    console = Console(file=buffer, width=140, force_terminal=colour, color_system="standard" if colour else None)
    inspect.main(str(run.dir), console=console, **filters)  # type: ignore[arg-type]
    return buffer.getvalue()


def test_filters(run: Run, groups: list[Group]) -> None:
    run.save_trajectories(3, groups)
    run.save_trajectories(4, groups[:1], tag="eval")
    assert "9 of 9 trajectories" in shown(run)
    assert "3 of 3" in shown(run, tag="eval")
    assert "3 of 3" in shown(run, outcome="success")
    assert "5 of 5" in shown(run, outcome="failure")
    error = shown(run, outcome="error")
    assert "1 of 1" in error and "search server down" in error and "not scored" in error
    assert "3 of 3" in shown(run, min_reward=0.5) and "5 of 5" in shown(run, max_reward=0.5)
    assert "1 of 1" in shown(run, stop="error")
    assert "3 of 3" in shown(run, task="atlas/1")
    assert "2 of 2" in shown(run, id="atlas/0/3/1") and "6 of 6" in shown(run, id="atlas/0")
    assert "2 of 9" in shown(run, limit=2)
    assert "no trajectory" in shown(run, min_reward=2)


@pytest.mark.parametrize(
    ("filters", "message"),
    [
        ({"outcome": "sucess"}, "did you mean 'success'"),
        ({"stop": "overflow"}, "context_overflow"),
        ({"tag": "trian"}, "did you mean 'train'"),
        ({"step": 9}, "the nearest is 3"),
    ],
)
def test_a_wrong_filter_names_the_nearest(run: Run, groups: list[Group], filters: dict, message: str) -> None:
    run.save_trajectories(3, groups)
    with pytest.raises(UserError, match=message):
        shown(run, **filters)


def test_a_run_without_trajectories_says_so(run: Run) -> None:
    with pytest.raises(UserError, match="holds no trajectories"):
        shown(run)


def test_every_token_is_coloured_by_its_origin(run: Run, groups: list[Group]) -> None:
    run.save_trajectories(3, groups[:1])
    text = shown(run, colour=True)
    assert "\x1b[2mQ: who?" in text  # dim
    assert "\x1b[1;32m<search>é🙂</search>" in text  # bold green: what is trained on
    assert "\x1b[34m<information>x</information>" in text  # blue
    assert "verifiable (verifiable) 1 × 1" in text


def test_every_turn_says_what_it_was_credited_with(run: Run, groups: list[Group]) -> None:
    (member, *others), record = groups[0].trajectories, groups[0].trajectories[0].reward
    member.turns.append(member.turns[0])  # a turn of another row
    second = copy.deepcopy(member.rows[0])
    second.turn[second.turn == 0] = 1
    second.advantage[second.sampled] = [-1.5] * int(second.sampled.sum())
    member.rows.append(second)
    record.components.append(RewardComponent("implicit_step", "implicit_step", 0.25, per_turn=[0.5, -0.25]))
    for row in (row for other in others for row in other.rows):
        row.advantage[:] = 0
    run.save_trajectories(3, groups[:1])
    records = read_trajectories(run.dir / "trajectories" / "train-000003.parquet")
    assert turn_credit(records[0]) == ["implicit_step +0.5, advantage +0.25", "implicit_step -0.25, advantage -1.5"]
    assert turn_credit(records[1]) == [""]
    text = shown(run, id="0/3/0")
    assert "turn 2: ok, ended by stop_string, 1 tool calls, implicit_step -0.25, advantage -1.5\n" in text
    assert "implicit_step -0.25, advantage -1.5</div>" in report.write(run.dir).read_text()


def test_a_pipe_names_the_origins_instead(run: Run, groups: list[Group]) -> None:
    run.save_trajectories(3, groups[:1])
    text = shown(run)
    assert "\x1b" not in text
    assert "--- sampled of turn 1, 23 tokens ---\n<search>é🙂</search>" in text


def test_token_boundaries_and_values(run: Run, groups: list[Group]) -> None:
    run.save_trajectories(3, groups[:1])
    text = shown(run, tokens=True, values=True)
    assert "<▏s▏e▏a▏r▏c▏h▏>▏▏é▏" in text  # the first byte of é shows nothing, the second completes it
    assert "-0.5000" in text and "+0.2500" in text


def test_markup_and_escapes_are_shown_and_never_obeyed(run: Run, encode: Encode) -> None:
    evil = "[red]x[/red] \x1b[31mred\x1b[0m \r\u202eabc [/]"
    task = Task("[bold]id\x1b[2J", evil, {}, "train", "train")
    run.save_trajectories(3, [Group(task, [make_trajectory(task, 0, 3, encode, parts=("p\n", evil, "\n[/green]"))])])
    for colour in (False, True):
        text = shown(run, colour=colour, tokens=False)
        assert "[red]x[/red] \\x1b[31mred\\x1b[0m \\r\\u202eabc [/]" in text
        assert "\x1b[31m" not in text and "\x1b[2J" not in text and "\u202e" not in text
        assert "[bold]id\\x1b[2J" in text and "[/green]" in text


def test_without_a_fitting_tokenizer_the_text_is_shown_as_stored(run: Run, encode: Encode) -> None:
    run.update(starts_from=None)
    task = Task("t", "q", {}, "train", "train")
    t = make_trajectory(task, 0, 3, encode)
    t.text = "other text"
    run.save_trajectories(3, [Group(task, [t])])
    cfg = run.config()
    (run.dir / "config.yaml").write_text(
        (run.dir / "config.yaml").read_text().replace("path: null", "path: nowhere", 1)
    )
    assert cfg.model.path is None
    text = shown(run)
    assert "shown without origins" in text and "other text" in text


def test_a_trajectory_without_rows_is_shown(run: Run, encode: Encode) -> None:
    task = Task("t", "q", {}, "train", "train")
    t = make_trajectory(task, 0, 3, encode)
    t.rows, t.text = [], ""
    run.save_trajectories(3, [Group(task, [t])])
    assert "1 of 1" in shown(run)


def test_visible_keeps_ordinary_text() -> None:
    assert visible("añb\n\tç🙂\\x") == "añb\n\tç🙂\\x"
    assert visible("\x9b31m\x07\ud800") == "\\x9b31m\\x07\\ud800"


@settings(max_examples=50, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(-1, 2), st.binary(max_size=4)), max_size=6))
def test_spans_join_to_the_decoded_row(run: Run, parts: list[tuple[int, int, bytes]]) -> None:
    # Any bytes, cut anywhere: also rows whose tokens are no valid UTF-8.
    from tokenizers import Tokenizer
    from tokenizers.pre_tokenizers import ByteLevel

    tokenizer = Tokenizer.from_file(str(run.checkpoints.path(3) / "tokenizer.json"))
    by_byte = sorted(ByteLevel.alphabet())
    ids = np.asarray([b % len(by_byte) for _, _, data in parts for b in data], dtype=np.int32)
    row = {
        "ids": ids,
        "origin": np.asarray([o for o, _, data in parts for _ in data], dtype=np.uint8),
        "turn": np.asarray([t for _, t, data in parts for _ in data], dtype=np.int16),
    }

    def decode(tokens: list[int]) -> str:
        return str(tokenizer.decode(tokens, skip_special_tokens=False))

    for every_token in (False, True):
        found = spans(row, decode, every_token)
        assert "".join(s.text for s in found) == decode(ids.tolist())
        assert [i for s in found for i in range(s.start, s.end)] == list(range(len(ids)))


def test_the_tokenizer_of_the_run_is_found(run: Run, groups: list[Group]) -> None:
    path = run.save_trajectories(3, groups)
    assert path is not None
    assert find_decoder(run, read_trajectories(path)[0]) is not None
    assert Path(run.checkpoints.path(3) / "tokenizer.json").is_file()
