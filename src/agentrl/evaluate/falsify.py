"""Does the reward explain the gain? The statistics of a run against its control arms, on tasks that all have played.

For the training variant and, pooled by task, for the held-out variants: *gain* is the real arm minus the policy that
all arms started from, *lift* is the real arm minus one control arm, both paired by task with 95 % intervals. The
``margin`` is the smallest difference that would matter. Each of the two is

* *yes* when its interval lies above 0,
* *no* when its interval lies below the margin: whatever is still possible is too small to matter,
* *open* otherwise.

A side's finding is ``explains`` when gain and lift are both yes, ``does_not`` when one of them is no (there is no gain,
or the control has it too), else ``cannot_tell``, with the number of tasks that would decide it.

The verdict over one control follows the first side, the training variant: when that is open, a held-out side that
explains decides, for more tasks stand behind it. The verdict over several controls is the worst: the reward must beat
every one of them. The intervals cover the choice of tasks and the draw of actions, not the choice of the training seed:
there is one run an arm.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from statistics import NormalDist
from typing import Any

from agentrl.evaluate.intervals import LEVEL, Interval, paired_difference, task_means

POWER = 0.8

Outcomes = Mapping[str, Sequence[float]]
"""Task hash → success of each judged sample of that task, one at least."""


class Finding(str, Enum):
    EXPLAINS = "explains"
    DOES_NOT = "does_not"
    CANNOT_TELL = "cannot_tell"


@dataclass(frozen=True)
class Difference:
    """A paired difference over the tasks that both policies have, whether it is there, and what would settle it."""

    interval: Interval
    discordant: float  # share of tasks on which the two differ
    answer: bool | None  # True: above 0. False: below the margin. None: open
    need: int | None  # tasks that would settle it with 80 % power if the true difference is the observed one

    def to_dict(self) -> dict[str, Any]:
        answer = {True: "yes", False: "no", None: "open"}[self.answer]
        discordant = None if math.isnan(self.discordant) else self.discordant
        return {**self.interval.to_dict(), "discordant": discordant, "answer": answer, "need_tasks": self.need}


@dataclass(frozen=True)
class Side:
    """The training variant, or the held-out variants together."""

    name: str
    split: str  # "train" | "heldout"
    variants: Sequence[str]
    gain: Difference
    lift: Difference
    finding: Finding

    @property
    def need(self) -> int | None:
        """Tasks a variant (``eval.tasks``) that would settle what is open here."""
        open_ones = [d.need for d in (self.gain, self.lift) if d.need is not None]
        return math.ceil(max(open_ones) / len(self.variants)) if open_ones else None

    def to_dict(self) -> dict[str, Any]:
        return {
            "side": self.name,
            "split": self.split,
            "variants": list(self.variants),
            "gain": self.gain.to_dict(),
            "lift": self.lift.to_dict(),
            "finding": self.finding.value,
            "need_tasks": self.need,
        }


@dataclass(frozen=True)
class Verdict:
    """What follows from all sides and controls. ``need`` is an ``eval.tasks``, given when nothing can be told yet."""

    finding: Finding
    text: str
    need: int | None = None

    def to_dict(self) -> dict[str, Any]:
        return {"finding": self.finding.value, "text": self.text, "need_tasks": self.need}


def difference(first: Outcomes, second: Outcomes, margin: float, seed: int = 0) -> Difference:
    """Second minus first over the tasks that both have."""
    shared = [task for task in first if task in second]
    a, b = [first[t] for t in shared], [second[t] for t in shared]
    found = paired_difference(a, b, seed)
    if math.isnan(found.mean):
        return Difference(found, math.nan, None, None)
    diff = task_means(b) - task_means(a)
    discordant = float((diff != 0).mean())
    if found.low > 0:
        return Difference(found, discordant, True, None)
    if found.high < margin:
        return Difference(found, discordant, False, None)
    # One more task of either kind keeps the variance above 0 where no task differs (Bonett and Price's adjustment).
    n = len(diff)
    variance = (float((diff**2).sum()) + 2) / (n + 2) - (float(diff.sum()) / (n + 2)) ** 2
    return Difference(found, discordant, None, max(n + 1, tasks_needed(found.mean, variance, margin)))


def tasks_needed(mean: float, variance: float, margin: float) -> int:
    """Tasks after which the interval of a paired difference lies above 0, or below the margin, with 80 % power.

    n = (z_{1 - alpha/2} + z_{power})² · variance / distance², the sample size of a paired comparison (Connor 1987,
    "Sample size for testing differences in proportions for the paired-sample design", Biometrics 43, eq. 2.1, with one
    variance under both hypotheses: discordant share minus mean²). The distance is to whichever of 0 (from above) and
    the margin (from below) is farther off and so sooner excluded, as if the observed mean were the true one.
    """
    normal = NormalDist()
    z = normal.inv_cdf(0.5 + LEVEL / 2) + normal.inv_cdf(POWER)
    return math.ceil(z * z * variance / max(mean, margin - mean) ** 2)


def judge_side(
    name: str,
    split: str,
    variants: Sequence[str],
    start: Outcomes,
    control: Outcomes,
    real: Outcomes,
    margin: float,
    seed: int = 0,
) -> Side:
    """One side: the real arm against the start (gain) and against the control (lift)."""
    gain, lift = difference(start, real, margin, seed), difference(control, real, margin, seed)
    if gain.answer is False or lift.answer is False:
        finding = Finding.DOES_NOT
    elif gain.answer and lift.answer:
        finding = Finding.EXPLAINS
    else:
        finding = Finding.CANNOT_TELL
    return Side(name, split, variants, gain, lift, finding)


def judge_control(sides: Sequence[Side]) -> tuple[Finding, int | None]:
    """The finding over one control from its sides, the deciding one first, and the tasks that are missing."""
    first = sides[0]
    if first.finding is Finding.CANNOT_TELL and not any(s.finding is Finding.EXPLAINS for s in sides):
        return Finding.CANNOT_TELL, first.need
    if first.finding is Finding.DOES_NOT:
        return Finding.DOES_NOT, None
    return Finding.EXPLAINS, None


def judge(controls: Mapping[str, Sequence[Side]]) -> Verdict:
    """The one verdict over all controls, as a sentence. ``controls`` maps an arm's name to its sides."""
    found = {name: judge_control(sides) for name, sides in controls.items()}
    no = [name for name, (finding, _) in found.items() if finding is Finding.DOES_NOT]
    unclear = [name for name, (finding, _) in found.items() if finding is Finding.CANNOT_TELL]
    if no:
        side = controls[no[0]][0]
        if side.gain.answer is False:
            why = f"there is no gain over the start ({_where(side)})"
        else:
            arms = " and ".join(no)
            why = f"{arms} did as well ({_where(side)})" if side.lift.interval.high >= 0 else f"{arms} did better"
        return Verdict(Finding.DOES_NOT, f"the reward does not explain the gain: {why}")
    if unclear:
        needs = [found[name][1] for name in unclear]
        known = [n for n in needs if n is not None]
        n = min(controls[name][0].lift.interval.n for name in unclear)
        if len(known) < len(needs):
            return Verdict(Finding.CANNOT_TELL, "cannot tell: no task was judged for every arm")
        need = _round_up(max(known))
        return Verdict(
            Finding.CANNOT_TELL, f"cannot tell at this n ({n}): need about {need} tasks (eval.tasks={need})", need
        )
    names = {s.name for s in next(iter(controls.values()))}
    shown = [
        n
        for n in names
        if all(s.finding is Finding.EXPLAINS for sides in controls.values() for s in sides if s.name == n)
    ]
    where = " and ".join(sorted(shown, key=lambda n: n != "training variant")) or "not the same side for every control"
    left = [_rest(s) for s in next(iter(controls.values())) if s.name not in shown]
    return Verdict(Finding.EXPLAINS, f"the reward explains the gain ({where}{''.join(left)})")


def _where(side: Side) -> str:
    return f"{side.name}, n={side.lift.interval.n}"


def _rest(side: Side) -> str:
    if side.finding is Finding.DOES_NOT:
        return f"; {side.name}: it does not"
    return f"; {side.name}: cannot tell"


def _round_up(n: int) -> int:
    """To two digits: the number is an estimate."""
    unit = 10 ** max(0, len(str(n)) - 2)
    return -(-n // unit) * unit
