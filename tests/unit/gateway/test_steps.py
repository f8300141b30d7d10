"""Steps as tables, and what repairs each of them: for every step, interrupt and state of a call there is a way on."""

from __future__ import annotations

import asyncio

import pytest

from antiphon._gateway import attempt
from antiphon._gateway.steps import Step
from antiphon.ports import BreakerRows
from antiphon.stores import MemoryStore
from antiphon.stores.memory import MemoryJournal
from tests.unit.gateway.kit import AsyncRig, ManualClock, settle_down


class HangingStore(MemoryStore):
    """A store whose breaker states never come."""

    def open_async(self) -> MemoryJournal:
        return _HangingJournal(self.open_sync())


class _HangingJournal(MemoryJournal):
    def __init__(self, journal: object) -> None:
        super().__init__(journal)  # type: ignore[arg-type]
        self.durable = True

    async def load_breakers(self, tenant: str) -> BreakerRows:
        await asyncio.Event().wait()
        raise AssertionError("nobody sets it")


async def test_a_call_that_is_cancelled_before_it_is_admitted_passes_the_cancellation_on() -> None:
    rig = AsyncRig(HangingStore(clock=ManualClock()))
    script = rig.tool("sent")
    with rig.gateway.session("s1", actor="a1") as session, session.turn() as turn:
        task = asyncio.ensure_future(turn.call("send", {}, "c1"))
        await settle_down()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert len(script) == 0
    assert rig.records() == []


async def test_an_error_while_a_cancelled_call_is_repaired_does_not_hide_the_cancellation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = AsyncRig()

    def broken(*_: object) -> Step:
        raise RuntimeError("a mistake in a repair")

    @rig.gateway.tool("send", idempotent=False)
    async def send(to: str = "ada") -> None:
        monkeypatch.setattr(attempt, "settle_interrupted", broken)
        await asyncio.Event().wait()

    task = asyncio.ensure_future(send())
    await settle_down()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    rig.leases.look()
    assert [record.state for record in rig.records()] == ["failed"]
