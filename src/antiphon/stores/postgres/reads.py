"""One read per process and key: whoever asks while a read is being prepared shares it.

When a claim ends, everyone who waited for it reads it. Each has his own identity, so each needs his own answer, but one
query can find them all.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterable

from antiphon.contract.record import DedupeRecord
from antiphon.ports import Existing


class Found:
    """What one read saw: the record, and the earlier executions of the identities that asked."""

    __slots__ = ("_current", "_earlier", "_now_ms", "_sharers")

    def __init__(
        self, now_ms: int, current: DedupeRecord | None, earlier: dict[str, DedupeRecord], sharers: Iterable[str]
    ) -> None:
        self._now_ms = now_ms
        self._current = current
        self._earlier = earlier
        self._sharers = frozenset(sharers)

    def existing(self, identity: str) -> Existing | None:
        """The answer for one identity."""
        current, own = self._current, self._earlier.get(identity)
        if current is None:  # the record expired before this earlier execution of it did
            return None if own is None else Existing(own, own, self._now_ms)
        if current.request.identity == identity or identity in self._sharers:
            own = current
        return Existing(current, own, self._now_ms)


Read = Callable[[str, Iterable[str]], Awaitable[Found]]


class _Batch:
    __slots__ = ("error", "found", "identities")

    def __init__(self) -> None:
        self.identities: set[str] = set()
        self.found: Found | None = None
        self.error: Exception | None = None


class ThreadReads:
    """Threads: the first one reads, those who come meanwhile queue up and share the next read."""

    def __init__(self, read: Read) -> None:
        self._read = read
        self._lock = threading.Lock()
        self._open: dict[str, _Batch] = {}
        self._busy: dict[str, threading.Lock] = {}

    async def read(self, key: str, identity: str) -> Existing | None:
        """The record as it is after this call began."""
        with self._lock:
            batch = self._open.setdefault(key, _Batch())
            batch.identities.add(identity)
            turn = self._busy.setdefault(key, threading.Lock())
        with turn:
            if batch.found is None and batch.error is None:
                with self._lock:  # from here on, newcomers form the next batch
                    self._open.pop(key, None)
                try:
                    batch.found = await self._read(key, batch.identities)
                except Exception as error:
                    batch.error = error
                    raise
                finally:
                    with self._lock:
                        if key not in self._open:
                            self._busy.pop(key, None)
        if batch.found is None:
            assert batch.error is not None
            raise batch.error
        return batch.found.existing(identity)


class TaskReads:
    """Tasks of one loop: the first one reads, those who come meanwhile share the next read. None can break it off."""

    def __init__(self, read: Read) -> None:
        self._read = read
        self._open: dict[str, set[str]] = {}
        self._last: dict[str, asyncio.Task[Found]] = {}

    async def read(self, key: str, identity: str) -> Existing | None:
        """The record as it is after this call began."""
        identities = self._open.get(key)
        if identities is None:
            identities = self._open[key] = {identity}
            task = asyncio.get_running_loop().create_task(self._next(key, self._last.get(key)))
            self._last[key] = task
            task.add_done_callback(lambda task: self._finished(key, task))
        else:
            identities.add(identity)
            task = self._last[key]
        return (await asyncio.shield(task)).existing(identity)

    async def _next(self, key: str, previous: asyncio.Task[Found] | None) -> Found:
        if previous is None:
            await asyncio.sleep(0)  # whoever was woken together with the first one
        else:
            await asyncio.wait({previous})
        return await self._read(key, self._open.pop(key))  # from here on, newcomers form the next read

    def _finished(self, key: str, task: asyncio.Task[Found]) -> None:
        if self._last.get(key) is task:
            del self._last[key]
        if not task.cancelled():
            task.exception()  # seen: the callers may all be gone
