"""Tools that answer in pieces: committed with the first piece, recorded piece by piece (D18, D33).

The first piece is part of the attempt: until it is there, a failure may be tried again. The generator runs in a
context of its own, entered for each step and left before the piece is handed on.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import AsyncIterator, Awaitable, Generator, Iterator
from contextvars import copy_context
from typing import TYPE_CHECKING, Any, NamedTuple

from antiphon._drive import drive
from antiphon._gateway import edge, record, settling
from antiphon._gateway.call import Call, Outcome, failed
from antiphon._gateway.context import CallContext, held, running
from antiphon._gateway.hooks import HookCall
from antiphon._gateway.threads import TimedOut
from antiphon.contract.result import Status
from antiphon.decide.classify import is_control_flow
from antiphon.errors import StoreError
from antiphon.ports import Clock, Journal, Row

if TYPE_CHECKING:
    from antiphon._gateway.core import Core

log = logging.getLogger("antiphon.gateway")

END: Any = object()
"""Stands for the end of a stream."""


class Source:
    """A tool's generator, one step at a time, in a context of its own."""

    __slots__ = ("_clock", "_context", "_iterator", "_limit", "_until")

    def __init__(self, call: Call, context: CallContext | None, limit: float | None, clock: Clock) -> None:
        self._clock = clock
        self._limit = limit or 0.0
        self._until = None if limit is None else clock.monotonic() + limit
        self._context = copy_context()
        self._iterator = self._context.run(_start, call, context)

    def _left(self) -> float | None:
        """Seconds that are left; raises when none are."""
        if self._until is None:
            return None
        left = self._until - self._clock.monotonic()
        if left <= 0:
            raise TimedOut(self._limit)
        return left

    def pull(self) -> Any:
        """The next piece. A running step cannot be stopped: the limit is looked at between steps."""
        self._left()
        return self._context.run(next, self._iterator, END)

    async def pull_async(self) -> Any:
        left = self._left()
        step = _InContext(self._context, anext(self._iterator, END))
        return await (step if left is None else within(step, left))

    def close(self) -> None:
        self._context.run(self._iterator.close)

    async def aclose(self) -> None:
        await _InContext(self._context, self._iterator.aclose())


def _start(call: Call, context: CallContext | None) -> Any:
    """Set the scene inside the generator's context."""
    held.set((call.key, held.get()))
    running.set(context)
    if call.scope is not None and call.site is not None:
        call.scope.go_inside(call.site.call)
    return call.tool.invoke(call.params, context)


class _InContext:
    """An awaitable whose every step runs in the given context, not in the awaiting task's."""

    __slots__ = ("_awaitable", "_context")

    def __init__(self, context: Any, awaitable: Awaitable[Any]) -> None:
        self._context = context
        self._awaitable = awaitable

    def __await__(self) -> Generator[Any, Any, Any]:
        steps = self._awaitable.__await__()
        run = self._context.run
        try:
            waits_for = run(next, steps)
            while True:
                try:
                    sent = yield waits_for
                except BaseException as error:
                    waits_for = run(steps.throw, error)
                else:
                    waits_for = run(steps.send, sent)
        except StopIteration as stop:
            return stop.value


async def within(awaitable: Any, seconds: float) -> Any:
    """Await with a limit of ours, told apart from a ``TimeoutError`` of the tool's own."""
    import asyncio

    timeout = asyncio.timeout(seconds)
    try:
        async with timeout:
            return await awaitable
    except TimeoutError:
        if timeout.expired():
            raise TimedOut(seconds) from None
        raise


class Opened(NamedTuple):
    """A stream whose first piece is there."""

    source: Source
    first: Any


async def first_piece(call: Call, context: CallContext | None, limit: float | None, clock: Clock) -> Opened:
    """Start the generator and run it to its first piece."""
    source = Source(call, context, limit, clock)
    if call.tool.kind == "generator":
        return Opened(source, source.pull())
    return Opened(source, await source.pull_async())


class StreamState:
    """Pieces so far, and the one place where a stream ends."""

    def __init__(
        self, core: Core, call: Call, permits: Any, began: float, hooked: HookCall | None, attempts: int
    ) -> None:
        self.core = core
        self.call = call
        self.permits = permits
        self.began = began
        self.hooked = hooked
        self.attempts = attempts
        self.chunks: list[Any] = []
        self.last_pull = self._last = core.clock.monotonic()
        self.outcome: Outcome | None = None
        """What came of the stream, once it has ended."""
        self._ending = threading.Lock()
        self._pieces: Any = None
        """Takes the pieces for the run log, where there is one."""

    async def pulled(self) -> None:
        """The reader asked for the next piece: time to write the one it has."""
        self.last_pull = self.core.clock.monotonic()
        if self._pieces is not None:
            await self._write(self._pieces.due(), self.core.asynchronous)

    async def _write_rest(self, asynchronous: bool) -> None:
        if self._pieces is not None:
            await self._write(self._pieces.rest(), asynchronous)

    async def _write(self, rows: list[Row], asynchronous: bool) -> None:
        scope = self.call.scope
        if not rows or scope is None or scope.sink is None:
            return
        try:
            await scope.sink(rows, asynchronous)
        except StoreError as error:
            log.error("the run log misses %d pieces of %s: %s", len(rows), self.call.tool.full_name, error)

    def chunk(self, data: Any) -> Any:
        """Keep a piece. Its event is written when another one is asked for, so that no piece is delayed."""
        now = self.core.clock.monotonic()
        gap, self._last = (now - self._last) * 1000, now
        self.chunks.append(data)
        scope, site = self.call.scope, self.call.site
        if scope is not None and scope.sink is not None and site is not None:
            if self._pieces is None:
                self._pieces = scope.pieces(site)
            self._pieces.add(data if isinstance(data, (str, bytes)) else record.recordable(data), gap)
        return data

    def failure(self) -> BaseException:
        """What a reader is told that comes back to a stream which did not end well."""
        assert self.outcome is not None
        return edge.exception_of(self.call, self.outcome)

    @property
    def ended_badly(self) -> bool:
        return self.outcome is not None and self.outcome.status != "success"

    def break_off(self, journal: Journal, why: str) -> None:
        """End the stream from another thread (the idle limit); a later pull is told so."""
        outcome = self._take_end(_Left(why))
        if outcome is not None:
            final = settling.interrupted_final(self.call, why)
            drive(self._write_rest(False))
            drive(settling.write(self.core, self.call, final, outcome, journal=journal))
            drive(self._tell(outcome, elsewhere=True))

    async def end(self, error: BaseException | None) -> Outcome:
        """The tool finished, failed, or its reader went away."""
        outcome = self._take_end(error)
        if outcome is None:
            assert self.outcome is not None
            return self.outcome
        core, call = self.core, self.call
        core.renewer.release(call)
        await self._write_rest(core.asynchronous)
        if call.version:
            if error is not None and is_control_flow(error):
                final = settling.interrupted_final(call, "its stream was not read to the end")
                await settling.write(core, call, final, outcome)
            else:
                await settling.settle(core, call, outcome)
        await self._tell(outcome)
        return outcome

    async def _tell(self, outcome: Outcome, *, elsewhere: bool = False) -> None:
        """Once the record says what came of the stream, hooks and all others may know, too."""
        try:
            if self.hooked is not None:
                self.core.hooks.after(self.hooked, outcome)
        finally:
            await self.core.finish(self.call, outcome, None, elsewhere=elsewhere)

    def _take_end(self, error: BaseException | None) -> Outcome | None:
        """Decide what came of the stream; ``None`` for whoever comes second."""
        with self._ending:
            if self.outcome is not None:
                return None
            outcome = self.outcome = self._judge(error)
        outcome.metadata = {"chunks": len(self.chunks)}
        return outcome

    def _judge(self, error: BaseException | None) -> Outcome:
        core, call = self.core, self.call
        attempts = core.attempts
        path = core.breakers.path(call.tool, call.hint)
        now = core.clock.monotonic()
        if error is None:
            attempts.note(call, self.began, now)
            attempts.succeeded(path, self.permits, now)
            core.budget(call.tool).success()
            return Outcome("success", self.chunks, self.attempts)
        if is_control_flow(error):
            attempts.vote(path, self.permits, None)
            attempts.note(call, self.began, now, error_code="cancelled")
            message = f"The stream of {call.tool.full_name} was broken off after {len(self.chunks)} pieces: {error}"
            return failed("error", "stream_broken_off", message.rstrip(": "), attempts=self.attempts)
        failure = attempts.failure_of(call, error)
        attempts.vote(path, self.permits, failure)
        attempts.note(call, self.began, now, error_code=failure.code, retriable=failure.retriable)
        if not call.tool.spec.idempotent and not failure.definite:
            message = settling.unknown_message(call.tool.full_name, failure.message)
            outcome = failed("error", "outcome_unknown", message, attempts=self.attempts, reason=failure.code)
        else:
            status: Status = (
                "timeout" if failure.kind == "timeout" else "retriable_error" if failure.retriable else "error"
            )
            outcome = failed(status, failure.code, failure.message, retriable=failure.retriable, attempts=self.attempts)
        outcome.exception = error
        return outcome


class _Left(GeneratorExit):
    """The reader stayed away for too long."""


def open_stream(
    core: Core, call: Call, opened: Opened, permits: Any, began: float, hooked: HookCall | None, attempts: int
) -> Any:
    """The iterator handed to the caller in place of the tool's own."""
    state = StreamState(core, call, permits, began, hooked, attempts)
    call.lease = state
    kind = SyncStream if call.tool.kind == "generator" else AsyncStream
    return kind(state, opened)


class SyncStream(Iterator[Any]):
    """A generator's pieces, each driven and recorded in turn."""

    def __init__(self, state: StreamState, opened: Opened) -> None:
        self.state = state
        self._source, self._first = opened
        self._started = False

    def __iter__(self) -> SyncStream:
        return self

    def __next__(self) -> Any:
        state = self.state
        if state.outcome is not None:
            if state.ended_badly:
                raise state.failure()
            raise StopIteration
        drive(state.pulled())
        try:
            if self._started:
                data = self._source.pull()
            else:
                data, self._first, self._started = self._first, None, True
        except BaseException as error:
            outcome = drive(state.end(error))
            if is_control_flow(error):
                raise
            edge.raise_for(state.call, outcome)
        if data is END:
            drive(state.end(None))
            raise StopIteration
        return state.chunk(data)

    def close(self) -> None:
        """Stop reading; the record says that the stream was broken off."""
        if self.state.outcome is None:
            try:
                self._source.close()
            finally:
                drive(self.state.end(GeneratorExit("its reader stopped")))

    def __enter__(self) -> SyncStream:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()


class AsyncStream(AsyncIterator[Any]):
    """An asynchronous generator's pieces."""

    def __init__(self, state: StreamState, opened: Opened) -> None:
        self.state = state
        self._source, self._first = opened
        self._started = False

    def __aiter__(self) -> AsyncStream:
        return self

    async def __anext__(self) -> Any:
        state = self.state
        if state.outcome is not None:
            if state.ended_badly:
                raise state.failure()
            raise StopAsyncIteration
        await state.pulled()
        try:
            if self._started:
                data = await self._source.pull_async()
            else:
                data, self._first, self._started = self._first, None, True
        except BaseException as error:
            outcome = await _to_its_end(state, error)
            if is_control_flow(error):
                raise
            edge.raise_for(state.call, outcome)
        if data is END:
            await _to_its_end(state, None)
            raise StopAsyncIteration
        return state.chunk(data)

    async def aclose(self) -> None:
        """Stop reading; the record says that the stream was broken off."""
        if self.state.outcome is None:
            try:
                await self._source.aclose()
            finally:
                await _to_its_end(self.state, GeneratorExit("its reader stopped"))

    async def __aenter__(self) -> AsyncStream:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()


async def _to_its_end(state: StreamState, error: BaseException | None) -> Outcome:
    """End the stream even if the reader is being cancelled."""
    import asyncio

    return await asyncio.shield(asyncio.ensure_future(state.end(error)))


def bare(opened: Opened, asynchronous: bool) -> Any:
    """A stream that is only passed on (shadow mode)."""
    return _bare_async(opened) if asynchronous else _bare(opened)


def _bare(opened: Opened) -> Iterator[Any]:
    data = opened.first
    try:
        while data is not END:
            yield data
            data = opened.source.pull()
    finally:
        opened.source.close()


async def _bare_async(opened: Opened) -> AsyncIterator[Any]:
    data = opened.first
    try:
        while data is not END:
            yield data
            data = await opened.source.pull_async()
    finally:
        await opened.source.aclose()
