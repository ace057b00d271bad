"""GiGPO worked by hand, its fall-back to GRPO, and verl-agent's row-weighted baseline."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from making import group, row, turns_of

from agentrl.algos.advantages import annotate
from agentrl.algos.gigpo import anchors, episode_advantages, gigpo, repeated, step_advantages
from agentrl.config.composing import compose
from agentrl.config.schema import AlgoConfig
from agentrl.rollout.trajectory import Group, RewardComponent

CFG = AlgoConfig(estimator="gigpo", std_eps=0.0, discount=0.5)
PLAIN = AlgoConfig(estimator="gigpo", discount=0.5, episode_std=False, step_std=False)


def walks(paths: dict[str, float | None] | list[tuple[str, float | None]]) -> Group:
    """One member per path, a string of one-letter states, with its reward; every action is one token."""
    pairs = list(paths.items()) if isinstance(paths, dict) else paths
    made = group([r for _, r in pairs], rows=[[row([(1, 1)] * len(p))] for p, _ in pairs])
    for trajectory, (path, _) in zip(made.trajectories, pairs, strict=True):
        trajectory.turns = turns_of(path)
    return made


def credits(made: Group, cfg: AlgoConfig) -> list[list[float]]:
    return [values.tolist() for values in gigpo([made], cfg)[0]]


def test_by_hand_without_spread() -> None:
    """Paths a b (reward 1) and a c b (reward 0), discount 1/2.

    Returns: (1/2, 1) and (0, 0, 0). Episode: ±1/2. Clusters: a {1/2, 0}, b {1, 0}, c {0}.
    """
    first, second = credits(walks({"ab": 1.0, "acb": 0.0}), PLAIN)
    assert first == pytest.approx([0.5 + 0.25, 0.5 + 0.5])
    assert second == pytest.approx([-0.5 - 0.25, -0.5, -0.5 - 0.5])


def test_by_hand_with_spread_and_weight() -> None:
    """Two numbers that differ are ±1/√2 of their sample standard deviation apart from their mean."""
    cfg = AlgoConfig(estimator="gigpo", std_eps=0.0, discount=0.5, step_weight=3.0)
    root = 1 / np.sqrt(2)
    first, second = credits(walks({"ab": 1.0, "acb": 0.0}), cfg)
    assert first == pytest.approx([4 * root, 4 * root])
    assert second == pytest.approx([-4 * root, -root, -4 * root])


def test_a_state_visited_twice_by_one_trajectory_is_in_its_own_cluster() -> None:
    """Path a a (reward 1): returns 1/2 and 1, one cluster with mean 3/4; the other member is elsewhere."""
    first, second = credits(walks({"aa": 1.0, "z": 1.0}), PLAIN)
    assert first == pytest.approx([-0.25, 0.25]) and second == [0.0]


def test_step_rewards_are_part_of_the_returns() -> None:
    """Step rewards (0, 2) and (1): returns (0 + (2 + 1)/2, 2 + 1) and (1 + 0)."""
    made = walks({"ab": 1.0, "a": 0.0})
    for trajectory, steps in zip(made.trajectories, ([0.0, 2.0], [1.0]), strict=True):
        trajectory.reward.components.append(RewardComponent("potential", "verifiable", sum(steps), per_turn=steps))
    first, second = credits(made, PLAIN)
    assert first == pytest.approx([0.5 + 0.25, 0.5]) and second == pytest.approx([-0.5 - 0.25])


@pytest.mark.parametrize(("std", "same"), [(True, "grpo"), (False, "dr_grpo")])
@given(st.lists(st.tuples(st.integers(0, 4), st.sampled_from([0.0, 0.3, 1.0, None])), min_size=1, max_size=8))
def test_where_nothing_repeats_it_is_grpo(std: bool, same: str, members: list[tuple[int, float | None]]) -> None:
    """Bit for bit, for every number of turns and every member that failed."""
    paths = [("".join(chr(100 + 10 * m + t) for t in range(n)), r) for m, (n, r) in enumerate(members)]
    made, plain = walks(paths), walks(paths)
    annotate([made], AlgoConfig(estimator="gigpo", episode_std=std, step_std=std, step_weight=2.0))
    annotate([plain], AlgoConfig(estimator=same))
    for a, b in zip(made.trajectories, plain.trajectories, strict=True):
        assert a.rows[0].advantage.tobytes() == b.rows[0].advantage.tobytes()
    assert repeated([made], "state") == 0.0


@given(st.lists(st.tuples(st.text("abc", max_size=6), st.sampled_from([0.0, 1.0])), min_size=1, max_size=6))
def test_step_advantages_sum_to_zero_in_every_cluster(members: list[tuple[str, float]]) -> None:
    made = walks(members)
    step = gigpo([made], AlgoConfig(step_std=False))[0]
    episode = gigpo([made], AlgoConfig(step_std=False, step_weight=0.0))[0]
    for key in "abc":
        where = [np.array([k == key for k in path], dtype=bool) for path, _ in members]
        total = sum((s - e)[w].sum() for s, e, w in zip(step, episode, where, strict=True))
        assert total == pytest.approx(0, abs=1e-9)


def test_noise_in_equal_returns_is_not_blown_up() -> None:
    noisy = np.float32(0.1) * np.float32(3), np.float32(0.3)
    made = walks([("a", float(noisy[0])), ("a", float(noisy[1]))])
    assert credits(made, AlgoConfig()) == [[0.0], [0.0]]


def test_anchors() -> None:
    """State keys tell apart what looks the same; the paper's anchor is the text alone."""
    made = walks({"ab": 1.0, "ac": 0.0})
    one, two = made.trajectories
    one.turns[0].observation = two.turns[0].observation = "a page"
    assert anchors(one, "state") == ["a", "b"] and anchors(one, "observation") == [None, "a page"]
    assert repeated([made], "state") == 0.5 and repeated([made], "observation") == 1.0
    by_state = credits(made, PLAIN)
    by_text = credits(made, AlgoConfig(discount=0.5, episode_std=False, step_std=False, anchor="observation"))
    assert by_state == [[0.75, 0.5], [-0.75, -0.5]] and by_text == [[0.75, 1.0], [-0.75, -1.0]]


def test_the_row_weighted_baseline_of_verl_agent() -> None:
    """Eight members, successes of 5 and 4 steps, failures of 15: mean .0909 and deviation .2889 over rows."""
    rewards = np.array([1, 0, 0, 1, 0, 0, 0, 0], float)
    rows = np.array([5, 15, 15, 4, 15, 15, 15, 15])
    mean, std = 0.0909, 0.2889
    centred = episode_advantages(rewards, rows, AlgoConfig(episode_std=False))
    assert centred == pytest.approx(np.where(rewards == 1, 1 - mean, -mean), abs=5e-5)
    scaled = episode_advantages(rewards, rows, AlgoConfig(episode_std=True))
    assert scaled == pytest.approx(np.where(rewards == 1, 1 - mean, -mean) / std, abs=2e-3)
    assert not episode_advantages(np.ones(3), np.array([1, 2, 3]), AlgoConfig()).any()
    assert not episode_advantages(np.array([1.0, 0.0]), np.array([3, 0]), AlgoConfig()).any()  # one has no step


def test_the_named_configs() -> None:
    assert compose(["algo=gigpo"], stage="train").algo.anchor == "state"
    theirs = compose(["algo=gigpo_verl_agent"], stage="train").algo
    assert (theirs.anchor, theirs.episode_baseline, theirs.episode_std, theirs.step_std) == (
        "observation", "row", False, False,
    )  # fmt: skip
    made = walks({"ab": 1.0, "acd": 0.0})
    episode = np.array([1 - 0.4, -0.4])
    returns = [np.array([0.95, 1.0]), np.zeros(3)]
    step = step_advantages([[None, "b"], [None, "c", "d"]], returns, theirs)
    expected = [e + s for e, s in zip(episode, step, strict=True)]
    assert credits(made, theirs) == [pytest.approx(e.tolist()) for e in expected]


def test_members_that_failed_are_in_no_cluster() -> None:
    made = walks([("ab", 1.0), ("ab", None), ("ab", 0.0)])
    annotate([made], CFG)
    ok = walks([("ab", 1.0), ("ab", 0.0)])
    annotate([ok], CFG)
    kept = [t.rows[0].advantage.tolist() for t in (made.trajectories[0], made.trajectories[2])]
    assert kept == [t.rows[0].advantage.tolist() for t in ok.trajectories]
    assert not made.trajectories[1].rows[0].advantage.any()
