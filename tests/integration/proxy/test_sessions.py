"""Sessions in ``record-new``: a client that the recording initialised gets one with the server when it needs it."""

from __future__ import annotations

import asyncio
import json
import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx
import pytest
from mcp import Client

from antiphon import Antiphon
from tests.integration.proxy import web
from tests.integration.proxy.desk import Desk, served_desk
from tests.integration.proxy.harness import Served, serving

_REVISION = "2025-11-25"
_HEADERS = {"accept": "application/json, text/event-stream", "mcp-protocol-version": _REVISION}
_HELLO = {"protocolVersion": _REVISION, "capabilities": {}, "clientInfo": {"name": "tests", "version": "1"}}


@pytest.fixture
def desk() -> Iterator[Desk]:
    with served_desk() as found:
        yield found


async def _charge(url: str, mode: Any, *orders: str) -> list[str]:
    async with Client(url, mode=mode) as client:
        told: list[float] = []

        async def tell(progress: float, total: float | None, message: str | None) -> None:
            told.append(progress)

        results = [await client.call_tool("charge", {"order": order}) for order in orders]
        steps = await client.call_tool("steps", {"count": len(orders)}, progress_callback=tell)
        assert (steps.content[0].text, told) == ("done", [*range(1, len(orders) + 1)])  # type: ignore[union-attr]
        return [str(result.content[0].text) for result in results]  # type: ignore[union-attr]


@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_the_sdk_makes_known_and_new_calls(app: Antiphon, desk: Desk, mode: str) -> None:
    with serving(app, mcp=desk.url) as served:
        asyncio.run(_charge(f"{served.at('shop', 'desk')}/mcp", mode, "A1"))
    with serving(app, "record-new", mcp=desk.url) as served:
        heard = asyncio.run(_charge(f"{served.at('shop', 'desk')}/mcp", mode, "A1", "B1", "B2"))
    assert heard == [f"charged {order}, number 1" for order in ("A1", "B1", "B2")]
    assert dict(desk.charged) == {"A1": 1, "B1": 1, "B2": 1}
    with serving(app, "replay", mcp="http://127.0.0.1:9") as served:
        assert asyncio.run(_charge(f"{served.at('shop', 'desk')}/mcp", mode, "A1", "B1", "B2")) == heard


class _Strict:
    """A server of the older revisions that refuses whatever belongs to no session, and notes all it gets."""

    def __init__(self) -> None:
        self.got: list[tuple[str, str | None]] = []
        """Method of the request or of the message, and the session that it belongs to."""
        self.url = ""
        self.sessions = 0
        self.refuses = False
        self.notices: queue.Queue[bytes | None] = queue.Queue()
        """What the listening streams say; ``None`` ends one."""
        self._lock = threading.Lock()

    def take(self, method: str, message: dict[str, Any], session: str | None) -> tuple[int, dict[str, str], Any]:
        """Status, headers and body of the answer."""
        with self._lock:
            self.got.append((message.get("method", method), session))
            if message.get("method") == "initialize":
                if self.refuses:
                    return 401, {}, {"error": "who are you?"}
                self.sessions += 1
                return 200, {"mcp-session-id": f"s{self.sessions}"}, {"protocolVersion": _REVISION, "capabilities": {}}
            if session != f"s{self.sessions}":
                return 404 if session else 400, {}, {"error": "no session"}
            if "id" not in message:
                return 202, {}, None
            return (
                200,
                {"mcp-session-id": session},
                {"content": [{"type": "text", "text": json.dumps(message.get("params"))}]},
            )


@contextmanager
def _strict() -> Iterator[_Strict]:
    strict = _Strict()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            message = json.loads(body) if body else {}
            status, headers, said = strict.take(self.command, message, self.headers["mcp-session-id"])
            if status == 200:
                said = {"jsonrpc": "2.0", "id": message["id"], "result": said}
            data = b"" if said is None else json.dumps(said).encode()
            self.send_response(status)
            for name, value in {**headers, "content-type": "application/json"}.items():
                self.send_header(name, value)
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_DELETE = do_POST

        def do_GET(self) -> None:
            status, _, _ = strict.take("GET", {}, self.headers["mcp-session-id"])
            self.send_response(200 if status == 202 else status)
            self.send_header("content-type", "text/event-stream")
            self.send_header("connection", "close")
            self.end_headers()
            while status == 202 and (said := strict.notices.get(timeout=30)) is not None:
                self.wfile.write(said)
                self.wfile.flush()
            self.close_connection = True

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        strict.url = f"http://127.0.0.1:{server.server_address[1]}"
        yield strict
        strict.notices.put(None)
        server.shutdown()


class _Caller:
    """A client of the older revisions."""

    def __init__(self, served: Served) -> None:
        self.url = f"{served.at('shop', 'desk')}/mcp"
        self.headers = dict(_HEADERS)

    def send(self, method: str, params: Any = None, *, number: int | None = 1) -> httpx.Response:
        message = {"jsonrpc": "2.0", "method": method, **({} if params is None else {"params": params})}
        if number is not None:
            message["id"] = number
        return web.post(self.url, json=message, headers=self.headers)

    def begin(self) -> httpx.Response:
        answer = self.send("initialize", _HELLO)
        assert answer.status_code == 200
        self.headers["mcp-session-id"] = answer.headers["mcp-session-id"]
        assert self.send("notifications/initialized", number=None).status_code == 202
        return answer

    def look(self, order: str) -> httpx.Response:
        return self.send("tools/call", {"name": "look", "arguments": {"order": order}}, number=2)


def _recorded(app: Antiphon, strict: _Strict) -> None:
    with serving(app, mcp=strict.url) as served:
        caller = _Caller(served)
        caller.begin()
        assert caller.look("A1").status_code == 200
    strict.got.clear()


def test_a_session_is_opened_for_the_first_new_request_only(app: Antiphon) -> None:
    with _strict() as strict:
        _recorded(app, strict)
        with serving(app, "record-new", mcp=strict.url) as served:
            caller = _Caller(served)
            caller.begin()
            own = caller.headers["mcp-session-id"]
            assert caller.look("A1").headers.get("mcp-session-id") is None
            assert caller.send("notifications/cancelled", {"requestId": 2}, number=None).status_code == 202
            assert strict.got == []  # all of it was known
            new = caller.look("B1")
            assert (new.status_code, new.headers["mcp-session-id"]) == (200, own)
            assert strict.got == [("initialize", None), ("notifications/initialized", "s2"), ("tools/call", "s2")]
            assert caller.send("prompts/list").status_code == 200
            assert caller.send("notifications/roots/list_changed", number=None).status_code == 202
            assert web.delete(caller.url, headers=caller.headers).status_code == 202
            assert strict.got[3:] == [
                ("prompts/list", "s2"),
                ("notifications/roots/list_changed", "s2"),
                ("DELETE", "s2"),
            ]
            report = web.delete(f"{served.url}/run/shop").json()
    assert (report["answered"], report["recorded"], report["new"]) == (2, 2, ["tool mcp.desk/look", "mcp prompts/list"])


def test_a_listening_stream_begins_before_the_session(app: Antiphon) -> None:
    notice = b'data: {"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}\n\n'
    with _strict() as strict:
        _recorded(app, strict)
        with serving(app, "record-new", mcp=strict.url) as served:
            caller = _Caller(served)
            caller.begin()
            listening = {**caller.headers, "accept": "text/event-stream"}
            with web.stream("GET", caller.url, headers=listening) as stream:
                assert stream.headers["content-type"] == "text/event-stream"
                assert strict.got == []
                caller.look("B1")
                strict.notices.put(notice)
                assert next(stream.iter_raw()) == notice
                strict.notices.put(None)
            caller = _Caller(served)  # its initialize is not in the recording a second time
            live = caller.begin()
            assert (live.headers["antiphon-source"], live.headers["mcp-session-id"]) == ("live", "s3")
            assert strict.got[-1] == ("notifications/initialized", "s3")


def test_a_session_that_ends_unopened_reaches_no_server(app: Antiphon) -> None:
    with _strict() as strict:
        _recorded(app, strict)
        with serving(app, "record-new", mcp="http://127.0.0.1:9") as served:
            caller = _Caller(served)
            caller.begin()
            assert caller.look("A1").status_code == 200
            listening = {**caller.headers, "accept": "text/event-stream"}
            with web.stream("GET", caller.url, headers=listening) as stream:
                assert web.delete(caller.url, headers=caller.headers).status_code == 204
                assert stream.read() == b""
        assert strict.got == []


def test_a_server_that_opens_no_session_is_not_sent_the_call(app: Antiphon) -> None:
    with _strict() as strict:
        _recorded(app, strict)
        strict.refuses = True
        with serving(app, "record-new", mcp=strict.url) as served:
            caller = _Caller(served)
            caller.begin()
            result = caller.look("B1").json()["result"]
            assert result["isError"]
            assert "No session could be opened: the server answered 401 to initialize." in result["content"][0]["text"]
            assert caller.send("prompts/list").status_code == 502
            strict.refuses = False
            assert "isError" not in caller.look("B1").json()["result"]  # known not to have run, so it may run
        assert [method for method, _ in strict.got] == [
            "initialize",
            "initialize",
            "initialize",
            "notifications/initialized",
            "tools/call",
        ]
