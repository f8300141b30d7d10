"""D7: leases are renewed while a call runs; one missed renewal is no verdict; finalising is fenced."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from antiphon._gateway import leases as module
from antiphon._gateway import owner
from antiphon._gateway.call import new_call
from antiphon._gateway.gateway import Gateway
from antiphon._gateway.owner import certainly_alive, certainly_dead, owner_token
from antiphon._gateway.plan import Dependencies
from antiphon.contract.approval import spent_by
from antiphon.contract.spec import RetryPolicy, Ttls
from antiphon.errors import StoreUnavailable
from antiphon.stores import MemoryStore
from tests.unit.gateway.heard import Steps
from tests.unit.gateway.kit import AsyncRig, Hold, ManualClock, Rig, Thread, in_thread, request_of
from tests.unit.gateway.test_outage import Faulty

LEASE = Ttls(lease_ms=3_000)


def running(rig: Rig, **changes: Any) -> tuple[Hold, Thread]:
    """A call in flight: its tool waits, its claim is held."""
    hold = Hold()
    rig.tool(hold.then("done"), "again", ttl=LEASE, **changes)
    thread = in_thread(lambda: rig.execute(call_id="c1"))
    hold.until_reached()
    return hold, thread


def look(rig: Rig) -> None:
    rig.gateway._plans.leases.look()


def test_a_call_of_many_leases_keeps_its_claim() -> None:
    rig = Rig()
    hold, thread = running(rig)
    for _ in range(200):  # ten minutes under a lease of three seconds
        rig.clock.advance(1.0)
        look(rig)
        rig.clock.advance(2.0)
        assert rig.execute(call_id="c2", mode="bestEffort").code == "in_flight"
        look(rig)
    hold.go.set()
    assert thread.result().content == "done"
    assert rig.records()[0].state == "done"


def test_without_renewal_the_claim_would_be_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.Leases, "hold", lambda self, call, every: None)
    rig = Rig()
    hold, thread = running(rig)
    rig.clock.advance(3.1)
    look(rig)
    assert rig.execute(call_id="c2", mode="bestEffort").code == "outcome_unknown"
    hold.go.set()
    thread.result()


def test_a_missed_renewal_is_tried_again_until_the_lease_is_over(caplog: pytest.LogCaptureFixture) -> None:
    store = Faulty()
    rig = Rig(store=store)
    store.inner = type(store.inner)(clock=rig.clock)
    hold, thread = running(rig)
    store.fail("renew")
    rig.clock.advance(1.1)
    look(rig)
    assert "the lease of tools/send was not renewed; retrying" in caplog.text
    rig.clock.advance(0.3)
    store.broken.clear()
    look(rig)
    rig.clock.advance(2.5)
    assert rig.execute(call_id="c2", mode="bestEffort").code == "in_flight"
    hold.go.set()
    assert thread.result().content == "done"


def test_a_store_that_cannot_be_opened_is_no_verdict_either() -> None:
    store = Faulty()
    rig = Rig(store=store)
    hold, thread = running(rig)
    store.fail("open", error=StoreUnavailable("gone"))
    rig.clock.advance(1.1)
    assert rig.gateway._plans.leases.look() == 1.0
    store.broken.clear()
    assert rig.gateway._plans.leases.look() > 0
    hold.go.set()
    assert thread.result().content == "done"


def test_renewal_ends_with_the_deadline_and_with_the_cap() -> None:
    for options, cap in (({"deadline_at_ms": True}, 3_600_000), ({}, 10_000)):
        rig = Rig(lease_cap_ms=cap)
        hold = Hold()
        rig.tool(hold.then("done"), ttl=LEASE)
        extra = {"deadline_at_ms": rig.clock.now_ms() + 10_000} if options else {}
        thread = in_thread(lambda rig=rig, extra=extra: rig.execute(call_id="c1", **extra))  # type: ignore[misc]
        hold.until_reached()
        for _ in range(9):
            rig.clock.advance(1.0)
            look(rig)
        assert rig.gateway._plans.leases._held
        rig.clock.advance(2.0)
        look(rig)
        assert not rig.gateway._plans.leases._held
        hold.go.set()
        thread.result()


def test_the_cap_of_a_call_that_waited_counts_from_its_claim(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(lease_cap_ms=10_000)
    first = Hold()

    def lasts_nine_seconds(**_: Any) -> str:
        for _second in range(9):
            rig.clock.advance(1.0)
            look(rig)
        return str(rig.execute(call_id="c3", mode="bestEffort").code)

    rig.tool(first.then("late"), lasts_nine_seconds, ttl=LEASE, idempotent=True)
    thread = in_thread(lambda: rig.execute(call_id="c1"))
    first.until_reached()

    def wait(self: Any, key: str, version: int, seconds: float) -> None:
        rig.clock.advance(1.0)
        look(rig)

    monkeypatch.setattr(type(rig.store.open_sync()), "wait", wait)
    began = rig.clock.monotonic()
    assert rig.execute(call_id="c2").content == "in_flight"
    assert rig.clock.monotonic() - began > 20.0, "it waited until the cap of the first call, and then ran"
    first.go.set()
    thread.result()


def test_a_worker_that_slept_through_its_lease_is_fenced(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig()
    hold, thread = running(rig, idempotent=True)
    rig.clock.advance(3.1)  # nobody renewed: the process was paused
    assert rig.execute(call_id="c2").content == "again"
    look(rig)
    assert "lease of tools/send was lost; its result will be fenced" in caplog.text
    assert not rig.gateway._plans.leases._held
    hold.go.set()
    late = thread.result()
    assert (late.content, late.output.metadata) == ("done", {"fenced": True})
    assert rig.execute(call_id="c2").content == "again"
    assert rig.tally.counts["hits", "tools/send", "fenced"] == 1


def test_a_call_that_begins_while_the_renewer_plans_is_not_forgotten() -> None:
    rig = Rig()
    renewer = rig.gateway._plans.leases
    rig.tool()
    plan = rig.gateway._plans.plan(rig.gateway._plans.tools["send"])
    real = renewer._earliest
    calls = [new_call(plan, {}) for _ in range(2)]
    calls[0].started = calls[1].started = rig.clock.seconds
    renewer.hold(calls[0], plan.renew_every)

    def begins_meanwhile() -> float:
        earliest = real()
        if not renewer.holds(calls[1]):
            calls[1].started = rig.clock.seconds - 10
            renewer._next = float("inf")  # as the other thread may have seen it
            renewer.hold(calls[1], plan.renew_every)
        return earliest

    renewer._earliest = begins_meanwhile  # type: ignore[method-assign]
    renewer._plan()
    assert renewer._next == calls[1].started + plan.renew_every


def test_one_thread_serves_all_gateways() -> None:
    for _ in range(5):
        gateway = Gateway(Dependencies(store=MemoryStore()))
        assert gateway.tool(idempotent=True)(str.upper)("x") == "X"
    names = [thread.name for thread in threading.enumerate()]
    assert names.count("antiphon-leases") == 1


def test_a_gateway_that_is_gone_is_not_kept() -> None:
    import gc
    import weakref

    gateway = Gateway(Dependencies(store=MemoryStore()))
    gateway.tool(idempotent=True)(str.upper)("x")
    gone = weakref.ref(gateway._plans.leases)
    del gateway
    gc.collect()
    assert gone() is None


def test_after_a_fork_the_parents_calls_are_not_renewed() -> None:
    rig = Rig()
    hold, thread = running(rig)
    rig.gateway._plans.leases.forget()
    assert not rig.gateway._plans.leases._held
    hold.go.set()
    thread.result()


async def test_leases_of_the_asynchronous_face_are_renewed_from_outside_the_loop() -> None:
    import asyncio

    rig = AsyncRig()
    gate = asyncio.Event()

    @rig.gateway.tool("send", idempotent=False, ttl=LEASE)
    async def send(to: str) -> str:
        await gate.wait()
        return to

    task = asyncio.ensure_future(rig.execute(call_id="c1"))
    await asyncio.sleep(0)
    for _ in range(10):
        rig.clock.advance(1.0)
        rig.gateway._plans.leases.look()
        rig.clock.advance(1.5)
    assert (await rig.execute(call_id="c2", mode="bestEffort")).code == "in_flight"
    gate.set()
    assert (await task).content == "ada"


# -- a store that lost the claim --------------------------------------------------------------------------------------


def forgetful(kind: type[Rig] = Rig) -> tuple[Rig, Faulty]:
    """A store that can restart empty (``forget_everything``) and then does not know what it had."""
    clock = ManualClock()
    store = Faulty(MemoryStore(clock=clock))
    store.inner.open_sync().forgotten = lambda request, version: False  # type: ignore[method-assign]
    return kind(store=store, clock=clock), store


def test_a_claim_that_the_store_lost_is_written_anew_while_its_call_runs(caplog: pytest.LogCaptureFixture) -> None:
    rig, store = forgetful()
    hold, thread = running(rig)
    before = rig.records()[0]
    store.inner.forget_everything()
    rig.clock.advance(1.1)
    look(rig)
    assert "the store had lost the claim of tools/send; it was written again" in caplog.text
    found = rig.records()[0]
    assert (found.state, found.owner, found.request.identity) == ("inflight", before.owner, before.request.identity)
    for _ in range(5):  # and it is renewed
        rig.clock.advance(1.1)
        look(rig)
    assert rig.execute(call_id="c2", mode="bestEffort").code == "in_flight"
    hold.go.set()
    result = thread.result()
    assert (result.content, result.output.metadata) == ("done", None)
    assert [record.state for record in rig.records()] == ["done"]
    assert rig.execute(call_id="c1").content == "done"


def test_a_claim_that_an_operator_cleared_is_not_written_anew(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig()
    hold, thread = running(rig)
    rig.store.open_sync().clear(rig.records()[0].key)
    rig.clock.advance(1.1)
    look(rig)
    assert "lease of tools/send was lost; its result will be fenced" in caplog.text
    assert rig.records() == []
    hold.go.set()
    assert thread.result().output.metadata == {"fenced": True}


def test_a_lost_claim_that_another_call_has_by_now_is_the_others() -> None:
    rig, store = forgetful()
    hold, thread = running(rig)
    store.inner.forget_everything()
    rig.store.open_sync().begin(request_of(rig, identity="another", owner="another"))
    rig.clock.advance(1.1)
    look(rig)
    assert not rig.leases._held
    assert rig.records()[0].owner.endswith("another")
    hold.go.set()
    assert thread.result().output.metadata == {"fenced": True}


def test_a_lost_claim_is_written_when_the_store_takes_it(caplog: pytest.LogCaptureFixture) -> None:
    rig, store = forgetful()
    hold, thread = running(rig)
    store.inner.forget_everything()
    store.fail("begin")
    rig.clock.advance(1.1)
    look(rig)
    assert "the lease of tools/send was not renewed; retrying" in caplog.text
    store.lost.add("begin")
    store.broken.clear()
    for _ in range(2):  # the first one is carried out, but its answer gets lost
        rig.clock.advance(1.0)
        look(rig)
    assert rig.execute(call_id="c2", mode="bestEffort").code == "in_flight"
    hold.go.set()
    assert thread.result().content == "done"
    assert [record.state for record in rig.records()] == ["done"]


async def test_a_lost_claim_of_the_asynchronous_face_is_written_anew() -> None:
    import asyncio

    rig, store = forgetful(AsyncRig)
    gate = asyncio.Event()

    @rig.gateway.tool("send", idempotent=False, ttl=LEASE)
    async def send(to: str) -> str:
        await gate.wait()
        return to

    task = asyncio.ensure_future(rig.execute(call_id="c1"))
    await asyncio.sleep(0)
    store.inner.forget_everything()
    rig.clock.advance(1.1)
    rig.gateway._plans.leases.look()
    assert (await rig.execute(call_id="c2", mode="bestEffort")).code == "in_flight"
    gate.set()
    assert (await task).content == "ada"
    assert (await rig.execute(call_id="c1")).content == "ada"


def test_a_late_result_reaches_a_claim_that_was_written_anew() -> None:
    rig, store = forgetful()
    hold = Hold()

    def send(**_: Any) -> str:
        store.inner.forget_everything()
        rig.clock.advance(1.1)
        look(rig)
        hold.wait_here()
        return "late"

    rig.tool(send, ttl=LEASE, timeout=0.3, retry=RetryPolicy(max_attempts=1))
    assert rig.execute(call_id="c1").code == "outcome_unknown"
    hold.go.set()
    Steps().until_met(lambda: bool(rig.ears.of("tool_call_late_result")))
    assert rig.execute(call_id="c1").content == "late"


def test_a_claim_that_was_written_anew_keeps_the_approval_it_has_spent() -> None:
    rig, store = forgetful()
    hold = Hold()
    rig.tool(hold.then("done"), ttl=LEASE, approve="always", approver=lambda question: True)
    thread = in_thread(lambda: rig.execute(call_id="c1"))
    hold.until_reached()
    before = spent_by(rig.records()[0])
    assert before is not None
    store.inner.forget_everything()
    rig.clock.advance(1.1)
    look(rig)
    assert spent_by(rig.records()[0]) == before
    hold.go.set()
    assert thread.result().content == "done"


# -- owners ---------------------------------------------------------------------------------------------------------


def test_only_a_process_of_this_boot_and_namespace_can_be_certainly_dead() -> None:
    token = owner_token()
    assert not certainly_dead(token)
    place, pid, started = token.rsplit(".", 2)
    assert certainly_dead(f"{place}.{pid}.{int(started) + 1}")  # the pid belongs to somebody else by now
    assert certainly_dead(f"{place}.4194303.{started}")
    assert not certainly_dead(f"otherboot.4026531836.4194303.{started}")
    for strange in ("", "host-1234", "a.b", f"{place}.x.{started}"):
        assert not certainly_dead(strange)


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.EACCES, errno.EPERM, errno.EIO, errno.ENOENT])
def test_a_process_that_proc_does_not_show_is_not_certainly_dead(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    token = owner_token()

    def read_bytes(path: Path) -> bytes:
        raise OSError(number, os.strerror(number), str(path))

    monkeypatch.setattr(Path, "read_bytes", read_bytes)
    assert not certainly_dead(token)
    assert not certainly_alive(token)  # another one may have its pid by now


@pytest.mark.parametrize(
    ("answer", "dead"), [(None, False), (PermissionError, False), (ProcessLookupError, True), (OverflowError, False)]
)
def test_the_kernel_says_whether_a_hidden_process_is_gone(
    monkeypatch: pytest.MonkeyPatch, answer: type[Exception] | None, dead: bool
) -> None:
    asked: list[tuple[int, int]] = []

    def kill(pid: int, signal: int) -> None:
        asked.append((pid, signal))
        if answer is not None:
            raise answer

    place, _, started = owner_token().rsplit(".", 2)
    monkeypatch.setattr(os, "kill", kill)
    assert certainly_dead(f"{place}.4194303.{started}") is dead  # hidepid=2: ENOENT, whether or not it runs
    assert asked == [(4194303, 0)]


def test_a_process_that_cannot_tell_its_start_time_is_never_certainly_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    owner._forget_token()
    with monkeypatch.context() as patch:
        patch.setattr(owner, "_started", lambda pid: None)
        token = owner_token()
    owner._forget_token()
    assert token.startswith("host-")
    assert not certainly_dead(token)


def test_waiters_do_not_wait_for_the_dead() -> None:
    rig = Rig()
    script = rig.tool("taken over", idempotent=True)
    place, _, started = owner_token().rsplit(".", 2)
    ask = _ask(rig, owner=f"{place}.4194303.{started}")
    rig.store.open_sync().begin(ask)
    assert rig.execute(call_id="c2").content == "taken over"
    assert len(script) == 1


def test_a_call_of_a_dead_process_that_may_not_be_repeated_is_unknown_at_once() -> None:
    rig = Rig()
    script = rig.tool("sent")
    place, _, started = owner_token().rsplit(".", 2)
    rig.store.open_sync().begin(_ask(rig, owner=f"{place}.4194303.{started}"))
    assert rig.execute(call_id="c2").code == "outcome_unknown"
    assert len(script) == 0


def _ask(rig: Rig, owner: str) -> Any:
    return request_of(rig, identity="lost", owner=owner)


# -- a worker that was away -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("idempotent", [True, False])
def test_a_worker_that_lost_its_claim_does_not_try_again(idempotent: bool) -> None:
    rig = Rig()
    script = rig.tool(ConnectionRefusedError(111, "refused"), "second", idempotent=idempotent, ttl=LEASE)
    real = rig.clock.sleep

    def paused(seconds: float) -> None:
        real(seconds)
        if seconds < 1:
            rig.clock.advance(10)
            rig.clock.sleep = real  # type: ignore[method-assign]
            rig.execute(call_id="somebody else")

    rig.clock.sleep = paused  # type: ignore[method-assign]
    result = rig.execute(call_id="c1")
    assert (result.code, result.attempts) == ("ECONNREFUSED", 1)
    # an idempotent call was taken over; one that may not be repeated became unknown, and is not sent behind that
    assert len(script) == (2 if idempotent else 1)


def test_a_worker_that_was_away_before_it_dispatched_makes_sure_of_its_claim() -> None:
    store = Faulty()
    rig = Rig(store=store)
    store.inner = MemoryStore(clock=rig.clock)
    script = rig.tool("sent", ttl=LEASE)
    world = rig.gateway._runtime
    real = world.journal.begin
    away = [True]

    def begin(*arguments: Any) -> Any:
        answer = real(*arguments)
        if away and away.pop():
            rig.clock.advance(10)  # stopped between the store's answer and the dispatch
            assert rig.execute(call_id="c2").code == "outcome_unknown"
        return answer

    world.begin = begin
    result = rig.execute(call_id="c1")
    assert result.code == "outcome_unknown"
    assert len(script) == 0
