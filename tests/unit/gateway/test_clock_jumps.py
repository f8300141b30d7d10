"""D3: a wall clock that is set forward during a call does not make it a second time, however far it is set."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from antiphon.contract.spec import Ttls
from antiphon.stores import MemoryStore, SQLiteStore
from tests.unit.gateway.kit import Hold, ManualClock, Rig, Script, Thread, in_thread

TTLS = Ttls(done_ms=60_000, failed_ms=60_000, lease_ms=3_000)
JUMPS_S = [4, 59, 61, 3_600]
Begin = Callable[..., tuple[Rig, Script, Hold, Thread]]


@pytest.fixture(params=["memory", "sqlite"])
def begin(request: pytest.FixtureRequest, tmp_path: Path) -> Begin:
    """Begin a call, and hold it in its tool."""

    def begin(*, idempotent: bool = False) -> tuple[Rig, Script, Hold, Thread]:
        clock = ManualClock()
        store: Any = MemoryStore(clock=clock)
        if request.param == "sqlite":
            store = SQLiteStore(tmp_path / "antiphon.db", "NORMAL", clock=clock)
        rig, hold = Rig(store, clock=clock), Hold()
        script = rig.tool(hold.then("first"), "second", idempotent=idempotent, ttl=TTLS)
        thread = in_thread(lambda: rig.execute(call_id="c1"))
        hold.until_reached()
        return rig, script, hold, thread

    return begin


def jump(rig: Rig, seconds: int) -> None:
    rig.clock.wall_offset_ms += seconds * 1000


def sweep(rig: Rig) -> int:
    return int(rig.store.open_sync().sweep())


@pytest.mark.parametrize("seconds", JUMPS_S)
def test_a_redelivery_after_a_jump_is_told_that_the_outcome_is_unknown(begin: Begin, seconds: int) -> None:
    rig, script, hold, thread = begin()
    jump(rig, seconds)
    assert rig.execute(call_id="c1").code == "outcome_unknown"
    assert rig.execute(call_id="c2").code == "outcome_unknown"
    hold.go.set()
    assert thread.result().content == "first"
    assert rig.execute(call_id="c1").content == "first", "who has the result settles what is unknown"
    assert len(script) == 1


@pytest.mark.parametrize("seconds", JUMPS_S)
def test_a_call_that_may_be_repeated_is_taken_over_and_its_holder_fenced(begin: Begin, seconds: int) -> None:
    rig, script, hold, thread = begin(idempotent=True)
    jump(rig, seconds)
    assert rig.execute(call_id="c1").content == "second"
    hold.go.set()
    assert thread.result().output.metadata["fenced"] is True
    assert rig.execute(call_id="c1").content == "second"
    assert len(script) == 2


@pytest.mark.parametrize("seconds", JUMPS_S)
def test_a_call_that_ends_after_a_jump_is_recorded(begin: Begin, seconds: int) -> None:
    rig, script, hold, thread = begin()
    jump(rig, seconds)
    hold.go.set()
    thread.result()
    again = rig.execute(call_id="c1")
    assert (again.content, again.from_cache) == ("first", True)
    assert len(script) == 1


@pytest.mark.parametrize("seconds", JUMPS_S)
def test_a_sweep_after_a_jump_does_not_free_a_call_in_flight(begin: Begin, seconds: int) -> None:
    rig, script, hold, thread = begin()
    jump(rig, seconds)
    assert sweep(rig) == 0
    rig.clock.advance(1.1)
    rig.gateway._plans.leases.look()
    assert sweep(rig) == 0
    assert rig.execute(call_id="c1", mode="bestEffort").code == "in_flight"  # renewed, it has its lease again
    hold.go.set()
    assert thread.result().content == "first"
    assert rig.execute(call_id="c1").content == "first"
    assert len(script) == 1


def test_a_call_that_nobody_ends_is_forgotten_after_two_lives(begin: Begin) -> None:
    rig, script, hold, thread = begin()
    rig.clock.advance(61)
    assert sweep(rig) == 0
    rig.clock.advance(61)
    assert sweep(rig) == 1
    assert rig.execute(call_id="c2").content == "second"
    assert len(script) == 2
    hold.go.set()
    assert thread.result().output.metadata["fenced"] is True
