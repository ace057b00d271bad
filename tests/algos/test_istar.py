"""iStar's advantage, every option worked by hand."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from making import group, row, turns_of, with_steps

from agentrl.algos.advantages import annotate
from agentrl.algos.istar import episode_plus_step, relative
from agentrl.config.schema import AlgoConfig
from agentrl.rollout.trajectory import Group, Origin, RewardComponent, Row

REWARDS = [1.0, 0.0]
STEPS = [[1.0, 0.0], [0.0, 3.0]]  # all: mean 1, sample variance 2; of first turns: mean 0.5, variance 0.5
ROOT = np.sqrt(2)
E = 1 / ROOT  # the episodes' advantages are E and −E: mean 0.5, sample std sqrt(0.5)


def config(**options) -> AlgoConfig:
    return AlgoConfig(estimator="episode_plus_step", std_eps=0.0, **options)


def of(made: Group, **options) -> list[list[float]]:
    """Per member the advantage of each turn."""
    return [np.asarray(a).tolist() for a in episode_plus_step([made], config(**options))[0]]


def near(found: Sequence[Sequence[float]], expected: Sequence[Sequence[float]]) -> None:
    assert [len(f) for f in found] == [len(e) for e in expected]
    for f, e in zip(found, expected, strict=True):
        assert f == pytest.approx(e, abs=1e-12)


def test_the_papers_advantage() -> None:
    """A = A^E + α A^S, both standardised; A^S over all steps of all members: (r − 1) / √2."""
    near(of(with_steps(REWARDS, STEPS)), [[E + 0, E - 1 / ROOT], [-E - 1 / ROOT, -E + 2 / ROOT]])
    near(of(with_steps(REWARDS, STEPS), step_weight=0.5), [[E, E - 0.5 / ROOT], [-E - 0.5 / ROOT, -E + 1 / ROOT]])
    near(of(with_steps(REWARDS, STEPS), step_weight=0.0), [[E, E], [-E, -E]])


def test_rloo_as_the_base() -> None:
    """n/(n−1): 2 for the two episodes, 4/3 for the four steps."""
    near(
        of(with_steps(REWARDS, STEPS), base="rloo"),
        [[2 * E, 2 * E - 4 / 3 / ROOT], [-2 * E - 4 / 3 / ROOT, -2 * E + 8 / 3 / ROOT]],
    )


def test_the_released_code_does_not_divide() -> None:
    """RLOO without std: episodes 2 · (R − 0.5) = ±1, steps 4/3 · (r − 1). A reward of 10 drowns the steps."""
    plain = {"base": "rloo", "episode_std": False, "step_std": False}
    near(of(with_steps(REWARDS, STEPS), **plain), [[1, 1 - 4 / 3], [-1 - 4 / 3, -1 + 8 / 3]])
    near(of(with_steps([10.0, 0.0], STEPS), **plain), [[10, 10 - 4 / 3], [-10 - 4 / 3, -10 + 8 / 3]])
    near(of(with_steps(REWARDS, STEPS), episode_std=False), [[0.5, 0.5 - 1 / ROOT], [-0.5 - 1 / ROOT, -0.5 + 2 / ROOT]])


def test_the_baseline_of_first_steps() -> None:
    """First steps 1 and 0: mean 0.5, std √0.5; n = 2."""
    s = np.sqrt(0.5)
    near(
        of(with_steps(REWARDS, STEPS), step_baseline="first"),
        [[E + 0.5 / s, E - 0.5 / s], [-E - 0.5 / s, -E + 2.5 / s]],
    )
    near(
        of(with_steps(REWARDS, STEPS), step_baseline="first", base="rloo", step_std=False, episode_std=False),
        [[1 + 1, 1 - 1], [-1 - 1, -1 + 5]],
    )


def test_merged_rewards() -> None:
    """R + α r: 2, 1, 0, 3 with mean 1.5 and sample variance 5/3."""
    s = np.sqrt(5 / 3)
    near(of(with_steps(REWARDS, STEPS), step_merged=True), [[0.5 / s, -0.5 / s], [-1.5 / s, 1.5 / s]])
    near(of(with_steps(REWARDS, STEPS), step_merged=True, episode_std=False), [[0.5, -0.5], [-1.5, 1.5]])


def test_invalid_actions() -> None:
    """A penalty of 0.1 moves that turn only: its episode reward, or its step reward (and with it the baseline)."""
    made = with_steps(REWARDS, STEPS, invalid=[(1, 0)])
    near(of(made, episode_invalid_penalty=0.1, episode_std=False, step_weight=0.0), [[0.5, 0.5], [-0.6, -0.5]])
    near(
        of(made, step_invalid_penalty=0.1, step_std=False, episode_std=False),
        [[0.5 + 0.025, 0.5 - 0.975], [-0.5 - 1.075, -0.5 + 2.025]],
    )


def with_tokens() -> Group:
    """Turn t of each member has t + 1 sampled tokens; token rewards 2, 0, 0 and 1, 0, 3."""
    made = with_steps(REWARDS, [[2.0, 0.0], [1.0, 3.0]])
    for trajectory, values in zip(made.trajectories, ([2.0, 0.0, 0.0], [1.0, 0.0, 3.0]), strict=True):
        trajectory.reward.components[-1].per_token = [np.array(values)]
    return made


def test_token_level() -> None:
    """Six token rewards: mean 1, sample variance 8/5."""
    s = np.sqrt(8 / 5)
    made = with_tokens()
    annotate([made], config(step_level="token"))
    first, second = (t.rows[0].advantage[t.rows[0].sampled].tolist() for t in made.trajectories)
    assert first == pytest.approx([E + 1 / s, E - 1 / s, E - 1 / s], abs=1e-6)
    assert second == pytest.approx([-E, -E - 1 / s, -E + 2 / s], abs=1e-6)
    assert not any(t.rows[0].advantage[~t.rows[0].sampled].any() for t in made.trajectories)
    # First turns: rewards 2 and 1, mean 1.5. An invalid turn pays at its last token.
    annotate([made], config(step_level="token", step_baseline="first", step_std=False, episode_std=False))
    assert made.trajectories[0].rows[0].advantage[made.trajectories[0].rows[0].sampled].tolist() == [1.0, -1.0, -1.0]


def test_token_level_penalty_and_merging() -> None:
    made = with_tokens()
    made.trajectories[0].turns[1].outcome = (
        with_steps([1.0], [[0.0]], invalid=[(0, 0)]).trajectories[0].turns[0].outcome
    )
    found = episode_plus_step(
        [made], config(step_level="token", step_invalid_penalty=6.0, step_std=False, step_weight=1.0, episode_std=False)
    )[0]
    assert np.concatenate(found[0]).tolist() == [0.5 + 2, 0.5 + 0, 0.5 - 6]  # the mean falls from 1 to 0
    merged = episode_plus_step([with_tokens()], config(step_level="token", step_merged=True, episode_std=False))[0]
    assert np.concatenate(merged[0]).tolist() == [3 - 1.5, 1 - 1.5, 1 - 1.5]


def test_several_rows_a_trajectory() -> None:
    """Windowed context: one row a step, here the second without a sampled token."""
    made = with_tokens()
    trajectory = made.trajectories[0]
    rows = []
    for turn, n in enumerate((1, 2)):
        one = Row.from_prompt([1, 2, 3])
        one.append(range(10, 10 + n), Origin.SAMPLED, turn, [-0.5] * n)
        rows += [one, Row.from_prompt([1, 2])]
    trajectory.rows = rows
    trajectory.reward.components[-1].per_token = [np.array([2.0]), np.zeros(0), np.array([0.0, 0.0]), np.zeros(0)]
    s = np.sqrt(8 / 5)
    annotate([made], config(step_level="token"))
    assert rows[2].advantage[rows[2].sampled].tolist() == pytest.approx([E - 1 / s, E - 1 / s], abs=1e-6)
    annotate([made], config())
    assert rows[0].advantage[rows[0].sampled].tolist() == pytest.approx([E + 0.5 / np.sqrt(5 / 3)], abs=1e-6)


@pytest.mark.parametrize("level", ["turn", "token"])
@pytest.mark.parametrize("base", ["grpo", "rloo"])
def test_equal_rewards_are_exactly_zero(level, base) -> None:
    noise = [[0.7, 0.7 + 1e-8], [0.7]]
    made = with_steps([1.0, 1.0], noise)
    for trajectory, values in zip(made.trajectories, noise, strict=True):
        n = int(trajectory.rows[0].sampled.sum())
        trajectory.reward.components[-1].per_token = [np.full(n, values[0])]
    for std in (True, False):
        annotate([made], config(step_level=level, base=base, step_std=std, episode_std=std))
        assert not any(t.rows[0].advantage.any() for t in made.trajectories)


def test_small_and_empty_groups() -> None:
    assert episode_plus_step([group([None, None])], config()) == [[]]
    assert of(with_steps([1.0], [[2.0]])) == [[0.0]]
    made = with_steps([1.0, 0.0], [[], [1.0, 2.0]])  # a member whose prompt alone was too long
    assert [len(a) for a in of(made)] == [0, 2]
    made.trajectories[0].rows = [row([])]
    annotate([made], config())
    assert relative(np.array([1.0]), np.array([2.0]), "rloo", True, 0.0).tolist() == [0.0]


def test_a_member_without_its_step_reward_leaves_the_group() -> None:
    made = with_steps([1.0, 0.0, 0.5], [[1.0], [0.0], [3.0]])
    made.trajectories[2].reward.components[-1] = RewardComponent("step", "implicit_step", None, error="not finite")
    metrics = annotate([made], config())
    assert metrics["group/dropped"] == 1 and not made.trajectories[2].rows[0].advantage.any()


@given(st.lists(st.lists(st.integers(-9, 9).map(float), max_size=4), min_size=2, max_size=5), st.floats(0, 3))
def test_step_advantages_of_a_group_sum_to_zero(steps: list[list[float]], weight: float) -> None:
    made = with_steps([1.0] * len(steps), steps)
    for trajectory in made.trajectories:
        trajectory.turns = turns_of([str(i) for i in range(len(trajectory.turns))])
    parts = of(made, step_weight=weight)
    assert [len(p) for p in parts] == [len(s) for s in steps]
    assert sum(sum(p) for p in parts) == pytest.approx(0, abs=1e-6)
