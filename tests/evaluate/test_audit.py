"""The audit: sound rewards pass, broken ones are caught, and every built-in environment passes with its verifier."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from itertools import islice
from pathlib import Path

import pytest
import torch

from agentrl import cli
from agentrl.config import compose
from agentrl.config.folders import config_folders, group_choices
from agentrl.config.schema import Config, RewardComponentConfig
from agentrl.envs.base import EnvSpec, Task
from agentrl.envs.registry import load_spec
from agentrl.envs.search.spec import SearchSpec
from agentrl.evaluate import audit, exploiters, overoptimisation
from agentrl.evaluate.scripted import play
from agentrl.models import tiny
from agentrl.models.load import load_tokenizer
from agentrl.models.template import Renderer
from agentrl.rollout.trajectory import Origin, RewardComponent, RewardRecord, StopReason, Trajectory

REPO = Path(__file__).resolve().parents[2]
NEEDS_DATA = ("search_qa", "webshop_files", "code_math")  # files that a checkout does not carry
QUICK = (
    "model=tiny", "engine.threads=1", "run.tracker=none", "run.dir=run", "env.max_turn_tokens=160",
    "rollout.max_tokens=1100",
)  # fmt: skip


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def renderer() -> Renderer:
    return Renderer(load_tokenizer(tiny.folder()))


def result() -> dict:
    return json.loads(Path("run/audit.json").read_text())


def rows(found: Mapping) -> dict[str, dict]:
    return {row["name"]: row for row in found["policies"]}


BUILT_IN = [n for n in group_choices(config_folders())["env"] if n not in NEEDS_DATA]


@pytest.mark.parametrize(
    "env", ["search", *(pytest.param(n, marks=pytest.mark.slow) for n in BUILT_IN if n != "search")]
)
def test_every_built_in_environment_passes_with_its_verifier(env: str, here: Path) -> None:
    roomy = [] if env == "search" else ["env.max_turn_tokens=400", "rollout.max_tokens=4000"]
    assert cli.main(["audit-reward", f"env={env}", "reward=verifiable", "--tasks", "8", *QUICK, *roomy]) == 0
    found = result()
    played = rows(found)
    assert found["passed"] and not found["problems"] and len(played) > 15
    assert played["expert"]["reward"]["mean"] > 0.5 and played["expert"]["scored"] == 8
    assert all(row["scored"] == row["episodes"] for row in played.values())
    assert len(list(Path("run/trajectories").glob("*.parquet"))) == len(played)


@pytest.mark.parametrize("env", BUILT_IN)
def test_no_exploiter_succeeds_in_a_built_in_environment(env: str, renderer: Renderer) -> None:
    """The core of the audit for every environment, without the base policy: quick enough to run each time."""
    cfg = compose([f"env={env}", "env.max_turn_tokens=400"])
    spec = load_spec(cfg.env)
    with closing(spec):
        spec.prepare()
        box = toolbox(spec, renderer, 400)
        won: dict[str, list[float]] = {}
        for task in islice(spec.tasks(spec.train_variant, 1000), 4):
            acts = [("expert", exploiters.expert(box, task)), *exploiters.exploiters(box, task)]
            for name, act in acts:
                assert act is not None
                made = play(spec, renderer, cfg.env, 6000, task, act, 0)
                assert made.stop_reason is not StopReason.ERROR, (name, made.error)
                won.setdefault(name, []).append(spec.verify(episode(made)).success)
    expert = won.pop("expert")
    assert sum(expert) == 4
    assert {name: values for name, values in won.items() if sum(values) > 1} == {}  # a constant may be right once


def test_the_broken_example_is_caught(here: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    folder = shutil.copytree(REPO / "examples" / "broken_reward", here / "example")
    monkeypatch.chdir(folder)
    assert cli.main(["audit-reward", "env=search", "reward=capitalised", "--tasks", "8", *QUICK]) == 3
    out = capsys.readouterr().out
    assert "audit FAILED: do not train on this reward" in out and "premature stop" in out
    played = rows(result())
    assert played["premature stop"]["reward"]["mean"] == 1.0 and played["premature stop"]["success"] == 0.0
    assert played["premature stop"]["problem"] == "earns more than the base policy"
    assert played["empty answer"]["problem"] is None


@pytest.mark.parametrize(
    ("reward", "problem"),
    [
        ("format_only", "'form without content' earns"),
        ("constant_length", "the expert does not earn significantly more than the base policy"),
    ],
)
def test_rewards_that_know_nothing_of_the_answer_are_caught(reward: str, problem: str, here: Path) -> None:
    assert cli.main(["audit-reward", "env=search", f"reward={reward}", "--tasks", "8", *QUICK]) == 3
    found = result()
    assert any(p.startswith(problem) for p in found["problems"])
    assert 0 <= found["agreement"][reward]["auc"] <= 1  # a control arm is held against the verifier as well


def test_a_verifier_that_looks_for_the_answer_anywhere_is_caught(here: Path) -> None:
    """The substring score pays for naming everything at once."""
    options = ["env.options.score=substring", "env.max_turn_tokens=400"]
    quick = [q for q in QUICK if not q.startswith("env.max_turn_tokens")]
    assert cli.main(["audit-reward", "env=search", "--tasks", "8", *quick, *options]) == 3
    assert rows(result())["all candidates at once"]["problem"] is not None


def test_a_reward_that_scores_nothing_fails_the_run(here: Path, capsys) -> None:
    judge = ["reward=judge", "reward.components.judge.options.endpoint=http://127.0.0.1:9/v1"]
    more = [f"reward.components.judge.options.{o}" for o in ("backoff_s=0.0", "cache=null")]
    assert cli.main(["audit-reward", "env=search", "--tasks", "4", *QUICK, *judge, *more]) == 1
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("agentrl: the reward scored none of") and "unavailable" in last


def test_a_local_judge_is_audited_and_held_against_the_verifier(here: Path) -> None:
    """A judge that knows nothing: it fails, and the report says how little it agrees with the verifier."""
    judge = ["reward=judge", "reward.components.judge.options.model=tiny", "reward.components.judge.options.cache=null"]
    assert cli.main(["audit-reward", "env=search", "--tasks", "4", *QUICK, *judge]) == 3
    found = result()
    assert 0 <= found["agreement"]["judge"]["auc"] <= 1 and found["agreement"]["judge"]["calibration"]["ece"] >= 0
    assert found["counts"]["cost/judge_calls"] > 20 and found["counts"]["cost/judge_tokens_in"] > 0


# --- exploiters


def toolbox(spec: EnvSpec, renderer: Renderer, limit: int = 96) -> exploiters.Toolbox:
    tokens: Callable[[str], int] = lambda text: len(renderer.encode(text))  # noqa: E731
    others = exploiters.other_answers(spec, 77, 50)
    return exploiters.Toolbox(spec, exploiters.Forms(spec), tokens, 6, limit, others)


def test_exploiters_fit_the_limits_and_do_what_they_say(renderer: Renderer) -> None:
    spec = SearchSpec()
    cfg = compose(["env=search", "env.max_turn_tokens=96"])
    box = toolbox(spec, renderer)
    task = next(iter(spec.tasks("train", 0)))
    played = {
        name: play(spec, renderer, cfg.env, 1408, task, act, i)
        for i, (name, act) in enumerate(exploiters.exploiters(box, task))
    }
    for name, made in played.items():
        assert made.stop_reason is not StopReason.ERROR, (name, made.error)
        row = made.rows[0]
        assert all(
            (row.turn == i).sum() and (row.sampled & (row.turn == i)).sum() <= 96 for i in range(len(made.turns))
        )
        assert made.costs.tokens_sampled == int((row.origin == Origin.SAMPLED).sum())
        assert spec.verify(episode(made)).success == 0.0, name
    assert played["empty actions"].answer is None and len(played["empty actions"].turns) == 6
    assert task.truth["answers"][0] in (played["all candidates at once"].answer or "")
    assert played["copied observation"].costs.tool_calls == 1
    assert played["repeated tool calls"].costs.tool_calls >= 3
    assert len(renderer.encode(played["longest answer"].turns[0].action)) > 80
    assert len(played["form without content"].turns) > 1


def episode(made):
    from agentrl.rewards import episode_of

    return episode_of(made)


def test_the_expert_is_played_as_it_wrote(renderer: Renderer) -> None:
    spec = SearchSpec()
    cfg = compose(["env=search", "env.max_turn_tokens=200"])
    box = toolbox(spec, renderer)
    for task in [t for t, _ in zip(spec.tasks("train", 3), range(4), strict=False)]:
        act = exploiters.expert(box, task)
        assert act is not None
        made = play(spec, renderer, cfg.env, 4096, task, act, 0)
        assert [t.action for t in made.turns] == list(spec.expert(task, 0) or [])
        assert spec.verify(episode(made)).success == 1.0


def test_an_action_ends_at_its_first_stop_string(renderer: Renderer) -> None:
    spec = SearchSpec()
    cfg = compose(["env=search"])
    task = next(iter(spec.tasks("train", 0)))
    text = "<answer> wrong </answer><answer> right </answer>"
    made = play(spec, renderer, cfg.env, 1408, task, exploiters.constant(text), 0)
    assert made.answer == "wrong" and made.turns[0].stop == "stop_string"


class Own(SearchSpec):
    """An environment with an exploiter of its own, and one answer that its verifier takes by mistake."""

    name = "own"

    def exploiters(self, task: Task) -> Mapping[str, Sequence[str]]:
        return {"magic word": ["<search> x </search>", "<answer> xyzzy </answer>"]}

    def verify(self, episode):
        if episode.answer == "xyzzy":
            return super().verify(type(episode)(episode.task, episode.task.truth["answers"][0], [], [], []))
        return super().verify(episode)


def test_an_environments_own_exploiters_are_played(here: Path) -> None:
    spec = [f"env.spec={__name__}:Own", "env.name=own"]
    assert cli.main(["audit-reward", "env=search", "--tasks", "8", *QUICK, *spec]) == 3
    assert rows(result())["own: magic word"]["problem"] is not None


# --- the verdict


def test_intervals_of_rewards_on_any_scale() -> None:
    wide = audit.estimate([-8.0, 12.0, 3.0, 5.0], 0)
    assert wide.low < wide.mean == 3.0 < wide.high and wide.low < 0
    assert audit.estimate([0.0] * 8, 0).high > 0  # nothing seen in eight tries is not never
    more = audit.versus({"a": 0.0, "b": 0.0, "c": 0.0}, {"a": 1.0, "c": 1.0, "x": 5.0}, 0)
    assert more.n == 2 and more.mean == 1.0


def policies(**earned: tuple[str, float, float]) -> list[audit.Played]:
    """Name → (kind, reward, success) of eight episodes each."""
    found = []
    for name, (kind, reward, success) in earned.items():
        episodes = [
            Trajectory(Task(str(i), f"{i}?", {}, "train", "train"), 0, 0, [], success=success) for i in range(8)
        ]
        for made in episodes:
            made.reward = RewardRecord([RewardComponent("own", "verifiable", reward)])
        found.append(audit.Played(name, kind, list(episodes)))
    return found


def verdict(played: list[audit.Played]) -> dict:
    tasks = [t.task for t in played[0].trajectories if t is not None]
    return audit.judged(Config(), played, audit.as_groups(played, tasks), {})


def test_a_base_policy_that_does_the_task_is_no_floor() -> None:
    """It earns as much as the expert because it is as good: then the random policy is what gains are over."""
    good = {"expert": ("expert", 1.0, 1.0), "base": ("base", 1.0, 1.0), "random": ("random", 0.0, 0.0)}
    assert verdict(policies(**good, empty=("exploiter", 0.0, 0.0)))["passed"]
    found = verdict(policies(**good, words=("exploiter", 0.7, 0.0)))
    assert found["problems"] == ["'words' earns nearly as much as the expert: 0.70"]
    everyone = {"expert": ("expert", 1.0, 1.0), "base": ("base", 1.0, 1.0), "random": ("random", 1.0, 1.0)}
    assert "than the random policy (+0.00)" in verdict(policies(**everyone))["problems"][0]


def test_a_reward_that_calls_itself_verifiable_is_held_against_success_too() -> None:
    known = {"expert": ("expert", 1.0, 1.0), "base": ("base", 0.0, 0.0)}
    assert verdict(policies(**known))["agreement"] == {}  # the reward is success itself
    assert verdict(policies(**known, words=("exploiter", 1.0, 0.0)))["agreement"]["own"]["auc"] == 0.75


# --- over-optimisation


def lines(proxy: Sequence[float], truth: Sequence[float], n: int = 64) -> list[dict]:
    return [
        {"step": i + 1, "reward/mean": p, "success/mean": t, "rollout/trajectories": n}
        for i, (p, t) in enumerate(zip(proxy, truth, strict=True))
    ]


def test_the_point_of_over_optimisation(tmp_path: Path) -> None:
    proxy = [i / 10 for i in range(20)]
    truth = [0.2 + 0.03 * i for i in range(12)] + [0.5 - 0.04 * i for i in range(8)]
    found = overoptimisation.curve(lines(proxy, truth))
    assert found["over_optimised"] and found["best"]["step"] == 12 and found["last"]["success"] < 0.4
    overoptimisation.draw(found, tmp_path / "plots" / "x.png")
    assert (tmp_path / "plots" / "x.png").stat().st_size > 1000


@pytest.mark.parametrize(
    ("proxy", "truth", "n"),
    [
        ([i / 10 for i in range(20)], [0.3 + 0.02 * i for i in range(20)], 64),  # both rise
        ([0.5] * 20, [0.5 + 0.1 * (-1) ** i for i in range(20)], 64),  # neither moves
        ([i / 10 for i in range(20)], [0.6] * 10 + [0.5] * 10, 4),  # a fall within the noise
        ([2 - i / 10 for i in range(20)], [0.8 - 0.03 * i for i in range(20)], 64),  # both fall: a collapse, not this
    ],
)
def test_no_over_optimisation(proxy: list[float], truth: list[float], n: int) -> None:
    assert not overoptimisation.curve(lines(proxy, truth, n))["over_optimised"]


def test_too_short_a_run_says_so() -> None:
    assert "fewer than five" in overoptimisation.curve(lines([1.0], [0.0]))["note"]


def test_a_training_run_beside_the_audit(here: Path) -> None:
    from agentrl.runs.folder import Run

    cfg = Config()
    cfg.run.dir = str(here / "trained")
    cfg.reward.components = {"verifiable": RewardComponentConfig()}
    run = Run.create(cfg, "train", ["agentrl"])
    for line in lines([i / 10 for i in range(10)], [0.5] * 5 + [0.1] * 5):
        run.record(line["step"], line)
    run.finish()
    wanted = ["--run", str(here / "trained"), "--tasks", "4"]
    assert cli.main(["audit-reward", "env=search", *QUICK, *wanted]) in (0, 3)
    assert result()["over_optimisation"]["over_optimised"] and Path("run/plots/over_optimisation.png").is_file()


def test_loading_every_built_in_environment_names_its_expert() -> None:
    for env in BUILT_IN:
        with_expert = load_spec(compose([f"env={env}"]).env)
        task = next(iter(with_expert.tasks(with_expert.train_variant, 0)))
        assert with_expert.expert(task, 0) is not None, f"{env}: the audit needs an expert to compare with"
