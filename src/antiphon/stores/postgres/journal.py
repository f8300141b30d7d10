"""The journal on PostgreSQL: each claim step is one statement, one round trip, one transaction."""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import groupby
from typing import Any

from antiphon._daemon import renewed_after_fork
from antiphon.contract.record import DedupeRecord
from antiphon.ports import Begun, BreakerCallback, Claimed, ClaimRequest, Existing, Pinned, Records, Row, Settlement
from antiphon.stores._common import ClaimQuery
from antiphon.stores._reads import Answers, TaskReads, ThreadReads
from antiphon.stores.postgres.connection import Rows
from antiphon.stores.postgres.engine import AsyncEngine, Engine, Step
from antiphon.stores.postgres.log import PostgresLog, query_params
from antiphon.stores.postgres.statements import (
    OP,
    VERSION,
    claim_params,
    from_text,
    log_params,
    new_op,
    record_of,
    settle_params,
    text_array,
)
from antiphon.stores.postgres.wait import Subscriber, acquire_subscriber, release_subscriber


class PostgresJournal(PostgresLog):
    """A journal on one pool. Written once: on the engine for threads its coroutines never suspend."""

    durable = True

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self._subscriber: Subscriber | None = None
        self._leave: weakref.finalize[..., PostgresJournal] | None = None
        self._reads = (TaskReads if isinstance(engine, AsyncEngine) else ThreadReads)(self._read_many)
        renewed_after_fork(self, PostgresJournal.after_fork)

    def after_fork(self) -> None:
        """In the child: a parent thread may have been reading."""
        if isinstance(self._reads, ThreadReads):
            self._reads = ThreadReads(self._read_many)

    async def begin(self, request: ClaimRequest, events: Sequence[Row] = ()) -> Begun:
        op, pin = new_op(), request.pin
        params = claim_params(request, op)
        while True:
            rows = await self._step("begin" if pin is None else "begin_pinned", params, events, won_only=True)
            now, version = rows[0][:2]
            if version is not None:
                return Claimed(version, now)
            if pin is not None and (mark := rows[0][-1]) != pin[1]:
                if mark is None:
                    continue
                return Pinned(mark)
            for row in rows:
                if row[3 + OP] == op:  # ours: the reply to the first attempt was lost
                    return Claimed(row[3 + VERSION], now)
            if rows[0][3] is not None:
                return _existing(rows)
            # Neither won nor found: another caller was faster by less than our snapshot shows.

    async def take_over(self, request: ClaimRequest, version: int, events: Sequence[Row] = ()) -> Begun:
        params = {**claim_params(request, new_op()), "version": version, "channel": self._channel}
        while True:
            now, won, _ = (await self._step("take_over", params, events, won_only=True))[0]
            if won is not None:
                return Claimed(won, now)
            existing = await self.read(request.key, request.identity)
            if existing is not None:
                return existing

    async def settle(self, key: str, version: int, settlement: Settlement, events: Sequence[Row] = ()) -> int | None:
        params = {**settle_params(key, version, settlement), "channel": self._channel}

        async def send(op: int) -> tuple[int | None]:
            numbered = {**params, "op": op}
            rows = await self._step("settle", numbered, events, won_only=False)
            rows = rows or await self._engine.run("settle_earlier", numbered, prepare=False)
            return (rows[0][0] if rows else None,)

        async def took_effect(op: int) -> tuple[int | None] | None:
            run = events[0].run if events else ""
            first, settled = (await self._engine.run("took_effect", {"op": op, "key": key, "run": run}))[0]
            return None if first is None and settled is None else (settled,)

        return (await self._engine.at_most_once(send, took_effect))[0]

    async def alias(self, key: str, identity: str, version: int) -> bool:
        params = {"key": key, "identity": identity, "version": version}
        return bool(await self._engine.run("alias", params))

    async def renew(self, key: str, version: int, lease_ms: int) -> bool:
        rows = await self._engine.run("renew", {"key": key, "version": version, "lease_ms": lease_ms})
        return bool(rows)

    async def read(self, key: str, identity: str = "") -> Existing | None:
        return await self._reads.read(key, identity)

    async def clear(self, key: str, version: int | None = None) -> bool:
        params = {"key": key, "version": -1 if version is None else version, "channel": self._channel}
        return bool(await self._engine.run("clear", params))

    async def list(self, **query: Any) -> Records:
        rows = await self._engine.run("list", query_params(ClaimQuery(**query)), prepare=False)
        return [record_of(row) for row in rows]

    async def earlier(self, *, tenant: str, key: str = "") -> Records:
        rows = await self._engine.run("earlier", {"tenant": tenant, "key": key}, prepare=False)
        return [record_of(row) for row in rows]

    async def forgotten(self, request: ClaimRequest, version: int) -> bool:
        template = request.template
        place = {"tenant": template.tenant, "workspace": template.workspace}
        params = {**place, "key": request.key, "version": version}
        rows = await self._engine.run("forgotten", params, prepare=False)
        return bool(rows[0][0])

    async def counts(self, tenant: str) -> Mapping[tuple[str, str], int]:
        rows = await self._engine.run("counts", {"tenant": tenant}, prepare=False)
        return {(from_text(tool), state): number for tool, state, number in rows}

    async def tenants(self) -> Collection[str]:
        return [from_text(tenant) for (tenant,) in await self._engine.run("tenants", {}, prepare=False)]

    async def wait(self, key: str, version: int, timeout_s: float) -> None:
        waiter = self._engine.new_waiter()
        subscriber = self._shared()
        subscriber.add(key, version, waiter)
        try:
            await waiter.wait(timeout_s)
        finally:
            subscriber.discard(key, version, waiter)

    async def sweep(self, limit: int = 1000) -> int:
        await self._sweep_runs()
        await self._sweep_breakers()
        params = {"limit": limit, "channel": self._channel}
        dropped = len(await self._engine.run("sweep_claims", params, prepare=False))
        if dropped < limit:
            rows = await self._engine.run("sweep_executions", {"limit": limit - dropped}, prepare=False)
            dropped += len(rows)
        await self._engine.run("sweep_identities", {"limit": limit}, prepare=False)
        return dropped

    def subscribe_breakers(self, tenant: str, callback: BreakerCallback) -> Callable[[], None]:
        """Call *callback* with every breaker of *tenant*, now and when one changes; returns a function that stops it.

        It is called from the listener's thread, or in the event loop.
        """
        return self._shared().subscribe(tenant, self._engine.on_loop(callback))

    async def ping(self) -> Mapping[str, Any]:
        start = time.perf_counter()
        await self._engine.run("now", {})
        latency = (time.perf_counter() - start) * 1000
        version, _, read_only, synchronous, fsync, database = (await self._engine.run("server", {}, prepare=False))[0]
        warnings = []
        if fsync != "on":
            warnings.append("fsync is off: a crash of the server can lose claims or damage the database")
        if synchronous == "off":
            warnings.append("synchronous_commit is off: a crash of the server loses the claims of the last moments")
        return {
            "store": "postgres",
            "version": version,
            "database": database,
            "schema": self._engine.options.schema,
            "durable": self.durable and not warnings,
            "fsync": fsync == "on",
            "synchronousCommit": synchronous,
            "readOnly": read_only,
            "latencyMs": round(latency, 3),
            "warnings": warnings,
        }

    async def close(self) -> None:
        self._subscriber = None
        if self._leave is not None:
            self._leave()
        await self._engine.close()

    def _shared(self) -> Subscriber:
        if self._subscriber is None or self._subscriber.pid != os.getpid():
            self._subscriber = acquire_subscriber(self._engine.options)
            self._leave = weakref.finalize(self, release_subscriber, self._subscriber)
        return self._subscriber

    async def _step(self, name: str, params: dict[str, Any], events: Sequence[Row], *, won_only: bool) -> Rows:
        """Run a claim statement with its events; repeating it is harmless unless events are written either way."""
        once = not won_only
        if not events:
            return await self._engine.run(name + "_bare", params, once=once)
        first, *others = [(run, list(rows)) for run, rows in groupby(events, key=lambda row: row.run)]
        tenant, workspace = params.get("tenant", "default"), params.get("workspace", "default")
        params = {**log_params(*first, tenant, workspace), **params}
        if not others:
            return await self._engine.run(name, params, once=once)

        def then(rows: Rows) -> list[Step]:
            if won_only and rows[0][1] is None:
                return []
            return [("append_also", {**log_params(*other, tenant, workspace), "op": params["op"]}) for other in others]

        return await self._engine.run(name, params, then=then, once=once)

    async def _read_many(self, key: str, identities: Sequence[str]) -> Answers:
        rows = await self._engine.run("read", {"key": key, "identities": text_array(identities)})
        current: DedupeRecord | None = None
        own: dict[str, DedupeRecord] = {}
        for _, identity, sharers, *row in rows:
            record = record_of(row)
            if identity is not None:
                own.setdefault(from_text(identity), record)
                continue
            current = record
            own |= dict.fromkeys([record.request.identity, *map(from_text, sharers or ())], record)
        answers: Answers = {}
        for identity in identities:
            found = own.get(identity)
            seen = current or found  # the record may have expired before this earlier execution of it did
            answers[identity] = None if seen is None else Existing(seen, found, rows[0][0])
        return answers


def _existing(rows: Rows) -> Existing:
    """What ``begin`` found: the live record, if any, and the requesting identity's earlier execution, if any."""
    now = rows[0][0]
    found = {row[2]: record_of(row[3 : 4 + OP]) for row in rows}
    current = found.get(True) or found.get(False) or found[None]
    return Existing(current, current if True in found else found.get(None), now)
