"""Control arms: the shuffled and the length reward, and an environment whose tools say nothing."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from rewards.test_rewards import Length, Sums, group, rewards, task, trajectory

from agentrl.config import compose
from agentrl.config.schema import RewardComponentConfig
from agentrl.envs.base import Outcome
from agentrl.envs.registry import load_spec
from agentrl.envs.tools_off import NOTHING
from agentrl.errors import UserError
from agentrl.rewards import Component, Score, Scoring
from agentrl.rollout.trajectory import Group

SHUFFLED = {"shuffled": RewardComponentConfig("shuffled")}


def totals(groups: Sequence[Group]) -> list[float | None]:
    return [t.reward.total for g in groups for t in g.trajectories]


def batch() -> list[Group]:
    return [group("2", "3", "3", "3", number=1), group("4", "4", "4", "5", number=2), group("0", "0", "0", "0")]


def test_shuffled_deals_out_the_true_rewards_of_the_batch() -> None:
    true, dealt = batch(), batch()
    rewards().score(true, step=0)
    metrics = rewards(**SHUFFLED).score(dealt, step=0)
    assert sorted(totals(true)) == sorted(totals(dealt)) and totals(true) != totals(dealt)  # type: ignore[type-var]
    assert [t.success for g in dealt for t in g.trajectories] == totals(true)  # success stays the verifier's
    assert metrics["reward/mean"] == metrics["success/mean"] == pytest.approx(4 / 12)
    assert dealt[0].trajectories[0].reward.components[0].tier == "control"


def test_shuffled_is_a_pure_function_of_seed_step_and_batch() -> None:
    def deal(seed: int, step: int) -> list[float | None]:
        made = batch()
        rewards(seed=seed, **SHUFFLED).score(made, step)
        return totals(made)

    deals = [deal(seed, step) for seed in range(3) for step in range(3)]
    assert deals == [deal(seed, step) for seed in range(3) for step in range(3)]
    assert len({tuple(d) for d in deals}) > 6


def test_shuffled_says_nothing_about_who_was_right() -> None:
    """Over many steps the right members are paid as often as the wrong ones."""
    right, wrong = [], []
    for step in range(200):
        made = batch()
        rewards(**SHUFFLED).score(made, step)
        for t in (t for g in made for t in g.trajectories):
            (right if t.success else wrong).append(t.reward.total)
    assert sum(right) / len(right) == pytest.approx(1 / 3, abs=0.06)  # four standard errors
    assert sum(wrong) / len(wrong) == pytest.approx(1 / 3, abs=0.06)


def test_shuffled_leaves_out_what_the_verifier_could_not_judge() -> None:
    made = group("2", "boom", "3", "2")
    metrics = rewards(Sums({"boom": ZeroDivisionError("x")}), **SHUFFLED).score([made], step=5)
    values = totals([made])
    assert values[1] is None and sorted(v for v in values if v is not None) == [0.0, 1.0, 1.0]
    assert metrics["rewards/errors"] == 1 and metrics["rewards/not_scored"] == 1


def test_length_is_paid_up_to_its_limit() -> None:
    made = group("2", "3", "4")
    for t, tokens in zip(made.trajectories, (0, 64, 500), strict=True):
        t.costs.tokens_sampled = tokens
    cfg = RewardComponentConfig("constant_length", options={"tokens": 128})
    rewards(length=cfg).score([made], step=0)
    assert totals([made]) == [0.0, 0.5, 1.0]
    with pytest.raises(UserError, match=r"reward.components.length.options: tokens=0"):
        rewards(length=RewardComponentConfig("constant_length", options={"tokens": 0}))


class Ranks(Component):
    """A user's component that looks at the whole batch; a batch of three or more fails."""

    def score_batch(self, items: Sequence[Scoring]) -> list[Score]:
        if len(items) > 3:
            raise TimeoutError("too many")
        if len(items) == 3:
            return [Score(1.0)]
        return [Score(float(i), per_turn=[float(i)]) for i, _ in enumerate(items)]

    def take_counts(self) -> dict[str, float]:
        return {"ranks/calls": 1.0}


class Neither(Component):
    pass


def test_a_component_may_score_the_batch() -> None:
    cfg = {"ranks": RewardComponentConfig(f"{__name__}:Ranks"), "again": RewardComponentConfig(f"{__name__}:Ranks", 0)}
    made = group("2", "3")
    metrics = rewards(**cfg).score([made], step=0)
    first = [t.reward.components[0] for t in made.trajectories]
    assert [c.value for c in first] == [0.0, 1.0] and first[1].per_turn == [1.0]
    assert totals([made]) == [0.0, 0.0]  # rewards of steps are no part of the episode's
    assert metrics["ranks/calls"] == 2  # counts add up over components


@pytest.mark.parametrize(("size", "reason"), [(3, "1 scores for 3 trajectories"), (4, "TimeoutError: too many")])
def test_a_batch_that_fails_is_not_scored(size: int, reason: str) -> None:
    made = group(*["2"] * size)
    metrics = rewards(ranks=RewardComponentConfig(f"{__name__}:Ranks")).score([made], step=0)
    assert totals([made]) == [None] * size and metrics["rewards/errors"] == size
    assert all(reason in (t.reward.components[0].error or "") for t in made.trajectories)


def test_wrong_components_and_options_are_named() -> None:
    with pytest.raises(UserError, match="defines neither score nor score_batch"):
        rewards(a=RewardComponentConfig(f"{__name__}:Neither"))
    with pytest.raises(
        UserError, match=r"reward.components.a.options.limt: Length has no such option; did you mean 'l"
    ):
        rewards(a=RewardComponentConfig(f"{Length.__module__}:Length", options={"limt": 3}))


@pytest.mark.parametrize("name", ["verifiable", "random", "shuffled", "format_only", "constant_length"])
def test_the_shipped_rewards_score(name: str) -> None:
    cfg = compose([f"reward={name}", "env=search"])
    made = Group(task(), [trajectory("2")])
    from agentrl.rewards import build

    build(cfg.reward, Sums(), 0).score([made], step=0)
    assert made.trajectories[0].reward.total is not None


def test_tools_off_hides_results_and_nothing_else() -> None:
    on, off = (load_spec(compose(["env=search", f"env.tools={tools}"]).env) for tools in ("on", "off"))
    made = next(iter(on.tasks("train", 0)))
    for action in ("<search> a </search>", "<search> </search>", "what?", "<answer> b </answer>"):
        results = []
        for spec in (on, off):
            env = spec.make()
            prompt = env.reset(made)
            results.append((prompt, env.step(action), env.state_key(), env.answer()))
            env.close()
        (prompt, shown, state, answer), (prompt_off, hidden, state_off, answer_off) = results
        assert (prompt, state, answer, shown.outcome) == (prompt_off, state_off, answer_off, hidden.outcome)
        if shown.tool_calls:
            assert hidden.observation is not None and shown.observation is not None
            assert hidden.observation.text == NOTHING and shown.observation.text != NOTHING
            assert (hidden.observation.before, hidden.tool_calls) == (shown.observation.before, shown.tool_calls)
        else:
            assert hidden.observation == shown.observation and hidden.outcome in (Outcome.INVALID, Outcome.OK)


def test_only_tools_can_be_switched_off() -> None:
    with pytest.raises(UserError, match="has no tools to switch off"):
        compose(["env=search", "env.spec=rewards.test_rewards:Sums", "env.name=sums", "env.tools=off"])
    with pytest.raises(UserError, match=r"env.tools"):
        compose(["env=search", "env.tools=of"])
