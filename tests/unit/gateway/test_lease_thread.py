"""The process's own threads renew leases and write what callers had to leave (D7, D53). Nothing here sleeps: each
test waits for a step of the store."""

from __future__ import annotations

import gc
import logging
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from antiphon._gateway import leases as module
from antiphon._gateway.gateway import Gateway
from antiphon._gateway.leases import Janitor, Leases
from antiphon._gateway.plan import Dependencies
from antiphon._gateway.settings import Settings
from antiphon._gateway.store_breaker import PROBE
from antiphon.contract.spec import Ttls
from antiphon.errors import StoreUnavailable, StoreVersionError
from antiphon.ports import Clock
from antiphon.stores import MemoryStore
from tests.unit.gateway.heard import PATIENCE_S, Heard
from tests.unit.gateway.kit import ManualClock, Rig, envelope
from tests.unit.gateway.test_outage import Faulty


def gateway_on(store: Any, **parts: Any) -> Gateway:
    return Gateway(Dependencies(store=store, **parts))


# -- renewal ----------------------------------------------------------------------------------------------------------


def test_the_thread_renews_a_lease_again_and_again() -> None:
    store = Heard()
    gateway = gateway_on(store)
    lease_ms = 90
    began: list[float] = []

    def send(to: str) -> str:
        began.append(time.monotonic())
        store.steps.until("renew", 4)
        return to

    gateway.tool("send", idempotent=False, ttl=Ttls(lease_ms=lease_ms))(send)
    assert gateway.execute(envelope(call_id="c1")).content == "ada"
    renewed = [at for step, at in zip(store.steps, store.steps.times, strict=True) if step == "renew"]
    assert renewed[3] - began[0] > 3 * lease_ms / 3000, "a third of a lease before each of them"
    assert store.states == ["done"]
    gateway.close()


def test_the_thread_has_a_name_and_does_not_keep_the_process() -> None:
    gateway_on(MemoryStore()).tool(idempotent=True)(str.upper)("x")
    (thread,) = (thread for thread in threading.enumerate() if thread.name == "antiphon-leases")
    assert thread.daemon


# -- what callers had to leave ----------------------------------------------------------------------------------------


def left_on(store: Heard, **parts: Any) -> Gateway:
    """A gateway with one call whose result could not be written."""
    gateway = gateway_on(store, **parts)
    gateway.tool("send", idempotent=False)(lambda to: "sent")
    store.fail("settle", "renew", "read")
    result: Any = gateway.execute(envelope(call_id="c1"))
    assert result.output.metadata == {"notRecorded": "store_unavailable"}
    return gateway


@pytest.fixture
def store() -> Iterator[Heard]:
    store = Heard()
    yield store
    store.repair()
    store.steps.until_met(lambda: not any(one.breaker.url == store.url for one in module._service._busy))


def test_what_was_left_is_written_as_soon_as_the_store_works(store: Heard) -> None:
    gateway = left_on(store)
    leases = gateway._plans.leases
    assert (leases.unrecorded, leases.breaker.is_open) == (1, True)
    assert any(thread.name == "antiphon-mend" and thread.daemon for thread in threading.enumerate())
    probes = store.steps.count("renew")
    store.steps.until("renew", probes + 2)
    assert store.states == ["inflight"]
    store.repair()
    store.steps.until_met(lambda: leases._recovery.thread is None)
    assert store.states == ["done"]
    assert (leases.unrecorded, leases.breaker.is_open) == (0, False)
    assert leases not in module._service._busy
    again = gateway.execute(envelope(call_id="c1"))
    assert (again.content, again.from_cache) == ("sent", True)
    gateway.close()


def test_it_is_written_although_the_gateway_was_closed(store: Heard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LAST_WORDS_OF_ONE_S", 0.01)
    gateway = left_on(store)
    gateway.close()
    del gateway
    gc.collect()
    store.repair()
    store.steps.until_met(lambda: store.states == ["done"])


def test_a_second_failure_is_mended_too(store: Heard) -> None:
    """The thread that mends ends when there is nothing left; the next call that is left starts another."""
    gateway = left_on(store)
    leases = gateway._plans.leases
    store.repair()
    store.steps.until_met(lambda: leases._recovery.thread is None)
    store.fail("settle", "renew", "read")
    assert gateway.execute(envelope(call_id="c2", params={"to": "bob"})).content == "sent"
    store.repair()
    store.steps.until_met(lambda: leases._recovery.thread is None)
    assert store.states == ["done", "done"]
    gateway.close()


def test_close_writes_what_is_left(store: Heard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LAST_WORDS_OF_ONE_S", PATIENCE_S)
    gateway = left_on(store)

    def repaired() -> None:
        store.steps.until("renew", store.steps.count("renew") + 2)
        store.repair()

    threading.Thread(target=repaired).start()
    gateway.close()
    assert store.states == ["done"]


def test_close_does_not_wait_for_ever(store: Heard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LAST_WORDS_OF_ONE_S", 0.05)
    gateway = left_on(store)
    gateway.close()
    assert store.states == ["inflight"]


def test_the_end_of_the_process_waits_for_what_is_left(
    store: Heard, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "_LAST_WORDS_S", 0.05)
    left_on(store)
    with caplog.at_level(logging.ERROR, "antiphon.leases"):
        module._service.at_exit()
    assert [record.getMessage() for record in caplog.records if record.name == "antiphon.leases"] == [
        "1 outcomes could not be recorded before the process ended: they will be unknown"
    ]
    monkeypatch.setattr(module, "_LAST_WORDS_S", PATIENCE_S)
    store.repair()
    caplog.clear()
    module._service.at_exit()
    assert store.states == ["done"]
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


def test_no_more_than_so_many_wait(store: Heard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST_UNFINISHED", 2)
    leases = Leases(store, ManualClock(0.5), Settings(), attached=False)
    calls = [_Claimed(number) for number in range(4)]
    for call in calls:
        leases.finish(call, None)
    assert [left.call for left in leases._unfinished] == calls[2:]


class _Claimed:
    """A call of which nothing but the version of its claim is asked."""

    key, tool_name = "", ""
    started, claimed, renew_every, lease_ms = 0.0, 0.0, 0.0, 0
    deadline: float | None = None
    stream: Any = None

    def __init__(self, version: int) -> None:
        self.version = version


# -- pauses -----------------------------------------------------------------------------------------------------------


def test_a_refused_end_is_tried_after_pauses_that_double_up_to_a_minute() -> None:
    rig = Rig(store=(store := Faulty()))
    rig.tool("sent")
    store.fail("settle")
    rig.execute(call_id="c1")
    store.fail("read")
    waits: list[float] = []
    last = rig.clock.monotonic()
    asked = store.asked.count("read")
    rig.leases.look()
    while rig.leases.unrecorded and len(waits) < 50:
        if store.asked.count("read") > asked:
            asked = store.asked.count("read")
            waits.append(round(rig.clock.monotonic() - last, 2))
            last = rig.clock.monotonic()
        rig.clock.advance(0.1)
        rig.leases.look()
    waits.append(round(rig.clock.monotonic() - last, 2))
    assert len(waits) == module._MOST_TRIES
    assert waits[1:11] == pytest.approx([0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 51.2, 60.0], abs=0.15)


def test_what_a_newer_release_wrote_is_given_up_at_once(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig(store=(store := Faulty()))
    rig.tool("sent")
    store.fail("settle")
    rig.execute(call_id="c1")
    store.fail("read", "settle", error=StoreVersionError("A newer release wrote it."))
    rig.leases.look()
    assert rig.leases.unrecorded == 0
    assert "is given up: its claim ends with its lease" in caplog.text


def test_a_call_left_for_later_is_not_looked_at_before() -> None:
    clock = ManualClock(0.5)
    leases = Leases(Faulty(), clock, Settings(), attached=False)
    resumed: list[Any] = []
    leases.resume = lambda journal, call, step: resumed.append((call, step))
    call = _Claimed(1)
    leases.finish(call, "step", after_s=5.0)
    assert leases._recover(clock.monotonic()) == pytest.approx(5.0)
    assert resumed == []
    clock.advance(5.0)
    assert leases._recover(clock.monotonic()) == 0.0
    assert resumed == [(call, "step")]


def refusing(error: StoreUnavailable) -> Any:
    def refuse(*_: Any) -> None:
        raise error

    return refuse


def test_a_store_that_refuses_but_answers_is_asked_again_in_a_second() -> None:
    """A read-only store is not sick: the breaker stays closed."""
    store = Faulty()
    leases, clock = detached(store)
    leases.breaker.on = True
    readonly = StoreUnavailable("It is read-only.", reason="readonly")
    store.fail("renew", error=readonly)
    leases.resume = refusing(readonly)
    leases.finish(_Claimed(1), None)
    assert leases._recover(clock.monotonic()) == pytest.approx(1.0)
    assert leases._unfinished[0].tries == 0
    assert (leases.breaker.is_open, leases.breaker.failures) == (False, 0)
    store.fail("renew", error=StoreUnavailable("It is gone."))
    clock.advance(1.0)
    assert leases._recover(clock.monotonic()) == pytest.approx(0.1)
    assert (leases.breaker.is_open, leases.breaker.failures) == (True, 1)


# -- a full store: it reads, and takes what needs no room -------------------------------------------------------------

FULL = StoreUnavailable("The disk is full.", reason="full")


def test_a_result_waits_for_room_however_long_and_calls_are_told_at_once(
    store: Heard, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "_MOST_TRIES", 2)
    gateway = gateway_on(store)
    gateway.tool("send", idempotent=False)(lambda to: "sent")
    store.broken["settle"] = FULL
    result: Any = gateway.execute(envelope(call_id="c1"))
    assert result.output.metadata == {"notRecorded": "store_unavailable"}
    leases = gateway._plans.leases
    store.steps.until("settle", 5)
    assert (leases.unrecorded, leases.breaker.is_open) == (1, True)
    again = gateway.execute(envelope(call_id="c1"))
    assert (again.status, again.code) == ("retriable_error", "store_unavailable"), "it does not wait for the lease"
    assert "given up" not in caplog.text
    store.repair()
    store.steps.until_met(lambda: not leases.breaker.is_open)
    assert store.states == ["done"], "before other calls are let in"
    again = gateway.execute(envelope(call_id="c1"))
    assert (again.content, again.from_cache) == ("sent", True)
    gateway.close()


def test_whoever_waits_for_a_look_at_a_full_store_is_told_when_it_was_made() -> None:
    leases, clock = detached()
    leases.breaker.on = True
    leases.resume = refusing(FULL)
    leases.finish(_Claimed(1), None)
    leases._recover(clock.monotonic())
    first = leases.breaker._try_now()
    assert first is not None
    assert leases._recover(clock.monotonic()) == pytest.approx(0.1)
    assert first.done()
    assert leases.breaker.is_open
    second = leases.breaker._try_now()
    assert second is not None, "the next call has the store looked at again"
    leases.resume = lambda *_: None
    assert leases._recover(clock.monotonic()) == 0.0
    assert second.done()
    assert not leases.breaker.is_open


def test_what_finds_no_room_keeps_no_other_from_being_written() -> None:
    leases, clock = detached()
    leases.breaker.on = True
    large, small = _Claimed(1), _Claimed(2)

    def resume(_: Any, call: Any, step: Any) -> None:
        if call is large:
            raise FULL

    leases.resume = resume
    leases.finish(large, None)
    leases.finish(small, None)
    for _ in range(2):
        leases._recover(clock.monotonic())
        clock.advance(0.1)
    assert [left.call for left in leases._unfinished] == [large]


def test_a_claim_that_may_have_been_made_shuts_no_store_that_has_no_room_for_claims() -> None:
    """A full Redis still settles the calls that run."""
    leases, clock = detached()
    leases.breaker.on = True
    leases.resume = refusing(FULL)
    leases.finish(_Claimed(0), None)
    leases._recover(clock.monotonic())
    assert not leases.breaker.is_open
    assert leases._unfinished[0].tries == 1


def test_leases_are_renewed_while_a_result_waits_for_room() -> None:
    leases, clock = detached()
    leases.breaker.on = True
    leases.resume = refusing(FULL)
    leases.finish(_Claimed(1), None)
    leases._recover(clock.monotonic())
    renewed: list[float] = []
    leases.renew_due = lambda journal, now: renewed.append(now)  # type: ignore[method-assign]
    leases._recover(clock.monotonic())
    assert leases.breaker.is_open
    assert renewed == [clock.monotonic()]


@pytest.mark.parametrize("end", ["gateway", "process"])
def test_what_was_put_off_is_tried_at_the_end(end: str) -> None:
    leases, clock = detached()
    leases.resume = refusing(StoreUnavailable("Others keep it locked."))
    leases.finish(_Claimed(1), None)
    leases._recover(clock.monotonic())
    leases.finish(_Claimed(0), None, after_s=5.0)
    later = clock.monotonic() + 5.0
    assert leases._unfinished[0].due > clock.monotonic()
    if end == "gateway":
        leases._attached = True
        leases._hurry = lambda: None  # type: ignore[method-assign]
        next(leases.drain())
    else:
        service: Any = module._Service()
        service.keep(leases)
        service._wakes = _Leaves(service, leases)
        service.at_exit()
    assert [left.due for left in leases._unfinished] == [0.0, later]


class _Leaves:
    """Ends the wait at the end of the process."""

    def __init__(self, service: Any, leases: Leases) -> None:
        self.set = lambda: service.leave(leases)


# -- a missed renewal -------------------------------------------------------------------------------------------------


def test_a_missed_renewal_is_tried_again_after_a_quarter_of_the_pause_and_within_a_second() -> None:
    rig = Rig(store=(store := Faulty()))
    waits = []
    for lease_ms in (3_000, 60_000):
        leases = Leases(store, rig.clock, Settings(), attached=False)
        call = _Held(rig.clock, lease_ms)
        leases.hold(call, call.renew_every)
        assert leases.look() == pytest.approx(call.renew_every)
        store.fail("renew")
        rig.clock.advance(call.renew_every)
        waits.append(leases.look())
        assert leases.breaker.failures == 1
        store.broken.clear()
    assert waits == pytest.approx([0.25, 1.0])


class _Held:
    key, version, tool_name, deadline, stream = "k", 1, "tools/send", None, None

    def __init__(self, clock: Clock, lease_ms: int) -> None:
        self.started = self.claimed = clock.monotonic()
        self.lease_ms = lease_ms
        self.renew_every = lease_ms / 3000


# -- the thread of the process ----------------------------------------------------------------------------------------


class _Looked(Leases):
    """Counts looks, and says what is to come of them."""

    def __init__(self, *answers: float | Exception) -> None:
        super().__init__(Faulty(), ManualClock(0.5), Settings(), attached=False)
        self.answers = list(answers)
        self.looks = 0

    def look(self) -> float:
        self.looks += 1
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def test_the_thread_looks_at_every_gateway_and_sleeps_until_the_first_is_due() -> None:
    service = module._Service()
    assert service._look_at_all() == module._LONGEST_NAP_S
    gone, first, second = _Looked(), _Looked(7.0, RuntimeError("broken"), -1.0), _Looked(5.0, 9.0, 9.0)
    for leases in (gone, first, second):
        service.add(leases)
    assert service.all() == {gone, first, second}
    service.keep(gone)
    service.leave(gone)
    del gone, leases
    gc.collect()
    assert service._look_at_all() == 5.0
    assert service._look_at_all() == 1.0, "one that fails is looked at again soon, and keeps nobody"
    assert service._look_at_all() == 0.0
    assert (first.looks, second.looks) == (3, 3)
    service.add(third := _Looked())
    assert len(service._leases) == 3, "those that are gone are not kept"
    assert service.all() == {first, second, third}


def test_a_forked_child_begins_with_nothing() -> None:
    service = module._Service()
    leases, gone = _Looked(), _Looked()
    call = _Held(Clock(), 3_000)
    leases.hold(call, 1.0)
    leases._due[call] = 1.0
    leases.finish(_Claimed(1), None)
    service.add(gone)
    service.add(leases)
    service.keep(leases)
    del gone
    gc.collect()
    service.after_fork()
    assert service._busy == set()
    assert (leases._held, leases._due, leases._unfinished) == ({}, {}, [])
    assert leases._next == module._NEVER


# -- expired records --------------------------------------------------------------------------------------------------


class _Swept:
    """A store with so many expired records to drop; ``None``: it cannot be reached."""

    def __init__(self, *portions: int | None) -> None:
        self.portions = list(portions)

    def sweep(self, most: int) -> int:
        assert most == module.PORTION
        portion = self.portions.pop(0)
        if portion is None:
            raise StoreUnavailable("It is gone.")
        return portion


def test_the_janitor_sweeps_once_a_minute_or_so_and_goes_on_while_there_is_more() -> None:
    janitor = Janitor()
    journal: Any = _Swept(3, module.PORTION, 0, None)
    first = janitor.sweep_if_due("a", lambda: journal, 100.0)
    assert 30.0 <= first <= 90.0
    assert janitor.sweep_if_due("a", lambda: journal, 101.0) == pytest.approx(first - 1.0)
    assert len(journal.portions) == 4
    due = 100.0 + first
    for expected in ((30.0, 90.0), (1.0, 1.0), (30.0, 90.0), (30.0, 90.0)):
        pause = janitor.sweep_if_due("a", lambda: journal, due)
        assert expected[0] <= pause <= expected[1]
        assert janitor.sweep_if_due("a", lambda: journal, due + pause / 2) == pytest.approx(pause / 2)
        due += pause
    assert journal.portions == []
    pauses = [janitor._pause() for _ in range(1_000)]
    assert 30.0 <= min(pauses) <= 35.0
    assert 85.0 <= max(pauses) <= 90.0


def test_only_a_store_that_others_share_is_swept(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    here = threading.get_ident()  # the thread of the process asks for the gateways that other tests left open

    def swept(place: str, *_: Any) -> float:
        if threading.get_ident() == here:
            asked.append(place)
        return 3.0

    monkeypatch.setattr(module._janitor, "sweep_if_due", swept)
    shared, own = Heard("memory://shared"), MemoryStore()
    for store, nap in ((shared, 3.0), (own, float("inf"))):
        leases = Leases(store, Clock(), Settings())
        assert leases.look() == nap
    assert asked == ["memory://shared "]
    detached = Leases(shared, Clock(), Settings(), attached=False)
    assert detached.look() == float("inf")


def test_the_gateways_of_a_process_on_one_store_are_counted_together() -> None:
    here, there = Heard("memory://here"), Heard("memory://there")
    one, two, other = (Leases(store, Clock(), Settings()) for store in (here, here, there))
    assert set(one.of_process()) == {one, two}
    assert other.of_process() == [other]


# -- loops, step by step ----------------------------------------------------------------------------------------------


class _Signal:
    """Nobody waits for it: it notes how often it was set and how long somebody would have waited."""

    def __init__(self) -> None:
        self.waits: list[float] = []
        self.sets = 0

    def set(self) -> None:
        self.sets += 1

    def clear(self) -> None:
        self.sets = 0

    def wait(self, timeout_s: float) -> None:
        self.waits.append(timeout_s)
        if len(self.waits) == 3:
            raise SystemExit


def detached(store: Any = None, **settings: Any) -> tuple[Leases, ManualClock]:
    clock = ManualClock(0.5)
    return Leases(store or Faulty(), clock, Settings(**settings), attached=False), clock


def test_the_thread_sleeps_until_something_is_due() -> None:
    service: Any = module._Service()
    service._wakes = wakes = _Signal()
    naps = [3.0, 2.0, 1.0]
    service._look_at_all = lambda: naps.pop(0)
    with pytest.raises(SystemExit):
        service._work()
    assert wakes.waits == [3.0, 2.0, 1.0]


def test_the_thread_starts_once() -> None:
    service: Any = module._Service()
    go, begun = threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        go.wait(PATIENCE_S)

    service._work = work
    service.wake()
    assert begun.wait(PATIENCE_S)
    thread = service._thread.thread
    service.wake()
    assert service._thread.thread is thread
    assert (thread.name, thread.daemon, thread.is_alive()) == ("antiphon-leases", True, True)
    go.set()
    thread.join()


def test_whoever_mends_waits_as_long_as_it_was_told_and_ends_when_all_is_well() -> None:
    leases: Any
    leases, _ = detached()
    leases._wanted = wanted = _Signal()
    wanted.set()
    left: list[Any] = [0.5, RuntimeError("broken"), 0.0, 0.0]

    def mend(now: float) -> float:
        said = left.pop(0)
        if isinstance(said, Exception):
            raise said
        if len(left) == 1:
            leases._unfinished.append("left at this moment")
        else:
            leases._unfinished.clear()
        return float(said)

    leases._recover, leases._recovery.thread = mend, threading.current_thread()
    leases._recover_until_done()
    assert wanted.waits == [0.5, 1.0]
    assert wanted.sets == 0
    assert left == []
    assert leases._recovery.thread is None


def test_whoever_mends_goes_on_while_the_store_is_sick() -> None:
    leases: Any
    leases, _ = detached()
    looks: list[float] = []

    def mend(now: float) -> float:
        looks.append(now)
        leases.breaker.is_open = len(looks) < 3
        return 0.0

    leases._recover = mend
    leases._recover_until_done()
    assert len(looks) == 3


def test_what_is_left_is_due_at_once_unless_it_is_said() -> None:
    leases, clock = detached()
    leases.finish(_Claimed(1), None)
    leases.finish(_Claimed(1), None, after_s=2.0)
    assert [left.due for left in leases._unfinished] == [0.0, clock.monotonic() + 2.0]
    assert leases._next == 0.0
    assert leases.unrecorded == 2
    leases.finish(_Claimed(0), None)
    assert leases.unrecorded == 2, "one that has sent nothing has no outcome"


def test_a_store_is_probed_with_a_write_that_changes_nothing() -> None:
    leases, _ = detached()
    asked: list[Any] = []
    journal: Any = type("Journal", (), {"renew": lambda self, *arguments: asked.append(arguments)})()
    left = module.PendingOutcome(_Claimed(1), None)
    assert leases._refusal_of_all(journal, left, StoreUnavailable("Others keep it locked.")) is None
    assert asked == [(PROBE, 0, 1)]


def test_a_sick_store_is_looked_at_again_after_a_pause() -> None:
    store = Faulty()
    leases, clock = detached(store)
    leases.breaker.on = True
    gone = StoreUnavailable("It is gone.")
    store.fail("renew", error=gone)
    leases.breaker.failed(gone)
    assert leases._recover(clock.monotonic()) == pytest.approx(0.1)
    assert leases.look() == module._LONGEST_NAP_S, "whoever mends says when it works again"
    leases.resume = _refuse
    leases.finish(_Claimed(1), None)
    clock.advance(1.0)
    renewals = [True]

    def probed(*_: Any) -> bool:
        if renewals:
            renewals.pop()
            return False
        raise StoreUnavailable("It is gone again.")

    journal: Any = type("Journal", (), {"renew": staticmethod(probed)})()
    leases._journal = journal
    assert leases._recover(clock.monotonic()) == pytest.approx(0.2), "it was gone again before what is left was written"
    assert leases.breaker.is_open


def _refuse(*_: Any) -> None:
    raise StoreUnavailable("It is gone.")


def test_while_something_is_left_a_gateway_that_closes_waits_in_short_steps() -> None:
    leases, _ = detached()
    leases.finish(_Claimed(1), None)
    assert list(leases.drain()) == [], "nobody would write it"
    leases._attached = True
    leases._next = 5.0
    hurried: list[int] = []
    leases._hurry = lambda: hurried.append(1)  # type: ignore[method-assign]
    words = leases.drain()
    assert [next(words), next(words)] == [0.02, 0.02]
    assert len(hurried) == 2
    leases._unfinished.clear()
    assert list(words) == []


def test_the_end_of_the_process_looks_in_short_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    service: Any = module._Service()
    service._wakes = wakes = _Signal()
    leases, _ = detached()
    service.keep(leases)
    slept: list[float] = []
    here, real = threading.get_ident(), time.sleep

    def sleep(seconds: float) -> None:
        if threading.get_ident() != here:  # it belongs to another test
            real(seconds)
            return
        slept.append(seconds)
        if len(slept) == 3:
            service.leave(leases)

    monkeypatch.setattr(time, "sleep", sleep)
    service.at_exit()
    assert (slept, wakes.sets) == ([0.02] * 3, 3)


# -- when a lease is renewed ------------------------------------------------------------------------------------------


def test_a_lease_is_due_a_third_after_its_start() -> None:
    leases, clock = detached()
    first, second = _Held(clock, 30_000), _Held(clock, 3_000)
    leases.hold(first, first.renew_every)
    assert leases._next == clock.monotonic() + 10.0
    leases.hold(second, second.renew_every)
    assert leases._next == clock.monotonic() + 1.0
    leases.hold(_Held(clock, 60_000), 20.0)
    assert leases._next == clock.monotonic() + 1.0


def test_renewal_ends_at_the_cap() -> None:
    store = Faulty()
    leases, clock = detached(store, lease_cap_ms=10_000)
    call = _Held(clock, 3_000)
    leases.hold(call, 1.0)
    journal: Any = type("Journal", (), {"renew": lambda self, *_: True})()
    leases._renew(journal, call, clock.monotonic() + 9.999)
    assert leases.holds(call)
    leases._renew(journal, call, clock.monotonic() + 10.0)
    assert not leases.holds(call)


def test_a_stream_that_nobody_reads_is_broken_off_after_the_pause_it_may_make() -> None:
    leases, clock = detached(stream_idle_ms=10_000)
    broken: list[str] = []

    class Stream:
        last_pull = clock.monotonic()

        def break_off(self, journal: Any, why: str) -> None:
            broken.append(why)

    call: Any = _Held(clock, 300_000)
    call.stream = Stream()
    leases.hold(call, 100.0)
    journal: Any = None
    leases.renew_due(journal, clock.monotonic() + 10.0)
    assert broken == []
    leases.renew_due(journal, clock.monotonic() + 10.001)
    assert broken == ["its stream was not read for too long"]
    assert not leases.holds(call)


# -- who is woken -----------------------------------------------------------------------------------------------------


class _Woken(Leases):
    """Attached to nobody: it notes whom it wakes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, store: Any = None) -> None:
        super().__init__(store or Faulty(), ManualClock(0.5), Settings(), attached=False)
        self._attached = True
        self.woken: list[str] = []
        self._here = threading.get_ident()
        monkeypatch.setattr(module._service, "wake", self._wake)

    def _wake(self) -> None:
        if threading.get_ident() == self._here:  # not a gateway that another test left open
            self.woken.append("thread")

    def _recover_beside(self) -> None:
        self.woken.append("mender")


def test_who_is_woken_for_what(monkeypatch: pytest.MonkeyPatch) -> None:
    leases = _Woken(monkeypatch)
    leases._hurry()
    assert leases.woken == ["thread"]
    leases.breaker.is_open = True
    leases._hurry()
    assert leases.woken[1:] == ["thread", "mender"]
    leases.breaker.is_open = False
    leases._unfinished.append(module.PendingOutcome(_Claimed(1), None))
    leases._hurry()
    assert leases.woken[3:] == ["thread", "mender"]
    leases.woken.clear()
    leases.look()
    assert leases.woken == ["mender"]


def test_a_store_that_works_again_wakes_who_renews(monkeypatch: pytest.MonkeyPatch) -> None:
    leases = _Woken(monkeypatch)
    leases.breaker.is_open = True
    assert leases._recover(leases._clock.monotonic()) == 0.0
    assert not leases.breaker.is_open
    assert leases.woken == ["thread"]


def test_a_store_that_fails_while_something_is_written_is_looked_at_after_a_pause() -> None:
    store = Faulty()
    leases, clock = detached(store)
    leases.breaker.on = True
    leases.resume = _refuse
    leases.finish(_Claimed(1), None)
    store.fail("renew")
    assert leases._recover(clock.monotonic()) == pytest.approx(0.1)
    assert leases.breaker.is_open


def test_the_thread_that_mends_has_a_name_and_does_not_keep_the_process() -> None:
    leases: Any
    leases, _ = detached()
    leases._wanted = wanted = _Signal()
    go, begun = threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        go.wait(PATIENCE_S)

    leases._recover_until_done = work
    leases._recover_beside()
    assert begun.wait(PATIENCE_S)
    thread = leases._recovery.thread
    leases._recover_beside()
    assert leases._recovery.thread is thread
    assert (thread.name, thread.daemon, wanted.sets) == ("antiphon-mend", True, 2)
    go.set()
    thread.join()


def test_a_call_that_is_left_while_the_last_one_is_written_is_not_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    leases, _ = detached()
    leases.finish(_Claimed(1), None)
    kept: list[Any] = []
    late = module.PendingOutcome(_Claimed(2), None)
    monkeypatch.setattr(module._service, "leave", lambda one: one is leases and leases._unfinished.append(late))
    monkeypatch.setattr(module._service, "keep", kept.append)
    leases._drop(leases._unfinished[0])
    assert leases._unfinished == [late]
    assert leases in kept
