"""A journal in one SQLite file: the durable default, for any number of threads, loops and processes of a machine.

Claim and events are committed in one transaction. With ``synchronous="FULL"`` an answered step survives a power
failure; with ``"NORMAL"`` it survives a killed process, but a power failure may undo the last commits. Time is
the machine's wall clock.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Awaitable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from orjson import dumps

from antiphon.contract.events import Event, RunManifest
from antiphon.contract.record import RECORD_VERSION
from antiphon.errors import InvalidInput
from antiphon.ports import Ask, BreakerRow, Claimed, Clock, Existing, Final, Journal, Row
from antiphon.stores import _sqlite_catalogue as catalogue
from antiphon.stores import _sqlite_claims as claims
from antiphon.stores import _sqlite_log as log
from antiphon.stores._common import Records, event_of, manifest_of
from antiphon.stores._sqlite_claims import INSERT_CLAIM, SETTLE
from antiphon.stores._sqlite_file import DatabaseFile, Operation, Run, shared_file
from antiphon.stores._waiters import NewWaiter, ThreadWaiter, loop_waiter

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")
_CHUNK = 1000
_ALL_NEW = 8
_ENDS = 256
_REQUEST = b'{"sessionKey":%b,"actorId":%b,"requestId":"%b","paramsDigest":"%b","identity":%b,"paramsDigestExact":"%b"}'
"""What :class:`~antiphon.contract.record.RecordedRequest` is written as; the texts of calls are JSON already."""
_ONE_SUCCESS = (
    b'{"execution":{"attemptCount":1,"attempts":['
    b'{"startedAtMs":%d,"finishedAtMs":%d,"status":"success","retriable":false}]}}'
)
"""The outcome of a call whose first attempt succeeded."""


class SQLiteStore:
    """Claims, log and breakers in the file *path*. Its folder is made if only the last part is missing.

    >>> SQLiteStore("/tmp/antiphon.db").url
    'sqlite:////tmp/antiphon.db'
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        synchronous: str = "FULL",
        *,
        busy_timeout: float = 5.0,
        clock: Clock | None = None,
    ) -> None:
        if synchronous not in ("FULL", "NORMAL", "EXTRA"):
            raise InvalidInput("synchronous must be 'FULL', 'NORMAL' or 'EXTRA'.", path="synchronous")
        if os.fspath(path) in ("", ":memory:"):
            raise InvalidInput("SQLiteStore needs a file.", path="path", hint="Use MemoryStore() to keep nothing.")
        self._path = Path(path)
        self._synchronous = synchronous
        self._busy_timeout = busy_timeout
        self._clock = clock or Clock()

    @property
    def url(self) -> str:
        return f"sqlite:///{self._path}"

    @property
    def path(self) -> Path:
        """The database file."""
        return self._path

    def open_sync(self) -> Journal:
        file = self._file()
        return SQLiteJournal(file, _SyncAccess(file), self._clock, ThreadWaiter)

    def open_async(self) -> Journal:
        from antiphon.stores._sqlite_async import AsyncAccess

        file = self._file()
        return SQLiteJournal(file, AsyncAccess(file), self._clock, loop_waiter)

    def _file(self) -> DatabaseFile:
        return shared_file(self._path, self._synchronous, self._busy_timeout)


class _Access(Protocol):
    """How a face runs its steps."""

    def read(self, run: Run[T]) -> Awaitable[T]: ...

    def write(self, operation: Operation) -> Awaitable[Any]: ...


class _SyncAccess:
    """Steps run in the calling thread."""

    __slots__ = ("_file",)

    def __init__(self, file: DatabaseFile) -> None:
        self._file = file

    async def read(self, run: Run[T]) -> T:
        return self._file.read(run)

    async def write(self, operation: Operation) -> Any:
        if operation.probe is not None:
            found = self._file.read(operation.probe)
            if found is not None:
                return found
            operation.probe = None
        return self._file.write(operation)


class Form(Protocol):
    """What the plain calls of one tool, session and actor have in common."""

    tool: str
    session: str
    session_json: bytes
    actor_json: bytes
    ttl_ms: int
    lease_ms: int
    owner: str
    tenant: str
    workspace: str


class SQLiteJournal:
    """One face's view of a database file; the faces differ only in which thread does the work and how they wait."""

    durable = True

    __slots__ = ("_access", "_ends", "_file", "_new_waiter", "_time_ns", "_won")

    def __init__(self, file: DatabaseFile, access: _Access, clock: Clock, new_waiter: NewWaiter) -> None:
        self._file = file
        self._access = access
        self._time_ns = time.time_ns if type(clock) is Clock else lambda: clock.now_ms() * 1_000_000
        self._ends: dict[str, int] = {}
        """Where the runs end that were written to last."""
        self._won = 0
        """How many claims were won in a row: while all are new, looking before writing is a waste."""
        self._new_waiter = new_waiter

    async def begin(self, ask: Ask, events: Sequence[Row] = ()) -> Claimed | Existing:
        def probe(connection: sqlite3.Connection) -> Existing | None:
            return claims.look_up(connection, ask.key, ask.identity, self._now())

        def run(connection: sqlite3.Connection) -> Claimed | Existing:
            answer = claims.begin(connection, ask, self._now())
            if events and answer.__class__ is Claimed:
                log.write(connection, events)
            return answer

        def quick(connection: sqlite3.Connection) -> Claimed | None:
            return claims.begin_new(connection, ask, self._now())

        all_new = self._won >= _ALL_NEW
        operation = Operation(run, (), None if all_new else probe, quick if all_new and not events else None)
        answer: Claimed | Existing = await self._access.write(operation)
        self._won = self._won + 1 if answer.__class__ is Claimed else 0
        return answer

    def _now(self) -> int:
        return self._time_ns() // 1_000_000

    def start_now(
        self, form: Form, keys: Sequence[str], identity: str, request_id: str, events: Sequence[Row] = ()
    ) -> int:
        """:meth:`begin` for a plain call, in as few steps as Python allows: the version of a claim that is new.

        *keys* are store key, idempotency key and the two digests of the parameters. 0 means that nothing was changed;
        :meth:`begin` knows why.
        """
        if self._won < _ALL_NEW:
            return 0
        now = self._time_ns() // 1_000_000
        version = now * 1000
        ttl_ms, lease_ms, session = form.ttl_ms, form.lease_ms, form.session
        expires = now + (ttl_ms if ttl_ms > lease_ms else lease_ms)
        key, idempotency_key, digest, exact = keys[:4]
        request = _REQUEST % (
            form.session_json,
            form.actor_json,
            request_id.encode(),
            digest.encode(),
            dumps(identity),
            exact.encode(),
        )
        who = (key, form.tenant, form.workspace, form.tool, session, identity, idempotency_key, version, form.owner)
        values = (*who, now, expires, now + lease_ms, ttl_ms, expires, 0, request, RECORD_VERSION)
        if not self._execute_now(INSERT_CLAIM, values, events):
            return 0
        self._won += 1
        return version

    def finish_now(
        self, key: str, version: int, ttl_ms: int, payload: bytes, times: tuple[int, int], events: Sequence[Row] = ()
    ) -> int | None:
        """:meth:`settle` for a plain call that succeeded at once; *times* say when it began and ended.

        ``None`` means that nothing was changed; :meth:`settle` knows why.
        """
        if ttl_ms < claims.LOOK_AGAIN_MS:
            return None
        now = self._time_ns() // 1_000_000
        settled = max(version + 1, now * 1000)
        values = ("done", settled, now, now + ttl_ms, ttl_ms, 1, _ONE_SUCCESS % times, payload, key, version)
        if not self._execute_now(SETTLE, values, events):
            return None
        self._file.watch.wake((key,))
        return settled

    def _execute_now(self, statement: str, values: tuple[Any, ...], events: Sequence[Row]) -> bool:
        """A claim or an outcome, with one event or none; where runs end is known until somebody else writes to them."""
        if not events:
            return self._file.execute_now(statement, values)
        run, kind, at_ms, body = events[0]
        place = self._ends.get(run) or self._file.read(lambda connection: log.next_place(connection, run))
        if place and len(events) == 1:
            event = (place, kind, at_ms, body)
            if self._file.execute_now(statement, values, log.INSERT_NEXT, event):
                if len(self._ends) >= _ENDS:
                    self._ends.clear()
                self._ends[run] = place + 1
                return True
            self._ends.pop(run, None)
        return False

    async def take(self, ask: Ask, version: int, events: Sequence[Row] = ()) -> Claimed | Existing:
        def run(connection: sqlite3.Connection) -> Claimed | Existing:
            answer = claims.take(connection, ask, version, self._now())
            if events and answer.__class__ is Claimed:
                log.write(connection, events)
            return answer

        return await self._access.write(Operation(run, (ask.key,)))  # type: ignore[no-any-return]

    async def settle(self, key: str, version: int, final: Final, events: Sequence[Row] = ()) -> int | None:
        def run(connection: sqlite3.Connection) -> int | None:
            if events:
                log.write(connection, events)
            return claims.settle(connection, key, version, final, self._now())

        def quick(connection: sqlite3.Connection) -> int | None:
            return claims.settle_only(connection, key, version, final, self._now())

        operation = Operation(run, (key,), None, quick if not events and claims.is_plain(final) else None)
        return await self._access.write(operation)  # type: ignore[no-any-return]

    async def mark_dispatched(self, key: str, version: int) -> bool:
        """Nothing to do: an in-flight claim whose holder is gone counts as dispatched."""
        return True

    async def alias(self, key: str, identity: str, version: int) -> bool:
        return await self._write(lambda connection: claims.alias(connection, key, identity, version, self._now()))

    async def renew(self, key: str, version: int, lease_ms: int) -> bool:
        return await self._write(lambda connection: claims.renew(connection, key, version, lease_ms, self._now()))

    async def read(self, key: str, identity: str = "") -> Existing | None:
        return await self._access.read(lambda connection: claims.look_up(connection, key, identity, self._now()))

    async def wait(self, key: str, version: int, timeout_s: float) -> None:
        waiter = self._new_waiter()
        watch = self._file.watch
        watch.add(key, version, waiter)
        try:
            if await self._access.read(lambda connection: claims.in_flight(connection, key, version)):
                await waiter.wait(timeout_s)
        finally:
            watch.discard(key, waiter)

    async def clear(self, key: str) -> bool:
        return await self._write(lambda connection: claims.clear(connection, key), (key,))

    async def flush(self, *, tenant: str, tool: str = "", session: str = "", prefix: str = "") -> int:
        await self._catch_up()
        which = catalogue.Filter(tenant, tool, session, prefix)
        up_to = await self._access.read(catalogue.newest)
        total = 0
        while True:  # in chunks, so that calls that go on meanwhile get their turn
            keys = await self._write(lambda connection: catalogue.flush(connection, which, up_to, _CHUNK))
            self._file.watch.wake(keys)
            total += len(keys)
            if len(keys) < _CHUNK:
                return total

    async def list(
        self, *, tenant: str, tool: str = "", session: str = "", state: str = "", prefix: str = "", limit: int = 100
    ) -> Records:
        await self._catch_up()
        which = catalogue.Filter(tenant, tool, session, prefix, state)
        return await self._access.read(lambda connection: catalogue.find(connection, which, limit, self._now()))

    async def counts(self, tenant: str) -> Mapping[tuple[str, str], int]:
        await self._catch_up()
        return await self._access.read(lambda connection: catalogue.counts(connection, tenant, self._now()))

    async def sweep(self, limit: int = 1000) -> int:
        await self._catch_up()

        def run(connection: sqlite3.Connection) -> int:
            log.sweep_breakers(connection, self._now())
            return catalogue.sweep(connection, limit, self._now())

        return await self._write(run)

    async def open_run(self, manifest: RunManifest) -> None:
        await self._write(lambda connection: log.open_run(connection, manifest))

    async def update_run(self, manifest: RunManifest) -> None:
        await self._write(lambda connection: log.update_run(connection, manifest))

    async def append(self, run: str, rows: Sequence[Row]) -> int:
        return await self._write(lambda connection: log.append(connection, run, rows))

    async def manifest(self, run: str) -> RunManifest | None:
        found = await self._access.read(lambda connection: log.manifest_bytes(connection, run))
        return None if found is None else manifest_of(found)

    async def runs(
        self, *, tenant: str, prefix: str = "", name: str = "", status: str = "", limit: int = 50, before: str = ""
    ) -> Manifests:
        found = await self._access.read(
            lambda connection: log.runs(connection, tenant, prefix, name, status, limit, before)
        )
        return [manifest_of(manifest) for manifest in found]

    async def events(self, run: str, *, start: int = 0, stop: int | None = None, limit: int = 1000) -> Events:
        rows = await self._access.read(lambda connection: log.rows(connection, run, start, stop, limit))
        return [event_of(seq, row) for seq, row in rows]

    async def delete_run(self, run: str) -> bool:
        return await self._write(lambda connection: log.delete_run(connection, run))

    async def load_breakers(self, tenant: str) -> BreakerRows:
        return await self._access.read(lambda connection: log.load_breakers(connection, tenant))

    async def save_breaker(self, tenant: str, row: BreakerRow) -> None:
        await self._write(lambda connection: log.save_breaker(connection, tenant, row))

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
        """Close this process's idle connections to the file; another journal of the same file opens its own anew."""
        self._file.close()

    async def _catch_up(self) -> None:
        if await self._access.read(catalogue.is_behind):
            while await self._write(lambda connection: catalogue.catch_up(connection, _CHUNK, self._now())):
                pass  # in chunks, as above

    async def _write(self, run: Callable[[sqlite3.Connection], T], changed: Sequence[str] = ()) -> T:
        return await self._access.write(Operation(run, changed))  # type: ignore[no-any-return]


Manifests = list[RunManifest]
Events = list[Event]
BreakerRows = list[BreakerRow]
