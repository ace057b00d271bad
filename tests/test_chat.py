"""The chat client against a real model behind a real server, and against that server misbehaving."""

from __future__ import annotations

import json
import time
from email.utils import formatdate

import pytest
from chat_server import MODEL, ChatServer, raw, refuse, say, serving, sleep

from agentrl.chat import ChatClient, ChatError
from agentrl.errors import UserError

HELLO = [{"role": "user", "content": "Who wrote the book?"}]


@pytest.fixture(scope="module")
def shared():
    with serving(ChatServer()) as server:
        yield server


@pytest.fixture
def server(shared):
    shared.requests.clear()
    shared.faults.clear()
    shared.key, shared.usage = None, True
    return shared


def client(server: ChatServer, **more) -> ChatClient:
    return ChatClient(server.url, MODEL, **{"backoff_s": 0.01, **more})


def test_a_reply_with_its_counts(server):
    reply = client(server).complete(HELLO, 12, temperature=0.7, seed=5)
    assert reply.attempts == 1 and reply.seconds > 0 and reply.finish in ("stop", "length")
    assert 1 <= reply.tokens_sampled <= 12 and reply.tokens_prompt == len(server.renderer.prompt(HELLO))
    body = server.requests[0]
    assert body == {"model": MODEL, "messages": HELLO, "max_tokens": 12, "temperature": 0.7, "seed": 5}
    assert client(server).complete(HELLO, 12, temperature=0.7, seed=5).text == reply.text  # the seed arrives
    client(server).complete(HELLO, 3, top_p=0.5)
    assert server.requests[-1]["top_p"] == 0.5


def test_extra_fields_are_merged_and_null_removes(server):
    client(server, extra={"temperature": None, "user": "me"}).complete(HELLO, 3)
    assert "temperature" not in server.requests[0] and server.requests[0]["user"] == "me"


@pytest.mark.parametrize("fault", [refuse(429), refuse(500), refuse(503), refuse(408)])
def test_what_may_pass_is_tried_again(server, fault):
    server.faults.extend([fault, fault])
    assert client(server, retries=2).complete(HELLO, 3).attempts == 3
    assert len(server.requests) == 3 and server.requests[0] == server.requests[2]


@pytest.mark.parametrize(("status", "kind"), [(429, "rate_limit"), (503, "unavailable"), (408, "timeout")])
def test_tries_are_bounded(server, status, kind):
    server.faults.extend([refuse(status)] * 5)
    with pytest.raises(ChatError, match=f"{kind}: .*HTTP {status}") as found:
        client(server, retries=2).complete(HELLO, 3)
    assert found.value.kind == kind and len(server.requests) == 3


@pytest.mark.parametrize(("status", "kind"), [(400, "bad_request"), (401, "auth"), (403, "auth"), (404, "not_found")])
def test_what_cannot_pass_is_not_tried_again(server, status, kind):
    server.faults.append(refuse(status))
    with pytest.raises(ChatError, match=f"no, {status}") as found:
        client(server).complete(HELLO, 3)
    assert found.value.kind == kind and len(server.requests) == 1


@pytest.mark.parametrize("header", ["0.3", None])
def test_retry_after_is_waited_for(server, header):
    header = header or formatdate(time.time() + 2, usegmt=True)  # an HTTP date has whole seconds
    server.faults.append(refuse(429, **{"retry-after": header}))
    started = time.monotonic()
    client(server).complete(HELLO, 3)
    assert time.monotonic() - started > 0.25


@pytest.mark.parametrize("header", ["soon", "-5", "nan"])
def test_a_senseless_retry_after_is_not(server, header):
    server.faults.append(refuse(429, **{"retry-after": header}))
    started = time.monotonic()
    client(server).complete(HELLO, 3)
    assert time.monotonic() - started < 30  # less than any wait that could be read into it


def test_a_late_answer_is_a_timeout(server):
    server.faults.append(sleep(1.0))
    with pytest.raises(ChatError, match=r"timeout: .*within 0.2 s"):
        client(server, timeout_s=0.2, retries=0).complete(HELLO, 3)


def test_nobody_there():
    with pytest.raises(ChatError) as found:
        ChatClient("http://127.0.0.1:9", MODEL, retries=1, backoff_s=0.01).complete(HELLO, 3)
    assert found.value.kind == "unavailable"


@pytest.mark.parametrize(
    "content",
    [b"", b"{}", b"[]", b"null", b"<html>", b'{"choices": []}', b'{"choices": [{"message": null}]}', b"\xff\xfe",
     b'{"choices": [{"message": {"content": 5}}]}', b"[" * 100_000, b'{"error": "x"}'],
)  # fmt: skip
def test_what_is_not_the_protocol_says_so(server, content):
    server.faults.append(raw(content))
    with pytest.raises(ChatError) as found:
        client(server).complete(HELLO, 3)
    assert found.value.kind == "bad_response" and len(str(found.value)) < 600 and len(server.requests) == 1


def test_odd_but_right_answers(server):
    server.faults.append(say(None))
    server.faults.append(say([{"type": "text", "text": "one "}, {"type": "text", "text": "two"}]))
    server.faults.append(
        raw(json.dumps({"choices": [{"message": {"content": "x"}}], "usage": {"prompt_tokens": "?"}}).encode())
    )
    replies = [client(server).complete(HELLO, 3) for _ in range(3)]
    assert [r.text for r in replies] == ["", "one two", "x"]
    assert all(r.tokens_prompt is None and r.tokens_sampled is None and r.finish == "stop" for r in replies)


def test_the_key_comes_from_the_environment_and_stays_out_of_messages(server, monkeypatch):
    server.key = "sk-secret-17"
    monkeypatch.setenv("MY_KEY", "sk-wrong-99")
    with pytest.raises(ChatError, match="MY_KEY") as found:
        client(server, api_key_env="MY_KEY").complete(HELLO, 3)
    assert "sk-wrong-99" not in str(found.value)
    monkeypatch.setenv("MY_KEY", "sk-secret-17")
    assert client(server, api_key_env="MY_KEY").complete(HELLO, 3).attempts == 1


@pytest.mark.parametrize(
    ("url", "wanted"),
    [
        ("http://h:1", "http://h:1/v1/chat/completions"),
        ("http://h:1/", "http://h:1/v1/chat/completions"),
        ("https://h/api/v3/", "https://h/api/v3/chat/completions"),
        ("http://h/v1/chat/completions", "http://h/v1/chat/completions"),
    ],
)
def test_addresses(url, wanted):
    assert str(ChatClient(url, "m").url) == wanted


@pytest.mark.parametrize("url", ["", "localhost:8000", "ftp://h", "http://", "http://h:port"])
def test_no_address(url):
    with pytest.raises(UserError, match="not the address"):
        ChatClient(url, "m")


def test_tool_calls_become_text(server):
    call = {"id": "c1", "type": "function", "function": {"name": "run", "arguments": '{"code": "1 + 1"}'}}
    message = {"role": "assistant", "content": None, "tool_calls": [call]}
    server.faults.append(raw(json.dumps({"choices": [{"message": message, "finish_reason": "tool_calls"}]}).encode()))
    tool = {"type": "function", "function": {"name": "run", "parameters": {}}}
    reply = client(server).complete(HELLO, 3, tools=[tool])
    assert server.requests[0]["tools"] == [tool]
    found = json.loads(reply.text.removeprefix("<tool_call>\n").removesuffix("\n</tool_call>"))
    assert found == {"name": "run", "arguments": '{"code": "1 + 1"}'}
