"""One synthetic case for each recommendation, and for each way to it."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from agentrl.evaluate.advice import Condition, Recommendation, Rental, Skill, decide
from agentrl.evaluate.falsify import Difference
from agentrl.evaluate.intervals import Interval

YES, NO, UNKNOWN = Condition(True, "fine"), Condition(False, "not fine"), Condition(None, "the audit")


def interval(mean: float, half: float = 0.08) -> Interval:
    return Interval(mean, mean - half, mean + half, 40, "made")


def lift(answer: bool | None, mean: float = 0.0) -> Difference:
    return Difference(interval(mean), 0.2, answer, 300 if answer is None else None)


def skill(pass_1: float, pass_k: float, headroom: bool | None, informed: float | None = None, **more) -> Skill:
    return Skill(
        8, interval(pass_1), interval(pass_k), lift(headroom, pass_k - pass_1),
        informed=None if informed is None else interval(informed), **more,
    )  # fmt: skip


STRATEGY = skill(0.3, 0.7, True)


@pytest.mark.parametrize(
    ("skill", "wanted", "words"),
    [
        (STRATEGY, Recommendation.TRAIN, "strategy: pass@8 0.70 against pass@1 0.30"),
        (skill(0.25, 0.3, None), Recommendation.TRAIN, "need about 300 tasks"),
        (skill(0.93, 1.0, True), Recommendation.PROMPT, "already solved"),
        (skill(0.4, 0.42, False), Recommendation.PROMPT, "missing knowledge: flat"),
        (skill(0.4, 0.42, False, informed=0.45), Recommendation.PROMPT, "missing knowledge: flat"),
        (skill(0.4, 0.42, False, informed=0.9), Recommendation.COLLECT, "must be shown"),
        (skill(0.0, 0.02, False, invalid=0.9), Recommendation.COLLECT, "not understood"),
        (skill(0.0, 0.02, False, informed=0.1), Recommendation.PROMPT, "even handed the evidence it solves 0.10"),
        (skill(0.0, 0.02, False, informed=0.6), Recommendation.COLLECT, "no signal"),
        (skill(0.0, 0.02, False), Recommendation.COLLECT, "no signal"),
        (skill(math.nan, math.nan, None), Recommendation.COLLECT, "no episode could be judged"),
    ],
)
def test_what_the_policy_can_do(skill, wanted, words):
    advice = decide(YES, YES, skill)
    assert advice.recommendation is wanted and words in advice.reasons[0]


def test_a_reward_that_can_be_had_otherwise_comes_before_everything():
    advice = decide(NO, NO, STRATEGY, Rental("RL", "new", True, lift(False)))
    assert advice.recommendation is Recommendation.FIX_REWARD and "not fine" in advice.reasons[0]


def test_a_budget_that_is_too_small():
    advice = decide(YES, NO, STRATEGY)
    assert advice.recommendation is Recommendation.PROMPT and "do not fit the budget" in advice.reasons[0]


def test_a_rental():
    rental = Rental("RL (train step 10)", "newer-base", True, lift(False))
    advice = decide(YES, YES, STRATEGY, rental)
    assert rental.finding == "a rental" and advice.recommendation is Recommendation.PROMPT
    assert "a rental: newer-base, prompted, does as well as RL (train step 10)" in advice.reasons[0]
    untrained = decide(YES, YES, STRATEGY, replace(rental, trained=False))
    assert "nothing is trained yet" in untrained.reasons[0]


@pytest.mark.parametrize(("answer", "finding"), [(True, "outlives the next base"), (None, "cannot tell")])
def test_no_rental(answer, finding):
    rental = Rental("RL", "newer-base", True, lift(answer, 0.2))
    advice = decide(YES, YES, STRATEGY, rental)
    assert rental.finding == finding and advice.recommendation is Recommendation.TRAIN
    assert (len(advice.reasons) == 2) == (answer is None)


def test_what_is_open_is_said():
    advice = decide(UNKNOWN, UNKNOWN, STRATEGY)
    assert advice.recommendation is Recommendation.TRAIN
    assert advice.reasons[1:] == ["the audit", "the audit"]


def test_an_expert_is_pointed_to():
    assert "sft-coldstart" in decide(YES, YES, skill(0.0, 0.0, False), has_expert=True).reasons[0]
    assert "sft-coldstart" not in decide(YES, YES, skill(0.0, 0.0, False)).reasons[0]


def test_never_solved_mirrors_pass_at_k():
    never = skill(0.1, 0.3, True).never
    assert (never.mean, never.low, never.high) == pytest.approx((0.7, 0.62, 0.78))
