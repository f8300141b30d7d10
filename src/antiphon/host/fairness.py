"""Fair sharing of one event loop: a tenant that has used more time than another waits until that one has caught up.

A step is what a coroutine does between two waits. The time of its steps is added up for each active tenant; a tenant
that was idle starts level with the others. A tenant that is ahead pauses before its next step until the tenant with the
least usage has caught up, or for ten times its lead if that tenant does not need that much. No tenant waits for one
that is itself paused.

Long steps (parsing, redacting and writing large documents) count more, because they block the loop until they end. A
small allowance of them is free.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Generator
from typing import Any, Generic, TypeVar

T = TypeVar("T")
SHORT_S, LONG = 0.002, 24.0
"""The part of a step beyond ``SHORT_S`` counts ``LONG`` times."""
CREDIT_S, REFILL = 4.0, 0.05
"""Surcharge for long steps that is free for a tenant, and the rate at which this credit refills."""
SLACK_S = 0.001
"""A lead that is ignored."""
PATIENCE = 10.0
"""A lead expires after this many times its length."""
LONGEST_S = 2.0
"""The longest pause."""
ACTIVE_S = 0.05
"""A tenant is active if it has made a step within this time."""
_FORGOTTEN_S = 100.0


class _Use:
    """A tenant's use of the loop, and when it may continue although it is ahead."""

    __slots__ = ("at", "credit", "seconds", "until")

    def __init__(self, now: float) -> None:
        self.seconds = 0.0
        self.credit = CREDIT_S
        self.at = now
        self.until = now

    def more(self, took: float, now: float) -> None:
        """Add a step that took *took* seconds."""
        self.credit = min(CREDIT_S, self.credit + (now - self.at) * REFILL)
        surcharge = max(0.0, took - SHORT_S) * (LONG - 1)
        remitted = min(surcharge, self.credit)
        self.credit -= remitted
        self.seconds += took + surcharge - remitted
        self.at = now


class Shares:
    """The loop usage of all tenants."""

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self.now = now
        self._uses: dict[str, _Use] = {}

    def spent(self, tenant: str, took: float) -> None:
        """Account for a step of *tenant* that took *took* seconds and has just ended."""
        now = self.now()
        begun = now - took
        use = self._uses.get(tenant)
        if use is None:
            use = self._uses[tenant] = _Use(begun - ACTIVE_S)
        others = self._at_work_beside(use, begun)
        least = min((other.seconds for other in others), default=None)
        if least is not None and begun - use.at >= ACTIVE_S:
            use.seconds = max(use.seconds, least)  # idle time earns nothing
        use.more(took, now)
        if least is not None:
            use.until = now + min(max(0.0, use.seconds - least - SLACK_S) * PATIENCE, LONGEST_S)
        for other in others:
            other.at = min(other.at + took, now)  # it could not run meanwhile

    def pause(self, tenant: str) -> float:
        """Seconds until a tenant should ask again; 0 if it may continue."""
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
        return min(max(lead, SLACK_S), use.until - now)  # the others cannot catch up any sooner

    def _at_work_beside(self, mine: _Use, now: float) -> list[_Use]:
        """The other tenants that are active and not paused; forgets tenants that have long been idle."""
        others = [use for use in self._uses.values() if use is not mine and use.until <= now < use.at + ACTIVE_S]
        if len(self._uses) > len(others) + 1:
            for name in [name for name, use in self._uses.items() if now - use.at > _FORGOTTEN_S and use is not mine]:
                del self._uses[name]
        return others


class Fair(Awaitable[T], Generic[T]):
    """Runs a tenant's coroutine step by step."""

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
        """Wait until the next step may run; return the exception to throw into it, if any."""
        try:
            yield from waits_for
            while (pause := self._shares.pause(self._tenant)) > 0:
                yield from asyncio.sleep(pause).__await__()
        except BaseException as thrown:
            return thrown
        return None
