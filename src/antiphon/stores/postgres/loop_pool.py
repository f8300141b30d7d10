"""The pool of an event loop: psycopg_pool's, made to end with its loop, closed or not.

Ending a loop, as ``asyncio.run`` does, cancels each task once and waits for it. The worker and the scheduler of
psycopg_pool can mistake that cancellation for a failed connection, or lose it, and the wait would never end. So each of
their jobs is a task of its own or a timer: the worker and the scheduler only wait to be stopped.
"""

from __future__ import annotations

import asyncio
import logging
import os
import weakref
from typing import Any

from psycopg_pool import AsyncConnectionPool

NAME = "antiphon-postgres"
_pools: set[LoopPool] = set()
"""All open pools. Copying a set is atomic; event loops of several threads use it."""


class LoopPool(AsyncConnectionPool[Any]):
    """Connections of the running event loop."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._pid = os.getpid()
        self._loop = asyncio.get_running_loop()
        self._jobs: set[asyncio.Task[None]] = set()
        self.connections: weakref.WeakSet[Any] = weakref.WeakSet()
        """All of its connections, those in use included."""
        _pools.add(self)

    def run_task(self, task: Any) -> None:
        """Start a job at once; the worker gets only what stops it."""
        if self.closed:
            super().run_task(task)
            return
        job = self._loop.create_task(task.run())
        job._log_destroy_pending = False  # type: ignore[attr-defined] # what begins while the loop ends stays undone
        self._jobs.add(job)
        job.add_done_callback(self._jobs.discard)

    async def schedule_task(self, task: Any, delay: float) -> None:
        """Start a job later."""
        self._loop.call_later(delay, _begin, weakref.ref(self), task)

    async def close(self, timeout: float = 5.0) -> None:
        _pools.discard(self)
        await super().close(timeout)
        if self._jobs:
            await asyncio.wait(set(self._jobs), timeout=timeout)

    def abandon(self) -> None:
        """Close it from anywhere, even after its loop has ended."""
        if self._loop.is_running():
            asyncio.run_coroutine_threadsafe(self.close(), self._loop)
        else:
            self._drop()

    @property
    def ended(self) -> bool:
        """Whether it can no longer be used, because its loop is closed."""
        return self._loop.is_closed()

    def _drop(self) -> None:
        _pools.discard(self)
        self._jobs.clear()
        if self._pid == os.getpid():  # not those of the parent process
            for connection in tuple(self.connections):
                connection.drop()


def _begin(pool: weakref.ref[LoopPool], task: Any) -> None:
    found = pool()
    if found is not None:
        found.run_task(task)


def close_ended() -> None:
    """Close the connections of event loops that were closed before their journals."""
    for pool in tuple(_pools):
        if pool.ended:
            pool.abandon()


def is_cancelled() -> bool:
    """Whether the running task, if any, was cancelled: then its event loop is ending, and nothing may start there."""
    try:
        task = asyncio.current_task()
    except RuntimeError:
        return False
    return task is not None and task.cancelling() > 0


def _is_news(record: logging.LogRecord) -> bool:
    """A job that was cancelled is logged as a failed connection."""
    return NAME not in (record.args or ()) or not is_cancelled()


logging.getLogger("psycopg.pool").addFilter(_is_news)
