"""A journal in this process: for tests, scripts, and calls whose claims need not outlive the process."""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

from antiphon.contract.events import Event, RunManifest
from antiphon.errors import InvalidInput
from antiphon.ports import Ask, BreakerRow, Claimed, Clock, Existing, Final, Journal, Row
from antiphon.stores._common import Records, known_manifest
from antiphon.stores._memory_claims import ClaimTable
from antiphon.stores._memory_log import BreakerTable, LogTable, events_of
from antiphon.stores._memory_node import Node
from antiphon.stores._waiters import NewWaiter, ThreadWaiter, loop_waiter


class MemoryStore:
    """Claims, log and breakers in memory; every journal it opens sees the same data.

    Settled claims beyond *max_keys* are forgotten, least recently used first. Claims in flight or of unknown
    outcome never are: when only those are left, a new claim is refused with ``store_full``. Of the log, whole
    finished runs are forgotten, oldest first, once there are more than *max_events* events.

    >>> MemoryStore().url
    'memory://'
    """

    def __init__(self, max_keys: int = 25_000, *, max_events: int = 250_000, clock: Clock | None = None) -> None:
        if max_keys < 1:
            raise InvalidInput("max_keys must be at least 1.", path="max_keys")
        self._data = _Data(max_keys, max_events)
        self._clock = clock or Clock()

    in_process = True
    """Its journals also have ``claim_now``, ``succeed_now`` and ``done_now``, for callers in a hurry.

    The first inserts at once if the intent is new: the version, or 0 where ``begin`` has more to say. The second is
    ``settle`` for a success at the first attempt whose result is kept as it is. The third gives the result that a
    settled, successful record keeps, if it keeps one.
    """

    @property
    def url(self) -> str:
        return "memory://"

    def open_sync(self) -> Journal:
        return MemoryJournal(self._data, self._clock, ThreadWaiter)

    def open_async(self) -> Journal:
        return MemoryJournal(self._data, self._clock, loop_waiter)


class _Data:
    """What all journals of one store share, under one lock that is never held across an ``await``."""

    __slots__ = ("__weakref__", "breakers", "claims", "lock", "log")

    def __init__(self, max_keys: int, max_events: int) -> None:
        self.lock = threading.Lock()
        self.claims = ClaimTable(max_keys)
        self.log = LogTable(max_events)
        self.breakers = BreakerTable()
        _all_data.add(self)


class MemoryJournal:
    """One face's view of a :class:`MemoryStore`; the faces differ only in how they wait."""

    durable = False

    __slots__ = ("_claims", "_data", "_lock", "_log", "_new_waiter", "_time_ns", "claim_now", "done_now", "succeed_now")

    def __init__(self, data: _Data, clock: Clock, new_waiter: NewWaiter) -> None:
        self._data = data
        self._lock = data.lock
        self._claims = data.claims
        self._log = data.log
        self._time_ns = time.time_ns if type(clock) is Clock else lambda: clock.now_ms() * 1_000_000
        self._new_waiter = new_waiter
        self.claim_now, self.succeed_now, self.done_now = data.claims.quick_steps(data.lock, self._time_ns)

    async def begin(self, ask: Ask, events: Sequence[Row] = ()) -> Claimed | Existing:
        with self._lock:
            answer = self._claims.begin(ask, self._time_ns() // 1_000_000)
            if events and answer.__class__ is Claimed:
                self._log.write(events)
            return answer

    async def take(self, ask: Ask, version: int, events: Sequence[Row] = ()) -> Claimed | Existing:
        with self._lock:
            answer = self._claims.take(ask, version, self._time_ns() // 1_000_000)
            if events and answer.__class__ is Claimed:
                self._log.write(events)
            return answer

    async def settle(self, key: str, version: int, final: Final, events: Sequence[Row] = ()) -> int | None:
        with self._lock:
            if events:
                self._log.write(events)
            return self._claims.settle(key, version, final, self._time_ns() // 1_000_000)

    async def mark_dispatched(self, key: str, version: int) -> bool:
        """Nothing to do: an in-flight claim whose holder is gone counts as dispatched."""
        return True

    async def alias(self, key: str, identity: str, version: int) -> bool:
        with self._lock:
            return self._claims.alias(key, identity, version, self._time_ns() // 1_000_000)

    async def renew(self, key: str, version: int, lease_ms: int) -> bool:
        with self._lock:
            return self._claims.renew(key, version, lease_ms, self._time_ns() // 1_000_000)

    async def read(self, key: str, identity: str = "") -> Existing | None:
        with self._lock:
            return self._claims.read(key, identity, self._time_ns() // 1_000_000)

    async def wait(self, key: str, version: int, timeout_s: float) -> None:
        waiters = self._claims.waiters
        waiter = self._new_waiter()
        with self._lock:
            if not self._claims.waiting_for(key, version):
                return
            waiters.add(key, waiter)
        try:
            await waiter.wait(timeout_s)
        finally:
            with self._lock:
                waiters.discard(key, waiter)

    async def clear(self, key: str) -> bool:
        with self._lock:
            return self._claims.clear(key)

    async def flush(self, *, tenant: str, tool: str = "", session: str = "", prefix: str = "") -> int:
        with self._lock:
            doomed = {node.key for node in self._claims.all_nodes() if _fits(node, tenant, tool, session, prefix)}
            for key in doomed:
                self._claims.clear(key)
            return len(doomed)

    async def list(
        self, *, tenant: str, tool: str = "", session: str = "", state: str = "", prefix: str = "", limit: int = 100
    ) -> Records:
        now = self._time_ns() // 1_000_000
        found: Records = []
        for node in sorted(self._nodes(), key=_serial, reverse=True):
            if len(found) >= limit:
                break
            if node.lives(now) and _fits(node, tenant, tool, session, prefix) and state in ("", node.state):
                found.append(node.to_record())
        return found

    async def counts(self, tenant: str) -> Mapping[tuple[str, str], int]:
        now = self._time_ns() // 1_000_000
        found: dict[tuple[str, str], int] = {}
        for node in self._nodes():
            if not node.lives(now) or node.form.tenant != tenant:
                continue
            state = "stale" if node.state == "inflight" and node.lock_until <= now else node.state
            found[node.form.tool, state] = found.get((node.form.tool, state), 0) + 1
        return found

    async def sweep(self, limit: int = 1000) -> int:
        with self._lock:
            return self._claims.sweep(limit, self._time_ns() // 1_000_000)

    async def open_run(self, manifest: RunManifest) -> None:
        with self._lock:
            self._log.open_run(manifest)

    async def update_run(self, manifest: RunManifest) -> None:
        with self._lock:
            self._log.update_run(manifest)

    async def append(self, run: str, rows: Sequence[Row]) -> int:
        with self._lock:
            return self._log.append(run, rows)

    def append_now(self, run: str, rows: Sequence[Row]) -> None:
        """The same without a coroutine."""
        with self._lock:
            self._log.append(run, rows)

    async def manifest(self, run: str) -> RunManifest | None:
        with self._lock:
            found = self._log.manifest(run)
        return None if found is None else known_manifest(found)

    async def runs(
        self, *, tenant: str, prefix: str = "", name: str = "", status: str = "", limit: int = 50, before: str = ""
    ) -> Manifests:
        with self._lock:
            found = self._log.manifests(tenant)
        if before:
            ids = [manifest.id for manifest in found]
            found = found[ids.index(before) + 1 :] if before in ids else []
        fitting = (
            manifest
            for manifest in found
            if manifest.id.startswith(prefix) and name in ("", manifest.name) and status in ("", manifest.status)
        )
        return [known_manifest(manifest) for manifest, _ in zip(fitting, range(limit), strict=False)]

    async def events(self, run: str, *, start: int = 0, stop: int | None = None, limit: int = 1000) -> Events:
        with self._lock:
            rows = self._log.rows(run, start, stop, limit)
        return events_of(rows)

    async def delete_run(self, run: str) -> bool:
        with self._lock:
            return self._log.delete_run(run)

    async def load_breakers(self, tenant: str) -> BreakerRows:
        with self._lock:
            return self._data.breakers.load(tenant)

    async def save_breaker(self, tenant: str, row: BreakerRow) -> None:
        with self._lock:
            self._data.breakers.save(tenant, row)

    async def ping(self) -> Mapping[str, Any]:
        with self._lock:
            return {"store": "memory", "durable": False, "claims": len(self._claims), "latencyMs": 0.0}

    async def close(self) -> None:
        """Nothing to release: the data lives as long as its :class:`MemoryStore`."""

    def _nodes(self) -> tuple[Node, ...]:
        with self._lock:
            return self._claims.nodes()


Manifests = list[RunManifest]
Events = list[Event]
BreakerRows = list[BreakerRow]


def _fits(node: Node, tenant: str, tool: str, session: str, prefix: str) -> bool:
    return (
        node.form.tenant == tenant
        and tool in ("", node.form.tool)
        and session in ("", node.session)
        and node.key.startswith(prefix)
    )


def _serial(node: Node) -> int:
    return node.serial


_all_data: weakref.WeakSet[_Data] = weakref.WeakSet()
_forking: list[_Data] = []


def _before_fork() -> None:
    """A child must not inherit a lock that a thread it does not have was holding."""
    _forking.extend(_all_data)
    for data in _forking:
        data.lock.acquire()


def _after_fork_in_parent() -> None:
    while _forking:
        _forking.pop().lock.release()


def _after_fork_in_child() -> None:
    while _forking:
        data = _forking.pop()
        data.claims.waiters.forget_all()
        data.lock.release()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
