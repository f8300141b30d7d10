"""Tools that return streams: committed with the first chunk, recorded chunk by chunk (D18, D33).

The first chunk is part of the attempt: until it arrives, a failure may be retried. The end of a stream resumes the
driver with the step that settles the call.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

from antiphon._daemon import expect_collection, outside_collection
from antiphon._gateway import results
from antiphon._gateway.attempt import stream_broken_off, stream_ended, stream_failed
from antiphon._gateway.call import GuardedCall
from antiphon._gateway.outcome import Outcome
from antiphon._gateway.recording import recordable
from antiphon._gateway.source import END, Opened
from antiphon._gateway.steps import Step
from antiphon.decide.classify import is_control_flow
from antiphon.errors import StoreError
from antiphon.ports import Row

log = logging.getLogger("antiphon.gateway")

Resume = Callable[[Step], Any]
"""Continues the call: ``run_sync`` or ``run_async`` with its services."""


class StreamState:
    """The chunks so far, and the one place where a stream ends."""

    def __init__(self, call: GuardedCall) -> None:
        self.call = call
        self.chunks: list[Any] = []
        clock = call.plan.clock
        self.last_pull = self._last = clock.monotonic()
        self.ended = False
        self._ending = threading.Lock()
        self._log: Any = None
        """Takes the chunks for the run log, if there is one."""
        call.off_path().stream = self

    @property
    def outcome(self) -> Outcome | None:
        """The outcome of the stream, once it has ended."""
        return self.call.outcome if self.ended else None

    def due(self) -> list[Row]:
        """The reader requested the next chunk: the rows of the chunk it has are due."""
        self.last_pull = self.call.plan.clock.monotonic()
        return [] if self._log is None else self._log.due()

    def rest(self) -> list[Row]:
        """What is left to be written at the end."""
        return [] if self._log is None else self._log.remaining()

    def missed(self, rows: list[Row], error: StoreError) -> None:
        log.error("%d chunks of %s are missing from the run log: %s", len(rows), self.call.plan.name, error)

    def chunk(self, data: Any) -> Any:
        """Keep a chunk. Its event is written when the next one is requested, so that no chunk is delayed."""
        now = self.call.plan.clock.monotonic()
        gap, self._last = (now - self._last) * 1000, now
        self.chunks.append(data)
        run = self.call.run
        if run is not None and run.scope.records and not self.call.plan.pass_through:
            if self._log is None:
                self._log = run.scope.chunks(run.site)
            self._log.add(data if isinstance(data, (str, bytes)) else recordable(data), gap)
        return data

    def failure(self) -> BaseException | None:
        """What a reader gets that returns to a stream which did not end well."""
        outcome = self.outcome
        return None if outcome is None or outcome.status == "success" else results.exception_of(self.call, outcome)

    def break_off(self, journal: Any, why: str) -> None:
        """End the stream from another thread (the idle limit); a later pull reports it."""
        step = self.end(_ReaderIdle(why), why)
        if step is not None:
            self.call.plan.plans.leases.resume(journal, self.call, step)

    def end(self, error: BaseException | None, why: str = "its stream was not read to the end") -> Step | None:
        """The tool finished, failed, or its reader went away; ``None`` for the second caller."""
        with self._ending:
            if self.ended:
                return None
            call, count = self.call, len(self.chunks)
            if error is None:
                step = stream_ended(call, self.chunks)
            elif is_control_flow(error):
                step = stream_broken_off(call, why, str(error), count)
            else:
                step = stream_failed(call, error, count)
            self.ended = True
            return step


class _ReaderIdle(GeneratorExit):
    """The reader was idle for too long."""


class SyncStream(Iterator[Any]):
    """A generator's chunks, each pulled and recorded in turn."""

    def __init__(self, state: StreamState, opened: Opened, resume: Resume) -> None:
        self.state = state
        self._source = opened.source
        self._ahead = [opened.first]
        """Chunks that have arrived before they were requested."""
        self._resume = resume
        _open.add(self)
        expect_collection()

    def __iter__(self) -> SyncStream:
        return self

    def __next__(self) -> Any:
        state = self.state
        if state.ended:
            failure = state.failure()
            raise StopIteration if failure is None else failure
        self._write(state.due())
        try:
            data = self._ahead.pop() if self._ahead else self._source.pull()
        except BaseException as error:
            self._end(error)
            if is_control_flow(error):
                raise
            outcome = state.call.outcome
            assert outcome is not None
            results.raise_for(state.call, outcome)
        if data is END:
            self._end(None)
            raise StopIteration
        return state.chunk(data)

    def _write(self, rows: list[Row]) -> None:
        run = self.state.call.run
        if rows and run is not None and run.scope.write is not None:
            try:
                run.scope.write(rows)
            except StoreError as error:
                self.state.missed(rows, error)

    def _end(self, error: BaseException | None) -> None:
        step = self.state.end(error)
        if step is not None:
            self._write(self.state.rest())
            self._resume(step)

    def close(self) -> None:
        """Stop reading; the record says that the stream was not read to its end."""
        if not self.state.ended:
            try:
                self._source.close()
            finally:
                self._end(GeneratorExit("its reader stopped"))

    def __enter__(self) -> SyncStream:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __del__(self) -> None:
        if not self.state.ended:
            outside_collection(self.close)

    def close_at_exit(self) -> None:
        """Close the stream while modules can still be imported, unless a daemon thread is reading it."""
        if not self._source.running:
            try:
                self.close()
            except Exception:
                log.exception("the stream of %s was not closed", self.state.call.plan.name)


_open: weakref.WeakSet[SyncStream] = weakref.WeakSet()


def _at_exit() -> None:
    for stream in list(_open):
        stream.close_at_exit()


os.register_at_fork(after_in_child=_open.clear)
atexit.register(_at_exit)


class AsyncStream(AsyncIterator[Any]):
    """An asynchronous generator's chunks."""

    def __init__(
        self,
        state: StreamState,
        opened: Opened,
        resume: Callable[[Step], Awaitable[Any]],
        shielded: Callable[[Awaitable[Any]], Awaitable[None]],
    ) -> None:
        self.state = state
        self._source = opened.source
        self._ahead = [opened.first]
        """Chunks that have arrived before they were requested."""
        self._resume = resume
        self._shielded = shielded

    def __aiter__(self) -> AsyncStream:
        return self

    async def __anext__(self) -> Any:
        state = self.state
        if state.ended:
            failure = state.failure()
            raise StopAsyncIteration if failure is None else failure
        await self._write(state.due())
        try:
            data = self._ahead.pop() if self._ahead else await self._source.pull_async()
        except BaseException as error:
            await self._end(error)
            if is_control_flow(error):
                raise
            outcome = state.call.outcome
            assert outcome is not None
            results.raise_for(state.call, outcome)
        if data is END:
            await self._end(None)
            raise StopAsyncIteration
        return state.chunk(data)

    async def _write(self, rows: list[Row]) -> None:
        run = self.state.call.run
        if rows and run is not None and run.scope.write_async is not None:
            try:
                await run.scope.write_async(rows)
            except StoreError as error:
                self.state.missed(rows, error)

    async def _end(self, error: BaseException | None) -> None:
        """End the stream even if the reader is being cancelled."""
        step = self.state.end(error)
        if step is not None:
            await self._shielded(self._finish(step))

    async def _finish(self, step: Step) -> None:
        await self._write(self.state.rest())
        await self._resume(step)

    async def aclose(self) -> None:
        """Stop reading; the record says that the stream was not read to its end."""
        if not self.state.ended:
            try:
                await self._source.aclose()
            finally:
                await self._end(GeneratorExit("its reader stopped"))

    async def __aenter__(self) -> AsyncStream:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()
