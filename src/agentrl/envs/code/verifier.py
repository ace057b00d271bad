"""Scoring an episode: is the answer right, do hidden tests pass, and how the interpreter was used."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from agentrl.envs.base import Episode, Outcome, Task, Verdict
from agentrl.envs.code import hidden_tests
from agentrl.envs.code.equivalence import Rules, Symbolic, equivalent
from agentrl.envs.code.hidden_tests import Tests

STOPPED = ("timeout_cpu", "timeout_wall", "oom", "output_limit")
"""Sandbox statuses of a program that met a limit."""

FAILED = ("error", "exit", "signal", *STOPPED)
"""Sandbox statuses of a program that did not run to its end."""


def rules(truth: Mapping[str, Any]) -> Rules:
    """How this task's answer is compared."""
    return Rules(
        kind=str(truth.get("kind", "math")),
        tolerance=Fraction(str(truth.get("tolerance", 0))),
        relative=Fraction(str(truth.get("relative", 0))),
        unit=truth.get("unit"),
        choices=tuple(truth.get("choices", ())),
    )


def correctness(task: Task, answer: str | None, symbolic: Symbolic, sandbox: Any) -> float:
    """1 or 0 for a value, the share of hidden tests passed for a program. No answer is 0.

    ``sandbox()`` gives the sandbox for hidden tests. Raises GradingFailed when a sandbox failed.
    """
    if answer is None or not answer.strip():
        return 0.0
    if "inputs" in task.truth:
        return hidden_tests.passed(sandbox(), answer, Tests.of(task.truth))
    golds = task.truth["answer"]
    golds = [golds] if isinstance(golds, str) else golds
    return float(any(equivalent(gold, answer, rules(task.truth), symbolic) for gold in golds))


def behaviour(episode: Episode) -> dict[str, float]:
    """How the episode used the interpreter.

    ``used_code``: a program ran. ``calls``: programs run. ``code_lines``: their lines, none blank. ``failed_calls``:
    share of calls whose program did not end well, ``stopped_calls`` of those that met a limit. ``error``: one did not
    end well; ``corrected``, only where one did not: a later program ran to its end and an answer was given.
    ``answered``: there is an answer.
    """
    statuses = [str(info["status"]) for info in episode.infos if "status" in info]
    lines = [line for info in episode.infos if "status" in info for line in str(info.get("code", "")).splitlines()]
    failed = [i for i, status in enumerate(statuses) if status in FAILED]
    scores = {
        "answered": float(bool((episode.answer or "").strip())),
        "used_code": float(bool(statuses)),
        "calls": float(len(statuses)),
        "code_lines": float(sum(bool(line.strip()) for line in lines)),
        "error": float(bool(failed)),
    }
    if statuses:
        scores["failed_calls"] = len(failed) / len(statuses)
        scores["stopped_calls"] = sum(status in STOPPED for status in statuses) / len(statuses)
    if failed:
        recovered = any(status == "ok" for status in statuses[failed[0] + 1 :])
        scores["corrected"] = float(recovered and episode.answer is not None)
    return scores


def score(episode: Episode, symbolic: Symbolic, sandbox: Any) -> Verdict:
    """The verdict; ``correct`` is its success, ``correct_with_code`` counts it only where a program ran."""
    value = correctness(episode.task, episode.answer, symbolic, sandbox)
    used = behaviour(episode)
    scores = {"correct": value, "correct_with_code": value * used["used_code"], **used}
    if "inputs" in episode.task.truth:
        scores["all_tests"] = float(value >= 1)
    return Verdict(success=value, scores=scores)


def format_score(episode: Episode) -> float:
    """The share of actions that could be read, in [0, 1]; one without an answer counts one more, unreadable."""
    if not episode.actions:
        return 0.0
    good = sum(outcome is Outcome.OK for outcome in episode.outcomes)
    return good / (len(episode.actions) + (episode.answer is None))
