"""D53, R9: what a store that fails or freezes does to calls, and how breakers are shared; on threads and event loops.

The store is one of this process that passes for a shared one, and each wait ends with a step of it.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from typing import Any

import pytest

from antiphon._gateway import drivers, store_breaker
from antiphon._gateway.store_breaker import GRACE_S, StoreBreaker
from antiphon.errors import StoreUnavailable
from antiphon.ports import BreakerRow
from tests.unit.gateway.heard import Face, Heard
from tests.unit.gateway.kit import ManualClock, in_child

SOON_S = 0.05
LATER_S = 15.0


@pytest.fixture
def store() -> Iterator[Heard]:
    store = Heard()
    yield store
    store.repair()


@pytest.fixture(params=["sync", "async"])
def face(request: pytest.FixtureRequest, store: Heard) -> Iterator[Face]:
    face = Face(request.param, store)
    yield face
    store.repair()
    face.close()


def trip(face: Face, name: str = "send") -> None:
    """Until the breaker of a tool that fails is open."""
    for number in range(30):
        if face.execute(tool=name, params={"to": f"x{number}"}, attempts=1).code == "circuit_open":
            return
    raise AssertionError("it stays closed")


# -- a call with a deadline -------------------------------------------------------------------------------------------


def test_a_call_with_a_deadline_is_guarded_like_any_other(face: Face, store: Heard) -> None:
    face.tool()
    assert face.execute(LATER_S, call_id="c1").content == "sent"
    again = face.execute(LATER_S, call_id="c1")
    assert (again.content, again.from_cache) == ("sent", True)
    assert face.made == ["ada"]
    assert store.states == ["done"]
    assert store.steps.count("begin") == 2


def test_a_frozen_claim_costs_no_more_than_the_deadline(face: Face, store: Heard) -> None:
    face.tool()
    assert face.execute(call_id="c0", params={"to": "first"}).ok
    store.freeze("begin", "renew")
    began = time.monotonic()
    refused = face.execute(SOON_S, call_id="c1")
    took = time.monotonic() - began
    assert refused.code == "store_unavailable"
    assert SOON_S + GRACE_S * 0.9 <= took < 10
    assert face.made == ["first"]
    store.thaw()
    face.until(lambda: not face.leases.breaker.is_open)
    assert face.execute(LATER_S, call_id="c1").content == "sent"


def test_a_deadline_that_passes_while_the_store_works_does_not_open_its_breaker(face: Face, store: Heard) -> None:
    face.tool()
    assert face.execute(call_id="c0", params={"to": "first"}).ok
    probes = store.steps.count("renew")
    store.freeze("begin")
    assert face.execute(4 * SOON_S, call_id="c1").code == "store_unavailable"
    store.steps.until("renew", probes + 1)
    store.thaw()
    assert face.execute(call_id="c2").ok
    assert face.leases.breaker.failures == 0


@pytest.mark.parametrize("worked", [False, True])
def test_a_store_that_hangs_is_noticed_although_no_call_waits_for_it(
    worked: bool, face: Face, store: Heard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if it hangs while the background thread writes what an earlier call has left."""
    monkeypatch.setattr(store_breaker, "PATIENCE_S", 8 * SOON_S)
    face.tool()
    store.freeze("begin")
    if worked:
        assert face.execute(4 * SOON_S, call_id="c0").code == "store_unavailable"
        store.steps.until("renew")
        store.steps.until("begin", 2)
    store.freeze("renew")
    assert face.execute(4 * SOON_S, call_id="c1").code == "store_unavailable"
    store.steps.until_met(lambda: face.leases.breaker.is_open)
    assert "It was not contacted again" in face.execute(call_id="c2").error.message
    store.thaw()
    face.until(lambda: not face.leases.breaker.is_open)
    assert face.execute(call_id="c2").ok


def test_a_frozen_settlement_is_written_later(face: Face, store: Heard, monkeypatch: pytest.MonkeyPatch) -> None:
    face.tool()
    store.freeze("settle")
    breaker = face.leases.breaker
    real = breaker.seconds_left
    monkeypatch.setattr(breaker, "seconds_left", lambda until: SOON_S if face.made else real(until))
    result = face.execute(LATER_S, call_id="c1")
    assert (result.content, result.output.metadata) == ("sent", {"notRecorded": "store_unavailable"})
    store.thaw()
    face.until(lambda: store.states == ["done"])
    store.steps.until_met(lambda: not face.leases.unrecorded)
    assert face.execute(LATER_S, call_id="c1").from_cache
    assert face.made == ["ada"]


# -- a store that is away ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("within_s", [None, LATER_S])
def test_calls_are_told_at_once_while_the_store_is_away_and_made_when_it_is_back(
    face: Face, store: Heard, within_s: float | None
) -> None:
    face.tool()
    store.fail("begin", "renew", "settle", "read")
    assert face.execute(within_s, call_id="c1").code == "store_unavailable"
    asked = store.steps.count("begin")
    probes = store.steps.count("renew")
    refused = face.execute(within_s, call_id="c2")
    assert refused.code == "store_unavailable"
    assert "It was not contacted again" in refused.error.message
    assert store.steps.count("begin") == asked
    assert store.steps.count("renew") > probes, "one call at a time has the store looked at"
    store.broken.clear()
    assert face.execute(within_s, call_id="c3").content == "sent", "the look has found it well"
    assert face.made == ["ada"]


def test_a_forked_child_probes_the_store_itself(store: Heard) -> None:
    face = Face("sync", store)
    face.tool()
    store.fail("begin")
    store.freeze("renew")
    assert face.execute(call_id="c1").code == "store_unavailable"
    assert face.execute(call_id="c2").code == "store_unavailable", "the probe it waits for hangs"

    def child() -> str:
        store.broken, store.frozen = {}, {}
        until = time.monotonic() + 5
        while not (answer := face.execute(call_id="c3")).ok and time.monotonic() < until:
            pass
        return str(answer.content if answer.ok else answer.code)

    assert in_child(child) == "sent"
    store.repair()
    face.close()


@pytest.mark.parametrize("within_s", [None, LATER_S])
def test_the_result_of_a_call_under_way_is_kept_while_the_store_is_away(
    face: Face, store: Heard, within_s: float | None
) -> None:
    """Another call has found the store away meanwhile: this one does not ask it again."""
    asked: list[int] = []

    def away() -> str:
        store.fail("settle", "renew", "read")
        face.leases.breaker.failed(store.broken["settle"])
        asked.append(store.steps.count("settle"))
        return "sent"

    async def away_async() -> str:
        return away()

    face.gateway.tool("away", idempotent=False)(away if face._loop is None else away_async)
    result = face.execute(within_s, tool="away", params={}, call_id="c1")
    assert result.output.metadata == {"notRecorded": "store_unavailable"}
    assert store.steps.count("settle") == asked[0]
    store.broken.clear()
    store.steps.until_met(lambda: store.states == ["done"])


def test_a_closed_gateway_opens_the_store_again(face: Face, store: Heard) -> None:
    face.tool()
    assert face.execute(call_id="c1").ok
    opened = store.steps.count("open")
    face.close()
    assert store.steps.count("close") >= 1
    assert face.execute(call_id="c1").from_cache
    assert store.steps.count("open") == opened + 1


class _Watching:
    """Whether the breaker of the store was open when it blocked this one's access."""

    def __init__(self, breaker: StoreBreaker) -> None:
        self.was_open: list[bool] = []
        self._breaker = breaker
        breaker.watch(self)

    def connect(self, journal: Any) -> None: ...

    def shut(self) -> None:
        self.was_open.append(self._breaker.is_open)

    def reopen(self) -> None: ...


def test_once_a_call_is_told_that_the_store_is_away_none_gets_through(face: Face, store: Heard) -> None:
    face.tool()
    assert face.execute(call_id="c1").ok
    watching = _Watching(face.leases.breaker)
    store.fail("begin", "renew")
    assert face.execute(call_id="c2").code == "store_unavailable"
    assert watching.was_open == [False]
    assert face.leases.breaker.is_open


def test_a_store_found_away_while_a_call_opens_it_is_not_asked_by_the_next(face: Face, store: Heard) -> None:
    face.tool()
    assert face.execute(call_id="c1").ok
    face.close()
    store.fail("renew")
    store.on_open = lambda: face.leases.breaker.open(StoreUnavailable("The store is gone."))
    assert face.execute(call_id="c1").from_cache
    asked = store.steps.count("begin")
    assert face.execute(call_id="c2").code == "store_unavailable"
    assert store.steps.count("begin") == asked
    assert face.made == ["ada"]


# -- an open breaker --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("within_s", [None, LATER_S])
def test_an_open_breaker_still_gives_recorded_answers(face: Face, store: Heard, within_s: float | None) -> None:
    face.tool()
    assert face.execute(within_s, call_id="c1").ok
    store.inner.open_sync().save_breaker("default", forced(int(time.time() * 1000)))
    assert face.execute(within_s, refresh=True, call_id="c2").code == "circuit_open"
    again = face.execute(within_s, call_id="c1")
    assert (again.content, again.from_cache) == ("sent", True)
    assert face.made == ["ada"]


def test_a_look_that_hangs_is_left_and_not_repeated(face: Face, store: Heard) -> None:
    face.tool("shut", TimeoutError("slow"), idempotent=True)
    trip(face, "shut")
    store.freeze("read")
    looks = store.steps.count("read")
    for _ in range(3):
        assert face.execute(tool="shut", params={"to": "new"}).code == "circuit_open"
    assert store.steps.count("read") == looks + 1
    assert not face.leases.breaker.is_open, "late is not sick"
    store.thaw()


# -- breakers of others -----------------------------------------------------------------------------------------------


def told(store: Heard) -> dict[str, str]:
    return {row.key.partition("#")[0]: row.state for row in store.inner.open_sync().load_breakers("default")}


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_state_that_could_not_be_told_is_told_with_the_next_refresh(
    kind: str, store: Heard, caplog: pytest.LogCaptureFixture
) -> None:
    face = Face(kind, store)
    face.tool("shut", TimeoutError("slow"), idempotent=True)
    face.tool()
    store.fail("save_breaker")
    trip(face, "shut")
    assert list(face.gateway._plans.unshared) == ["tool/tools/shut"]
    assert face.leases.breaker.failures
    assert "could not be" in caplog.text
    store.repair()
    store.steps.until_met(lambda: not face.leases.breaker.is_open)
    assert face.execute(refresh=True, call_id="c1").ok
    assert face.gateway._plans.unshared == {}
    assert told(store) == {"tool/tools/shut": "OPEN"}
    saved = store.steps.count("save_breaker")
    assert face.execute(refresh=True, call_id="c2").ok
    assert store.steps.count("save_breaker") == saved, "once is enough"
    face.close()


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_an_exchange_that_fails_is_made_again(kind: str, store: Heard, caplog: pytest.LogCaptureFixture) -> None:
    face = Face(kind, store)
    face.tool()
    store.fail("load_breakers")
    assert face.execute(refresh=True, call_id="c1").ok, "the store takes writes again by then"
    assert "breaker states could not be exchanged" in caplog.text
    assert face.leases.breaker.failures == 1
    store.repair()
    store.steps.until_met(lambda: not face.leases.breaker.is_open)
    read = store.steps.count("load_breakers")
    assert face.execute(refresh=True, call_id="c2").ok
    assert store.steps.count("load_breakers") == read + 1
    face.close()


def test_a_frozen_exchange_holds_up_a_call_for_a_moment_and_is_not_repeated(face: Face, store: Heard) -> None:
    face.tool()
    assert face.execute(call_id="c0").ok
    store.freeze("load_breakers")
    read = store.steps.count("load_breakers")
    for number in range(1, 4):
        assert face.execute(refresh=True, call_id=f"c{number}").ok
    assert store.steps.count("load_breakers") == read + 1
    store.thaw()
    face.until(lambda: not face.world._exchanging.is_under_way)
    assert face.execute(refresh=True, call_id="c4").ok
    assert store.steps.count("load_breakers") == read + 2


def forced(at_ms: int, state: str = "FORCED_OPEN", epoch: int = 5) -> BreakerRow:
    return BreakerRow("tool/tools/send", state, epoch, 0, "by an operator", at_ms)


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_store_that_pushes_is_read_once_and_then_listened_to(kind: str, store: Heard) -> None:
    store.pushes = True
    face = Face(kind, store)
    face.tool()
    assert face.execute(refresh=True, call_id="c1").ok
    assert face.execute(refresh=True, call_id="c2").ok
    assert (store.steps.count("load_breakers"), len(store.listeners)) == (1, 1)
    feed = face.gateway._feed
    adopted: list[Any] = []
    face.gateway._plans.adopt = lambda rows, pushed: adopted.append(pushed and [row.state for row in rows])
    (tell,) = store.listeners
    row = forced(1_000)
    tell(row)
    tell(row)
    assert adopted == [["FORCED_OPEN"]], "a repeated row changes nothing"
    tell(forced(999, "CLOSED"))
    tell(forced(2_000, "CLOSED", epoch=4))
    assert adopted[1:] == [["FORCED_OPEN"], ["FORCED_OPEN"]], "an older row changes nothing"
    tell(forced(1_000, "CLOSED"))
    assert adopted[3:] == [["CLOSED"]]
    del face.gateway._plans.adopt
    feed._next_read = time.monotonic() + 1_000
    assert not feed.due(face.world.journal)
    feed._next_read = 0.0
    assert feed.due(face.world.journal), "the safety net"
    feed.after_fork()
    assert face.execute(refresh=True, call_id="c3").ok
    assert (store.steps.count("load_breakers"), len(store.listeners)) == (2, 2), "a forked child subscribes anew"
    face.close()
    assert len(store.listeners) == 1
    del face, feed
    gc.collect()
    tell(row)  # nobody is there any more


def test_an_exchange_that_was_interrupted_before_it_began_holds_up_no_other_for_ever() -> None:
    clock = ManualClock()
    exchange = drivers._OneAtATime(clock)
    assert exchange.begin()
    assert not exchange.begin()
    clock.advance(drivers._LONGEST_EXCHANGE_S)
    assert exchange.begin()
    exchange.end()
    assert exchange.begin()
