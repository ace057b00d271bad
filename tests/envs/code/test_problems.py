"""Generated problems: deterministic, distinct, solved by their programs, and what each variant keeps from training."""

from __future__ import annotations

import contextlib
import io
import re
from functools import cache
from itertools import islice

import pytest

from agentrl.envs.base import Task
from agentrl.envs.code import problems
from agentrl.envs.code.equivalence import Rules, equivalent
from agentrl.envs.code.hidden_tests import same_output, same_value
from agentrl.envs.code.problems import programs, trained, unseen

HELD_OUT = [v for v in problems.VARIANTS if v != "train"]


def printed(program: str, stdin: str = "") -> str:
    """What one of the project's own programs prints, here in this process."""
    out = io.StringIO()
    lines = iter(stdin.splitlines())
    with contextlib.redirect_stdout(out):
        exec(program, {"input": lambda: next(lines)})
    return out.getvalue()


def first(variant: str, count: int = 90, seed: int = 0) -> list[Task]:
    return list(islice(problems.tasks(variant, seed), count))


def no_algebra(gold: str, answer: str) -> bool:
    raise AssertionError("a generated answer needs no algebra")


def test_there_are_enough_families() -> None:
    assert len(trained.FAMILIES) >= 10 and len({f.area for f in trained.FAMILIES}) >= 8
    assert len(unseen.FAMILIES) >= 5
    assert not {f.name for f in trained.FAMILIES} & {f.name for f in unseen.FAMILIES}


@pytest.mark.parametrize("variant", list(problems.VARIANTS))
def test_reference_programs_print_the_answer(variant: str) -> None:
    for task in first(variant, 60):
        for program in task.truth["programs"]:
            assert equivalent(task.truth["answer"], printed(program), Rules(task.truth["kind"]), no_algebra), task


@pytest.mark.parametrize("variant", list(problems.VARIANTS))
def test_streams_are_deterministic_and_distinct(variant: str) -> None:
    tasks = first(variant)
    assert [t.hash for t in tasks] == [t.hash for t in first(variant)]
    assert len({t.hash for t in tasks}) == len({t.id for t in tasks}) == len({t.question for t in tasks}) == 90
    assert [t.hash for t in first(variant, 20, seed=1)] != [t.hash for t in tasks[:20]]
    assert all(t.variant == variant and t.split == ("train" if variant == "train" else "heldout") for t in tasks)


@pytest.mark.parametrize("variant", HELD_OUT)
def test_no_held_out_problem_is_ever_trained_on(variant: str) -> None:
    assert not [t for t in first(variant, 300) if set(t.truth["programs"]) & trained_on()]


@cache
def trained_on() -> frozenset[str]:
    """Programs of the training problems of two seeds."""
    return frozenset(p for seed in (0, 1) for t in first("train", 1000, seed) for p in t.truth["programs"])


def test_levels_grow_and_larger_is_larger() -> None:
    def size(tasks: list[Task]) -> float:
        numbers = [int(n) for t in tasks for n in re.findall(r"\d+", t.question)]
        return sum(map(len, map(str, numbers))) / len(numbers)

    train = first("train", 600)
    by_level = [size([t for t in train if t.meta["level"] == level]) for level in (1, 2, 3)]
    assert by_level[0] < by_level[1] < by_level[2] < size(first("larger", 300))


def test_variants_ask_the_same_problems_in_other_words() -> None:
    plain, reworded, distracted = (first(v, 50) for v in ("one_call", "reworded", "distracted"))
    assert [t.truth for t in plain] == [t.truth for t in reworded] == [t.truth for t in distracted]
    assert not {t.question for t in plain} & {t.question for t in reworded}
    assert all(
        p.question in d.question and len(d.question) > len(p.question) for p, d in zip(plain, distracted, strict=True)
    )
    assert {t.meta["max_calls"] for t in plain} == {1}


def test_renamed_functions_are_gone_under_their_usual_names() -> None:
    for task in first("renamed", 40):
        renamed = task.meta["renamed"]
        assert renamed and all(new in task.question for new in renamed.values())
        for program in task.truth["programs"]:
            assert all(new in problems.with_new_names(program, renamed) for new in renamed.values())
    code = problems.renaming_code({"math.comb": "selections"})
    assert "math.selections = math.comb" in code and "del math.comb" in code


@pytest.mark.parametrize("variant", list(programs.VARIANTS))
def test_reference_programs_pass_their_hidden_tests(variant: str) -> None:
    for task in islice(programs.tasks(variant, 3), 16):
        truth = task.truth
        assert len(truth["inputs"]) == len(truth["outputs"]) == programs.TESTS
        for given, expected in zip(truth["inputs"], truth["outputs"], strict=True):
            if truth["entry"] is None:
                assert same_output(expected, printed(truth["program"], given))
            else:
                scope: dict = {}
                exec(truth["program"], scope)
                assert same_value(expected, scope[truth["entry"]](*given))
        assert len({str(o) for o in truth["outputs"]}) > 1, "a constant would pass"


def test_program_variants_share_no_task() -> None:
    seen = [{t.hash for t in islice(programs.tasks(v, 0), 200)} for v in programs.VARIANTS]
    assert sum(map(len, seen)) == len(set.union(*seen)) == 600
