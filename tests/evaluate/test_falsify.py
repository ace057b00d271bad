"""The verdict on hand-made outcomes: when it may say yes, when no, and how many tasks it asks for otherwise."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.evaluate.falsify import Finding, Side, difference, judge, judge_control, judge_side, tasks_needed

MARGIN = 0.05


def outcomes(*runs: tuple[int, int]) -> dict[str, list[float]]:
    """``(2, 1), (3, 0)``: tasks 0 and 1 succeed, 2 to 4 fail."""
    values = [float(v) for count, v in runs for _ in range(count)]
    return {str(i): [v] for i, v in enumerate(values)}


def side(start, control, real, name: str = "training variant") -> Side:
    split = "train" if name == "training variant" else "heldout"
    return judge_side(name, split, ["a"], start, control, real, MARGIN)


LOW = outcomes((20, 1), (80, 0))
HIGH = outcomes((60, 1), (40, 0))
WORSE = outcomes((5, 1), (95, 0))


def test_golden_numbers():
    """100 tasks, 9 gained, 3 lost: mean 0.06. Bonett and Price: (10 - 4)/102 = 0.0588, half width
    1.96 sqrt((14/102 - (6/102)²)/102) = 0.0710; so [-0.0122, 0.1298]: open."""
    first = outcomes((3, 1), (9, 0), (88, 1))
    second = outcomes((3, 0), (9, 1), (88, 1))
    found = difference(first, second, MARGIN)
    assert found.interval.mean == pytest.approx(0.06) and found.discordant == pytest.approx(0.12)
    assert (found.interval.low, found.interval.high) == pytest.approx((-0.0122, 0.1298), abs=2e-4)
    # variance (12 + 2)/102 - (6/102)² = 0.13380; distance 0.06 (to 0; to the margin it would be -0.01):
    # (1.95996 + 0.84162)² × 0.13380 / 0.0036 = 7.8489 × 37.17 = 291.7
    assert found.answer is None and found.need == 292
    assert tasks_needed(0.0, 0.5, 0.05) == 1570  # 7.8489 × 0.5 / 0.0025 = 1569.8


@pytest.mark.parametrize(
    ("start", "control", "real", "finding"),
    [
        (LOW, LOW, HIGH, Finding.EXPLAINS),
        (LOW, WORSE, HIGH, Finding.EXPLAINS),
        (LOW, HIGH, HIGH, Finding.DOES_NOT),  # the control gained as much
        (LOW, HIGH, LOW, Finding.DOES_NOT),  # no gain, and the control has one
        (LOW, WORSE, LOW, Finding.DOES_NOT),  # better than a control that collapsed, but no gain
        (LOW, LOW, WORSE, Finding.DOES_NOT),
        (LOW, outcomes((17, 1), (83, 0)), outcomes((20, 1), (6, 1), (74, 0)), Finding.EXPLAINS),
        (LOW, outcomes((24, 1), (76, 0)), outcomes((22, 1), (5, 1), (73, 0)), Finding.CANNOT_TELL),
    ],
)
def test_findings(start, control, real, finding):
    found = side(start, control, real)
    assert found.finding is finding
    assert (found.need is not None) == (finding is Finding.CANNOT_TELL)


def test_few_tasks_never_settle_a_no():
    """Eight tasks without any difference leave too much possible."""
    few = outcomes((4, 1), (4, 0))
    found = side(few, few, few)
    assert found.finding is Finding.CANNOT_TELL and found.need is not None and found.need > 8


def test_nothing_in_common():
    found = difference({"a": [1.0]}, {"b": [1.0]}, MARGIN)
    assert found.answer is None and found.need is None and found.interval.n == 0
    assert found.to_dict()["mean"] is None and found.to_dict()["discordant"] is None


def test_only_shared_tasks_count():
    found = difference({"a": [1.0], "b": [0.0], "x": [0.0]}, {"b": [1.0], "a": [1.0], "y": [1.0]}, MARGIN)
    assert found.interval.n == 2 and found.interval.mean == 0.5


YES = side(LOW, LOW, HIGH)
NO = side(LOW, HIGH, HIGH)
OPEN = side(LOW, outcomes((24, 1), (76, 0)), outcomes((22, 1), (5, 1), (73, 0)))


def heldout(found: Side) -> Side:
    return Side("held out", "heldout", ["b", "c"], found.gain, found.lift, found.finding)


@pytest.mark.parametrize(
    ("first", "second", "finding"),
    [
        (YES, YES, Finding.EXPLAINS),
        (YES, OPEN, Finding.EXPLAINS),
        (YES, NO, Finding.EXPLAINS),
        (OPEN, YES, Finding.EXPLAINS),  # more tasks stand behind the held-out side
        (OPEN, OPEN, Finding.CANNOT_TELL),
        (OPEN, NO, Finding.CANNOT_TELL),
        (NO, YES, Finding.DOES_NOT),
        (NO, NO, Finding.DOES_NOT),
        (NO, OPEN, Finding.DOES_NOT),
    ],
)
def test_two_sides(first, second, finding):
    assert judge_control([first, heldout(second)])[0] is finding
    assert judge({"random": [first, heldout(second)]}).finding is finding


def test_what_the_verdict_says():
    assert judge({"random": [YES, heldout(YES)]}).text == "the reward explains the gain (training variant and held out)"
    assert judge({"random": [YES, heldout(OPEN)]}).text == (
        "the reward explains the gain (training variant; held out: cannot tell)"
    )
    assert judge({"random": [YES]}).text == "the reward explains the gain (training variant)"
    no = judge({"random": [YES], "shuffled": [NO]})
    assert no.finding is Finding.DOES_NOT
    assert no.text == "the reward does not explain the gain: shuffled did as well (training variant, n=100)"
    assert "there is no gain" in judge({"random": [side(LOW, WORSE, LOW)]}).text
    unclear = judge({"random": [YES], "shuffled": [OPEN]})
    assert unclear.finding is Finding.CANNOT_TELL and unclear.need is not None and unclear.need > 100
    assert f"cannot tell at this n (100): need about {unclear.need} tasks" in unclear.text


def test_the_number_of_tasks_is_a_number_of_tasks_a_variant():
    open_side = OPEN
    assert open_side.need is not None and heldout(open_side).need == -(-open_side.need // 2)


@given(
    n=st.integers(1, 60),
    seed=st.integers(0, 2**32 - 1),
    shares=st.tuples(*[st.floats(0, 1)] * 3),
    samples=st.integers(1, 3),
)
@settings(max_examples=150, deadline=None)
def test_any_outcomes_get_a_verdict(n, seed, shares, samples):
    rng = np.random.default_rng(seed)
    three = [{str(i): (rng.random(samples) < p).astype(float).tolist() for i in range(n)} for p in shares]
    found = side(*three)
    verdict = judge({"random": [found]})
    assert verdict.finding is found.finding and verdict.text
    if found.finding is Finding.CANNOT_TELL:
        assert verdict.need is not None and verdict.need > n


def test_an_equal_control_is_rarely_beaten():
    """Under equality of real arm and control at most 2.5 % are told to be explained (the gain must be clear, too)."""
    rng = np.random.default_rng(0)
    wrong = 0
    for _ in range(400):
        p = rng.beta(0.5, 0.5, size=80)
        start, control, real = ({str(i): [float(x)] for i, x in enumerate(rng.random(80) < p * k)} for k in (0.5, 1, 1))
        wrong += side(start, control, real).finding is Finding.EXPLAINS
    assert wrong / 400 < 0.045


def test_the_number_asked_for_settles_it():
    """Where 60 tasks cannot tell and the truth is what they showed, the number asked for tells in about 80 %."""
    true_up, true_down = 0.17, 0.05
    variance = true_up + true_down - (true_up - true_down) ** 2
    n = tasks_needed(true_up - true_down, variance, MARGIN)
    rng = np.random.default_rng(1)
    told = 0
    for _ in range(400):
        kind = rng.choice([1, -1, 0], p=[true_up, true_down, 1 - true_up - true_down], size=n)
        first, second = (kind < 0).astype(float), (kind > 0).astype(float)
        found = difference(*({str(i): [float(v)] for i, v in enumerate(x)} for x in (first, second)), MARGIN)
        told += found.answer is True
    assert 0.72 < told / 400 < 0.9
