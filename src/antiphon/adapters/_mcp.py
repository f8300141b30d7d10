"""MCP at the transport level: JSON-RPC messages to a server, recorded and replayed.

The transports of :mod:`antiphon.adapters.httpx` use it for HTTP; on stdio, a replay starts no process.
"""

from __future__ import annotations

import functools
import hashlib
import json
import re
import time
from codecs import BOM_UTF8
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from itertools import zip_longest
from types import ModuleType
from typing import Any, NamedTuple

import orjson

from antiphon._recording.boundary import Boundary
from antiphon._recording.streams import StreamLog
from antiphon._scope import RunScope, current_scope
from antiphon.adapters import _wire
from antiphon.adapters._model import recording_scope
from antiphon.canonical import writable_json
from antiphon.ports import Answer

NEWEST = "2026-07-28"
"""From this revision on, requests name their revision, headers repeat body fields, and results have a type."""
_REVISION = "io.modelcontextprotocol/protocolVersion"
UNEXECUTED = frozenset({-32020, -32021, -32022})
"""Error codes that say that the server did not execute the request; others leave this unknown."""


ERROR = "$jsonrpcError"
"""Key of a JSON-RPC error in the recorded result of a tool; ``None`` next to a result that itself contains this key."""
APPROVAL = "antiphon/approval"
"""The field of ``_meta`` with the approval question for a call."""


class Request(NamedTuple):
    """One JSON-RPC message to a server."""

    id: Any
    """``None`` for a notification, which gets no answer."""
    method: str
    params: dict[str, Any]

    @property
    def name(self) -> str:
        """The name of the boundary: the method, and for a tool call the tool."""
        tool = self.params.get("name") if self.method == "tools/call" else None
        return f"{self.method} {tool}" if tool else self.method

    def result(self, **fields: Any) -> dict[str, Any]:
        """A result of our own, in the format of the request's revision."""
        return {"resultType": "complete", **fields} if self.revision >= NEWEST else fields

    @property
    def revision(self) -> str:
        """The revision of the protocol that the request names; empty before the newest one."""
        meta = self.params.get("_meta")
        named = meta.get(_REVISION) if isinstance(meta, dict) else None
        return named if isinstance(named, str) else ""


KNOWN = "antiphon_mcp"
"""Request extension: set if the server is known to speak MCP."""


def looks_like_mcp(method: str, headers: Mapping[str, str], extensions: Mapping[str, Any]) -> bool:
    """Whether a request may be MCP: it is marked as such, or accepts both JSON and an event stream."""
    accepted = headers.get("accept", "")
    takes_both = "text/event-stream" in accepted and "application/json" in accepted
    return method == "POST" and (takes_both or bool(extensions.get(KNOWN)))


def is_listening(method: str, headers: Mapping[str, str]) -> bool:
    """Whether a request opens the client's listening stream or ends the session; a replay needs neither."""
    if method == "GET":
        return headers.get("accept", "") == "text/event-stream"
    return method == "DELETE" and "mcp-session-id" in headers


def read_request(content: bytes) -> Request | None:
    """The message in a request body; ``None`` if it is not JSON-RPC."""
    return request_in(parsed(content))


def request_in(message: Any) -> Request | None:
    """A parsed message as a request; ``None`` if it is not JSON-RPC, or has no method."""
    if not isinstance(message, dict) or message.get("jsonrpc") != "2.0" or not isinstance(message.get("method"), str):
        return None
    params = message.get("params")
    return Request(message.get("id"), message["method"], params if isinstance(params, dict) else {})


_GUARDED = "mcp calls that a guard records"


@contextmanager
def guarded(name: str, arguments: dict[str, Any]) -> Iterator[None]:
    """Mark a tool call as already recorded; not by context variable, because the sending task has its own context."""
    scope = current_scope()
    if scope is None:
        yield
        return
    counts: Counter[tuple[str, bytes]] = scope.gateway_state.setdefault(_GUARDED, Counter())
    call = _known_by(name, arguments)
    counts[call] += 1
    try:
        yield
    finally:
        counts[call] -= 1


def is_guarded(scope: RunScope, request: Request) -> bool:
    """Whether a guard already records this request; a client may also list tools to check the result of a call."""
    counts = scope.gateway_state.get(_GUARDED)
    if counts is None:
        return False
    if request.method != "tools/call":
        return request.method == "tools/list" and any(counts.values())
    return bool(counts[_known_by(str(request.params.get("name")), request.params.get("arguments") or {})])


def _known_by(name: str, arguments: Any) -> tuple[str, bytes]:
    return name, orjson.dumps(arguments, option=orjson.OPT_SORT_KEYS, default=str)


def open_request(scope: RunScope, request: Request, *, asynchronous: bool) -> Boundary:
    """The boundary of the request; progress tokens and trace contexts do not count as part of it."""
    arguments = {name: value for name, value in request.params.items() if name != "_meta"}
    payload = {"arguments": arguments}
    return Boundary(
        scope, "mcp", request.name, arguments, payload=payload, meta={"transport": "http"}, asynchronous=asynchronous
    )


_BOUNDARY = re.compile(rb"\r\n(?:\r\n?|\n)|\n(?:\r\n?|\n)|\r\r\n?")
"""A line ending followed by an empty line, each with CRLF, LF or CR."""
LARGEST = 64 * 1024 * 1024
"""The largest message of a server, in bytes."""


def leg_of(state: Any, said: Any) -> str | None:
    """Identifies one leg of a multi-round-trip exchange: the server's state and the client's responses."""
    if (state, said) == (None, None):
        return None
    return hashlib.sha256(orjson.dumps([state, said], option=orjson.OPT_SORT_KEYS, default=_plain)).hexdigest()


def _plain(value: Any) -> Any:
    """An SDK model as JSON."""
    return value.model_dump(mode="json", by_alias=True, exclude_none=True)


class EventReader:
    """Splits an event stream into raw events, each as soon as it is complete; a byte order mark comes out alone."""

    def __init__(self) -> None:
        self._left = b""
        self._begun = False

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        """The events that *chunk* completes."""
        searched = max(0, len(self._left) - 3)
        self._left += chunk
        if not self._begun:
            if len(self._left) < len(BOM_UTF8) and BOM_UTF8.startswith(self._left):
                return
            self._begun = True
            if self._left.startswith(BOM_UTF8):
                yield BOM_UTF8
                self._left, searched = self._left[len(BOM_UTF8) :], 0
        while (found := _BOUNDARY.search(self._left, searched)) is not None:
            yield self._left[: found.end()]
            self._left, searched = self._left[found.end() :], 0
        if len(self._left) > LARGEST:
            raise ConnectionResetError(f"The server sent a message of over {LARGEST} bytes.")

    def rest(self) -> bytes:
        """The event that the end of the stream completes, if any."""
        left, self._left = self._left, b""
        return left + b"\n\n" if left.strip() else b""


async def events(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The raw events of a stream, each as soon as it is complete."""
    reader = EventReader()
    async for chunk in chunks:
        for event in reader.feed(chunk):
            yield event
    if rest := reader.rest():
        yield rest


def is_event_stream(response: Any) -> bool:
    """Whether the body of an HTTP response is an event stream."""
    return bool(response.headers.get("content-type", "").lower().startswith("text/event-stream"))


def fields_of(event: bytes) -> dict[bytes, bytes]:
    """The fields of an event other than its data, such as its id."""
    lines = (line.partition(b":") for line in event.splitlines() if not line.startswith((b"data", b":")))
    return {name: value.removeprefix(b" ") for name, _, value in lines if name}


def message_of(event: bytes) -> Any:
    """The JSON data of an event; ``None`` if it has none."""
    lines = (line for line in event.splitlines() if line.startswith(b"data:"))
    return message_in(b"\n".join(line[5:].removeprefix(b" ") for line in lines))


def parsed(data: bytes) -> Any:
    """The message of a client in *data*; ``None`` if it is not JSON."""
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        return None


def message_in(data: bytes) -> Any:
    """The message of a server in *data*; ``None`` if it is not JSON.

    A member that cannot be kept as JSON (nested too deeply, half a character) is kept as text: :func:`encoded`.
    """
    data = data.removeprefix(BOM_UTF8)
    with suppress(ValueError):
        message = writable_json(data)
        if not isinstance(message, dict) or not any(map(_wire.is_marked, message.values())):
            return message
    try:
        members = _members(data)
        for part in members.values():
            _check_json(part)
    except ValueError:
        return None
    return {name: _wire.body_of(part) for name, part in members.items()} or None


def encoded(message: Mapping[str, Any]) -> bytes:
    """A message as JSON, in one line."""
    return orjson.dumps({name: _member(item) if _wire.is_marked(item) else item for name, item in message.items()})


def _member(kept: Any) -> orjson.Fragment:
    return orjson.Fragment(_wire.content_of(kept).translate(_IN_ONE_LINE))


def _check_json(data: bytes) -> None:
    with suppress(RecursionError):  # its brackets match
        json.loads(data)


def _members(data: bytes) -> dict[str, bytes]:
    """The members of a JSON object, not parsed; empty if it is no object."""
    found: dict[str, bytes] = {}
    depth, start, name, end = 0, 0, "", 0
    for token in _TOKEN.finditer(data):
        mark = token[0][:1]
        if mark in b"{[":
            if not depth and (end or mark == b"[" or data[: token.start()].strip()):
                return {}
            depth += 1
        elif mark in b"}],":
            if depth == 1 and start:
                found[name] = data[start : token.start()].strip()
            depth -= mark != b","
        if mark == b":" and depth == 1:
            name, start = orjson.loads(data[end : token.start()]), token.end()
        elif not depth or (depth == 1 and mark in b"{,"):
            start, end = 0, token.end()
    return {} if depth or data[end:].strip() else found


_TOKEN = re.compile(rb'"(?:[^"\\]++|\\.)*+"|[{}\[\],:]')
_IN_ONE_LINE = bytes.maketrans(b"\r\n", b"  ")
"""A line break in JSON is white space."""


def answers(message: Any, request: Request) -> bool:
    """Whether *message* is the answer to *request*."""
    return isinstance(message, dict) and message.get("id") == request.id and "method" not in message


def is_notification(message: Any) -> bool:
    """Whether *message* is a notification for the client (progress, a log line) that expects no answer."""
    return isinstance(message, dict) and "id" not in message and isinstance(message.get("method"), str)


def notification_for(message: Any, request: Request) -> dict[str, Any] | None:
    """A recorded notification for this delivery, with its progress token; ``None`` if it did not request progress."""
    if not is_notification(message) or message["method"] != "notifications/progress":
        return message if is_notification(message) else None
    meta, params = request.params.get("_meta"), message.get("params")
    token = meta.get("progressToken") if isinstance(meta, dict) else None
    if token is None or not isinstance(params, dict) or _wire.is_marked(params):
        return None
    return {**message, "params": {**params, "progressToken": token}}


def event_of(message: bytes) -> bytes:
    """An encoded message as a stream event."""
    return b"event: message\ndata: " + message + b"\n\n"


class ReplayedMcpResponse(NamedTuple):
    """A recorded answer as a response body."""

    status: int
    content_type: str
    chunks: list[bytes]
    gaps: Sequence[float]
    stays: bool = False
    """Whether the stream stays open, as a listening stream does."""


def response_of(status: int, content_type: str, content: bytes) -> dict[str, Any]:
    """A response that is no answer, or not one with status 200, as it is recorded."""
    try:
        body: Any = content.decode()
    except UnicodeDecodeError:
        body = {"$latin1": content.decode("latin-1")}
    return {"status": status, "type": content_type, "body": body}


def response_in(value: Any, request: Request) -> ReplayedMcpResponse | None:
    """The recorded response in *value*, for this delivery; ``None`` if it holds something else."""
    if not isinstance(value, dict) or "jsonrpc" in value or type(value.get("status")) is not int:
        return None
    body = value.get("body", "")
    content = _wire.content_of(body) if _wire.is_marked(body) else str(body).encode()
    message = message_in(content)
    if isinstance(message, dict) and "jsonrpc" in message and message.get("id") not in (None, request.id):
        content = encoded({**message, "id": request.id})
    return ReplayedMcpResponse(value["status"], str(value.get("type", "")), [content], ())


def replayed(answer: Answer, request: Request) -> ReplayedMcpResponse | None:
    """The replacement for the server's response; ``None`` if no readable response was recorded."""
    refused = response_in(answer.value, request) if answer.outcome == "error" else None
    if refused is not None:
        return refused
    messages = [(notification_for(message, request), gap) for message, gap in timed(answer)]
    notifications = [(event_of(encoded(message)), gap) for message, gap in messages if message is not None]
    stays = request.method == LISTEN
    if answer.outcome == "error" and not stays:
        return None
    if not notifications and not stays:
        return ReplayedMcpResponse(200, "application/json", [content_of(answer, request)], ())
    if not stays or answer.outcome != "error":
        notifications.append((event_of(content_of(answer, request)), 0.0))
    return ReplayedMcpResponse(
        200, "text/event-stream", [event for event, _ in notifications], [gap for _, gap in notifications], stays=stays
    )


def timed(answer: Answer) -> list[tuple[Any, float]]:
    """The chunks of a recorded answer, each with the pause before it in ms."""
    chunks = list(answer.chunks or ())
    return list(zip_longest(chunks, answer.meta.get("gapsMs", ())[: len(chunks)], fillvalue=0.0))


def content_of(answer: Answer, request: Request) -> bytes:
    """A recorded answer, encoded for this delivery."""
    value = answer.value if isinstance(answer.value, dict) else {"jsonrpc": "2.0", "result": request.result()}
    return encoded({**value, "id": request.id})


INTERNAL_ERROR = -32603


def failed(place: Any, text: str, data: Mapping[str, Any]) -> dict[str, Any]:
    """An error of our own in place of an answer."""
    error = {"code": INTERNAL_ERROR, "message": f"antiphon: {text}", "data": dict(data)}
    return {"jsonrpc": "2.0", "id": place, "error": error}


CANCELLED = "notifications/cancelled"
LISTEN = "subscriptions/listen"
"""The request whose response is a stream that stays open."""
MAX_NOTIFICATIONS = 10_000
"""The maximum number of notifications recorded per call; the rest are only forwarded."""


class McpLog(StreamLog):
    """Records an answer on its way to the client: notifications as they arrive, the answer once complete."""

    def __init__(self, boundary: Boundary, request: Request, content_type: str) -> None:
        super().__init__(boundary, {})
        self._request = request
        self._events = EventReader() if content_type.startswith("text/event-stream") else None
        self._answer: Any = None
        self._notices = 0

    def took(self, chunk: bytes) -> None:
        if self._events is None:
            self.chunks.append(chunk)
            return
        for event in self._events.feed(chunk):
            self._take(message_of(event))

    def _take(self, message: Any) -> None:
        if answers(message, self._request):
            self._answer = message
        elif is_notification(message) and self._notices < MAX_NOTIFICATIONS:
            self._notices += 1
            now = time.monotonic()
            self.boundary.chunk(message, (now - self._last) * 1000)
            self._last = now

    def complete(self) -> bool:
        return True

    async def finish(self) -> None:
        if self._events is None:
            message = message_in(b"".join(self.chunks))
            self._answer = message if answers(message, self._request) else None
        else:
            self._take(message_of(self._events.rest()))
        if self._answer is None:
            lost = {"class": "", "code": "no_answer", "message": "The server ended the stream without an answer."}
            await self.boundary.finish("error", error=lost)
        else:
            value = {name: value for name, value in self._answer.items() if name != "id"}
            await self.boundary.finish("ok", value=value)


_MARK = "__antiphon_original__"


def wrap_stdio(module: ModuleType) -> None:
    """Replace the public ``stdio_client`` of *module* (``mcp.client.stdio``)."""
    module.__dict__["stdio_client"] = recorded_stdio(module.stdio_client)


def recorded_stdio(original: Any) -> Any:
    """A ``stdio_client`` that records its messages; a replay answers them without a process."""
    if hasattr(original, _MARK):
        return original

    @asynccontextmanager
    @functools.wraps(original)
    async def stdio_client(*args: Any, **options: Any) -> AsyncIterator[Any]:
        scope = recording_scope()
        if scope is None:
            async with original(*args, **options) as streams:
                yield streams
        elif scope.invoker is not None:
            async with _between(_Relay(scope)) as streams:
                yield streams
        else:
            async with original(*args, **options) as (read, write), _between(_Relay(scope, write), read) as streams:
                yield streams

    setattr(stdio_client, _MARK, original)
    return stdio_client


@asynccontextmanager
async def _between(relay: _Relay, source: Any = None) -> AsyncIterator[Any]:
    """Streams for the session, relayed through *relay*."""
    import anyio

    to_session, session_reads = anyio.create_memory_object_stream[Any](0)
    session_writes, from_session = anyio.create_memory_object_stream[Any](0)
    relay.to_session = to_session

    async def out() -> None:
        async with from_session:
            async for message in from_session:
                await relay.goes_out(message)
        await relay.closed()

    async def back() -> None:
        async with to_session:
            async for message in source:
                await relay.comes_back(message)
                await to_session.send(message)

    async with anyio.create_task_group() as group:
        group.start_soon(_quietly, out)
        if source is not None:
            group.start_soon(_quietly, back)
        try:
            yield session_reads, session_writes
        finally:
            group.cancel_scope.cancel()
            to_session.close()
            session_reads.close()
            session_writes.close()


async def _quietly(pump: Any) -> None:
    """Run *pump* until a stream is closed by the other side, which is not a failure."""
    import anyio

    try:
        await pump()
    except (anyio.ClosedResourceError, anyio.BrokenResourceError):
        return


_TIMED_OUT = {"code": -32001, "message": "Request timed out: the client did not wait for the answer"}


class _Relay:
    """Relays messages between session and server: records them, or answers from the replay if there is no server."""

    to_session: Any = None

    def __init__(self, scope: RunScope, write: Any = None) -> None:
        self._scope = scope
        self._write = write
        self._open: dict[Any, tuple[str, Boundary]] = {}

    async def goes_out(self, message: Any) -> None:
        """Handle a message from the session; notifications and responses are not recorded as requests."""
        body = message.message.model_dump(by_alias=True, mode="json", exclude_none=True)
        await self._given_up(body)
        request = None
        if body.get("id") is not None and "method" in body:
            request = Request(body["id"], body["method"], body.get("params") or {})
        if request is not None and not is_guarded(self._scope, request):
            boundary = open_request(self._scope, request, asynchronous=True)
            if self._write is None:
                await self._answer(request, boundary)
            else:
                await boundary.start()
                self._open[request.id] = (request.method, boundary)
        if self._write is not None:
            await self._write.send(message)

    async def comes_back(self, message: Any) -> None:
        """Handle a message from the server."""
        body = getattr(message, "message", None)
        waiting = None if hasattr(body, "method") else self._open.pop(getattr(body, "id", None), None)
        if waiting is not None and body is not None:
            value = body.model_dump(by_alias=True, mode="json", exclude_none=True)
            await waiting[1].finish("ok", value={name: item for name, item in value.items() if name != "id"})

    async def _given_up(self, body: dict[str, Any]) -> None:
        """Close requests that the session no longer waits for; it will not see an answer that still arrives.

        The session cancels them explicitly, except ``server/discover``: after that it sends ``initialize``, as it would
        to an older server.
        """
        method, cancelled_id = body.get("method"), (body.get("params") or {}).get("requestId")
        for number, (asked, boundary) in list(self._open.items()):
            is_cancelled = method == CANCELLED and number == cancelled_id
            if is_cancelled or (method == "initialize" and asked == "server/discover"):
                del self._open[number]
                await boundary.finish("ok", value={"jsonrpc": "2.0", "error": _TIMED_OUT})

    async def closed(self) -> None:
        """Handle the end of the session's messages."""
        if self._write is not None:
            await self._write.aclose()

    async def _answer(self, request: Request, boundary: Boundary) -> None:
        from mcp.shared.message import SessionMessage
        from mcp_types import JSONRPCError, JSONRPCResponse

        answer = await boundary.answer()
        await boundary.start()
        if answer is None or answer.outcome == "error":
            error = dict((answer.error if answer is not None else None) or {})
            await boundary.finish("error", error=error)
            value: dict[str, Any] = {"error": {"code": -32000, "message": str(error.get("message", ""))}}
        else:
            value = dict(answer.value)
            await boundary.finish(answer.outcome, value=answer.value)
        kind = JSONRPCError if "error" in value else JSONRPCResponse
        answered = kind.model_validate({"jsonrpc": "2.0", **value, "id": request.id})
        await self.to_session.send(SessionMessage(message=answered))
