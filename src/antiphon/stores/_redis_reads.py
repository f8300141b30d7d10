"""Reads of one key that are asked for at the same time share one round trip: a woken crowd reads once."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from antiphon._drive import drive
from antiphon.errors import StoreUnavailable
from antiphon.ports import Existing
from antiphon.stores._redis_wire import fresh

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Coroutine
    from typing import Any

    Fetch = Callable[[str, Sequence[str]], Coroutine[Any, Any, "Answers"]]
    """Read a key for several identities."""

Answers = dict[str, Existing | None]


class Reads(Protocol):
    """How a journal shares its reads."""

    def read(self, key: str, identity: str) -> Awaitable[Existing | None]: ...


class LoopReads:
    """Reads of one step of an event loop are sent together."""

    def __init__(self, fetch: Fetch, loop: asyncio.AbstractEventLoop) -> None:
        self._fetch = fetch
        self._loop = loop
        self._asked: dict[str, dict[str, list[asyncio.Future[Existing | None]]]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def read(self, key: str, identity: str) -> Existing | None:
        future: asyncio.Future[Existing | None] = self._loop.create_future()
        asked = self._asked.get(key)
        if asked is None:
            asked = self._asked[key] = {}
            self._loop.call_soon(self._send, key)
        asked.setdefault(identity, []).append(future)
        return await future

    def _send(self, key: str) -> None:
        task = self._loop.create_task(self._answer(key, self._asked.pop(key)))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer(self, key: str, asked: dict[str, list[asyncio.Future[Existing | None]]]) -> None:
        try:
            answers = await self._fetch(key, tuple(asked))
        except Exception as error:
            for futures in asked.values():
                for future in futures:
                    if not future.done():
                        future.set_exception(fresh(error))
            return
        for identity, futures in asked.items():
            for future in futures:
                if not future.done():
                    future.set_result(answers[identity])


class _Batch:
    __slots__ = ("answers", "before", "done", "error", "identities")

    def __init__(self, before: _Batch | None) -> None:
        self.identities: dict[str, None] = {}
        self.before = before
        self.done = threading.Event()
        self.answers: Answers = {}
        self.error: Exception | None = StoreUnavailable("The read was interrupted.", hint="Read again.")


class ThreadReads:
    """While one thread reads a key, those that come meanwhile gather; one of them reads for all next."""

    def __init__(self, fetch: Fetch) -> None:
        self._fetch = fetch
        self._lock = threading.Lock()
        self._reading: dict[str, _Batch] = {}
        self._gathering: dict[str, _Batch] = {}

    async def read(self, key: str, identity: str) -> Existing | None:
        with self._lock:
            batch = self._gathering.get(key)
            leads = batch is None
            if batch is None:
                batch = _Batch(self._reading.get(key))
                if batch.before is None:
                    self._reading[key] = batch  # nobody is reading: start at once
                else:
                    self._gathering[key] = batch
            batch.identities[identity] = None
        if leads:
            self._lead(key, batch)
        else:
            batch.done.wait()
        if batch.error is not None:
            raise fresh(batch.error)
        return batch.answers[identity]

    def _lead(self, key: str, batch: _Batch) -> None:
        if batch.before is not None:
            batch.before.done.wait()
            batch.before = None
            with self._lock:
                self._gathering.pop(key, None)
                self._reading[key] = batch
        try:
            batch.answers = drive(self._fetch(key, tuple(batch.identities)))
            batch.error = None
        except Exception as error:
            batch.error = error
        finally:
            with self._lock:
                if self._reading.get(key) is batch:
                    del self._reading[key]
            batch.done.set()
