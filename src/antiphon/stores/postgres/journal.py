"""Claims, run log and breakers on PostgreSQL."""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Callable, Mapping
from typing import Any

from antiphon.ports import Told
from antiphon.stores.postgres.claims import PostgresClaims
from antiphon.stores.postgres.engine import Engine
from antiphon.stores.postgres.log import PostgresLog
from antiphon.stores.postgres.wait import Subscriber, acquire_subscriber, release_subscriber


class PostgresJournal(PostgresClaims, PostgresLog):
    """A journal over one pool. Written once: on the engine for threads its coroutines never suspend."""

    durable = True

    def __init__(self, engine: Engine) -> None:
        PostgresClaims.__init__(self, engine)
        PostgresLog.__init__(self, engine)
        self._subscriber: Subscriber | None = None
        self._leave: weakref.finalize[..., PostgresJournal] | None = None

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
        return await self._sweep_claims(limit)

    def subscribe_breakers(self, tenant: str, callback: Told) -> Callable[[], None]:
        """Call *callback* with every breaker of *tenant*, now and when one changes; returns how to stop.

        It is called from the listener's thread, or in the event loop.
        """
        return self._shared().subscribe(tenant, self._engine.on_loop(callback))

    async def ping(self) -> Mapping[str, Any]:
        start = time.perf_counter()
        await self._engine.run("now", {})
        latency = (time.perf_counter() - start) * 1000
        version, _, recovering, synchronous, fsync, database = (await self._engine.run("server", {}, prepare=False))[0]
        return {
            "store": "postgres",
            "version": version,
            "database": database,
            "schema": self._engine.options.schema,
            "durable": self.durable,
            "fsync": fsync == "on",
            "synchronousCommit": synchronous,
            "readOnly": recovering,
            "latencyMs": round(latency, 3),
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
