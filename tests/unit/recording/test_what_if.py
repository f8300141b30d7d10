"""What-if: recorded attempts under tighter limits are what a simulation of the same traffic sends under them.

The simulation is the gateway itself on an event loop whose time moves only when everybody waits.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

import antiphon
from antiphon._drive import drive
from antiphon.contract.spec import BreakerPolicy, RetryPolicy
from antiphon.ops.app import Antiphon
from antiphon.ops.health import BUCKETS, health, step_of
from antiphon.ops.traffic import Call, Traffic, count_by_claim
from antiphon.ops.what_if import Limits, TriedLimits, sent_under, what_if
from antiphon.ports import Clock
from antiphon.stores import MemoryStore
from antiphon.stores._adapters import AsyncFromSync
from tests.unit.gateway.kit import START_MS, ManualClock

LOOSE = Limits(BreakerPolicy(consecutive=1_000, min_calls=1_000, window_calls=1_000), 4)


class Jump(selectors.SelectSelector):
    """Nobody waits: time goes on to when the next one is due."""

    loop: Any

    def select(self, timeout: float | None = None) -> Any:
        ready = super().select(0 if timeout is not None else 0.01)
        if not ready and timeout:
            self.loop.seconds += timeout
        return ready


class Loop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self.seconds = 1_000.0
        selector = Jump()
        selector.loop = self
        super().__init__(selector)

    def time(self) -> float:
        return self.seconds


class LoopClock(Clock):
    def __init__(self, loop: Loop) -> None:
        super().__init__(seed=7)
        self._loop = loop
        self.monotonic = lambda: loop.seconds

    def now_ms(self) -> int:
        return START_MS + round((self._loop.seconds - 1_000.0) * 1000)

    def uniform(self, low: float, high: float) -> float:
        return low + (high - low) * 0.5


class Sent(NamedTuple):
    """What the simulation saw: attempts by tool, calls that were refused, breakers that opened, and the recording."""

    attempts: int
    refused: int
    opened: list[int]
    calls: list[Call]


Down = Callable[[int], bool]
"""Whether the dependency fails at this moment, in ms after the start."""


def simulate(down: Down, limits: Limits, *, calls: int, every_ms: int, took_ms: int = 37) -> Sent:
    """So many calls, one after the other begun at fixed times, under *limits*."""
    loop = Loop()
    clock = LoopClock(loop)
    store = MemoryStore(clock=clock)
    app = Antiphon({"telemetry": {"logs": False}}, store=store, clock=clock)
    attempts, opened = 0, []

    class Ears:
        def emit(self, event: str, fields: Any) -> None:
            if event == "tool_call_circuit_state" and fields["toState"] == "OPEN":
                opened.append(clock.now_ms())

    gateway = antiphon.AsyncGateway(store, {"telemetry": {"logs": False}}, clock=clock, listeners=(Ears(),))

    @gateway.tool(idempotent=True, retry=RetryPolicy(max_attempts=limits.max_attempts), breaker=limits.breaker)
    async def fetch(number: int) -> str:
        nonlocal attempts
        attempts += 1
        await asyncio.sleep(took_ms / 1000)
        if down(clock.now_ms() - START_MS):
            raise ConnectionResetError(104, "reset by peer")
        return "ok"

    async def one(number: int) -> None:
        await asyncio.sleep(number * every_ms / 1000)
        try:
            await fetch(number)
        except (antiphon.errors.AntiphonError, OSError):
            return

    async def everything() -> None:
        async with app.run("traffic"):
            await asyncio.gather(*(one(number) for number in range(calls)))

    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.run(everything())
    looked = drive(Traffic(AsyncFromSync(app.journal)).newest(app.tenant))
    found = looked.calls
    refused = sum(call.code == "circuit_open" and not call.tries for call in found)
    return Sent(attempts, refused, opened, found)


OUTAGES: dict[str, tuple[Down, dict[str, int], TriedLimits]] = {
    "a total outage, and recovery": (
        lambda at: 5_000 <= at < 70_000,
        {"calls": 400, "every_ms": 257},
        TriedLimits(consecutive=5),
    ),
    "half of the attempts fail": (
        lambda at: 4_000 <= at < 40_000 and at // 100 % 2 == 0,
        {"calls": 300, "every_ms": 313},
        TriedLimits(rate=0.4, min_calls=10, cooldown_ms=45_000),
    ),
    "short failures between good times": (
        lambda at: at % 9_000 < 700,
        {"calls": 120, "every_ms": 503},
        TriedLimits(max_attempts=2),
    ),
}


@pytest.mark.parametrize("name", OUTAGES)
def test_attempts_and_opened_breakers_equal_a_simulation_of_the_same_traffic(name: str) -> None:
    down, traffic, wanted = OUTAGES[name]
    recorded = simulate(down, LOOSE, **traffic)
    tight, looser = LOOSE.tighter(wanted)
    assert looser == []
    same = sent_under(recorded.calls, lambda _: LOOSE)
    assert (same.attempts, same.refused, same.opened, same.missing) == (recorded.attempts, 0, [], 0)
    truth = simulate(down, tight, **traffic)
    tried = sent_under(recorded.calls, lambda _: tight)
    assert tried.missing == 0
    assert (tried.attempts, tried.refused) == (truth.attempts, truth.refused)
    assert [one.at_ms for one in tried.opened] == truth.opened
    assert tried.attempts < recorded.attempts
    assert bool(truth.opened) is (wanted.max_attempts is None)


def test_looser_limits_are_left_and_calls_without_an_attempt_are_told() -> None:
    down, traffic, _ = OUTAGES["a total outage, and recovery"]
    base = Limits(BreakerPolicy(consecutive=8, min_calls=1_000, window_calls=1_000, cooldown_ms=20_000), 2)
    recorded = simulate(down, base, **traffic)
    assert recorded.refused
    kept, looser = base.tighter(TriedLimits(consecutive=9, max_attempts=3, cooldown_ms=1, rate=0.9))
    assert (kept, looser) == (base, ["consecutive", "rate", "cooldown_ms", "max_attempts"])
    assert sent_under(recorded.calls, lambda _: base).missing == 0, "under its own limits nothing is missing"
    found = what_if(recorded.calls, TriedLimits(consecutive=3), lambda _: None)
    assert found["recordedAttempts"] == recorded.attempts
    assert found["after"]["missing"] > 0, "a breaker that opens earlier probes earlier"


def test_health_counts_what_the_outage_cost() -> None:
    down, traffic, _ = OUTAGES["a total outage, and recovery"]
    found = health(simulate(down, LOOSE, **traffic).calls)
    (tool,) = found["tools"]
    assert tool["name"] == "tools/fetch"
    assert tool["attempts"] == sum(found["series"]["attempts"]) == tool["sent"] + tool["retries"]
    assert tool["outageAmplification"] > tool["amplification"] > 1
    assert (tool["p50Ms"], tool["p95Ms"]) == (37, 37)
    assert len(found["series"]["atMs"]) <= 61


def test_one_clock_times_an_application_and_its_gateways() -> None:
    clock = ManualClock()
    app = Antiphon(store=MemoryStore(clock=clock), clock=clock)
    lost = [ConnectionResetError(104, "reset by peer") for _ in range(2)]

    def fetch() -> str:
        if lost:
            raise lost.pop()
        return "ok"

    assert app.gateway.tool(idempotent=True)(fetch)() == "ok"
    assert len(clock.slept) == 2
    lost.append(ConnectionResetError(104, "reset by peer"))

    @app.async_gateway.tool(idempotent=True)
    async def fetch_later() -> str:
        return fetch()

    assert asyncio.run(fetch_later()) == "ok"
    assert len(clock.slept) == 3


@pytest.mark.parametrize("days", [59, 60, 61, 90, 119, 120, 121, 3_650])
def test_health_has_at_most_sixty_steps_however_long_it_was(days: int) -> None:
    span = days * 86_400_000
    assert BUCKETS / 3 < span / step_of(span) <= BUCKETS


def test_effects_are_counted_by_claim() -> None:
    app = Antiphon(store=MemoryStore())
    gateway = antiphon.Gateway(app.store)

    @gateway.tool(idempotent=False, key=lambda order: order)
    def pay(order: str) -> str:
        return "paid"

    for _ in range(2):
        with app.run("orders"):
            pay("o-1")
            pay("o-1")
    (claim,) = app.journal.list(tenant=app.tenant)
    traffic = Traffic(AsyncFromSync(app.journal))
    for _ in range(2):  # what was read is not read again, and counts once
        looked = drive(traffic.newest(app.tenant))
        found = count_by_claim(looked.calls, [claim.key])[claim.key[:16]]
        assert (found["asked"], found["sent"], found["suppressed"], len(found["runs"])) == (4, 1, 3, 2)
        assert looked.whole
