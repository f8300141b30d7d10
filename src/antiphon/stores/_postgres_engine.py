"""Runs the store's statements: on a pooled connection, again where that is certain to be right.

A statement is repeated when it certainly did not happen, or when repeating it changes nothing. Where neither
holds (``once``), a connection that broke midway raises :class:`AnswerLost` and the caller finds out.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

from antiphon.stores._postgres_errors import AnswerLost, Fate, Unreachable, connection_lost, fate_of, refused
from antiphon.stores._postgres_link import Link, Rows, connect_async, connect_sync, load_driver, prepare_session
from antiphon.stores._postgres_options import Options, without_secrets
from antiphon.stores._postgres_pool import Pool
from antiphon.stores._postgres_schema import ensure_schema
from antiphon.stores._postgres_sql import Statement, statements
from antiphon.stores._waiters import NewWaiter, ThreadWaiter, loop_waiter

T = TypeVar("T")
_REDO_LIMIT = 20
_LOST_LIMIT = 5
_LAST_WORDS_MS = 2000
_PAUSE_S = (0.02, 0.5)

Dial = Callable[[Options], Awaitable[Link]]
Pause = Callable[[float], Awaitable[None]]
Work = Callable[[Link], Awaitable[Rows]]
Step = tuple[str, Mapping[str, Any]]
Then = Callable[[Rows], list[Step]]
"""What else belongs into the same transaction, given the rows of the first statement."""


class Engine:
    """Runs statements for one journal. Written once: for threads its coroutines never suspend."""

    def __init__(self, options: Options, dial: Dial, new_waiter: NewWaiter, pause: Pause) -> None:
        self.options = options
        self.new_waiter = new_waiter
        self._url = without_secrets(options.dsn)
        self._statements = statements(options.schema)
        self._raw_dial = dial
        self._pause = pause
        self._pid = os.getpid()
        self._ready = False
        self._pool = self._new_pool()
        self._error: type[Exception] = load_driver().Error

    def _new_pool(self) -> Pool:
        return Pool(self._dial, self.new_waiter, self.options.max_connections, self.options.pool_timeout_s)

    async def run(self, name: str, params: Mapping[str, Any], *, once: bool = False, prepare: bool = True) -> Rows:
        """The rows of one statement, in one round trip and one transaction."""
        statement = self._statements[name]
        values = statement.values(params)

        async def work(link: Link) -> Rows:
            return await link.fetch(statement, values, prepare=prepare)

        return await self._attempts(name, work, once)

    async def not_twice(self, send: Callable[[], Awaitable[T]], landed: Callable[[], Awaitable[T | None]]) -> T:
        """Send what must not happen twice; if its answer is lost, find out whether it landed before sending again."""
        chances = _LOST_LIMIT
        while True:
            try:
                return await send()
            except AnswerLost as lost:
                if lost.session is not None:
                    pid, started = lost.session
                    ended = {"pid": pid, "started": started, "patience_ms": _LAST_WORDS_MS}
                    await self.run("end_session", ended, prepare=False)
                found = await landed()
                if found is not None:
                    return found
                chances -= 1
                if not chances:
                    raise lost.reason from lost

    async def run_together(self, name: str, params: Mapping[str, Any], then: Then, *, once: bool = False) -> Rows:
        """The rows of a statement that others follow in the same transaction."""

        async def work(link: Link) -> Rows:
            await link.script("BEGIN")
            rows = await self._fetch(link, name, params)
            for following, its_params in then(rows):
                await self._fetch(link, following, its_params)
            await link.script("COMMIT")
            return rows

        return await self._attempts(name, work, once)

    def on_loop(self, callback: Callable[[T], None]) -> Callable[[T], None]:
        """*callback* as it may be called from another thread."""
        return callback

    async def close(self) -> None:
        self._pool.close()

    async def _fetch(self, link: Link, name: str, params: Mapping[str, Any]) -> Rows:
        statement: Statement = self._statements[name]
        return await link.fetch(statement, statement.values(params), prepare=True)

    async def _attempts(self, name: str, work: Work, once: bool) -> Rows:
        patience = _Patience(self.options.reconnect_s)
        while True:
            link = await self._take(patience)
            pool = self._pool
            try:
                rows = await work(link)
            except self._error as error:
                fate = fate_of(error, connected=link.connected(), idle=link.idle())
                if fate is Fate.LOST or not link.idle():
                    pool.discard(link)
                else:
                    pool.give(link)
                await self._after(fate, error, name, link if once else None, patience)
            except BaseException:
                pool.discard(link)
                raise
            else:
                pool.give(link)
                return rows

    async def _after(self, fate: Fate, error: Exception, name: str, once: Link | None, patience: _Patience) -> None:
        """Return if the statement is to be tried again, else raise; *once* is the link of what must not be."""
        if fate is Fate.LOST:
            lost = connection_lost(error, self._url)
            if once is not None:
                raise AnswerLost(lost, once.session) from error
            await self._pause_or(lost, patience)
        elif fate is Fate.REDO and patience.redo():
            await self._pause(random.uniform(0, 0.01))
        elif fate is Fate.STALE and patience.switch():
            self._pool.forget_idle()
        else:
            raise refused(error, self._url, name) from error

    async def _take(self, patience: _Patience) -> Link:
        """A link. A server that has been there before is waited for while patience lasts."""
        if self._pid != os.getpid():  # connections cannot be shared with the parent process
            self._pid = os.getpid()
            self._pool = self._new_pool()
        while True:
            try:
                return await self._pool.take()
            except Unreachable as error:
                if not self._ready:
                    raise
                await self._pause_or(error, patience)

    async def _pause_or(self, error: Unreachable, patience: _Patience) -> None:
        pause = patience.pause()
        if pause is None:
            raise error
        await self._pause(pause)

    async def _dial(self) -> Link:
        link = await self._raw_dial(self.options)
        try:
            await prepare_session(link, self.options)
            if not self._ready:
                await ensure_schema(link, self.options, migrate=self.options.migrate)
                self._ready = True
        except self._error as error:
            lost = not link.connected()
            link.drop()
            raise (connection_lost(error, self._url) if lost else refused(error, self._url, "connect")) from error
        except BaseException:
            link.drop()
            raise
        return link


class _Patience:
    """How long one operation waits for a server to come back, and how often it may lose a deadlock."""

    __slots__ = ("_deadline", "_redos", "_seconds", "_switched", "_tries")

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._deadline = 0.0
        self._tries = 0
        self._redos = 0
        self._switched = False

    def pause(self) -> float | None:
        """How long to sleep before the next try, or ``None`` when patience is over."""
        now = time.monotonic()
        self._deadline = self._deadline or now + self._seconds
        if now >= self._deadline:
            return None
        low, high = _PAUSE_S
        self._tries += 1
        return random.uniform(low, min(high, low * 2**self._tries))

    def redo(self) -> bool:
        self._redos += 1
        return self._redos <= _REDO_LIMIT

    def switch(self) -> bool:
        """Whether another connection may be tried: once."""
        before, self._switched = self._switched, True
        return not before


class AsyncEngine(Engine):
    """Each operation is a task of its own: a caller that is cancelled cannot break off a statement."""

    def __init__(self, options: Options) -> None:
        super().__init__(options, connect_async, loop_waiter, asyncio.sleep)
        self._tasks: set[asyncio.Task[Rows]] = set()

    async def _attempts(self, name: str, work: Work, once: bool) -> Rows:
        task = asyncio.get_running_loop().create_task(super()._attempts(name, work, once))
        self._tasks.add(task)
        task.add_done_callback(self._finished)
        return await asyncio.shield(task)

    def _finished(self, task: asyncio.Task[Rows]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # seen: the caller may be gone

    def on_loop(self, callback: Callable[[T], None]) -> Callable[[T], None]:
        """*callback*, called in the event loop."""
        loop = asyncio.get_running_loop()

        def call(value: T) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody is left to tell
                loop.call_soon_threadsafe(callback, value)

        return call

    async def close(self) -> None:
        """Let running statements end, then hang up."""
        if self._tasks:
            await asyncio.wait(set(self._tasks))
        await super().close()


async def _sleep(seconds: float) -> None:
    time.sleep(seconds)


def sync_engine(options: Options) -> Engine:
    """An engine for threads: its coroutines never suspend."""
    return Engine(options, connect_sync, ThreadWaiter, _sleep)
