"""A person plays with piped input: the real command's body, the real environment."""

from __future__ import annotations

import io

import pytest

from agentrl.config.schema import Config
from agentrl.envs import play
from agentrl.envs.search.spec import SearchSpec
from agentrl.errors import UserError


def run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], typed: str, cfg: Config | None = None
) -> str:
    monkeypatch.setattr("sys.stdin", io.StringIO(typed))
    monkeypatch.setenv("COLUMNS", "200")
    play.main(cfg or Config())
    return capsys.readouterr().out


def test_solved(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    task = next(SearchSpec().tasks("train", 0))
    name, gold = task.truth["path"][0][0], task.truth["answers"][0]
    out = run(monkeypatch, capsys, f"?\ns {name}\nwhat now\na {gold}\nq\n")
    assert f"Doc 1(Title: {name})" in out and "no_tag" in out
    assert "success 1.00" in out and f"accepted: {gold}" in out and "1 episode played" in out


@pytest.mark.parametrize("typed", ["", "s something\n", "q\n"])
def test_the_end_of_input_is_no_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], typed: str
) -> None:
    assert "0 episodes played" in run(monkeypatch, capsys, typed)


def test_turn_limit_and_variant(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    cfg = Config()
    cfg.env.max_turns = 2
    cfg.eval.variants = ["noisy"]
    out = run(monkeypatch, capsys, "hello\nhello\n", cfg)
    assert "No turn is left" in out and "success 0.00" in out and "atlas-noisy-" in out
    cfg.eval.variants = ["nosy"]
    with pytest.raises(UserError, match="noisy"):
        run(monkeypatch, capsys, "", cfg)


def test_shortcuts() -> None:
    spec = SearchSpec()
    assert play.shortcuts(spec) == {"s": "<search> {} </search>", "a": "<answer> {} </answer>"}
    assert play.as_action("s two words", spec) == "<search> two words </search>"
    assert play.as_action("a thought <search>q</search> more", spec) == "a thought <search>q</search>"
    assert play.as_action("plain", spec) == "plain"
