from __future__ import annotations

import json
import re
from collections.abc import Callable
from html.parser import HTMLParser

import pytest

from agentrl.envs.base import Task
from agentrl.errors import UserError
from agentrl.rollout.trajectory import Group
from agentrl.runs import report
from agentrl.runs.folder import Run
from agentrl.runs.plots import series

from .conftest import make_trajectory


class Balanced(HTMLParser):
    """Fails unless every tag is closed in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if tag not in ("meta", "img", "hr"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_report_is_one_page_without_outside_assets(run: Run, groups: list[Group]) -> None:
    for step in range(1, 4):
        run.ledger.add("rollout", tokens_sampled=5, tool_calls=2)
        run.ledger.close(step)
        run.record(step, {"reward/mean": step / 3, "policy/entropy": None, "loss/policy": 0.1})
    run.warn(2, "entropy", "fell below 0.1 <b>")
    run.save_trajectories(3, groups)
    panel = {
        "variant": "train",
        "split": "train",
        "n": 8,
        "success": {"mean": 0.5, "low": 0.2, "high": 0.8},
        "turns": 2,
    }
    policies = [{"name": "base", "panels": [panel]}, {"name": "RL", "panels": [panel]}]
    (run.dir / "eval.json").write_text(json.dumps({"panels": [panel], "policies": policies}))
    run.finish()
    path = report.write(run.dir)
    page = path.read_text()
    parser = Balanced()
    parser.feed(page)
    assert parser.open == []
    assert (run.dir / "plots" / "training.png").read_bytes()[:4] == b"\x89PNG"
    assert not re.search(r"https?://|<script|<link", page)
    assert "fell below 0.1 &lt;b&gt;" in page and page.count("0.2 – 0.8") == 2
    assert '<span class="sampled">&lt;search&gt;é🙂&lt;/search&gt;</span>' in page
    assert "search server down" in page
    assert re.search(r"<td>rollout</td><td[^>]*>0:00</td><td[^>]*>15</td>", page)


def test_text_from_outside_cannot_become_markup(run: Run, encode: Callable[[str], list[int]]) -> None:
    evil = "<script>alert(1)</script>\x1b[2J"
    task = Task(evil, evil, {}, "train", "train")
    run.save_trajectories(1, [Group(task, [make_trajectory(task, 0, 1, encode, parts=(evil, evil, evil))])])
    (run.dir / "eval.json").write_text('{"panels": [{"variant": "<script>"}]}')
    page = report.write(run.dir).read_text()
    assert "<script" not in page and "\x1b" not in page and "&lt;script&gt;" in page


def test_a_run_that_has_just_begun_or_was_killed_has_a_report(run: Run) -> None:
    assert "running" in report.write(run.dir).read_text()
    with pytest.raises(UserError, match="no run"):
        report.write(run.dir / "checkpoints")


def test_series_leaves_out_missing_values() -> None:
    metrics = [{"step": 1, "a/x": 1.0}, {"step": 2, "a/x": None, "a/y": 3}, {"step": 3, "a/x": 2}]
    assert series(metrics, ["a/*"]) == {"a/x": ([1, 3], [1.0, 2.0]), "a/y": ([2], [3.0])}
