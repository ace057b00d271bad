"""Real questions as tasks: which are the same task, what is drawn, what is refused, and one episode end to end."""

from __future__ import annotations

import json
from pathlib import Path

import datasets
import pytest
import yaml

from agentrl.envs.base import Episode, Outcome
from agentrl.envs.search.dataset import QADataset, load_qa_tasks
from agentrl.envs.search.spec import SearchSpec
from agentrl.errors import UserError

CORPUS = [{"id": "1", "contents": '"Ada Lovelace"\nAda was born in 1815.'}, {"id": "2", "contents": "Bob\nNobody."}]


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def qa(question, *answers, **more):
    return {"question": question, "golden_answers": list(answers) or ["x"], **more}


@pytest.fixture
def folder(tmp_path):
    write(tmp_path / "corpus.jsonl", CORPUS)
    write(tmp_path / "a.jsonl", [qa(f"a{i}?") for i in range(30)])
    write(tmp_path / "b.jsonl", [qa(f"b{i}?") for i in range(20)] + [qa("a3?")])
    write(tmp_path / "dev.jsonl", [qa(f"d{i}?") for i in range(10)])
    return tmp_path


def dataset(folder, **changes) -> QADataset:
    options = {"train": ["a.jsonl", "b.jsonl"], "heldout": {"dev": "dev.jsonl"}, "corpus": "corpus.jsonl"}
    return QADataset(**{**options, "root": str(folder), **changes})


def test_the_same_question_is_the_same_task_wherever_it_stands(tmp_path):
    one = write(tmp_path / "one.jsonl", [qa("Who? ", "Ada", id="7", metadata={"hops": 2})])
    other = tmp_path / "other.parquet"
    datasets.Dataset.from_list([{"question": "Who?", "golden_answers": "Ada"}]).to_parquet(str(other))
    first, second = load_qa_tasks(one, "train", "train", "c")[0], load_qa_tasks(other, "dev", "heldout", "c")[0]
    assert first.hash == second.hash and (first.id, second.id) == ("one/7", "other/0")
    assert load_qa_tasks(one, "train", "train", "another corpus")[0].hash != first.hash


def test_answers_arrive_as_written(tmp_path):
    path = tmp_path / "q.jsonl"
    path.write_text('{"question": "q", "golden_answers": ["2020-01-01", "0012", "NA", 12.50, 7, "NA"], "id": 3}\n')
    task = load_qa_tasks(path, "train", "train")[0]
    assert task.truth["answers"] == ["2020-01-01", "0012", "NA", "12.50", "7"] and task.id == "q/3"


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"golden_answers": ["x"]}, "field 'question' is missing; found: golden_answers"),
        ({"question": " ", "golden_answers": ["x"]}, "field 'question' is empty"),
        ({"question": "q", "answer": "x"}, "field 'golden_answers' is missing; found: question, answer"),
        ({"question": "q", "golden_answers": []}, "field 'golden_answers' holds no answer"),
        ({"question": "q", "golden_answers": ["x", ""]}, "field 'golden_answers' holds an empty answer"),
        ({"question": "q", "golden_answers": None}, "field 'golden_answers' must be text, found null"),
        ({"question": "q", "golden_answers": [["x"]]}, "field 'golden_answers' must be text, found"),
        ({"question": 1.5, "golden_answers": ["x"], "id": {}}, "field 'id' must be text"),
    ],
)
def test_bad_rows_name_file_line_and_field(tmp_path, row, message):
    path = write(tmp_path / "q.jsonl", [qa("fine"), row])
    with pytest.raises(UserError, match=f"q.jsonl line 2: {message}"):
        load_qa_tasks(path, "train", "train")


def test_ids_that_repeat_are_told_apart(tmp_path):
    """Two files of one name that number their rows alike, and a file that uses an id twice."""
    write(tmp_path / "corpus.jsonl", CORPUS)
    write(tmp_path / "dev.jsonl", [qa("held?")])
    for name, rows in (("nq", [qa("a?", id="0"), qa("b?", id="0")]), ("hop", [qa("c?", id="0"), qa("a?", id="0")])):
        (tmp_path / name).mkdir()
        write(tmp_path / name / "train.jsonl", rows)
    tasks = list(dataset(tmp_path, train=["nq/train.jsonl", "hop/train.jsonl"]).tasks("train", 0))
    assert {t.question: t.id for t in tasks} == {"a?": "train/0", "b?": "train/0#2", "c?": "train/0#3"}


def test_a_seed_draws_each_distinct_task_once(folder):
    data = dataset(folder)
    drawn = [t.hash for t in data.tasks("train", 0)]
    assert len(drawn) == len(set(drawn)) == 50  # "a3?" stands in both files
    assert drawn == [t.hash for t in dataset(folder, train=["b.jsonl", "a.jsonl"]).tasks("train", 0)]
    assert [t.hash for t in data.tasks("train", 0, start=45)] == drawn[45:]
    other = [t.hash for t in data.tasks("train", 1)]
    assert other != drawn and set(other) == set(drawn)
    assert {(t.variant, t.split) for t in data.tasks("dev", 0)} == {("dev", "heldout")}


@pytest.mark.parametrize("leak", ["a7?", "A7 ?"])
def test_a_held_out_question_that_is_trained_on_is_refused(folder, leak):
    write(folder / "dev.jsonl", [qa("fresh?"), qa(leak, "another answer", id="z")])
    with pytest.raises(UserError, match=r"'dev': 1 of its questions stand in the training files.* dev/z = a/7"):
        dataset(folder).tasks("dev", 0)


def test_variants_say_which_are_in_domain(folder):
    variants = dataset(folder, heldout={"dev": ["dev.jsonl"], "far": "b.jsonl"}, in_domain=["dev"]).variants()
    assert list(variants) == ["train", "dev", "far"]
    assert variants["dev"].startswith("in domain") and variants["far"].startswith("out of domain")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"heldout": {"train": "dev.jsonl"}}, "'train' is taken"),
        ({"in_domain": ["dve"]}, "did you mean 'dev'"),
        ({"train": []}, "train: names no file"),
        ({"corpus": None}, "corpus: name the file"),
        ({"train": "c.jsonl"}, "c.jsonl: no such file"),
        ({"corpus": "corups.jsonl"}, "did you mean 'corpus.jsonl'"),
    ],
)
def test_options_that_cannot_work(folder, changes, message):
    with pytest.raises(UserError, match=message):
        list(dataset(folder, **changes).tasks("train", 0))
    with pytest.raises(UserError, match=r"variant 'dve' .* did you mean 'dev'"):
        dataset(folder).tasks("dve", 0)


def test_hashes_follow_the_content(folder):
    before = dataset(folder).data_hashes()
    assert set(before) == {"a.jsonl", "b.jsonl", "dev.jsonl", "corpus.jsonl"}
    write(folder / "a.jsonl", [qa("other")])
    after = dataset(folder).data_hashes()
    assert {k for k in before if before[k] != after[k]} == {"a.jsonl"}


def test_a_remote_server_needs_no_corpus(folder):
    data = dataset(folder, corpus=None, retriever={"kind": "http", "url": "http://127.0.0.1:9/retrieve"})
    assert len(list(data.tasks("dev", 0))) == 10 and "corpus.jsonl" not in data.data_hashes()
    data.retriever()
    data.close()


@pytest.fixture(scope="module")
def spec(shared_data):
    options = yaml.safe_load((Path(__file__).parents[2] / "configs" / "env" / "search_qa.yaml").read_text())["options"]
    options["dataset"]["root"] = str(shared_data / "qa")
    return SearchSpec(**options)


def test_the_shipped_config_reads_every_real_question(spec):
    counts = {variant: len(list(spec.tasks(variant, 0))) for variant in spec.variants()}
    assert counts == {
        "train": 590,
        "hotpotqa": 200,
        "2wikimultihopqa": 100,
        "musique": 140,
        "nq": 450,
        "squad": 240,
        "bamboogle": 125,
    }
    hashes = [t.hash for variant in spec.variants() for t in spec.tasks(variant, 0)]
    assert len(set(hashes)) == len(hashes)


def test_the_verifier_takes_gold_and_nothing_else_on_every_real_task(spec):
    for variant in spec.variants():
        for task in spec.tasks(variant, 0):
            episode = lambda answer, task=task: Episode(task, answer, [], [], [])  # noqa: E731
            assert all(spec.verify(episode(gold)).success == 1 for gold in spec.gold_answers(task)), task
            assert all(spec.verify(episode(wrong)).success == 0 for wrong in spec.wrong_answers(task)), task


def test_an_episode_over_real_passages(spec, tmp_path, monkeypatch):
    monkeypatch.setenv("AGENTRL_CACHE", str(tmp_path))
    task = next(t for t in spec.tasks("squad", 0) if t.id == "squad_dev/dev_0")
    env = spec.make()
    assert task.question.rstrip("?") in env.reset(task)[-1]["content"]
    found = env.step("<think>I search.</think><search>Carolina Panthers starter five sacks in nine games</search>")
    assert found.outcome is Outcome.OK and "Kony Ealy" in found.observation.text
    done = env.step("<think>There.</think><answer>Kony Ealy</answer>")
    assert done.done and spec.verify(Episode(task, env.answer(), [], [], [])).success == 1
    env.close()
