"""A tenant that is ahead of another in its use of the event loop waits for it; who uses less never does."""

from __future__ import annotations

import asyncio

import pytest

from antiphon.host.fairness import ACTIVE_S, CREDIT_S, LONG, LONGEST_S, PATIENCE, REFILL, FairCoroutine, LoopUsage


class Clock:
    def __init__(self) -> None:
        self.time = 100.0

    def __call__(self) -> float:
        return self.time


class Loop:
    """A loop on which tenants make steps one after the other, each as soon as it may."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.loop_usage = LoopUsage(self.clock)
        self.used: dict[str, float] = {}
        self._next: dict[str, float] = {}

    def step(self, tenant: str, seconds: float) -> None:
        self.clock.time += seconds
        self.loop_usage.spent(tenant, seconds)
        self.used[tenant] = self.used.get(tenant, 0.0) + seconds

    def run(self, seconds: float, **wants: tuple[float, float]) -> float:
        """Each tenant makes steps so long, with so long a wait after each; the longest pause of the first one."""
        self.used = dict.fromkeys(wants, 0.0)
        until, longest = self.clock.time + seconds, 0.0
        first = next(iter(wants))
        self._next = dict.fromkeys(wants, self.clock.time)
        held = 0.0
        while self.clock.time < until:
            tenant = min(self._next, key=lambda name: self._next[name])
            self.clock.time = max(self.clock.time, self._next[tenant])
            pause = self.loop_usage.pause(tenant)
            if pause > 0:
                self._next[tenant] = self.clock.time + pause
                held = held + pause if tenant == first else held
                longest = max(longest, held)
                continue
            if tenant == first:
                held = 0.0
            took, idle = wants[tenant]
            self.step(tenant, took)
            self._next[tenant] = self.clock.time + idle
        return longest


def test_nobody_waits_alone() -> None:
    loop = Loop()
    assert loop.run(100, one=(1.0, 0.0)) == 0


def test_who_uses_less_hardly_waits_and_who_wants_more_gets_as_much() -> None:
    loop = Loop()
    assert loop.run(20, light=(0.0002, 0.001), busy=(0.001, 0.0)) < 0.005
    assert loop.used["light"] > 1.8
    assert loop.used["busy"] == pytest.approx(loop.used["light"], rel=0.2)


def test_who_wants_little_does_not_hold_another_back_for_long() -> None:
    loop = Loop()
    loop.run(20, rare=(0.0001, 0.02), busy=(0.001, 0.0))
    assert loop.used["busy"] > 20 / (PATIENCE + 2)
    loop.run(20, gone=(0.0001, 3 * ACTIVE_S), busy=(0.001, 0.0))
    assert loop.used["busy"] > 12, "a tenant that makes a step now and then is not at work"


def test_long_steps_are_rare_while_another_is_at_work() -> None:
    loop = Loop()
    loop.run(20, light=(0.0002, 0.001), heavy=(0.05, 0.0))  # the credit is used up
    assert loop.run(200, light=(0.0002, 0.001), heavy=(0.05, 0.0)) < 0.005
    assert 0 < loop.used["heavy"] / 200 < 0.03
    assert loop.run(10, heavy=(0.05, 0.0)) <= LONGEST_S
    assert loop.used["heavy"] > 7, "alone it does as it likes"


def test_a_few_long_steps_are_free_now_and_then() -> None:
    loop = Loop()
    free_s = CREDIT_S / (LONG - 1)
    used = []
    for wait_s in (0.0, 0.0, CREDIT_S / REFILL):
        loop.clock.time += wait_s
        loop.run(3, light=(0.0005, 0.0005), heavy=(0.02, 0.0))
        used.append(loop.used["heavy"])
    assert used[0] > free_s
    assert used[1] < free_s
    assert used[2] > free_s


def test_nobody_waits_for_one_who_is_made_to_wait() -> None:
    loop = Loop()
    loop.run(10, light=(0.0002, 0.001), heavy=(0.05, 0.0))
    loop.step("light", 0.0001)
    loop.step("heavy", 0.5)
    assert loop.loop_usage.pause("heavy") > 0
    for _ in range(100):
        loop.step("light", 0.001)
        assert loop.loop_usage.pause("light") == 0


async def test_a_coroutine_is_what_it_was() -> None:
    loop_usage = LoopUsage()

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

    assert await FairCoroutine(work(), loop_usage, "one") == "done"
    with pytest.raises(ZeroDivisionError):
        await FairCoroutine(fails(), loop_usage, "one")

    async def forever() -> None:
        try:
            await asyncio.sleep(1000)
        finally:
            ended.append(True)

    ended: list[bool] = []
    task = asyncio.ensure_future(FairCoroutine(forever(), loop_usage, "one"))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended == [True]
