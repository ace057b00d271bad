"""The server over real HTTP, and the client against it and against servers that misbehave."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx
import pytest

from agentrl.errors import UserError
from agentrl.retrieval import RetrievalError, build
from agentrl.retrieval.server import main

ROWS = [{"id": f"p{i}", "contents": f'"Title {i}"\nshared word{i}'} for i in range(12)]
CODE = "import sys; from agentrl.retrieval.server import main; main(sys.argv[1], port=int(sys.argv[2]), topk=3)"


def start(corpus, port=0) -> tuple[subprocess.Popen, str]:
    """A server process and its first line of output."""
    process = subprocess.Popen(
        [sys.executable, "-c", CODE, str(corpus), str(port)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert process.stdout
    return process, process.stdout.readline()


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    path = tmp_path_factory.mktemp("corpus") / "corpus.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return path


@pytest.fixture(scope="module")
def server(corpus) -> Iterator[str]:
    process, line = start(corpus)
    found = re.search(r"^serving 12 passages at (http://127.0.0.1:\d+)/retrieve", line)
    assert found, (line, process.communicate()[1])
    yield found[1]
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=10)
    assert (process.returncode, out, err) == (0, "", "")  # Ctrl-C ends it, quietly


@pytest.mark.parametrize("count", [0, 1, 2, 3, 17])
@pytest.mark.parametrize("scores", [True, False, None])
@pytest.mark.parametrize("topk", [1, 2, 100, None])
def test_the_protocol_for_every_number_of_queries(server, count, scores, topk):
    body = {"queries": [f"word{i % 12}" if i % 3 else "shared" for i in range(count)], "topk": topk}
    response = httpx.post(f"{server}/retrieve", json=body if scores is None else body | {"return_scores": scores})
    assert response.status_code == 200
    result = response.json()["result"]
    assert [len(hits) for hits in result] == [1 if i % 3 else min(topk or 3, 12) for i in range(count)]
    for i, hits in enumerate(result):
        for hit in hits:
            document = hit["document"] if scores else hit
            assert document in ROWS and (not scores or hit["score"] > 0)
            assert f"word{i % 12}" in document["contents"] or i % 3 == 0


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({}, "queries"),
        ({"queries": "word1"}, "queries"),
        ({"queries": [1]}, "queries.0"),
        ({"queries": ["a"], "topk": 0}, "topk"),
        ({"queries": ["a"], "topk": 1001}, "topk"),
        ({"queries": ["a"], "topk": "x"}, "topk"),
        ([], "body"),
    ],
)
def test_bad_requests_say_what_is_wrong(server, body, message):
    response = httpx.post(f"{server}/retrieve", json=body)
    assert response.status_code == 422 and message in response.json()["detail"]
    assert httpx.post(f"{server}/retrieve", content=b"{").status_code == 422


def test_health(server):
    facts = httpx.get(f"{server}/health").json()
    assert (facts["status"], facts["passages"], facts["topk"]) == ("ok", 12, 3)


def test_client_and_server_give_what_bm25_gives(server, corpus):
    local, remote = build({"corpus": str(corpus)}), build({"kind": "http", "url": server})
    queries = ["shared", "", "word3 title", "nothing like it", "word11"]
    for count in (0, 1, 2, 5):
        assert remote.search(queries[:count], 4) == local.search(queries[:count], 4)
    with ThreadPoolExecutor(16) as pool:
        many = list(pool.map(lambda i: remote.search([f"word{i % 12}"], 1)[0][0].id, range(200)))
    assert many == [f"p{i % 12}" for i in range(200)]
    remote.close()


def test_missing_corpus_taken_port_and_bad_topk_are_the_users_error(tmp_path, corpus, server):
    with pytest.raises(UserError, match=r"nothing\.jsonl: no such file"):
        main(tmp_path / "nothing.jsonl", port=0)
    port = int(server.rpartition(":")[2])
    with pytest.raises(UserError, match=f"127.0.0.1:{port}: Address already in use"):
        main(corpus, port=port)
    with pytest.raises(UserError, match="port=70000"):
        main(corpus, port=70000)
    with pytest.raises(UserError, match="topk=0"):
        main(corpus, port=0, topk=0)


@contextmanager
def answering(*answers) -> Iterator[tuple[str, list[dict]]]:
    """A server that gives these answers in turn (the last one for ever), and the requests that it got."""
    requests: list[dict] = []
    release = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            requests.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            answer = answers[min(len(requests), len(answers)) - 1]
            if answer == "silence":
                release.wait(20)
            elif answer == "trickle":
                self.send_response(200)
                self.end_headers()
                while not release.wait(0.05):
                    self.wfile.write(b" ")
            elif answer == "hang up":
                self.close_connection = True
            elif isinstance(answer, int):
                self.send_error(answer)
            else:
                text = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

        def log_message(self, *args) -> None:
            pass

        def handle(self) -> None:
            with suppress(ConnectionError):  # the client gave up, as it should
                super().handle()

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", requests
    finally:
        release.set()
        server.shutdown()
        thread.join()
        server.server_close()


def client(url: str, **options):
    return build({"kind": "http", "url": url, "timeout_s": 0.4, "retries": 2, "backoff_s": 0.01, **options})


DOCUMENT = {"id": 12, "contents": '"Ada"\nProgrammer'}


@pytest.mark.parametrize(
    ("item", "score"),
    [({"document": DOCUMENT, "score": 1.5}, 1.5), ({"document": DOCUMENT}, 0.0), (DOCUMENT, 0.0)],
)
def test_both_response_shapes(item, score):
    with answering({"result": [[item, item], []]}) as (url, requests):
        found = client(url).search(["a", " ", "b"], 1)
    assert [[(h.id, h.title, h.score) for h in hits] for hits in found] == [[("12", "Ada", score)], [], []]
    assert requests == [{"queries": ["a", "b"], "topk": 1, "return_scores": True}]


def test_web_search_documents_without_ids():
    with answering({"result": [[{"document": {"contents": "Ada\nProgrammer"}, "score": "0.5"}]]}) as (url, _):
        assert [(h.id, h.score) for h in client(url).search(["a"], 3)[0]] == [("", 0.5)]


@pytest.mark.parametrize("first", [500, 503, 429, "hang up", "silence"])
def test_passing_failures_are_tried_again(first):
    with answering(first, {"result": [[DOCUMENT]]}) as (url, requests):
        assert client(url).search(["a"], 1)[0][0].id == "12"
        assert len(requests) == 2


@pytest.mark.parametrize(
    ("answer", "kind", "tries"),
    [
        (500, "unavailable", 3),
        ("silence", "timeout", 3),
        ("trickle", "timeout", 3),
        (404, "bad_response", 1),
        (422, "bad_response", 1),
        (b"not json", "bad_response", 1),
        (b"[" * 100_000, "bad_response", 1),
        ({}, "bad_response", 1),
        ([], "bad_response", 1),
        ({"result": {"a": 1}}, "bad_response", 1),
        ({"result": [[], []]}, "bad_response", 1),
        ({"result": [None]}, "bad_response", 1),
        ({"result": [["text"]]}, "bad_response", 1),
        ({"result": [[{"document": None}]]}, "bad_response", 1),
        ({"result": [[{"document": DOCUMENT, "score": "high"}]]}, "bad_response", 1),
    ],
)
def test_lasting_failures_are_typed_and_bounded(answer, kind, tries):
    began = time.monotonic()
    with answering(answer) as (url, requests):
        with pytest.raises(RetrievalError) as caught:
            client(url).search(["a"], 1)
        assert (caught.value.kind, len(requests)) == (kind, tries)
        assert url in str(caught.value) and "\n" not in str(caught.value).strip()
    assert time.monotonic() - began < 60


def test_nobody_there():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, not listening: refuses
        with pytest.raises(RetrievalError) as caught:
            client(f"http://127.0.0.1:{taken.getsockname()[1]}").search(["a"], 1)
    assert caught.value.kind == "unavailable"


@pytest.mark.parametrize(
    "options",
    [{"url": "localhost:8000"}, {"url": ""}, {"url": None}, {"timeout_s": 0}, {"retries": -1}, {"backoff_s": "x"}],
)
def test_options_that_cannot_work(options):
    with pytest.raises(UserError, match=f"retriever.{next(iter(options))}="):
        build({"kind": "http", **options})
