"""Fuzzing of the proxy and of ``mcp wrap``: bytes that nobody should send, from clients and from servers.

    make fuzz                                     among the other targets
    python -m tests.fuzz --only proxy-client,proxy-upstream,wrap --seconds 600

Whatever comes, the proxy answers or closes the connection, goes on, sends nothing but to its upstreams and below their
path, and keeps no secret: each example carries one, and the store, its artifacts and the log are searched for all of
them. ``tests/integration/proxy/test_fuzz.py`` runs a few examples of each target in the suite.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import gzip
import hashlib
import io
import json
import logging
import os
import socket
import struct
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import h11
from hypothesis import strategies as st

from antiphon import Antiphon
from antiphon._recording.artifact import read_artifact
from antiphon.ops.artifacts import export_run
from antiphon.proxy.stdio import StdioProxy
from tests.fuzz import REQUESTS, STREAMS, Target, changed, damaged, values
from tests.integration.proxy.harness import Served, serving

LIMIT_S = 60.0
"""What takes longer hangs."""
MODES = ("record", "live", "replay")
_CUT_OFF = "ASGI callable returned without completing response"
"""What uvicorn says of an answer that broke off, as that of the upstream did."""
SECRET, TRAP = b"{SECRET}", b"{TRAP}"
"""Where an example has its secret, and the port of a server that nobody may reach."""


class Found(AssertionError):
    """Something that must not be."""


# -- what comes in -----------------------------------------------------------------------------------------------------

_CALL = {"name": "charge", "arguments": {"order": "A1", "api_key": SECRET.decode()}}
_META = {"dev.antiphon/callId": "k1", "progressToken": 7}
MESSAGES: list[dict[str, Any]] = [
    {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": _CALL},
    {"jsonrpc": "2.0", "id": "a", "method": "tools/call", "params": {**_CALL, "_meta": _META}},
    {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {**_CALL, "requestState": "s", "inputResponses": {}}},
    {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "tools/call",
        "params": {**_CALL, "_meta": {"dev.antiphon/callId": SECRET.decode()}},
    },
    {"jsonrpc": "2.0", "id": 2, "method": "tools/list", "params": {"_meta": _META}},
    {"jsonrpc": "2.0", "id": 3, "method": "initialize", "params": {"protocolVersion": "2025-11-25"}},
    {"jsonrpc": "2.0", "id": 4, "method": "subscriptions/listen", "params": {}},
    {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}},
    {"jsonrpc": "2.0", "id": 5, "result": {"token": SECRET.decode()}},
]
ANSWERS: list[dict[str, Any]] = [
    {"jsonrpc": "2.0", "id": 1, "result": {"content": [{"type": "text", "text": SECRET.decode()}], "isError": False}},
    {"jsonrpc": "2.0", "id": 1, "error": {"code": -32603, "message": f"Bearer {SECRET.decode()}"}},
    {"jsonrpc": "2.0", "id": 1, "error": {"code": -32020, "message": "no"}},
    {"jsonrpc": "2.0", "id": 1, "result": {"resultType": "input_required", "requestState": "x"}},
    {"jsonrpc": "2.0", "method": "notifications/progress", "params": {"progressToken": 7, "progress": 1}},
    {"jsonrpc": "2.0", "method": "notifications/message", "params": {"data": {"password": SECRET.decode()}}},
    {"jsonrpc": "2.0", "id": 1, "method": "sampling/createMessage", "params": {}},
    {"jsonrpc": "2.0", "id": 1, "result": {"$jsonrpcError": None}},
]
_ODD = [
    b"",
    b"{",
    b"null",
    b"[]",
    b'[{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "charge"}}]',
    b'{"jsonrpc": "2.0", "id": {"a": []}, "method": "tools/call", "params": {"name": "charge"}}',
    b'{"jsonrpc": "2.0", "id": [1], "method": "tools/list"}',
    b'{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "\\ud800", "arguments": {}}}',
    b'{"jsonrpc": "2.0", "id": 1e400, "method": "tools/call", "params": {"name": "a", "arguments": {"x": NaN}}}',
    b'{"jsonrpc": "2.0", "id": 1, "id": 2, "method": "tools/call", "params": {"name": "a", "name": "b"}}',
    b'\xef\xbb\xbf{"jsonrpc": "2.0", "id": 1, "method": "tools/list"}',
    b'{"model": "m", "messages": "' + SECRET + b' \xff\xfe"}',
    b'{"model": 1e999, "messages": [{"role": "user", "content": 123456789012345678901234567890}]}',
    b"[" * 3000,
    b'{"a":' * 3000,
    b"\x00\xff" * 200,
    b"x" * 70_000,
]


def _dumped(document: Any) -> bytes:
    return json.dumps(document).encode("utf-8", "replace")


def _with_secret(body: Any) -> Any:
    return (
        {**body, "user": SECRET.decode(), "metadata": {"api_key": SECRET.decode()}} if isinstance(body, dict) else body
    )


_MODELS = [_with_secret(vector["body"]) for vector in REQUESTS]
_documents = changed(st.sampled_from(MESSAGES) | st.sampled_from(_MODELS)).map(_dumped)
_bodies = _documents | st.sampled_from(_ODD) | damaged([_dumped(message) for message in MESSAGES])
_chat = b"/openai/v1/chat/completions"
_targets = st.sampled_from(
    [
        b"/run/r" + _chat,
        b"/run/known" + _chat,
        b"/openai/v1/responses?api_key=" + SECRET,
        b"/run/r/anthropic/v1/messages",
        b"/gemini/v1beta/models/m:generateContent?key=" + SECRET,
        b"/gemini/v1beta/models/m:streamGenerateContent?alt=sse&key=" + SECRET,
        b"/run/r/desk/mcp",
        b"/run/r/desk/mcp",
        b"/run/known/desk/mcp",
        b"/desk/mcp?token=" + SECRET,
        b"/run/r/desk/other",
        b"/openai/v1/models",
        b"/run/r",
        b"/run/known",
        b"/healthz",
        b"*",
        b"/",
        b"http://127.0.0.1:" + TRAP + b"/v1/chat/completions",
        b"http://127.0.0.1:" + TRAP + b"/run/r" + _chat,
        b"127.0.0.1:" + TRAP,
        b"//127.0.0.1:" + TRAP + _chat,
        b"/openai@127.0.0.1:" + TRAP + b"/v1/chat/completions",
        b"/openai/@127.0.0.1:" + TRAP + b"/x",
        b"/openai//127.0.0.1:" + TRAP + b"/x",
        b"/openai:" + TRAP + b"/x",
        b"/openai?@127.0.0.1:" + TRAP + b"/",
        b"/openai#@127.0.0.1:" + TRAP + b"/",
        b"/desk\\127.0.0.1:" + TRAP + b"/",
        b"/openai/../secret",
        b"/openai/v1/%2e%2E/%2e%2e/secret",
        b"/openai/v1/..%2fsecret",
        b"/openai/v1/%252e%252e/secret",
        b"/openai/v1/..;/secret",
        b"/run/../../openai/v1/messages",
        b"/run/%00/desk/mcp",
        b"/openai/\xff\xfe%ff%",
        b"/openai/" + b"a" * 70_000,
    ]
)
_header = st.sampled_from(
    [
        b"host: 127.0.0.1",
        b"host: 127.0.0.1:" + TRAP,
        b"host: evil.example",
        b"host: [::1",
        b"x-forwarded-host: 127.0.0.1:" + TRAP,
        b"forwarded: host=127.0.0.1:" + TRAP,
        b"content-type: application/json",
        b"content-type: text/plain; charset=utf-16",
        b"accept: application/json, text/event-stream",
        b"authorization: Bearer " + SECRET,
        b"x-api-key: " + SECRET,
        b"x-goog-api-key: " + SECRET,
        b"cookie: session=" + SECRET,
        b"proxy-authorization: Basic " + SECRET,
        b"x-auth-token: " + SECRET,
        b"antiphon-key: " + SECRET,
        b"antiphon-run: r",
        b"antiphon-run: \xff",
        b"antiphon-deadline: 5",
        b"antiphon-deadline: \xb2",
        b"antiphon-deadline: 1e9",
        b"idempotency-key: " + SECRET,
        b"idempotency-key: ",
        b"mcp-session-id: " + SECRET,
        b"mcp-protocol-version: 2026-07-28",
        b"mcp-method: tools/call",
        b"mcp-name: =?base64?Y2hhcmdl?=",
        b"mcp-name: =?base64?!!?=",
        b"last-event-id: \xb2",
        b"origin: https://evil.example",
        b"origin: null",
        b"sec-fetch-site: cross-site",
        b"connection: upgrade, content-type",
        b"upgrade: websocket",
        b"expect: 100-continue",
        b"content-encoding: gzip",
        b"transfer-encoding: chunked",
        b"transfer-encoding: chunked, chunked",
        b"transfer-encoding : chunked",
        b"content-length: 5",
        b"content-length: -1",
        b"content-length: \xb2",
        b"content-length: 99999999999999999999",
        b" folded: x",
        b"no colon",
        b"x: " + b"a" * 70_000,
        b"\r\n".join(b"x-%d: y" % number for number in range(400)),
    ]
)
_methods = st.sampled_from(
    [b"POST"] * 8 + [b"GET", b"DELETE", b"HEAD", b"CONNECT", b"OPTIONS", b"P\xd6ST", b"PRI", b""]
)
_ends = st.sampled_from(["wait", "wait", "wait", "close", "reset", "half"])


class Sent(NamedTuple):
    """What a client sends, and what it does then."""

    mode: str
    pieces: tuple[bytes, ...]
    end: str


def _chunked(data: bytes, size: int) -> bytes:
    parts = [data[start : start + size] for start in range(0, len(data), size)]
    return b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"


def _request(draw: st.DrawFn) -> bytes:
    body = draw(_bodies)
    lines = [b"%s %s HTTP/1.1" % (draw(_methods), draw(_targets))]
    lines += draw(st.lists(_header, max_size=4))
    if draw(st.integers(0, 9)):
        lines.append(b"host: 127.0.0.1")
    framing = draw(st.sampled_from(["length", "length", "length", "chunked", "short", "long", "none"]))
    if framing == "chunked":
        lines.append(b"transfer-encoding: chunked")
        body = _chunked(body, draw(st.integers(1, 60)))
    elif framing != "none":
        lines.append(b"content-length: %d" % (len(body) + {"length": 0, "short": -1, "long": 3}[framing]))
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


@st.composite
def clients(draw: st.DrawFn) -> Sent:
    """One connection with up to three requests, whole, damaged or cut, in pieces."""
    data = b"".join(_request(draw) for _ in range(draw(st.sampled_from([1, 1, 1, 2, 3]))))
    harm = draw(st.sampled_from(["none", "none", "damage", "cut"]))
    if harm == "damage":
        data = draw(damaged([data]))
    elif harm == "cut":
        data = data[: draw(st.integers(0, len(data)))]
    cuts = sorted({min(cut, len(data)) for cut in draw(st.lists(st.integers(0, 2000), max_size=3))})
    places = [0, *cuts, len(data)]
    pieces = tuple(data[start:end] for start, end in pairwise(places))
    return Sent(draw(st.sampled_from(MODES)), pieces, draw(_ends))


_sse = [
    b"".join(b"event: x\ndata: " + json.dumps(event).encode() + b"\n\n" for event in vector["events"])
    for vector in STREAMS
]
_answered = [b"event: message\r\ndata: " + _dumped(answer) + b"\r\n\r\n" for answer in ANSWERS]
_hostile_events = [
    b"id: 7\nretry: 1\n\n",
    b"id: \x00\xff\r\rdata\n\n",
    b"retry: " + b"9" * 5000 + b"\ndata: {}\n\n",
    b"id: " + b"\xf0" * 300 + b"\nretry: 0\n\n",
    b"data: " + b"x" * 100_000,
    b"data: {\n\r\ndata: }\r\n\n",
    b"\xef\xbb\xbfdata: " + _dumped(ANSWERS[0]) + b"\n\r\n",
    b":" * 500 + b"\n\n",
    b"data: " + b"[" * 3000 + b"\n\n",
    b"\n" * 300,
    b"data: \xff\xfe" + SECRET + b"\n\n",
]
_events = st.lists(
    st.sampled_from(_answered + _hostile_events) | damaged(_answered) | st.sampled_from(_sse), max_size=5
).map(b"".join)
_wholes = changed(st.sampled_from(ANSWERS)).map(_dumped) | st.sampled_from(_ODD)
_status = st.sampled_from(
    [b"200 OK"] * 9
    + [b"101 Switching", b"100 Go", b"204 None", b"304 Same", b"302 Found", b"401 No", b"404 Gone", b"429 Slow"]
    + [b"500 Oh", b"503 Later", b"599 \xff", b"999 What", b"099 What", b"2000 What", b"abc"]
)
_given_headers = st.sampled_from(
    [
        b"location: http://127.0.0.1:" + TRAP + b"/",
        b"set-cookie: session=" + SECRET,
        b"x-api-key: " + SECRET,
        b"retry-after: 0",
        b"retry-after: " + b"9" * 5000,
        b"retry-after: \xb2",
        b"content-encoding: gzip",
        b"content-encoding: br, nothing",
        b"content-length: 5",
        b"content-length: 99999999999999999999",
        b"transfer-encoding: chunked",
        b"transfer-encoding: gzip",
        b"connection: close",
        b"mcp-session-id: \xff",
        b"content-type: \xff",
        b"x: " + b"a" * 120_000,
        b" folded",
        b"no colon",
        b"antiphon-source: recording",
    ]
)


class Given(NamedTuple):
    """What a client asks, and what the upstream says, connection by connection."""

    mode: str
    target: bytes
    body: bytes
    key: bytes
    replies: tuple[tuple[bytes, str], ...]


@st.composite
def _reply(draw: st.DrawFn) -> tuple[bytes, str]:
    streams = draw(st.booleans())
    body = draw(_events if streams else _wholes)
    lines = [b"HTTP/1.1 " + draw(_status)]
    lines.append(b"content-type: " + (b"text/event-stream" if streams else b"application/json"))
    lines += draw(st.lists(_given_headers, max_size=2))
    if b"content-encoding: gzip" in lines and draw(st.booleans()):
        body = gzip.compress(body)
    framing = draw(st.sampled_from(["chunked", "chunked", "length", "length", "close", "long", "none"]))
    if framing == "chunked":
        lines.append(b"transfer-encoding: chunked")
        body = _chunked(body, max(draw(st.integers(1, 2000)), len(body) // 2000))  # each chunk costs time
    elif framing in ("length", "long"):
        lines.append(b"content-length: %d" % (len(body) + 3 * (framing == "long")))
    elif framing == "close":
        lines.append(b"connection: close")
    data = b"\r\n".join(lines) + b"\r\n\r\n" + body
    harm = draw(st.sampled_from(["none", "none", "none", "damage", "cut", "garbage"]))
    if harm == "damage":
        data = draw(damaged([data]))
    elif harm == "cut":
        data = data[: draw(st.integers(0, len(data)))]
    elif harm == "garbage":
        data = draw(st.binary(max_size=60))
    return data, draw(st.sampled_from(["close", "close", "close", "keep", "reset"]))


@st.composite
def upstreams(draw: st.DrawFn) -> Given:
    """A request that is well-formed, and a server that is not."""
    target, body = draw(
        st.sampled_from(
            [(b"/desk/mcp", _dumped(message)) for message in MESSAGES[:6]]
            + [(_chat, _dumped({**_MODELS[0], "stream": stream})) for stream in (True, False)]
            + [(b"/anthropic/v1/messages", _dumped({"model": "m", "messages": [], "stream": True}))]
            + [(b"/gemini/v1beta/models/m:generateContent?key=" + SECRET, b'{"contents": []}')]
        )
    )
    key = draw(st.sampled_from([b"", b"", b"k1"]))
    replies = tuple(draw(st.lists(_reply(), min_size=1, max_size=3)))
    return Given(draw(st.sampled_from(MODES[:2])), target, body, key, replies)


class Piped(NamedTuple):
    """Lines of a client and bytes of a server on stdio."""

    mode: str
    lines: tuple[bytes, ...]
    said: bytes
    after: int
    """Lines that the server reads before it says anything."""
    code: int


@st.composite
def pipes(draw: st.DrawFn) -> Piped:
    """A client and a server that say anything."""
    line = _documents | st.sampled_from(_ODD[:-1]) | damaged([_dumped(message) for message in MESSAGES])
    lines = tuple(one.replace(b"\n", b" ") + b"\n" for one in draw(st.lists(line, max_size=5)))
    answer = changed(st.sampled_from(ANSWERS)).map(_dumped) | damaged([_dumped(one) for one in ANSWERS])
    said = b"\n".join(draw(st.lists(answer | values.map(_dumped) | st.sampled_from(_ODD[:-1]), max_size=5)))
    mode = draw(st.sampled_from(["record", "record", "live", "replay"]))
    return Piped(
        mode, lines, said + draw(st.sampled_from([b"\n", b""])), draw(st.integers(0, 5)), draw(st.integers(0, 3))
    )


# -- where it comes in -------------------------------------------------------------------------------------------------


class Trap:
    """A server that nobody may reach."""

    def __init__(self) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        self.reached = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listening.accept()
                self.reached += 1
                connection.close()

    def close(self) -> None:
        self._listening.close()


class Behind:
    """The only server that the proxy may reach, below ``/base``. It says what it is told, or something sensible."""

    def __init__(self) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}/base"
        self.replies: list[tuple[bytes, str]] | None = None
        self.wrong: list[str] = []
        self._loop = asyncio.new_event_loop()
        self._stopped = asyncio.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        async def serve() -> None:
            async with await asyncio.start_server(self._serve, sock=self._listening):
                await self._stopped.wait()

        self._loop.run_until_complete(serve())

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._stopped.set)
        self._thread.join(LIMIT_S)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = h11.Connection(h11.SERVER, max_incomplete_event_size=1_000_000)
        try:
            while True:
                asked, body = await self._read(connection, reader)
                if asked is None:
                    return
                if self.replies is not None:
                    data, end = self.replies.pop(0) if self.replies else (b"", "close")
                    writer.write(data)
                    await writer.drain()
                    if end == "reset":
                        writer.transport.abort()
                    elif end == "keep":
                        await reader.read()  # until the proxy has enough
                    return
                for event in self._sensible(asked, body):
                    writer.write(connection.send(event) or b"")
                await writer.drain()
                if connection.our_state is h11.MUST_CLOSE:
                    return
                connection.start_next_cycle()
        except h11.RemoteProtocolError as error:
            if connection.their_state is not h11.ERROR or "closed" not in str(error):
                self.wrong.append(f"the proxy sent what is no request: {error}")
        except (OSError, asyncio.CancelledError, h11.LocalProtocolError):  # the proxy is gone, or still speaks
            return
        finally:
            writer.close()

    async def _read(self, connection: Any, reader: asyncio.StreamReader) -> tuple[Any, bytes]:
        asked, body = None, b""
        while True:
            event = connection.next_event()
            if event is h11.NEED_DATA:
                data = await reader.read(65536)
                if not data:
                    return None, b""
                connection.receive_data(data)
            elif isinstance(event, h11.Request):
                asked = event
                self._check(event)
            elif isinstance(event, h11.Data):
                body += event.data
            elif isinstance(event, h11.EndOfMessage):
                return asked, body
            else:
                return None, b""

    def _check(self, asked: Any) -> None:
        path = asked.target.partition(b"?")[0]
        if path != b"/base" and not path.startswith(b"/base/"):
            self.wrong.append(f"a request above the upstream's path: {asked.target!r}")
        ours = [name for name, _ in asked.headers if name.startswith(b"antiphon-") or name == b"proxy-authorization"]
        if ours:
            self.wrong.append(f"headers that stay behind were passed on: {ours}")

    @staticmethod
    def _sensible(asked: Any, body: bytes) -> Iterator[Any]:
        try:
            message = json.loads(body)
        except (ValueError, RecursionError):
            message = None
        place = message.get("id") if isinstance(message, dict) else None
        answer: dict[str, Any] = {"jsonrpc": "2.0", "id": place, "result": {"content": []}}
        if not asked.target.startswith(b"/base/mcp"):
            answer = {"id": "1", "choices": [{"index": 0, "message": {"role": "assistant", "content": "hi"}}]}
        data = _dumped(answer)
        yield h11.Response(
            status_code=200, headers=[("content-type", "application/json"), ("content-length", str(len(data)))]
        )
        if asked.method != b"HEAD":
            yield h11.Data(data=data)
        yield h11.EndOfMessage()


class World(logging.Handler):
    """A proxy per mode over one store, the server behind them, and what was found."""

    def __init__(self, folder: Path) -> None:
        super().__init__(logging.ERROR)
        self.folder = folder
        self.app = Antiphon(store=f"sqlite:///{folder}/fuzz.db")
        self.behind, self.trap = Behind(), Trap()
        self.errors: list[str] = []
        self.secrets: list[str] = []
        self.lines = io.StringIO()
        self.served: dict[str, Served] = {}

    def emit(self, record: logging.LogRecord) -> None:
        text = self.format(record)
        self.lines.write(text + "\n")
        if _CUT_OFF not in text:
            self.errors.append(text)

    def secret(self) -> bytes:
        """A secret that nobody has used before, in a form that a key has."""
        seed = hashlib.sha512(f"{os.getpid()} {len(self.secrets)} {time.time_ns()}".encode()).digest()
        text = base64.b64encode(seed).decode().replace("+", "a").replace("/", "B").replace("=", "7")
        self.secrets.append(f"sk-proj-{text[:48]}")
        return self.secrets[-1].encode()

    def check(self) -> None:
        """Whether something was found so far."""
        wrong = [*self.errors, *self.behind.wrong]
        if self.trap.reached:
            wrong.append("the proxy connected to a server that is none of its upstreams")
        self.trap.reached = 0
        self.errors.clear()
        self.behind.wrong.clear()
        if wrong:
            raise Found(wrong[0][-3000:])

    def wait(self, met: Callable[[], Any], what: str) -> None:
        end = time.monotonic() + LIMIT_S
        while not met():
            if time.monotonic() > end:
                raise Found(f"{what} after {LIMIT_S:g} s")
            time.sleep(0.002)

    def is_idle(self, served: Served) -> bool:
        return not served.server.server_state.tasks and not served.proxy._mcp._running

    def settled(self) -> None:
        """Nothing runs any more."""
        for served in self.served.values():
            self.wait(partial(self.is_idle, served), "something runs")

    def search(self) -> None:
        """No secret is in a file, in an event, in an artifact or in the log."""
        texts: list[tuple[str, bytes]] = [("the log", self.lines.getvalue().encode())]
        for number, manifest in enumerate(self.app.journal.runs(tenant=self.app.tenant)):
            events = list(self.app.journal.events(manifest.id))
            told = "\n".join(json.dumps(event.to_wire()) for event in events)
            texts.append((f"run {manifest.id}", told.encode()))
            if number < 5:
                path = self.folder / f"{number}.antiphon"
                export_run(self.app, manifest, path)
                read = [json.dumps(event.to_wire()) for event in read_artifact(path).events()]
                texts.append((path.name, "\n".join(read).encode()))
        texts += [(str(path), path.read_bytes()) for path in self.folder.rglob("*") if path.is_file()]
        known = {form: secret for secret in self.secrets for form in _forms(secret)}
        for name, data in texts:
            if b"sk-proj-" in data or any(form in data for form in known if not form.startswith(b"sk-")):
                for form in known:
                    if form in data:
                        at = data.index(form)
                        raise Found(f"a secret is in {name}: {data[max(0, at - 200) : at + 80]!r}")


def _forms(secret: str) -> Iterator[bytes]:
    yield secret.encode()
    for shift in range(3):  # wherever base64 begins
        yield base64.b64encode(b"x" * shift + secret.encode())[4:-4]


_here: World | None = None


def _world() -> World:
    assert _here is not None
    return _here


@contextlib.contextmanager
def world(*modes: str, timeout_s: float = 5.0) -> Iterator[World]:
    """Everything that an example needs; at its end the store is searched for secrets."""
    global _here
    with tempfile.TemporaryDirectory(prefix="antiphon-fuzz-") as name:
        made = World(Path(name))
        loggers = [logging.getLogger(one) for one in ("antiphon", "uvicorn", "uvicorn.error", "asyncio")]
        propagated = [logger.propagate for logger in loggers]
        for logger in loggers:
            logger.addHandler(made)
            logger.propagate = False
        _here = made
        try:
            with contextlib.ExitStack() as proxies:
                for mode in modes:
                    if mode == "replay":
                        _record_known(made.served["record"])
                    url = made.behind.url
                    one = serving(made.app, mode, models=url, mcp=url, timeout_s=timeout_s, body_s=0.3)
                    made.served[mode] = proxies.enter_context(one)
                yield made
                made.settled()
            made.check()
            made.search()
        finally:
            _here = None
            for logger, value in zip(loggers, propagated, strict=True):
                logger.removeHandler(made)
                logger.propagate = value
            made.behind.close()
            made.trap.close()


def _record_known(served: Served) -> None:
    for target, body in ((b"/desk/mcp", MESSAGES[0]), (b"/desk/mcp", MESSAGES[4]), (_chat, _MODELS[0])):
        _talk(served, [_post(b"/run/known" + target, _dumped(body))], "all")
    _talk(served, [b"DELETE /run/known HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"], "all")


def _post(target: bytes, body: bytes, *more: bytes) -> bytes:
    lines = [b"POST %s HTTP/1.1" % target, b"host: 127.0.0.1", b"content-type: application/json", *more]
    accepted = b"accept: application/json, text/event-stream"
    lines += [accepted, b"connection: close", b"content-length: %d" % len(body)]
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


def _talk(served: Served, pieces: list[bytes], end: str) -> bytes:
    """Send this; what is answered until the connection ends, or, except for *all*, the proxy has nothing to say."""
    port = int(served.url.rpartition(":")[2])
    until = time.monotonic() + LIMIT_S
    answer = b""
    with contextlib.suppress(ConnectionError), socket.create_connection(("127.0.0.1", port)) as connection:
        connection.settimeout(LIMIT_S)
        for piece in pieces:
            connection.sendall(piece)
        if end == "half":
            with contextlib.suppress(OSError):  # the proxy may have closed it
                connection.shutdown(socket.SHUT_WR)
        if end == "reset":
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        if end not in ("wait", "half", "all"):
            return answer
        connection.settimeout(0.01)
        while True:
            try:
                data = connection.recv(65536)
            except TimeoutError:
                if time.monotonic() > until:
                    raise Found(f"no answer after {LIMIT_S:g} s") from None
                if end != "all" and not served.server.server_state.tasks:
                    return answer
                continue
            if not data:
                return answer
            answer += data
    return answer


def _checked(served: Served, answer: bytes) -> None:
    _world().check()
    if b"internal_error" in answer or b"\r\n\r\nInternal Server Error" in answer:
        raise Found(f"the proxy failed: {answer[:500]!r}")
    well = _talk(served, [b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"], "all")
    if b'"status":"ok"' not in well:
        raise Found(f"the proxy is not well: {well[:300]!r}")
    _world().check()


def _filled(data: bytes, secret: bytes) -> bytes:
    return data.replace(SECRET, secret).replace(TRAP, str(_world().trap.port).encode())


def client(sent: Sent) -> None:
    """Anything that a client sends is answered or ends the connection, and the next client is served."""
    here = _world()
    secret = here.secret()
    served = here.served[sent.mode]
    _checked(served, _talk(served, [_filled(piece, secret) for piece in sent.pieces], sent.end))


def upstream(given: Given) -> None:
    """Anything that an upstream says is passed on or told as its failure."""
    here = _world()
    secret = here.secret()
    served = here.served[given.mode]
    here.behind.replies = [(_filled(data, secret), end) for data, end in given.replies]
    more = [b"idempotency-key: " + given.key + secret] if given.key else []
    body = _filled(given.body, secret)
    _checked(served, _talk(served, [_post(b"/run/r" + _filled(given.target, secret), body, *more)], "all"))
    here.wait(partial(here.is_idle, served), "something runs")


def wrap(given: Piped) -> None:
    """A client and a server on stdio may say anything: the session ends, and nothing is left running."""
    here = _world()
    secret = here.secret()
    script = here.folder / "said"
    script.write_bytes(_filled(given.said, secret))
    command = f"head -n {given.after} >/dev/null; cat {script}; cat >/dev/null; exit {given.code}"
    written: list[bytes] = []

    async def session() -> StdioProxy:
        lines: asyncio.Queue[bytes | None] = asyncio.Queue()
        for line in given.lines:
            lines.put_nowait(_filled(line, secret))
        lines.put_nowait(None)
        wrapped = StdioProxy(here.app, "desk", mode=given.mode, run="known", timeout_s=5.0, write=written.append)  # type: ignore[arg-type]
        async with asyncio.timeout(LIMIT_S):
            await wrapped.serve(["/bin/sh", "-c", command], lines)
        return wrapped

    wrapped = asyncio.run(session())
    if wrapped._calls or wrapped._waiting:
        raise Found("calls are left running")
    script.unlink()
    if any(line.count(b"\n") != 1 or not line.endswith(b"\n") for line in written):
        raise Found(f"what the client is given are no lines: {written!r}")
    here.check()


TARGETS: dict[str, Target] = {
    "proxy-client": Target(clients(), client, lambda: world(*MODES)),
    "proxy-upstream": Target(upstreams(), upstream, lambda: world(*MODES[:2], timeout_s=0.5)),
    "wrap": Target(pipes(), wrap, lambda: world("record", "replay")),
}
