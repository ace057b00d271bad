"""Golden numbers, edge cases and simulated coverage of the intervals."""

from __future__ import annotations

import math

import numpy as np
import pytest

from agentrl.evaluate import intervals
from agentrl.evaluate.intervals import Interval, bootstrap_mean, combine, mean_interval, paired_difference, wilson


@pytest.mark.parametrize(
    ("successes", "n", "low", "high"),
    [
        (8, 10, 0.49016, 0.94332),
        (0, 10, 0.0, 0.27753),
        (10, 10, 0.72247, 1.0),
        (81, 263, 0.2553, 0.3662),  # Newcombe 1998, table I: 0.2553 to 0.3662
        (1, 29, 0.0061, 0.1718),  # Newcombe 1998, table I: 0.0061 to 0.1718
    ],
)
def test_wilson_golden(successes: int, n: int, low: float, high: float) -> None:
    found = wilson(successes, n)
    assert found.mean == successes / n
    assert (found.low, found.high) == pytest.approx((low, high), abs=5e-5)


def test_newcombe_difference_golden() -> None:
    """Newcombe (1998b), table II, method 10: 56/70 - 48/80 is 0.0524 to 0.3339; 9/10 - 3/10 is 0.1705 to 0.8090."""
    for a, b, low, high in [((56, 70), (48, 80), 0.0524, 0.3339), ((9, 10), (3, 10), 0.1705, 0.8090)]:
        found = combine([wilson(*a), wilson(*b)], [1, -1])
        assert (found.low, found.high) == pytest.approx((low, high), abs=1e-4)


def test_combine_of_means_narrows_and_nan_stays_nan() -> None:
    part = Interval(0.5, 0.4, 0.6, 10, "x")
    both = combine([part, part], [0.5, 0.5])
    assert both.mean == 0.5 and both.high == pytest.approx(0.5 + 0.1 / math.sqrt(2)) and both.n == 20
    nothing = combine([part, wilson(0, 0)], [1, -1])
    assert math.isnan(nothing.mean) and nothing.to_dict()["low"] is None


@pytest.mark.parametrize(
    ("n", "c", "k", "value"),
    [(10, 3, 1, 0.3), (10, 3, 2, 1 - 21 / 45), (5, 1, 5, 1.0), (5, 0, 5, 0.0), (4, 4, 1, 1.0), (200, 1, 100, 0.5)],
)
def test_pass_at_k_golden(n: int, c: int, k: int, value: float) -> None:
    assert intervals.pass_at_k(n, c, k) == pytest.approx(value)


def test_pass_at_k_is_unbiased() -> None:
    """Its mean over Binomial(n, p) equals 1 - (1 - p)^k exactly."""
    n, p, k = 8, 0.3, 4
    mean = sum(math.comb(n, c) * p**c * (1 - p) ** (n - c) * intervals.pass_at_k(n, c, k) for c in range(n + 1))
    assert mean == pytest.approx(1 - (1 - p) ** k)


@pytest.mark.parametrize("bad", [(3, 1, 4), (3, 4, 1), (3, 1, 0)])
def test_pass_at_k_refuses_nonsense(bad: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="pass@k"):
        intervals.pass_at_k(*bad)


@pytest.mark.parametrize(("df", "t"), [(1, 12.7062), (2, 4.3027), (5, 2.5706), (10, 2.2281), (63, 1.9983)])
def test_student_quantile(df: int, t: float) -> None:
    assert intervals._t_quantile(0.975, df) == pytest.approx(t, abs=2e-3)


def test_bootstrap_is_seeded_and_matches_the_normal_interval() -> None:
    data = np.random.default_rng(1).normal(0.5, 0.1, 400)
    found = bootstrap_mean(data, seed=3)
    assert found == bootstrap_mean(data, seed=3) and found != bootstrap_mean(data, seed=4)
    half = 1.96 * data.std(ddof=1) / 20
    assert (found.high - found.low) / 2 == pytest.approx(half, rel=0.05)


def test_bootstrap_chunks_do_not_change_the_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    data = np.arange(50.0)
    whole = bootstrap_mean(data, resamples=2000)
    monkeypatch.setattr(intervals, "_CHUNK", 500)
    assert bootstrap_mean(data, resamples=2000) == whole


def test_which_interval_is_used() -> None:
    assert mean_interval([[1.0], [0.0], [1.0]]).method == "wilson"
    assert mean_interval([[0.5], [0.0], [1.0]]).method == "bootstrap"
    assert mean_interval([[1.0, 0.0], [0.0, 0.0]]).method == "bootstrap"
    all_wrong = mean_interval([[0.0, 0.0]] * 10)
    assert all_wrong.method == "wilson" and all_wrong.high == pytest.approx(0.27753, abs=1e-4)  # 10 tasks, not 20
    assert mean_interval([[0.4]]).to_dict()["high"] == 1.0
    assert mean_interval([]).to_dict()["mean"] is None


def test_each_task_weighs_the_same() -> None:
    assert mean_interval([[1.0, 1.0, 1.0], [0.0]]).mean == 0.5


def test_samples_of_one_task_are_not_independent() -> None:
    """Eight identical samples per task tell no more than one."""
    once = bootstrap_mean([1.0, 0.0] * 20)
    eight = mean_interval([[1.0] * 8, [0.0] * 8] * 20)
    assert (eight.low, eight.high) == (once.low, once.high)


def test_paired_difference_golden() -> None:
    """Bonett and Price by hand: n = 40, 10 gained, 2 lost."""
    first = [[0.0]] * 10 + [[1.0]] * 2 + [[1.0]] * 28
    second = [[1.0]] * 10 + [[0.0]] * 2 + [[1.0]] * 28
    found = paired_difference(first, second)
    up, down = 11 / 42, 3 / 42
    half = 1.959964 * math.sqrt((up + down - (up - down) ** 2) / 42)
    assert found.mean == 0.2
    assert (found.low, found.high) == pytest.approx((up - down - half, up - down + half), abs=1e-6)
    assert found.excludes_zero()


def test_paired_difference_of_equal_policies_is_not_certain() -> None:
    same = [[0.5, 1.0]] * 8
    found = paired_difference(same, same)
    assert found.mean == 0 and found.low < 0 < found.high


def test_pairing_helps() -> None:
    """Task difficulty cancels in the paired difference."""
    rng = np.random.default_rng(0)
    hard = rng.uniform(0, 0.8, 60)
    first, second = [[h] for h in hard], [[h + 0.05 + 0.02 * rng.normal()] for h in hard]
    paired = paired_difference(first, second)
    unpaired = combine([mean_interval(second), mean_interval(first)], [1, -1])
    assert paired.excludes_zero() and not unpaired.excludes_zero()
    with pytest.raises(ValueError, match="different length"):
        paired_difference(first, second[1:])


def _coverage(covered: list[bool]) -> float:
    return float(np.mean(covered))


@pytest.mark.parametrize("p", [0.05, 0.3, 0.9])
def test_wilson_coverage(p: float) -> None:
    draws = np.random.default_rng(0).binomial(64, p, 4000)
    assert 0.93 <= _coverage([(i := wilson(int(c), 64)).low <= p <= i.high for c in draws]) <= 0.98


@pytest.mark.parametrize(("tasks", "samples"), [(12, 4), (48, 4)])
def test_cluster_bootstrap_coverage(tasks: int, samples: int) -> None:
    """Tasks of different difficulty (Beta(1, 1) chances), several samples each; true mean 0.5."""
    rng = np.random.default_rng(7)
    covered, naive = [], []
    for trial in range(500):
        wins = rng.binomial(1, rng.uniform(0, 1, tasks)[:, None], (tasks, samples)).astype(float)
        found = bootstrap_mean(wins.mean(axis=1), seed=trial, resamples=1000)
        covered.append(found.low <= 0.5 <= found.high)
        flat = wilson(wins.sum(), wins.size)
        naive.append(flat.low <= 0.5 <= flat.high)
    assert 0.925 <= _coverage(covered) <= 0.975
    assert _coverage(naive) < 0.9  # what counting every sample as independent would claim


def test_paired_coverage() -> None:
    rng = np.random.default_rng(5)
    covered = []
    for _ in range(2000):
        kind = rng.choice(4, size=48, p=[0.4, 0.25, 0.05, 0.3])  # both wrong, gained, lost, both right
        first, second = np.isin(kind, [2, 3]).astype(float), np.isin(kind, [1, 3]).astype(float)
        found = paired_difference(first[:, None].tolist(), second[:, None].tolist())
        covered.append(found.low <= 0.2 <= found.high)
    assert 0.93 <= _coverage(covered) <= 0.98
