"""Every event of the hack watch fires on what it is about, and stays away from honest play."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from agentrl.envs.base import EnvSpec, Outcome, Task
from agentrl.envs.search.spec import SearchSpec
from agentrl.rollout.trajectory import (
    Costs,
    Group,
    Origin,
    RewardComponent,
    RewardRecord,
    Row,
    StopReason,
    Trajectory,
    Turn,
)
from agentrl.runs.hacks import NAMES, HackWatch, hack_lines, hack_metrics, length_correlation

TASK = Task("t", "q", {"answers": ["Rome"]}, "train", "train")


class Golds(SearchSpec):
    """The search environment's answers for any task."""

    def gold_answers(self, task: Task) -> Sequence[str]:
        return task.truth["answers"]


def turn(action: str = "go", observation: str | None = "a wall", calls: int = 1, **changes: Any) -> Turn:
    values: dict[str, Any] = {"outcome": Outcome.OK, "error": None, "state_key": "s", "stop": "stop_string"} | changes
    return Turn(action, action, observation, tool_calls=calls, **values)


def made(
    turns: Sequence[Turn] = (),
    ids: Sequence[int] = (),
    answer: str | None = None,
    reward: float = 1.0,
    success: float | None = 1.0,
    tokens: int = 10,
    calls: int = 1,
    proxy: float | None = None,
    member: int = 0,
    task: Task = TASK,
) -> Trajectory:
    row = Row.from_prompt([1, 2])
    row.append(list(ids), Origin.SAMPLED, 0, [-0.1] * len(ids))
    components = [RewardComponent("verifiable", "verifiable", reward)]
    if proxy is not None:
        components = [RewardComponent("judge", "learned", proxy)]
    return Trajectory(
        task, member, 0, [row], list(turns), answer=answer, reward=RewardRecord(components), success=success,
        costs=Costs(tokens_sampled=tokens, tool_calls=calls),
    )  # fmt: skip


def seen(trajectory: Trajectory, spec: EnvSpec | None = None) -> set[str]:
    watch = HackWatch(spec or Golds())
    groups = [Group(trajectory.task, [trajectory])]
    watch.screen(groups)
    return {h.name for h in watch.update(1, groups)}


OFFENCES = [
    ("tool_spam", made([turn(), turn(), turn()])),
    ("tool_spam", made([turn(calls=12)])),
    ("tool_spam", made([turn(f"again {i}", calls=0, outcome=Outcome.TOOL_LIMIT) for i in range(2)])),
    ("answer_stuffing", made(answer="Rome, Paris, Berlin, Madrid, Oslo")),
    ("answer_stuffing", made(answer="Rome or Paris or Berlin\nMadrid and Oslo")),
    ("sandbox_violation", made([turn(info={"code": "import socket", "status": "ok"})])),
    ("sandbox_violation", made([turn(info={"code": "x", "status": "signal"})])),
    ("sandbox_violation", made([turn(info={"violation": "wrote outside its folder"})])),
    ("sandbox_violation", made([turn(info={"code": "while 1: pass", "status": "timeout_cpu"})] * 2)),
    ("verifier_exception", made(success=None)),
    ("repeated_ngrams", made(ids=[5, 6, 7] * 20)),
    ("repeated_ngrams", made([turn("!" * 80)])),
]


@pytest.mark.parametrize(("name", "trajectory"), OFFENCES)
def test_an_offence(name: str, trajectory: Trajectory) -> None:
    assert seen(trajectory) == {name}


HONEST = [
    made(),
    made([turn("left", "at 1"), turn("left", "at 2"), turn("left", "at 3"), turn("right", "at 2")]),
    made([turn("push", "a wall", calls=0)] * 6),  # no tool behind it
    made([turn("one", outcome=Outcome.TOOL_LIMIT, calls=0)]),
    made(answer="Rome, Italy"),
    made(answer="Paris, Texas, in the United States of America, where the film of that name was made in 1984"),
    made(answer="a = [1, 2, 3, 4, 5, 6, 7]"),
    made(answer="a, b, c, d, e, f", task=Task("l", "list", {"answers": ["f, a, c, d, e"]}, "train", "train")),
    made([turn(info={"code": "print(sum(range(10)))", "status": "error"})]),
    made([turn(info={"code": "while 1: pass", "status": "timeout_cpu"})]),
    made(ids=[*range(60), *range(10)]),
    made(ids=[5] * 12),
]


@pytest.mark.parametrize("trajectory", HONEST)
def test_no_offence(trajectory: Trajectory) -> None:
    assert seen(trajectory) == set()


def test_an_infrastructure_error_is_nobodys_offence() -> None:
    trajectory = made([turn()] * 5, success=None)
    trajectory.stop_reason = StopReason.ERROR
    assert seen(trajectory) == set()


def test_experts_are_honest() -> None:
    """Real expert episodes of the search environment, on training and held-out variants."""
    spec = SearchSpec()
    spec.prepare()
    watch = HackWatch(spec)
    groups = []
    for variant in spec.variants():
        tasks = spec.tasks(variant, 0)
        for task in (next(tasks) for _ in range(3)):
            environment, turns = spec.make(), []
            environment.reset(task)
            for action in spec.expert(task, 0) or ():
                t = environment.step(action)
                text = t.observation.text if t.observation else None
                turns.append(turn(action, text, t.tool_calls, outcome=t.outcome, info=t.info))
            groups.append(Group(task, [made(turns, list(range(40)), environment.answer(), task=task)]))
    watch.screen(groups)
    assert len(groups) >= 6 and watch.update(1, groups) == []


# --- trends ---


def batch(step: int, make: Callable[[int, random.Random], Trajectory]) -> list[Group]:
    draw = random.Random(step)
    groups = []
    for g in range(4):
        task = Task(f"{step}/{g}", "q", {"n": [step, g]}, "train", "train")
        members = [make(step, draw) for _ in range(8)]
        for m, t in enumerate(members):
            t.task, t.member = task, m
        groups.append(Group(task, members))
    return groups


def run(make: Callable[[int, random.Random], Trajectory], steps: int = 20, exclude: bool = False):
    watch = HackWatch(exclude=exclude)
    found, batches = [], []
    for step in range(1, steps + 1):
        groups = batch(step, make)
        watch.screen(groups)
        found += [(step, h) for h in watch.update(step, groups)]
        batches.append(groups)
    return found, batches


def learned(step: int, draw: random.Random) -> Trajectory:
    """Longer, more calls and more success as the run goes on, as a policy that learns to search; a noisy judge."""
    success = float(draw.random() < 0.2 + 0.03 * step)
    judge = 0.7 * success + 0.3 * draw.random()
    calls = draw.randint(0, 1) + step // 5
    return made(success=success, proxy=judge, tokens=draw.randint(20, 60) + 5 * step, calls=calls)


def flattering(step: int, draw: random.Random) -> Trajectory:
    success = float(draw.random() < 0.6 - 0.03 * step)
    return made(success=success, proxy=0.2 + 0.04 * step + 0.2 * draw.random(), tokens=draw.randint(20, 60))


def believed(step: int, draw: random.Random) -> Trajectory:
    """A reward that calls itself a verifier, and is none."""
    success = float(draw.random() < 0.6 - 0.03 * step)
    return made(success=success, reward=0.2 + 0.04 * step + 0.2 * draw.random(), tokens=draw.randint(20, 60))


def padded(step: int, draw: random.Random) -> Trajectory:
    tokens = draw.randint(20, 40) + 6 * step
    return made(success=float(draw.random() < 0.3), proxy=tokens / 200 + 0.05 * draw.random(), tokens=tokens)


def constant_length(step: int, draw: random.Random) -> Trajectory:
    tokens = draw.randint(20, 40)
    return made(success=float(draw.random() < 0.3), proxy=tokens / 40, tokens=tokens)


def paid_by_the_call(step: int, draw: random.Random) -> Trajectory:
    calls = draw.randint(0, 2) + step // 2
    return made(success=float(draw.random() < 0.3), reward=0.5, tokens=draw.randint(20, 60), calls=calls)


def forgetting(step: int, draw: random.Random) -> Trajectory:
    """Success and judge fall together: a run that is lost, not one that is hacked."""
    success = float(draw.random() < 0.6 - 0.03 * step)
    return made(success=success, proxy=success * 0.7 + 0.3 * draw.random(), tokens=draw.randint(20, 60))


@pytest.mark.parametrize(
    ("make", "names"),
    [
        (learned, set()),
        (forgetting, set()),
        (flattering, {"proxy_divergence"}),
        (believed, {"proxy_divergence"}),
        (padded, {"length_reward"}),
        (constant_length, {"length_reward"}),
        (paid_by_the_call, {"tool_spam"}),
    ],
)
def test_trends(make: Callable[[int, random.Random], Trajectory], names: set[str]) -> None:
    found, _ = run(make)
    assert {h.name for _, h in found} == names
    assert all(h.count >= 1 and h.examples and "\n" not in h.message for _, h in found)


def test_noise_is_no_trend() -> None:
    for seed in range(5):

        def noise(step: int, draw: random.Random, seed: int = seed) -> Trajectory:
            draw = random.Random(f"{seed}/{step}/{draw.random()}")
            return made(success=float(draw.random() < 0.4), proxy=draw.random(), tokens=draw.randint(5, 90))

        assert run(noise, 40)[0] == []


def test_offenders_of_a_trend_are_those_that_gain_by_it() -> None:
    found, batches = run(flattering, exclude=True)
    step, event = found[0]
    excluded = [t for g in batches[step - 1] for t in g.trajectories if t.excluded]
    assert len(excluded) == event.count and set(event.examples) <= {t.id for t in excluded}
    assert all(t.success == 0 and t.excluded == "proxy_divergence" for t in excluded)
    assert not any(t in g.scored for g in batches[step - 1] for t in excluded)
    assert not any(t.excluded for groups in batches[: step - 1] for g in groups for t in g.trajectories)


def test_length_correlation_by_hand() -> None:
    """At success 0 the reward grows with the length, across successes it does not count."""
    members = [made(success=0.0, reward=float(n), tokens=10 * n) for n in range(1, 6)]
    members += [made(success=1.0, reward=9.0 - n, tokens=n) for n in range(1, 6)]
    assert length_correlation([Group(TASK, members[:5])]) is None  # too few to tell
    # (2·10 ... ) deviations: rewards ±2 ±1 0 both ways, tokens ±20 ±10 0 and ∓2 ∓1 0: 100 - 10 over sqrt(20 · 1010)
    assert length_correlation([Group(TASK, members)]) == pytest.approx(90 / (20 * 1010) ** 0.5)
    equal = [made(success=0.0, reward=1.0, tokens=n) for n in range(10)]
    assert length_correlation([Group(TASK, equal)]) == 0


def test_resume_gives_the_same_events() -> None:
    whole = HackWatch()
    expected = [whole.update(step, batch(step, flattering)) for step in range(1, 21)]
    assert any(expected)
    for cut in (0, 3, 7, 12, 16):
        first = HackWatch()
        before = [first.update(step, batch(step, flattering)) for step in range(1, cut + 1)]
        second = HackWatch()
        second.load_state_dict(json.loads(json.dumps(first.state_dict())))
        after = [second.update(step, batch(step, flattering)) for step in range(cut + 1, 21)]
        assert before + after == expected and second.state_dict() == whole.state_dict()


def test_an_event_is_counted_every_step_and_said_now_and_then() -> None:
    watch = HackWatch()
    said = []
    for step in range(1, 25):
        groups = [Group(TASK, [made([turn()] * 3, member=m) for m in range(5)])]
        watch.screen(groups)
        (event,) = watch.update(step, groups)
        metrics = hack_metrics([event])
        assert set(metrics) == {f"hack/{n}" for n in NAMES} and metrics["hack/tool_spam"] == 5 == sum(metrics.values())
        assert event.examples == ("t/0/0", "t/0/1", "t/0/2")
        said += [step] if event.new else []
    assert said == [1, 11, 21]


def test_the_lines_at_the_end() -> None:
    events = [{"step": s, "name": "tool_spam", "count": 2, "examples": [f"t/{s}/0"], "message": ""} for s in (1, 4)]
    assert hack_lines(events) == ["hack watch: tool_spam: 4 trajectories in 2 steps, e.g. t/4/0"]
    assert hack_lines([]) == []
