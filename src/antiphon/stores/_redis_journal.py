"""The journal on Redis, written once as coroutines: those of the synchronous variant never suspend."""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, NamedTuple

from antiphon.contract.events import RunManifest
from antiphon.ports import (
    BreakerRow,
    BreakerRows,
    Claimed,
    ClaimRequest,
    Events,
    Existing,
    Manifests,
    Records,
    Row,
    Settlement,
    Told,
)
from antiphon.stores._redis_admin import ClaimAdmin
from antiphon.stores._redis_claims import ClaimSteps
from antiphon.stores._redis_keys import Names
from antiphon.stores._redis_link import Link, MakeNode
from antiphon.stores._redis_log import BreakerStates, RunLog, breaker_of
from antiphon.stores._redis_push import Hub
from antiphon.stores._redis_reads import Reads
from antiphon.stores._redis_url import Target
from antiphon.stores._settling import Settling


class Options(NamedTuple):
    """What a :class:`~antiphon.stores.RedisStore` was told beyond its URL."""

    wait_replicas: int
    wait_ms: int
    patience_s: float


class RedisJournal:
    """Claims, run log and breaker states; the variants differ in how they send, wait and share reads."""

    durable = True

    def __init__(self, target: Target, names: Names, options: Options, make: MakeNode) -> None:
        self._target = target
        self._names = names
        self._link = Link(target, make, options.patience_s)
        self.steps = ClaimSteps(self._link, names, options.wait_replicas, options.wait_ms)
        self._log = RunLog(self._link, names, self.steps.nonce)
        self._breakers = BreakerStates(self._link, names)
        self._admin = ClaimAdmin(self._link, names, self._breakers)
        self._settling = Settling()
        self._reads: Reads
        self._hub: Hub

    def begin(self, request: ClaimRequest, events: Sequence[Row] = ()) -> Coroutine[Any, Any, Claimed | Existing]:
        return self._claim(request, None, events) if events else self.steps.claim(request, None)

    def take_over(
        self, request: ClaimRequest, version: int, events: Sequence[Row] = ()
    ) -> Coroutine[Any, Any, Claimed | Existing]:
        return self._claim(request, version, events) if events else self.steps.claim(request, version)

    async def _claim(self, request: ClaimRequest, version: int | None, events: Sequence[Row]) -> Claimed | Existing:
        answer = await self.steps.claim(request, version)
        if events and answer.__class__ is Claimed:
            await self._write(events)
        return answer

    def settle(
        self, key: str, version: int, settlement: Settlement, events: Sequence[Row] = ()
    ) -> Coroutine[Any, Any, int | None]:
        if not events:
            return self.steps.settle(key, version, settlement)
        return self._settling.run(
            key, version, events, self._write, lambda: self.steps.settle(key, version, settlement)
        )

    async def _write(self, events: Sequence[Row]) -> None:
        runs: dict[str, list[Row]] = {}
        for row in events:
            runs.setdefault(row.run, []).append(row)
        for run, rows in runs.items():
            await self._log.append(run, rows)

    async def alias(self, key: str, identity: str, version: int) -> bool:
        return await self.steps.alias(key, identity, version)

    async def renew(self, key: str, version: int, lease_ms: int) -> bool:
        return await self.steps.renew(key, version, lease_ms)

    async def read(self, key: str, identity: str = "") -> Existing | None:
        return await self._reads.read(key, identity)

    async def wait(self, key: str, version: int, timeout_s: float) -> None:
        await self._hub.wait(key, version, timeout_s)

    async def clear(self, key: str) -> bool:
        return await self.steps.clear(key)

    async def flush(self, *, tenant: str, tool: str = "", session: str = "", prefix: str = "") -> int:
        return await self._admin.flush(tenant, tool, session, prefix)

    async def list(
        self, *, tenant: str, tool: str = "", session: str = "", state: str = "", prefix: str = "", limit: int = 100
    ) -> Records:
        return await self._admin.newest(tenant, tool, session, state, prefix, limit)

    async def counts(self, tenant: str) -> Mapping[tuple[str, str], int]:
        return await self._admin.counts(tenant)

    async def sweep(self, limit: int = 1000) -> int:
        return await self._admin.sweep(limit)

    async def usage(self, tenant: str) -> Mapping[str, float]:
        """How many records a tenant has and what one costs the server (for ``doctor``)."""
        return await self._admin.usage(tenant)

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
        return await self._log.runs(tenant, prefix, name, status, limit, before)

    async def events(self, run: str, *, start: int = 0, stop: int | None = None, limit: int = 1000) -> Events:
        return await self._log.events(run, start, stop, limit)

    async def delete_run(self, run: str) -> bool:
        return await self._log.delete_run(run)

    async def load_breakers(self, tenant: str) -> BreakerRows:
        return await self._breakers.load(tenant)

    async def save_breaker(self, tenant: str, row: BreakerRow) -> None:
        await self._breakers.save(tenant, row)

    def subscribe_breakers(self, tenant: str, callback: Told) -> Callable[[], None]:
        """Call *callback* with each saved row of *tenant*, own ones included; returns how to stop.

        It is called from the subscriber's thread, or in the event loop.
        """
        channel = self._names.breakers(tenant)[1]

        async def reload() -> None:
            for row in await self._breakers.load(tenant):
                callback(row)

        return self._hub.listen(channel, lambda message: callback(breaker_of(message)), self._reload_with(reload))

    def _reload_with(self, reload: Callable[[], Any]) -> Callable[[], Any]:
        return reload

    async def ping(self) -> Mapping[str, Any]:
        """Reach the server; ``warnings`` names what weakens the guarantees."""
        start = time.perf_counter()
        await self._link.everywhere("PING")
        latency = (time.perf_counter() - start) * 1000
        about: dict[str, str] = {}
        for text in await self._link.everywhere("INFO"):
            lines = (line.partition(":") for line in text.decode().splitlines() if ":" in line)
            about.update((name, value) for name, _, value in lines)
        return _report(self._target, about, latency)

    async def close(self) -> None:
        await self._hub.close()
        await self._link.close()


def _report(target: Target, about: Mapping[str, str], latency_ms: float) -> Mapping[str, Any]:
    policy = about.get("maxmemory_policy", "unknown")
    append_only = about.get("aof_enabled") == "1"
    warnings = []
    if policy not in ("noeviction", "unknown") and about.get("maxmemory", "0") != "0":
        warnings.append(f"maxmemory-policy is {policy}: Redis may forget claims; set noeviction")
    if not append_only:
        warnings.append("appendonly is off: a restart forgets claims")
    if about.get("role") not in ("master", None):
        warnings.append("this is a replica: claims cannot be written")
    return {
        "store": "redis",
        "url": target.safe_url,
        "version": about.get("valkey_version") or about.get("redis_version", "unknown"),
        "server": "valkey" if "valkey_version" in about else "redis",
        "durable": True,
        "appendonly": append_only,
        "replicas": int(about.get("connected_slaves", 0)),
        "maxmemoryPolicy": policy,
        "latencyMs": round(latency_ms, 3),
        "warnings": warnings,
    }
