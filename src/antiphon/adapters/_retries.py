"""Retries for wrapped clients: the SDK's own are off, so they are made here, below the recording.

| a request is retried after                                                | not after                             |
|---------------------------------------------------------------------------|---------------------------------------|
| a connection that failed, broke or timed out                              | a cancelled task                      |
| 408, 409, 429 and 5xx; other statuses with ``x-should-retry: true``       | ``x-should-retry: false``             |
| a stream that broke before its first chunk                                | the first chunk of a stream           |
| a JSON body that broke                                                    | a ``Retry-After`` of over two minutes |

The pause is what the provider asks for, or else 0.5 s, doubled each time up to 8 s, minus up to 25 % jitter. There are
as many retries as the client had, and none that would start after the deadline of the calling tool.
"""

from __future__ import annotations

import random
import sys
import time
from functools import cache
from types import ModuleType, SimpleNamespace
from typing import Any

from antiphon._drive import drive
from antiphon._gateway.context import current_call
from antiphon.adapters._requirements import require
from antiphon.decide._answers import retry_after_ms

ATTEMPTS = "antiphon_attempts"
"""Response extension: the number of requests it took."""
DEFAULT_RETRIES = 2
_FIRST_S, _LONGEST_S, _LONGEST_ASKED_S = 0.5, 8.0, 120.0


def pause_s(response: Any, retry: int, chance: float, wall_ms: int) -> float | None:
    """How long to wait before a retry, or ``None`` for no retry; the first *retry* is 0.

    *response* is ``None`` for a connection that failed.
    """
    asked = None
    if response is not None:
        should_retry = response.headers.get("x-should-retry")
        status = response.status_code
        if should_retry == "false" or (should_retry != "true" and status not in (408, 409, 429) and status < 500):
            return None
        asked = retry_after_ms(SimpleNamespace(response=response), wall_ms)  # type: ignore[arg-type]
        if asked is not None and asked > _LONGEST_ASKED_S * 1000:
            return None
    if asked:
        return asked / 1000
    return float(min(_LONGEST_S, _FIRST_S * 2**retry) * (1 - chance / 4))


@cache
def transports(name: str) -> tuple[Any, Any]:
    """A synchronous and an asynchronous transport class that wrap another transport; both take it and a handler, which
    is called with the module, the request, and the send method of the inner transport.
    """
    module = require(name)

    class Around(module.BaseTransport):  # type: ignore[misc, name-defined]
        def __init__(self, inner: Any, handle: Any) -> None:
            self._inner, self._handle = inner, handle

        def handle_request(self, request: Any) -> Any:
            return self._handle(module, request, self._inner.handle_request)

        def close(self) -> None:
            self._inner.close()

    class AsyncAround(module.AsyncBaseTransport):  # type: ignore[misc, name-defined]
        def __init__(self, inner: Any, handle: Any) -> None:
            self._inner, self._handle = inner, handle

        async def handle_async_request(self, request: Any) -> Any:
            return await self._handle(module, request, self._inner.handle_async_request)

        async def aclose(self) -> None:
            await self._inner.aclose()

    return Around, AsyncAround


def retrying(inner: Any, retries: int, *, module: str, asynchronous: bool) -> Any:
    """*inner* with retries."""

    def send_again(module: Any, request: Any, send: Any) -> Any:
        sending = _Sending(module, request, send, retries, asynchronous).run()
        return sending if asynchronous else drive(sending)

    return transports(module)[asynchronous](inner, send_again) if retries > 0 else inner


@cache
def _resumed(module: ModuleType) -> Any:
    """A response body whose first chunk has already been read."""

    class Resumed(module.SyncByteStream, module.AsyncByteStream):  # type: ignore[misc, name-defined]
        def __init__(self, first: bytes, rest: Any, response: Any) -> None:
            self._first, self._rest, self._response = first, rest, response

        def __iter__(self) -> Any:
            yield self._first
            yield from self._rest

        async def __aiter__(self) -> Any:
            yield self._first
            async for chunk in self._rest:
                yield chunk

        def close(self) -> None:
            self._response.close()

        async def aclose(self) -> None:
            await self._response.aclose()

    return Resumed


class _Sending:
    """One request and its retries; suspends only if asynchronous."""

    def __init__(self, module: Any, request: Any, send: Any, retries: int, asynchronous: bool) -> None:
        self._module, self._request, self._send = module, request, send
        self._retries, self._asynchronous = retries if _can_be_read_again(module, request) else 0, asynchronous

    async def run(self) -> Any:
        for retry in range(self._retries + 1):
            last = retry == self._retries
            try:
                response = await self._reached(self._send(self._request))
                if response.status_code < 400:
                    response = await self._opened(response)
                    response.extensions[ATTEMPTS] = retry + 1
                    return response
            except (self._module.TransportError, OSError, RuntimeError) as error:
                # a RuntimeError: a pooled connection of a closed loop
                if last or isinstance(error, (self._module.UnsupportedProtocol, self._module.LocalProtocolError)):
                    raise
                wait = self._wait(None, retry)
                if wait is None:
                    raise
            else:
                wait = None if last else self._wait(response, retry)
                if wait is None:
                    response.extensions[ATTEMPTS] = retry + 1
                    return response
                await self._closed(response)
            await self._sleep(wait)
        raise AssertionError("the last attempt returns or raises")

    def _wait(self, response: Any, retry: int) -> float | None:
        wait = pause_s(response, retry, random.random(), time.time_ns() // 1_000_000)
        call = current_call()
        if wait is not None and call is not None and call.deadline is not None and time.time() + wait >= call.deadline:
            return None
        return wait

    async def _opened(self, response: Any) -> Any:
        """The response with enough of its body to know that it succeeded: all of JSON, one chunk of a stream."""
        kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
        try:
            if kind == "application/json":
                await self._reached(response.aread() if self._asynchronous else response.read())
                return response
            if kind != "text/event-stream":
                return response
            if self._asynchronous:
                rest: Any = aiter(response.stream)
                first = await anext(rest, b"")
            else:
                rest = iter(response.stream)
                first = next(rest, b"")
        except BaseException:  # including decoding errors and cancellation
            await self._closed(response)
            raise
        return self._module.Response(
            response.status_code,
            headers=response.headers,
            request=self._request,
            extensions=response.extensions,
            stream=_resumed(self._module)(first, rest, response),
        )

    async def _reached(self, reply: Any) -> Any:
        return await reply if self._asynchronous else reply

    async def _closed(self, response: Any) -> None:
        if self._asynchronous:
            await response.aclose()
        else:
            response.close()

    async def _sleep(self, seconds: float) -> None:
        if not self._asynchronous:
            time.sleep(seconds)
            return
        anyio: Any = sys.modules.get("anyio")  # installed with the SDKs, and works in every event loop
        if anyio is None:
            import asyncio as anyio
        await anyio.sleep(seconds)


def _can_be_read_again(module: Any, request: Any) -> bool:
    """Whether the body is in memory; a streamed body cannot be read again."""
    try:
        request.content  # noqa: B018
    except module.RequestNotRead:
        return False
    return True
