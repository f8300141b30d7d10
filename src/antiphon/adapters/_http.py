"""Record and answer model calls at the HTTP transport, for httpx and httpx2 alike (they share their interface)."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator
from types import ModuleType
from typing import Any

from antiphon._drive import drive
from antiphon._recording import model
from antiphon._recording.boundary import Boundary, error_payload
from antiphon._scope import RunScope, current_scope
from antiphon.adapters import _wire
from antiphon.llm.stream import assemble_response, sse_events


def _recognise(request: Any) -> tuple[RunScope, _wire.ModelCall] | None:
    scope = current_scope()
    if scope is None:
        return None
    call = _wire.recognise(request.method, str(request.url), request.content)
    return None if call is None else (scope, call)


def _sent(module: ModuleType, request: Any, call: _wire.ModelCall, rewritten: bool) -> Any:
    """The request that goes out. Streams are asked for uncompressed, so that their pieces can be recorded exactly."""
    if not rewritten and not call.stream:
        return request
    headers = {
        name: value
        for name, value in request.headers.items()
        if name.lower() not in ("content-length", "accept-encoding")
    }
    if call.stream:
        headers["accept-encoding"] = "identity"
    else:
        headers["accept-encoding"] = request.headers.get("accept-encoding", "identity")
    content = _wire.outgoing(call) if rewritten else request.content
    return module.Request(request.method, request.url, headers=headers, content=content, extensions=request.extensions)


def _rewrite(scope: RunScope, call: _wire.ModelCall) -> tuple[_wire.ModelCall, bool]:
    body = dict(model.rewritten(scope, call.body))
    return (call, False) if body == call.body else (call._replace(body=body), True)


def _response(module: ModuleType, request: Any, found: _wire.Replayed, *, asynchronous: bool) -> Any:
    if found.chunks is None:
        return module.Response(found.status, headers=found.headers, content=found.content, request=request)
    stream = _AsyncPieces(found.chunks) if asynchronous else _Pieces(found.chunks)
    kind = make_stream_type(module, asynchronous)
    return module.Response(found.status, headers=found.headers, stream=kind(stream, None), request=request)


class _Pieces:
    def __init__(self, chunks: list[bytes]) -> None:
        self._chunks = chunks

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._chunks)


class _AsyncPieces:
    def __init__(self, chunks: list[bytes]) -> None:
        self._chunks = chunks

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for chunk in self._chunks:
            yield chunk


class _Tape:
    """Keeps the pieces of a live stream; each is written when the next one is asked for."""

    def __init__(self, boundary: Boundary, call: _wire.ModelCall) -> None:
        self.boundary = boundary
        self.call = call
        self.pieces: list[bytes] = []
        self._last = time.monotonic()
        self.ended = False

    def piece(self, data: bytes) -> None:
        now = time.monotonic()
        self.boundary.chunk(_wire.piece_text(data), (now - self._last) * 1000)
        self._last = now
        self.pieces.append(data)

    async def end(self, error: BaseException | None) -> None:
        if self.ended:
            return
        self.ended = True
        if error is not None and not isinstance(error, GeneratorExit):
            await self.boundary.finish("error", error=error_payload(error), value={"chunks": len(self.pieces)})
            return
        whole = assemble_response(sse_events(self.pieces), self.call.provider)
        outcome, meta = model.outcome_of(whole, self.call.provider)
        if error is not None:
            meta["brokenOff"] = True
        await self.boundary.finish(outcome, value=whole, meta=meta)


_stream_types: dict[tuple[str, bool], Any] = {}


def make_stream_type(module: ModuleType, asynchronous: bool) -> Any:
    """A byte stream of *module* that passes pieces on and records them on the way."""
    place = (module.__name__, asynchronous)
    if place in _stream_types:
        return _stream_types[place]
    if asynchronous:

        class AsyncRecorded(module.AsyncByteStream):  # type: ignore[misc, name-defined]
            def __init__(self, source: Any, tape: _Tape | None) -> None:
                self._source = source
                self._tape = tape

            async def __aiter__(self) -> AsyncIterator[bytes]:
                tape = self._tape
                try:
                    async for data in self._source:
                        if tape is not None:
                            await tape.boundary.pulled()
                            tape.piece(data)
                        yield data
                except BaseException as error:
                    if tape is not None:
                        await tape.end(error)
                    raise
                if tape is not None:
                    await tape.end(None)

            async def aclose(self) -> None:
                if self._tape is not None:
                    await self._tape.end(GeneratorExit())
                close = getattr(self._source, "aclose", None)
                if close is not None:
                    await close()

        _stream_types[place] = AsyncRecorded
    else:

        class Recorded(module.SyncByteStream):  # type: ignore[misc, name-defined]
            def __init__(self, source: Any, tape: _Tape | None) -> None:
                self._source = source
                self._tape = tape

            def __iter__(self) -> Iterator[bytes]:
                tape = self._tape
                try:
                    for data in self._source:
                        if tape is not None:
                            drive(tape.boundary.pulled())
                            tape.piece(data)
                        yield data
                except BaseException as error:
                    if tape is not None:
                        drive(tape.end(error))
                    raise
                if tape is not None:
                    drive(tape.end(None))

            def close(self) -> None:
                if self._tape is not None:
                    drive(self._tape.end(GeneratorExit()))
                close = getattr(self._source, "close", None)
                if close is not None:
                    close()

        _stream_types[place] = Recorded
    return _stream_types[place]


def handle(module: ModuleType, request: Any, send: Any) -> Any:
    """One request of a synchronous client; *send* is the transport underneath."""
    request.read()
    found = _recognise(request)
    if found is None:
        return send(request)
    scope, call = found
    call, changed = _rewrite(scope, call)
    boundary = _wire.open_call(scope, call, request.headers, asynchronous=False)
    answer = drive(boundary.answer())
    drive(boundary.start())
    if answer is not None:
        return _given(module, request, boundary, call, answer)
    try:
        response = send(_sent(module, request, call, changed))
        if call.stream and response.status_code < 400:
            tape = _Tape(boundary, call)
            stream = make_stream_type(module, False)(response.stream, tape)
            headers, extensions = response.headers, response.extensions
            return module.Response(
                response.status_code, headers=headers, stream=stream, request=request, extensions=extensions
            )
        content = response.read()
    except BaseException as error:
        drive(boundary.finish("error", error=error_payload(error)))
        raise
    drive(_wire.finish(boundary, call, response.status_code, response.headers, content))
    return response


async def handle_async(module: ModuleType, request: Any, send: Any) -> Any:
    """One request of an asynchronous client."""
    await request.aread()
    found = _recognise(request)
    if found is None:
        return await send(request)
    scope, call = found
    call, changed = _rewrite(scope, call)
    boundary = _wire.open_call(scope, call, request.headers, asynchronous=True)
    answer = await boundary.answer()
    await boundary.start()
    if answer is not None:
        return await _given_async(module, request, boundary, call, answer)
    try:
        response = await send(_sent(module, request, call, changed))
        if call.stream and response.status_code < 400:
            tape = _Tape(boundary, call)
            stream = make_stream_type(module, True)(response.stream, tape)
            headers, extensions = response.headers, response.extensions
            return module.Response(
                response.status_code, headers=headers, stream=stream, request=request, extensions=extensions
            )
        content = await response.aread()
    except BaseException as error:
        await boundary.finish("error", error=error_payload(error))
        raise
    await _wire.finish(boundary, call, response.status_code, response.headers, content)
    return response


def _given(module: ModuleType, request: Any, boundary: Boundary, call: _wire.ModelCall, answer: Any) -> Any:
    drive(_note_given(boundary, answer))
    return _response(module, request, _wire.replayed(answer, call), asynchronous=False)


async def _given_async(module: ModuleType, request: Any, boundary: Boundary, call: _wire.ModelCall, answer: Any) -> Any:
    await _note_given(boundary, answer)
    return _response(module, request, _wire.replayed(answer, call), asynchronous=True)


async def _note_given(boundary: Boundary, answer: Any) -> None:
    error = None if answer.error is None else dict(answer.error)
    await boundary.finish(answer.outcome, value=answer.value, error=error, meta=dict(answer.meta))


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
