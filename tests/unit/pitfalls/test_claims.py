"""Failures that other systems have shown, kept out of this one: claims, leases and waiting.

Each test is named after what went wrong elsewhere.
"""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from antiphon.contract.spec import Ttls
from antiphon.stores import MemoryStore
from antiphon.stores.memory.store import SyncMemoryJournal
from tests.unit.gateway.kit import AsyncRig, Hold, HttpError, Rig, eventually, in_thread, settle_down
from tests.unit.gateway.test_leases import LEASE
from tests.unit.gateway.test_outage import Faulty
from tests.unit.gateway.test_runs import recorded


def test_a_call_longer_than_its_lease_runs_once() -> None:
    rig = Rig()
    hold = Hold()
    script = rig.tool(hold.then("sent"), "twice", ttl=LEASE)
    leader = in_thread(lambda: rig.execute(call_id="c1"))
    hold.until_reached()
    waiter = in_thread(lambda: rig.execute(call_id="c2"))
    eventually(lambda: bool(rig.store._journal.waiters), "the duplicate does not wait")
    for _ in range(30):
        rig.clock.advance(1.0)
        rig.gateway._plans.leases.look()
    hold.go.set()
    assert (leader.result().content, waiter.result().content) == ("sent", "sent")
    assert len(script) == 1


def test_a_zombies_late_finalise_is_fenced() -> None:
    rig = Rig()
    holds = Hold(), Hold()
    script = rig.tool(holds[0].then("zombie"), holds[1].then("successor"), "third", idempotent=True, ttl=LEASE)
    zombie = in_thread(lambda: rig.execute(call_id="a"))
    holds[0].until_reached()
    rig.clock.advance(3.1)  # the first worker slept through its lease
    successor = in_thread(lambda: rig.execute(call_id="b"))
    holds[1].until_reached()
    holds[0].go.set()  # the zombie wakes up and finalises
    assert zombie.result().output.metadata["fenced"] is True
    assert rig.records()[0].state == "inflight"  # its successor's claim is untouched
    assert rig.execute(call_id="c", mode="bestEffort").code == "in_flight"
    holds[1].go.set()
    assert successor.result().content == "successor"
    assert len(script) == 2


def test_a_zombies_failure_does_not_free_the_successors_claim() -> None:
    rig = Rig()
    holds = Hold(), Hold()

    def fails(**_: Any) -> None:
        holds[0].wait_here()
        raise HttpError(400)

    rig.tool(fails, holds[1].then("successor"), "third", idempotent=True, ttl=LEASE)
    zombie = in_thread(lambda: rig.execute(call_id="a"))
    holds[0].until_reached()
    rig.clock.advance(3.1)
    successor = in_thread(lambda: rig.execute(call_id="b"))
    holds[1].until_reached()
    holds[0].go.set()
    assert zombie.result().code == "http_400"
    assert rig.execute(call_id="c", mode="bestEffort").code == "in_flight"
    holds[1].go.set()
    assert successor.result().content == "successor"


def test_one_failed_renewal_does_not_kill_a_healthy_call() -> None:
    store = Faulty()
    rig = Rig(store=store)
    hold = Hold()
    script = rig.tool(hold.then("sent"), ttl=LEASE)
    leader = in_thread(lambda: rig.execute(call_id="c1"))
    hold.until_reached()
    store.fail("renew")
    rig.clock.advance(1.1)
    rig.gateway._plans.leases.look()
    store.broken.clear()
    rig.clock.advance(0.5)
    rig.gateway._plans.leases.look()
    hold.go.set()
    result = leader.result()
    assert (result.content, result.output.to_wire()) == ("sent", {"content": "sent"})
    assert len(script) == 1


async def test_a_cancelled_leader_is_not_run_again() -> None:
    rig = AsyncRig()
    calls: list[str] = []

    @rig.gateway.tool("send", idempotent=False)
    async def send(to: str) -> None:
        calls.append(to)
        await asyncio.Event().wait()

    leader = asyncio.ensure_future(rig.execute(call_id="c1"))
    waiter = asyncio.ensure_future(rig.execute(call_id="c2"))
    await settle_down()
    leader.cancel()
    assert (await waiter).code == "outcome_unknown"
    assert (await rig.execute(call_id="c1")).code == "outcome_unknown"
    assert calls == ["ada"]


def test_a_timeout_is_not_read_as_a_failure() -> None:
    rig = Rig()
    script = rig.tool(TimeoutError("read timed out"))
    result = rig.execute()
    assert (result.code, result.attempts, len(script)) == ("outcome_unknown", 1, 1)
    assert "do not make the same call again" in result.error.message


def test_a_new_tool_call_id_does_not_reopen_an_unknown_intent() -> None:
    rig = Rig()
    script = rig.tool(TimeoutError())
    for number in range(5):  # the model mints a new id per try
        assert rig.execute(call_id=f"call_{number}").code == "outcome_unknown"
    assert len(script) == 1


def test_equal_arguments_do_not_swallow_legitimate_repeats() -> None:
    rig = Rig()
    script = rig.tool("snapshot 1", "snapshot 2")
    assert [rig.execute(call_id=f"c{n}").content for n in range(2)] == ["snapshot 1", "snapshot 2"]
    assert len(script) == 2


def test_claiming_is_one_step_not_check_then_set() -> None:
    for _ in range(10):
        rig = Rig()
        script = rig.tool("sent")
        barrier = threading.Barrier(16)

        def work(rig: Rig = rig, barrier: threading.Barrier = barrier) -> Any:
            barrier.wait()
            return rig.execute(key="k")

        for thread in [in_thread(work) for _ in range(16)]:
            assert thread.result().content == "sent"
        assert len(script) == 1


def test_check_then_set_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted bug of the test above: a store that looks first and inserts later."""
    real = SyncMemoryJournal.begin
    barrier = threading.Barrier(2)

    def begin(self: Any, request: Any, events: Any = ()) -> Any:
        found = self.read(request.key, request.identity)
        barrier.wait(30)
        if found is not None:
            return found
        self.clear(request.key)
        return real(self, request, events)

    monkeypatch.setattr(SyncMemoryJournal, "begin", begin)
    rig = Rig()
    script = rig.tool("sent")
    for thread in [in_thread(lambda: rig.execute(key="k")) for _ in range(2)]:
        thread.result()
    assert len(script) == 2


def test_a_safety_critical_claim_waits_for_replicas(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    real = SyncMemoryJournal.begin

    def begin(self: Any, request: Any, events: Any = ()) -> Any:
        asked.append(request.wait_replicas)
        return real(self, request, events)

    monkeypatch.setattr(SyncMemoryJournal, "begin", begin)
    rig = Rig(store=Faulty(), wait_replicas=2)
    rig.tool("sent")
    rig.execute(call_id="c1")
    rig.execute(call_id="c2", hints={"safetyCritical": True})
    assert asked == [0, 2]


@pytest.mark.parametrize("jump_ms", [-3_600_000, 3_600_000])
def test_a_skewed_worker_clock_changes_nothing(jump_ms: int) -> None:
    rig = Rig(store=MemoryStore(clock=Rig().clock))
    hold = Hold()
    script = rig.tool(hold.then("sent"))
    leader = in_thread(lambda: rig.execute(call_id="c1"))
    hold.until_reached()
    rig.clock.wall_offset_ms += jump_ms  # only the store's clock counts for leases
    assert rig.execute(call_id="c2", mode="bestEffort").code == "in_flight"
    hold.go.set()
    leader.result()
    again = rig.execute(call_id="c1")
    assert again.from_cache
    assert again.cache.age_ms >= 0
    assert len(script) == 1


def test_waiting_does_not_poll() -> None:
    store = Faulty()
    rig = Rig(store=store)
    hold = Hold()
    rig.tool(hold.then("sent"))
    leader = in_thread(lambda: rig.execute(call_id="c1"))
    hold.until_reached()
    store.asked = []
    waiters = [in_thread(lambda n=n: rig.execute(call_id=f"w{n}")) for n in range(10)]  # type: ignore[misc]
    eventually(lambda: store.asked.count("wait") == 10, "not all wait")
    hold.go.set()
    for thread in [leader, *waiters]:
        thread.result()
    assert store.asked.count("begin") == 10
    assert store.asked.count("wait") == 10
    assert store.asked.count("read") == 10


def test_a_lost_wake_up_is_made_good() -> None:
    rig = Rig()
    hold = Hold()
    rig.tool(hold.then("sent"))
    leader = in_thread(lambda: rig.execute(call_id="c1"))
    hold.until_reached()
    waiter = in_thread(lambda: rig.execute(call_id="c2"))
    claims = rig.store._journal
    eventually(lambda: bool(claims.waiters), "the duplicate does not wait")
    claims.waiters.by_key.clear()  # the message will never arrive
    hold.go.set()
    leader.result()
    assert waiter.result().content == "sent"  # it looks by itself, after a second at most


async def test_one_cancelled_waiter_does_not_cancel_the_others() -> None:
    rig = AsyncRig()
    calls: list[str] = []
    gate = asyncio.Event()

    @rig.gateway.tool("send", idempotent=False)
    async def send(to: str) -> str:
        calls.append(to)
        await gate.wait()
        return "sent"

    leader = asyncio.ensure_future(rig.execute(call_id="c0"))
    await settle_down()
    waiters = [asyncio.ensure_future(rig.execute(call_id=f"c{n}")) for n in range(1, 6)]
    await settle_down()
    waiters[2].cancel()
    await settle_down()
    gate.set()
    results = await asyncio.gather(leader, *waiters, return_exceptions=True)
    assert isinstance(results[3], asyncio.CancelledError)
    assert [r.content for r in results if not isinstance(r, BaseException)] == ["sent"] * 5
    assert calls == ["ada"]


@pytest.mark.parametrize("idempotent", [True, False])
async def test_a_failed_leader_hands_over_to_exactly_one_waiter(idempotent: bool) -> None:
    rig = AsyncRig()
    running, most = 0, 0
    calls: list[int] = []
    gate = asyncio.Event()

    @rig.gateway.tool("send", idempotent=idempotent)
    async def send(to: str) -> str:
        nonlocal running, most
        running += 1
        most = max(most, running)
        calls.append(1)
        number = len(calls)
        try:
            await gate.wait()
            await asyncio.sleep(0)
            if number == 1:
                raise HttpError(400)
            return f"sent by {number}"
        finally:
            running -= 1

    leader = asyncio.ensure_future(rig.execute(call_id="c0"))
    await settle_down()
    waiters = [asyncio.ensure_future(rig.execute(call_id=f"c{n}")) for n in range(1, 6)]
    await settle_down()
    gate.set()
    assert (await leader).code == "http_400"
    results = await asyncio.gather(*waiters)
    assert [result.content for result in results] == ["sent by 2"] * 5
    assert sum(not result.from_cache for result in results) == 1
    assert (len(calls), most) == (2, 1)


def test_a_key_with_other_params_is_a_conflict() -> None:
    rig = Rig()
    script = rig.tool("sent")
    rig.execute(key="order-7", params={"to": "ada"})
    assert rig.execute(key="order-7", params={"to": "bob"}).code == "idempotency_conflict"
    assert rig.tally.counts["hits", "tools/send", "conflict"] == 1  # the alarm of the risk register
    assert len(script) == 1


def test_separators_inside_names_never_make_two_calls_meet() -> None:
    rig = Rig()
    script = rig.tool()
    rig.execute(session="x", actor="y::z")
    rig.execute(session="x::y", actor="z")
    assert len(script) == 2


async def test_a_task_cancelled_between_claim_and_dispatch_gives_the_claim_back() -> None:
    rig = AsyncRig()
    script = rig.tool("sent")
    claimed = asyncio.Event()

    async def log_that_hangs(rows: Any) -> None:
        claimed.set()
        await asyncio.Event().wait()

    with recorded(rig, store=Rig().store, write_async=log_that_hangs):
        task = asyncio.ensure_future(rig.execute(call_id="c1"))
        await claimed.wait()
        claimed.clear()
        task.cancel()
        await claimed.wait()  # the end of the call is logged, too
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert (await rig.execute(call_id="c1")).content == "sent"
    assert len(script) == 1


def test_failures_are_forgotten_soon_but_not_unknown_outcomes() -> None:
    rig = Rig()
    rig.tool(HttpError(400), TimeoutError(), "sent", ttl=Ttls(failed_ms=1_000))
    rig.execute(call_id="c1", params={"to": "ada"})
    rig.execute(call_id="c2", params={"to": "bob"})
    rig.clock.advance(2)
    assert rig.execute(call_id="c1", params={"to": "ada"}).content == "sent"
    assert rig.execute(call_id="c2", params={"to": "bob"}).code == "outcome_unknown"
    assert rig.store.open_sync().sweep() >= 0
