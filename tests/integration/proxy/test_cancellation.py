"""A client that leaves: what only reads ends at the upstream too, and a write goes on and is settled."""

from __future__ import annotations

import asyncio
import json
import queue
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest

from antiphon import Antiphon
from antiphon.proxy.stdio import StdioProxy
from tests.integration.proxy import web
from tests.integration.proxy.harness import Served, serving

_CALL = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "charge", "arguments": {"order": "A1"}}}
_MODEL = {"model": "m", "messages": []}
_READS = {
    "tool that reads": ("desk/mcp", _CALL, ("desk/*:read",)),
    "resource": ("desk/mcp", {"jsonrpc": "2.0", "id": 1, "method": "resources/read", "params": {"uri": "a://b"}}, ()),
    "stream of the server": ("desk/mcp", None, ()),
    "model": ("openai/v1/chat/completions", _MODEL, ()),
    "model, streamed": ("openai/v1/chat/completions", {**_MODEL, "stream": True}, ()),
    "other path": ("openai/v1/files", {}, ()),
}


def _until(met: Callable[[], Any]) -> None:
    end = time.monotonic() + 60
    while not met():
        assert time.monotonic() < end
        time.sleep(0.01)


@contextmanager
def _upstream() -> Iterator[tuple[str, queue.Queue[socket.socket]]]:
    """A server that reads requests and says nothing; whoever wants to answers on the connection."""
    listening = socket.create_server(("127.0.0.1", 0))
    asked: queue.Queue[socket.socket] = queue.Queue()

    def accept() -> None:
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            connection.settimeout(60)
            data = connection.recv(65536)
            while b"\r\n\r\n" not in data or (data[:1] != b"G" and not data.endswith(b"}")):
                data += connection.recv(65536)
            asked.put(connection)

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}", asked
    finally:
        listening.close()
        while not asked.empty():
            asked.get().close()


def _send(served: Served, path: str, message: dict[str, Any] | None, accept: str = "") -> socket.socket:
    body = b"" if message is None else json.dumps(message).encode()
    connection = socket.create_connection(("127.0.0.1", int(served.url.rpartition(":")[2])))
    method, usual = ("GET", "text/event-stream") if message is None else ("POST", "application/json, text/event-stream")
    accept = accept or usual
    lines = [f"{method} /run/left/{path} HTTP/1.1", "host: localhost", f"accept: {accept}"]
    lines += ["content-type: application/json", f"content-length: {len(body)}"]
    connection.sendall("\r\n".join(lines).encode() + b"\r\n\r\n" + body)
    return connection


@pytest.mark.parametrize(("what", "mode"), [*((what, "record") for what in _READS), ("tool that reads", "live")])
def test_the_upstream_of_a_read_is_told_that_nobody_waits(app: Antiphon, what: str, mode: str) -> None:
    path, message, tools = _READS[what]
    with _upstream() as (url, asked), serving(app, mode, models=url, mcp=url, tools=tools) as served:
        client = _send(served, path, message)
        upstream = asked.get(timeout=60)
        client.close()
        assert upstream.recv(1) == b""  # the proxy has closed the connection
        upstream.close()


_LISTEN = {"jsonrpc": "2.0", "id": 1, "method": "subscriptions/listen", "params": {}}


@pytest.mark.parametrize("mode", ["record", "live"])
def test_streams_that_listen_end_when_the_proxy_stops_and_calls_do_not(app: Antiphon, mode: str) -> None:
    head = b"HTTP/1.1 200 OK\r\ncontent-type: %b\r\ntransfer-encoding: chunked\r\n\r\n"
    with _upstream() as (url, asked), serving(app, mode, models=url, mcp=url) as served:
        clients, upstreams = [], []
        for message in (None, _LISTEN):
            clients.append(_send(served, "desk/mcp", message))
            upstreams.append(asked.get(timeout=60))
            upstreams[-1].sendall(head % b"text/event-stream" + b"9\r\n: hello\n\n\r\n")
            assert b": hello" in _read_to(clients[-1], b": hello\n\n\r\n")
        clients.append(_send(served, "openai/v1/chat/completions", _MODEL))
        upstreams.append(asked.get(timeout=60))
        clients.append(_send(served, "desk/.well-known/oauth-protected-resource", None, accept="application/json"))
        upstreams.append(asked.get(timeout=60))
        waits = _send(served, "desk/mcp", _LISTEN)  # not answered yet
        upstreams.append(asked.get(timeout=60))
        served.server.should_exit = True
        assert b" 503 " in _read_to(waits, b"}}")
        for client, upstream in zip(clients[:2], upstreams, strict=False):
            assert _read_to(client, b"").endswith(b"0\r\n\r\n")  # it has ended, not broken off
            assert upstream.recv(1) == b""
        for client, upstream in zip(clients[2:], upstreams[2:], strict=False):
            upstream.sendall(head % b"application/json" + b"2\r\n{}\r\n0\r\n\r\n")
            assert b"{}" in _read_to(client, b"{}")


def _read_to(connection: socket.socket, end: bytes) -> bytes:
    """What comes up to *end*, or up to the end of the connection."""
    connection.settimeout(60)
    data = b""
    while (not end or end not in data) and (more := connection.recv(65536)):
        data += more
    return data


def test_a_write_goes_on_and_its_answer_waits_for_the_call_to_come_again(app: Antiphon) -> None:
    result = {"jsonrpc": "2.0", "id": 1, "result": {"content": [{"type": "text", "text": "charged"}]}}
    data = json.dumps(result).encode()
    with _upstream() as (url, asked), serving(app, mcp=url) as served:
        client = _send(served, "desk/mcp", _CALL)
        upstream = asked.get(timeout=60)
        client.close()
        _until(lambda: served.proxy._mcp._kept[(120.0, False)]._credits)  # the proxy knows that nobody waits
        upstream.setblocking(False)
        with pytest.raises(BlockingIOError):
            upstream.recv(1)
        upstream.setblocking(True)
        head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: %d\r\n\r\n"
        upstream.sendall(head % len(data) + data)
        upstream.close()
        again = web.post(f"{served.at('left', 'desk')}/mcp", json={**_CALL, "id": 2}).json()
        assert again == {**result, "id": 2}
        assert asked.empty()


@pytest.mark.parametrize("mode", ["record", "live"])
def test_a_call_that_its_client_cancelled_is_unknown_and_is_not_made_again(app: Antiphon, mode: str) -> None:
    """A server that honours the cancellation sends no answer, and may leave the connection open."""
    headers = {"mcp-session-id": "s1", "accept": "application/json, text/event-stream"}
    key = {"idempotency-key": "k1"}
    with _upstream() as (url, asked), serving(app, mode, mcp=url) as served, ThreadPoolExecutor() as pool:

        def post(message: dict[str, Any], more: dict[str, str]) -> Any:
            return web.post(f"{served.at('left', 'desk')}/mcp", json=message, headers={**headers, **more})

        def cancel(place: Any, session: str) -> None:
            message = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": place}}
            told = pool.submit(post, message, {"mcp-session-id": session})
            with asked.get(timeout=60) as upstream:  # it is passed on
                upstream.sendall(b"HTTP/1.1 202 Accepted\r\ncontent-length: 0\r\n\r\n")
                assert told.result().status_code == 202

        first = pool.submit(post, _CALL, key)
        upstream = asked.get(timeout=60)
        second, third = (pool.submit(post, {**_CALL, "id": place}, key) for place in (2, 3))
        _until(lambda: len(served.proxy._mcp._sent) == 3)
        for place, session in ((1, "other"), ([1], "s1"), (3, "s1")):
            cancel(place, session)
        with pytest.raises(TimeoutError):
            first.result(2.0)
        cancel(1, "s1")
        assert upstream.recv(1) == b""
        for answer in (first, second, third):
            assert answer.result(60).json()["result"]["_meta"]["dev.antiphon/outcome"] == "outcome_unknown"
        assert asked.empty()
        assert not served.proxy._mcp._sent


def test_a_client_on_stdio_that_cancels_tells_the_server(app: Antiphon) -> None:
    told: list[Any] = []
    cancelled = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}}
    program = (
        "import json, sys\n"
        "sys.stdin.readline()\n"
        "said = json.loads(sys.stdin.readline())\n"
        "print(json.dumps({'jsonrpc': '2.0', 'id': said['params']['requestId'], 'result': said}), flush=True)\n"
    )

    async def session() -> None:
        lines: asyncio.Queue[bytes | None] = asyncio.Queue()
        for message in (_CALL, cancelled):
            lines.put_nowait(json.dumps(message).encode() + b"\n")
        wrapped = StdioProxy(app, "desk", write=lambda line: told.append(json.loads(line)))
        await wrapped.serve([sys.executable, "-c", program], lines)

    asyncio.run(session())
    assert told == [{"jsonrpc": "2.0", "id": 1, "result": cancelled}]


@pytest.mark.parametrize("mode", ["record", "live"])
def test_a_call_that_its_client_cancelled_on_stdio_is_unknown_and_is_not_made_again(app: Antiphon, mode: Any) -> None:
    told: list[Any] = []
    ended = asyncio.Event()
    call = {**_CALL, "params": {**_CALL["params"], "_meta": {"dev.antiphon/callId": "k1"}}}  # type: ignore[dict-item]
    cancelled = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}}
    program = (
        "import json, sys\n"
        "heard = [json.loads(line)['method'] for line in sys.stdin]\n"
        "print(json.dumps({'jsonrpc': '2.0', 'method': 'heard', 'params': heard}), flush=True)\n"
    )

    async def session() -> None:
        lines: asyncio.Queue[bytes | None] = asyncio.Queue()
        for message in (call, cancelled, {**call, "id": 2}):
            lines.put_nowait(json.dumps(message).encode() + b"\n")

        def write(line: bytes) -> None:
            told.append(json.loads(line))
            ended.set()

        wrapped = StdioProxy(app, "desk", mode=mode, write=write)
        serving = asyncio.ensure_future(wrapped.serve([sys.executable, "-c", program], lines))
        async with asyncio.timeout(60):
            await ended.wait()
        lines.put_nowait(None)
        await serving

    asyncio.run(session())
    assert [message.get("id") for message in told] == [2, None]  # a cancelled request gets no answer
    assert told[0]["result"]["_meta"]["dev.antiphon/outcome"] == "outcome_unknown"
    assert told[1]["params"] == ["tools/call", "notifications/cancelled"]


def test_a_call_that_was_cancelled_before_it_was_sent_is_not_made(app: Antiphon) -> None:
    """It waits for an equal call, which the server then says it did not execute."""
    told: list[Any] = []
    call = {**_CALL, "params": {**_CALL["params"], "_meta": {"dev.antiphon/callId": "k1"}}}  # type: ignore[dict-item]
    cancelled = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 2}}
    program = (
        "import json, sys\n"
        "heard = [json.loads(sys.stdin.readline())['method'] for _ in range(2)]\n"
        "error = {'code': -32021, 'message': 'not executed'}\n"
        "print(json.dumps({'jsonrpc': '2.0', 'id': 1, 'error': error}), flush=True)\n"
        "heard += [json.loads(line)['method'] for line in sys.stdin]\n"
        "print(json.dumps({'jsonrpc': '2.0', 'method': 'heard', 'params': heard}), flush=True)\n"
    )

    async def session() -> None:
        lines: asyncio.Queue[bytes | None] = asyncio.Queue()
        for message in (call, {**call, "id": 2}, cancelled):
            lines.put_nowait(json.dumps(message).encode() + b"\n")

        def write(line: bytes) -> None:
            told.append(json.loads(line))
            lines.put_nowait(None)

        await StdioProxy(app, "desk", write=write).serve([sys.executable, "-c", program], lines)

    asyncio.run(session())
    assert [message.get("id") for message in told] == [1, None]
    assert told[1]["params"] == ["tools/call", "notifications/cancelled"]
