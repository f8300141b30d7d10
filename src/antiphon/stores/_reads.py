"""One read for all who read a key at the same time: when a claim ends, all of its waiters read it.

Each has its own identity and needs its own answer, but one read can find them all.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from antiphon.ports import Existing
from antiphon.stores._common import fresh

Answers = dict[str, Existing | None]
Fetch = Callable[[str, Sequence[str]], Coroutine[Any, Any, Answers]]
"""Read a key for several identities."""
_Waiting = dict[str, list[asyncio.Future[Existing | None]]]


class TaskReads:
    """Reads of one iteration of an event loop are sent together."""

    def __init__(self, fetch: Fetch) -> None:
        self._fetch = fetch
        self._loop = asyncio.get_running_loop()
        self._asked: dict[str, _Waiting] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def read(self, key: str, identity: str) -> Existing | None:
        """The record as it is after this call began."""
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

    async def _answer(self, key: str, asked: _Waiting) -> None:
        try:
            answers = await self._fetch(key, tuple(asked))
        except Exception as error:
            for future in (future for futures in asked.values() for future in futures):
                if not future.done():
                    future.set_exception(fresh(error))
            return
        for identity, futures in asked.items():
            for future in futures:
                if not future.done():
                    future.set_result(answers[identity])


class _Batch:
    """What several threads request, and the answers."""

    __slots__ = ("answers", "error", "identities")

    def __init__(self) -> None:
        self.identities: set[str] = set()
        self.answers: Answers = {}
        self.error: Exception | None = None


class ThreadReads:
    """Threads: the first one reads; those who arrive meanwhile queue up and share the next read."""

    def __init__(self, fetch: Fetch) -> None:
        self._fetch = fetch
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
            if not batch.answers and batch.error is None:
                with self._lock:  # from here on, newcomers form the next batch
                    self._open.pop(key, None)
                try:
                    batch.answers = await self._fetch(key, tuple(batch.identities))
                except Exception as error:
                    batch.error = error
                finally:
                    with self._lock:
                        if key not in self._open:
                            self._busy.pop(key, None)
        if batch.error is not None:
            raise fresh(batch.error)
        return batch.answers[identity]
