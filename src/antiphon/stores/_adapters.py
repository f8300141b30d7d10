"""Adapts one variant of a journal to the other: a store whose steps are written once serves threads and loops."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from antiphon._drive import drive
from antiphon.ports import BreakerCallback, Journal, SyncJournal

P = ParamSpec("P")
T = TypeVar("T")
Step = Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]
"""A step of :class:`~antiphon.ports.Journal`."""


def _driven(step: Step[P, T]) -> Callable[Concatenate[SyncFromAsync, P], T]:
    """The step of the inner journal, whose coroutine never suspends."""
    name = step.__name__

    @wraps(step)
    def method(self: SyncFromAsync, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return drive(getattr(self._journal, name)(*args, **kwargs))  # type: ignore[no-any-return]

    return method


def _at_once(step: Step[P, T]) -> Step[P, T]:
    """The step of the inner journal, run immediately."""
    name = step.__name__

    @wraps(step)
    async def method(self: AsyncFromSync, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return getattr(self._journal, name)(*args, **kwargs)  # type: ignore[no-any-return]

    return method


class SyncFromAsync:
    """A synchronous journal on coroutines that never suspend."""

    __slots__ = ("__weakref__", "_journal", "durable")

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self.durable: bool = journal.durable

    begin = _driven(Journal.begin)
    take_over = _driven(Journal.take_over)
    settle = _driven(Journal.settle)
    alias = _driven(Journal.alias)
    renew = _driven(Journal.renew)
    read = _driven(Journal.read)
    forgotten = _driven(Journal.forgotten)
    wait = _driven(Journal.wait)
    clear = _driven(Journal.clear)
    list = _driven(Journal.list)
    earlier = _driven(Journal.earlier)
    counts = _driven(Journal.counts)
    tenants = _driven(Journal.tenants)
    sweep = _driven(Journal.sweep)
    open_run = _driven(Journal.open_run)
    update_run = _driven(Journal.update_run)
    append = _driven(Journal.append)
    manifest = _driven(Journal.manifest)
    runs = _driven(Journal.runs)
    events = _driven(Journal.events)
    delete_run = _driven(Journal.delete_run)
    load_breakers = _driven(Journal.load_breakers)
    save_breaker = _driven(Journal.save_breaker)
    ping = _driven(Journal.ping)
    close = _driven(Journal.close)

    def subscribe_breakers(self, tenant: str, callback: BreakerCallback) -> Callable[[], None] | None:
        return self._journal.subscribe_breakers(tenant, callback)


class AsyncFromSync:
    """A journal for a loop whose steps run at once, in the calling thread."""

    __slots__ = ("__weakref__", "_journal", "durable")

    def __init__(self, journal: SyncJournal) -> None:
        self._journal = journal
        self.durable: bool = journal.durable

    begin = _at_once(Journal.begin)
    take_over = _at_once(Journal.take_over)
    settle = _at_once(Journal.settle)
    alias = _at_once(Journal.alias)
    renew = _at_once(Journal.renew)
    read = _at_once(Journal.read)
    forgotten = _at_once(Journal.forgotten)
    wait = _at_once(Journal.wait)
    clear = _at_once(Journal.clear)
    list = _at_once(Journal.list)
    earlier = _at_once(Journal.earlier)
    counts = _at_once(Journal.counts)
    tenants = _at_once(Journal.tenants)
    sweep = _at_once(Journal.sweep)
    open_run = _at_once(Journal.open_run)
    update_run = _at_once(Journal.update_run)
    append = _at_once(Journal.append)
    manifest = _at_once(Journal.manifest)
    runs = _at_once(Journal.runs)
    events = _at_once(Journal.events)
    delete_run = _at_once(Journal.delete_run)
    load_breakers = _at_once(Journal.load_breakers)
    save_breaker = _at_once(Journal.save_breaker)
    ping = _at_once(Journal.ping)
    close = _at_once(Journal.close)

    def subscribe_breakers(self, tenant: str, callback: BreakerCallback) -> Callable[[], None] | None:
        return self._journal.subscribe_breakers(tenant, callback)
