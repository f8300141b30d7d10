"""Tenants share one event loop: one whose steps keep it busy waits between them while others are at work.

A step is what a coroutine does between two waits. Short steps are free, so a tenant with small runs never waits,
whatever its number of runs. A long step (large documents have to be read, redacted and written) is paid for with a
pause, so that in the long run the long steps of all runs and requests of one tenant take 3 % of the time at most; a
quarter of a second is free now and then.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Generator
from typing import Any, Generic, TypeVar

T = TypeVar("T")
FREE_S = 0.003
"""A step of this length costs nothing."""
PRICE = 32.0
"""Pause for each second beyond that."""
CREDIT_S = 8.0
"""So much of the pause is remitted to a tenant that has not made long steps for a while."""
LONGEST_S = 2.0
"""Nobody waits longer than this at a time."""
ACTIVE_S = 1.0
"""A tenant is at work if it has made a step in this time."""


class Shares:
    """Who has used the loop lately."""

    def __init__(self, now: Callable[[], float] = time.monotonic, cpu: Callable[[], float] = time.thread_time) -> None:
        self.now = now
        self.cpu = cpu
        """What a step takes: not the time that other processes of the machine take meanwhile."""
        self._last: tuple[str, float] = ("", float("-inf"))
        self._other: tuple[str, float] = ("", float("-inf"))
        self._free_at: dict[str, float] = {}

    def spent(self, tenant: str, begun: float) -> None:
        """A tenant's step began when :attr:`cpu` was *begun*, and ends now."""
        now = self.now()
        if self._last[0] != tenant:
            self._other = self._last
        self._last = (tenant, now)
        long = self.cpu() - begun - FREE_S
        if long > 0 and now - self._other[1] < ACTIVE_S:
            earliest = now - CREDIT_S
            self._free_at[tenant] = max(earliest, self._free_at.get(tenant, earliest)) + long * PRICE

    def pause(self, tenant: str) -> float:
        """Seconds that the next step of a tenant has to wait."""
        free_at = self._free_at.get(tenant)
        if free_at is None:
            return 0.0
        left = free_at - self.now()
        if left <= -CREDIT_S:
            del self._free_at[tenant]
        return max(0.0, min(left, LONGEST_S))


class Fair(Awaitable[T], Generic[T]):
    """Runs a coroutine of a tenant step by step."""

    def __init__(self, work: Coroutine[Any, Any, T], shares: Shares, tenant: str) -> None:
        self._work = work
        self._shares = shares
        self._tenant = tenant

    def __await__(self) -> Generator[Any, Any, T]:
        work, shares, tenant = self._work, self._shares, self._tenant
        error: BaseException | None = None
        while True:
            begun = shares.cpu()
            try:
                waits_for = work.send(None) if error is None else work.throw(error)
            except StopIteration as done:
                found: T = done.value
                return found
            finally:
                shares.spent(tenant, begun)
            error = None
            try:
                yield waits_for
                pause = shares.pause(tenant)
                if pause > 0:
                    yield from asyncio.sleep(pause).__await__()
            except BaseException as thrown:
                error = thrown
