"""Reads of one key that are asked for at the same time share one round trip: a woken crowd reads once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from antiphon.ports import Existing
from antiphon.stores.redis.errors import fresh

Fetch = Callable[[str, Sequence[str]], Coroutine[Any, Any, dict[str, Existing | None]]]
"""Read a key for several identities."""
_Waiting = dict[str, list[asyncio.Future[Existing | None]]]


class SharedReads:
    """Reads of one iteration of an event loop are sent together."""

    def __init__(self, fetch: Fetch) -> None:
        self._fetch = fetch
        self._loop = asyncio.get_running_loop()
        self._asked: dict[str, _Waiting] = {}
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
