"""The asynchronous journal of the Redis store: one pipelined connection and one subscriber per event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from antiphon.errors import StoreError
from antiphon.stores._redis_journal import Options, RedisJournal
from antiphon.stores._redis_keys import Names
from antiphon.stores._redis_pipe import Pipe, placer
from antiphon.stores._redis_push_loop import LoopHub, log
from antiphon.stores._redis_reads import LoopReads
from antiphon.stores._redis_url import Address, Target
from antiphon.stores._redis_wire import Node


class AsyncRedisJournal(RedisJournal):
    """A journal of one event loop."""

    def __init__(self, target: Target, names: Names, options: Options) -> None:
        def make(address: Address | None) -> Node:
            return Pipe(target, placer(target, address), options.patience_s)

        super().__init__(target, names, options, make)
        self._tasks: set[asyncio.Task[None]] = set()
        self.steps.spawn = self._spawn
        self._reads = LoopReads(self.steps.read, asyncio.get_running_loop())
        self._hub = LoopHub(target, placer(target), self.steps.flag, lambda key: self._names.shard(key).channel)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(self._quietly(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _quietly(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except StoreError as error:
            log.warning("a claim whose caller was cancelled could not be given back, its lease will end: %s", error)

    async def close(self) -> None:
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=1.0)
        await super().close()
