"""The SQLite journal of an event loop: two threads do its work, and its writes share commits."""

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
from antiphon.stores._common import event_of, manifest_of
from antiphon.stores._waiters import loop_waiter
from antiphon.stores.sqlite import claims, index, log
from antiphon.stores.sqlite.executor import AsyncAccess
from antiphon.stores.sqlite.file import DatabaseFile, Operation
from antiphon.stores.sqlite.steps import CHUNK, Steps

T = TypeVar("T")


class SQLiteJournal(Steps):
    """A database file for one event loop."""

    __slots__ = ("_access",)

    def __init__(self, file: DatabaseFile, clock: Clock) -> None:
        super().__init__(file, clock)
        self._access = AsyncAccess(file)

    async def begin(self, request: ClaimRequest, events: Sequence[Row] = ()) -> Claimed | Existing:
        answer: Claimed | Existing = await self._access.write(self._begin(request, events))
        self._won = self._won + 1 if answer.__class__ is Claimed else 0
        return answer

    async def take_over(self, request: ClaimRequest, version: int, events: Sequence[Row] = ()) -> Claimed | Existing:
        return await self._access.write(self._take_over(request, version, events))  # type: ignore[no-any-return]

    async def settle(self, key: str, version: int, settlement: Settlement, events: Sequence[Row] = ()) -> int | None:
        return await self._access.write(self._settle(key, version, settlement, events))  # type: ignore[no-any-return]

    async def alias(self, key: str, identity: str, version: int) -> bool:
        return await self._write(lambda connection: claims.alias(connection, key, identity, version, self._now()))

    async def renew(self, key: str, version: int, lease_ms: int) -> bool:
        return await self._write(lambda connection: claims.renew(connection, key, version, lease_ms, self._now()))

    async def read(self, key: str, identity: str = "") -> Existing | None:
        return await self._access.read(lambda connection: claims.look_up(connection, key, identity, self._now()))

    async def wait(self, key: str, version: int, timeout_s: float) -> None:
        waiter = loop_waiter()
        poller = self._file.poller
        poller.add(key, version, waiter)
        try:
            if await self._access.read(lambda connection: claims.in_flight(connection, key, version)):
                await waiter.wait(timeout_s)
        finally:
            poller.discard(key, waiter)

    async def clear(self, key: str) -> bool:
        return await self._write(lambda connection: claims.clear(connection, key), (key,))

    async def flush(self, *, tenant: str, tool: str = "", session: str = "", prefix: str = "") -> int:
        await self._catch_up()
        which = index.Filter(tenant, tool, session, prefix)
        up_to = await self._access.read(index.newest)
        total = 0
        while True:
            keys = await self._write(lambda connection: index.flush(connection, which, up_to, CHUNK))
            self._file.poller.wake(keys)
            total += len(keys)
            if len(keys) < CHUNK:
                return total

    async def list(
        self, *, tenant: str, tool: str = "", session: str = "", state: str = "", prefix: str = "", limit: int = 100
    ) -> Records:
        await self._catch_up()
        which = index.Filter(tenant, tool, session, prefix, state)
        return await self._access.read(lambda connection: index.find(connection, which, limit, self._now()))

    async def counts(self, tenant: str) -> Mapping[tuple[str, str], int]:
        await self._catch_up()
        return await self._access.read(lambda connection: index.counts(connection, tenant, self._now()))

    async def sweep(self, limit: int = 1000) -> int:
        await self._catch_up()
        return await self._write(lambda connection: index.sweep(connection, limit, self._now()))

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

    def subscribe_breakers(self, tenant: str, callback: Told) -> Callable[[], None] | None:
        """SQLite cannot push: processes look for themselves."""
        return None

    async def ping(self) -> Mapping[str, Any]:
        started = time.perf_counter()
        await self._write(lambda connection: None)
        return self._described(started)

    async def close(self) -> None:
        """Close this process's idle connections to the file; another journal of the same file opens its own anew."""
        self._file.close()

    async def _catch_up(self) -> None:
        if await self._access.read(index.is_behind):
            while await self._write(lambda connection: index.catch_up(connection, CHUNK, self._now())):
                pass

    async def _write(self, run: Callable[[sqlite3.Connection], T], changed: Sequence[str] = ()) -> T:
        return await self._access.write(Operation(run, changed))  # type: ignore[no-any-return]
