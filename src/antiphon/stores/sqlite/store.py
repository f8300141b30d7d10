"""A journal in one SQLite file: the durable default, for any number of threads, loops and processes on a machine.

Claim and events are committed in one transaction. With ``synchronous="FULL"`` an answered step survives a power
failure; with ``"NORMAL"`` it survives a killed process, but a power failure may undo the last commits. Time is
the machine's wall clock.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

from antiphon._drive import drive
from antiphon.contract.events import RunManifest
from antiphon.errors import InvalidInput
from antiphon.ports import (
    Begun,
    BreakerCallback,
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
)
from antiphon.stores._adapters import SyncFromAsync
from antiphon.stores._common import RunQuery, event_of, manifest_of, manifests_of
from antiphon.stores._waiters import NewWaiter, ThreadWaiter, loop_waiter
from antiphon.stores.sqlite import claims, index, log
from antiphon.stores.sqlite.claims import INSERT_CLAIM, LOOK_AGAIN_MS, SETTLE
from antiphon.stores.sqlite.file import DatabaseFile, Operation, Run, shared_file

T = TypeVar("T")
B = TypeVar("B", bound=Begun)

ALL_NEW = 8
"""After this many claims were won in a row, reading before writing is a waste."""
_CHUNK = 1000
"""How many claims one transaction deletes or indexes, so that concurrent calls get their turn."""
_ENDS = 256
_new = tuple.__new__  # half the cost of a named tuple's own constructor


class SQLiteStore:
    """Claims, log and breakers in the file *path*. Its folder is created if only the last part is missing.

    The file stays the same when the process changes its folder. *prepare* is called each time before it is opened.

    >>> SQLiteStore("/tmp/antiphon.db").url
    'sqlite:////tmp/antiphon.db'
    """

    in_process = False

    def __init__(
        self,
        path: str | os.PathLike[str],
        synchronous: str = "FULL",
        *,
        busy_timeout: float = 5.0,
        clock: Clock | None = None,
        prepare: Callable[[], object] = lambda: None,
    ) -> None:
        if synchronous not in ("FULL", "NORMAL", "EXTRA"):
            raise InvalidInput("synchronous must be 'FULL', 'NORMAL' or 'EXTRA'.", path="synchronous")
        if os.fspath(path) in ("", ":memory:"):
            raise InvalidInput("SQLiteStore needs a file.", path="path", hint="Use MemoryStore() to keep nothing.")
        self._path = Path(path).absolute()
        self._synchronous = synchronous
        self._busy_timeout = busy_timeout
        self._clock = clock or Clock()
        self._prepare = prepare

    @property
    def url(self) -> str:
        """Where the records are, without secrets."""
        return f"sqlite:///{self._path}"

    @property
    def path(self) -> Path:
        """The database file."""
        return self._path

    def open_sync(self) -> SyncSQLiteJournal:
        """A journal for threads."""
        return SyncSQLiteJournal(self._file(), self._clock)

    def open_async(self) -> SQLiteJournal:
        """A journal for the running event loop."""
        from antiphon.stores.sqlite.executor import access_of

        file = self._file()
        return SQLiteJournal(file, self._clock, access_of(file), loop_waiter)

    def _file(self) -> DatabaseFile:
        self._prepare()
        return shared_file(self._path, self._synchronous, self._busy_timeout)


class Access(Protocol):
    """How steps use the file."""

    async def read(self, run: Run[T]) -> T: ...

    async def write(self, operation: Operation) -> Any: ...


class SQLiteJournal:
    """Claims, run log and breaker states of a file. Written once: for threads its coroutines never suspend."""

    durable = True

    def __init__(self, file: DatabaseFile, clock: Clock, access: Access, new_waiter: NewWaiter) -> None:
        self._file = file
        self.time_ns: Callable[[], int] = time.time_ns if type(clock) is Clock else lambda: clock.now_ms() * 1_000_000
        self._read = access.read
        self._access = access
        self._new_waiter = new_waiter
        self.won: int = 0
        """How many claims were won in a row."""

    def now(self) -> int:
        return self.time_ns() // 1_000_000

    async def begin(self, request: ClaimRequest, events: Sequence[Row] = ()) -> Begun:
        if self.won < ALL_NEW:
            found = await self._read(lambda connection: claims.answer_without_writing(connection, request, self.now()))
            if found is not None:
                self.won = 0
                return found

        def step(connection: sqlite3.Connection) -> Begun:
            return _with_events(connection, claims.begin(connection, request, self.now()), events)

        answer = await self._write(step)
        self.won = self.won + 1 if answer.__class__ is Claimed else 0
        return answer

    async def take_over(self, request: ClaimRequest, version: int, events: Sequence[Row] = ()) -> Begun:
        def step(connection: sqlite3.Connection) -> Begun:
            return _with_events(connection, claims.take_over(connection, request, version, self.now()), events)

        return await self._write(step, (request.key,))

    async def settle(self, key: str, version: int, settlement: Settlement, events: Sequence[Row] = ()) -> int | None:
        def step(connection: sqlite3.Connection) -> int | None:
            log.write(connection, events)
            return claims.settle(connection, key, version, settlement, self.now())

        return await self._write(step, (key,))

    async def alias(self, key: str, identity: str, version: int) -> bool:
        return await self._write(lambda connection: claims.alias(connection, key, identity, version, self.now()))

    async def renew(self, key: str, version: int, lease_ms: int) -> bool:
        return await self._write(lambda connection: claims.renew(connection, key, version, lease_ms, self.now()))

    async def read(self, key: str, identity: str = "") -> Existing | None:
        return await self._read(lambda connection: claims.read(connection, key, identity, self.now()))

    async def wait(self, key: str, version: int, timeout_s: float) -> None:
        waiter = self._new_waiter()
        poller = self._file.poller
        poller.add(key, version, waiter)
        try:
            if await self._read(lambda connection: claims.in_flight(connection, key, version)):
                await waiter.wait(timeout_s)
        finally:
            poller.discard(key, version, waiter)

    async def forgotten(self, request: ClaimRequest, version: int) -> bool:
        """Versions up to that of each forgotten record are never issued again: a lost file does not know them."""
        return await self._read(lambda connection: claims.known_up_to(connection, request.key)) >= version

    async def clear(self, key: str, version: int | None = None) -> bool:
        return await self._write(lambda connection: claims.clear(connection, key, version), (key,))

    async def list(self, **query: Any) -> Records:
        await self._catch_up()
        which = index.Filter(**query)
        return await self._read(lambda connection: index.find(connection, which, self.now()))

    async def earlier(self, *, tenant: str, key: str = "") -> Records:
        return await self._read(lambda connection: claims.earlier(connection, tenant, key, self.now()))

    async def counts(self, tenant: str) -> Mapping[tuple[str, str], int]:
        await self._catch_up()
        return await self._read(lambda connection: index.counts(connection, tenant, self.now()))

    async def tenants(self) -> Collection[str]:
        await self._catch_up()
        return await self._read(index.tenants)

    async def sweep(self, limit: int = 1000) -> int:
        await self._catch_up()
        return await self._write(lambda connection: index.sweep(connection, limit, self.now()))

    async def open_run(self, manifest: RunManifest) -> None:
        await self._write(lambda connection: log.keep(connection, "open_run", manifest))

    async def update_run(self, manifest: RunManifest) -> None:
        await self._write(lambda connection: log.keep(connection, "update_run", manifest))

    async def append(self, run: str, rows: Sequence[Row]) -> int:
        return await self._write(lambda connection: log.append(connection, run, rows))

    async def manifest(self, run: str) -> RunManifest | None:
        found = await self._read(lambda connection: log.manifest_bytes(connection, run))
        return None if found is None else manifest_of(found)

    async def runs(self, **query: Any) -> Manifests:
        which = RunQuery(**query)
        return manifests_of(await self._read(lambda connection: log.runs(connection, which)))

    async def events(self, run: str, *, start: int = 0, stop: int | None = None, limit: int = 1000) -> Events:
        rows = await self._read(lambda connection: log.rows(connection, run, start, stop, limit))
        return [event_of(seq, row) for seq, row in rows]

    async def delete_run(self, run: str) -> bool:
        return await self._write(lambda connection: log.delete_run(connection, run))

    async def load_breakers(self, tenant: str) -> BreakerRows:
        return await self._read(lambda connection: log.load_breakers(connection, tenant))

    async def save_breaker(self, tenant: str, row: BreakerRow) -> None:
        await self._write(lambda connection: log.save_breaker(connection, tenant, row))

    def subscribe_breakers(self, tenant: str, callback: BreakerCallback) -> Callable[[], None] | None:
        """SQLite cannot push: processes poll."""
        return None

    async def ping(self) -> Mapping[str, Any]:
        started = time.perf_counter()
        await self._write(lambda connection: None)
        return {
            "store": "sqlite",
            "path": str(self._file.path),
            "durable": True,
            "synchronous": self._file.synchronous,
            "sqlite": sqlite3.sqlite_version,
            "schema": self._file.schema,
            "latencyMs": round((time.perf_counter() - started) * 1000, 3),
        }

    async def close(self) -> None:
        """Close this process's idle connections to the file; another journal of the same file opens its own again."""
        self._file.close()

    async def _catch_up(self) -> None:
        if await self._read(index.is_behind):
            while await self._write(lambda connection: index.catch_up(connection, _CHUNK, self.now())):
                pass

    async def _write(self, run: Run[T], changed: Sequence[str] = ()) -> T:
        return await self._access.write(Operation(run, changed))  # type: ignore[no-any-return]


class SyncSQLiteJournal(SyncFromAsync):
    """The same for threads. A plain ``begin`` or ``settle`` is one statement, with one event or none."""

    __slots__ = ("_ends", "_file", "_time_ns")

    _journal: SQLiteJournal

    def __init__(self, file: DatabaseFile, clock: Clock) -> None:
        super().__init__(SQLiteJournal(file, clock, _Blocking(file), ThreadWaiter))
        self._file = file
        self._time_ns = self._journal.time_ns
        self._ends: dict[str, int] = {}
        """The ends of the runs that were written to last."""

    def begin(self, request: ClaimRequest, events: Sequence[Row] = ()) -> Begun:
        journal = self._journal
        if journal.won >= ALL_NEW and request.pin is None:
            now = self._time_ns() // 1_000_000
            version = now * 1000
            values = claims.claim_values(request, now, version)
            if self._execute(INSERT_CLAIM, values, events) if events else self._file.execute_now(INSERT_CLAIM, values):
                return _new(Claimed, (version, now))
        return drive(journal.begin(request, events))

    def settle(self, key: str, version: int, settlement: Settlement, events: Sequence[Row] = ()) -> int | None:
        if settlement[0] == "done" and settlement[1] >= LOOK_AGAIN_MS:
            file = self._file
            now = self._time_ns() // 1_000_000
            settled = now * 1000 if now * 1000 > version else version + 1
            values = claims.settle_values(key, version, settlement, settled, now)
            if self._execute(SETTLE, values, events) if events else file.execute_now(SETTLE, values):
                if file.poller.waiting:
                    file.poller.wake((key,))
                return settled
        return drive(self._journal.settle(key, version, settlement, events))

    def _execute(self, statement: str, values: tuple[Any, ...], events: Sequence[Row]) -> bool:
        """One statement with one event as a transaction of its own; ``False``: nothing was changed.

        The end of a run is known until somebody else writes to it; then the event's number is taken.
        """
        if len(events) > 1:
            return False
        run, kind, at_ms, body = events[0]
        place = self._ends.get(run) or self._file.read(lambda connection: log.next_place(connection, run))
        if not place:
            return False
        if not self._file.execute_now(statement, values, log.INSERT_NEXT, (place, kind, at_ms, bytearray(body), place)):
            self._ends.pop(run, None)
            return False
        if len(self._ends) >= _ENDS:
            self._ends.clear()
        self._ends[run] = place + 1
        return True


class _Blocking:
    """Steps of threads run immediately, in the calling thread."""

    def __init__(self, file: DatabaseFile) -> None:
        self._file = file

    async def read(self, run: Run[T]) -> T:
        return self._file.read(run)

    async def write(self, operation: Operation) -> Any:
        return self._file.write(operation)


def _with_events(connection: sqlite3.Connection, answer: B, events: Sequence[Row]) -> B:
    """*answer*, with its events written if it is a claim."""
    if answer.__class__ is Claimed:
        log.write(connection, events)
    return answer
