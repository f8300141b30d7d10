"""Tenants share one event loop: one that is ahead of another in its use waits until that one has caught up.

A step is what a coroutine does between two waits. The time of its steps is added up for each tenant that is at work;
who was idle begins level with the others. A tenant that is ahead pauses before its next step until the one that used
least has used as much, or for ten times its lead if the other does not want that much. Nobody waits for a tenant that
is made to wait itself.

Long steps (large documents have to be read, redacted and written) count more, because nobody can have the loop before
they end. A few of them are free now and then.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Generator
from typing import Any, Generic, TypeVar

T = TypeVar("T")
SHORT_S, LONG = 0.002, 24.0
"""What is beyond this in a step counts so many times."""
CREDIT_S, REFILL = 4.0, 0.05
"""So much of what long steps count more is free for a tenant, and comes back at this rate."""
SLACK_S = 0.001
"""A lead that does not matter."""
PATIENCE = 10.0
"""A lead is over after so many times its length."""
LONGEST_S = 2.0
"""Nobody waits longer than this at a time."""
ACTIVE_S = 0.05
"""A tenant is at work if it has made a step in this time."""
_FORGOTTEN_S = 100.0


class _Use:
    """How much of the loop a tenant has used, and when it may go on even though it is ahead."""

    __slots__ = ("at", "credit", "seconds", "until")

    def __init__(self, now: float) -> None:
        self.seconds = 0.0
        self.credit = CREDIT_S
        self.at = now
        self.until = now

    def more(self, took: float, now: float) -> None:
        """A step took so long."""
        self.credit = min(CREDIT_S, self.credit + (now - self.at) * REFILL)
        surcharge = max(0.0, took - SHORT_S) * (LONG - 1)
        remitted = min(surcharge, self.credit)
        self.credit -= remitted
        self.seconds += took + surcharge - remitted
        self.at = now


class Shares:
    """Who has used the loop how much."""

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self.now = now
        self._uses: dict[str, _Use] = {}

    def spent(self, tenant: str, took: float) -> None:
        """A step of a tenant has ended that took so many seconds."""
        now = self.now()
        begun = now - took
        use = self._uses.get(tenant)
        if use is None:
            use = self._uses[tenant] = _Use(begun - ACTIVE_S)
        others = self._at_work_beside(use, begun)
        least = min((other.seconds for other in others), default=None)
        if least is not None and begun - use.at >= ACTIVE_S:
            use.seconds = max(use.seconds, least)  # nobody saves up
        use.more(took, now)
        if least is not None:
            use.until = now + min(max(0.0, use.seconds - least - SLACK_S) * PATIENCE, LONGEST_S)
        for other in others:
            other.at = min(other.at + took, now)  # it could not make a step meanwhile

    def pause(self, tenant: str) -> float:
        """Seconds after which a tenant asks again whether it may go on; 0: it may."""
        use = self._uses.get(tenant)
        if use is None:
            return 0.0
        now = self.now()
        least = min((other.seconds for other in self._at_work_beside(use, now)), default=use.seconds)
        lead = use.seconds - least - SLACK_S
        if lead <= 0:
            return 0.0
        if now >= use.until:
            use.seconds -= lead
            return 0.0
        return min(max(lead, SLACK_S), use.until - now)  # the others cannot catch up sooner

    def _at_work_beside(self, mine: _Use, now: float) -> list[_Use]:
        """The others who are at work and may make a step; tenants that are long gone are forgotten."""
        others = [use for use in self._uses.values() if use is not mine and use.until <= now < use.at + ACTIVE_S]
        if len(self._uses) > len(others) + 1:
            for name in [name for name, use in self._uses.items() if now - use.at > _FORGOTTEN_S and use is not mine]:
                del self._uses[name]
        return others


class Fair(Awaitable[T], Generic[T]):
    """Runs a coroutine of a tenant step by step."""

    def __init__(self, work: Coroutine[Any, Any, T], shares: Shares, tenant: str) -> None:
        self._work = work
        self._shares = shares
        self._tenant = tenant

    def __await__(self) -> Generator[Any, Any, T]:
        work, shares = self._work, self._shares
        error = yield from self._wait()
        while True:
            begun = shares.now()
            try:
                waits_for = work.send(None) if error is None else work.throw(error)
            except StopIteration as done:
                found: T = done.value
                return found
            finally:
                shares.spent(self._tenant, shares.now() - begun)
            error = yield from self._wait(waits_for)

    def _wait(self, *waits_for: Any) -> Generator[Any, Any, BaseException | None]:
        """Until the next step may be made; what is to be thrown in it."""
        try:
            yield from waits_for
            while (pause := self._shares.pause(self._tenant)) > 0:
                yield from asyncio.sleep(pause).__await__()
        except BaseException as thrown:
            return thrown
        return None
