"""MCP as a transport sees it: JSON-RPC messages to a server, recorded, and answered by a replay.

Over HTTP the transports of :mod:`antiphon.adapters.httpx` use it; over stdio a replay starts no process.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from types import ModuleType
from typing import Any, NamedTuple

import orjson

from antiphon._recording.boundary import Boundary
from antiphon._recording.streams import StreamLog
from antiphon._scope import RunScope, current_scope
from antiphon.adapters._model import recording_scope
from antiphon.llm.stream import sse_events
from antiphon.ports import Answer


class Request(NamedTuple):
    """One JSON-RPC message on its way to a server."""

    id: Any
    """``None`` for a notification, which nobody answers."""
    method: str
    params: dict[str, Any]

    @property
    def name(self) -> str:
        """The boundary's name: the method, and the tool of a call."""
        tool = self.params.get("name") if self.method == "tools/call" else None
        return f"{self.method} {tool}" if tool else self.method


def looks_like_mcp(method: str, headers: Mapping[str, str]) -> bool:
    """Whether a request may be one of MCP's: it takes JSON as well as an event stream."""
    accepted = headers.get("accept", "")
    return method == "POST" and "text/event-stream" in accepted and "application/json" in accepted


def is_listening(method: str, headers: Mapping[str, str]) -> bool:
    """The stream a client keeps open for the server, and the end of a session: a replay has no use for them."""
    if method == "GET":
        return headers.get("accept", "") == "text/event-stream"
    return method == "DELETE" and "mcp-session-id" in headers


def read_request(content: bytes) -> Request | None:
    """The message in a request body; ``None`` if it is not JSON-RPC."""
    try:
        body = orjson.loads(content)
    except orjson.JSONDecodeError:
        return None
    if not isinstance(body, dict) or body.get("jsonrpc") != "2.0" or not isinstance(body.get("method"), str):
        return None
    params = body.get("params")
    return Request(body.get("id"), body["method"], params if isinstance(params, dict) else {})


_GUARDED = "mcp calls that a guard records"


@contextmanager
def guarded(name: str, arguments: dict[str, Any]) -> Iterator[None]:
    """Around a tool call that is recorded already: the task that sends it has another context than the caller's."""
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
    """Whether a guard records this request; a client may list the tools for the sake of a call, to check its result."""
    counts = scope.gateway_state.get(_GUARDED)
    if counts is None:
        return False
    if request.method != "tools/call":
        return request.method == "tools/list" and any(counts.values())
    return bool(counts[_known_by(str(request.params.get("name")), request.params.get("arguments") or {})])


def _known_by(name: str, arguments: Any) -> tuple[str, bytes]:
    return name, orjson.dumps(arguments, option=orjson.OPT_SORT_KEYS, default=str)


def open_request(scope: RunScope, request: Request, *, asynchronous: bool) -> Boundary:
    """The boundary of the request; progress tokens and trace contexts are no part of what is asked."""
    arguments = {name: value for name, value in request.params.items() if name != "_meta"}
    payload = {"arguments": arguments}
    return Boundary(
        scope, "mcp", request.name, arguments, payload=payload, meta={"transport": "http"}, asynchronous=asynchronous
    )


def value_of(content: bytes, request: Request) -> Any:
    """The answer in a body, JSON or event stream, without the id that belongs to this delivery."""
    text = content.lstrip()
    messages = [orjson.loads(text)] if text.startswith(b"{") else list(sse_events([content]))
    for message in messages:
        if isinstance(message, dict) and message.get("id") == request.id and "method" not in message:
            return {name: value for name, value in message.items() if name != "id"}
    return None


def content_of(answer: Answer, request: Request) -> bytes:
    """A recorded answer for this delivery."""
    value = answer.value if isinstance(answer.value, dict) else {"jsonrpc": "2.0", "result": {}}
    return orjson.dumps({**value, "id": request.id})


class McpLog(StreamLog):
    """Keeps the chunks of an answer on their way to the client, and writes the answer when it is complete."""

    def __init__(self, boundary: Boundary, request: Request) -> None:
        super().__init__(boundary, {})
        self._request = request

    def took(self, chunk: bytes) -> None:
        self.chunks.append(chunk)

    def complete(self) -> bool:
        return True

    async def finish(self) -> None:
        value = value_of(b"".join(self.chunks), self._request)
        if value is None:
            lost = {"class": "", "code": "no_answer", "message": "The server ended the stream without an answer."}
            await self.boundary.finish("error", error=lost)
        else:
            await self.boundary.finish("ok", value=value)


_MARK = "__antiphon_original__"


def wrap_stdio(module: ModuleType) -> None:
    """Replace the public ``stdio_client`` of *module* (``mcp.client.stdio``)."""
    module.__dict__["stdio_client"] = recorded_stdio(module.stdio_client)


def recorded_stdio(original: Any) -> Any:
    """A ``stdio_client`` whose messages are recorded; a replay answers them without a process."""
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
    """Streams for the session; what goes out and comes in passes over *relay*."""
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
    """A stream that was closed by the other side is the end, not a failure."""
    import anyio

    try:
        await pump()
    except (anyio.ClosedResourceError, anyio.BrokenResourceError):
        return


class _Relay:
    """Between session and server. Live, requests and answers are recorded; without a server, the replay answers."""

    to_session: Any = None

    def __init__(self, scope: RunScope, write: Any = None) -> None:
        self._scope = scope
        self._write = write
        self._open: dict[Any, Boundary] = {}

    async def goes_out(self, message: Any) -> None:
        """A message of the session. Notifications and answers to the server are no requests."""
        body = message.message.model_dump(by_alias=True, mode="json", exclude_none=True)
        request = None
        if body.get("id") is not None and "method" in body:
            request = Request(body["id"], body["method"], body.get("params") or {})
        if request is not None and not is_guarded(self._scope, request):
            boundary = open_request(self._scope, request, asynchronous=True)
            if self._write is None:
                await self._answer(request, boundary)
            else:
                await boundary.start()
                self._open[request.id] = boundary
        if self._write is not None:
            await self._write.send(message)

    async def comes_back(self, message: Any) -> None:
        """A message of the server."""
        body = getattr(message, "message", None)
        boundary = None if hasattr(body, "method") else self._open.pop(getattr(body, "id", None), None)
        if boundary is not None and body is not None:
            value = body.model_dump(by_alias=True, mode="json", exclude_none=True)
            await boundary.finish("ok", value={name: item for name, item in value.items() if name != "id"})

    async def closed(self) -> None:
        """The session has nothing more to say."""
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
