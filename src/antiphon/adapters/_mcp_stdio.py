"""MCP over stdio: messages to a server process are recorded; a replay starts no process."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import ModuleType
from typing import Any

from antiphon._recording.boundary import Boundary
from antiphon._scope import RunScope
from antiphon.adapters._mcp_http import Request, is_guarded, open_request
from antiphon.adapters._seam import recording_scope

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
            async with _between(_Answering(scope)) as streams:
                yield streams
        else:
            async with original(*args, **options) as (read, write), _between(_Passing(scope, write), read) as streams:
                yield streams

    setattr(stdio_client, _MARK, original)
    return stdio_client


@asynccontextmanager
async def _between(desk: _Desk, source: Any = None) -> AsyncIterator[Any]:
    """Streams for the session; what goes out and comes in passes over *desk*."""
    import anyio

    to_session, session_reads = anyio.create_memory_object_stream[Any](0)
    session_writes, from_session = anyio.create_memory_object_stream[Any](0)
    desk.to_session = to_session

    async def out() -> None:
        async with from_session:
            async for message in from_session:
                await desk.goes_out(message)
        await desk.closed()

    async def back() -> None:
        async with to_session:
            async for message in source:
                await desk.comes_back(message)
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


class _Desk:
    """Where messages pass by."""

    to_session: Any = None

    def __init__(self, scope: RunScope) -> None:
        self.scope = scope

    async def goes_out(self, message: Any) -> None:
        raise NotImplementedError

    async def comes_back(self, message: Any) -> None:
        """Only a live server sends anything."""

    async def closed(self) -> None:
        """The session has nothing more to say."""

    def opened(self, message: Any) -> tuple[Request, Boundary] | None:
        """The boundary of a request; ``None`` for notifications and for answers to the server."""
        body = message.message.model_dump(by_alias=True, mode="json", exclude_none=True)
        if body.get("id") is None or "method" not in body:
            return None
        request = Request(body["id"], body["method"], body.get("params") or {})
        if is_guarded(self.scope, request):
            return None
        return request, open_request(self.scope, request, asynchronous=True)


class _Passing(_Desk):
    """Live: everything is passed on, requests and their answers are written down."""

    def __init__(self, scope: RunScope, write: Any) -> None:
        super().__init__(scope)
        self._write = write
        self._open: dict[Any, Boundary] = {}

    async def goes_out(self, message: Any) -> None:
        found = self.opened(message)
        if found is not None:
            request, boundary = found
            await boundary.start()
            self._open[request.id] = boundary
        await self._write.send(message)

    async def comes_back(self, message: Any) -> None:
        body = getattr(message, "message", None)
        boundary = None if hasattr(body, "method") else self._open.pop(getattr(body, "id", None), None)
        if boundary is not None and body is not None:
            value = body.model_dump(by_alias=True, mode="json", exclude_none=True)
            await boundary.finish("ok", value={name: item for name, item in value.items() if name != "id"})

    async def closed(self) -> None:
        await self._write.aclose()


class _Answering(_Desk):
    """Replay: requests are answered from the recording."""

    async def goes_out(self, message: Any) -> None:
        found = self.opened(message)
        if found is None:
            return
        request, boundary = found
        answer = await boundary.answer()
        await boundary.start()
        from mcp.shared.message import SessionMessage
        from mcp_types import JSONRPCError, JSONRPCResponse

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
