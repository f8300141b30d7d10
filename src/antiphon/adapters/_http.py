"""Record and answer model calls at the HTTP transport, for httpx and httpx2 alike (they share their interface)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any

from antiphon._drive import drive
from antiphon._recording.boundary import Boundary, error_payload
from antiphon._scope import RunScope
from antiphon.adapters import _mcp_http, _wire
from antiphon.adapters._seam import read_on, recorded_here, recording_scope
from antiphon.adapters._streams import stream_types
from antiphon.adapters._tape import Tape

_CODED = frozenset({"content-encoding", "content-length", "transfer-encoding"})


def handle(module: ModuleType, request: Any, send: Callable[[Any], Any]) -> Any:
    """One request of a synchronous client; *send* is the transport underneath."""
    scope = recording_scope()
    if scope is None:
        return send(request)
    place = _wire.place_of(request.method, request.url.path)
    if place is not None:
        call = _wire.read_call(place, request.read())
        return send(request) if call is None else drive(_exchange(module, request, send, scope, call, False))
    if scope.invoker is not None and _mcp_http.is_listening(request.method, request.headers):
        return module.Response(405, request=request)
    asked = (
        _mcp_http.read_request(request.read()) if _mcp_http.looks_like_mcp(request.method, request.headers) else None
    )
    return send(request) if asked is None else drive(_mcp_exchange(module, request, send, scope, asked, False))


async def handle_async(module: ModuleType, request: Any, send: Callable[[Any], Any]) -> Any:
    """One request of an asynchronous client."""
    scope = recording_scope()
    if scope is None:
        return await send(request)
    place = _wire.place_of(request.method, request.url.path)
    if place is not None:
        call = _wire.read_call(place, await request.aread())
        return await (send(request) if call is None else _exchange(module, request, send, scope, call, True))
    if scope.invoker is not None and _mcp_http.is_listening(request.method, request.headers):
        return module.Response(405, request=request)
    asked = None
    if _mcp_http.looks_like_mcp(request.method, request.headers):
        asked = _mcp_http.read_request(await request.aread())
    return await (send(request) if asked is None else _mcp_exchange(module, request, send, scope, asked, True))


async def _exchange(
    module: ModuleType,
    request: Any,
    send: Callable[[Any], Any],
    scope: RunScope,
    call: _wire.ModelCall,
    asynchronous: bool,
) -> Any:
    """Ask the replay, else the provider. Suspends only where *asynchronous* says so."""
    call, changed = _wire.rewritten(scope, call)
    verify = partial(_verify_async if asynchronous else _verify, module, request, send, call)
    boundary = _wire.open_call(scope, call, request.headers, asynchronous=asynchronous, send=verify)
    answer = await boundary.answer()
    await boundary.start()
    if answer is not None:
        await _wire.finish_given(boundary, answer)
        return _given(module, request, _wire.replayed(answer, call), asynchronous)
    try:
        with recorded_here():
            response = send(_outgoing(module, request, call, changed))
            if asynchronous:
                response = await response
        if call.stream and response.status_code < 400:
            return _streaming(module, request, response, boundary, call, asynchronous)
        content = await response.aread() if asynchronous else response.read()
    except BaseException as error:
        await boundary.finish("error", error=error_payload(error))
        raise
    await _wire.finish(boundary, call, response.status_code, response.headers, content)
    whole = stream_types(module, asynchronous).recorded([content], None, (), None)
    return _again(module, request, response, stream=whole)


def _verify(module: ModuleType, request: Any, send: Callable[[Any], Any], call: _wire.ModelCall, body: Any) -> Any:
    """Ask the provider for the sake of a comparison; nothing of it is recorded."""
    return _wire.whole(call, send(_outgoing(module, request, call, False)).read())


async def _verify_async(
    module: ModuleType, request: Any, send: Callable[[Any], Any], call: _wire.ModelCall, body: Any
) -> Any:
    return _wire.whole(call, await (await send(_outgoing(module, request, call, False))).aread())


async def _mcp_exchange(
    module: ModuleType,
    request: Any,
    send: Callable[[Any], Any],
    scope: RunScope,
    asked: _mcp_http.Request,
    asynchronous: bool,
) -> Any:
    """One message to an MCP server. A notification is only passed on; a replay has nobody to tell it to."""
    if asked.id is None and scope.invoker is not None:
        return module.Response(202, request=request)
    if asked.id is None or _mcp_http.is_guarded(scope, asked):
        return await send(request) if asynchronous else send(request)
    boundary = _mcp_http.open_request(scope, asked, asynchronous=asynchronous)
    answer = await boundary.answer()
    await boundary.start()
    if answer is not None:
        await _wire.finish_given(boundary, answer)
        if answer.outcome == "error":
            raise _exception(module, request, "ReadError", str((answer.error or {}).get("message", "")))
        content = _mcp_http.content_of(answer, asked)
        return module.Response(200, headers={"content-type": "application/json"}, content=content, request=request)
    try:
        response = await send(request) if asynchronous else send(request)
    except BaseException as error:
        await boundary.finish("error", error=error_payload(error))
        raise
    if response.status_code >= 400:
        message = f"The server answered {response.status_code}."
        await boundary.finish("error", error={"class": "", "code": f"http_{response.status_code}", "message": message})
        return response
    stream = stream_types(module, asynchronous).live(response.stream, response, _mcp_http.McpTape(boundary, asked))
    if response.headers.get("content-encoding", "identity") != "identity":
        stream._source = response.aiter_bytes() if asynchronous else response.iter_bytes()
    return _again(module, request, response, stream=stream)


def _outgoing(module: ModuleType, request: Any, call: _wire.ModelCall, changed: bool) -> Any:
    """The request that goes out. Streams are asked for uncompressed, so that their pieces can be kept exactly."""
    if not changed and not call.stream:
        return request
    headers = {name: value for name, value in request.headers.items() if name.lower() != "content-length"}
    if call.stream:
        headers["accept-encoding"] = "identity"
    content = _wire.outgoing(call) if changed else request.content
    return module.Request(request.method, request.url, headers=headers, content=content, extensions=request.extensions)


def _streaming(
    module: ModuleType, request: Any, response: Any, boundary: Boundary, call: _wire.ModelCall, asynchronous: bool
) -> Any:
    source = response.stream
    if response.headers.get("content-encoding", "identity") != "identity":  # a server that compresses all the same
        source = response.aiter_bytes() if asynchronous else response.iter_bytes()
    stream = stream_types(module, asynchronous).live(source, response, Tape(boundary, call, response.headers))
    return _again(module, request, response, stream=stream)


def _again(module: ModuleType, request: Any, response: Any, **body: Any) -> Any:
    """The response with its body decoded: what was recorded is what the SDK reads."""
    headers = [(name, value) for name, value in response.headers.multi_items() if name.lower() not in _CODED]
    return module.Response(
        response.status_code, headers=headers, request=request, extensions=response.extensions, **body
    )


def _given(module: ModuleType, request: Any, found: _wire.Replayed, asynchronous: bool) -> Any:
    failure: Exception | None = None if found.raises is None else _exception(module, request, *found.raises)
    if failure is not None and not found.pieces:
        raise failure
    if found.left:
        failure = read_on(len(found.pieces))
    stream = stream_types(module, asynchronous).recorded(found.pieces, failure, found.gaps, found.given_up)
    return module.Response(found.status, headers=found.headers, stream=stream, request=request)


def _exception(module: ModuleType, request: Any, name: str, message: str) -> Exception:
    """The transport's exception again; one of a kind that this module does not have is a failed read."""
    kind = getattr(module, name, None)
    if not (isinstance(kind, type) and issubclass(kind, module.TransportError)):
        kind = module.ReadError
    error: Exception = kind(message, request=request)
    return error


def make_transports(module: ModuleType) -> tuple[Any, Any]:
    """A synchronous and an asynchronous transport class of *module* around another transport."""

    class RecordingTransport(module.BaseTransport):  # type: ignore[misc, name-defined]
        """Passes requests on; model calls of a run are recorded, or answered by its replay."""

        def __init__(self, inner: Any = None) -> None:
            self._inner = inner if inner is not None else module.HTTPTransport()

        def handle_request(self, request: Any) -> Any:
            return handle(module, request, self._inner.handle_request)

        def close(self) -> None:
            self._inner.close()

    class AsyncRecordingTransport(module.AsyncBaseTransport):  # type: ignore[misc, name-defined]
        """The same for asynchronous clients."""

        def __init__(self, inner: Any = None) -> None:
            self._inner = inner if inner is not None else module.AsyncHTTPTransport()

        async def handle_async_request(self, request: Any) -> Any:
            return await handle_async(module, request, self._inner.handle_async_request)

        async def aclose(self) -> None:
            await self._inner.aclose()

    return RecordingTransport, AsyncRecordingTransport
