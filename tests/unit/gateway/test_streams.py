"""D18, D33: tools that answer in pieces."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from antiphon._gateway.context import CallContext
from antiphon.contract.spec import Happened
from antiphon.errors import CallFailed, CallTimeout, InFlight, InvalidInput
from tests.unit.gateway.kit import NEVER_TRIPS, AsyncRig, HttpError, Rig, envelope

Pieces = list[Any]


def streaming(rig: Rig, plans: list[Pieces], **spec: Any) -> Any:
    """A generator tool that follows a plan per attempt; an exception in the plan is raised at its place."""
    left = list(plans)

    def read(n: int = 0) -> Iterator[Any]:
        for piece in left.pop(0):
            if isinstance(piece, BaseException):
                raise piece
            yield piece

    return rig.gateway.tool("read", **({"idempotent": True} | spec))(read)


def async_streaming(rig: AsyncRig, plans: list[Pieces], **spec: Any) -> Any:
    left = list(plans)

    async def read(n: int = 0) -> AsyncIterator[Any]:
        for piece in left.pop(0):
            await asyncio.sleep(0)
            if isinstance(piece, BaseException):
                raise piece
            yield piece

    return rig.gateway.tool("read", **({"idempotent": True} | spec))(read)


async def listed(stream: Any) -> list[Any]:
    return [piece async for piece in stream]


# -- both faces ---------------------------------------------------------------------------------------------------


def test_pieces_come_one_by_one_and_are_kept() -> None:
    rig = Rig()
    read = streaming(rig, [["a", "b", "c"]], reuse="session")
    stream = read()
    assert next(stream) == "a"
    assert rig.records()[0].state == "inflight"
    assert list(stream) == ["b", "c"]
    assert rig.records()[0].state == "done"
    assert list(read()) == ["a", "b", "c"]  # reused: the kept pieces again


async def test_pieces_of_an_asynchronous_generator() -> None:
    rig = AsyncRig()
    read = async_streaming(rig, [["a", "b"]], reuse="session")
    assert await listed(read()) == ["a", "b"]
    assert await listed(read()) == ["a", "b"]
    assert rig.records()[0].state == "done"


def test_an_envelope_gets_all_pieces_at_once() -> None:
    rig = Rig()
    streaming(rig, [["a", "b"]], idempotent=False)
    first = rig.gateway.execute(envelope("read", {}, call_id="c1")).to_wire()
    again = rig.gateway.execute(envelope("read", {}, call_id="c1")).to_wire()
    assert (first["output"]["content"], first["fromCache"]) == (["a", "b"], False)
    assert (again["output"]["content"], again["fromCache"]) == (["a", "b"], True)


def test_an_empty_stream_is_a_success() -> None:
    rig = Rig()
    read = streaming(rig, [[]])
    assert list(read()) == []
    assert rig.records()[0].state == "done"


def test_before_the_first_piece_a_failure_is_tried_again() -> None:
    rig = Rig()
    read = streaming(rig, [[HttpError(503)], ["a", "b"]])
    assert list(read()) == ["a", "b"]
    assert len(rig.clock.slept) == 1


async def test_before_the_first_piece_a_failure_is_tried_again_asynchronously() -> None:
    rig = AsyncRig()
    read = async_streaming(rig, [[HttpError(503)], ["a", "b"]])
    assert await listed(read()) == ["a", "b"]
    assert len(rig.clock.slept) == 1


@pytest.mark.parametrize(
    ("idempotent", "failure", "kind", "code"),
    [
        (True, HttpError(503), HttpError, "http_503"),
        (False, HttpError(503), HttpError, "outcome_unknown"),
        (False, HttpError(429), HttpError, "outcome_unknown"),
        (False, HttpError(404), HttpError, "http_404"),
    ],
)
def test_after_the_first_piece_it_is_committed(
    idempotent: bool, failure: Exception, kind: type[Exception], code: str
) -> None:
    rig = Rig()
    read = streaming(rig, [["a", failure], ["a", "b"]], idempotent=idempotent)
    stream = read()
    assert next(stream) == "a"
    with pytest.raises(kind):
        next(stream)
    assert rig.clock.slept == []
    [record] = rig.records()
    assert (record.state, record.error.code) == ("failed", code)  # type: ignore[union-attr]
    with pytest.raises(kind):
        next(stream)  # not an early end in disguise


class Nothing(Exception):
    """An exception that is false."""

    def __len__(self) -> int:
        return 0


def test_a_false_exception_fails_it_like_any_other() -> None:
    stream = streaming(Rig(), [["a", Nothing("gone")]], idempotent=True)()
    assert next(stream) == "a"
    for _ in range(3):
        with pytest.raises(Nothing):
            next(stream)


def test_an_envelope_is_told_that_the_stream_failed() -> None:
    rig = Rig()
    streaming(rig, [["a", HttpError(503)]])
    result = rig.gateway.execute(envelope("read", {}))
    assert (result.status, result.code, result.attempts) == ("retriable_error", "http_503", 1)


async def test_an_envelope_is_told_that_the_stream_failed_asynchronously() -> None:
    rig = AsyncRig()
    async_streaming(rig, [["a", HttpError(503)]], idempotent=False)
    result = await rig.gateway.execute(envelope("read", {}))
    assert result.code == "outcome_unknown"


# -- broken off ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("idempotent", "state"), [(True, "cancelled"), (False, "failed")])
def test_a_reader_that_stops_breaks_it_off(idempotent: bool, state: str) -> None:
    rig = Rig()
    closed: list[bool] = []

    @rig.gateway.tool(idempotent=idempotent)
    def read() -> Iterator[int]:
        try:
            yield from range(10)
        finally:
            closed.append(True)

    with read() as stream:  # type: ignore[attr-defined]
        assert next(stream) == 0
    assert closed == [True]
    [record] = rig.records()
    assert (record.state, record.dispatched) == (state, True)
    if not idempotent:
        assert record.error.code == "outcome_unknown"  # type: ignore[union-attr]


def test_a_stream_that_is_dropped_is_broken_off() -> None:
    rig = Rig()
    read = streaming(rig, [["a", "b"]], idempotent=False)
    stream = read()
    next(stream)
    del stream
    gc.collect()
    assert rig.records()[0].error.code == "outcome_unknown"  # type: ignore[union-attr]
    assert rig.ears.of("tool_call_end")[-1]["errorCode"] == "stream_broken_off"


async def test_an_asynchronous_reader_that_stops_breaks_it_off() -> None:
    rig = AsyncRig()
    read = async_streaming(rig, [["a", "b"]], idempotent=False)
    stream = read()
    assert await anext(stream) == "a"
    await stream.aclose()
    assert rig.records()[0].error.code == "outcome_unknown"  # type: ignore[union-attr]


async def test_a_cancelled_reader_breaks_it_off() -> None:
    rig = AsyncRig()
    gate = asyncio.Event()

    @rig.gateway.tool(idempotent=False)
    async def read() -> AsyncIterator[str]:
        yield "a"
        await gate.wait()

    async def reader() -> None:
        async for _ in read():
            pass

    task = asyncio.ensure_future(reader())
    for _ in range(10):
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert rig.records()[0].error.code == "outcome_unknown"  # type: ignore[union-attr]


@pytest.mark.parametrize("idempotent", [True, False])
def test_a_stream_that_nobody_reads_ends_at_the_idle_limit(idempotent: bool) -> None:
    rig = Rig(stream_idle_ms=10_000)
    read = streaming(rig, [["a", "b"]], idempotent=idempotent)
    stream = read()
    next(stream)
    renewer = rig.gateway._plans.leases
    rig.clock.advance(9)
    renewer.renew_due(rig.store.open_sync(), rig.clock.seconds)
    assert rig.records()[0].state == "inflight"
    rig.clock.advance(2)
    renewer.renew_due(rig.store.open_sync(), rig.clock.seconds)
    assert rig.records()[0].state == ("cancelled" if idempotent else "failed")
    with pytest.raises(CallFailed) as caught:
        next(stream)
    assert caught.value.code == "stream_broken_off"
    stream.close()
    assert len(rig.ears.of("tool_call_end")) == 1


def test_reading_keeps_it_alive() -> None:
    rig = Rig(stream_idle_ms=10_000)
    read = streaming(rig, [list("abcdef")])
    stream = read()
    renewer = rig.gateway._plans.leases
    for piece in "abcdef":
        assert next(stream) == piece
        rig.clock.advance(8)
        renewer.renew_due(rig.store.open_sync(), rig.clock.seconds)
    assert list(stream) == []


# -- limits, context, breaker ---------------------------------------------------------------------------------------


def test_the_limit_of_an_attempt_is_looked_at_between_pieces() -> None:
    rig = Rig()
    read = streaming(rig, [["a", "b"]], timeout=5.0)
    stream = read()
    assert next(stream) == "a"
    rig.clock.advance(6)
    with pytest.raises(CallTimeout):
        next(stream)
    assert rig.records()[0].error.code == "ETIMEDOUT"  # type: ignore[union-attr]


async def test_an_asynchronous_step_is_cut_off_at_the_limit() -> None:
    rig = AsyncRig()

    @rig.gateway.tool(idempotent=True, timeout=0.01)
    async def read() -> AsyncIterator[str]:
        await asyncio.Event().wait()
        yield "never"

    result = await rig.gateway.execute(envelope("read", {}, attempts=1))
    assert (result.status, result.code) == ("timeout", "ETIMEDOUT")


def test_each_step_runs_in_the_streams_own_scene() -> None:
    rig = Rig()

    @rig.gateway.tool(idempotent=False)
    def read(n: int) -> Iterator[Any]:
        for _ in range(2):
            try:
                next(iter(read(n)))
            except InFlight as error:
                yield error.code

    assert list(read(1)) == ["in_flight", "in_flight"]
    assert list(read(1)) == ["in_flight", "in_flight"]  # nothing of the scene leaked to the reader


async def test_each_asynchronous_step_runs_in_the_streams_own_scene() -> None:
    rig = AsyncRig()

    @rig.gateway.tool(idempotent=False)
    async def read(n: int) -> AsyncIterator[Any]:
        for _ in range(2):
            await asyncio.sleep(0)
            try:
                await anext(read(n))
            except InFlight as error:
                yield error.code

    assert await listed(read(1)) == ["in_flight", "in_flight"]


def test_a_stream_may_ask_for_its_context() -> None:
    rig = Rig()

    @rig.gateway.tool(idempotent=False)
    def read(ctx: CallContext) -> Iterator[Any]:
        yield ctx.fence

    assert list(read()) == [rig.records()[0].fence]  # type: ignore[call-arg]


def test_a_stream_votes_when_it_ends() -> None:
    rig = Rig()
    read = streaming(rig, [["a", HttpError(503)]] * 5, reuse="never")
    for _ in range(5):
        with pytest.raises(HttpError):
            list(read())
    assert rig.breaker("read").state == "OPEN"


def test_a_broken_off_stream_does_not_vote() -> None:
    rig = Rig()
    read = streaming(rig, [["a", "b"]] * 6, reuse="never")
    for _ in range(6):
        stream = read()
        next(stream)
        stream.close()
    assert rig.breaker("read").state == "CLOSED"


def test_generators_belong_to_their_face() -> None:
    async def pieces() -> AsyncIterator[int]:
        yield 1

    def parts() -> Iterator[int]:
        yield 1

    with pytest.raises(InvalidInput, match="AsyncGateway"):
        Rig().gateway.tool(idempotent=True)(pieces)
    with pytest.raises(InvalidInput, match="through a Gateway"):
        AsyncRig().gateway.tool(idempotent=True)(parts)


def test_two_readers_of_equal_calls_share_one_stream() -> None:
    rig = Rig()
    read = streaming(rig, [["a", "b"]], idempotent=False, breaker=NEVER_TRIPS)
    first = read()
    next(first)
    busy = rig.gateway.execute(envelope("read", {"n": 0}, mode="bestEffort", session="default", actor="default"))
    assert busy.code == "in_flight"
    assert list(first) == ["b"]


@pytest.mark.parametrize("chunks", [["a", "b"], ("a", "b")])
def test_reconcile_gives_the_chunks_of_a_stream(chunks: Any) -> None:
    rig = Rig()
    read = streaming(rig, [[TimeoutError()]], idempotent=False, reconcile=lambda params: Happened(chunks))
    with pytest.raises(TimeoutError):
        list(read())
    assert list(read()) == ["a", "b"]


def test_reconcile_that_gives_no_chunks_settles_nothing() -> None:
    rig = Rig()
    read = streaming(rig, [[TimeoutError()]], idempotent=False, reconcile=lambda params: Happened("ab"))
    with pytest.raises(TimeoutError):
        list(read())
    for _ in range(2):
        with pytest.raises(TypeError, match=r"must return Happened\(\[chunk, …\]\)"):
            list(read())
    assert rig.records()[0].state != "done"


async def test_a_stream_outside_any_run_is_warned_about_once(caplog: pytest.LogCaptureFixture) -> None:
    sync, other = Rig(), AsyncRig()
    list(streaming(sync, [["a"]], idempotent=False)())
    read = async_streaming(other, [["a"], ["b"]], idempotent=False)
    await listed(read())
    await listed(read())
    assert sum("outside any run" in record.getMessage() for record in caplog.records) == 2
