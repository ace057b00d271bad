"""Episodes: limits, feedback, failures of the retriever, options, and real data end to end."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.envs.base import Episode, Outcome, Task
from agentrl.envs.search.env import prompt
from agentrl.envs.search.spec import SearchSpec
from agentrl.errors import UserError


@pytest.fixture(scope="module")
def spec() -> SearchSpec:
    return SearchSpec(max_searches=2)


@pytest.fixture(scope="module")
def task(spec: SearchSpec) -> Task:
    return next(spec.tasks("train", 0))


def test_an_episode(spec: SearchSpec) -> None:
    task = next(spec.tasks("train", 0))
    env = spec.make()
    (message,) = env.reset(task)
    assert message["role"] == "user" and task.question in message["content"]
    assert len(message["content"].split()) <= 75
    keys = [env.state_key()]
    name = task.truth["path"][0][0]

    first = env.step(f"<think> a </think>\n<search> {name} </search>")
    assert first.outcome is Outcome.OK and first.tool_calls == 1 and not first.done and first.observation
    assert first.observation.before == "\n\n<information>" and first.observation.after == "</information>\n\n"
    assert first.observation.text.startswith(f"Doc 1(Title: {name}) ")
    assert first.info["query"] == name and first.info["hits"][0] == name and len(first.info["hits"]) == 3
    json.dumps(dict(first.info))
    keys.append(env.state_key())

    invalid = env.step("<think> hm </think> I am sure")
    assert invalid.outcome is Outcome.INVALID and invalid.error == "no_tag" and invalid.observation
    assert "<search>" in invalid.observation.text and "<information>" not in invalid.observation.before
    keys.append(env.state_key())

    last = env.step("<search> zzz qqq </search>")
    assert last.observation and "No results" in last.observation.text and "last search" in last.observation.after
    keys.append(env.state_key())

    refused = env.step("<search> again </search>")
    assert refused.outcome is Outcome.TOOL_LIMIT and refused.tool_calls == 0 and refused.observation
    assert "No search is left" in refused.observation.text
    keys.append(env.state_key())

    end = env.step("<think> b </think><answer> amber </answer>")
    assert end.done and end.observation is None and env.answer() == "amber"
    keys.append(env.state_key())
    assert len(set(keys)) == len(keys)
    with pytest.raises(RuntimeError):
        env.step("<answer> again </answer>")
    env.reset(task)
    assert env.answer() is None and env.state_key() == keys[0]


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.one_of(st.text(max_size=40), st.text(max_size=20).map(lambda t: f"<search>{t}</search>")), max_size=4)
)
def test_step_never_raises(spec: SearchSpec, task: Task, actions: list[str]) -> None:
    env = spec.make()
    env.reset(task)
    for action in actions:
        transition = env.step(action)
        assert (transition.observation is None) == transition.done
        if transition.done:
            break


def test_equal_histories_have_equal_keys_whatever_the_wording(spec: SearchSpec) -> None:
    task = next(spec.tasks("train", 0))
    name = task.truth["path"][0][0]
    keys = set()
    for words in (f"<search> {name} </search>", f"<think> t </think> <search>{name}</search>"):
        env = spec.make()
        env.reset(task)
        env.step(words)
        keys.add(env.state_key())
    assert len(keys) == 1


def test_prompt_ends_as_a_question() -> None:
    assert prompt(" who wrote it ", 2).endswith("Question: who wrote it?\n")
    assert prompt("Name it.", 2).endswith("Question: Name it.\n")


def test_a_dead_retriever_ends_the_episode_without_a_score() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    spec = SearchSpec(
        retriever={"kind": "http", "url": f"http://127.0.0.1:{port}/retrieve", "timeout_s": 1, "retries": 0}, retries=1
    )
    assert set(spec.variants()) == {"train", "deeper", "paraphrased"}
    env = spec.make()
    env.reset(next(spec.tasks("train", 0)))
    transition = env.step("<search> q </search>")
    assert transition.outcome is Outcome.TOOL_ERROR and transition.fatal and transition.done
    assert transition.tool_calls == 2 and transition.error and transition.error.startswith("unavailable")
    assert env.answer() is None
    spec.close()


def test_a_server_of_the_exported_corpus_finds_the_same(tmp_path: Path) -> None:
    export = [sys.executable, "-m", "agentrl.envs.search.atlas", "base"]
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_bytes(subprocess.run(export, capture_output=True, check=True).stdout)
    serve = [sys.executable, "-m", "agentrl", "serve-search", "--corpus", str(corpus), "--port", "0"]
    with subprocess.Popen(serve, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout
            url = re.search(r"http://\S+", server.stdout.readline())
            assert url
            remote, local = SearchSpec(retriever={"kind": "http", "url": url[0]}), SearchSpec()
            for task in islice(local.tasks("train", 0), 5):
                query = f"<search> {task.question} </search>"
                seen = []
                for spec in (remote, local):
                    env = spec.make()
                    env.reset(task)
                    seen.append(env.step(query).observation)
                assert seen[0] == seen[1]
                assert remote.expert(task, 0) == local.expert(task, 0)
            remote.close()
        finally:
            server.terminate()


def test_threads_share_one_index() -> None:
    spec = SearchSpec()
    tasks = list(islice(spec.tasks("new_world", 0), 8))
    barrier = threading.Barrier(8)

    def run(task: object) -> int:
        barrier.wait()
        return id(spec.retriever(task))  # type: ignore[arg-type]

    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(run, tasks))) == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tasks": "atals"}, "did you mean 'atlas'"),
        ({"score": "exact"}, "env.options.score"),
        ({"topk": 0}, "env.options.topk"),
        ({"max_searches": True}, "env.options.max_searches"),
        ({"tasks": "dataset"}, "env.options.dataset.train"),
        ({"tasks": "atlas", "dataset": {"train": ["x"]}}, "leave one of them out"),
        ({"dataset": {"trian": ["x"]}}, "did you mean 'train'"),
        ({"retriever": {"passages": []}}, "env.options.retriever.passages"),
    ],
)
def test_bad_options(options: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        SearchSpec(**options)  # type: ignore[arg-type]


def test_unknown_variant() -> None:
    with pytest.raises(UserError, match="did you mean 'noisy'"):
        SearchSpec().tasks("noisey", 0)


def test_a_data_set_of_ones_own(tmp_path: Path) -> None:
    rows = [
        {"id": str(i), "contents": f'"Town {i}"\nTown {i} has <answer> {100 + i} </answer> houses.'} for i in range(9)
    ]
    (tmp_path / "corpus.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    for name, start in (("train", 0), ("dev", 5)):
        asked = [
            {"question": f"how many houses has Town {i}", "golden_answers": [str(100 + i)]}
            for i in range(start, start + 4)
        ]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(r) + "\n" for r in asked))
    spec = SearchSpec(
        dataset={
            "root": str(tmp_path),
            "train": ["train.jsonl"],
            "heldout": {"dev": "dev.jsonl"},
            "corpus": "corpus.jsonl",
        }
    )
    assert list(spec.variants()) == ["train", "dev"]
    spec.prepare()
    (task, *_) = spec.tasks("dev", 0)
    env = spec.make()
    env.reset(task)
    seen = env.step(f"<search> {task.question} </search>").observation
    assert seen and f"[answer] {task.truth['answers'][0]} [/answer]" in seen.text
    env.step(f"<think> t </think><answer> {task.truth['answers'][0]} </answer>")
    assert spec.verify(Episode(task, env.answer(), [], [], [])).success == 1
    assert spec.expert(task, 0) is None
    assert spec.data_hashes()
    spec.close()
