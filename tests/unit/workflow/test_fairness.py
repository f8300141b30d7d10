"""Long steps of one tenant make its next ones wait while others are at work; short ones never do."""

from __future__ import annotations

import asyncio

import pytest

from antiphon.host.fairness import LONGEST_S, Fair, Shares


class Clock:
    def __init__(self) -> None:
        self.time = 100.0

    def __call__(self) -> float:
        return self.time


def _step(shares: Shares, clock: Clock, tenant: str, seconds: float) -> float:
    begun = clock.time
    clock.time += seconds
    shares.spent(tenant, begun)
    return shares.pause(tenant)


def test_who_uses_less_never_waits() -> None:
    clock = Clock()
    shares = Shares(clock)
    for _ in range(10_000):
        clock.time += _step(shares, clock, "busy", 0.002)
        assert _step(shares, clock, "light", 0.001) == 0


def test_nobody_waits_alone() -> None:
    clock = Clock()
    shares = Shares(clock)
    assert all(_step(shares, clock, "one", 1.0) == 0 for _ in range(100))


def test_the_busiest_gets_a_quarter() -> None:
    clock = Clock()
    shares = Shares(clock)
    begun, busy = clock.time, 0.0
    while clock.time < begun + 200:
        assert _step(shares, clock, "light", 0.0005) == 0
        pause = _step(shares, clock, "busy", 0.002)
        busy += 0.002
        clock.time += pause
    assert busy / 200 < 0.3


def test_long_steps_are_paid_for_dearly() -> None:
    clock = Clock()
    shares = Shares(clock)
    begun, busy = clock.time, 0.0
    while clock.time < begun + 1000:
        _step(shares, clock, "light", 0.0005)
        pause = _step(shares, clock, "heavy", 0.05)
        assert pause <= LONGEST_S
        busy += 0.05
        clock.time += pause
        assert shares.pause("light") == 0
    assert busy / 1000 < 0.04
    clock.time += 1000
    assert shares.pause("heavy") == 0
    _step(shares, clock, "light", 0.001)
    assert _step(shares, clock, "heavy", 0.05) == 0, "the credit is back"


async def test_a_coroutine_is_what_it_was() -> None:
    shares = Shares()

    async def work() -> str:
        await asyncio.sleep(0)
        await asyncio.sleep(0.001)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await asyncio.sleep(10)
        with pytest.raises(ZeroDivisionError):
            await fails()
        return "done"

    async def fails() -> None:
        await asyncio.sleep(0)
        raise ZeroDivisionError

    assert await Fair(work(), shares, "one") == "done"
    with pytest.raises(ZeroDivisionError):
        await Fair(fails(), shares, "one")

    async def forever() -> None:
        try:
            await asyncio.sleep(1000)
        finally:
            ended.append(True)

    ended: list[bool] = []
    task = asyncio.ensure_future(Fair(forever(), shares, "one"))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended == [True]
