"""What an operator says: breakers, costs, deadlines, and rules for single tools."""

from __future__ import annotations

import gzip
import json
import socket
import struct
import zlib
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from antiphon import Antiphon
from antiphon.contract.spec import BreakerPolicy
from tests.fake_provider import FakeProvider, Reply
from tests.integration.proxy import web
from tests.integration.proxy.desk import Desk, served_desk
from tests.integration.proxy.harness import Served, serving
from tests.integration.proxy.test_mcp import _call, _leave_waiting, _post, _until
from tests.servers import free_port


@pytest.fixture
def desk() -> Iterator[Desk]:
    with served_desk() as found:
        yield found


def _ask(served: Served, model: str = "fake-1", **headers: str) -> httpx.Response:
    body = {"model": model, "messages": [{"role": "user", "content": "hello"}]}
    return web.post(f"{served.at('orders')}/v1/chat/completions", json=body, headers=headers)


@pytest.mark.parametrize("mode", ["record", "live"])
def test_a_model_that_fails_is_held_back_and_another_is_not(app: Antiphon, mode: str) -> None:
    def reply(body: dict[str, Any]) -> Reply:
        return Reply("no", status=500) if body["model"] == "bad" else Reply("yes")

    breaker = BreakerPolicy(consecutive=3)
    with FakeProvider(reply) as provider, serving(app, mode, models=provider.url, breaker=breaker) as served:
        assert [_ask(served, "bad").status_code for _ in range(3)] == [500] * 3
        held = _ask(served, "bad")
        assert (held.status_code, held.json()["error"]["code"]) == (503, "circuit_open")
        assert int(held.headers["retry-after"]) > 0
        assert _ask(served, "good").status_code == 200
        assert provider.requests == 4


def test_a_rate_limit_of_one_account_holds_nobody_else_back(app: Antiphon) -> None:
    answers = [Reply("no", status=429, headers=(("retry-after", "3600"),))] * 6 + [Reply("yes")]
    with FakeProvider(answers) as provider, serving(app, "live", models=provider.url) as served:
        while provider.requests < 6:
            assert _ask(served, authorization="Bearer ada").headers["retry-after"] == "3600"
        assert _ask(served, authorization="Bearer bob").status_code == 200


def test_calls_to_a_dead_server_are_held_back_unsent(app: Antiphon) -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        url = f"http://127.0.0.1:{probe.getsockname()[1]}"
    with serving(app, mcp=url, breaker=BreakerPolicy(consecutive=2)) as served:
        texts = [_post(served, f"A{number}")["result"]["content"][0]["text"] for number in range(3)]
        assert "held back" not in texts[1]
        assert "this one was not sent" in texts[2]


def test_a_run_costs_no_more_than_it_may(app: Antiphon) -> None:
    prices = {"fake-1": {"input": 1_000_000.0, "output": 0.0}}  # 5 for the 5 tokens of a question
    limited = Antiphon({"prices": prices, "loop": {"max_cost": 8.0}}, store=app.store)
    with FakeProvider(lambda _: Reply("yes")) as provider, serving(limited, models=provider.url) as served:
        assert [_ask(served).status_code for _ in range(2)] == [200, 200]
        over = _ask(served)
        assert (over.status_code, over.json()["error"]["code"]) == (429, "cost_limit")
        assert over.headers["x-should-retry"] == "false"
        assert web.get(f"{served.url}/run/orders").json()["cost"] == 10
        assert "has no price" in _ask(served, "other").text
        assert provider.requests == 2
        body = {"model": "fake-1", "messages": []}
        assert web.post(f"{served.at('next')}/v1/chat/completions", json=body).status_code == 200  # a run of its own


def _limited(app: Antiphon, most: float) -> Antiphon:
    """A token costs 1, whether it is asked or answered."""
    prices = {"fake-1": {"input": 1_000_000.0, "output": 1_000_000.0}}
    return Antiphon({"prices": prices, "loop": {"max_cost": most}}, store=app.store)


_DELTA = {"choices": [{"index": 0, "delta": {"content": "word " * 40}}]}
_SILENT = f"data: {json.dumps(_DELTA)}\n\n".encode()
"""A piece of a stream that tells no usage."""


def _ask_stream(served: Served, end: str = "") -> httpx.Response:
    body = {"model": "fake-1", "messages": [{"role": "user", "content": "hello"}], "stream": True}
    return web.post(f"{served.at('orders')}/v1/chat/completions{end}", json=body)


@pytest.mark.parametrize("end", ["", "/"])
def test_an_answer_without_usage_is_not_free(app: Antiphon, end: str, caplog: pytest.LogCaptureFixture) -> None:
    reply = Reply(raw=_SILENT * 2 + b"data: [DONE]\n\n")
    with FakeProvider(lambda _: reply) as provider, serving(_limited(app, 200.0), models=provider.url) as served:
        assert [_ask_stream(served, end).status_code for _ in range(2)] == [200, 200]
        over = _ask_stream(served, end)
        assert (over.status_code, over.json()["error"]["code"]) == (429, "cost_limit")
        report = web.get(f"{served.url}/run/orders").json()
    assert provider.requests == 2
    assert report["estimated"] == 2
    assert 2 * 100 < report["cost"] < 2 * 200  # 400 characters were answered
    assert caplog.text.count("came without usage") == 1


def test_a_stream_that_breaks_off_is_not_free_and_an_answer_of_the_recording_is(app: Antiphon) -> None:
    limited = _limited(app, 1_000_000.0)

    def cost(served: Served) -> tuple[int, float]:
        report = web.delete(f"{served.url}/run/orders").json()
        return report.get("estimated", 0), report.get("cost", 0.0)

    with FakeProvider([Reply("one two three", break_after=3), Reply("no", status=500)]) as provider:
        with serving(limited, models=provider.url) as served:
            with pytest.raises(httpx.RemoteProtocolError):
                _ask_stream(served)
            assert _ask(served).status_code == 500  # nothing was answered
            estimated, spent = cost(served)
            assert (estimated, spent > 10) == (1, True)
        with serving(limited, "record-new", models=provider.url) as served:
            with pytest.raises(httpx.RemoteProtocolError):
                _ask_stream(served)
            assert cost(served) == (0, 0.0)


def test_only_what_no_recording_answers_costs_anything(app: Antiphon) -> None:
    limited = _limited(app, 1_000_000.0)
    with FakeProvider(lambda _: Reply("yes")) as provider:
        with serving(limited, models=provider.url) as served:
            _ask(served)
            once = web.delete(f"{served.url}/run/orders").json()["cost"]
        with serving(limited, "record-new", models=provider.url) as served:
            sources = [_ask(served).headers["antiphon-source"] for _ in range(3)]
            assert sources == ["recording", "live", "live"]
            assert web.get(f"{served.url}/run/orders").json()["cost"] == 2 * once > 0


def test_a_model_call_that_cannot_be_read_is_refused_where_costs_are_limited(app: Antiphon) -> None:
    body = gzip.compress(b'{"model": "fake-1", "messages": []}')
    headers = {"content-encoding": "gzip", "content-type": "application/json"}
    with FakeProvider(lambda _: Reply("yes")) as provider, serving(_limited(app, 8.0), models=provider.url) as served:
        for content, more in ((body, headers), (b"[]", {}), (b"", {})):
            url = f"{served.at('orders')}/v1/chat/completions"
            refused = web.post(url, content=content, headers=more)
            assert (refused.status_code, refused.json()["error"]["code"]) == (415, "unreadable_message")
            embedded = web.post(f"{served.at('orders')}/v1/embeddings", content=content, headers=more)
            assert embedded.json()["error"]["code"] == "unreadable_message"
        assert web.post(f"{served.at('orders')}/v1/files", json={}).headers["antiphon-recorded"] == "no"
    assert provider.requests == 1


_USAGE = {"prompt_tokens": 5, "completion_tokens": 7, "total_tokens": 12}
_PIECE = {"choices": [{"text": "word " * 8}]}
_UNRECORDED = {
    "embeddings": ("/v1/embeddings", {"data": [{"embedding": [0.1] * 99}], "usage": {"prompt_tokens": 5}}, 5, 0),
    "embeddings without usage": ("/v1/embeddings", {"data": [{"embedding": [0.1] * 99}]}, 9, 1),
    "completion": ("/v1/completions", {**_PIECE, "usage": _USAGE}, 12, 0),
    "completion without usage": ("/v1/completions/", _PIECE, 9 + 11, 1),
    "streamed completion": ("/v1/completions", [_PIECE, _PIECE, {"choices": [], "usage": _USAGE}], 12, 0),
    "streamed completion without usage": ("/v1/completions", [_PIECE, _PIECE], 9 + 22, 1),
    "anthropic": ("/v1/complete", {"completion": "word " * 8}, 9 + 11, 1),
    "gemini": ("/v1beta/models/fake-1:embedContent", {"embedding": {"values": [0.1] * 99}}, 9, 1),
    "gemini, several": ("/v1beta/models/fake-1:batchEmbedContents", {"usageMetadata": {"promptTokenCount": 4}}, 4, 0),
    "error": ("/v1/embeddings", None, 0, 0),
}


@pytest.mark.parametrize("mode", ["record", "record-new"])
@pytest.mark.parametrize("case", _UNRECORDED)
def test_a_request_that_is_not_recorded_is_not_free_either(app: Antiphon, case: str, mode: str) -> None:
    path, said, cost, estimated = _UNRECORDED[case]
    reply = Reply(raw=json.dumps(said).encode())
    if isinstance(said, list):
        events = [f"data: {json.dumps(piece)}\n\n" for piece in said]
        reply = Reply(raw="".join(events).encode() + b"data: [DONE]\n\n")
    elif said is None:
        reply = Reply("no", status=500)
    body = {"model": "fake-1", "input": "text"}  # 36 characters

    limited = _limited(app, cost + 0.5)
    with FakeProvider(lambda _: reply) as provider, serving(limited, mode, models=provider.url) as served:
        url = served.at("orders") + path
        for times in (1, 2):
            answer = web.post(url, json=body)
            report = web.get(f"{served.url}/run/orders").json()
            assert (answer.headers["antiphon-recorded"], answer.headers["antiphon-run"]) == ("no", report["run"])
            assert (report.get("cost", 0), report.get("estimated", 0)) == (times * cost, times * estimated)
            assert (report["requests"], report["recorded"]) == (times, 0)
        over = web.post(url, json=body)
        assert (over.status_code, over.headers.get("antiphon-error")) == ((429, "cost_limit") if cost else (500, None))
        if "gemini" not in case:
            assert "has no price" in web.post(url, json={**body, "model": "other"}).text


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "gzip, broken", "gzip, cut"])
def test_a_compressed_answer_that_nobody_asked_for_is_counted(app: Antiphon, encoding: str) -> None:
    name, _, how = encoding.partition(", ")
    data = json.dumps({**_PIECE, "usage": _USAGE}).encode()
    packed = zlib.compress(data) if name == "deflate" else gzip.compress(data)
    packed = {"broken": packed[:9] + bytes(20), "cut": packed[:-8]}.get(how, packed)
    reply = Reply(raw=packed, headers=(("content-encoding", name),))
    with FakeProvider(lambda _: reply) as provider, serving(_limited(app, 100.0), models=provider.url) as served:
        body = {"model": "fake-1", "input": "text"}
        with web.stream("POST", f"{served.at('orders')}/v1/completions", json=body) as answer:
            assert b"".join(answer.iter_raw()) == packed
        assert provider.sent_headers[0]["accept-encoding"] == "identity"
        cost = web.get(f"{served.url}/run/orders").json()["cost"]
    assert cost == (9 if how == "broken" else 12)  # what cannot be read counts as its request


def test_a_deadline_ends_the_wait_for_a_model(app: Antiphon) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with serving(app, models=url) as served:
            late = _ask(served, **{"antiphon-deadline": "0.2"})
            assert (late.status_code, late.json()["error"]["code"]) == (504, "deadline_exceeded")
            assert _ask(served, **{"antiphon-deadline": "soon"}).status_code == 400


def test_a_deadline_leaves_a_call_unknown_and_it_is_not_sent_again(app: Antiphon, desk: Desk) -> None:
    more: dict[str, Any] = {"tool": "slow", "headers": {"idempotency-key": "k1", "antiphon-deadline": "0.5"}}
    with serving(app, mcp=desk.url) as served:
        for _ in range(2):
            late = _post(served, "A1", **more)
            assert late["result"]["_meta"]["dev.antiphon/outcome"] == "outcome_unknown"
    assert desk.charged["A1"] <= 1


def test_a_read_ends_with_its_client_and_runs_again(app: Antiphon, desk: Desk) -> None:
    with serving(app, mcp=desk.url, tools=("desk/sl*:read",)) as served:
        _leave_waiting(served, desk, {"tool": "slow"}, credit=False)
        _until(lambda: not served.proxy._mcp._running)  # nobody has told the tool to end
        desk.hold.set()
        assert _post(served, "A1", tool="slow")["result"]["content"][0]["text"] == "slowly charged A1"
    assert desk.charged["A1"] == 2


def test_a_write_may_be_cancelled_with_its_client_and_is_unknown_then(app: Antiphon, desk: Desk) -> None:
    with serving(app, mcp=desk.url, tools=("desk/slow:on_disconnect=cancel",)) as served:
        _leave_waiting(served, desk, {"tool": "slow"})
        _until(lambda: not served.proxy._mcp._running)
        again = _post(served, "A1", tool="slow")
        assert again["result"]["_meta"]["dev.antiphon/outcome"] == "outcome_unknown"
    assert desk.charged["A1"] == 1


def test_an_answer_that_was_handed_over_answers_again_only_where_the_operator_says_so(
    app: Antiphon, desk: Desk
) -> None:
    with serving(app, mcp=desk.url, tools=("desk/charge:guard_handed_over,window=600",)) as served:

        def charge(client: httpx.Client) -> str:
            url, body, headers = _call(served, "A1")
            answer = client.post(url, content=body, headers=headers).text
            return answer[answer.index("charged") :].partition('"')[0]

        with web.Client() as client:
            assert charge(client) == "charged A1, number 1"
        with web.Client() as client:
            assert charge(client) == "charged A1, number 1"  # its answer was written, and nobody knows more
            assert charge(client) == "charged A1, number 2"  # it came over the same connection: the one before arrived


def test_another_connection_from_the_same_port_confirms_nothing(app: Antiphon, desk: Desk) -> None:
    """Systems use the ports of connections that ended again, sometimes at once."""
    with serving(app, mcp=desk.url, tools=("desk/charge:guard_handed_over",)) as served:
        port = free_port()
        for _ in range(2):
            url, body, headers = _call(served, "A1")
            with socket.socket() as connection:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                connection.bind(("127.0.0.1", port))
                connection.connect(("127.0.0.1", int(urlsplit(url).port or 0)))
                connection.settimeout(60)
                lines = [f"POST {urlsplit(url).path} HTTP/1.1", "host: localhost", f"content-length: {len(body)}"]
                lines += [f"{name}: {value}" for name, value in headers.items()]
                connection.sendall("\r\n".join(lines).encode() + b"\r\n\r\n" + body)
                answer = b""
                while b"number" not in answer or not answer.endswith(b"0\r\n\r\n"):
                    answer += connection.recv(65536)
            assert b"charged A1, number 1" in answer
    assert dict(desk.charged) == {"A1": 1}


def test_a_field_that_the_operator_names_is_the_identity_of_a_call(app: Antiphon, desk: Desk) -> None:
    with serving(app, mcp=desk.url, identity=("com.example/intent",)) as served:
        for _ in range(2):
            assert "number 1" in str(_post(served, "A1", meta={"com.example/intent": "one"}))
        assert "number 2" in str(_post(served, "A1", meta={"com.example/other": "one"}))
