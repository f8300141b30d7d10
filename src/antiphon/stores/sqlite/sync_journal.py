"""The SQLite journal of threads: steps run in the calling thread."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from antiphon.contract.events import RunManifest
from antiphon.ports import (
    BreakerRow,
    BreakerRows,
    Claimed,
    ClaimRequest,
    Clock,
    Events,
    Existing,
    Manifests,
    Records,
    Row,
    Settlement,
    Told,
)
from antiphon.stores._common import event_of, manifest_of, next_version
from antiphon.stores._waiters import ThreadWaiter
from antiphon.stores.sqlite import claims, index, log
from antiphon.stores.sqlite.claims import INSERT_CLAIM, SETTLE
from antiphon.stores.sqlite.file import DatabaseFile, Operation
from antiphon.stores.sqlite.steps import ALL_NEW, CHUNK, Steps

T = TypeVar("T")
_ENDS = 256


class SyncSQLiteJournal(Steps):
    """A database file for any number of threads."""

    __slots__ = ("_ends",)

    def __init__(self, file: DatabaseFile, clock: Clock) -> None:
        super().__init__(file, clock)
        self._ends: dict[str, int] = {}
        """Where the runs end that were written to last."""

    def begin(self, request: ClaimRequest, events: Sequence[Row] = ()) -> Claimed | Existing:
        if self._won >= ALL_NEW:
            now = self._time_ns() // 1_000_000
            version = now * 1000
            if self._execute(INSERT_CLAIM, claims.claim_values(request, now, version), events):
                self._won += 1
                return Claimed(version, now)
        answer: Claimed | Existing = self._file.write(self._begin(request, events))
        self._won = self._won + 1 if answer.__class__ is Claimed else 0
        return answer

    def take_over(self, request: ClaimRequest, version: int, events: Sequence[Row] = ()) -> Claimed | Existing:
        return self._file.write(self._take_over(request, version, events))  # type: ignore[no-any-return]

    def settle(self, key: str, version: int, settlement: Settlement, events: Sequence[Row] = ()) -> int | None:
        if claims.is_plain(settlement):
            now = self._time_ns() // 1_000_000
            settled = next_version(version, now)
            if self._execute(SETTLE, claims.settle_values(key, version, settlement, settled, now), events):
                self._file.poller.wake((key,))
                return settled
        return self._file.write(self._settle(key, version, settlement, events))  # type: ignore[no-any-return]

    def _execute(self, statement: str, values: tuple[Any, ...], events: Sequence[Row]) -> bool:
        """One statement, with one event or none, as a transaction of its own; ``False``: nothing was changed.

        Where a run ends is known until somebody else writes to it; then the event's number is taken.
        """
        if not events:
            return self._file.execute_now(statement, values)
        if len(events) > 1:
            return False
        run, kind, at_ms, body = events[0]
        place = self._ends.get(run) or self._file.read(lambda connection: log.next_place(connection, run))
        if not place:
            return False
        if not self._file.execute_now(statement, values, log.INSERT_NEXT, (place, kind, at_ms, body)):
            self._ends.pop(run, None)
            return False
        if len(self._ends) >= _ENDS:
            self._ends.clear()
        self._ends[run] = place + 1
        return True

    def alias(self, key: str, identity: str, version: int) -> bool:
        return self._write(lambda connection: claims.alias(connection, key, identity, version, self._now()))

    def renew(self, key: str, version: int, lease_ms: int) -> bool:
        return self._write(lambda connection: claims.renew(connection, key, version, lease_ms, self._now()))

    def read(self, key: str, identity: str = "") -> Existing | None:
        return self._file.read(lambda connection: claims.look_up(connection, key, identity, self._now()))

    def wait(self, key: str, version: int, timeout_s: float) -> None:
        waiter = ThreadWaiter()
        poller = self._file.poller
        poller.add(key, version, waiter)
        try:
            if self._file.read(lambda connection: claims.in_flight(connection, key, version)):
                waiter.block(timeout_s)
        finally:
            poller.discard(key, waiter)

    def clear(self, key: str) -> bool:
        return self._write(lambda connection: claims.clear(connection, key), (key,))

    def flush(self, *, tenant: str, tool: str = "", session: str = "", prefix: str = "") -> int:
        self._catch_up()
        which = index.Filter(tenant, tool, session, prefix)
        up_to = self._file.read(index.newest)
        total = 0
        while True:
            keys = self._write(lambda connection: index.flush(connection, which, up_to, CHUNK))
            self._file.poller.wake(keys)
            total += len(keys)
            if len(keys) < CHUNK:
                return total

    def list(
        self, *, tenant: str, tool: str = "", session: str = "", state: str = "", prefix: str = "", limit: int = 100
    ) -> Records:
        self._catch_up()
        which = index.Filter(tenant, tool, session, prefix, state)
        return self._file.read(lambda connection: index.find(connection, which, limit, self._now()))

    def counts(self, tenant: str) -> Mapping[tuple[str, str], int]:
        self._catch_up()
        return self._file.read(lambda connection: index.counts(connection, tenant, self._now()))

    def sweep(self, limit: int = 1000) -> int:
        self._catch_up()
        return self._write(lambda connection: index.sweep(connection, limit, self._now()))

    def open_run(self, manifest: RunManifest) -> None:
        self._write(lambda connection: log.open_run(connection, manifest))

    def update_run(self, manifest: RunManifest) -> None:
        self._write(lambda connection: log.update_run(connection, manifest))

    def append(self, run: str, rows: Sequence[Row]) -> int:
        return self._write(lambda connection: log.append(connection, run, rows))

    def manifest(self, run: str) -> RunManifest | None:
        found = self._file.read(lambda connection: log.manifest_bytes(connection, run))
        return None if found is None else manifest_of(found)

    def runs(
        self, *, tenant: str, prefix: str = "", name: str = "", status: str = "", limit: int = 50, before: str = ""
    ) -> Manifests:
        found = self._file.read(lambda connection: log.runs(connection, tenant, prefix, name, status, limit, before))
        return [manifest_of(manifest) for manifest in found]

    def events(self, run: str, *, start: int = 0, stop: int | None = None, limit: int = 1000) -> Events:
        rows = self._file.read(lambda connection: log.rows(connection, run, start, stop, limit))
        return [event_of(seq, row) for seq, row in rows]

    def delete_run(self, run: str) -> bool:
        return self._write(lambda connection: log.delete_run(connection, run))

    def load_breakers(self, tenant: str) -> BreakerRows:
        return self._file.read(lambda connection: log.load_breakers(connection, tenant))

    def save_breaker(self, tenant: str, row: BreakerRow) -> None:
        self._write(lambda connection: log.save_breaker(connection, tenant, row))

    def subscribe_breakers(self, tenant: str, callback: Told) -> Callable[[], None] | None:
        """SQLite cannot push: processes look for themselves."""
        return None

    def ping(self) -> Mapping[str, Any]:
        started = time.perf_counter()
        self._write(lambda connection: None)
        return self._described(started)

    def close(self) -> None:
        """Close this process's idle connections to the file; another journal of the same file opens its own anew."""
        self._file.close()

    def _catch_up(self) -> None:
        if self._file.read(index.is_behind):
            while self._write(lambda connection: index.catch_up(connection, CHUNK, self._now())):
                pass

    def _write(self, run: Callable[[sqlite3.Connection], T], changed: Sequence[str] = ()) -> T:
        return self._file.write(Operation(run, changed))  # type: ignore[no-any-return]
