"""Tenants share one event loop: the one that keeps it busiest waits between its steps while others are at work.

A step is what a coroutine does between two waits. While another tenant is at work, the tenant that used the loop most
in the last second pauses after each of its steps, so that it gets a quarter of the loop at most; a tenant that uses
less never waits. A long step (large documents have to be read, redacted and written) costs more: others cannot have
the loop before it ends, so long steps may take 3 % of the time, and a quarter of a second now and then is free.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Coroutine, Generator
from typing import Any, Generic, TypeVar

T = TypeVar("T")
SHORT_S = 0.003
"""What is beyond this in a step is paid for dearly."""
PRICE, LONG_PRICE = 4.0, 33.0
"""Seconds after which the next second of short and of long steps may follow."""
CREDIT_S = 8.0
"""So much of the pause is remitted to a tenant that has not had to pause for a while."""
LONGEST_S = 2.0
"""Nobody waits longer than this at a time."""
ACTIVE_S = 1.0
"""A tenant is at work if it has made a step in this time; what it used is forgotten as fast."""


class _Use:
    """How much of the loop a tenant has used lately, and when it may go on."""

    __slots__ = ("at", "free_at", "seconds")

    def __init__(self, now: float) -> None:
        self.seconds = 0.0
        self.at = now
        self.free_at = now - CREDIT_S

    def seconds_at(self, now: float) -> float:
        return self.seconds * math.exp((self.at - now) / ACTIVE_S)


class Shares:
    """Who has used the loop lately."""

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self.now = now
        self._uses: dict[str, _Use] = {}

    def spent(self, tenant: str, begun: float) -> None:
        """A tenant's step began at *begun* and ends now."""
        now = self.now()
        use = self._uses.get(tenant)
        if use is None:
            use = self._uses[tenant] = _Use(now)
        took = now - begun
        use.seconds = use.seconds_at(now) + took
        use.at = now
        if len(self._uses) > 1 and self._is_busiest(use, now):
            cost = min(took, SHORT_S) * PRICE + max(0.0, took - SHORT_S) * LONG_PRICE
            use.free_at = max(now - CREDIT_S, use.free_at) + cost

    def _is_busiest(self, mine: _Use, now: float) -> bool:
        """Whether somebody else is at work, and nobody uses more; tenants that are long gone are forgotten."""
        others = [use for use in self._uses.values() if use is not mine and now - use.at < ACTIVE_S]
        if len(self._uses) > len(others) + 1:
            gone = [name for name, use in self._uses.items() if now - use.at > CREDIT_S + LONGEST_S]
            for name in gone:
                del self._uses[name]
        return bool(others) and mine.seconds >= max(use.seconds_at(now) for use in others)

    def pause(self, tenant: str) -> float:
        """Seconds that the next step of a tenant has to wait."""
        use = self._uses.get(tenant)
        return 0.0 if use is None else max(0.0, min(use.free_at - self.now(), LONGEST_S))


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
            begun = shares.now()
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
