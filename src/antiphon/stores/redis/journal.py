"""The journals on Redis, written once as coroutines: those of the synchronous variant never suspend."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Collection, Coroutine, Mapping
from queue import SimpleQueue
from typing import Any, TypeVar

from antiphon._daemon import renewed_after_fork
from antiphon._drive import drive
from antiphon.ports import BreakerCallback, Existing
from antiphon.stores._adapters import SyncFromAsync
from antiphon.stores._common import Settling
from antiphon.stores._reads import TaskReads
from antiphon.stores.redis.claims import RedisClaims
from antiphon.stores.redis.client import AsyncClient, BlockingClient, closed
from antiphon.stores.redis.index import RedisIndex
from antiphon.stores.redis.log import breaker_of
from antiphon.stores.redis.schema import Names, Options
from antiphon.stores.redis.url import Target
from antiphon.stores.redis.wait import Subscriber

T = TypeVar("T")


class RedisJournal(RedisClaims, RedisIndex):
    """Claims, run log and breaker states; the variants differ in how they send, wait and share reads."""

    durable = True

    async def sweep(self, limit: int = 1000) -> int:
        tenants = await self.tenants()
        for tenant in tenants:
            await self._sweep_breakers(tenant)
        return await self._sweep_claims(tenants, limit)

    async def tenants(self) -> Collection[str]:
        return [name.decode() for name in await self._client.execute(("SMEMBERS", self._names.tenants))]

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

    def __init__(self, target: Target, names: Names, options: Options, settling: Settling) -> None:
        client = AsyncClient(target, options.retry_timeout_s)
        super().__init__(client, names, options, settling)
        self._tasks: set[asyncio.Task[None]] = set()
        self._reads = TaskReads(self._read_many)
        self._subscriber = Subscriber(
            client.pubsub, self._flag, lambda key: names.shard(key).channel, is_lossy=lambda: client.slots
        )

    async def read(self, key: str, identity: str = "") -> Existing | None:
        return await self._reads.read(key, identity)

    async def wait(self, key: str, version: int, timeout_s: float) -> None:
        await self._subscriber.wait(key, version, timeout_s)

    def subscribe_breakers(self, tenant: str, callback: BreakerCallback) -> Callable[[], None]:
        """Call *callback* in the event loop with each saved row of *tenant*, including ours; returns how to stop."""

        async def reload() -> None:
            for row in await self.load_breakers(tenant):
                callback(row)

        channel = self._names.breakers(tenant)[1]
        return self._subscriber.listen(channel, lambda message: callback(breaker_of(message)), reload)

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=1.0)
        await self._subscriber.close()
        await self._client.close()


class BlockingJournal(RedisJournal):
    """Coroutines that never suspend, on blocking connections; a thread subscribes once there is a waiter."""

    def __init__(self, target: Target, names: Names, options: Options, settling: Settling) -> None:
        self._blocking = BlockingClient(target, options.retry_timeout_s)
        super().__init__(self._blocking, names, options, settling)
        self._open = lambda: AsyncRedisJournal(target, names, options, settling)
        self._background: _Background | None = None
        self._starting = threading.Lock()
        self._closed = False
        renewed_after_fork(self, BlockingJournal.after_fork)

    async def read(self, key: str, identity: str = "") -> Existing | None:
        background = self._background
        if background is not None and not background.is_current():  # a woken crowd of threads reads once
            return background.run(lambda journal: journal.read(key, identity))
        return (await self._read_many(key, (identity,)))[identity]

    async def wait(self, key: str, version: int, timeout_s: float) -> None:
        self._in_background().run(lambda journal: journal.wait(key, version, timeout_s))

    def subscribe_breakers(self, tenant: str, callback: BreakerCallback) -> Callable[[], None]:
        """Call *callback* in the subscriber's thread with each saved row of *tenant*; returns a stop function."""
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
        """In the child: leave the parent's connections alone, and create new threads and locks."""
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

    def __init__(self, target: Target, names: Names, options: Options, settling: Settling) -> None:
        self._blocking = BlockingJournal(target, names, options, settling)
        super().__init__(self._blocking)

    def usage(self, tenant: str) -> Mapping[str, float]:
        return drive(self._blocking.usage(tenant))


class _Background:
    """A thread with an event loop and an asynchronous journal, which waits on behalf of all threads of the process."""

    def __init__(self, open_journal: Callable[[], AsyncRedisJournal]) -> None:
        self._loop = asyncio.new_event_loop()
        self._open = open_journal
        self._journal: AsyncRedisJournal | None = None
        self._stopped = asyncio.Event()
        self._waiting: set[SimpleQueue[Any]] = set()
        """Where threads that wait for a result receive it; copying a set is atomic."""
        self._thread = threading.Thread(target=self._serve, name="antiphon-redis-subscriber", daemon=True)
        self._thread.start()

    def run(self, work: Callable[[AsyncRedisJournal], Coroutine[Any, Any, T]]) -> T:
        """The result of *work*, which runs in the loop of the thread; this thread waits."""
        # A lock could remain held when this thread is interrupted.
        ended: SimpleQueue[asyncio.Task[T] | None] = SimpleQueue()
        begun: list[asyncio.Task[T]] = []

        def begin() -> None:
            if self._stopped.is_set():
                ended.put(None)
                return
            task = self._loop.create_task(self._with_journal(work))
            begun.append(task)
            task.add_done_callback(ended.put)

        self._waiting.add(ended)
        try:
            self.post(begin)
            if self._loop.is_closed():  # the waiters may have been notified before we were among them
                ended.put(None)
            task = ended.get()
        except BaseException:
            self.post(lambda: [task.cancel() for task in begun])
            raise
        finally:
            self._waiting.discard(ended)
        if task is None or task.cancelled():
            raise closed()
        return task.result()

    def post(self, function: Callable[[], object]) -> None:
        """Call *function* in the loop of the thread, unless that loop has ended."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(function)

    def is_current(self) -> bool:
        return threading.current_thread() is self._thread

    def close(self) -> None:
        self.post(self._stopped.set)
        if not self.is_current():
            self._thread.join(timeout=2.0)

    def _serve(self) -> None:
        try:
            with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
                runner.run(self._main())
        finally:
            for ended in tuple(self._waiting):  # what they requested may never have started
                ended.put(None)

    async def _main(self) -> None:
        await self._stopped.wait()
        if self._journal is not None:
            await self._journal.close()

    async def _with_journal(self, work: Callable[[AsyncRedisJournal], Coroutine[Any, Any, T]]) -> T:
        if self._journal is None:
            self._journal = self._open()
        return await work(self._journal)


def _fields(info: Any) -> Mapping[str, str]:
    """The fields of ``INFO``: a string, or parsed by redis-py."""
    if isinstance(info, dict):
        return {name: str(value) for name, value in info.items()}
    lines = (line.partition(":") for line in info.decode().splitlines() if ":" in line)
    return {name: value for name, _, value in lines}


def _report(target: Target, about: Mapping[str, str], latency_ms: float) -> Mapping[str, Any]:
    policy = about.get("maxmemory_policy", "unknown")
    append_only = about.get("aof_enabled") == "1"
    warnings = []
    if policy not in ("noeviction", "unknown") and about.get("maxmemory", "0") != "0":
        warnings.append(f"maxmemory-policy is {policy}: Redis may evict claims; set noeviction")
    if not append_only:
        warnings.append("appendonly is off: a restart loses claims")
    return {
        "store": "redis",
        "url": target.safe_url,
        "version": about.get("valkey_version") or about.get("redis_version", "unknown"),
        "server": "valkey" if "valkey_version" in about else "redis",
        "durable": append_only,
        "appendonly": append_only,
        "readOnly": about.get("role") not in ("master", None),
        "replicas": int(about.get("connected_slaves", 0)),
        "maxmemoryPolicy": policy,
        "latencyMs": round(latency_ms, 3),
        "warnings": warnings,
    }
