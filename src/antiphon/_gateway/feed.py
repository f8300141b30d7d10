"""What the rest of the fleet says about breakers: pushed where the store can push, read now and then elsewhere (R9).

A store that can push tells every change at once, and everything again after a gap in its connection; the regular read
is then only a safety net. Other stores are read once per ``refresh_ms``.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterable
from typing import Any

from antiphon._gateway.plan import Plans
from antiphon.ports import BreakerRow, Journal, SyncJournal

_SAFETY_NET_S = 30.0


class BreakerFeed:
    """The rows of a tenant's breakers as this process knows them."""

    def __init__(self, plans: Plans) -> None:
        self._plans = plans
        self._rows: dict[str, BreakerRow] = {}
        self._stops: weakref.WeakKeyDictionary[Any, Callable[[], None]] = weakref.WeakKeyDictionary()
        self._next_read = 0.0
        _feeds.add(self)

    def due(self, journal: SyncJournal | Journal) -> bool:
        """Whether the rows have to be read: not if the store tells us of changes."""
        if not journal.durable:
            return False
        return journal not in self._stops or self._plans.clock.monotonic() >= self._next_read

    def read(self, journal: SyncJournal | Journal, rows: Iterable[BreakerRow]) -> None:
        """Take the rows that were read; ask to be told from now on."""
        self._next_read = self._plans.clock.monotonic() + _SAFETY_NET_S
        self._take(rows)
        if journal not in self._stops:
            stop = journal.subscribe_breakers(self._plans.settings.tenant, _weakly(self))
            if stop is not None:
                self._stops[journal] = stop

    def told(self, row: BreakerRow) -> None:
        """A row was written somewhere (called from the store's own thread or event loop)."""
        if self._rows.get(row.key) != row:
            self._take((row,))

    def stop(self, journal: SyncJournal | Journal) -> None:
        """Listen no longer: *journal* is about to be closed."""
        if journal in self._stops:
            self._stops.pop(journal)()

    def after_fork(self) -> None:
        """A child has neither the parent's connection nor its thread: its first call reads and subscribes anew."""
        self._stops = weakref.WeakKeyDictionary()
        self._plans.next_refresh = self._next_read = 0.0

    def _take(self, rows: Iterable[BreakerRow]) -> None:
        """A trip binds others only together with further trips, so all rows are looked at again."""
        kept = dict(self._rows)
        for row in rows:
            known = kept.get(row.key)
            if known is None or (row.epoch, row.updated_at_ms) >= (known.epoch, known.updated_at_ms):
                kept[row.key] = row
        self._rows = kept
        self._plans.adopt(kept.values())


_feeds: weakref.WeakSet[BreakerFeed] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for feed in list(_feeds):
        feed.after_fork()


os.register_at_fork(after_in_child=_after_fork_in_child)


def _weakly(feed: BreakerFeed) -> Callable[[BreakerRow], None]:
    """A subscription must not keep a forgotten gateway alive."""
    reference = weakref.ref(feed)

    def told(row: BreakerRow) -> None:
        listening = reference()
        if listening is not None:
            listening.told(row)

    return told
