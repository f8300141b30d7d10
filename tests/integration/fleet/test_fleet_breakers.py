"""R9: trips, forced states and resets reach every process of a fleet within a second; counters stay local."""

from __future__ import annotations

import asyncio
import threading
import time
from multiprocessing.connection import Connection
from typing import Any

import pytest

from antiphon._drive import drive
from antiphon._gateway.breakers import Breakers
from antiphon.config.wiring import open_store
from antiphon.ops.admin import Admin
from antiphon.ops.app import Antiphon
from antiphon.ports import Clock
from antiphon.stores import MemoryStore
from antiphon.stores._adapters import AsyncFromSync
from tests.faults.fleet_kit import Effects, fleet, open_async_gateway, open_gateway, serve, until

KEY = "tool/tools/send"
WITHIN_S = 1.0


def _worker(url: str, effects: Effects, number: int, pipe: Connection) -> None:
    """A process with a tool that fails on demand. Its configuration file is never read again: only pushes count."""
    gateway = open_gateway(url, retry={"max_attempts": 1}, loop={"enabled": False})

    @gateway.tool(idempotent=True, reuse="never")
    def send(fail: bool) -> str:
        if fail:
            raise ConnectionResetError("down")
        return "sent"

    def call(fail: bool) -> str:
        try:
            return str(send(fail))
        except Exception as error:
            return type(error).__name__

    def trip() -> list[str]:
        return [call(True) for _ in range(5)]

    def state() -> tuple[str, str]:
        breaker = gateway._plans.breakers.get(KEY)
        return breaker.state, breaker.reason

    def warm() -> str:
        return call(False)

    serve(pipe, {"call": call, "trip": trip, "state": state, "warm": warm})


def _async_worker(url: str, effects: Effects, number: int, pipe: Connection) -> None:
    """The same in an event loop that runs in a thread of its own."""
    gateway = open_async_gateway(url, retry={"max_attempts": 1}, loop={"enabled": False})
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()

    @gateway.tool(idempotent=True, reuse="never")
    async def send(fail: bool) -> str:
        if fail:
            raise ConnectionResetError("down")
        return "sent"

    def call(fail: bool) -> str:
        try:
            return str(asyncio.run_coroutine_threadsafe(send(fail), loop).result(30))
        except Exception as error:
            return type(error).__name__

    def state() -> tuple[str, str]:
        breaker = gateway._plans.breakers.get(KEY)
        return breaker.state, breaker.reason

    serve(pipe, {"call": call, "trip": lambda: [call(True) for _ in range(5)], "state": state})


def _admin(url: str) -> Admin:
    journal = AsyncFromSync(open_store(url).open_sync())
    return Admin(Antiphon({}, store=MemoryStore()), journal)


@pytest.fixture(params=[_worker, _async_worker], ids=["sync", "async"])
def worker(request: pytest.FixtureRequest) -> Any:
    return request.param


def _reaches(workers: list[Any], state: str) -> float:
    """How long until every worker is in *state*, without any of them making a call."""
    return until(lambda: all(w.ask(("state",))[0] == state for w in workers), f"all are {state}", WITHIN_S)


def test_what_an_operator_does_reaches_every_process(fleet_url: str, effects: Effects, worker: Any) -> None:
    with fleet(worker, fleet_url, effects, size=3) as workers:
        assert [w.ask(("call", False)) for w in workers] == ["sent"] * 3
        admin = _admin(fleet_url)
        drive(admin.force_open(KEY, "provider incident"))
        _reaches(workers, "FORCED_OPEN")
        assert [w.ask(("call", False)) for w in workers] == ["CircuitOpen"] * 3
        assert workers[2].ask(("state",))[1] == "provider incident"
        drive(admin.reset(KEY, "over"))
        _reaches(workers, "CLOSED")
        assert [w.ask(("call", False)) for w in workers] == ["sent"] * 3


def test_one_bad_node_does_not_trip_everyone_but_two_do(fleet_url: str, effects: Effects, worker: Any) -> None:
    with fleet(worker, fleet_url, effects, size=3) as (bad, worse, good):
        assert [w.ask(("call", False)) for w in (bad, worse, good)] == ["sent"] * 3
        assert bad.ask(("trip",))[-1] == "ConnectionResetError"
        assert bad.ask(("call", False)) == "CircuitOpen"
        time.sleep(WITHIN_S)
        assert good.ask(("call", False)) == "sent", "one bad node is its own problem"
        assert good.ask(("state",))[0] == "CLOSED"
        worse.ask(("trip",))
        _reaches([good], "OPEN")
        assert good.ask(("call", False)) == "CircuitOpen"
        assert good.ask(("state",))[1].startswith("shared: 5 consecutive failures")
        drive(_admin(fleet_url).reset(KEY))
        _reaches([bad, worse, good], "CLOSED")
        time.sleep(WITHIN_S)
        states = [w.ask(("state",))[0] for w in (bad, worse, good)]
        assert states == ["CLOSED"] * 3, "trips from before the reset open nothing again"


def test_a_restarted_process_remembers_a_live_trip(fleet_url: str, effects: Effects) -> None:
    with fleet(_worker, fleet_url, effects, size=1) as (bad,):
        bad.ask(("trip",))
        assert bad.ask(("state",))[0] == "OPEN"
    with fleet(_worker, fleet_url, effects, size=1) as (reborn,):
        assert reborn.ask(("call", False)) == "CircuitOpen"


def test_pushes_come_again_after_the_connection_was_lost(valkey_url: str, unique: str, effects: Effects) -> None:
    import redis

    url = f"{valkey_url}?antiphon_prefix={unique}"
    with fleet(_worker, url, effects, size=2) as workers, redis.Redis.from_url(valkey_url) as client:
        assert [w.ask(("call", False)) for w in workers] == ["sent"] * 2
        channel = f"{unique}:breakers:default"
        until(lambda: _listeners(client, unique) >= 1, f"somebody listens on {channel}")
        client.execute_command("CLIENT", "KILL", "TYPE", "pubsub")
        drive(_admin(url).force_open(KEY, "while nobody listened"))
        until(lambda: all(w.ask(("state",))[0] == "FORCED_OPEN" for w in workers), "told after the gap", 5.0)


def _listeners(client: Any, prefix: str) -> int:
    return sum(prefix in str(line) for line in client.pubsub_channels("*"))


def test_closing_a_gateway_ends_its_subscription(fleet_url: str) -> None:
    gateway = open_gateway(fleet_url)

    @gateway.tool(idempotent=True)
    def send() -> str:
        return "sent"

    before = threading.active_count()
    send()
    journal = gateway._runtime.journal
    assert journal in gateway._feed._stops
    gateway.close()
    assert journal not in gateway._feed._stops
    until(lambda: threading.active_count() <= before + 1, "the listener's thread has ended")
    send()
    gateway.close()


def test_an_operators_act_outdates_earlier_trips() -> None:
    """Planted bug: without the epochs, two trips from before a reset would open the breaker again."""
    clock = Clock()
    mine, theirs = Breakers(clock, 2), Breakers(clock, 2)
    mine.adopt([])
    breaker = theirs.get(KEY)
    for _ in range(5):
        breaker.failure(breaker.permit(clock.monotonic()), clock.monotonic(), "failure", None)  # type: ignore[arg-type]
    trip = theirs.row(KEY, breaker)
    trips = [trip._replace(key=f"{KEY}#{owner}", tripped_by=owner) for owner in ("a", "b")]
    reset = trip._replace(key=KEY, state="CLOSED", epoch=trip.epoch + 1, until_ms=0, reason="reset")
    assert not [move for _, move in mine.adopt([*trips, reset]) if move.to_state == "OPEN"]
    later = [row._replace(epoch=reset.epoch + 1) for row in trips]
    assert [move.to_state for _, move in mine.adopt([*later, reset])] == ["OPEN"]
