"""Byte streams for httpx and httpx2: live ones that are recorded on the way, and recorded ones again."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator, Sequence
from functools import cache
from itertools import zip_longest
from types import ModuleType
from typing import Any, NamedTuple, Protocol

from antiphon._drive import drive, until_cancelled


class Tape(Protocol):
    """Keeps what came."""

    def took(self, data: bytes) -> None: ...

    async def flush(self) -> None: ...

    async def end(self, error: BaseException | None) -> None: ...


class _Live:
    """Passes every piece on at once; it is written when the reader comes back for the next."""

    def __init__(self, source: Any, response: Any, tape: Tape) -> None:
        self._source = source
        self._response = response
        self._tape = tape

    def __iter__(self) -> Iterator[bytes]:
        try:
            for data in self._source:
                self._tape.took(data)
                yield data
                drive(self._tape.flush())
        except BaseException as error:
            drive(self._tape.end(error))
            raise
        drive(self._tape.end(None))

    def close(self) -> None:
        drive(self._tape.end(GeneratorExit()))
        self._response.close()


class _LiveAsync:
    def __init__(self, source: Any, response: Any, tape: Tape) -> None:
        self._source = source
        self._response = response
        self._tape = tape

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            async for data in self._source:
                self._tape.took(data)
                yield data
                await self._tape.flush()
        except BaseException as error:  # GeneratorExit: nobody reads on, and perhaps nobody closes
            await self._tape.end(error)
            raise
        await self._tape.end(None)

    async def aclose(self) -> None:
        await self._tape.end(GeneratorExit())
        await self._response.aclose()


class _Recorded:
    """The pieces as they were, with their pauses if they are kept, then the exception that ended them, if one did.

    A stream that its reader's task was cancelled in (after *given_up* milliseconds) waits for that at its end.
    """

    def __init__(
        self, pieces: list[bytes], failure: Exception | None, gaps: Sequence[float], given_up: float | None
    ) -> None:
        self._pieces: list[Any] = list(zip_longest(pieces, gaps[: len(pieces)], fillvalue=0))
        self._failure = failure
        self._given_up = given_up

    def __iter__(self) -> Iterator[bytes]:
        for data, pause in self._pieces:
            if pause:
                time.sleep(pause / 1000)
            yield data
        if self._failure is not None:
            raise self._failure


class _RecordedAsync(_Recorded):
    async def __aiter__(self) -> AsyncIterator[bytes]:
        for data, pause in self._pieces:
            if pause:
                import asyncio

                await asyncio.sleep(pause / 1000)
            yield data
        if self._given_up is not None:
            await until_cancelled("llm", self._given_up)
        if self._failure is not None:
            raise self._failure


class StreamTypes(NamedTuple):
    """The two kinds of streams a transport gives back."""

    live: Any
    recorded: Any


@cache
def stream_types(module: ModuleType, asynchronous: bool) -> StreamTypes:
    """The streams as *module* wants them: it looks at their base class."""
    if asynchronous:
        base: Any = module.AsyncByteStream
        kinds: tuple[type, ...] = (_LiveAsync, _RecordedAsync)
    else:
        base, kinds = module.SyncByteStream, (_Live, _Recorded)
    return StreamTypes(*(type(kind.__name__.strip("_"), (kind, base), {}) for kind in kinds))
