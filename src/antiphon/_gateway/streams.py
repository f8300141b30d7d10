"""Tools that answer in pieces: committed with the first piece, recorded piece by piece (D18, D33)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, Any

from antiphon._drive import drive
from antiphon._gateway import claims
from antiphon._gateway.call import Call, Outcome, failed
from antiphon.decide.classify import classify, is_control_flow
from antiphon.ports import Final, Row

if TYPE_CHECKING:
    from antiphon._gateway.core import Core


class StreamState:
    """Chunks so far, and the one place where a stream ends."""

    def __init__(self, core: Core, call: Call, permits: Any, began: float) -> None:
        self.core = core
        self.call = call
        self.permits = permits
        self.began = began
        self.chunks: list[Any] = []
        self.last_pull = core.clock.monotonic()
        self.ended = False
        self.broken: str | None = None
        self._last = core.clock.monotonic()
        self._unwritten: Row | None = None

    async def pulled(self) -> None:
        """The reader asked for the next piece: time to write the one it has."""
        self.last_pull = self.core.clock.monotonic()
        row, self._unwritten = self._unwritten, None
        scope = self.call.scope
        if row is not None and scope is not None and scope.sink is not None:
            await scope.sink((row,), self.core.asynchronous)

    def chunk(self, data: Any) -> None:
        """Keep a piece. Its event is written when the next one is asked for, so that no piece is delayed."""
        now = self.core.clock.monotonic()
        gap, self._last = (now - self._last) * 1000, now
        call = self.call
        self.chunks.append(data)
        scope = call.scope
        if scope is not None and scope.sink is not None and call.site is not None:
            payload = {"n": len(self.chunks) - 1, "data": data}
            self._unwritten = scope.encode("call.chunk", call.site, payload, {"gapMs": round(gap, 3)})

    def break_off(self, why: str) -> None:
        """End the stream from outside (the idle limit); a later pull finds it ended."""
        if not self.ended:
            self.broken = why
            journal = self.core.store.open_sync()
            try:
                final = self._broken_final(why)
                drive(journal.settle(self.call.key, self.call.version, final))
            finally:
                drive(journal.close())
            self.ended = True

    def _broken_final(self, why: str) -> Final:
        call = self.call
        if call.tool.spec.idempotent:
            return Final("cancelled", call.tool.ttl.failed_ms, attempt_count=1, dispatched=True)
        return claims.unknown_final(call, why)

    async def end(self, error: BaseException | None) -> None:
        """The tool finished, failed, or its reader went away."""
        if self.ended:
            return
        self.ended = True
        await self.pulled()
        core, call = self.core, self.call
        core.renewer.release(call)
        path = core.breakers.path(call.tool, call.hint)
        now = core.clock.monotonic()
        if error is None:
            for breaker, permit in self.permits:
                breaker.success(permit, now)
            core.attempts.note(call, self.began, now)
            outcome = Outcome("success", self.chunks, attempts=1)
            if call.version:
                await claims.settle(core, call, outcome)
        elif is_control_flow(error):
            core.attempts.vote(path, self.permits, None)
            core.attempts.note(call, self.began, now, error_code="cancelled")
            outcome = failed("error", "stream_broken_off", "The stream was not read to its end.", attempts=1)
            if call.version:
                await claims.write(core, call, self._broken_final("its stream was not read to the end"), outcome)
        else:
            failure = classify(error, call.tool.spec)
            core.attempts.vote(path, self.permits, failure)
            core.attempts.note(call, self.began, now, error_code=failure.code, retriable=failure.retriable)
            unknown = not call.tool.spec.idempotent and failure.retriable
            code = "outcome_unknown" if unknown else failure.code
            outcome = failed("error", code, failure.message, attempts=1)
            outcome.exception = error
            if call.version:
                await claims.settle(core, call, outcome)
        outcome.metadata = {**(outcome.metadata or {}), "chunks": len(self.chunks)}
        await core.finish(call, outcome, None)


def open_stream(core: Core, call: Call, source: Any, permits: Any, began: float) -> Any:
    """The iterator handed to the caller in place of the tool's own."""
    state = StreamState(core, call, permits, began)
    call.lease = state
    if call.tool.kind == "generator":
        return SyncStream(state, source)
    return AsyncStream(state, source)


class SyncStream(Iterator[Any]):
    """A generator's pieces, each driven and recorded in turn."""

    def __init__(self, state: StreamState, source: Iterator[Any]) -> None:
        self.state = state
        self._source = source

    def __iter__(self) -> SyncStream:
        return self

    def __next__(self) -> Any:
        state = self.state
        if state.ended:
            raise StopIteration
        drive(state.pulled())
        try:
            data = next(self._source)
        except StopIteration:
            drive(state.end(None))
            raise
        except BaseException as error:
            drive(state.end(error))
            raise
        state.chunk(data)
        return data

    def close(self) -> None:
        """Stop reading; the record says that the stream was broken off."""
        close = getattr(self._source, "close", None)
        if close is not None:
            close()
        if not self.state.ended:
            drive(self.state.end(GeneratorExit()))

    def __enter__(self) -> SyncStream:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __del__(self) -> None:
        if not self.state.ended:
            self.close()


class AsyncStream(AsyncIterator[Any]):
    """An asynchronous generator's pieces."""

    def __init__(self, state: StreamState, source: AsyncIterator[Any]) -> None:
        self.state = state
        self._source = source

    def __aiter__(self) -> AsyncStream:
        return self

    async def __anext__(self) -> Any:
        state = self.state
        if state.ended:
            raise StopAsyncIteration
        await state.pulled()
        try:
            data = await anext(self._source)
        except StopAsyncIteration:
            await state.end(None)
            raise
        except BaseException as error:
            await state.end(error)
            raise
        state.chunk(data)
        return data

    async def aclose(self) -> None:
        """Stop reading; the record says that the stream was broken off."""
        close = getattr(self._source, "aclose", None)
        if close is not None:
            await close()
        if not self.state.ended:
            await self.state.end(GeneratorExit())

    async def __aenter__(self) -> AsyncStream:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()


def reused_chunks(outcome: Outcome) -> Iterator[Any]:
    """A reused stream: the recorded pieces again."""
    return iter(outcome.value if isinstance(outcome.value, list) else [])


async def reused_chunks_async(outcome: Outcome) -> AsyncIterator[Any]:
    """A reused stream for asynchronous readers."""
    for data in reused_chunks(outcome):
        yield data
