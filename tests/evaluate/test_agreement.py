"""AUC, calibration and the Bradley-Terry report, on numbers worked by hand."""

from __future__ import annotations

import itertools
import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.evaluate.agreement import agreement, auc, pair_report, reliability


def test_auc_by_hand() -> None:
    assert auc([3, 2, 1], [True, False, False]) == 1.0
    assert auc([1, 2, 3], [True, False, False]) == 0.0
    assert auc([2, 2, 1], [True, False, False]) == 0.75  # one tie, one win
    assert math.isnan(auc([1, 2], [True, True])) and math.isnan(auc([], []))


@given(st.lists(st.tuples(st.integers(0, 5), st.booleans()), min_size=2, max_size=30))
def test_auc_counts_pairs(data: list[tuple[int, bool]]) -> None:
    up, down = [v for v, y in data if y], [v for v, y in data if not y]
    found = auc([v for v, _ in data], [y for _, y in data])
    if not up or not down:
        assert math.isnan(found)
        return
    wins = sum((a > b) + 0.5 * (a == b) for a, b in itertools.product(up, down))
    assert found == pytest.approx(wins / len(up) / len(down))


def test_reliability_by_hand() -> None:
    found = reliability([0.85, 0.85, 0.15, 1.0], [1, 0, 0, 1])
    # bins .8-.9: |0.5 - 0.85| of 2, .1-.2: 0.15 of 1, .9-1: 0 of 1
    assert found["ece"] == pytest.approx((2 * 0.35 + 0.15) / 4)
    assert [b["n"] for b in found["bins"]] == [1, 2, 1]
    assert reliability([], [])["ece"] is None


def test_pair_report_by_hand() -> None:
    found = pair_report([2.0, -1.0, 0.0])
    assert found["accuracy"]["mean"] == 0.5
    expected = (math.log1p(math.exp(-2)) + math.log1p(math.exp(1)) + math.log(2)) / 3
    assert found["log_loss"] == pytest.approx(expected)
    assert pair_report([1e9, -1e9])["accuracy"]["mean"] == 0.5  # no overflow
    assert pair_report([])["log_loss"] is None


def test_pairs_drawn_from_their_own_model_are_calibrated() -> None:
    rng = random.Random(0)
    margins = []
    for _ in range(8000):
        margin = rng.gauss(0, 1.5)
        margins.append(margin if rng.random() < 1 / (1 + math.exp(-margin)) else -margin)
    assert pair_report(margins)["calibration"]["ece"] < 0.03
    assert pair_report([4 * m for m in margins])["calibration"]["ece"] > 0.1  # too sure of itself


def test_agreement_of_probabilities_and_of_other_numbers() -> None:
    found = agreement([0.9, 0.8, 0.1], [True, True, False])
    assert found["auc"] == 1.0 and found["pairs"]["n"] == 2 and found["calibration"]["ece"] == pytest.approx(0.4 / 3)
    found = agreement([9.0, -8.0], [True, True])
    assert found["successes"] == 2 and found["auc"] is None and "pairs" not in found and "calibration" not in found
