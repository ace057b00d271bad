"""The judge, asked over real HTTP: a local model answers, and every way to fail has a name and is never a reward."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from rewards.judge_server import JudgeServer, serving
from rewards.test_rewards import Sums, group, trajectory

from agentrl.config import compose
from agentrl.config.schema import RewardComponentConfig, RewardConfig
from agentrl.errors import UserError
from agentrl.rewards import Rewards, build
from agentrl.rewards.judge import Judge, majority
from agentrl.rewards.judge_cache import VerdictCache
from agentrl.rewards.judge_client import Request
from agentrl.rewards.judge_local import LocalChat, skeleton
from agentrl.rewards.judge_prompt import WINNER, Question
from agentrl.rollout.trajectory import Group

RUBRIC = {"instructions": "Be strict.", "criteria": {"correct": {"description": "right", "scale": [0, 4]}}}


@pytest.fixture(scope="module")
def tiny_chat() -> LocalChat:
    torch.set_num_threads(1)
    chat = LocalChat("tiny")
    chat.complete(
        Request([{"role": "user", "content": "?"}], Question([], "k", WINNER).schema(), 0.0, 16, 0)
    )  # loads it
    return chat


@pytest.fixture
def server(tiny_chat: LocalChat) -> Iterator[JudgeServer]:
    with serving(tiny_chat) as running:
        yield running


def judge(server: JudgeServer | None, **options: Any) -> Rewards:
    place = {"endpoint": server.endpoint, "model": "served"} if server else {"model": "tiny"}
    wanted = {"rubric": RUBRIC, "cache": None, "backoff_s": 0.01, "timeout_s": 120.0, **place, **options}
    return build(RewardConfig("j", {"judge": RewardComponentConfig("judge", options=wanted)}), Sums(), 0)


def totals(made: Group) -> list[float | None]:
    return [t.reward.total for t in made.trajectories]


def errors(made: Group) -> list[str]:
    return [t.reward.components[0].error or "" for t in made.trajectories]


def test_grades_over_http_and_what_they_cost(server: JudgeServer) -> None:
    made = group("2", "3")
    metrics = judge(server).score([made], step=0)
    assert all(v in (0.0, 0.25, 0.5, 0.75, 1.0) for v in totals(made))
    assert made.trajectories[0].reward.components[0].tier == "learned"
    assert metrics["cost/judge_calls"] == 2 and metrics["judge/retries"] == 0 and metrics["judge/cached"] == 0
    assert metrics["cost/judge_tokens_in"] == 200 and metrics["cost/judge_tokens_out"] == 20
    assert metrics["time/judge_s"] > 0
    assert server.requests[0]["model"] == "served" and server.requests[0]["temperature"] == 0


def test_a_local_judge_gives_the_same_grades(server: JudgeServer) -> None:
    there, here = group("2", "3"), group("2", "3")
    judge(server).score([there], step=0)
    judge(None).score([here], step=0)
    assert totals(there) == totals(here)


FAULTS = {"slow": "timeout", "trickle": "timeout", 429: "rate_limit", 503: "unavailable", "close": "unavailable"}


@pytest.mark.parametrize(("fault", "kind"), FAULTS.items())
def test_a_passing_fault_costs_one_retry_and_a_lasting_one_the_score(
    server: JudgeServer, fault: Any, kind: str
) -> None:
    made = group("2")
    timeout = 2.5 if kind == "timeout" else 120.0
    scorer = judge(server, timeout_s=timeout)
    server.faults = [fault]
    metrics = scorer.score([made], step=0)
    assert totals(made)[0] is not None
    assert (metrics[f"judge/{kind}"], metrics["judge/retries"], metrics["cost/judge_calls"]) == (1, 1, 2)
    server.faults = [fault, fault]
    made = group("3")
    metrics = scorer.score([made], step=0)
    assert totals(made) == [None] and kind in errors(made)[0]
    assert (metrics[f"judge/{kind}"], metrics["cost/judge_calls"]) == (2, 2)  # one bounded retry, and no more
    assert metrics["rewards/errors"] == 1 and "reward/mean" not in metrics


@pytest.mark.parametrize(("fault", "kind"), [(401, "refused"), ("garbage", "bad_response"), ("empty", "refused")])
def test_what_will_not_get_better_is_not_tried_again(server: JudgeServer, fault: Any, kind: str) -> None:
    made = group("2")
    server.faults = [fault]
    metrics = judge(server).score([made], step=0)
    assert totals(made) == [None] and kind in errors(made)[0] and metrics["cost/judge_calls"] == 1


def test_free_text_is_no_verdict(server: JudgeServer) -> None:
    """Without a schema the tiny model talks nonsense: two tries, then not scored; the retry quotes nothing."""
    made = group("2")
    metrics = judge(server, json_schema=False).score([made], step=0)
    assert totals(made) == [None] and metrics["judge/invalid"] == 2 and metrics["cost/judge_calls"] == 2
    first, second = (r["messages"][-1]["content"] for r in server.requests)
    assert second.startswith(first) and "Your last reply was not valid: there is no JSON object" in second[len(first) :]
    assert "response_format" not in server.requests[0]


def test_no_server_at_all() -> None:
    made = group("2")
    wanted = {"rubric": RUBRIC, "model": "m", "endpoint": "http://127.0.0.1:9/v1", "backoff_s": 0.0, "cache": None}
    scorer = build(RewardConfig("j", {"j": RewardComponentConfig("judge", options=wanted)}), Sums(), 0)
    scorer.score([made], step=0)
    assert totals(made) == [None] and "unavailable" in errors(made)[0] and made.trajectories[0].success == 1.0


def test_verdicts_are_kept_by_content(server: JudgeServer, tmp_path: Path) -> None:
    cache = str(tmp_path / "deep" / "verdicts.sqlite")
    first, again, other = group("2", "3"), group("2", "3"), group("2", "3")
    judge(server, cache=cache).score([first], step=0)
    metrics = judge(server, cache=cache).score([again], step=7)
    assert totals(first) == totals(again) and metrics["judge/cached"] == 2 and metrics["cost/judge_calls"] == 0
    changed = {**RUBRIC, "instructions": "Be kind."}
    assert judge(server, cache=cache, rubric=changed).score([other], step=0)["judge/cached"] == 0
    assert judge(server, cache=cache, model="another").score([other], step=0)["judge/cached"] == 0


def test_failures_are_never_kept(server: JudgeServer, tmp_path: Path) -> None:
    scorer = judge(server, cache=str(tmp_path / "v.sqlite"))
    server.faults = [503, 503]
    scorer.score([group("2")], step=0)
    made = group("2")
    assert scorer.score([made], step=0)["judge/cached"] == 0 and totals(made)[0] is not None


def test_a_file_that_is_no_cache_is_refused(server: JudgeServer, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("not a database, but long enough to look like one\n" * 100)
    with pytest.raises(UserError, match=r"cache=.*notes.txt"):
        judge(server, cache=str(tmp_path / "notes.txt"))


def test_a_damaged_row_counts_as_absent(tmp_path: Path) -> None:
    cache = VerdictCache(tmp_path / "v.sqlite")
    cache.put("k", {"correct": 3})
    assert cache.get("k") == {"correct": 3} and cache.get("other") is None
    cache._db.execute("UPDATE verdicts SET verdict = '{\"corr'")
    assert cache.get("k") is None


def test_several_samples_and_their_majority(server: JudgeServer) -> None:
    made = group("2")
    metrics = judge(server, samples=3, temperature=1.0).score([made], step=0)
    assert metrics["cost/judge_calls"] == 3 and totals(made)[0] is not None
    assert len({r["seed"] for r in server.requests}) == 3
    server.faults = [401]
    assert totals(_scored(judge(server, samples=3, temperature=1.0), group("3")))[0] is not None  # two of three
    server.faults = [401, 401]
    assert totals(_scored(judge(server, samples=3, temperature=1.0, workers=1), group("4"))) == [None]


def _scored(scorer: Rewards, made: Group) -> Group:
    scorer.score([made], step=0)
    return made


def test_majority_by_hand() -> None:
    assert majority([3, 1, 3]) == 3 and majority([5, 2]) == 2 and majority([4]) == 4
    assert majority(["A", "B", "A"]) == "A" and majority(["A", "B"]) == "tie"


class Prefers(LocalChat):
    """Pairwise verdicts with a bias: always the first position, or the longer text."""

    def __init__(self, bias: str) -> None:
        self.bias, self.identity, self.workers, self.asked = bias, bias, 1, 0

    def complete(self, request: Request) -> Any:
        from agentrl.rewards.judge_client import Completion

        self.asked += 1
        text = request.messages[-1]["content"]
        a, b = (len(text.split(f"[begin {x} agent")[1].split(f"[end {x} agent")[0]) for x in "AB")
        winner = "A" if self.bias == "first" or a > b else "B"
        key = request.schema["properties"]["key"]["const"]
        return Completion(json.dumps({"key": key, "verdict": {"winner": winner}}), 1, 1)


def test_pairwise_swaps_positions() -> None:
    made = group("2", "a very long answer indeed", "middle one")
    scorer = judge(None, mode="pairwise", opponents=2)
    component = scorer.components["judge"]
    assert isinstance(component, Judge)
    component.chat = Prefers("first")
    scorer.score([made], step=0)
    assert totals(made) == [0.5, 0.5, 0.5]  # who only likes the first position has no preference
    component.chat = Prefers("longer")
    scorer.score([made], step=0)
    assert totals(made) == [0.0, 1.0, 0.5] and component.chat.asked == 6  # three pairs, both ways round


def test_pairwise_over_http(server: JudgeServer) -> None:
    made, alone = group("2", "3", "4"), group("5", number=2)
    metrics = judge(server, mode="pairwise", opponents=1).score([made, alone], step=0)
    assert all(v is not None and 0 <= v <= 1 for v in totals(made)) and sum(totals(made)) == 1.5  # type: ignore[arg-type]
    assert totals(alone) == [None] and "no other scored member" in errors(alone)[0]
    assert metrics["cost/judge_calls"] == 6


def test_the_key_of_the_account_stays_out_of_everything(server: JudgeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_JUDGE_KEY", "s3cret")
    scorer = judge(server, api_key_env="MY_JUDGE_KEY")
    scorer.score([group("2")], step=0)
    assert server.headers[0]["Authorization"] == "Bearer s3cret"
    assert "s3cret" not in json.dumps(server.requests) + repr(vars(scorer.components["judge"]))


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({"rubric": {}}, "rubric: needs"),
        ({"rubric": {"criteria": {"a": {"scale": [3, 3]}}}}, "rubric.criteria.a.scale=[3, 3]"),
        ({"rubric": {"criteria": {"a": {"wieght": 1}}}}, "did you mean 'weight'"),
        ({"rubric": {"criteria": {"a": {"weight": 0}}}}, "greater than 0"),
        ({"mode": "pairs"}, "mode=pairs"),
        ({"samples": 3}, "samples=3 with temperature=0"),
        ({"samples": 0}, "samples=0 must be a whole number"),
        ({"timeout_s": "soon"}, "timeout_s=soon"),
        ({"endpoint": "localhost:8000"}, "is not the address"),
        ({"endpoint": "http://me:pw@host/v1"}, "credentials"),
        ({"endpoint": None, "model": "smolm"}, "model.name=smolm"),
        ({"model": None}, "model: name"),
        ({"tempertaure": 1.0}, "did you mean 'temperature'"),
    ],
)
def test_wrong_options_are_named(options: dict[str, Any], part: str) -> None:
    wanted = {"rubric": RUBRIC, "model": "m", "endpoint": "http://127.0.0.1:1/v1", "cache": None, **options}
    with pytest.raises(UserError) as caught:
        build(RewardConfig("j", {"j": RewardComponentConfig("judge", options=wanted)}), Sums(), 0)
    assert part in str(caught.value) and "pw" not in str(caught.value)


def test_the_shipped_config_is_complete() -> None:
    cfg = compose(["reward=judge", "reward.components.judge.options.model=tiny"])
    cfg.reward.components["judge"].options["cache"] = None
    made = group("2")
    build(cfg.reward, Sums(), 0).score([made], step=0)
    assert totals(made)[0] is not None


# --- the model in this process


def test_a_schema_is_filled_in() -> None:
    pieces = skeleton(Question([], "k", {"a": (0, 1), "b": ("x", "y")}).schema())
    assert pieces == ['{"key": "k", "verdict": {"a": ', ["0", "1"], ', "b": ', ['"x"', '"y"'], "}}"]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_choices_are_those_of_the_models_distribution(tiny_chat: LocalChat, temperature: float) -> None:
    """Against a plain forward over every whole reply; at temperature 1 by frequency."""
    messages = [{"role": "user", "content": "Which?"}]
    question = Question(messages, "k", WINNER)
    model, renderer = tiny_chat._load()
    prompt = renderer.prompt(messages)
    scores = []
    for choice in WINNER["winner"]:
        head = renderer.encode('{"key": "k", "verdict": {"winner": ')
        option = renderer.encode(f'"{choice}"' + "}}")
        ids = torch.tensor([[*prompt, *head, *option]])
        with torch.no_grad():
            logp = torch.log_softmax(model(ids).logits[0].double(), -1)
        at = len(prompt) + len(head)
        scores.append(sum(float(logp[at + i - 1, t]) for i, t in enumerate(option)))
    chances = torch.softmax(torch.tensor(scores), 0)
    seeds = range(1 if temperature == 0 else 60)
    drawn = [
        json.loads(tiny_chat.complete(Request(messages, question.schema(), temperature, 64, s)).text) for s in seeds
    ]
    counts = [sum(d["verdict"]["winner"] == c for d in drawn) for c in WINNER["winner"]]
    if temperature == 0:
        assert counts[int(chances.argmax())] == 1
    else:
        for count, chance in zip(counts, chances.tolist(), strict=True):
            assert count / 60 == pytest.approx(chance, abs=4 * (chance * (1 - chance) / 60) ** 0.5 + 1e-9)


def test_a_question_beyond_the_models_context_is_refused(tiny_chat: LocalChat) -> None:
    made = Group(trajectory("2").task, [trajectory("x" * 60_000)])
    metrics = judge(None, max_chars=60_000).score([made], step=0)
    assert totals(made) == [None] and "the judge holds 8192" in errors(made)[0] and metrics["judge/refused"] == 1


@pytest.mark.slow
def test_smollm2_as_a_judge_behind_http() -> None:
    with serving(LocalChat("smollm2-135m")) as running:
        made = group("2", "3")
        metrics = judge(running, temperature=0.0).score([made], step=0)
    assert all(v is not None for v in totals(made)) and metrics["cost/judge_calls"] == 2
