"""Claims in one store, the run log in another: for fleets, Redis and PostgreSQL (or SQLite).

The order is claim, start event, dispatch, outcome event, settle. What a crash can leave behind is repaired or
explicit: an outcome event without a settled claim is settled from the log when the lease is over; a start event
without an outcome is an unknown (D3); a claim without a start event looks the same and is treated the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from antiphon.contract._base import UNSET
from antiphon.contract.events import RunManifest
from antiphon.contract.record import DedupeRecord
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
    StaticClaimRequest,
    Store,
    SyncJournal,
    Told,
)
from antiphon.stores._adapters import AsyncFromSync, SyncFromAsync
from antiphon.stores._settling import Settling
from antiphon.stores.composed.outcome import noted, settlement_in

Usage = Callable[[str], Any] | None
"""What a store offers beyond the port if it can tell what a tenant's records cost."""

UNKNOWN_CODE = "outcome_unknown"
_PAGE = 1000


class ComposedStore:
    """Two stores as one: *claims* keeps claims and breaker states, *log* keeps runs and their events.

    >>> from antiphon.stores import MemoryStore
    >>> ComposedStore(claims=MemoryStore(), log=MemoryStore()).url.count(" + ")
    1
    """

    in_process = False

    def __init__(self, *, claims: Store, log: Store) -> None:
        self.claims = claims
        self.log = log

    def __repr__(self) -> str:
        return f"ComposedStore(claims={self.claims!r}, log={self.log!r})"

    @property
    def url(self) -> str:
        """Where both are, without secrets."""
        return f"{self.claims.url} + {self.log.url}"

    @property
    def seal_key(self) -> Any:
        """The seal key of the store that keeps results, if it has one."""
        return getattr(self.claims, "seal_key", None)

    def open_sync(self) -> SyncComposedJournal:
        return SyncComposedJournal(self.claims.open_sync(), self.log.open_sync())

    def open_async(self) -> ComposedJournal:
        return ComposedJournal(self.claims.open_async(), self.log.open_async())


class ComposedJournal:
    """Two journals as one."""

    def __init__(self, claims: Journal, log: Journal) -> None:
        self._claims = claims
        self._log = log
        self._settling = Settling()
        self.durable = claims.durable and log.durable
        self.usage: Usage = getattr(claims, "usage", None)

    async def begin(self, request: ClaimRequest, events: Sequence[Row] = ()) -> Claimed | Existing:
        answer = await self._claims.begin(_with_run(request, events))
        return await self._answered(request, answer, events)

    async def take_over(self, request: ClaimRequest, version: int, events: Sequence[Row] = ()) -> Claimed | Existing:
        answer = await self._claims.take_over(_with_run(request, events), version)
        return await self._answered(request, answer, events)

    async def _answered(
        self, request: ClaimRequest, answer: Claimed | Existing, events: Sequence[Row]
    ) -> Claimed | Existing:
        if isinstance(answer, Existing):
            return await self._repaired(answer, request.identity)
        if events:
            try:
                await self._append(events)
            except BaseException:  # without a start event nothing may be dispatched: give the claim back
                release = Settlement("cancelled", request.template.ttl_ms, dispatched=False)
                await self._claims.settle(request.key, answer.version, release)
                raise
        return answer

    async def settle(self, key: str, version: int, settlement: Settlement, events: Sequence[Row] = ()) -> int | None:
        if events:
            rows = [*events[:-1], noted(events[-1], key, version, settlement)]
            return await self._settling.run(
                key, version, rows, self._append, lambda: self._claims.settle(key, version, settlement)
            )
        if settlement.error is not None and settlement.error[0] == UNKNOWN_CODE:
            # Somebody gives up on a worker that is gone. It may have got as far as the log.
            existing = await self._claims.read(key)
            if existing is not None and existing.current.version == version:
                settlement = await self._settlement_in_log(existing.current) or settlement
        return await self._claims.settle(key, version, settlement)

    async def _append(self, events: Sequence[Row]) -> None:
        runs: dict[str, list[Row]] = {}
        for row in events:
            runs.setdefault(row.run, []).append(row)
        for run, rows in runs.items():
            await self._log.append(run, rows)

    async def _repaired(self, answer: Existing, identity: str) -> Existing:
        """Settle a claim from the log if its worker got that far and its lease is over."""
        current = answer.current
        lock = 0 if current.lock_until_ms is UNSET else current.lock_until_ms
        if current.state == "inflight" and lock <= answer.now_ms:
            settlement = await self._settlement_in_log(current)
            if settlement is not None:
                await self._claims.settle(current.key, current.version, settlement)
                answer = await self._claims.read(current.key, identity) or answer
        own = answer.own
        return Existing(_without_run(answer.current), None if own is None else _without_run(own), answer.now_ms)

    async def _settlement_in_log(self, record: DedupeRecord) -> Settlement | None:
        """How the holder of *record* ended according to the run it belongs to."""
        run, mark, _ = record.owner.rpartition("@")
        start = 0
        while mark:
            events = await self._log.events(run, start=start, limit=_PAGE)
            for event in events:
                settlement = settlement_in(event, record.key, record.version)
                if settlement is not None:
                    return settlement
            if len(events) < _PAGE:
                break
            start += _PAGE
        return None

    async def alias(self, key: str, identity: str, version: int) -> bool:
        return await self._claims.alias(key, identity, version)

    async def renew(self, key: str, version: int, lease_ms: int) -> bool:
        return await self._claims.renew(key, version, lease_ms)

    async def read(self, key: str, identity: str = "") -> Existing | None:
        answer = await self._claims.read(key, identity)
        return None if answer is None else await self._repaired(answer, identity)

    async def wait(self, key: str, version: int, timeout_s: float) -> None:
        await self._claims.wait(key, version, timeout_s)

    async def clear(self, key: str) -> bool:
        return await self._claims.clear(key)

    async def flush(self, *, tenant: str, tool: str = "", session: str = "", prefix: str = "") -> int:
        return await self._claims.flush(tenant=tenant, tool=tool, session=session, prefix=prefix)

    async def list(
        self, *, tenant: str, tool: str = "", session: str = "", state: str = "", prefix: str = "", limit: int = 100
    ) -> Records:
        found = await self._claims.list(
            tenant=tenant, tool=tool, session=session, state=state, prefix=prefix, limit=limit
        )
        return [_without_run(record) for record in found]

    async def counts(self, tenant: str) -> Mapping[tuple[str, str], int]:
        return await self._claims.counts(tenant)

    async def sweep(self, limit: int = 1000) -> int:
        return await self._claims.sweep(limit) + await self._log.sweep(limit)

    async def open_run(self, manifest: RunManifest) -> None:
        await self._log.open_run(manifest)

    async def update_run(self, manifest: RunManifest) -> None:
        await self._log.update_run(manifest)

    async def append(self, run: str, rows: Sequence[Row]) -> int:
        return await self._log.append(run, rows)

    async def manifest(self, run: str) -> RunManifest | None:
        return await self._log.manifest(run)

    async def runs(
        self, *, tenant: str, prefix: str = "", name: str = "", status: str = "", limit: int = 50, before: str = ""
    ) -> Manifests:
        return await self._log.runs(tenant=tenant, prefix=prefix, name=name, status=status, limit=limit, before=before)

    async def events(self, run: str, *, start: int = 0, stop: int | None = None, limit: int = 1000) -> Events:
        return await self._log.events(run, start=start, stop=stop, limit=limit)

    async def delete_run(self, run: str) -> bool:
        return await self._log.delete_run(run)

    async def load_breakers(self, tenant: str) -> BreakerRows:
        return await self._claims.load_breakers(tenant)

    async def save_breaker(self, tenant: str, row: BreakerRow) -> None:
        await self._claims.save_breaker(tenant, row)

    def subscribe_breakers(self, tenant: str, callback: Told) -> Callable[[], None] | None:
        return self._claims.subscribe_breakers(tenant, callback)

    async def ping(self) -> Mapping[str, Any]:
        claims, log = await self._claims.ping(), await self._log.ping()
        latency = float(claims.get("latencyMs", 0.0)) + float(log.get("latencyMs", 0.0))
        return {"store": "composed", "durable": self.durable, "claims": claims, "log": log, "latencyMs": latency}

    async def close(self) -> None:
        try:
            await self._claims.close()
        finally:
            await self._log.close()


class SyncComposedJournal(SyncFromAsync):
    """Two synchronous journals as one."""

    def __init__(self, claims: SyncJournal, log: SyncJournal) -> None:
        super().__init__(ComposedJournal(AsyncFromSync(claims), AsyncFromSync(log)))
        self.usage: Usage = getattr(claims, "usage", None)


def _with_run(request: ClaimRequest, events: Sequence[Row]) -> ClaimRequest:
    """The record's owner, ``RUN@TOKEN/PROCESS``, names the run that the claim's events go to."""
    if not events:
        return request
    return StaticClaimRequest(
        key=request.key,
        identity=request.identity,
        template=request.template,
        idempotency_key=request.idempotency_key,
        params=request.params,
        request_id=request.request_id,
        token=f"{events[0].run}@{request.token}",
        call_id=request.call_id,
        wait_replicas=request.wait_replicas,
    )


def _without_run(record: DedupeRecord) -> DedupeRecord:
    _, mark, owner = record.owner.rpartition("@")
    return msgspec.structs.replace(record, owner=owner) if mark else record
