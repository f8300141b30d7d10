"""Failures that other systems have shown, kept out of this one: breakers, retries, budgets, exceptions."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from antiphon.contract.spec import BreakerPolicy, RetryPolicy
from antiphon.decide import breaker as machine
from antiphon.errors import CircuitOpen
from tests.unit.gateway.kit import NEVER_TRIPS, AsyncRig, Hold, HttpError, Rig, eventually, in_thread, settle_down

QUICK = BreakerPolicy(consecutive=2, cooldown_ms=1_000)


def trip(rig: Rig, times: int = 2) -> None:
    for number in range(times):
        rig.execute(attempts=1, params={"to": f"trip{number}"})
    assert rig.breaker().state == "OPEN"


def test_half_open_lets_1_of_50_through() -> None:
    rig = Rig()
    hold = Hold()
    script = rig.tool(HttpError(503), HttpError(503), hold.then("fine"), idempotent=True, breaker=QUICK)
    trip(rig)
    rig.clock.advance(1.1)
    callers = [in_thread(lambda n=n: rig.execute(params={"to": str(n)})) for n in range(50)]  # type: ignore[misc]
    hold.until_reached()
    eventually(lambda: sum(not caller.is_alive() for caller in callers) == 49, "callers hang")
    hold.go.set()
    statuses = [caller.result().status for caller in callers]
    assert (statuses.count("success"), statuses.count("circuit_open")) == (1, 49)
    assert len(script) == 3


def test_without_permits_the_herd_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine.Breaker, "_refusal", lambda self, now: None)
    rig = Rig()
    script = rig.tool(HttpError(503), HttpError(503), "fine", idempotent=True, breaker=QUICK)
    trip(rig)
    rig.clock.advance(1.1)
    for number in range(10):
        rig.execute(params={"to": str(number)})
    assert len(script) > 4


def test_a_stale_success_does_not_close() -> None:
    rig = Rig()
    hold, probe = Hold(), Hold()
    rig.tool(hold.then("stale"), HttpError(503), HttpError(503), probe.then("probe"), idempotent=True, breaker=QUICK)
    old = in_thread(lambda: rig.execute(params={"to": "old"}))
    hold.until_reached()
    trip(rig)
    rig.clock.advance(1.1)
    probing = in_thread(lambda: rig.execute(params={"to": "probe"}))
    probe.until_reached()
    hold.go.set()
    assert old.result().content == "stale"
    assert rig.breaker().state == "HALF_OPEN"
    probe.go.set()
    probing.result()


def test_a_stale_failure_does_not_reopen() -> None:
    rig = Rig()
    hold = Hold()

    def fails(**_: Any) -> None:
        hold.wait_here()
        raise HttpError(503)

    rig.tool(fails, HttpError(503), HttpError(503), "fine", idempotent=True, breaker=QUICK)
    old = in_thread(lambda: rig.execute(attempts=1, params={"to": "old"}))
    hold.until_reached()
    trip(rig)
    rig.clock.advance(1.1)
    for number in range(2):
        assert rig.execute(params={"to": f"probe{number}"}).ok
    assert rig.breaker().state == "CLOSED"
    hold.go.set()
    old.result()
    assert rig.breaker().state == "CLOSED"


async def test_cancellations_never_trip() -> None:
    rig = AsyncRig()

    @rig.gateway.tool("send", idempotent=True, breaker=QUICK)
    async def send(to: str) -> None:
        await asyncio.Event().wait()

    for number in range(20):
        task = asyncio.ensure_future(rig.execute(params={"to": str(number)}))
        await settle_down(3)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert rig.breaker().state == "CLOSED"


async def test_a_cancelled_probe_neither_closes_nor_blocks() -> None:
    rig = AsyncRig()
    calls: list[str] = []

    @rig.gateway.tool("send", idempotent=True, breaker=QUICK)
    async def send(to: str) -> str:
        calls.append(to)
        if to.startswith("trip"):
            raise HttpError(503)
        if to == "hangs":
            await asyncio.Event().wait()
        return "fine"

    for number in range(2):
        await rig.execute(attempts=1, params={"to": f"trip{number}"})
    rig.clock.advance(1.1)
    probe = asyncio.ensure_future(rig.execute(params={"to": "hangs"}))
    await settle_down()
    probe.cancel()
    with pytest.raises(asyncio.CancelledError):
        await probe
    assert rig.breaker().state == "HALF_OPEN"
    assert (await rig.execute(params={"to": "next"})).content == "fine"


def test_a_probe_that_never_settles_does_not_block_for_ever() -> None:
    rig = Rig()
    hold = Hold()
    policy = BreakerPolicy(consecutive=2, cooldown_ms=1_000, probe_lease_ms=5_000)
    rig.tool(HttpError(503), HttpError(503), hold.then("late"), "fine", idempotent=True, breaker=policy)
    trip(rig)
    rig.clock.advance(1.1)
    lost = in_thread(lambda: rig.execute(params={"to": "lost"}))
    hold.until_reached()
    assert rig.execute(params={"to": "x"}).status == "circuit_open"
    rig.clock.advance(5.1)
    assert rig.execute(params={"to": "x"}).status == "circuit_open"  # the lost probe reopened it
    rig.clock.advance(1.1)
    assert rig.execute(params={"to": "x"}).content == "fine"
    hold.go.set()
    lost.result()


def test_a_throttled_dependency_is_not_a_row_of_failures() -> None:
    rig = Rig()
    rig.tool(HttpError(429), idempotent=True, breaker=BreakerPolicy(consecutive=3, min_calls=100))
    for number in range(8):
        rig.execute(attempts=1, params={"to": str(number)})
    assert rig.breaker().state == "CLOSED"


def test_calls_are_not_serialised_by_the_breaker() -> None:
    rig = Rig()
    together = threading.Barrier(8)
    rig.tool(lambda **_: together.wait(10) >= 0)
    threads = [in_thread(lambda n=n: rig.execute(params={"to": str(n)})) for n in range(8)]  # type: ignore[misc]
    assert [thread.result().content for thread in threads] == [True] * 8


def test_an_open_breaker_raises_a_new_exception_each_time() -> None:
    rig = Rig()

    @rig.gateway.tool(idempotent=True, breaker=BreakerPolicy(forced_open=True))
    def look() -> None: ...

    seen: list[BaseException] = []
    for _ in range(100):
        with pytest.raises(CircuitOpen) as caught:
            look()
        seen.append(caught.value)
    assert len({id(error) for error in seen}) == 100
    assert all(error.__context__ is None and error.__cause__ is None for error in seen)


# -- retries ------------------------------------------------------------------------------------------------


async def test_a_cancellation_is_not_swallowed_by_a_retry() -> None:
    rig = AsyncRig()
    calls: list[int] = []

    @rig.gateway.tool("send", idempotent=True)
    async def send(to: str) -> None:
        calls.append(1)
        await asyncio.Event().wait()

    with pytest.raises(TimeoutError):
        await asyncio.wait_for(rig.execute(), 0.01)
    assert len(calls) == 1
    assert rig.clock.slept == []


def outage(rig: Rig, calls: int, per_second: float) -> float:
    """Attempts per call while everything fails."""
    script = rig.tool(HttpError(503), idempotent=True, breaker=NEVER_TRIPS)
    sleep = rig.clock.sleep

    def sleeps_beside_the_traffic(seconds: float) -> None:
        rig.clock.slept.append(seconds)

    rig.clock.sleep = sleeps_beside_the_traffic  # type: ignore[method-assign]
    for number in range(calls):
        rig.execute(params={"to": str(number)})
        rig.clock.advance(1 / per_second)
    rig.clock.sleep = sleep  # type: ignore[method-assign]
    return len(script) / calls


def test_a_total_outage_is_not_amplified_by_the_budget_alone(capsys: pytest.CaptureFixture[str]) -> None:
    ratio = outage(Rig(), calls=1_000, per_second=100)
    with capsys.disabled():
        print(f"\nattempts per call in a total outage, 100 calls/s, breaker aside: {ratio:.3f}")
    assert 1.0 < ratio <= 1.1


def test_a_total_outage_is_not_amplified_with_the_breaker_either(capsys: pytest.CaptureFixture[str]) -> None:
    rig = Rig()
    script = rig.tool(HttpError(503), idempotent=True)
    calls = 600
    for number in range(calls):
        rig.execute(params={"to": str(number)})
        rig.clock.advance(1.0)
    ratio = len(script) / calls
    with capsys.disabled():
        print(f"\nattempts per call in a total outage, 1 call/s, with the default breaker: {ratio:.3f}")
    assert ratio <= 1.1


def test_without_a_budget_the_amplification_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("antiphon.decide.retry.TokenBucket.withdraw", lambda self, now: True)
    assert outage(Rig(), calls=200, per_second=100) == 4.0


def test_the_budget_is_charged_before_the_pause() -> None:
    rig = Rig()
    script = rig.tool(HttpError(503), idempotent=True, breaker=NEVER_TRIPS)
    tokens: list[float] = []
    bucket = rig.gateway._plans.budget(rig.gateway._plans.tools["send"])

    def sleep(seconds: float) -> None:
        tokens.append(bucket.tokens(rig.clock.seconds))

    rig.clock.sleep = sleep  # type: ignore[method-assign]
    rig.execute()
    assert tokens == [9.0, 8.0, 7.0]
    assert len(script) == 4


def test_an_empty_budget_refuses_with_its_own_reason_and_fills_again() -> None:
    rig = Rig()
    rig.tool(HttpError(503), idempotent=True, breaker=NEVER_TRIPS, retry=RetryPolicy(base_ms=0))
    results = [rig.execute(params={"to": str(n)}) for n in range(5)]
    assert [result.attempts for result in results] == [4, 4, 4, 2, 1]
    assert results[4].status == "retry_exhausted"
    assert rig.ears.of("tool_call_end")[4]["reason"] == "budget"
    rig.clock.advance(3.0)  # one per second, even without a success
    assert rig.execute(params={"to": "later"}).attempts == 4


def test_a_budget_belongs_to_a_dependency() -> None:
    rig = Rig()
    retry = RetryPolicy(base_ms=0)
    rig.tool(HttpError(503), name="a", idempotent=True, breaker=NEVER_TRIPS, retry=retry, dependency="mail")
    rig.tool(HttpError(503), name="b", idempotent=True, breaker=NEVER_TRIPS, retry=retry, dependency="mail")
    rig.tool(HttpError(503), name="c", idempotent=True, breaker=NEVER_TRIPS, retry=retry)
    for number in range(4):
        rig.execute(tool="a", params={"to": str(number)})
    assert rig.execute(tool="b").attempts == 1
    assert rig.execute(tool="c").attempts == 4


def test_retry_after_is_a_floor_never_undercut() -> None:
    rig = Rig(chance=0.5)
    rig.tool(HttpError(503, Retry_After="7"), "fine", idempotent=True)
    assert rig.execute().content == "fine"
    assert rig.clock.slept == [7.1]
    late = Rig()
    late.tool(HttpError(503, Retry_After="7"), "fine", idempotent=True)
    stopped = late.execute(deadline_at_ms=late.clock.now_ms() + 5_000)
    assert (stopped.status, late.clock.slept) == ("retry_exhausted", [])


def test_statistics_belong_to_the_call() -> None:
    rig = Rig()
    first = Hold()

    def waits(**_: Any) -> None:
        first.wait_here()
        raise HttpError(503)

    rig.tool(waits, HttpError(500), "fine", idempotent=True, breaker=NEVER_TRIPS)
    slow = in_thread(lambda: rig.execute(params={"to": "slow"}))
    first.until_reached()
    quick = rig.execute(params={"to": "quick"})
    first.go.set()
    assert [r.reason_code for r in quick.retried_by] == ["http_500"]
    assert [r.reason_code for r in slow.result().retried_by] == ["http_503"]
