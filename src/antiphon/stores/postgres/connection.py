"""Connections to PostgreSQL and their pools, for threads and for an event loop, on psycopg and psycopg_pool."""

from __future__ import annotations

import asyncio
import os
import select
import threading
import weakref
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq import ConnStatus, TransactionStatus
from psycopg_pool import AsyncConnectionPool, ConnectionPool

from antiphon._drive import drive
from antiphon.stores.postgres.codec import register
from antiphon.stores.postgres.errors import cannot_connect
from antiphon.stores.postgres.options import Options, without_secrets
from antiphon.stores.postgres.statements import Statement, statements

Rows = list[tuple[Any, ...]]
_GRACE_S = 5.0
_IDLE_S = 120.0
_LIFETIME_S = 3600.0


class Session(NamedTuple):
    """A server process: its number, and when it started, because numbers are reused."""

    pid: int
    started: str


class _Link:
    """What both kinds of connection add to psycopg's.

    The server ends a statement after its ``statement_timeout``. A frozen server cannot, so the client gives up after
    *limit_s*, and closes the connection.
    """

    pgconn: Any
    limit_s: float | None = None
    session: Session | None = None
    shared_cursor: Any
    """One cursor for all statements: a new one costs a third of a statement."""

    def connected(self) -> bool:
        return bool(self.pgconn.status == ConnStatus.OK)

    def idle(self) -> bool:
        """Whether it can take the next statement: connected, answered, outside a transaction."""
        return bool(self.pgconn.transaction_status == TransactionStatus.IDLE)

    def stale(self) -> bool:
        """Whether the server closed it while it was idle. Costs no round trip."""
        poll = select.poll()
        poll.register(self.pgconn.socket, select.POLLIN)
        if not poll.poll(0):
            return False
        with suppress(psycopg.Error):  # a notice does not break it
            self.pgconn.consume_input()
        return not self.connected()

    def drop(self) -> None:
        """Close it at once."""
        self.pgconn.finish()


class SyncConnection(_Link, psycopg.Connection[tuple[Any, ...]]):
    """A connection for threads, with autocommit. Its coroutines never suspend."""

    def wait(self, gen: Any, interval: float = 0.1, timeout: float | None = None) -> Any:
        return super().wait(gen, interval, self.limit_s if timeout is None else timeout)

    async def fetch(self, statement: Statement, values: Sequence[Any], *, prepare: bool) -> Rows:
        """Run one statement in one round trip."""
        cursor = self.shared_cursor
        cursor.execute(statement.text, values, prepare=prepare)
        rows: Rows = cursor.fetchall() if cursor.pgresult.nfields else []
        cursor.pgresult.clear()  # an idle connection must not keep the last answer
        return rows

    async def script(self, sql: str) -> None:
        """Run SQL without parameters and without a time limit; several statements are allowed."""
        limit, self.limit_s = self.limit_s, None
        try:
            self.execute(sql)
        finally:
            self.limit_s = limit


class AsyncConnection(_Link, psycopg.AsyncConnection[tuple[Any, ...]]):
    """A connection for an event loop, with autocommit."""

    async def wait(self, gen: Any, interval: float = 0.1, timeout: float | None = None) -> Any:
        return await super().wait(gen, interval, self.limit_s if timeout is None else timeout)

    async def fetch(self, statement: Statement, values: Sequence[Any], *, prepare: bool) -> Rows:
        """Run one statement in one round trip."""
        cursor = self.shared_cursor
        await cursor.execute(statement.text, values, prepare=prepare)
        rows: Rows = (await cursor.fetchall()) if cursor.pgresult.nfields else []
        cursor.pgresult.clear()  # an idle connection must not keep the last answer
        return rows

    async def script(self, sql: str) -> None:
        """Run SQL without parameters and without a time limit; several statements are allowed."""
        limit, self.limit_s = self.limit_s, None
        try:
            await self.execute(sql)
        finally:
            self.limit_s = limit


Connection = SyncConnection | AsyncConnection


async def connect_sync(options: Options, *, listener: bool = False) -> SyncConnection:
    """Connect from a thread; an error names the setting to look at."""
    dsn = (listener and options.listen_dsn) or options.dsn
    try:
        connection = SyncConnection.connect(
            _conninfo(options, dsn, "antiphon-listener" if listener else "antiphon"),
            **_settings(options, psycopg.RawCursor),
        )
    except psycopg.Error as error:
        raise cannot_connect(error, without_secrets(dsn)) from None
    await _prepare(connection, options)
    return connection


async def connect_async(options: Options) -> AsyncConnection:
    """Connect from within an event loop; an error names the setting to look at."""
    try:
        connection = await AsyncConnection.connect(
            _conninfo(options, options.dsn, "antiphon"), **_settings(options, psycopg.AsyncRawCursor)
        )
    except psycopg.Error as error:
        raise cannot_connect(error, without_secrets(options.dsn)) from None
    await _prepare(connection, options)
    return connection


def open_sync_pool(options: Options) -> ConnectionPool[SyncConnection]:
    """A pool that closes itself when it lost its last connection and cannot make another."""

    def lost(pool: ConnectionPool[Any]) -> None:
        if not pool.get_stats().get("pool_size"):
            threading.Thread(target=pool.close, daemon=True).start()  # a worker cannot join itself

    return ConnectionPool(
        _conninfo(options, options.dsn, "antiphon"),
        connection_class=SyncConnection,
        kwargs=_settings(options, psycopg.RawCursor),
        configure=lambda connection: drive(_configure(connection, options)),
        reconnect_failed=lost,
        **_sizes(options),
    )


async def open_async_pool(options: Options) -> AsyncConnectionPool[AsyncConnection]:
    """The same for the running event loop."""
    closing: set[asyncio.Task[None]] = set()

    def lost(pool: AsyncConnectionPool[Any]) -> None:
        if not pool.get_stats().get("pool_size"):
            closing.add(asyncio.get_running_loop().create_task(pool.close()))

    pool = AsyncConnectionPool(
        _conninfo(options, options.dsn, "antiphon"),
        connection_class=AsyncConnection,
        kwargs=_settings(options, psycopg.AsyncRawCursor),
        configure=partial(_configure, options=options),
        reconnect_failed=lost,
        **{**_sizes(options), "open": False},
    )
    await pool.open()
    return pool


def close_with(owner: object, pool: ConnectionPool[Any] | AsyncConnectionPool[Any]) -> weakref.finalize[..., Any]:
    """Close *pool* when *owner* is collected or the process ends. A forked child leaves its parent's alone."""
    if isinstance(pool, ConnectionPool):
        return weakref.finalize(owner, _close_pool, pool, os.getpid())
    closing = weakref.finalize(owner, _close_in_loop, pool, asyncio.get_running_loop())
    closing.atexit = False
    return closing


def _close_pool(pool: ConnectionPool[Any], pid: int) -> None:
    if pid == os.getpid():
        pool.close()


def _close_in_loop(pool: AsyncConnectionPool[Any], loop: asyncio.AbstractEventLoop) -> None:
    def close() -> None:
        task = loop.create_task(pool.close())
        task.add_done_callback(lambda task: task.cancelled() or task.exception())

    if not pool.closed:
        with suppress(RuntimeError):  # the loop is closed, and its connections with it
            loop.call_soon_threadsafe(close)


async def _prepare(connection: Connection, options: Options) -> None:
    try:
        await _configure(connection, options)
    except BaseException:
        connection.drop()
        raise


async def _configure(connection: Connection, options: Options) -> None:
    """Set the limits of a session. A transaction-pooling PgBouncer has no sessions: set them on the role there."""
    connection.limit_s = options.statement_timeout_s + _GRACE_S
    register(connection)
    connection.shared_cursor = connection.cursor(binary=True)
    if options.pgbouncer:
        return
    statement = statements(options.schema)["session"]
    limits = {
        "statement_timeout_ms": str(round(options.statement_timeout_s * 1000)),
        "lock_timeout_ms": str(round(options.lock_timeout_s * 1000)),
    }
    rows = await connection.fetch(statement, statement.values(limits), prepare=False)
    connection.session = Session(*rows[0][-2:])


def _settings(options: Options, cursor: type) -> dict[str, Any]:
    return {
        "autocommit": True,
        "cursor_factory": cursor,
        "prepare_threshold": None if options.pgbouncer else 5,
    }


def _sizes(options: Options) -> dict[str, Any]:
    """The store waits for a server that is away, so the pool gives up at once."""
    return {
        "min_size": 0,
        "max_size": options.max_connections,
        "open": True,
        "timeout": options.pool_timeout_s,
        "max_idle": _IDLE_S,
        "max_lifetime": _LIFETIME_S,
        "reconnect_timeout": 0.0,
        "num_workers": 1,
        "name": "antiphon-postgres",
    }


def _conninfo(options: Options, dsn: str, name: str) -> str:
    """The address, with our defaults for what it leaves open."""
    given = conninfo_to_dict(dsn)
    defaults: dict[str, Any] = {
        "application_name": name,
        "client_encoding": "UTF8",
        "connect_timeout": max(1, round(options.connect_timeout_s)),
        "keepalives_idle": 30,
        "keepalives_interval": 10,
        "keepalives_count": 3,
        "tcp_user_timeout": 20_000,
    }
    return make_conninfo(dsn, **{key: value for key, value in defaults.items() if key not in given})
