"""Calls inside a recorded run: identity, events, and a run log that cannot be written."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from antiphon._recording.recorder import Recorder
from antiphon._scope import current_scope
from antiphon.errors import RunCancelled, StoreUnavailable
from antiphon.redact import Redactor, Rules
from antiphon.stores import ComposedStore, MemoryStore
from tests.unit.gateway.kit import AsyncRig, HttpError, Rig
from tests.unit.gateway.test_outage import Faulty


@contextmanager
def recorded(rig: Rig, run: str = "run-1", store: Any = None, write_async: Any = None) -> Iterator[None]:
    store = store or rig.store
    recorder = Recorder(
        run,
        store=store,
        journal=store.open_sync(),
        clock=rig.clock,
        redactor=Redactor(Rules(), salt="00" * 16),
        blobs=lambda: None,
        tenant="default",
        write=None if write_async is None else store.open_sync().append,
        write_async=write_async,
    )
    token = recorder.scope.activate()
    try:
        yield
    finally:
        recorder.scope.deactivate(token)


def events(rig: Rig, run: str = "run-1", store: Any = None) -> list[Any]:
    return (store or rig.store).open_sync().events(run)


def cancel() -> None:
    """As the host does with the run of this context."""
    scope = current_scope()
    assert scope is not None
    scope.cancelled = True


def types(rig: Rig, **where: Any) -> list[str]:
    return [event.type for event in events(rig, **where)]


def outcome(rig: Rig) -> dict[str, Any]:
    return events(rig)[-1].payload  # type: ignore[no-any-return]


def test_a_call_leaves_start_and_end() -> None:
    rig = Rig()
    rig.tool("sent")
    with recorded(rig):
        rig.execute()
    assert types(rig) == ["call.started", "call.finished"]
    assert outcome(rig) == {"outcome": "ok", "value": "sent"}


@pytest.mark.parametrize("apart", [True, False])
def test_the_start_is_written_before_the_tool_runs(apart: bool) -> None:
    rig = Rig()
    log = Rig().store if apart else rig.store
    seen: list[str] = []
    rig.tool(lambda **_: seen.extend(types(rig, store=log)))
    with recorded(rig, store=log):
        rig.execute()
    assert seen == ["call.started"]
    assert types(rig, store=log) == ["call.started", "call.finished"]


def test_decisions_are_events() -> None:
    rig = Rig()
    rig.tool(HttpError(503), "sent", idempotent=True)
    with recorded(rig):
        rig.execute(call_id="c1")
        rig.execute(call_id="c1")
    assert types(rig) == ["call.started", "decision", "call.finished", "call.started", "decision", "call.finished"]
    assert [event.payload["what"] for event in events(rig) if event.type == "decision"] == ["retry", "reused"]


def test_functions_are_found_again_by_their_place_in_a_resumed_run() -> None:
    rig = Rig()
    calls: list[int] = []

    @rig.gateway.tool(idempotent=False)
    def send(to: str) -> int:
        calls.append(1)
        return len(calls)

    with recorded(rig):
        assert [send("ada"), send("ada"), send("bob")] == [1, 2, 3]
    with recorded(rig):
        assert [send("ada"), send("ada"), send("bob")] == [1, 2, 3]
    assert len(calls) == 3
    with recorded(rig, run="run-2"):
        assert send("ada") == 4


def test_call_ids_of_two_runs_are_two_identities() -> None:
    rig = Rig()
    script = rig.tool()
    for run in ("run-1", "run-2", "run-1"):
        with recorded(rig, run=run):
            rig.gateway.session("s").turn().call("send", {}, "c1")
    assert len(script) == 2


def test_an_interrupted_call_has_an_end_in_the_log() -> None:
    for log in (None, Rig().store):
        rig = Rig()
        rig.tool(KeyboardInterrupt())
        with recorded(rig, store=log), pytest.raises(KeyboardInterrupt):
            rig.execute()
        assert types(rig, store=log) == ["call.started", "call.finished"]


def test_an_end_that_the_log_has_is_not_written_again_when_the_claim_is_settled_later() -> None:
    claims = Faulty()
    rig = Rig(store=ComposedStore(claims=claims, log=MemoryStore()))
    rig.tool("sent")
    claims.fail("settle")
    with recorded(rig):
        assert rig.execute().output.metadata == {"notRecorded": "store_unavailable"}
    assert types(rig) == ["call.started", "call.finished"]
    claims.broken.clear()
    rig.leases.look()
    assert [record.state for record in rig.records()] == ["done"]
    assert types(rig) == ["call.started", "call.finished"]


def test_an_end_that_the_log_did_not_take_is_written_when_it_works_again() -> None:
    log = Faulty()
    rig = Rig(store=ComposedStore(claims=MemoryStore(), log=log))
    rig.tool(lambda **_: log.fail("append"))
    with recorded(rig):
        assert rig.execute().output.metadata == {"notRecorded": "store_unavailable"}
    assert ([record.state for record in rig.records()], rig.leases.unrecorded) == (["done"], 0)
    rig.leases.look()
    log.broken.clear()
    assert types(rig) == ["call.started"]
    for _ in range(2):
        rig.clock.advance(60)
        rig.leases.look()
    assert types(rig) == ["call.started", "call.finished"]


def test_a_call_that_was_refused_is_in_the_log() -> None:
    rig = Rig()
    rig.tool("sent")
    rig.breaker().force_open(rig.clock.seconds, "maintenance")
    with recorded(rig):
        rig.execute()
    assert types(rig) == ["call.started", "call.finished"]
    assert outcome(rig)["error"]["code"] == "circuit_open"


def test_pieces_of_a_stream_are_events() -> None:
    rig = Rig()

    @rig.gateway.tool(idempotent=True)
    def read(n: int) -> Iterator[int]:
        yield from range(n)

    with recorded(rig):
        assert list(read(2)) == [0, 1]
    assert types(rig) == ["call.started", "call.chunk", "call.chunk", "call.finished"]
    assert [event.payload["data"] for event in events(rig) if event.type == "call.chunk"] == [0, 1]


def test_a_broken_off_stream_says_so_in_the_log() -> None:
    rig = Rig(stream_idle_ms=1_000)

    @rig.gateway.tool(idempotent=True)
    def read(n: int) -> Iterator[int]:
        yield from range(n)

    with recorded(rig):
        left, dropped = read(3), read(4)
        next(left), next(dropped)
        left.close()  # type: ignore[attr-defined]
        rig.clock.advance(2)
        rig.gateway._plans.leases.renew_due(rig.store.open_sync(), rig.clock.seconds)
    ends = [event.payload["error"]["code"] for event in events(rig) if event.type == "call.finished"]
    assert ends == ["stream_broken_off", "stream_broken_off"]


def test_calls_made_inside_a_stream_belong_to_it() -> None:
    rig = Rig()

    @rig.gateway.tool(idempotent=True)
    def look(q: int) -> int:
        return q

    @rig.gateway.tool(idempotent=True)
    def read(n: int) -> Iterator[int]:
        for number in range(n):
            yield look(number)

    with recorded(rig):
        assert list(read(2)) == [0, 1]
    inner = [event for event in events(rig) if event.type == "call.started" and event.payload["name"] == "look"]
    outer = next(event for event in events(rig) if event.payload.get("name") == "read")
    assert [event.parent for event in inner] == [outer.call, outer.call]
    assert len({event.call for event in inner}) == 2


# -- a run log that cannot be written ----------------------------------------------------------------------------------


def test_a_call_whose_start_cannot_be_logged_is_not_made() -> None:
    rig = Rig()
    script = rig.tool("sent")
    log = Faulty()
    log.fail("append")
    with recorded(rig, store=log):
        result = rig.execute(call_id="c1")
    assert (result.code, result.attempts) == ("store_unavailable", 0)
    assert len(script) == 0
    assert rig.execute(call_id="c1").content == "sent"  # nothing was dispatched, nothing is in the way


def test_an_end_that_cannot_be_logged_does_not_hide_the_result() -> None:
    rig = Rig()
    log = Faulty()
    rig.tool(lambda **_: log.fail("append", error=StoreUnavailable("gone")))
    with recorded(rig, store=log):
        result = rig.execute()
    assert result.ok
    assert result.output.metadata["notRecorded"] == "store_unavailable"


def test_a_lost_piece_does_not_break_the_stream() -> None:
    rig = Rig()
    log = Faulty()

    @rig.gateway.tool(idempotent=True)
    def read(n: int) -> Iterator[int]:
        for number in range(n):
            if number == 1:
                log.fail("append")
            yield number

    with recorded(rig, store=log):
        assert list(read(3)) == [0, 1, 2]


async def test_recorded_calls_of_the_asynchronous_face() -> None:
    rig = AsyncRig()

    @rig.gateway.tool(idempotent=False)
    async def send(to: str) -> str:
        await asyncio.sleep(0)
        return to

    with recorded(rig):
        assert list(await asyncio.gather(send("a"), send("b"))) == ["a", "b"]
    assert sorted(types(rig)) == ["call.finished"] * 2 + ["call.started"] * 2


def test_a_cancelled_run_makes_no_further_calls() -> None:
    rig = Rig()
    script = rig.tool("sent")
    mail = rig.gateway.tool("mail", idempotent=False)(lambda: script())
    with recorded(rig):
        rig.execute(call_id="c1")
        cancel()
        answer = rig.execute(call_id="c2")
        with pytest.raises(RunCancelled, match="mail was not called"):
            mail()
    assert (answer.status, answer.error.code, len(script)) == ("error", "run_cancelled", 1)
    assert types(rig) == ["call.started", "call.finished"]
    assert [record.state for record in rig.records()] == ["done"]


async def test_a_cancelled_run_makes_no_further_asynchronous_calls() -> None:
    rig = AsyncRig()
    script = rig.tool("sent")
    with recorded(rig):
        cancel()
        answer = await rig.execute()
    assert (answer.error.code, len(script), types(rig)) == ("run_cancelled", 0, [])


def test_a_run_that_is_cancelled_between_attempts_makes_no_further_one() -> None:
    rig = Rig()

    def fail(**_: Any) -> None:
        cancel()
        raise HttpError(503)

    script = rig.tool(fail, "sent", idempotent=True)
    with recorded(rig):
        answer = rig.execute()
    assert (answer.error.code, len(script)) == ("http_503", 1)
    assert types(rig) == ["call.started", "decision", "call.finished"]


def test_a_run_that_is_cancelled_while_it_claims_frees_the_claim() -> None:
    rig = Rig()
    script = rig.tool("sent")
    journal = rig.store.open_sync()
    begin = journal.begin

    def cancelled_meanwhile(*arguments: Any) -> Any:
        cancel()
        return begin(*arguments)

    rig.gateway._runtime.begin = cancelled_meanwhile
    with recorded(rig):
        answer = rig.execute()
    assert (answer.error.code, len(script)) == ("run_cancelled", 0)
    (record,) = rig.records()
    assert (record.state, record.dispatched) == ("cancelled", False)
