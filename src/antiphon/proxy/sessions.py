"""Sessions with an MCP server for clients that were initialised from a recording (revisions before 2026-07-28).

Such a client gets a session id of the proxy. As soon as one of its requests goes to the server, a session is opened
there with the client's own ``initialize`` and the notifications it has sent, and what it sends and listens to from then
on belongs to that session.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections import OrderedDict
from collections.abc import AsyncIterator
from typing import Any

import httpx

from antiphon.adapters import _mcp
from antiphon.proxy.transport import UpstreamTransport

log: logging.Logger = logging.getLogger("antiphon.proxy")

SESSION = "mcp-session-id"
_MOST_SESSIONS = 10_000
_MOST_NOTIFICATIONS = 100
_EVENTS = {"content-type": "text/event-stream", "cache-control": "no-cache"}


class _Session:
    """One client, and its session with the server once that is open."""

    def __init__(self, initialize: httpx.Request) -> None:
        self._initialize = initialize
        self._notifications: list[httpx.Request] = []
        """What the client has sent so far, for the server to get when the session is opened."""
        self._id: str | None = None
        self._opening = asyncio.Lock()
        self.ready = asyncio.Event()
        """Set when the session is open, or ended by the client."""
        self.is_open = False

    def keep(self, notification: httpx.Request) -> None:
        """Keep a notification until the session is opened."""
        if len(self._notifications) < _MOST_NOTIFICATIONS:
            self._notifications.append(notification)

    def addressed(self, request: httpx.Request) -> httpx.Request:
        """The request with the session id of the server."""
        headers = [(name, value) for name, value in request.headers.raw if name.lower() != SESSION.encode()]
        if self._id is not None:
            headers.append((SESSION.encode(), self._id.encode()))
        body, more = httpx.ByteStream(request.content), request.extensions
        changed = httpx.Request(request.method, request.url, headers=headers, stream=body, extensions=more)
        changed.read()
        return changed

    async def open(self, inner: UpstreamTransport) -> None:
        """Open the session with the server, unless it is open."""
        async with self._opening:
            if self.is_open:
                return
            response = await inner.handle_async_request(self._initialize)
            try:
                answer = await _answer_of(response, self._initialize)
            finally:
                await response.aclose()
            if response.status_code >= 400 or not isinstance(answer, dict) or "result" not in answer:
                log.warning("no session could be opened: the server answered initialize with %d", response.status_code)
                text = f"No session could be opened: the server answered {response.status_code} to initialize."
                raise httpx.ConnectError(text, request=self._initialize)
            self._id = response.headers.get(SESSION)
            for notification in self._notifications:
                reply = await inner.handle_async_request(self.addressed(notification))
                await reply.aclose()
            self.is_open = True
            self.ready.set()


class SessionTransport:
    """A transport that replaces the session ids of the proxy by those of the server."""

    def __init__(self, inner: UpstreamTransport) -> None:
        self._inner = inner
        self._sessions: OrderedDict[str, _Session] = OrderedDict()

    def begin(self, initialize: httpx.Request) -> str:
        """The session id for a client whose *initialize* the recording has answered."""
        name = uuid.uuid4().hex
        self._sessions[name] = _Session(initialize)
        while len(self._sessions) > _MOST_SESSIONS:
            self._sessions.popitem(last=False)
        return name

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        name = request.headers.get(SESSION, "")
        session = self._sessions.get(name)
        if session is None:
            return await self._inner.handle_async_request(request)
        if not session.is_open:
            answer = self._without_server(request, session)
            if answer is not None:
                return answer
            await session.open(self._inner)
        if request.method == "DELETE":
            del self._sessions[name]
        response = await self._inner.handle_async_request(session.addressed(request))
        if SESSION in response.headers:  # some clients take it from any response
            response.headers[SESSION] = name
        return response

    def _without_server(self, request: httpx.Request, session: _Session) -> httpx.Response | None:
        """The answer to what needs no session with the server."""
        if request.method == "GET":
            return httpx.Response(200, headers=_EVENTS, stream=_Listening(self, request, session))
        if request.method == "DELETE":
            del self._sessions[request.headers[SESSION]]
            session.ready.set()
            return httpx.Response(204)
        asked = _mcp.read_request(request.content)
        if asked is not None and asked.id is not None:
            return None
        if asked is not None and asked.method != _mcp.CANCELLED:  # the server knows no request that it could cancel
            session.keep(request)
        return httpx.Response(202)

    async def aclose(self) -> None:
        await self._inner.aclose()


class _Listening(httpx.AsyncByteStream):
    """The listening stream of a client, which begins before the session with the server does."""

    def __init__(self, transport: SessionTransport, request: httpx.Request, session: _Session) -> None:
        self._transport, self._request, self._session = transport, request, session
        self._response: httpx.Response | None = None

    async def __aiter__(self) -> AsyncIterator[bytes]:
        await self._session.ready.wait()
        if not self._session.is_open:
            return
        self._response = await self._transport.handle_async_request(self._request)
        if self._response.status_code == 200:
            async for chunk in self._response.aiter_bytes():
                yield chunk

    async def aclose(self) -> None:
        if self._response is not None:
            await self._response.aclose()


async def _answer_of(response: httpx.Response, request: httpx.Request) -> Any:
    """The message that answers *request*, from a body or an event stream, which may stay open."""
    asked = _mcp.read_request(request.content)
    if asked is None or not _mcp.is_event_stream(response):
        return _mcp.message_in(await response.aread())
    async for event in _mcp.events(response.aiter_bytes()):
        message = _mcp.message_of(event)
        if _mcp.answers(message, asked):
            return message
    return None
