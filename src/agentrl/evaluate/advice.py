"""Should you train at all? The decision, as a pure function of what `agentrl advise` measured."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from agentrl.evaluate.falsify import Difference
from agentrl.evaluate.intervals import Interval

SOLVED = 0.9  # a success rate with nothing left to train for
SIGNAL = 0.2  # share of tasks with a success among k samples, below which most groups have nothing to compare
BROKEN_FORMAT = 0.5  # share of actions that the environment does not understand


class Recommendation(str, Enum):
    TRAIN = "train"
    PROMPT = "prompt"
    FIX_REWARD = "fix the reward first"
    COLLECT = "collect cold-start data"


@dataclass(frozen=True)
class Condition:
    """One of the conditions that are not about the policy. ``holds`` None: it is open, and ``words`` says why."""

    holds: bool | None
    words: str

    def to_dict(self) -> dict[str, Any]:
        return {"holds": self.holds, "words": self.words}


@dataclass(frozen=True)
class Skill:
    """What the policy does on fresh tasks of the training variant, k samples each.

    ``informed`` (success when handed the evidence) and ``rescued`` (share of the never solved tasks that are then
    solved at least once) are None where the environment gives no evidence.
    """

    k: int
    pass_1: Interval
    pass_k: Interval
    headroom: Difference  # pass@k minus pass@1, paired by task
    informed: Interval | None = None
    rescued: Interval | None = None
    invalid: float = 0.0  # share of actions that were not understood

    @property
    def never(self) -> Interval:
        """Share of tasks solved in none of k samples."""
        p = self.pass_k
        return Interval(1 - p.mean, 1 - p.high, 1 - p.low, p.n, p.method)

    def to_dict(self) -> dict[str, Any]:
        return {
            "k": self.k,
            "pass_1": self.pass_1.to_dict(),
            "pass_k": self.pass_k.to_dict(),
            "headroom": self.headroom.to_dict(),
            "never_solved": self.never.to_dict(),
            "solved_with_evidence": self.informed.to_dict() if self.informed else None,
            "never_solved_but_with_evidence": self.rescued.to_dict() if self.rescued else None,
            "invalid_actions": self.invalid,
        }


@dataclass(frozen=True)
class Rental:
    """A policy minus the next base model, prompted, on the held-out panels (paired by task)."""

    policy: str
    next_base: str
    trained: bool  # False: there is no trained policy yet, so the untrained one stands in
    lift: Difference

    def to_dict(self) -> dict[str, Any]:
        facts = {"policy": self.policy, "next_base": self.next_base, "trained": self.trained}
        return {**facts, "lift": self.lift.to_dict(), "finding": self.finding}

    @property
    def finding(self) -> str:
        return {True: "outlives the next base", False: "a rental", None: "cannot tell"}[self.lift.answer]


@dataclass(frozen=True)
class Advice:
    recommendation: Recommendation
    reasons: Sequence[str]  # the one that decided first

    def to_dict(self) -> dict[str, Any]:
        return {"recommendation": self.recommendation.value, "reasons": list(self.reasons)}


def decide(
    reward: Condition, cost: Condition, skill: Skill, rental: Rental | None = None, has_expert: bool = False
) -> Advice:
    """The recommendation.

    What rules out training comes first: the reward, the cost, a next base model that does as well; then what the policy
    can do. A condition that is open rules nothing out and is named among the reasons.
    """
    recommendation, reasons = _decide(reward, cost, skill, rental, has_expert)
    notes = [c.words for c in (reward, cost) if c.holds is None]
    if rental is not None and rental.lift.answer is None and not math.isnan(rental.lift.interval.mean):
        need = f"; need about {rental.lift.need} held-out tasks" if rental.lift.need else ""
        notes.append(f"whether {rental.policy} outlives {rental.next_base} cannot be told yet{need}")
    return Advice(recommendation, [*reasons, *notes])


def _decide(
    reward: Condition, cost: Condition, skill: Skill, rental: Rental | None, has_expert: bool
) -> tuple[Recommendation, list[str]]:
    if reward.holds is False:
        return Recommendation.FIX_REWARD, [
            f"a policy would be trained on a reward that can be had otherwise: {reward.words}"
        ]
    if cost.holds is False:
        return Recommendation.PROMPT, [f"the rollouts do not fit the budget: {cost.words}"]
    if rental is not None and rental.lift.answer is False:
        who = rental.policy if rental.trained else f"{rental.policy} (nothing is trained yet)"
        return Recommendation.PROMPT, [f"a rental: {rental.next_base}, prompted, does as well as {who} held out"]
    if math.isnan(skill.pass_1.mean):
        return Recommendation.COLLECT, ["no episode could be judged: see the trajectories for why"]
    if skill.pass_1.mean >= SOLVED:
        return Recommendation.PROMPT, [
            f"already solved: pass@1 is {skill.pass_1.mean:.2f}, which leaves little to train for"
        ]
    if skill.pass_k.mean < SIGNAL:
        return _without_signal(skill, has_expert)
    at_k = f"pass@{skill.k} {skill.pass_k.mean:.2f} against pass@1 {skill.pass_1.mean:.2f}"
    if skill.headroom.answer is True:
        return Recommendation.TRAIN, [f"strategy: {at_k}; the policy can solve more than it usually does"]
    if skill.informed is not None and skill.informed.low > skill.pass_1.high:
        return Recommendation.COLLECT, [
            f"flat: {at_k}; but handed the evidence it solves {skill.informed.mean:.2f}: the way to it is not "
            "in its samples and must be shown"
        ]
    if skill.headroom.answer is None:
        need = f"; need about {skill.headroom.need} tasks" if skill.headroom.need else ""
        return Recommendation.TRAIN, [
            f"some signal ({at_k}), though the difference is not clear yet{need}: start small"
        ]
    return Recommendation.PROMPT, [
        f"missing knowledge: flat, {at_k}; more samples find no more. Another base may know it"
    ]


def _without_signal(skill: Skill, has_expert: bool) -> tuple[Recommendation, list[str]]:
    """Too few tasks are ever solved for a group to have anything to compare."""
    few = f"only {skill.pass_k.mean:.2f} of the tasks are solved in any of {skill.k} samples"
    source = "; the environment's expert can play the traces (agentrl sft-coldstart)" if has_expert else ""
    if skill.invalid >= BROKEN_FORMAT:
        return Recommendation.COLLECT, [f"{few}, and {skill.invalid:.0%} of its actions are not understood{source}"]
    if skill.informed is not None and skill.informed.mean < SIGNAL:
        return Recommendation.PROMPT, [
            f"missing knowledge: {few}, and even handed the evidence it solves {skill.informed.mean:.2f}. Another base "
            "may do better, prompted"
        ]
    if skill.informed is not None:
        few += f", though handed the evidence it solves {skill.informed.mean:.2f}"
    return Recommendation.COLLECT, [f"{few}: RL would have no signal to start from{source}"]
