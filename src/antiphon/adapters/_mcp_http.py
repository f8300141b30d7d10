"""MCP over HTTP as a transport sees it: JSON-RPC requests to a server, recorded, and answered by a replay."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import orjson

from antiphon._recording.boundary import Boundary, error_payload
from antiphon._scope import RunScope, current_scope
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


class McpTape:
    """Keeps the pieces of an answer on their way to the client, and writes the answer when it is complete."""

    def __init__(self, boundary: Boundary, request: Request) -> None:
        self._boundary = boundary
        self._request = request
        self._pieces: list[bytes] = []
        self._ended = False

    def took(self, data: bytes) -> None:
        """A piece is on its way to the client."""
        self._pieces.append(data)

    async def flush(self) -> None:
        """Nothing is written before the answer is there."""

    async def end(self, error: BaseException | None) -> None:
        """The answer is complete, or the client went away."""
        if self._ended:
            return
        self._ended = True
        if error is not None and not isinstance(error, GeneratorExit):
            await self._boundary.finish("error", error=error_payload(error))
            return
        value = value_of(b"".join(self._pieces), self._request)
        if value is None:
            lost = {"class": "", "code": "no_answer", "message": "The server ended the stream without an answer."}
            await self._boundary.finish("error", error=lost)
            return
        await self._boundary.finish("ok", value=value)
