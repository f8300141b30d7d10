"""One variant of a journal behind the other: a store whose steps are written once serves threads and loops."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from antiphon._drive import drive
from antiphon.contract.events import RunManifest
from antiphon.ports import (
    BreakerRow,
    BreakerRows,
    Claimed,
    ClaimRequest,
    Events,
    Existing,
    Journal,
    Manifests,
    Records,
    Row,
    Settlement,
    SyncJournal,
    Told,
)


class SyncFromAsync:
    """A synchronous journal on coroutines that never suspend."""

    __slots__ = ("__weakref__", "_journal", "durable")

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self.durable = journal.durable

    def begin(self, request: ClaimRequest, events: Sequence[Row] = ()) -> Claimed | Existing:
        return drive(self._journal.begin(request, events))

    def take_over(self, request: ClaimRequest, version: int, events: Sequence[Row] = ()) -> Claimed | Existing:
        return drive(self._journal.take_over(request, version, events))

    def settle(self, key: str, version: int, settlement: Settlement, events: Sequence[Row] = ()) -> int | None:
        return drive(self._journal.settle(key, version, settlement, events))

    def alias(self, key: str, identity: str, version: int) -> bool:
        return drive(self._journal.alias(key, identity, version))

    def renew(self, key: str, version: int, lease_ms: int) -> bool:
        return drive(self._journal.renew(key, version, lease_ms))

    def read(self, key: str, identity: str = "") -> Existing | None:
        return drive(self._journal.read(key, identity))

    def wait(self, key: str, version: int, timeout_s: float) -> None:
        drive(self._journal.wait(key, version, timeout_s))

    def clear(self, key: str) -> bool:
        return drive(self._journal.clear(key))

    def flush(self, *, tenant: str, tool: str = "", session: str = "", prefix: str = "") -> int:
        return drive(self._journal.flush(tenant=tenant, tool=tool, session=session, prefix=prefix))

    def list(
        self, *, tenant: str, tool: str = "", session: str = "", state: str = "", prefix: str = "", limit: int = 100
    ) -> Records:
        return drive(
            self._journal.list(tenant=tenant, tool=tool, session=session, state=state, prefix=prefix, limit=limit)
        )

    def counts(self, tenant: str) -> Mapping[tuple[str, str], int]:
        return drive(self._journal.counts(tenant))

    def sweep(self, limit: int = 1000) -> int:
        return drive(self._journal.sweep(limit))

    def open_run(self, manifest: RunManifest) -> None:
        drive(self._journal.open_run(manifest))

    def update_run(self, manifest: RunManifest) -> None:
        drive(self._journal.update_run(manifest))

    def append(self, run: str, rows: Sequence[Row]) -> int:
        return drive(self._journal.append(run, rows))

    def manifest(self, run: str) -> RunManifest | None:
        return drive(self._journal.manifest(run))

    def runs(
        self, *, tenant: str, prefix: str = "", name: str = "", status: str = "", limit: int = 50, before: str = ""
    ) -> Manifests:
        return drive(
            self._journal.runs(tenant=tenant, prefix=prefix, name=name, status=status, limit=limit, before=before)
        )

    def events(self, run: str, *, start: int = 0, stop: int | None = None, limit: int = 1000) -> Events:
        return drive(self._journal.events(run, start=start, stop=stop, limit=limit))

    def delete_run(self, run: str) -> bool:
        return drive(self._journal.delete_run(run))

    def load_breakers(self, tenant: str) -> BreakerRows:
        return drive(self._journal.load_breakers(tenant))

    def save_breaker(self, tenant: str, row: BreakerRow) -> None:
        drive(self._journal.save_breaker(tenant, row))

    def subscribe_breakers(self, tenant: str, callback: Told) -> Callable[[], None] | None:
        return self._journal.subscribe_breakers(tenant, callback)

    def ping(self) -> Mapping[str, Any]:
        return drive(self._journal.ping())

    def close(self) -> None:
        drive(self._journal.close())


class AsyncFromSync:
    """A journal for a loop whose steps run at once, in the calling thread."""

    __slots__ = ("__weakref__", "_journal", "durable")

    def __init__(self, journal: SyncJournal) -> None:
        self._journal = journal
        self.durable = journal.durable

    async def begin(self, request: ClaimRequest, events: Sequence[Row] = ()) -> Claimed | Existing:
        return self._journal.begin(request, events)

    async def take_over(self, request: ClaimRequest, version: int, events: Sequence[Row] = ()) -> Claimed | Existing:
        return self._journal.take_over(request, version, events)

    async def settle(self, key: str, version: int, settlement: Settlement, events: Sequence[Row] = ()) -> int | None:
        return self._journal.settle(key, version, settlement, events)

    async def alias(self, key: str, identity: str, version: int) -> bool:
        return self._journal.alias(key, identity, version)

    async def renew(self, key: str, version: int, lease_ms: int) -> bool:
        return self._journal.renew(key, version, lease_ms)

    async def read(self, key: str, identity: str = "") -> Existing | None:
        return self._journal.read(key, identity)

    async def wait(self, key: str, version: int, timeout_s: float) -> None:
        self._journal.wait(key, version, timeout_s)

    async def clear(self, key: str) -> bool:
        return self._journal.clear(key)

    async def flush(self, *, tenant: str, tool: str = "", session: str = "", prefix: str = "") -> int:
        return self._journal.flush(tenant=tenant, tool=tool, session=session, prefix=prefix)

    async def list(
        self, *, tenant: str, tool: str = "", session: str = "", state: str = "", prefix: str = "", limit: int = 100
    ) -> Records:
        return self._journal.list(tenant=tenant, tool=tool, session=session, state=state, prefix=prefix, limit=limit)

    async def counts(self, tenant: str) -> Mapping[tuple[str, str], int]:
        return self._journal.counts(tenant)

    async def sweep(self, limit: int = 1000) -> int:
        return self._journal.sweep(limit)

    async def open_run(self, manifest: RunManifest) -> None:
        self._journal.open_run(manifest)

    async def update_run(self, manifest: RunManifest) -> None:
        self._journal.update_run(manifest)

    async def append(self, run: str, rows: Sequence[Row]) -> int:
        return self._journal.append(run, rows)

    async def manifest(self, run: str) -> RunManifest | None:
        return self._journal.manifest(run)

    async def runs(
        self, *, tenant: str, prefix: str = "", name: str = "", status: str = "", limit: int = 50, before: str = ""
    ) -> Manifests:
        return self._journal.runs(tenant=tenant, prefix=prefix, name=name, status=status, limit=limit, before=before)

    async def events(self, run: str, *, start: int = 0, stop: int | None = None, limit: int = 1000) -> Events:
        return self._journal.events(run, start=start, stop=stop, limit=limit)

    async def delete_run(self, run: str) -> bool:
        return self._journal.delete_run(run)

    async def load_breakers(self, tenant: str) -> BreakerRows:
        return self._journal.load_breakers(tenant)

    async def save_breaker(self, tenant: str, row: BreakerRow) -> None:
        self._journal.save_breaker(tenant, row)

    def subscribe_breakers(self, tenant: str, callback: Told) -> Callable[[], None] | None:
        return self._journal.subscribe_breakers(tenant, callback)

    async def ping(self) -> Mapping[str, Any]:
        return self._journal.ping()

    async def close(self) -> None:
        self._journal.close()
