"""95 % intervals for everything an evaluation reports, and the unbiased pass@k.

The unit of resampling is the task: samples of one task are not independent, tasks are. Which interval is used where:

- share of successes, one sample per task: Wilson's score interval.
- means of scores, and success with several samples per task: percentile bootstrap over tasks (a task stands for the
  mean of its samples, so that resampling task means *is* the cluster bootstrap with equal weight per task), with
  Hesterberg's expansion for small samples.
- two policies on the same tasks: Bonett and Price's interval for paired binary outcomes, else the bootstrap over the
  tasks' differences.
- train minus held-out, means over variants: MOVER (Zou and Donner), which combines the two intervals' arms and keeps
  them asymmetric near 0 and 1.

Where all tasks agree on 0 or on 1 resampling sees no spread at all; the Wilson interval over tasks stands in.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

LEVEL = 0.95
RESAMPLES = 10_000
_CHUNK = 4_000_000  # drawn indices held in memory at once


@dataclass(frozen=True)
class Interval:
    """A mean and its 95 % interval; all three are NaN when nothing was scored. ``n`` counts tasks."""

    mean: float
    low: float
    high: float
    n: int
    method: str

    def to_dict(self) -> dict[str, float | int | str | None]:
        """JSON form: NaN becomes null."""
        return {
            "mean": _json_number(self.mean),
            "low": _json_number(self.low),
            "high": _json_number(self.high),
            "n": self.n,
            "method": self.method,
        }

    def excludes_zero(self) -> bool:
        return self.low > 0 or self.high < 0


def _json_number(value: float) -> float | None:
    return None if math.isnan(value) else float(value)


def _z(level: float) -> float:
    return NormalDist().inv_cdf(0.5 + level / 2)


def wilson(successes: float, n: int, level: float = LEVEL) -> Interval:
    """Wilson's score interval for a binomial share (Wilson 1927; Brown, Cai and DasGupta 2001, eq. 4)."""
    if n == 0:
        return _nothing("wilson")
    z = _z(level)
    p = successes / n
    centre = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    return Interval(p, max(0.0, min(p, centre - half)), min(1.0, max(p, centre + half)), n, "wilson")


def bootstrap_mean(
    values: Sequence[float] | np.ndarray, seed: int = 0, resamples: int = RESAMPLES, level: float = LEVEL
) -> Interval:
    """Expanded percentile bootstrap of a mean over ``values`` float[n], one per task.

    The percentile interval of a mean is too short by about sqrt((n - 1) / n) and by the normal quantile in place of
    Student's. Hesterberg (2015), "What Teachers Should Know About the Bootstrap", section 5.3, reads wider
    percentiles instead: alpha' / 2 = Phi(-sqrt(n / (n - 1)) * t(1 - alpha/2, n - 1)).
    One value has no spread to resample: the interval is then NaN.
    """
    data = np.asarray(values, dtype=np.float64)
    n = len(data)
    if n == 0:
        return _nothing("bootstrap")
    mean = float(data.mean())
    if n == 1:
        return Interval(mean, math.nan, math.nan, 1, "bootstrap")
    if np.ptp(data) == 0:
        return Interval(float(data[0]), float(data[0]), float(data[0]), n, "bootstrap")
    rng = np.random.default_rng(seed)
    means = np.empty(resamples)
    chunk = max(1, _CHUNK // n)
    for start in range(0, resamples, chunk):
        size = min(chunk, resamples - start)
        means[start : start + size] = data[rng.integers(0, n, size=(size, n))].mean(axis=1)
    tail = NormalDist().cdf(-math.sqrt(n / (n - 1)) * _t_quantile(0.5 + level / 2, n - 1))
    low, high = np.quantile(means, [tail, 1 - tail])
    return Interval(mean, float(min(low, mean)), float(max(high, mean)), n, "bootstrap")


def task_means(per_task: Sequence[Sequence[float]]) -> np.ndarray:
    """float[n]: mean of each task's samples. Tasks without a sample must have been left out."""
    return np.array([float(np.mean(samples)) for samples in per_task], dtype=np.float64)


def mean_interval(per_task: Sequence[Sequence[float]], seed: int = 0) -> Interval:
    """Mean of a score in [0, 1], given each task's samples (at least one each); each task weighs the same.

    Wilson when every task has one sample and all are 0 or 1; Wilson over tasks when all samples of all tasks are 0,
    or all 1; else the bootstrap over tasks. A single fractional task gets [0, 1].
    """
    means = task_means(per_task)
    n = len(means)
    if n == 0:
        return _nothing("wilson")
    single = all(len(samples) == 1 for samples in per_task)
    if (single and _binary(means)) or np.all(means == 0) or np.all(means == 1):
        return wilson(float(means.sum()), n)
    if n == 1:
        return Interval(float(means[0]), 0.0, 1.0, 1, "none")
    return bootstrap_mean(means, seed)


def paired_difference(first: Sequence[Sequence[float]], second: Sequence[Sequence[float]], seed: int = 0) -> Interval:
    """Mean of second minus first of a score in [0, 1] over the same tasks, in the same order.

    One binary sample per task on both sides: Bonett and Price (2012), "Adjusted Wald confidence interval for a
    difference of binomial proportions based on paired data", J. Educ. Behav. Stat. 37(4): the discordant shares are
    taken as (count + 1) / (n + 2). The reported mean stays the plain difference. Else: bootstrap over the tasks'
    differences of means; if no task differs, Bonett and Price without discordant tasks.
    """
    if len(first) != len(second):
        raise ValueError(f"paired lists of different length: {len(first)} and {len(second)} tasks")
    a, b = task_means(first), task_means(second)
    diff = b - a
    n = len(diff)
    if n == 0:
        return _nothing("paired")
    single = all(len(s) == 1 for s in [*first, *second])
    if (single and _binary(a) and _binary(b)) or np.all(diff == 0):
        return _bonett_price(int((diff > 0).sum()), int((diff < 0).sum()), n)
    if n == 1:
        return Interval(float(diff[0]), -1.0, 1.0, 1, "none")
    found = bootstrap_mean(diff, seed)
    return Interval(found.mean, found.low, found.high, n, "paired bootstrap")


def _bonett_price(gained: int, lost: int, n: int, level: float = LEVEL) -> Interval:
    z = _z(level)
    up, down = (gained + 1) / (n + 2), (lost + 1) / (n + 2)
    half = z * math.sqrt((up + down - (up - down) ** 2) / (n + 2))
    mean = (gained - lost) / n
    low, high = max(-1.0, up - down - half), min(1.0, up - down + half)
    return Interval(mean, min(low, mean), max(high, mean), n, "bonett-price")


def combine(parts: Sequence[Interval], weights: Sequence[float]) -> Interval:
    """Interval of sum_i w_i * mean_i from the intervals of independent estimates (MOVER).

    Zou and Donner (2008), "Construction of confidence limits about effect measures", Stat. Med. 27; for two
    proportions with Wilson limits and weights (1, -1) it is Newcombe's (1998) method 10. With positively correlated
    parts (tasks of two variants that share a world) a difference's interval is too wide, never too narrow.
    """
    if not parts or any(math.isnan(p.mean) for p in parts):
        return _nothing("mover")
    mean = sum(w * p.mean for p, w in zip(parts, weights, strict=True))
    below = above = 0.0
    for part, w in zip(parts, weights, strict=True):
        down, up = part.mean - part.low, part.high - part.mean
        if w < 0:
            down, up = up, down
        below += (w * down) ** 2
        above += (w * up) ** 2
    return Interval(mean, mean - math.sqrt(below), mean + math.sqrt(above), sum(p.n for p in parts), "mover")


def pass_at_k(n: int, c: int, k: int) -> float:
    """Unbiased chance that at least one of k samples succeeds, from c successes in n >= k samples of one task.

    1 - C(n - c, k) / C(n, k), Chen et al. (2021), arXiv 2107.03374, eq. 1.
    """
    if not 0 < k <= n or not 0 <= c <= n:
        raise ValueError(f"pass@k needs 0 < k <= n and 0 <= c <= n, got n={n}, c={c}, k={k}")
    return 1.0 - math.comb(n - c, k) / math.comb(n, k)


def _binary(values: np.ndarray) -> bool:
    return bool(np.all((values == 0) | (values == 1)))


def _nothing(method: str) -> Interval:
    return Interval(math.nan, math.nan, math.nan, 0, method)


def _t_quantile(p: float, df: int) -> float:
    """Quantile of Student's t: exact for 1 and 2 degrees of freedom, else Abramowitz and Stegun 26.7.5 (1e-2 at
    df = 3, 1e-4 from df = 10)."""
    if df == 1:
        return math.tan(math.pi * (p - 0.5))
    if df == 2:
        return (2 * p - 1) * math.sqrt(2 / (1 - (2 * p - 1) ** 2))
    x = NormalDist().inv_cdf(p)
    terms = (
        (x**3 + x) / 4,
        (5 * x**5 + 16 * x**3 + 3 * x) / 96,
        (3 * x**7 + 19 * x**5 + 17 * x**3 - 15 * x) / 384,
        (79 * x**9 + 776 * x**7 + 1482 * x**5 - 1920 * x**3 - 945 * x) / 92160,
    )
    return x + sum(term / df ** (i + 1) for i, term in enumerate(terms))
