"""A journal in this process: for tests, scripts, and calls whose claims need not outlive the process."""

from __future__ import annotations

import math
import os
import threading
import weakref
from collections.abc import Callable, Collection, Mapping
from operator import attrgetter
from typing import Any

from antiphon.contract.record import unknown_for
from antiphon.errors import InvalidInput
from antiphon.ports import BreakerCallback, Clock, Journal, Records
from antiphon.stores._adapters import AsyncFromSync
from antiphon.stores._common import ClaimQuery
from antiphon.stores._waiters import loop_waiter
from antiphon.stores.memory.claims import MemoryClaims, Node


class MemoryStore:
    """Claims, log and breakers in memory; every journal it opens sees the same data.

    Settled claims beyond *max_keys* are forgotten, least recently used first. Claims in flight or of unknown outcome
    never are: when only those are left, a new claim is refused with ``store_full``. Unknown outcomes are counted
    separately, and a warning is logged when they reach half of *max_keys*. Of the log, whole finished runs are
    forgotten, oldest first, once there are more than *max_events* events.

    >>> MemoryStore().url
    'memory://'
    """

    in_process = True

    def __init__(self, max_keys: int = 25_000, *, max_events: int = 250_000, clock: Clock | None = None) -> None:
        if max_keys < 1:
            raise InvalidInput("max_keys must be at least 1.", path="max_keys")
        self._journal = SyncMemoryJournal(max_keys, max_events, clock or Clock())

    @property
    def url(self) -> str:
        """Where the records are, without secrets."""
        return "memory://"

    def open_sync(self) -> SyncMemoryJournal:
        """The same journal for all threads: it holds nothing but the data."""
        return self._journal

    def open_async(self) -> Journal:
        """A journal for the running event loop."""
        return MemoryJournal(self._journal)

    def forget_everything(self) -> None:
        """Drop all claims, runs and breakers, as if the store were new."""
        self._journal.forget_everything()


class SyncMemoryJournal(MemoryClaims):
    """The data of a :class:`MemoryStore` and its steps, for threads."""

    durable = False

    def __init__(self, max_keys: int, max_events: int, clock: Clock) -> None:
        super().__init__(max_keys, max_events, clock)
        with _fork_lock:
            _all_journals.add(self)

    def forget_everything(self) -> None:
        with self.lock:
            for key in {node.key for node in self._nodes.values()}:
                self._clear(key)
            self._pins.clear()
            self._forget_log()

    def list(self, **query: Any) -> Records:
        which = ClaimQuery(**query)
        found: Records = []
        nodes = self._all_current()
        older = math.inf if which.before is None else which.before.at
        for node in sorted(nodes, key=attrgetter("fence"), reverse=True):
            if len(found) >= which.limit:
                break
            if node.fence < older and _matches(node, which):
                with self.lock:  # a record built concurrently with a settlement would be kept, and be wrong
                    if node.lives(self._now()) and which.state in ("", node.state):
                        found.append(node.to_record())
        return found

    def earlier(self, *, tenant: str, key: str = "") -> Records:
        with self.lock:
            past = [self._history.get(key, {})] if key else list(self._history.values())
            now = self._now()
            nodes = [node for each in past for node in each.values() if node.expires > now]
            found = {node.fence: node.to_record() for node in nodes if node.template.tenant == tenant}
        return [found[fence] for fence in sorted(found, reverse=True)]

    def counts(self, tenant: str) -> Mapping[tuple[str, str], int]:
        now = self._now()
        found: dict[tuple[str, str], int] = {}
        for node in self._all_current():
            if not node.lives(now) or node.template.tenant != tenant:
                continue
            state = node.state
            if state == "inflight" and node.lock_until <= now:
                state = "stale"
            elif state == "failed" and node.kept:
                state = unknown_for(now - node.updated)
            found[node.template.tool, state] = found.get((node.template.tool, state), 0) + 1
        return found

    def tenants(self) -> Collection[str]:
        return {node.template.tenant for node in self._all_current()}

    def subscribe_breakers(self, tenant: str, callback: BreakerCallback) -> Callable[[], None] | None:
        """There is nothing to push: other processes have other data."""
        return None

    def ping(self) -> Mapping[str, Any]:
        with self.lock:
            counted = {"claims": len(self._nodes), "unknown": len(self._unknown)}
            return {"store": "memory", "durable": False, **counted, "latencyMs": 0.0}

    def close(self) -> None:
        """Nothing to release: the data lives as long as its :class:`MemoryStore`."""

    def _all_current(self) -> tuple[Node, ...]:
        """The current nodes, in the order of their last use."""
        with self.lock:
            return tuple(self._current.values())


class MemoryJournal(AsyncFromSync):
    """The same steps for one event loop: only waiting suspends."""

    __slots__ = ()

    _journal: SyncMemoryJournal

    def __init__(self, journal: SyncMemoryJournal) -> None:
        super().__init__(journal)

    async def wait(self, key: str, version: int, timeout_s: float) -> None:
        waiter = loop_waiter()
        if self._journal.add_waiter(key, version, waiter):
            try:
                await waiter.wait(timeout_s)
            finally:
                self._journal.remove_waiter(key, version, waiter)


def _matches(node: Node, which: ClaimQuery) -> bool:
    template = node.template
    return (
        template.tenant == which.tenant
        and which.tool in ("", template.tool)
        and which.session in ("", template.session)
        and node.key.startswith(which.prefix)
    )


_all_journals: weakref.WeakSet[SyncMemoryJournal] = weakref.WeakSet()
_forking: list[SyncMemoryJournal] = []
_fork_lock = threading.Lock()
"""Held while forking, or while making a journal."""


def _before_fork() -> None:
    """A child must not inherit a lock held by a thread that it does not have."""
    _fork_lock.acquire()
    _forking.extend(_all_journals)
    for journal in _forking:
        journal.lock.acquire()


def _after_fork_in_parent() -> None:
    while _forking:
        _forking.pop().lock.release()
    _fork_lock.release()


def _after_fork_in_child() -> None:
    while _forking:
        journal = _forking.pop()
        journal.waiters.by_key.clear()  # the waiters live in the parent
        journal.lock.release()
    _fork_lock.release()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
