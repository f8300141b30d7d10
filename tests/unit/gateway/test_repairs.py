"""D54: an interrupt or a failure at any step of the store. The caller repairs what it can at once, and the process's
own thread does the rest."""

from __future__ import annotations

from typing import Any

import pytest

from antiphon import Antiphon
from antiphon.errors import StoreUnavailable
from antiphon.stores import MemoryStore
from tests.unit.gateway.kit import Rig, envelope
from tests.unit.gateway.test_outage import Faulty

REFUSED = ConnectionRefusedError(111, "refused")


def rig_on(*plan: tuple[str, str, BaseException], **settings: Any) -> tuple[Rig, Faulty]:
    store = Faulty()
    rig = Rig(store=store, **settings)
    store.inner = MemoryStore(clock=rig.clock)
    store.once += plan
    return rig, store


def states(rig: Rig) -> list[tuple[str, bool]]:
    return [(record.state, record.dispatched) for record in rig.records()]


def left(rig: Rig) -> int:
    """Calls that the process's own thread has to finish."""
    return len(rig.leases._unfinished)


def mend(rig: Rig) -> None:
    """The process's own thread looks at the store, and once more when a failure is over."""
    rig.leases.look()
    rig.clock.advance(2.0)
    rig.leases.look()


def interrupted(rig: Rig, **changes: Any) -> None:
    with pytest.raises(KeyboardInterrupt):
        rig.execute(call_id="c1", **changes)


STOP = KeyboardInterrupt()
GONE = StoreUnavailable("The store is gone.")


@pytest.mark.parametrize("when", ["before", "after"])
def test_an_interrupted_claim_is_given_back_at_once(when: str) -> None:
    rig, _ = rig_on(("begin", when, STOP))
    script = rig.tool("sent")
    interrupted(rig)
    assert states(rig) == [("cancelled", False)]
    assert (len(script), left(rig)) == (0, 0)
    assert rig.execute(call_id="c1").content == "sent"


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize(("does", "state"), [("sent", "done"), (ValueError("no"), "failed")])
def test_an_interrupted_end_is_written_at_once(when: str, does: Any, state: str) -> None:
    rig, store = rig_on(("settle", when, STOP))
    script = rig.tool(does)
    interrupted(rig)
    assert states(rig) == [(state, True)]
    assert (len(script), left(rig)) == (1, 0)
    assert store.asked.count("settle") == (2 if when == "before" else 1), "only if it was not written"
    assert not rig.leases._held


@pytest.mark.parametrize(("does", "idempotent", "state"), [(REFUSED, False, "cancelled"), (REFUSED, True, "cancelled")])
def test_an_interrupt_between_two_attempts(does: Any, idempotent: bool, state: str) -> None:
    rig, _ = rig_on(("renew", "before", STOP))
    script = rig.tool(does, "second", idempotent=idempotent)
    interrupted(rig)
    assert [found for found, _ in states(rig)] == [state]
    assert (len(script), left(rig)) == (1, 0)
    assert rig.execute(call_id="c1").content == "second"


@pytest.mark.parametrize(
    "second", [("read", "before", STOP), ("read", "before", GONE), ("read", "after", STOP), ("read", "after", GONE)]
)
def test_a_repair_that_breaks_off_is_left_to_the_thread(second: tuple[str, str, BaseException]) -> None:
    rig, _ = rig_on(("settle", "before", STOP), second)
    script = rig.tool("sent")
    interrupted(rig)
    assert states(rig) == [("inflight", False)]
    assert left(rig) == 1
    assert not rig.leases._held
    mend(rig)
    assert states(rig) == [("done", True)]
    assert left(rig) == 0
    assert rig.execute(call_id="c1").content == "sent"
    assert len(script) == 1


@pytest.mark.parametrize("error", [STOP, GONE])
def test_a_claim_that_cannot_be_given_back_is_left_to_the_thread(error: BaseException) -> None:
    rig, _ = rig_on(("begin", "after", STOP), ("begin", "before", error))
    script = rig.tool("sent")
    interrupted(rig)
    assert states(rig) == [("inflight", False)]
    assert left(rig) == 1
    assert not rig.leases._held
    mend(rig)
    assert states(rig) == [("cancelled", False)]
    assert left(rig) == 0
    assert len(script) == 0


@pytest.mark.parametrize("step", ["read", "settle"])
def test_an_interrupt_while_a_lost_claim_is_looked_at(step: str) -> None:
    """The first write of the end found another record; the second look at it is interrupted."""
    rig, store = rig_on()

    def lost(**_: Any) -> str:
        journal = store.inner.open_sync()
        journal.clear(journal.list(tenant="default")[0].key)
        store.once.append((step, "before", STOP))
        return "sent"

    script = rig.tool(lost)
    interrupted(rig)
    assert (len(script), left(rig)) == (1, 1 if step == "read" else 0)
    assert not rig.leases._held
    mend(rig)
    assert left(rig) == 0
    assert states(rig) == [], "an operator cleared it"


def test_an_interrupt_before_the_call_is_admitted_leaves_nothing() -> None:
    rig, _ = rig_on(("load_breakers", "before", STOP))
    script = rig.tool("sent")
    interrupted(rig)
    assert (states(rig), left(rig), len(script)) == ([], 0, 0)
    assert rig.ears.heard == [], "nobody has heard of it"


def test_the_thread_of_a_store_that_fails_hears_of_it() -> None:
    rig, _ = rig_on(("begin", "before", GONE))
    script = rig.tool("sent")
    assert rig.execute(call_id="c1").code == "store_unavailable"
    assert rig.leases.breaker.failures == 1
    assert (left(rig), len(script)) == (1, 0)
    rig.leases.look()
    assert (left(rig), states(rig)) == (0, [("cancelled", False)]), "no room for a request that is still under way"


# -- recorded runs -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_claim_interrupted_in_a_run_is_in_its_log(when: str) -> None:
    store = Faulty()
    app = Antiphon({"telemetry": {"logs": False}}, store=store)
    made: list[str] = []
    app.gateway.tool("send", idempotent=False)(lambda to: made.append(to))
    with app.run("interrupted") as run:
        store.once.append(("begin", when, STOP))
        with pytest.raises(KeyboardInterrupt):
            app.gateway.execute(envelope(call_id="c1"))
    kinds = [event.type for event in run.events()]
    assert kinds == ["run.started", "call.started", "call.finished", "run.finished"]
    assert made == []
    app.gateway.close()


def test_a_missing_event_of_a_call_is_told() -> None:
    app = Antiphon({"telemetry": {"logs": False}}, store=MemoryStore())
    app.gateway.tool("look", idempotent=True)(lambda at: "seen")
    with app.run("full disk") as run:
        write = run.scope.write
        writes: list[Any] = []

        def fails(rows: Any) -> None:
            writes.append(rows)
            if len(writes) == 2:
                raise StoreUnavailable("The disk is full.")
            assert write is not None
            write(rows)

        run.scope.write = fails
        result: Any = app.gateway.execute(envelope("look", {"at": "x"}, call_id="c1", mode="disabled"))
        run.scope.write = write
    assert (result.content, result.output.metadata) == ("seen", {"notRecorded": "store_unavailable"})
    assert [event.type for event in run.events()] == ["run.started", "call.started", "run.finished"]
