"""D10: a store that cannot be used is visible, and never silently replaced."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from antiphon._gateway.settings import ToolOverride
from antiphon._gateway.store_breaker import StoreBreaker
from antiphon.contract.spec import BreakerPolicy
from antiphon.errors import StoreUnavailable, StoreVersionError
from antiphon.stores import MemoryStore
from tests.unit.gateway.kit import AsyncRig, ManualClock, Rig


class Faulty:
    """A store that fails on order: ``broken`` holds the names of steps that raise."""

    url = "memory://faulty"
    in_process = False

    def __init__(self, inner: MemoryStore | None = None) -> None:
        self.inner = inner or MemoryStore()
        self.broken: dict[str, Exception] = {}
        self.lost: set[str] = set()
        """Steps that are carried out but whose answer gets lost."""
        self.once: list[tuple[str, str, BaseException]] = []
        """Steps that raise one time, in this order: ``before`` they are carried out, or ``after``."""
        self.asked: list[str] = []

    def fail(self, *steps: str, error: Exception | None = None) -> None:
        for step in steps:
            self.broken[step] = error or StoreUnavailable("The store is gone. Nothing was changed.")

    def open_sync(self) -> Any:
        if "open" in self.broken:
            raise self.broken["open"]
        return _FaultyJournal(self, self.inner.open_sync())

    def open_async(self) -> Any:
        return _FaultyJournal(self, self.inner.open_async(), asynchronous=True)


class _FaultyJournal:
    durable = True

    def __init__(self, store: Faulty, inner: Any, *, asynchronous: bool = False) -> None:
        self._store = store
        self._inner = inner
        self._asynchronous = asynchronous

    def __getattr__(self, name: str) -> Any:
        step = getattr(self._inner, name)
        store = self._store

        def before() -> None:
            store.asked.append(name)
            if store.once and store.once[0][:2] == (name, "before"):
                raise store.once.pop(0)[2]
            if name in store.broken:
                raise store.broken[name]

        def after(answer: Any) -> Any:
            if store.once and store.once[0][:2] == (name, "after"):
                raise store.once.pop(0)[2]
            if name in store.lost:
                store.lost.discard(name)
                raise StoreUnavailable("The answer was lost.")
            return answer

        def run(*args: Any, **kwargs: Any) -> Any:
            before()
            return after(step(*args, **kwargs))

        async def run_async(*args: Any, **kwargs: Any) -> Any:
            before()
            return after(await step(*args, **kwargs))

        if name == "subscribe_breakers":
            return step
        return run_async if self._asynchronous else run


def faulty_rig(**options: Any) -> tuple[Rig, Faulty]:
    store = Faulty()
    return Rig(store=store, **options), store


@pytest.mark.parametrize(
    ("spec", "fails_open"),
    [
        ({"idempotent": False}, False),
        ({"idempotent": True}, False),
        ({"idempotent": True, "effect": "read"}, True),
        ({"idempotent": True, "effect": "read", "on_store_outage": "closed"}, False),
        ({"idempotent": False, "on_store_outage": "open"}, True),
        ({"idempotent": False, "effect": "read"}, False),
    ],
)
@pytest.mark.parametrize("step", ["begin", "open"])
def test_reads_fail_open_everything_else_closed(spec: dict[str, Any], fails_open: bool, step: str) -> None:
    rig, store = faulty_rig()
    script = rig.tool("ran", **spec)
    store.fail(step, "load_breakers")
    result = rig.execute()
    if fails_open:
        assert (result.content, result.output.metadata) == ("ran", {"unprotected": "store_unavailable"})
    else:
        assert (result.status, result.code, result.attempts) == ("retriable_error", "store_unavailable", 0)
        assert "was not made" in result.error.message
    assert len(script) == int(fails_open)
    [outage] = rig.ears.of("tool_store_outage")
    assert outage["failOpen"] is fails_open
    counted = "store_outage_open" if fails_open else "store_outage_closed"
    assert rig.tally.counts["hits", "tools/send", counted] == 1


def test_the_configuration_can_open_or_close_a_tool() -> None:
    rig, store = faulty_rig(tools={"send": ToolOverride(on_store_outage="open")})
    script = rig.tool("ran")
    store.fail("begin")
    assert rig.execute().content == "ran"
    assert len(script) == 1


def test_safety_critical_calls_never_fail_open() -> None:
    rig, store = faulty_rig()
    script = rig.tool("ran", idempotent=True, effect="read")
    store.fail("begin")
    assert rig.execute(hints={"safetyCritical": True}).code == "store_unavailable"
    assert len(script) == 0


def test_a_record_of_a_newer_release_fails_closed_even_for_reads() -> None:
    rig, store = faulty_rig()
    script = rig.tool("ran", idempotent=True, effect="read")
    store.fail("begin", error=StoreVersionError("The claim has format 2; this release reads up to 1."))
    assert rig.execute().code == "store_version"
    assert len(script) == 0


def test_a_full_store_refuses_new_claims_of_tools_that_may_not_be_repeated() -> None:
    rig = Rig(store=MemoryStore(max_keys=2))
    script = rig.tool(TimeoutError())
    for number in range(2):
        assert rig.execute(params={"to": str(number)}).code == "outcome_unknown"
    refused = rig.execute(params={"to": "3"})
    assert (refused.code, refused.attempts) == ("store_full", 0)
    assert len(script) == 2


# -- the effect has happened ----------------------------------------------------------------------------------------


def test_an_outcome_that_cannot_be_written_is_still_the_answer() -> None:
    rig, store = faulty_rig()
    script = rig.tool("sent")
    store.fail("settle")
    result = rig.execute(call_id="c1")
    assert (result.content, result.output.metadata) == ("sent", {"notRecorded": "store_unavailable"})
    assert store.asked.count("settle") == 1
    rig.leases.look()
    assert rig.records()[0].state == "inflight"
    assert rig.leases.unrecorded == 1
    store.broken.clear()
    rig.clock.advance(1.0)
    rig.leases.look()
    assert rig.records()[0].state == "done", "the process's own thread has written it"
    assert rig.leases.unrecorded == 0
    again = rig.execute(call_id="c1")
    assert (again.content, again.from_cache) == ("sent", True)
    assert len(script) == 1


def test_a_result_is_written_over_the_unknown_that_others_made_of_it() -> None:
    """The lease was over before the store worked again, and a redelivery came first."""
    store = Faulty(MemoryStore(clock=(clock_rig := Rig()).clock))
    rig = Rig(store=store)
    script = rig.tool("sent")
    store.fail("settle")
    rig.execute(call_id="c1")
    store.broken.clear()
    clock_rig.clock.advance(121)
    assert rig.execute(call_id="c1").code == "outcome_unknown"
    rig.leases.look()
    assert rig.execute(call_id="c1").content == "sent"
    assert len(script) == 1


def test_a_result_is_not_written_where_an_operator_cleared_the_claim() -> None:
    rig, store = faulty_rig()
    rig.tool("sent")
    store.fail("settle")
    rig.execute(call_id="c1")
    store.broken.clear()
    rig.store.open_sync().clear(rig.records()[0].key)
    rig.clock.advance(1.0)
    rig.leases.look()
    assert rig.records() == []
    assert rig.leases.unrecorded == 0


def test_an_outcome_that_a_working_store_refuses_is_not_tried_for_ever() -> None:
    """Whatever the reason, for example a record that an operator cleared: less and less often, then no more."""
    rig, store = faulty_rig()
    rig.tool("sent")
    store.fail("settle")
    rig.execute(call_id="c1")
    store.fail("read")
    rig.leases.look()
    first = store.asked.count("read")
    rig.leases.look()
    assert store.asked.count("read") == first, "not at once again"
    pauses = 0
    while rig.leases.unrecorded:
        rig.clock.advance(60.0)
        rig.leases.look()
        pauses += 1
        assert pauses < 100
    asked = store.asked.count("read")
    assert 5 <= asked <= 25
    rig.clock.advance(3600.0)
    rig.leases.look()
    assert store.asked.count("read") == asked


def test_an_outcome_waits_as_long_as_the_store_takes_no_write() -> None:
    rig, store = faulty_rig()
    script = rig.tool("sent")
    store.fail("settle")
    rig.execute(call_id="c1")
    store.fail("renew")
    for _ in range(100):
        rig.clock.advance(60.0)
        rig.leases.look()
    assert rig.leases.unrecorded == 1
    store.broken.clear()
    rig.clock.advance(60.0)
    rig.leases.look()
    assert rig.leases.unrecorded == 0
    assert rig.execute(call_id="c1").content == "sent"
    assert len(script) == 1


def test_a_call_that_cannot_be_finished_does_not_keep_the_others() -> None:
    rig, store = faulty_rig()
    rig.tool("sent", "sent")
    store.fail("settle")
    rig.execute(call_id="c1")
    rig.execute(call_id="c2", params={"to": "bob"})
    store.broken.clear()
    resume = rig.leases.resume
    refused: list[Any] = []

    def choosy(journal: Any, call: Any, step: Any) -> None:
        if not refused or call is refused[0]:
            refused.append(call)
            raise RuntimeError("a store of somebody else")
        resume(journal, call, step)

    rig.leases.resume = choosy
    rig.leases.look()
    assert rig.leases.unrecorded == 1
    assert sorted(record.state for record in rig.records()) == ["done", "inflight"]


def test_a_claim_whose_request_failed_is_given_back() -> None:
    """The request may have arrived: nobody waits for the lease of a call that was never made."""
    rig, store = faulty_rig()
    script = rig.tool("sent")
    store.lost.add("begin")
    assert rig.execute(call_id="c1").code == "store_unavailable"
    store.lost.clear()
    rig.leases.look()
    assert [record.state for record in rig.records()] == ["cancelled"]
    assert rig.execute(call_id="c1").content == "sent"
    assert len(script) == 1


def test_after_a_lost_settle_nothing_is_sent_again() -> None:
    store = Faulty(MemoryStore(clock=(clock_rig := Rig()).clock))
    rig = Rig(store=store)
    script = rig.tool("sent")
    store.fail("settle")
    rig.execute(call_id="c1")
    store.broken.clear()
    clock_rig.clock.advance(121)
    assert rig.execute(call_id="c1").code == "outcome_unknown"
    assert rig.execute(call_id="c2").code == "outcome_unknown"
    assert len(script) == 1


def test_a_settle_whose_answer_was_lost_is_fenced_not_doubled() -> None:
    rig, store = faulty_rig()
    script = rig.tool("sent")
    store.lost.add("settle")
    result = rig.execute(call_id="c1")
    assert result.content == "sent"
    assert result.output.metadata == {"notRecorded": "store_unavailable"}
    rig.leases.look()
    assert rig.leases.unrecorded == 0, "it was there all the same"
    assert rig.execute(call_id="c1").content == "sent"
    assert len(script) == 1


def test_a_claim_whose_answer_was_lost_runs_nothing() -> None:
    rig, store = faulty_rig()
    script = rig.tool("sent")
    store.lost.add("begin")
    assert rig.execute(call_id="c1").code == "store_unavailable"
    assert len(script) == 0


def test_an_answer_that_cannot_be_remembered_is_still_given() -> None:
    rig, store = faulty_rig()
    rig.tool("found", idempotent=True, reuse=60.0)
    rig.execute(call_id="c1")
    store.fail("alias")
    assert rig.execute(call_id="c2").content == "found"


def test_breaker_state_that_cannot_be_shared_does_not_fail_calls(caplog: pytest.LogCaptureFixture) -> None:
    rig, store = faulty_rig()
    rig.tool(TimeoutError(), idempotent=True)
    store.fail("save_breaker", "load_breakers")
    for number in range(6):
        rig.execute(attempts=1, params={"to": str(number)})
    assert rig.breaker().state == "OPEN"
    assert "could not be shared" in caplog.text
    assert "could not be exchanged" in caplog.text


def test_an_open_breaker_answers_even_if_the_store_is_gone() -> None:
    rig, store = faulty_rig()
    script = rig.tool("sent")
    rig.breaker().force_open(rig.clock.seconds, "maintenance")
    store.fail("read", "begin", "load_breakers")
    assert rig.execute().status == "circuit_open"
    assert len(script) == 0


def test_the_store_is_used_again_as_soon_as_it_is_back() -> None:
    rig, store = faulty_rig()
    script = rig.tool("sent")
    store.fail("begin")
    rig.execute(call_id="c1")
    store.broken.clear()
    assert rig.execute(call_id="c1").content == "sent"
    assert rig.execute(call_id="c1").from_cache
    assert len(script) == 1


async def test_outage_in_the_asynchronous_face() -> None:
    store = Faulty()
    rig = AsyncRig(store=store)
    script = rig.tool("ran")
    store.fail("begin")
    assert (await rig.execute()).code == "store_unavailable"
    store.broken.clear()
    store.fail("settle")
    assert (await rig.execute()).output.metadata == {"notRecorded": "store_unavailable"}
    assert len(script) == 1


# -- a look that a call can do without -------------------------------------------------------------------------------


class Slow(Faulty):
    """A store whose reads wait until the test lets them go on."""

    def __init__(self) -> None:
        super().__init__()
        self.go_on = threading.Event()

    def open_sync(self) -> Any:
        return _SlowJournal(self, self.inner.open_sync())


class _SlowJournal(_FaultyJournal):
    def read(self, *arguments: Any) -> Any:
        self._store.asked.append("read")
        assert self._store.go_on.wait(60)  # type: ignore[attr-defined]
        return self._inner.read(*arguments)


def test_a_slow_look_of_a_refused_call_does_not_shut_the_way_to_the_store() -> None:
    store = Slow()
    rig = Rig(store)
    rig.gateway._plans.store_breaker.on = True
    script = rig.tool(ConnectionRefusedError(), "sent", breaker=BreakerPolicy(consecutive=1), retry={"max_attempts": 1})
    rig.execute(call_id="c1", params={"to": "ada"})
    try:
        for number in range(3):
            refused = rig.execute(call_id=f"r{number}", params={"to": f"bob{number}"})
            assert refused.error.code == "circuit_open"
    finally:
        store.go_on.set()
    assert store.asked.count("read") == 1, "a look that is under way is not followed by others"
    assert not rig.gateway._plans.store_breaker.is_open
    rig.clock.advance(3_600)
    assert rig.execute(call_id="c2", params={"to": "eve"}).content == "sent"
    assert len(script) == 2


def test_a_store_that_stays_away_is_asked_once_a_second_and_at_once_when_a_call_comes() -> None:
    clock, store, woken = ManualClock(), Faulty(), threading.Event()
    breaker = StoreBreaker(store.url, clock, on=True, wake=woken.set)
    store.fail("renew")
    breaker.open(StoreUnavailable("The store is gone."))
    for pause in (0.1, 0.2, 0.4, 0.8, 1.0, 1.0):
        assert breaker.probe(store.open_sync, clock.monotonic()) == pause
        assert breaker.probe(store.open_sync, clock.monotonic()) == pytest.approx(pause), "it is not time yet"
        clock.sleep(pause)
    assert len(store.asked) == 6
    woken.clear()
    with pytest.raises(StoreUnavailable):
        breaker.wait_for_probe(0.0)
    assert woken.is_set()
    store.broken.clear()
    assert breaker.probe(store.open_sync, clock.monotonic() - 0.5) == 0.0, "now, whatever the pause is"
    breaker.close()
    store.fail("renew")
    breaker.open(StoreUnavailable("The store is gone again."))
    assert breaker.probe(store.open_sync, clock.monotonic()) == 0.1
