"""Cancellation, KeyboardInterrupt and a tool that suspends where it must not."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from antiphon._gateway.settings import Settings
from antiphon.contract.spec import Ttls
from antiphon.errors import OutcomeUnknown
from antiphon.stores import MemoryStore
from tests.unit.gateway.kit import AsyncRig, HttpError, ManualClock, Rig, settle_down


def last(rig: Rig) -> tuple[str, bool, str]:
    record = rig.records()[0]
    return record.state, record.dispatched, getattr(record.error, "code", "")


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt(), SystemExit(3), GeneratorExit()])
def test_an_interrupt_passes_and_leaves_an_unknown_outcome(interrupt: BaseException) -> None:
    rig = Rig()
    script = rig.tool(interrupt, "sent")
    with pytest.raises(type(interrupt)):
        rig.execute(call_id="c1")
    assert last(rig) == ("failed", True, "outcome_unknown")
    assert rig.execute(call_id="c1").code == "outcome_unknown"
    assert len(script) == 1
    assert rig.ears.of("tool_call_end")[0]["errorCode"] == "cancelled"


def test_an_interrupted_idempotent_call_may_run_again() -> None:
    rig = Rig()
    script = rig.tool(KeyboardInterrupt(), "done", idempotent=True)
    with pytest.raises(KeyboardInterrupt):
        rig.execute(call_id="c1")
    assert last(rig) == ("cancelled", True, "")
    assert rig.execute(call_id="c1").content == "done"
    assert len(script) == 2


def test_an_interrupt_in_the_pause_after_a_harmless_failure_leaves_no_doubt() -> None:
    rig = Rig()
    script = rig.tool(ConnectionRefusedError(111, "refused"), "sent")

    def interrupted(seconds: float) -> None:
        raise KeyboardInterrupt

    rig.clock.sleep = interrupted  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        rig.execute(call_id="c1")
    assert last(rig) == ("cancelled", False, "")
    assert rig.execute(call_id="c1").content == "sent"
    assert len(script) == 2


def test_an_interrupt_in_the_pause_after_a_doubtful_failure_is_unknown() -> None:
    rig = Rig()
    rig.tool(TimeoutError(), forward_key=True)

    def interrupted(seconds: float) -> None:
        raise KeyboardInterrupt

    rig.clock.sleep = interrupted  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        rig.execute(call_id="c1")
    assert last(rig) == ("failed", True, "outcome_unknown")


def test_interrupts_are_no_votes_and_the_lease_is_let_go() -> None:
    rig = Rig()
    rig.tool(KeyboardInterrupt(), idempotent=True)
    for number in range(6):
        with pytest.raises(KeyboardInterrupt):
            rig.execute(params={"to": str(number)})
    assert rig.breaker().state == "CLOSED"
    assert not rig.gateway._plans.leases._held


async def test_a_cancelled_call_is_settled_before_the_cancellation_goes_on() -> None:
    rig = AsyncRig()

    @rig.gateway.tool("send", idempotent=False)
    async def send(to: str) -> None:
        await asyncio.Event().wait()

    task = asyncio.ensure_future(rig.execute(call_id="c1"))
    await settle_down()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert last(rig) == ("failed", True, "outcome_unknown")


async def test_wait_for_ends_in_time_and_the_record_knows() -> None:
    rig = AsyncRig()

    @rig.gateway.tool("send", idempotent=True)
    async def send(to: str) -> None:
        await asyncio.Event().wait()

    with pytest.raises(TimeoutError):
        await asyncio.wait_for(rig.execute(call_id="c1"), 0.01)
    assert last(rig) == ("cancelled", True, "")


class SlowSettle:
    """A store whose settle takes a while: long enough to be cancelled in."""

    url = "memory://slow"
    in_process = False

    def __init__(self) -> None:
        self.inner = MemoryStore()
        self.settling = asyncio.Event()
        self.go = asyncio.Event()

    def open_sync(self) -> Any:
        return self.inner.open_sync()

    def open_async(self) -> Any:
        journal = self.inner.open_async()
        store = self

        class Slow:
            durable = False

            def __getattr__(self, name: str) -> Any:
                return getattr(journal, name)

            async def settle(self, *args: Any) -> Any:
                store.settling.set()
                await store.go.wait()
                return await journal.settle(*args)

        return Slow()


async def test_a_cancellation_while_the_result_is_written_loses_nothing() -> None:
    store = SlowSettle()
    rig = AsyncRig(store=store)
    script = rig.tool("sent")
    task = asyncio.ensure_future(rig.execute(call_id="c1"))
    await store.settling.wait()
    task.cancel()
    await settle_down()
    store.go.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    await settle_down()
    assert (await rig.execute(call_id="c1")).content == "sent"
    assert len(script) == 1


class LateBegin:
    """A store that gets the request for a claim long after its caller has been interrupted, if it is told so."""

    url = "memory://late"
    in_process = False

    def __init__(self, clock: ManualClock) -> None:
        self.inner = MemoryStore(clock=clock)
        self.interrupts = 0
        self.under_way: list[Any] = []

    def open_sync(self) -> Any:
        journal, store = self.inner.open_sync(), self

        class Late:
            durable = False

            def __getattr__(self, name: str) -> Any:
                return getattr(journal, name)

            def begin(self, *args: Any) -> Any:
                if store.interrupts:
                    store.interrupts -= 1
                    store.under_way.append(args)
                    raise KeyboardInterrupt
                return journal.begin(*args)

        return Late()

    def arrive(self) -> list[Any]:
        journal = self.inner.open_sync()
        return [journal.begin(*args) for args in self.under_way]


@pytest.mark.parametrize("interrupts", [1, 2])
@pytest.mark.parametrize("arrives", ["first", "last"])
def test_a_request_that_arrives_after_the_record_before_it_expired_leaves_no_claim(
    interrupts: int, arrives: str
) -> None:
    """The first look of the interrupted call finds the answer of an earlier one, which is about to expire."""
    clock = ManualClock()
    store = LateBegin(clock)
    rig = Rig(store, clock=clock)
    script = rig.tool("first", "second", ttl=Ttls(done_ms=8_000))
    assert rig.execute(call_id="c1").content == "first"
    clock.advance(7.9)
    store.interrupts = interrupts
    with pytest.raises(KeyboardInterrupt):
        rig.execute(call_id="c2")
    rig.leases.look()
    clock.advance(0.2)
    if arrives == "first":
        assert store.arrive()
    rig.leases.look()
    if arrives == "last":
        assert store.arrive()
    assert [record.state for record in rig.records() if record.state == "inflight"] == []
    assert rig.execute(call_id="c3").content == "second"
    assert len(script) == 2


@pytest.mark.parametrize("life_s", [8, 3_600])
def test_an_interrupted_request_is_not_looked_after_for_ever(life_s: int) -> None:
    clock = ManualClock()
    store = LateBegin(clock)
    rig = Rig(store, clock=clock)
    rig.tool("sent", ttl=Ttls(done_ms=life_s * 1000))
    rig.execute(call_id="c0")
    store.interrupts = 1
    with pytest.raises(KeyboardInterrupt):
        rig.execute(call_id="c1")
    for number in range(4):  # others keep it out for half a minute
        clock.advance(7.9)
        rig.execute(call_id=f"c{number + 2}")
        clock.advance(0.2)
        rig.leases.look()
    assert not rig.leases._unfinished


def test_an_exception_group_with_an_interrupt_is_an_interrupt() -> None:
    rig = Rig()
    rig.tool(BaseExceptionGroup("both", [KeyboardInterrupt(), ValueError()]))
    with pytest.raises(BaseExceptionGroup):
        rig.execute()
    assert last(rig)[2] == "outcome_unknown"


def test_the_same_exception_object_does_not_grow() -> None:
    rig = Rig(loop=Settings().loop)
    error = HttpError(400)

    @rig.gateway.tool(idempotent=False)
    def fail() -> None:
        raise error

    for _ in range(5):
        with pytest.raises(HttpError) as caught:
            fail()
        assert caught.value is error
    assert error.__cause__ is None
    assert len(error.__notes__) == 1


def test_outcome_unknown_is_a_new_exception_each_time() -> None:
    rig = Rig()

    @rig.gateway.tool(idempotent=False)
    def pay() -> None:
        raise TimeoutError

    with pytest.raises(TimeoutError):
        pay()
    seen = []
    for _ in range(3):
        with pytest.raises(OutcomeUnknown) as caught:
            pay()
        seen.append(caught.value)
    assert len({id(error) for error in seen}) == 3
