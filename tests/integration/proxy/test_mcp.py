"""MCP over HTTP through the proxy: both revisions pass, sessions replay, and a call that is sent again runs once."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from mcp import Client, MCPError

from antiphon import Antiphon
from tests.fake_provider import FakeProvider, Reply
from tests.integration.proxy import web
from tests.integration.proxy.desk import Desk, served_desk
from tests.integration.proxy.harness import Served, serving

_ACCEPT = {"accept": "application/json, text/event-stream", "content-type": "application/json"}
MODES = ("auto", "legacy")
_client = web.Client(verify=False)


@pytest.fixture
def desk() -> Iterator[Desk]:
    with served_desk() as found:
        yield found


def _until(met: Callable[[], Any]) -> None:
    end = time.monotonic() + 30
    while not met():
        assert time.monotonic() < end
        time.sleep(0.01)


async def _session(url: str, mode: Any) -> dict[str, Any]:
    told: list[float] = []

    async def tell(progress: float, total: float | None, message: str | None) -> None:
        told.append(progress)

    async with Client(url, mode=mode) as client:
        tools = sorted(tool.name for tool in (await client.list_tools()).tools)
        charged = await client.call_tool("charge", {"order": "A1"})
        steps = await client.call_tool("steps", {"count": 3}, progress_callback=tell)
        rules = await client.read_resource("desk://rules")
        prompt = await client.get_prompt("greet", {"name": "Ada"})
    texts = [charged.content[0].text, steps.content[0].text, rules.contents[0].text, prompt.messages[0].content.text]  # type: ignore[union-attr]
    return {"tools": tools, "texts": texts, "told": told}


@pytest.mark.parametrize("mode", MODES)
def test_a_session_passes_and_replays_without_the_server(app: Antiphon, desk: Desk, mode: str) -> None:
    direct = asyncio.run(_session(f"{desk.url}/mcp", mode))
    assert direct["told"] == [1, 2, 3]
    desk.charged.clear()
    with serving(app, mcp=desk.url) as served:
        assert asyncio.run(_session(f"{served.at('shop', 'desk')}/mcp", mode)) == direct
    asked, charged = desk.requests, dict(desk.charged)
    with serving(app, "replay", mcp=desk.url) as served:
        again = asyncio.run(_session(f"{served.at('shop', 'desk')}/mcp", mode))
        report = web.get(f"{served.url}/run/shop").json()
    assert again == direct
    assert (desk.requests, dict(desk.charged)) == (asked, charged)
    assert report["missed"] == 0, report


@pytest.mark.parametrize("mode", MODES)
def test_a_client_is_told_what_is_not_in_the_recording(app: Antiphon, desk: Desk, mode: Any) -> None:
    async def ask(url: str, order: str, place: str) -> list[str]:
        told: list[str] = []
        async with Client(url, mode=mode) as client:
            for request in (client.call_tool("charge", {"order": order}), client.read_resource(place)):
                try:
                    await request
                except MCPError as error:
                    told.append(f"{error.error.message} {error.error.data['divergence']['fields'][0]['path']}")
        return told

    with serving(app, mcp=desk.url) as served:
        assert asyncio.run(ask(f"{served.at('shop', 'desk')}/mcp", "A1", "desk://rules")) == []
    with serving(app, "replay", mcp=desk.url) as served:
        told = asyncio.run(ask(f"{served.at('shop', 'desk')}/mcp", "B2", "desk://rulez"))
        run = web.get(f"{served.url}/run/shop").json()["run"]
    lines = [said.splitlines() for said in told]
    assert [said[0].partition(" (")[0] for said in lines] == [
        "antiphon: The recording has no answer for tool mcp.desk/charge",
        "antiphon: The recording has no answer for mcp resources/read",
    ]
    assert [said[1] for said in lines] == ["  $.order: 'A1' -> 'B2'", "  $.uri: 'desk://rules' -> 'desk://rulez'"]
    assert [said[2].rpartition(" --event ")[0] for said in lines] == [f"Nearest: antiphon show {run}"] * 2
    assert [said[2].split()[-1] for said in lines] == ["$.order", "$.uri"]


@pytest.mark.parametrize("accept", [None, "*/*", "application/json"])
def test_a_request_is_recorded_whatever_its_client_accepts(app: Antiphon, accept: str | None) -> None:
    heard: list[Any] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            heard.append(self.headers.get("accept"))
            asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
            answer = {"jsonrpc": "2.0", "id": asked.get("id"), "result": {"tools": []}}
            data = json.dumps(answer).encode() if "id" in asked else b""
            self.send_response(200 if data else 202)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: Any) -> None:
            pass

    def send(served: Served, message: dict[str, Any]) -> httpx.Response:
        headers = {"content-type": "application/json"} | ({} if accept is None else {"accept": accept})
        content = json.dumps({"jsonrpc": "2.0", **message})
        request = httpx.Request("POST", f"{served.at('lists', 'desk')}/mcp", content=content, headers=headers)
        with httpx.HTTPTransport() as transport:  # it adds no headers
            answer = transport.handle_request(request)
            answer.read()
            return answer

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with serving(app, mcp=f"http://127.0.0.1:{server.server_address[1]}") as served:
            listed = send(served, {"id": 1, "method": "tools/list"})
            noted = send(served, {"method": "notifications/initialized"})
            report = web.delete(f"{served.url}/run/lists").json()
        server.shutdown()
    assert heard == [accept, accept]
    assert ("antiphon-recorded" in listed.headers, noted.headers["antiphon-recorded"]) == (False, "no")
    assert (report["requests"], report["recorded"]) == (2, 1)
    with serving(app, "replay", mcp="http://127.0.0.1:9") as served:
        again = send(served, {"id": 2, "method": "tools/list"})
        assert again.json() == {"jsonrpc": "2.0", "id": 2, "result": {"tools": []}}


def _call(served: Served, order: str, tool: str = "charge", **more: Any) -> tuple[str, bytes, dict[str, str]]:
    """A call in the words of the newest revision."""
    meta = {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {},
        **more.pop("meta", {}),
    }
    params = {"name": tool, "arguments": {"order": order}, "_meta": meta, **more.pop("params", {})}
    body = json.dumps({"jsonrpc": "2.0", "id": more.pop("id", 1), "method": "tools/call", "params": params})
    headers = {"mcp-protocol-version": "2026-07-28", "mcp-method": "tools/call", "mcp-name": tool}
    return f"{served.at('once', 'desk')}/mcp", body.encode(), {**_ACCEPT, **headers, **more.pop("headers", {})}


def _post(served: Served, order: str, **more: Any) -> dict[str, Any]:
    url, body, headers = _call(served, order, **more)
    answer = _client.post(url, content=body, headers=headers)
    text = answer.text
    if answer.headers["content-type"].startswith("text/event-stream"):
        text = [line[6:] for line in text.splitlines() if line.startswith("data: {")][-1]
    found: dict[str, Any] = json.loads(text)
    return found


@pytest.mark.parametrize("named", ["header", "meta"])
@pytest.mark.parametrize("mode", ["record", "live"])
def test_with_identity_a_call_runs_once_and_another_identity_runs_again(
    app: Antiphon, desk: Desk, named: str, mode: str
) -> None:
    def name(key: str) -> dict[str, Any]:
        return {"headers": {"idempotency-key": key}} if named == "header" else {"meta": {"dev.antiphon/callId": key}}

    with serving(app, mode, mcp=desk.url) as served:
        first = _post(served, "A1", id=1, **name("k1"))
        again = _post(served, "A1", id="two", **name("k1"))
        assert again["result"]["content"] == first["result"]["content"]
        assert (first["id"], again["id"]) == (1, "two")
        other = _post(served, "A1", id=3, **name("k2"))
        assert other["result"]["content"][0]["text"] == "charged A1, number 2"
    with serving(app, mode, mcp=desk.url) as served:  # the claim is in the store
        assert _post(served, "A1", id=4, **name("k1"))["result"] == first["result"]
        changed = _post(served, "B7", id=5, **name("k1"))
        assert changed["result"]["isError"]
    assert dict(desk.charged) == {"A1": 2}


@pytest.mark.parametrize("kind", ["application/x-www-form-urlencoded", "multipart/form-data; boundary=x"])
def test_a_call_is_guarded_whatever_its_content_type_says(app: Antiphon, desk: Desk, kind: str) -> None:
    with serving(app, mcp=desk.url, tools=("desk/charge:approve",)) as served:
        url, body, headers = _call(served, "A1")
        answer = _client.post(url, content=body, headers={**headers, "content-type": kind})
        assert "approval" in answer.text
    assert not desk.charged


OTHERS: dict[str, tuple[str, dict[str, str]]] = {
    "path": ("/b", {}),
    "query": ("?key=other", {}),
    "token": ("", {"x-token": "other"}),
    "account": ("", {"x-account-id": "other"}),
}


@pytest.mark.parametrize("other", OTHERS)
def test_an_identity_is_good_for_one_place_and_one_account(app: Antiphon, other: str) -> None:
    more, headers = OTHERS[other]
    given: list[str] = []

    def reply(body: dict[str, Any]) -> Reply:
        given.append(str(body["id"]))
        answer = {"jsonrpc": "2.0", "id": body["id"], "result": {"content": [], "number": len(given)}}
        return Reply(raw=json.dumps(answer).encode())

    call = {"jsonrpc": "2.0", "method": "tools/call", "params": {"name": "charge", "arguments": {}}}
    with FakeProvider(reply) as provider, serving(app, mcp=provider.url) as served:
        url, named = f"{served.at('once', 'desk')}/mcp", {**_ACCEPT, "idempotency-key": "k1"}
        asked = [(url, {}), (url + more, headers), (url + more, {**headers, "x-request-id": "r2"}), (url, {})]
        found = [
            _client.post(to, json={**call, "id": number}, headers={**named, **extra}).json()["result"]["number"]
            for number, (to, extra) in enumerate(asked)
        ]
    assert found == [1, 2, 2, 1]


def test_without_identity_equal_calls_run_each(app: Antiphon, desk: Desk) -> None:
    with serving(app, mcp=desk.url) as served:
        texts = [_post(served, "A1")["result"]["content"][0]["text"] for _ in range(25)]
    assert texts == [f"charged A1, number {number}" for number in range(1, 26)]


@pytest.mark.parametrize("reviewed", [True, False], ids=["reviewed", "not reviewed yet"])
def test_record_new_calls_no_tool_that_a_review_calls_a_side_effect(
    app: Antiphon,
    desk: Desk,
    reviewed: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.chdir(tmp_path)
    with serving(app, mcp=desk.url) as served:
        first = _post(served, "A1")
    file = tmp_path / "side_effect" / "side_effects.yaml"
    file.parent.mkdir()
    file.write_text(f"tools:\n  charge: false\n  steps: true\ndone: {str(reviewed).lower()}\n")
    with serving(app, "record-new", mcp=desk.url) as served:
        assert _post(served, "A1")["result"] == first["result"], "what is known is answered"
        new = _post(served, "B7", id=2)
        other = _post(served, "", tool="steps", params={"arguments": {"count": 1}})
        report = web.get(f"{served.url}/run/once").json()
    assert not other["result"].get("isError")
    assert dict(desk.charged) == ({"A1": 1} if reviewed else {"A1": 1, "B7": 1})
    assert ("is not reviewed (done: false)" in caplog.text) is not reviewed
    if not reviewed:
        assert (report["blocked"], report["new"]) == ([], ["tool mcp.desk/charge", "tool mcp.desk/steps"])
        return
    assert new["result"]["isError"]
    assert new["result"]["_meta"]["dev.antiphon/outcome"] == "replay_blocked"
    assert "side_effects.yaml says false" in new["result"]["content"][0]["text"]
    assert (report["blocked"], report["new"]) == (["tool mcp.desk/charge"], ["tool mcp.desk/steps"])
    with serving(app, "replay", mcp=desk.url) as served:
        assert _post(served, "B7", id=2) == new, "it is recorded as the client saw it"


@pytest.mark.parametrize("key", [None, "k1"])
def test_a_client_that_leaves_does_not_end_a_call_and_gets_its_answer_when_it_asks_again(
    app: Antiphon, desk: Desk, key: str | None
) -> None:
    more: dict[str, Any] = {"tool": "slow", "headers": {} if key is None else {"idempotency-key": key}}
    with serving(app, mcp=desk.url) as served:
        _leave_waiting(served, desk, more)
        assert dict(desk.charged) == {"A1": 1}
        desk.hold.set()
        again = _post(served, "A1", id=2, **more)
        assert (again["id"], again["result"]["content"][0]["text"]) == (2, "slowly charged A1")
        assert dict(desk.charged) == {"A1": 1}
        _post(served, "A1", id=3, **more)
        assert dict(desk.charged) == {"A1": 2 if key is None else 1}  # one credit for one lost answer


def _leave_waiting(served: Served, desk: Desk, more: dict[str, Any], *, credit: bool = True) -> None:
    url, body, headers = _call(served, "A1", **more)
    parts = urlsplit(url)
    before = desk.charged["A1"]
    with socket.create_connection((str(parts.hostname), int(parts.port or 0))) as connection:
        lines = [f"POST {parts.path} HTTP/1.1", f"host: {parts.netloc}", f"content-length: {len(body)}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        connection.sendall("\r\n".join(lines).encode() + b"\r\n\r\n" + body)
        _until(lambda: desk.charged["A1"] > before)
    if credit and "idempotency-key" not in headers:
        _until(lambda: served.proxy._mcp._kept[(120.0, False)]._credits)  # the proxy has noticed


@contextlib.contextmanager
def _answering(said: bytes) -> Iterator[tuple[str, list[bytes]]]:
    """A server that answers each connection with *said*: its address, and what it was asked."""
    asked: list[bytes] = []
    listening = socket.create_server(("127.0.0.1", 0))

    def answer() -> None:
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            with connection:
                asked.append(connection.recv(65536))
                connection.sendall(said)

    threading.Thread(target=answer, daemon=True).start()
    with listening:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}", asked


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{",
        b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n5\r\n{",
        b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n{",
        b"no status\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: x\r\n\r\n",
    ],
)
def test_a_server_that_breaks_off_leaves_an_unknown_outcome_and_is_not_asked_again(app: Antiphon, said: bytes) -> None:
    with _answering(said) as (url, asked), serving(app, mcp=url) as served:
        key = {"headers": {"idempotency-key": "k1"}}
        first = _post(served, "A1", **key)
        again = _post(served, "A1", **key)
    assert first["result"]["isError"]
    assert again["result"]["_meta"]["dev.antiphon/outcome"] == "outcome_unknown"
    assert len(asked) == 1  # never sent again


@pytest.mark.parametrize(
    ("place", "code", "times"), [("1", -32010, 1), ("1", -32602, 1), ("1", -32021, 2), ("null", -32010, 2)]
)
def test_an_error_of_the_tool_is_its_answer_whatever_the_status(
    app: Antiphon, place: str, code: int, times: int
) -> None:
    """One that answers no request, or says that nothing was executed, lets the call run again."""
    error = b'{"jsonrpc": "2.0", "id": %s, "error": {"code": %d, "message": "no"}}' % (place.encode(), code)
    head = b"HTTP/1.1 422 No\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: %d\r\n\r\n"
    with _answering(head % len(error) + error) as (url, asked), serving(app, mcp=url) as served:
        key = {"headers": {"idempotency-key": "k1"}}
        first, again = _post(served, "A1", **key), _post(served, "A1", **key)
    assert first["error"]["code"] == again["error"]["code"] == code
    assert len(asked) == times


_UNUSUAL = {
    "half": rb'{"content": [{"type": "text", "text": "half \ud83d"}]}',
    "deep": b'{"content": [], "structuredContent": {"a": %b}}' % (b"[" * 2000 + b"]" * 2000),
    "text": b'{"$text": "{}"}',
    "lines": b'{"content":\n[],\r\n"half": "\\udc00"}',
}
"""Results that cannot be kept as JSON, or look like one that could not."""


@pytest.mark.parametrize("field", [b"result", b"error"])
@pytest.mark.parametrize("kind", [b"application/json", b"text/event-stream"])
@pytest.mark.parametrize("case", _UNUSUAL)
def test_an_unusual_answer_is_passed_on_given_again_and_replayed(
    app: Antiphon, case: str, kind: bytes, field: bytes
) -> None:
    result = _UNUSUAL[case]
    answer = b'{"jsonrpc": "2.0", "id": 1, "%b": %b}' % (field, result)
    if kind != b"application/json":
        lines = (b"data: " + line for line in answer.splitlines())
        answer = b"\n".join(lines) + b"\n\n"
    answer = b"\xef\xbb\xbf" + answer
    head = b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-type: %b\r\ncontent-length: %d\r\n\r\n"

    def ask(served: Served, method: str, number: int) -> bytes:
        params = {"name": case, "_meta": {"dev.antiphon/callId": "k1"}}
        message = {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
        return web.post(f"{served.at('odd', 'desk')}/mcp", json=message, headers=_ACCEPT).content

    def holds(said: bytes, number: int) -> bool:
        members = (b'{"jsonrpc":"2.0"', b'"%b":%b' % (field, result), b'"id":%d' % number)
        return all(member.translate(None, b" \r\n") in said.replace(b" ", b"") for member in members)

    with _answering(head % (kind, len(answer)) + answer) as (url, asked), serving(app, mcp=url) as served:
        assert ask(served, "tools/call", 1) == answer
        assert holds(ask(served, "tools/call", 2), 2)
        assert len(asked) == 1
        assert ask(served, "prompts/get", 1) == answer
    with serving(app, "replay", mcp="http://127.0.0.1:9") as served:
        assert holds(ask(served, "tools/call", 3), 3)
        assert holds(ask(served, "prompts/get", 4), 4)


def test_headers_that_contradict_the_body_are_refused_unexecuted(app: Antiphon, desk: Desk) -> None:
    with serving(app, mcp=desk.url) as served:
        for wrong in ({"mcp-method": "tools/list"}, {"mcp-name": "slow"}, {"mcp-name": "=?base64?!!?="}):
            refused = _post(served, "A1", headers=wrong)
            assert refused["error"]["code"] == -32020
        named = _post(served, "A1", headers={"mcp-name": "=?base64?Y2hhcmdl?="})
        assert named["result"]["content"][0]["text"] == "charged A1, number 1"
    assert dict(desk.charged) == {"A1": 1}


def test_a_stream_that_the_server_ends_early_goes_on_where_it_ended(
    app: Antiphon, caplog: pytest.LogCaptureFixture
) -> None:
    asked: list[bytes] = []
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"
    result = b'{"jsonrpc": "2.0", "id": 1, "result": {"content": [{"type": "text", "text": "late"}]}}'
    answers = [head + b"id: e7\nretry: 1\ndata:\n\n", head + b"id: e8\ndata: " + result + b"\n\n"]
    hangs_up = threading.Event()
    listening = socket.create_server(("127.0.0.1", 0))

    def answer() -> None:
        for said in answers:
            connection, _ = listening.accept()
            with connection:
                request = b""
                while not request.endswith(b"\r\n\r\n" if request[:1] == b"G" else b"}"):
                    request += connection.recv(65536)
                asked.append(request)
                connection.sendall(said)
                if said is answers[-1]:
                    assert connection.recv(1) == b""
                    hangs_up.set()

    threading.Thread(target=answer, daemon=True).start()
    with serving(app, mcp=f"http://127.0.0.1:{listening.getsockname()[1]}") as served:
        found = _post(served, "A1", headers={"authorization": "Bearer x", "mcp-session-id": "s1"})
        assert hangs_up.wait(60)
    listening.close()
    gc.collect()
    assert "Unclosed" not in caplog.text
    assert found["result"]["content"][0]["text"] == "late"
    assert asked[1].startswith(b"GET /mcp ")
    assert b"last-event-id: e7" in asked[1].lower()
    assert b"authorization: Bearer x" in asked[1]
    assert b"mcp-session-id: s1" in asked[1]
