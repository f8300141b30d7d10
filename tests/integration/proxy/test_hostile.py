"""Bytes that nobody should send, from clients and from servers: no crash, no hang, no relay."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import gzip
import http.client
import itertools
import json
import logging
import random
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from antiphon import Antiphon
from antiphon.proxy.stdio import StdioProxy
from tests.fake_provider import FakeProvider
from tests.integration.proxy import web
from tests.integration.proxy.harness import Served, serving

_PARTS = (
    b"POST /run/x/openai/v1/chat/completions HTTP/1.1\r\n",
    b"GET /run/%00/desk/mcp HTTP/1.1\r\n",
    b"POST /run/../../openai/v1/messages HTTP/1.1\r\n",
    b"host: 127.0.0.1\r\n",
    b"content-length: 5\r\n",
    b"content-length: 99999999999\r\n",
    b"transfer-encoding: chunked\r\n",
    b"antiphon-run: \xff\r\n",
    b"\r\n",
    b'{"jsonrpc": "2.0", "id": {}, "method": "tools/call"}',
    b"5\r\nhello\r\n0\r\n\r\n",
    b"\x00\xff" * 40,
)


def test_clients_that_send_anything(app: Antiphon) -> None:
    chance = random.Random(3)
    with serving(app, mcp="http://127.0.0.1:9") as served:
        port = int(served.url.rpartition(":")[2])
        for _ in range(150):
            with contextlib.suppress(ConnectionError), socket.create_connection(("127.0.0.1", port)) as connection:
                connection.sendall(b"".join(chance.choices(_PARTS, k=chance.randrange(1, 7))))
        assert web.get(f"{served.url}/healthz").json()["status"] == "ok"


@pytest.mark.parametrize("upstream", ["openai/v1/chat/completions", "desk/mcp"])
def test_upstreams_that_answer_anything(app: Antiphon, upstream: str) -> None:
    chance = random.Random(5)
    answers = (
        b"",
        b"HTTP/1.1 200 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 4\r\n\r\nnull",
        b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 9\r\n\r\n[1",
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\ndata: {\n\ndata: []\n\n",
        b"HTTP/1.1 302 Found\r\nlocation: http://169.254.169.254/\r\ncontent-length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: 3\r\n\r\nabc",
        b"HTTP/1.1 599 What\r\ncontent-length: 2\r\n\r\n{}",
        b"\x16\x03\x01garbage\r\n\r\n",
    )
    listening = socket.create_server(("127.0.0.1", 0))

    def answer() -> None:
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            with contextlib.suppress(OSError), connection:
                connection.recv(65536)
                connection.sendall(chance.choice(answers))

    threading.Thread(target=answer, daemon=True).start()
    url = f"http://127.0.0.1:{listening.getsockname()[1]}"
    body = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "tools/call",
        "params": {"name": "charge"},
        "model": "m",
        "messages": [],
    }
    accept = {"accept": "application/json, text/event-stream"}
    with serving(app, models=url, mcp=url) as served, web.Client(verify=False) as client:
        for number in range(40):
            sent = {**body, "id": number, "stream": number % 2 == 0}
            with contextlib.suppress(httpx.RemoteProtocolError):  # a broken answer is broken for the client, too
                found = client.post(f"{served.url}/run/hostile/{upstream}", json=sent, headers=accept)
                assert found.status_code in (200, 302, 502, 504, 599), found.text
        assert client.get(f"{served.url}/healthz").json()["status"] == "ok"
    listening.close()


_UNREADABLE = (
    b'[{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "charge"}}]',
    b'{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "charge", "arguments": {"x": NaN}}}',
    b'{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "charge", "arguments": {"x": "\\ud800"}}}',
    b'{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "charge", "arguments": [1]}}',
    b'{"jsonrpc": "2.0", "id": {"a": 1}, "method": "tools/call", "params": {"name": "charge"}}',
    b'{"jsonrpc": "2.0", "method": "tools/call", "params": {"name": "charge"}}',
    b'{"id": 1, "method": "tools/call", "params": {"name": "charge"}}',
    b'{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "x", "arguments": {"x": %d}}}' % 2**64,
    b'{"jsonrpc": "2.0", "id": %d, "method": "tools/call", "params": {"name": "charge"}}' % (-(2**63) - 1),
    b'{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "method": "tools/list", "params": {"name": "charge"}}',
    b'{"jsonrpc": "2.0", "id": 1, "method": "tools/list", "meth\\u006fd": "tools/call", "params": {"name": "charge"}}',
    b'{"jsonrpc": "2.0", "id": 1, "method": "tools/list", "Method": "tools/call", "params": {"name": "charge"}}',
    b'{"jsonrpc": "2.0", "id": 1, "METHOD": "tools/call", "params": {"name": "charge"}}',
    b'{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "look", "name": "charge"}}',
    b'{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "look", "Name": "charge"}}',
    b'{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "x", "arguments": {"n": 1, "n": 9}}}',
    '{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "charge"}}'.encode("utf-16"),
)


@pytest.mark.parametrize("mode", ["record", "live"])
def test_a_message_that_the_proxy_cannot_read_reaches_no_server(app: Antiphon, mode: str) -> None:
    """A server that is more lenient would make a call that nobody guards."""
    with FakeProvider([]) as provider, serving(app, mode, mcp=provider.url) as served, web.Client() as client:
        url = f"{served.at('odd', 'desk')}/mcp"
        for body in _UNREADABLE:
            refused = client.post(url, content=body, headers={"content-type": "application/json"})
            assert (refused.status_code, refused.headers["antiphon-error"]) == (400, "unreadable_message"), body
            assert refused.json()["error"]["code"] in (-32700, -32600, -32602)
        call = b'{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "charge"}}'
        for kind in ("application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "text/plain"):
            form = client.put(url, content=call, headers={"content-type": kind})
            assert form.status_code == 405, kind
        packed = gzip.compress(b'{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "charge"}}')
        assert client.post(url, content=packed, headers={"content-encoding": "gzip"}).status_code == 415
        form_of = {"content-encoding": "gzip", "content-type": "multipart/form-data; boundary=x"}
        assert client.post(url, content=packed, headers=form_of).status_code == 415
    assert provider.requests == 0


def test_a_line_that_cannot_be_read_reaches_no_server_on_stdio(app: Antiphon) -> None:
    """Nor one whose id is in use, or none; ids that are fractions are answered."""
    told: list[bytes] = []
    call = {"jsonrpc": "2.0", "id": 1.5, "method": "tools/call", "params": {"name": "charge"}}
    program = (
        "import json, sys\n"
        "said = [json.loads(line) for line in sys.stdin]\n"
        "for one in said: print(json.dumps({'jsonrpc': '2.0', 'id': one['id'], 'result': {'seen': len(said)}}))\n"
    )

    async def session() -> int:
        lines: asyncio.Queue[bytes | None] = asyncio.Queue()
        for body in _UNREADABLE[:-1]:
            lines.put_nowait(body + b"\n")
        lines.put_nowait(json.dumps(call).encode() + b"\n")
        lines.put_nowait(json.dumps(call).encode() + b"\n")
        lines.put_nowait(None)
        code, _ = await StdioProxy(app, "desk", write=told.append).serve([sys.executable, "-c", program], lines)
        return code

    assert asyncio.run(session()) == 0
    answers = [json.loads(line) for line in told]
    assert [answer["error"]["code"] for answer in answers if "error" in answer].count(-32600) == 13
    assert answers[-1] == {"jsonrpc": "2.0", "id": 1.5, "result": {"seen": 1}}
    assert len(answers) == len(_UNREADABLE) + 1


def test_a_status_that_is_none_and_headers_in_other_alphabets(app: Antiphon) -> None:
    said = iter(
        [
            b"HTTP/1.1 999 What\r\ncontent-length: 2\r\n\r\n{}",
            b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nx-city: M\xfcnchen\r\nx-ratelimit-x: \xb2\r\ncontent-length: 2\r\n\r\n{}",
            b"HTTP/1.1 200 OK\r\nx-city: M\xfcnchen\r\ncontent-length: 2\r\n\r\n{}",
        ]
    )
    with _saying(said) as url, serving(app, models=url) as served, web.Client() as client:
        ask = f"{served.at('odd')}/v1/chat/completions"
        statuses = [client.post(ask, json={"model": "m", "n": number}).status_code for number in range(2)]
        assert statuses == [502, 502]
        for stream in (False, True):
            passed = client.post(ask, json={"model": "m", "stream": stream}, headers={b"x-town": b"K\xf6ln"})
            assert (passed.status_code, passed.headers["x-city"]) == (200, "München")


@pytest.mark.parametrize("path", ["v1/models", "v1/chat/completions"])
@pytest.mark.parametrize("mode", ["record", "live"])
def test_a_header_with_a_control_character_is_no_answer(
    app: Antiphon, mode: str, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    head = b"HTTP/1.1 200 OK\r\nx-request-id: a\x0bb\r\ncontent-length: 2\r\n\r\n{}"

    def ask(served: Served) -> list[Any]:
        bodies = ({"model": "m", "stream": stream} for stream in (False, True))
        answers = [web.post(f"{served.at('odd')}/{path}", json=body) for body in bodies]
        return [(answer.status_code, answer.json()["error"]["code"]) for answer in answers]

    with _saying(itertools.repeat(head)) as url, serving(app, mode, models=url) as served:
        assert ask(served) == [(502, "upstream_unreachable")] * 2
    if mode == "record" and path != "v1/models":
        with serving(app, "replay") as served:
            assert ask(served) == [(502, "upstream_unreachable")] * 2
    loggers = ("antiphon.proxy", "uvicorn")
    assert [record for record in caplog.records if record.name.startswith(loggers) and record.exc_info] == []


def test_a_client_that_waits_for_100_is_told_so_and_the_upstream_is_not_asked(app: Antiphon) -> None:
    asked = []
    listening = socket.create_server(("127.0.0.1", 0))

    def answer() -> None:
        connection, _ = listening.accept()
        with connection:
            request = b""
            while not request.endswith(b"\r\n\r\n{}"):
                request += connection.recv(65536)
            asked.append(request)
            connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")

    threading.Thread(target=answer, daemon=True).start()
    url = f"http://127.0.0.1:{listening.getsockname()[1]}"
    with listening, serving(app, models=url, mode="live") as served:
        port = int(served.url.rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port)) as connection:
            connection.settimeout(60)
            head = b"POST /openai/v1/chat/completions HTTP/1.1\r\nhost: localhost\r\nexpect: 100-continue\r\n"
            connection.sendall(head + b"connection: close\r\ncontent-length: 2\r\n\r\n")
            assert connection.recv(65536).startswith(b"HTTP/1.1 100 ")
            connection.sendall(b"{}")
            found = b"".join(iter(lambda: connection.recv(65536), b""))
    assert found.startswith(b"HTTP/1.1 200 ")
    assert found.endswith(b"{}")
    assert b"expect" not in asked[0].lower()


@pytest.mark.parametrize("status", [b"204 No Content", b"304 Not Modified"])
def test_an_answer_without_a_body_may_tell_the_length_of_one(
    app: Antiphon, status: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    said = iter([b"HTTP/1.1 " + status + b"\r\netag: x\r\ncontent-length: 3\r\n\r\n"])
    with _saying(said) as url, serving(app, models=url, mode="live") as served, web.Client() as client:
        found = client.get(f"{served.at('bodiless')}/v1/files/1")
    assert (found.status_code, found.headers["etag"], found.content) == (int(status[:3]), "x", b"")
    assert "content-length" not in found.headers
    assert [record for record in caplog.records if record.name.startswith("antiphon.proxy")] == []


def test_a_request_that_goes_wrong_amid_its_answer_ends_the_connection(
    app: Antiphon, caplog: pytest.LogCaptureFixture
) -> None:
    gc.collect()  # what other tests left behind is told now
    caplog.clear()
    with serving(app) as served:
        port = int(served.url.rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port)) as connection:
            connection.settimeout(60)
            head = b"HEAD /healthz HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n"
            connection.sendall(head + b"no number\r\n")
            while connection.recv(65536):
                pass
    assert [record for record in caplog.records if record.name == "asyncio"] == []


def test_a_client_that_does_not_read_slows_its_server_down(app: Antiphon) -> None:
    """A server without end cannot fill the memory of the proxy: what nobody takes is not asked for."""
    sent = 0
    event = b"data: " + b"x" * 60_000 + b"\n\n"
    stalled = threading.Event()

    def endless(connection: socket.socket) -> None:
        nonlocal sent
        connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n")
        connection.settimeout(2)
        with contextlib.suppress(OSError):
            while sent < 200_000_000:
                connection.sendall(event)
                sent += len(event)
        stalled.set()

    with _answering(endless) as url, serving(app, "live", mcp=url) as served:
        body = b'{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "charge"}}'
        with socket.create_connection(("127.0.0.1", int(served.url.rpartition(":")[2]))) as connection:
            head = b"POST /run/x/desk/mcp HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n" % len(body)
            connection.sendall(head + body)
            assert stalled.wait(60)
    assert 0 < sent < 100_000_000


@contextlib.contextmanager
def _answering(answer: Callable[[socket.socket], None]) -> Iterator[str]:
    """A server that reads a request, does this, and closes the connection."""
    listening = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listening.accept()
                with contextlib.suppress(OSError), connection:
                    connection.recv(65536)
                    answer(connection)

    threading.Thread(target=serve, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        listening.close()


def _saying(said: Iterator[bytes]) -> contextlib.AbstractContextManager[str]:
    return _answering(lambda connection: connection.sendall(next(said)))


def test_a_request_whose_body_goes_wrong_while_it_is_refused_is_answered_once(app: Antiphon) -> None:
    """The refusal comes before the news that the connection ends: the log has no error."""
    told: list[logging.LogRecord] = []
    handler = logging.Handler(logging.ERROR)
    handler.emit = told.append  # type: ignore[method-assign, assignment]
    logging.getLogger("uvicorn.error").addHandler(handler)
    try:
        with serving(app) as served:
            port = int(served.url.rpartition(":")[2])
            head = b"POST /nowhere HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n1\r\nx\r\n"
            with socket.create_connection(("127.0.0.1", port)) as connection:
                connection.settimeout(60)
                connection.sendall(head + b"no number\r\n")
                while connection.recv(65536):
                    pass
    finally:
        logging.getLogger("uvicorn.error").removeHandler(handler)
    assert [record.getMessage() for record in told] == []


@pytest.mark.parametrize("sent", [b"", b"{"])
def test_a_body_that_does_not_come_is_waited_for_so_long_and_no_longer(app: Antiphon, sent: bytes) -> None:
    with (
        serving(app, body_s=0.2) as served,
        socket.create_connection(("127.0.0.1", int(served.url.rpartition(":")[2]))) as connection,
    ):
        connection.settimeout(60)
        connection.sendall(b"POST /openai/v1/x HTTP/1.1\r\nhost: localhost\r\ncontent-length: 3\r\n\r\n" + sent)
        assert connection.recv(65536).startswith(b"HTTP/1.1 408 ")


def test_what_is_sent_is_what_the_client_sent_and_only_once(app: Antiphon) -> None:
    """Also if a kept connection breaks before the answer, when libraries like to send PUT and DELETE once more."""
    seen: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = listening.accept()
                    with connection:
                        seen.append(connection.recv(65536))
                        connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")
                        seen.append(connection.recv(65536))

        threading.Thread(target=serve, daemon=True).start()
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        with serving(app, "live", models=url) as served:
            client = http.client.HTTPConnection(served.url.removeprefix("http://"), timeout=60)
            for method, status in (("GET", 200), ("DELETE", 502)):
                client.putrequest(method, "/run/x/openai/v1/files/%61?q=%2F", skip_accept_encoding=True)
                client.putheader("x-one", "1")
                client.putheader("x-one", "2")
                client.endheaders()
                answer = client.getresponse()
                assert (answer.status, len(answer.read()) > 1) == (status, True)
            client.close()
    sent = [one.split(b"\r\n") for one in seen]
    assert [lines[0] for lines in sent] == [
        f"{name} /v1/files/%61?q=%2F HTTP/1.1".encode() for name in ("GET", "DELETE")
    ]
    assert sorted(line.partition(b":")[0].lower() for line in sent[0][1:] if line) == [b"host", b"x-one", b"x-one"]


def test_a_head_without_end_is_refused(app: Antiphon) -> None:
    with serving(app) as served:
        port = int(served.url.rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.settimeout(60)
            client.sendall(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n")
            with contextlib.suppress(ConnectionError):
                for _ in range(1000):
                    client.sendall(b"x-more: " + b"x" * 8000 + b"\r\n")
                pytest.fail("it was read to its end")
        assert web.get(f"{served.url}/healthz").json()["status"] == "ok"


def test_an_offer_of_another_protocol_is_passed_over(app: Antiphon) -> None:
    """The HTTP client of Java offers HTTP/2 with every first request."""
    offer = {"connection": "Upgrade, HTTP2-Settings", "upgrade": "h2c", "http2-settings": "AAEAAEAAAAIAAAAB"}
    with FakeProvider([]) as provider, serving(app, "live", models=provider.url) as served, web.Client() as client:
        for _ in range(3):
            ask = {"model": "m", "messages": [{"role": "user", "content": "x" * 100_000}]}
            assert client.post(f"{served.at('java')}/v1/chat/completions", json=ask, headers=offer).status_code != 400
    assert provider.requests == 3


def test_offers_of_another_protocol_one_after_the_other(app: Antiphon) -> None:
    """All in one packet; then one with a body whose length nobody can know."""
    head = b"/healthz HTTP/1.1\r\nhost: localhost\r\nconnection: upgrade\r\nupgrade: h2c\r\n"
    with serving(app) as served:
        port = int(served.url.rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.settimeout(60)
            client.sendall((b"GET " + head + b"\r\n") * 1500)
            found = b""
            while found.count(b"HTTP/1.1 200") < 1500:
                found += client.recv(65536)
            client.sendall(b"POST " + head + b"transfer-encoding: odd\r\n\r\nx")
            while client.recv(65536):
                pass
        assert web.get(f"{served.url}/healthz").json()["status"] == "ok"
