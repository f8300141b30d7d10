"""Runs the store's statements on pooled connections, and retries where that is certainly right.

A statement is repeated if it certainly did not happen, or if repeating it changes nothing. If neither holds (``once``),
a connection that broke midway raises :class:`AnswerLost` and the caller finds out.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import os
import random
import threading
import time
import weakref
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, TypeVar

import psycopg
from psycopg_pool import PoolClosed, PoolTimeout

from antiphon.errors import StoreUnavailable
from antiphon.stores._waiters import NewWaiter, ThreadWaiter, loop_waiter
from antiphon.stores.postgres.connection import (
    AnswerLost,
    AsyncConnection,
    Connection,
    Fate,
    Pool,
    Rows,
    SyncConnection,
    Unreachable,
    all_lost,
    close_with,
    closed,
    connect,
    connection_lost,
    fate_of,
    maybe_await,
    no_answer,
    no_free_connection,
    open_pool,
    refused,
)
from antiphon.stores.postgres.loop_pool import close_ended
from antiphon.stores.postgres.options import Options, without_secrets
from antiphon.stores.postgres.schema import ensure_schema
from antiphon.stores.postgres.statements import new_op, storable

T = TypeVar("T")
Work = Callable[[Connection], Awaitable[Rows]]
Params = Mapping[str, Any]
Step = tuple[str, Params]
Then = Callable[[Rows], list[Step]]
"""What else belongs in the same transaction, given the rows of the first statement."""

_REDO_LIMIT = 20
_LOST_LIMIT = 5
_PAUSE_S = (0.02, 0.5)
_inherited: list[Pool] = []
"""Pools of the parent process. Collecting one would take locks that the parent's threads may have held."""


class Engine:
    """Runs statements for one journal. Written once: for threads its coroutines never suspend.

    A pool connects in the background, where errors are only logged. So the first caller, and the first one after the
    pool has lost all its connections, connects directly: that caller gets the error, or opens the pool.
    """

    new_waiter: NewWaiter = ThreadWaiter
    _kind: type[SyncConnection] | type[AsyncConnection] = SyncConnection
    _new_lock: Callable[[], Any] = threading.Lock
    _sleep: Callable[[float], Any] = staticmethod(time.sleep)

    def __init__(self, options: Options) -> None:
        self.options = options
        self._url = without_secrets(options.dsn)
        self._ready = False
        self._closed = False
        self._pool: Pool | None = None
        self._start()

    def _start(self) -> None:
        """Start without connections, also after a fork: they cannot be shared with the parent process."""
        if self._pool is not None:
            _inherited.append(self._pool)
        self._pid = os.getpid()
        self._pool = None
        self._finalizer: weakref.finalize[..., Any] | None = None
        self._opening = self._new_lock()
        self._failure: tuple[float, Exception] | None = None
        self._failed_connects = 0

    async def run(
        self,
        name: str,
        params: Mapping[str, Any],
        *,
        then: Then | None = None,
        once: bool = False,
        prepare: bool = True,
    ) -> Rows:
        """The rows of one statement, in one round trip; the statements from *then* are in the same transaction."""
        values = storable(params)

        async def work(connection: Connection) -> Rows:
            if then is None:
                return await connection.fetch(name, values, prepare=prepare)
            await connection.begin()
            rows = await connection.fetch(name, values, prepare=prepare)
            for following, its_params in then(rows):
                await connection.fetch(following, storable(its_params), prepare=prepare)
            await connection.end()
            return rows

        return await self._attempts(name, work, once)

    async def at_most_once(
        self, send: Callable[[int], Awaitable[T]], took_effect: Callable[[int], Awaitable[T | None]]
    ) -> T:
        """Send what must not happen twice, under a number; if the reply is lost, find out whether it took effect.

        Only what did not take effect, and no longer can, is sent again, under another number.
        """
        chances = _LOST_LIMIT
        while True:
            op = new_op()
            try:
                return await send(op)
            except AnswerLost as lost:
                chances -= 1
                try:
                    for step in ("revoke", "outlast"):
                        await self.run(step, {"op": op}, prepare=False)
                    found = await took_effect(op)
                except StoreUnavailable as error:
                    raise lost.reason from error
                if found is not None:
                    return found
                if not chances:
                    raise lost.reason from lost

    def on_loop(self, callback: Callable[[T], None]) -> Callable[[T], None]:
        """*callback* in a form that may be called from another thread."""
        return callback

    async def close(self) -> None:
        """Close the idle connections; those in use close when they are returned."""
        if self._pid != os.getpid():
            self._start()
        await self._alone(self._close)

    async def _close(self) -> None:
        self._closed = True
        if self._pool is not None:
            await maybe_await(self._pool.close())

    async def _alone(self, work: Callable[[], Awaitable[T]]) -> T:
        """Run *work* while nobody else opens or closes the pool. An interrupt anywhere in it leaves the lock free."""
        with self._opening:
            return await work()

    async def _attempts(self, name: str, work: Work, once: bool) -> Rows:
        retries = _Retries(self.options.reconnect_s)
        while True:
            pool, connection = await self._take(retries)
            try:
                rows = await work(connection)
            except psycopg.Error as error:
                fate = fate_of(error, connected=connection.connected(), idle=connection.idle())
                if fate is Fate.LOST or not connection.idle():
                    connection.drop()
                await _give_back(pool, connection)
                if fate is Fate.STALE and retries.switch():
                    await maybe_await(pool.drain())
                else:
                    await self._after(fate, error, name, once, retries)
            except BaseException:
                connection.drop()
                await _give_back(pool, connection)
                raise
            else:
                await _give_back(pool, connection)
                return rows

    async def _after(self, fate: Fate, error: Exception, name: str, once: bool, retries: _Retries) -> None:
        """Return if the statement is to be retried, otherwise raise."""
        if fate in (Fate.LOST, Fate.SILENT):
            lost = self._lost(fate, error)
            if once:
                raise AnswerLost(lost) from error
            if fate is Fate.SILENT:
                raise lost from error
            await self._pause_or(lost, retries)
        elif fate is Fate.REDO and retries.redo():
            await maybe_await(self._sleep(random.uniform(0, 0.01)))
        else:
            raise refused(error, self._url, name) from error

    def _lost(self, fate: Fate, error: Exception) -> Unreachable:
        return no_answer(self._url) if fate is Fate.SILENT else connection_lost(error, self._url)

    async def _take(self, retries: _Retries) -> tuple[Pool, Connection]:
        """A connection and its pool. If the server was reachable before, wait for it while retries are left."""
        while True:
            try:
                pool = await self._open()
                return pool, await self._borrow(pool)
            except Unreachable as error:
                if not self._ready:
                    raise
                await self._pause_or(error, retries)

    async def _borrow(self, pool: Pool) -> Connection:
        try:
            connection: Connection = await maybe_await(pool.getconn())
            while connection.stale():
                connection.drop()
                await maybe_await(pool.putconn(connection))
                connection = await maybe_await(pool.getconn())
            return connection
        except (KeyboardInterrupt, SystemExit):
            await maybe_await(pool.close())  # the interrupted wait would swallow the next connection
            raise
        except PoolClosed as error:
            if self._closed:
                raise closed() from error
            await self._open()  # this raises the reason, if the server is down
            raise all_lost(self._url) from error
        except PoolTimeout as error:
            failed = pool.get_stats().get("connections_errors", 0)
            if failed > self._failed_connects:  # the pool lacks connections because the server grants no more
                self._failed_connects = failed
                await self._check_server()
            raise no_free_connection(self.options.max_connections, self.options.pool_timeout_s) from error

    async def _open(self) -> Pool:
        """The open pool. Of several callers without one, the first connects, and all of them get its error."""
        if self._pid != os.getpid():
            self._start()
        if self._pool is not None and not self._pool.closed:
            return self._pool
        return await self._alone(partial(self._opened, time.monotonic()))

    async def _opened(self, came: float) -> Pool:
        if self._closed:
            raise closed()
        if self._pool is not None and not self._pool.closed:
            return self._pool
        if self._failure is not None and self._failure[0] > came:
            raise copy.copy(self._failure[1])
        try:
            await self._check_server()
        except Exception as error:
            self._failure = time.monotonic(), error
            raise
        self._failure = None
        self._failed_connects = 0
        self._pool = await open_pool(self._kind, self.options)
        if self._finalizer is not None:
            self._finalizer.detach()
        self._finalizer = close_with(self, self._pool)
        return self._pool

    async def _check_server(self) -> None:
        """Connect in the caller's turn, and check the schema if nobody has."""
        connection: Connection | None = None
        try:
            connection = await connect(self._kind, self.options)
            if not self._ready:
                await ensure_schema(connection, self.options, migrate=self.options.migrate)
                self._ready = True
        except psycopg.Error as error:
            connected = bool(error.sqlstate) if connection is None else connection.connected()
            fate = fate_of(error, connected=connected, idle=connection is None or connection.idle())
            if fate in (Fate.LOST, Fate.SILENT):
                raise self._lost(fate, error) from error
            raise refused(error, self._url, "connect") from error
        finally:
            if connection is not None:
                connection.drop()

    async def _pause_or(self, error: Unreachable, retries: _Retries) -> None:
        pause = retries.pause()
        if pause is None:
            raise error
        await maybe_await(self._sleep(pause))


async def _give_back(pool: Pool, connection: Connection) -> None:
    try:
        await maybe_await(pool.putconn(connection))
    except (KeyboardInterrupt, SystemExit):
        await maybe_await(pool.close())  # it may count a connection that it does not have
        raise


class _Retries:
    """How long one operation waits for a server to return, and how often it may lose a deadlock."""

    __slots__ = ("_deadline", "_redos", "_seconds", "_switched", "_tries")

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._deadline = 0.0
        self._tries = 0
        self._redos = 0
        self._switched = False

    def pause(self) -> float | None:
        """How long to sleep before the next attempt, or ``None`` when the time is up."""
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
    """For an event loop. Each operation is its own task: a cancelled caller cannot interrupt a statement.

    The cancellation propagates when the operation has ended: a cancelled caller that reads the record sees what it did.
    """

    new_waiter: NewWaiter = staticmethod(loop_waiter)
    _kind = AsyncConnection
    _new_lock = asyncio.Lock
    _sleep = staticmethod(asyncio.sleep)

    def __init__(self, options: Options) -> None:
        close_ended()
        super().__init__(options)
        self._tasks: set[asyncio.Task[Rows]] = set()

    async def _attempts(self, name: str, work: Work, once: bool) -> Rows:
        task = asyncio.get_running_loop().create_task(super()._attempts(name, work, once))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            while not task.done():
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.wait({task})
            if not task.cancelled():
                task.exception()  # seen: the caller gets the cancellation
            raise

    async def _alone(self, work: Callable[[], Awaitable[T]]) -> T:
        async with self._opening:
            return await work()

    def on_loop(self, callback: Callable[[T], None]) -> Callable[[T], None]:
        """*callback*, called in the event loop."""
        loop = asyncio.get_running_loop()

        def call(value: T) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody is left to notify
                loop.call_soon_threadsafe(callback, value)

        return call

    async def close(self) -> None:
        """Let running statements end, then close the connections."""
        if self._tasks:
            await asyncio.wait(set(self._tasks))
        await super().close()
