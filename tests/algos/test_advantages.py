"""Estimators against the golden numbers of the fact sheet (8.8), their invariances, and float noise."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from making import advantages, group, row

from agentrl.algos import ESTIMATORS
from agentrl.algos.advantages import annotate
from agentrl.algos.baselines import dr_grpo, equal, grpo, reinforce_pp_baseline, rloo, whiten
from agentrl.algos.sampling_filter import has_spread
from agentrl.config.schema import AlgoConfig
from agentrl.errors import UserError
from agentrl.rollout.trajectory import RewardComponent

GOLDEN = np.array([1, 0, 0, 1, 0, 0, 0, 0], dtype=np.float64)
GROUP_ESTIMATORS = ("grpo", "dr_grpo", "rloo")
# Rewards with at most 3 decimals: what differs differs by far more than noise.
rewards_lists = st.lists(st.integers(-3000, 3000).map(lambda i: i / 1000), min_size=2, max_size=12)


def of(estimator: str, rewards: np.ndarray, eps: float = 1e-6) -> np.ndarray:
    return {"grpo": lambda r: grpo(r, eps), "dr_grpo": dr_grpo, "rloo": rloo}[estimator](rewards)


@pytest.mark.parametrize(
    ("estimator", "eps", "one", "zero"),
    [
        ("grpo", 1e-6, 1.6202, -0.5401),
        ("grpo", 1e-4, 1.6198, -0.5399),
        ("dr_grpo", 1e-6, 0.75, -0.25),
        ("rloo", 1e-6, 0.8571, -0.2857),
    ],
)
def test_golden_numbers(estimator: str, eps: float, one: float, zero: float) -> None:
    made = group(GOLDEN.tolist())
    annotate([made], AlgoConfig(estimator=estimator, std_eps=eps))
    assert advantages(made) == pytest.approx([one if r else zero for r in GOLDEN], abs=5e-5)
    assert GOLDEN.std(ddof=1) == pytest.approx(0.46291, abs=5e-6)


def test_reinforce_pp_whitens_over_tokens() -> None:
    """Two trajectories with rewards 1 and 0 over 1 and 3 tokens: mean 1/4, sample variance over tokens 1/4."""
    made = group([1.0, 0.0], rows=[[row([(1, 5)])], [row([(1, 2), (2, 0)])]])
    annotate([made], AlgoConfig(estimator="reinforce_pp", std_eps=0.0))
    assert advantages(made) == pytest.approx([1.5, -0.5])


@given(st.lists(st.tuples(st.integers(-3000, 3000), st.integers(1, 9)), min_size=2, max_size=12))
def test_whitening_is_plain_whitening_of_the_repeated_values(pairs: list[tuple[int, int]]) -> None:
    values = np.array([v / 1000 for v, _ in pairs])
    tokens = np.array([n for _, n in pairs])
    repeated = np.repeat(values, tokens)
    expected = (values - repeated.mean()) / (repeated.std(ddof=1) + 1e-6) if not equal(values) else 0 * values
    assert whiten(values, tokens, 1e-6) == pytest.approx(expected, abs=1e-9)


def test_reinforce_pp_baseline_subtracts_the_group_mean_then_whitens() -> None:
    rewards = [np.array([1.0, 0.0]), np.array([0.5, 0.5])]
    tokens = [np.array([1, 3]), np.array([2, 2])]
    flat = np.array([0.5, -0.5, -0.5, -0.5, 0, 0, 0, 0])
    mixed, same = reinforce_pp_baseline(rewards, tokens, 1e-6)
    assert mixed == pytest.approx((np.array([0.5, -0.5]) - flat.mean()) / (flat.std(ddof=1) + 1e-6))
    assert same.tolist() == [0.0, 0.0]  # the shift of a lop-sided batch mean must not reach it


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize(
    "rewards",
    [
        [float(np.float32(0.7))] * 8,
        [0.7] * 7 + [float(np.float32(0.7))],
        [0.1 + 0.2] * 3 + [0.3] * 3,
        [float(np.mean(np.full(n, 0.7, np.float32))) for n in range(1, 9)],
        [float(sum([np.float32(0.1)] * 7, np.float32(0)))] * 4 + [0.7] * 4,
        [0.0] * 8,
        [-1e9] * 5,
    ],
)
def test_equal_rewards_give_exactly_zero(estimator: str, rewards: list[float]) -> None:
    made = group(rewards)
    metrics = annotate([made], AlgoConfig(estimator=estimator))
    assert set(advantages(made)) == {0.0}
    assert metrics["group/zero_spread"] == 1.0 and metrics["advantage/max"] == 0.0
    assert not has_spread(made)


@pytest.mark.parametrize("estimator", ESTIMATORS)
@given(reward=st.floats(-1e6, 1e6), size=st.integers(1, 16), noise=st.lists(st.integers(-1, 1), min_size=16))
def test_rewards_equal_up_to_fp32_rounding_give_exactly_zero(
    estimator: str, reward: float, size: int, noise: list[int]
) -> None:
    base = np.float32(reward)
    rewards = [float(base + np.spacing(base) * np.float32(n)) for n in noise[:size]]
    made = group(rewards)
    annotate([made], AlgoConfig(estimator=estimator))
    assert set(advantages(made)) == {0.0}


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_one_different_among_equals(dtype: type) -> None:
    """Five 0.3 and one 0.8: the naive normalised leave-one-out divides by the zero spread of the other five."""
    rewards = np.array([0.3] * 5 + [0.8], dtype=dtype).astype(np.float64)
    assert rloo(rewards) == pytest.approx([-0.1] * 5 + [0.5], abs=1e-6)
    assert dr_grpo(rewards) == pytest.approx([-0.5 / 6] * 5 + [2.5 / 6], abs=1e-6)
    std = 0.5 / np.sqrt(6)
    assert grpo(rewards, 1e-6) == pytest.approx([-0.5 / 6 / std] * 5 + [2.5 / 6 / std], abs=1e-4)


@pytest.mark.parametrize("estimator", GROUP_ESTIMATORS)
@given(rewards=rewards_lists, order=st.randoms(use_true_random=False))
def test_permuting_the_members_permutes_the_advantages(estimator: str, rewards: list[float], order) -> None:
    index = list(range(len(rewards)))
    order.shuffle(index)
    plain = of(estimator, np.array(rewards))
    assert of(estimator, np.array(rewards)[index]) == pytest.approx(plain[index], abs=1e-9)


@given(rewards_lists, st.floats(0.01, 100), st.floats(-10, 10))
def test_affine_changes_of_the_reward(rewards: list[float], scale: float, shift: float) -> None:
    values = np.array(rewards)
    moved = scale * values + shift
    if not equal(values) and not equal(moved):
        assert grpo(moved, 0.0) == pytest.approx(grpo(values, 0.0), abs=1e-6)
        assert dr_grpo(moved) == pytest.approx(scale * dr_grpo(values), abs=1e-6)
        assert rloo(moved) == pytest.approx(scale * rloo(values), abs=1e-6)


@pytest.mark.parametrize("estimator", GROUP_ESTIMATORS)
@given(rewards=rewards_lists)
def test_a_group_sums_to_zero(estimator: str, rewards: list[float]) -> None:
    assert of(estimator, np.array(rewards)).sum() == pytest.approx(0, abs=1e-6)


@given(rewards_lists)
def test_rloo_is_the_leave_one_out_mean(rewards: list[float]) -> None:
    values = np.array(rewards)
    expected = [r - np.delete(values, i).mean() for i, r in enumerate(values)]
    assert rloo(values) == pytest.approx(expected, abs=1e-9)


@settings(max_examples=40)
@pytest.mark.parametrize("estimator", ESTIMATORS)
@given(
    rewards=st.lists(st.one_of(st.none(), st.sampled_from([0.0, 0.25, 1.0])), min_size=1, max_size=6),
    turns=st.lists(st.tuples(st.integers(1, 4), st.integers(0, 3)), min_size=1, max_size=3),
)
def test_only_sampled_tokens_of_scored_members(
    estimator: str, rewards: list[float | None], turns: list[tuple[int, int]]
) -> None:
    rows = [[row(turns), row(turns[:1])] for _ in rewards]  # two rows: windowed context
    for r in rows:
        r[0].advantage[:] = 7.0  # left over from before
    made = group(rewards, rows=rows)
    metrics = annotate([made, group([1.0, 0.0], "other")], AlgoConfig(estimator=estimator))
    for trajectory in made.trajectories:
        for r in trajectory.rows:
            assert not r.advantage[~r.sampled].any()
            assert np.isfinite(r.advantage).all()
            if trajectory.stop_reason == "error":
                assert not r.advantage.any()
    assert metrics["group/dropped"] == sum(r is None for r in rewards)
    assert metrics["group/size_mean"] == (sum(r is not None for r in rewards) + 2) / 2


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_errored_members_leave_the_statistics(estimator: str) -> None:
    cfg = AlgoConfig(estimator=estimator)
    with_errors, without = group([1.0, None, 0.0, None, 0.0]), group([1.0, 0.0, 0.0])
    annotate([with_errors], cfg)
    annotate([without], cfg)
    kept = [a for a, t in zip(advantages(with_errors), with_errors.trajectories, strict=True) if t.error is None]
    assert kept == advantages(without)


def test_not_scored_and_nan_rewards_leave_the_group_too() -> None:
    made = group([1.0, 0.0, 0.0, 0.0])
    made.trajectories[2].reward.components = [RewardComponent("judge", "learned", None, error="time-out")]
    made.trajectories[3].reward.components = [RewardComponent("judge", "learned", float("nan"))]
    metrics = annotate([made], AlgoConfig(estimator="dr_grpo"))
    assert advantages(made) == [0.5, -0.5, 0.0, 0.0]
    assert metrics["group/dropped"] == 2


@pytest.mark.parametrize("estimator", ["grpo", "dr_grpo", "rloo", "reinforce_pp_baseline"])
def test_a_group_of_one_teaches_nothing(estimator: str) -> None:
    made = group([1.0, None])
    metrics = annotate([made, group([0.0, 1.0], "other")], AlgoConfig(estimator=estimator))
    assert advantages(made) == [0.0, 0.0]
    assert metrics["group/zero_spread"] == 0.5


def test_reinforce_pp_works_with_groups_of_one() -> None:
    groups = [group([r], str(i)) for i, r in enumerate([1.0, 0.0])]
    annotate(groups, AlgoConfig(estimator="reinforce_pp", std_eps=0.0))
    assert [advantages(g)[0] for g in groups] == pytest.approx(
        [0.5 / np.sqrt(10 * 0.25 / 9), -0.5 / np.sqrt(10 * 0.25 / 9)]
    )


def test_the_ablation_also_trains_on_observations() -> None:
    made = group([1.0, 0.0])
    annotate([made], AlgoConfig(estimator="dr_grpo", mask_observations=False))
    r = made.trajectories[0].rows[0]
    assert r.advantage.tolist() == [0.0] * 3 + [0.5] * 7


def test_metrics() -> None:
    metrics = annotate([group([1.0, 0.0]), group([1.0, 1.0], "b")], AlgoConfig(estimator="dr_grpo"))
    assert metrics == {
        "group/zero_spread": 0.5,
        "group/size_mean": 2.0,
        "group/dropped": 0.0,
        "group/repeated_states": 1.0,
        "advantage/mean_abs": 0.25,
        "advantage/max": 0.5,
    }
    assert annotate([], AlgoConfig())["group/size_mean"] == 0.0


def test_an_unknown_estimator_is_named() -> None:
    with pytest.raises(UserError, match=r"algo.estimator=drgrpo is unknown: did you mean 'dr_grpo'\?"):
        annotate([], AlgoConfig(estimator="drgrpo"))
