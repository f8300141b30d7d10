"""The journals on Redis, written once as coroutines: those of the synchronous variant never suspend."""

from __future__ import annotations

import asyncio
import os
import threading
import time
import weakref
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from antiphon._drive import drive
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
from antiphon.stores._adapters import SyncFromAsync
from antiphon.stores._settling import Settling
from antiphon.stores.redis.admin import ClaimAdmin
from antiphon.stores.redis.claims import ClaimSteps
from antiphon.stores.redis.client import AsyncClient, BlockingClient
from antiphon.stores.redis.errors import closed
from antiphon.stores.redis.keys import Names
from antiphon.stores.redis.log import BreakerStates, RunLog, breaker_of
from antiphon.stores.redis.reads import SharedReads
from antiphon.stores.redis.subscriber import Subscriber
from antiphon.stores.redis.url import Target

T = TypeVar("T")


class Options(NamedTuple):
    """What a :class:`~antiphon.stores.RedisStore` was told beyond its URL."""

    wait_replicas: int
    wait_ms: int
    retry_timeout_s: float


class RedisJournal:
    """Claims, run log and breaker states; the variants differ in how they send, wait and share reads."""

    durable = True

    def __init__(self, client: AsyncClient | BlockingClient, names: Names, options: Options) -> None:
        self._client = client
        self._names = names
        self.steps = ClaimSteps(client, names, options.wait_replicas, options.wait_ms)
        self._log = RunLog(client, names, self.steps.nonce)
        self._breakers = BreakerStates(client, names)
        self._admin = ClaimAdmin(client, names, self._breakers)
        self._settling = Settling()

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

    async def ping(self) -> Mapping[str, Any]:
        """Reach the server; ``warnings`` names what weakens the guarantees."""
        start = time.perf_counter()
        await self._client.on_all("PING")
        latency = (time.perf_counter() - start) * 1000
        about: dict[str, str] = {}
        for info in await self._client.on_all("INFO"):
            about.update(_fields(info))
        return _report(self._client.target, about, latency)


class AsyncRedisJournal(RedisJournal):
    """A journal of one event loop: one pipelined connection and one subscriber."""

    def __init__(self, target: Target, names: Names, options: Options) -> None:
        client = AsyncClient(target, options.retry_timeout_s)
        super().__init__(client, names, options)
        self._tasks: set[asyncio.Task[None]] = set()
        self.steps.spawn = self._spawn
        self._reads = SharedReads(self.steps.read)
        self._subscriber = Subscriber(client.pubsub, self.steps.flag, lambda key: names.shard(key).channel)

    async def read(self, key: str, identity: str = "") -> Existing | None:
        return await self._reads.read(key, identity)

    async def wait(self, key: str, version: int, timeout_s: float) -> None:
        await self._subscriber.wait(key, version, timeout_s)

    def subscribe_breakers(self, tenant: str, callback: Told) -> Callable[[], None]:
        """Call *callback* in the event loop with each saved row of *tenant*, own ones included; returns how to stop."""

        async def reload() -> None:
            for row in await self._breakers.load(tenant):
                callback(row)

        channel = self._names.breakers(tenant)[1]
        return self._subscriber.listen(channel, lambda message: callback(breaker_of(message)), reload)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=1.0)
        await self._subscriber.close()
        await self._client.close()


class BlockingJournal(RedisJournal):
    """Coroutines that never suspend, on blocking connections; a thread subscribes once somebody waits."""

    def __init__(self, target: Target, names: Names, options: Options) -> None:
        self._blocking = BlockingClient(target, options.retry_timeout_s)
        super().__init__(self._blocking, names, options)
        self._open = lambda: AsyncRedisJournal(target, names, options)
        self._background: _Background | None = None
        self._starting = threading.Lock()
        self._closed = False
        _journals.add(self)

    async def read(self, key: str, identity: str = "") -> Existing | None:
        background = self._background
        if background is not None and not background.is_current():  # a woken crowd of threads reads once
            return background.run(lambda journal: journal.read(key, identity))
        return (await self.steps.read(key, (identity,)))[identity]

    async def wait(self, key: str, version: int, timeout_s: float) -> None:
        self._in_background().run(lambda journal: journal.wait(key, version, timeout_s))

    def subscribe_breakers(self, tenant: str, callback: Told) -> Callable[[], None]:
        """Call *callback* in the subscriber's thread with each saved row of *tenant*; returns how to stop."""
        background = self._in_background()

        async def subscribe(journal: AsyncRedisJournal) -> Callable[[], None]:
            return journal.subscribe_breakers(tenant, callback)

        stop = background.run(subscribe)
        return lambda: background.post(stop)

    def _in_background(self) -> _Background:
        with self._starting:
            if self._closed:
                raise closed()
            if self._background is None:
                self._background = _Background(self._open)
            return self._background

    def after_fork(self) -> None:
        """In the child: leave the parent's connections alone, and have threads and locks of our own."""
        self.steps.new_nonces()
        self._blocking.after_fork()
        self._background = None
        self._starting = threading.Lock()

    async def close(self) -> None:
        with self._starting:
            self._closed = True
            background = self._background
        if background is not None:
            background.close()
        await self._client.close()


class SyncRedisJournal(SyncFromAsync):
    """A journal for threads."""

    def __init__(self, target: Target, names: Names, options: Options) -> None:
        self._blocking = BlockingJournal(target, names, options)
        super().__init__(self._blocking)

    def usage(self, tenant: str) -> Mapping[str, float]:
        """How many records a tenant has and what one costs the server (for ``doctor``)."""
        return drive(self._blocking.usage(tenant))


class _Background:
    """A thread with an event loop and an asynchronous journal, which waits for all threads of the process."""

    def __init__(self, open_journal: Callable[[], AsyncRedisJournal]) -> None:
        self._loop = asyncio.new_event_loop()
        self._open = open_journal
        self._journal: AsyncRedisJournal | None = None
        self._stopped = asyncio.Event()
        self._thread = threading.Thread(target=self._serve, name="antiphon-redis-subscriber", daemon=True)
        self._thread.start()

    def run(self, work: Callable[[AsyncRedisJournal], Coroutine[Any, Any, T]]) -> T:
        """The result of *work*, which runs in the loop of the thread; this thread waits."""
        future = asyncio.run_coroutine_threadsafe(self._with_journal(work), self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def post(self, function: Callable[[], None]) -> None:
        """Call *function* in the loop of the thread."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(function)

    def is_current(self) -> bool:
        return threading.current_thread() is self._thread

    def close(self) -> None:
        self.post(self._stopped.set)
        if not self.is_current():
            self._thread.join(timeout=2.0)

    def _serve(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._main())

    async def _main(self) -> None:
        await self._stopped.wait()
        if self._journal is not None:
            await self._journal.close()

    async def _with_journal(self, work: Callable[[AsyncRedisJournal], Coroutine[Any, Any, T]]) -> T:
        if self._journal is None:
            self._journal = self._open()
        return await work(self._journal)


_journals: weakref.WeakSet[BlockingJournal] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for journal in tuple(_journals):
        journal.after_fork()


os.register_at_fork(after_in_child=_after_fork_in_child)


def _fields(info: Any) -> Mapping[str, str]:
    """The fields of ``INFO``: a text, or parsed by redis-py."""
    if isinstance(info, dict):
        return {name: str(value) for name, value in info.items()}
    lines = (line.partition(":") for line in info.decode().splitlines() if ":" in line)
    return {name: value for name, _, value in lines}


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
