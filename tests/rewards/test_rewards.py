"""Components, the record they leave, what happens when a verifier fails, and the self-test."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice

import pytest

from agentrl.config.schema import RewardComponentConfig, RewardConfig
from agentrl.envs.base import Environment, EnvSpec, Episode, Outcome, Task, Verdict
from agentrl.envs.search.spec import SearchSpec
from agentrl.envs.search.verifier import f1
from agentrl.errors import RunError, UserError
from agentrl.rewards import Component, NotScored, Rewards, Scoring, build, episode_of
from agentrl.rollout.trajectory import Group, StopReason, Trajectory, Turn


class Sums(EnvSpec):
    """Answer a sum. ``faults`` maps an answer to an exception that the verifier raises, or a success it returns."""

    name = "sums"

    def __init__(self, faults: Mapping[str, Exception | float] | None = None) -> None:
        self.faults = faults or {}
        self.verified = 0

    def variants(self) -> Mapping[str, str]:
        return {"train": "sums"}

    def tasks(self, variant: str, seed: int, start: int = 0) -> Iterator[Task]:
        for i in range(start, 100):
            yield Task(f"sum-{i}", f"{i} + {i}?", {"answers": [str(2 * i)]}, variant, "train", seed)

    def make(self) -> Environment:
        raise NotImplementedError("these tests only score")

    def verify(self, episode: Episode) -> Verdict:
        self.verified += 1
        fault = self.faults.get(episode.answer or "")
        if isinstance(fault, Exception):
            raise fault
        right = float(episode.answer in episode.task.truth["answers"])
        scores = {"f1": f1(episode.answer, episode.task.truth["answers"])}
        return Verdict(right if fault is None else fault, scores)

    def gold_answers(self, task: Task) -> Sequence[str]:
        return tuple(task.truth["answers"])


class Length(Component):
    """A user's own component, found by import path."""

    tier = "learned"

    def __init__(self, spec: EnvSpec, seed: int, limit: int = 5) -> None:
        super().__init__(spec, seed)
        self.limit = limit

    def score(self, item: Scoring) -> float:
        length = len(item.episode.answer or "")
        if length > self.limit:
            raise NotScored("too long")
        return math.nan if item.episode.answer == "nan" else float(length)


def task(number: int = 1) -> Task:
    return next(Sums().tasks("train", 0, number))


def trajectory(answer: str | None, member: int = 0, number: int = 1, error: str | None = None) -> Trajectory:
    text = f"<answer>{answer}</answer>"
    turn = Turn(text, text, None, Outcome.OK, None, "s", "stop_string")
    made = Trajectory(task(number), member, 0, [], [turn], answer=answer)
    if error:
        made.stop_reason, made.error = StopReason.ERROR, error
    return made


def group(*answers: str | None, number: int = 1) -> Group:
    return Group(task(number), [trajectory(a, i, number) for i, a in enumerate(answers)])


def config(**components: RewardComponentConfig) -> RewardConfig:
    return RewardConfig("test", components)


def rewards(spec: EnvSpec | None = None, seed: int = 0, **components: RewardComponentConfig) -> Rewards:
    return build(config(**(components or {"verifiable": RewardComponentConfig()})), spec or Sums(), seed)


def test_the_verifier_as_reward() -> None:
    made = group("2", "3", None, "2")
    metrics = rewards().score([made], step=0)
    assert [t.reward.total for t in made.trajectories] == [1.0, 0.0, 0.0, 1.0]
    assert [t.success for t in made.trajectories] == [1.0, 0.0, 0.0, 1.0]
    record = made.trajectories[0].reward.components[0]
    assert (record.name, record.tier, record.weight, record.error) == ("verifiable", "verifiable", 1.0, None)
    assert record.seconds > 0
    assert made.trajectories[0].scores == {"f1": 1.0}
    assert metrics.pop("time/rewards_s") > 0
    assert metrics == {
        "reward/mean": 0.5,
        "reward/std": pytest.approx(0.57735, abs=1e-5),
        "reward/verifiable/mean": 0.5,
        "success/mean": 0.5,
        "score/f1/mean": 0.5,
        "rewards/not_scored": 0.0,
        "rewards/errors": 0.0,
    }


def test_another_score_of_the_verifier_leaves_success_alone() -> None:
    made = Group(task(50), [trajectory("about 100", number=50)])
    rewards(verifiable=RewardComponentConfig(options={"score": "f1"})).score([made], step=0)
    assert made.trajectories[0].reward.total == pytest.approx(2 / 3)
    assert made.trajectories[0].success == 0.0


def test_components_add_up_with_their_weights_and_weight_zero_is_only_watched() -> None:
    made = group("2", "33")
    scorer = rewards(
        verifiable=RewardComponentConfig(),
        format=RewardComponentConfig("format_only", 0.2),
        length=RewardComponentConfig(f"{__name__}:Length", 0.0),
    )
    metrics = scorer.score([made], step=0)
    assert [t.reward.total for t in made.trajectories] == pytest.approx([1.2, 0.2])
    assert made.trajectories[1].reward.get("length") == 2.0
    assert metrics["reward/length/mean"] == 1.5 and metrics["reward/mean"] == pytest.approx(0.7)


def test_the_verifier_runs_once_and_whatever_the_reward_is() -> None:
    spec = Sums()
    made = group("2", "3")
    metrics = rewards(spec, random=RewardComponentConfig("random", options={"p": 1.0})).score([made], step=0)
    assert [t.reward.total for t in made.trajectories] == [1.0, 1.0]
    assert [t.success for t in made.trajectories] == [1.0, 0.0]
    assert spec.verified == 2 and metrics["success/mean"] == 0.5
    rewards(spec, a=RewardComponentConfig(), b=RewardComponentConfig(options={"score": "f1"})).score([made], step=0)
    assert spec.verified == 4


@pytest.mark.parametrize("fault", [ZeroDivisionError("by zero"), TimeoutError("slow"), math.nan, math.inf])
def test_a_failing_verifier_is_never_a_zero(fault: Exception | float) -> None:
    made = group("2", "boom", "3")
    metrics = rewards(Sums({"boom": fault})).score([made], step=0)
    failed = made.trajectories[1]
    assert failed.reward.total is None and failed.success is None and failed.reward.components[0].value is None
    assert "the verifier failed" in (failed.reward.components[0].error or "")
    assert [t.reward.total for t in made.scored] == [1.0, 0.0]
    assert metrics["rewards/errors"] == 1 and metrics["rewards/not_scored"] == 1
    assert metrics["reward/mean"] == 0.5 and metrics["success/mean"] == 0.5


@pytest.mark.parametrize(("answer", "reason"), [("much too long", "too long"), ("nan", "not a finite number")])
def test_a_failing_component_is_never_a_zero(answer: str, reason: str) -> None:
    made = group(answer, "2")
    metrics = rewards(length=RewardComponentConfig(f"{__name__}:Length")).score([made], step=0)
    failed = made.trajectories[0]
    assert failed.reward.total is None and reason in (failed.reward.components[0].error or "")
    assert failed.success == 0.0  # the verifier itself was fine
    assert metrics["rewards/errors"] == 1 and metrics["rewards/not_scored"] == 1


def test_errored_trajectories_are_not_scored() -> None:
    spec = Sums()
    made = Group(task(), [trajectory("2", 0, error="search server down"), trajectory("2", 1)])
    metrics = rewards(spec).score([made], step=0)
    assert spec.verified == 1
    errored = made.trajectories[0]
    assert errored.reward.total is None and errored.success is None
    assert "search server down" in (errored.reward.components[0].error or "")
    assert metrics["rewards/not_scored"] == 1 and metrics["rewards/errors"] == 0 and metrics["reward/mean"] == 1.0


def test_nothing_scored_leaves_means_out() -> None:
    metrics = rewards(Sums({"x": ValueError("no")})).score([group("x")], step=0)
    assert "reward/mean" not in metrics and "success/mean" not in metrics and metrics["rewards/not_scored"] == 1
    assert rewards().score([], step=0)["rewards/not_scored"] == 0


def test_scoring_again_replaces() -> None:
    made = group("2")
    scorer = rewards()
    scorer.score([made], step=0)
    scorer.score([made], step=0)
    assert len(made.trajectories[0].reward.components) == 1


def draws(seed: int, step: int, number: int = 1, p: float = 0.5, size: int = 8) -> list[float]:
    made = group(*["2"] * size, number=number)
    rewards(seed=seed, random=RewardComponentConfig("random", options={"p": p})).score([made], step)
    return [t.reward.total for t in made.trajectories]  # type: ignore[misc]


def test_the_random_reward_is_a_pure_function_of_seed_step_task_and_member() -> None:
    base = draws(seed=1, step=3)
    assert base == draws(seed=1, step=3)
    assert base == draws(seed=1, step=3, size=16)[:8]
    others = [draws(2, 3), draws(1, 4), draws(1, 3, number=2)]
    assert all(base != other for other in others)


def test_the_random_reward_is_fair() -> None:
    for p in (0.0, 0.2, 0.5, 1.0):
        values = [v for step in range(40) for v in draws(0, step, p=p, size=50)]
        error = 4 * math.sqrt(p * (1 - p) / len(values))
        assert sum(values) / len(values) == pytest.approx(p, abs=error)


@pytest.mark.parametrize(
    ("components", "message"),
    [
        ({}, "has no components"),
        ({"a": RewardComponentConfig(weight=0.0)}, "every component has weight 0"),
        ({"a": RewardComponentConfig(weight=math.nan)}, "reward.components.a.weight=nan"),
        (
            {"a": RewardComponentConfig("verifable")},
            "reward.components.a.kind=verifable is unknown: did you mean 'verifi",
        ),
        ({"a": RewardComponentConfig("no_such_module:X")}, "cannot import no_such_module"),
        ({"a": RewardComponentConfig(f"{__name__}:Lenght")}, "did you mean 'Length'?"),
        ({"a": RewardComponentConfig(f"{__name__}:Sums")}, "has no Component of that name"),
        ({"a": RewardComponentConfig("random", options={"prob": 1})}, "reward.components.a.options"),
        ({"a": RewardComponentConfig("random", options={"p": 1.5})}, "p=1.5 is not a probability"),
        ({"overlong": RewardComponentConfig()}, "choose another name"),
    ],
)
def test_wrong_configs_name_the_key(components: dict[str, RewardComponentConfig], message: str) -> None:
    with pytest.raises(UserError) as caught:
        build(config(**components), Sums(), 0)
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_the_episode_is_aligned_by_turn() -> None:
    made = trajectory("2")
    made.turns.insert(0, Turn("a", "a", "seen", Outcome.INVALID, "why", "s", "end_of_turn"))
    episode = episode_of(made)
    assert episode.observations == ["seen", ""] and len(episode.actions) == 2
    assert episode.outcomes == [Outcome.INVALID, Outcome.OK] and episode.answer == "2"


TASKS = [task(1), task(2)]


def test_the_self_test_passes_for_a_sound_verifier() -> None:
    assert rewards().self_test(TASKS) == 2
    assert rewards(verifiable=RewardComponentConfig(options={"score": "f1"})).self_test(TASKS) == 2


@pytest.mark.parametrize(
    ("faults", "message"),
    [
        ({"4": 0.0}, "task sum-2: gold answer '4' scores success=0, not 1"),
        ({"4": 0.5}, "gold answer '4' scores success=0.5"),
        ({"": 1.0}, "task sum-1: wrong answer None scores success=1 (full)"),
        ({"this is certainly not the answer 0417": 1.0}, "wrong answer 'this is certainly not the answer 0417'"),
        ({"4": RuntimeError("crash")}, "task sum-2: answer '4': the verifier failed: RuntimeError: crash"),
        ({"4": math.nan}, "not a finite number"),
    ],
)
def test_the_self_test_names_task_answer_and_outcome(faults: dict[str, Exception | float], message: str) -> None:
    with pytest.raises(RunError) as caught:
        rewards(Sums(faults)).self_test(TASKS)
    assert message in str(caught.value)


def test_the_self_test_finds_a_score_that_the_verifier_does_not_give() -> None:
    scorer = rewards(verifiable=RewardComponentConfig(options={"score": "f2"}))
    with pytest.raises(RunError, match="no score 'f2': did you mean 'f1'"):
        scorer.self_test(TASKS)


@pytest.mark.parametrize("score", ["success", "em", "f1", "substring"])
def test_the_search_verifier_passes_its_self_test_on_every_variant(score: str) -> None:
    spec = SearchSpec()
    scorer = rewards(spec, verifiable=RewardComponentConfig(options={"score": score}))
    for variant in spec.variants():
        assert scorer.self_test(list(islice(spec.tasks(variant, 0), 20))) >= 20
