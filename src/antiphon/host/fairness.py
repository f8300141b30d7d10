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


class _TenantUsage:
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


class LoopUsage:
    """The loop usage of all tenants."""

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self.now = now
        self._usage: dict[str, _TenantUsage] = {}

    def spent(self, tenant: str, took: float) -> None:
        """Account for a step of *tenant* that took *took* seconds and has just ended."""
        now = self.now()
        begun = now - took
        usage = self._usage.get(tenant)
        if usage is None:
            usage = self._usage[tenant] = _TenantUsage(begun - ACTIVE_S)
        others = self._competing(usage, begun)
        least = min((other.seconds for other in others), default=None)
        if least is not None and begun - usage.at >= ACTIVE_S:
            usage.seconds = max(usage.seconds, least)  # idle time earns nothing
        usage.more(took, now)
        if least is not None:
            usage.until = now + min(max(0.0, usage.seconds - least - SLACK_S) * PATIENCE, LONGEST_S)
        for other in others:
            other.at = min(other.at + took, now)  # it could not run meanwhile

    def pause(self, tenant: str) -> float:
        """Seconds until a tenant should ask again; 0 if it may continue."""
        usage = self._usage.get(tenant)
        if usage is None:
            return 0.0
        now = self.now()
        least = min((other.seconds for other in self._competing(usage, now)), default=usage.seconds)
        lead = usage.seconds - least - SLACK_S
        if lead <= 0:
            return 0.0
        if now >= usage.until:
            usage.seconds -= lead
            return 0.0
        return min(max(lead, SLACK_S), usage.until - now)  # the others cannot catch up any sooner

    def _competing(self, own: _TenantUsage, now: float) -> list[_TenantUsage]:
        """The other tenants that are active and not paused; forgets tenants that have long been idle."""
        others = [
            usage for usage in self._usage.values() if usage is not own and usage.until <= now < usage.at + ACTIVE_S
        ]
        if len(self._usage) > len(others) + 1:
            for name in [
                name for name, usage in self._usage.items() if now - usage.at > _FORGOTTEN_S and usage is not own
            ]:
                del self._usage[name]
        return others


class FairCoroutine(Awaitable[T], Generic[T]):
    """Runs a tenant's coroutine step by step."""

    def __init__(self, work: Coroutine[Any, Any, T], loop_usage: LoopUsage, tenant: str) -> None:
        self._work = work
        self._loop_usage = loop_usage
        self._tenant = tenant

    def __await__(self) -> Generator[Any, Any, T]:
        work, loop_usage = self._work, self._loop_usage
        error = yield from self._wait()
        while True:
            begun = loop_usage.now()
            try:
                waits_for = work.send(None) if error is None else work.throw(error)
            except StopIteration as done:
                found: T = done.value
                return found
            finally:
                loop_usage.spent(self._tenant, loop_usage.now() - begun)
            error = yield from self._wait(waits_for)

    def _wait(self, *waits_for: Any) -> Generator[Any, Any, BaseException | None]:
        """Wait until the next step may run; return the exception to throw into it, if any."""
        try:
            yield from waits_for
            while (pause := self._loop_usage.pause(self._tenant)) > 0:
                yield from asyncio.sleep(pause).__await__()
        except BaseException as thrown:
            return thrown
        return None
