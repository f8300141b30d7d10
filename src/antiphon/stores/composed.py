"""Claims in one store, the run log in another: for fleets, Redis and PostgreSQL (or SQLite).

The order is claim, start event, dispatch, outcome event, settle. What a crash can leave behind is repaired or
explicit: an outcome event without a settled claim is settled from the log when the lease is over; a start event
without an outcome is an unknown (D3); a claim without a start event looks the same and is treated the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from antiphon.contract._base import UNSET
from antiphon.contract.events import Event, RunManifest
from antiphon.contract.record import DedupeRecord
from antiphon.ports import Ask, BreakerRow, Claimed, Existing, Final, Journal, Row, Store
from antiphon.stores._common import Records
from antiphon.stores._composed_outcome import final_in, noted
from antiphon.stores._settling import Settling

UNKNOWN_CODE = "outcome_unknown"
_PAGE = 1000
_OPTIONAL = frozenset(("subscribe_breakers", "usage"))
"""What a claims store may offer beyond the port."""

Manifests = list[RunManifest]
Events = list[Event]
BreakerRows = list[BreakerRow]


class ComposedStore:
    """Two stores as one: *claims* keeps claims and breaker states, *log* keeps runs and their events.

    >>> from antiphon.stores import MemoryStore
    >>> ComposedStore(claims=MemoryStore(), log=MemoryStore()).url.count(" + ")
    1
    """

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

    def open_sync(self) -> ComposedJournal:
        return ComposedJournal(self.claims.open_sync(), self.log.open_sync())

    def open_async(self) -> ComposedJournal:
        return ComposedJournal(self.claims.open_async(), self.log.open_async())


class ComposedJournal:
    """One face of a :class:`ComposedStore`."""

    def __init__(self, claims: Journal, log: Journal) -> None:
        self._claims = claims
        self._log = log
        self._settling = Settling()
        self.durable = claims.durable and log.durable

    def __getattr__(self, name: str) -> Any:
        if name in _OPTIONAL:
            return getattr(self._claims, name)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    async def begin(self, ask: Ask, events: Sequence[Row] = ()) -> Claimed | Existing:
        answer = await self._claims.begin(_with_run(ask, events))
        return await self._answered(ask, answer, events)

    async def take(self, ask: Ask, version: int, events: Sequence[Row] = ()) -> Claimed | Existing:
        answer = await self._claims.take(_with_run(ask, events), version)
        return await self._answered(ask, answer, events)

    async def _answered(self, ask: Ask, answer: Claimed | Existing, events: Sequence[Row]) -> Claimed | Existing:
        if isinstance(answer, Existing):
            return await self._repaired(answer, ask.identity)
        if events:
            try:
                await self._append(events)
            except BaseException:  # without a start event nothing may be dispatched: give the claim back
                release = Final("cancelled", ask.ttl_ms, dispatched=False)
                await self._claims.settle(ask.key, answer.version, release)
                raise
        return answer

    async def settle(self, key: str, version: int, final: Final, events: Sequence[Row] = ()) -> int | None:
        if events:
            rows = [*events[:-1], noted(events[-1], key, version, final)]
            return await self._settling.run(
                key, version, rows, self._append, lambda: self._claims.settle(key, version, final)
            )
        if final.error is not None and final.error[0] == UNKNOWN_CODE:
            # Somebody gives up on a worker that is gone. It may have got as far as the log.
            existing = await self._claims.read(key)
            if existing is not None and existing.current.version == version:
                final = await self._final_in_log(existing.current) or final
        return await self._claims.settle(key, version, final)

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
            final = await self._final_in_log(current)
            if final is not None:
                await self._claims.settle(current.key, current.version, final)
                answer = await self._claims.read(current.key, identity) or answer
        own = answer.own
        return Existing(_without_run(answer.current), None if own is None else _without_run(own), answer.now_ms)

    async def _final_in_log(self, record: DedupeRecord) -> Final | None:
        """How the holder of *record* ended according to the run it belongs to."""
        run, mark, _ = record.owner.rpartition("@")
        start = 0
        while mark:
            events = await self._log.events(run, start=start, limit=_PAGE)
            for event in events:
                final = final_in(event, record.key, record.version)
                if final is not None:
                    return final
            if len(events) < _PAGE:
                break
            start += _PAGE
        return None

    async def mark_dispatched(self, key: str, version: int) -> bool:
        return await self._claims.mark_dispatched(key, version)

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

    async def ping(self) -> Mapping[str, Any]:
        claims, log = await self._claims.ping(), await self._log.ping()
        latency = float(claims.get("latencyMs", 0.0)) + float(log.get("latencyMs", 0.0))
        return {"store": "composed", "durable": self.durable, "claims": claims, "log": log, "latencyMs": latency}

    async def close(self) -> None:
        try:
            await self._claims.close()
        finally:
            await self._log.close()


def _with_run(ask: Ask, events: Sequence[Row]) -> Ask:
    """The claim names the run its events go to: the way back to the log. ``RUN@`` stands before the owner."""
    return ask._replace(owner=f"{events[0].run}@{ask.owner}") if events else ask


def _without_run(record: DedupeRecord) -> DedupeRecord:
    _, mark, owner = record.owner.rpartition("@")
    return msgspec.structs.replace(record, owner=owner) if mark else record
