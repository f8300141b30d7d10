"""Streams of models: recorded on their way to the reader, and replayed (D18).

Each class can be iterated by synchronous and asynchronous code; nothing else in it differs.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from itertools import zip_longest
from typing import Any

from antiphon._daemon import expect_collection, outside_collection
from antiphon._drive import AFTER, drive, until_cancelled, was_cancelled
from antiphon._recording.boundary import Boundary, error_payload
from antiphon._recording.plain import chunk_of
from antiphon.contract.events import CHUNKS
from antiphon.errors import CallFailed, ReplayMiss, rebuild_exception
from antiphon.ports import STREAM_ABANDONED, Answer

STREAM = {"stream": True}
_END: Any = object()


class StreamLog:
    """Records a stream. A chunk is noted on its way to the reader, and written when the reader comes back."""

    def __init__(self, boundary: Boundary, meta: dict[str, Any] = STREAM) -> None:
        self.boundary = boundary
        self.chunks: list[Any] = []
        self._meta = meta
        self._last = time.monotonic()
        self._ended = False
        boundary.scope.streams[id(self)] = self._leave

    def _leave(self) -> None:
        """The run has ended, and nobody read on or closed the stream: some readers just drop it."""
        self.boundary.asynchronous = False
        drive(self.end(GeneratorExit()))

    def took(self, chunk: Any) -> None:
        """A chunk is on its way to the reader."""
        now = time.monotonic()
        self.chunks.append(chunk)
        self.boundary.chunk(self.encode(chunk), (now - self._last) * 1000)
        self._last = now

    async def pulled(self) -> None:
        """The reader asks for more."""
        if not self._ended:
            await self.boundary.pulled()

    async def end(self, error: BaseException | None) -> None:
        """The stream has ended: read to its end, abandoned by its reader (``GeneratorExit``), or failed."""
        if self._ended:
            return
        self._ended = True
        self.boundary.scope.streams.pop(id(self), None)
        left = isinstance(error, GeneratorExit)
        if error is None or ((left or was_cancelled(error_payload(error))) and self.complete()):
            await self.finish()
            return
        message = f"The stream was not read after chunk {len(self.chunks)}."
        failure = {"class": "", "code": STREAM_ABANDONED, "message": message} if left else self.failed(error)
        await self.boundary.finish("error", value=self.partial(), error=failure, meta=self._meta)

    async def finish(self) -> None:
        """Record the stream's summary."""
        outcome, value, meta = self.summary()
        counted = {CHUNKS: len(self.chunks)}
        await self.boundary.finish(outcome, value=value, meta={**meta, **self._meta, **counted})

    def summary(self) -> tuple[str, Any, dict[str, Any]]:
        """Outcome, recorded value and metadata of the whole stream."""
        raise NotImplementedError

    def encode(self, chunk: Any) -> Any:
        """A chunk as it is recorded."""
        return chunk

    def failed(self, error: BaseException) -> dict[str, Any]:
        """A failure as it is recorded."""
        return error_payload(error, held=True)

    def complete(self) -> bool:
        """Whether a reader that stops now has read everything that matters."""
        return False

    def partial(self) -> Any:
        """The recorded value of a stream that was not read to its end."""
        return None


class LiveStream:
    """The chunks of the stream that *send* opens, recorded in *log*; *around* is entered whenever the source runs."""

    def __init__(
        self,
        send: Callable[[], Any],
        log: StreamLog,
        around: Callable[[], AbstractContextManager[Any]] = nullcontext,
    ) -> None:
        self._send = send
        self._log = log
        self._around = around

    def __iter__(self) -> Iterator[Any]:
        log, around, asking = self._log, self._around, self._log.boundary.asking
        expect_collection()
        try:
            with around(), asking():
                source = iter(self._send())
            while True:
                with around(), asking():
                    chunk = next(source, _END)
                if chunk is _END:
                    break
                log.took(chunk)
                yield chunk
                drive(log.pulled())
        except GeneratorExit as left:
            outside_collection(partial(_end, log, left))
            raise
        except BaseException as error:
            _end(log, error)
            raise
        _end(log, None)

    async def __aiter__(self) -> AsyncIterator[Any]:
        log, around, asking = self._log, self._around, self._log.boundary.asking
        try:
            with around(), asking():
                source = aiter(self._send())
            while True:
                with around(), asking():
                    chunk = await anext(source, _END)
                if chunk is _END:
                    break
                log.took(chunk)
                yield chunk
                await log.pulled()
        except BaseException as error:  # GeneratorExit: nobody reads on, and perhaps nobody closes it
            await log.end(error)
            raise
        await log.end(None)


def _end(log: StreamLog, error: BaseException | None) -> None:
    drive(log.end(error))


class ReplayedStream:
    """The recorded chunks, with their pauses if the replay keeps them, then the exception that ended them.

    If the recorded reader's task was cancelled (after *given_up* milliseconds), the stream waits for that at its end.
    """

    def __init__(
        self,
        chunks: Iterable[Any],
        gaps_ms: Sequence[float] = (),
        failure: BaseException | None = None,
        given_up: float | None = None,
    ) -> None:
        known = list(chunks)
        self._timed: list[Any] = list(zip_longest(known, gaps_ms[: len(known)], fillvalue=0))
        self._failure = failure
        self._given_up = given_up

    @classmethod
    def of(
        cls,
        answer: Answer,
        decode: Callable[[Any], Any],
        raised: Callable[[Answer], BaseException],
    ) -> ReplayedStream:
        """The stream of *answer*; *raised* creates the exception of a recorded failure."""
        failure: BaseException | None = None
        if (answer.error or {}).get("code") == STREAM_ABANDONED:
            failure = read_past_end(len(answer.chunks or ()))
        elif answer.outcome == "error":
            failure = raised(answer)
        given_up = answer.meta.get(AFTER, 0) if was_cancelled(answer.error) else None
        return cls(map(decode, answer.chunks or ()), answer.meta.get("gapsMs", ()), failure, given_up)

    def __iter__(self) -> Iterator[Any]:
        for chunk, pause in self._timed:
            if pause:
                time.sleep(pause / 1000)
            yield chunk
        if self._failure is not None:
            raise self._failure

    async def __aiter__(self) -> AsyncIterator[Any]:
        for chunk, pause in self._timed:
            if pause:
                import asyncio

                await asyncio.sleep(pause / 1000)
            yield chunk
        if self._given_up is not None:
            await until_cancelled("llm", self._given_up)
        if self._failure is not None:
            raise self._failure


def read_past_end(chunks: int) -> ReplayMiss:
    """Raised by a replay where the recorded reader had abandoned a stream: there are no more chunks."""
    return ReplayMiss(f"The recorded reader left this stream after chunk {chunks}; now it reads on.")


def failure_of(answer: Answer) -> BaseException:
    """A recorded error of a model call, raised again."""
    error = answer.error or {}
    again = rebuild_exception(error, chunk_of)
    if again is not None:
        return again
    return CallFailed(str(error.get("message", "")), code=str(error.get("code", "error")), recorded=dict(error))
