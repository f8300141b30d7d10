"""Waits for a claim: pushed within the process, polled across processes.

SQLite cannot tell another process that a row changed. So one thread per file, alive only while there are waiters, asks
every 20 to 100 ms whether *anything* was committed (``PRAGMA data_version``, no row is read), and reads the awaited
claims only then. A thousand waiters cost the same as one.
"""

from __future__ import annotations

import random
import sqlite3
import threading
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from antiphon._daemon import Daemon, Signal
from antiphon.errors import AntiphonError
from antiphon.stores._waiters import Waiter, Waiters
from antiphon.stores.sqlite.claims import SQL

_IN_FLIGHT = SQL["in_flight"]
_SHORTEST_S, _LONGEST_S = 0.02, 0.1


class Poller:
    """The waiters for claims of one file."""

    def __init__(self, connect: Callable[[], sqlite3.Connection], path: Path) -> None:
        self._connect = connect
        self._path = path
        self._lock = threading.Lock()
        self._waiters = Waiters()
        self.waiting: Mapping[str, object] = self._waiters.by_key
        """The keys that this process waits for."""
        self._arrived = Signal()
        self._thread = Daemon(f"antiphon-poll-{path.name}")
        self._looking = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        self._seen = -1

    def add(self, key: str, version: int, waiter: Waiter) -> None:
        """Wake *waiter* when *version* is no longer in flight. Read the claim after this, not before."""
        with self._lock:
            self._waiters.add(key, version, waiter)
        self._arrived.set()
        self._thread.start(self._poll)

    def discard(self, key: str, version: int, waiter: Waiter) -> None:
        with self._lock:
            self._waiters.discard(key, version, waiter)
            if not self._waiters:
                self._arrived.set()

    def wake(self, keys: Iterable[str]) -> None:
        """Wake the waiters in this process."""
        if not self._waiters:
            return
        with self._lock:
            for key in keys:
                self._waiters.wake(key)

    def close(self) -> None:
        with self._looking:
            self._drop_connection()

    def pause(self) -> None:
        """Stop before a fork."""
        self._looking.acquire()
        self._drop_connection()
        self._lock.acquire()

    def resume(self) -> None:
        self._lock.release()
        self._looking.release()

    def _poll(self) -> None:
        pause = _SHORTEST_S
        while True:
            if self._arrived.wait(pause * random.uniform(0.5, 1.0)):
                pause = _SHORTEST_S
            if self._thread.leave_if(lambda: not self._waiters):
                break
            try:
                with self._looking:
                    changed = self._changed()
            except (sqlite3.Error, AntiphonError):
                changed = [key for key, _ in self._awaited()]  # let them read for themselves, and get the error
                self.close()
            self.wake(changed)
            pause = _SHORTEST_S if changed else min(pause * 1.3, _LONGEST_S)
        self.close()

    def _awaited(self) -> list[tuple[str, int]]:
        with self._lock:
            return [(key, version) for key, versions in self._waiters.by_key.items() for version in versions]

    def _changed(self) -> list[str]:
        if self._connection is None:
            self._connection = self._connect()
            self._seen = -1
        execute = self._connection.execute
        (seen,) = execute("PRAGMA data_version").fetchone()
        if seen == self._seen:
            return []
        self._seen = seen
        awaited = self._awaited()  # later waiters have read after this change
        return [key for key, version in awaited if execute(_IN_FLIGHT, (key, version)).fetchone() is None]

    def _drop_connection(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
