"""Connections to PostgreSQL and their pools, on psycopg and psycopg_pool; and the meaning of a failure.

Did the statement take effect, may it be retried, what to tell users.
"""

from __future__ import annotations

import os
import re
import select
import threading
import weakref
from collections.abc import Mapping
from contextlib import suppress
from enum import Enum
from queue import SimpleQueue
from types import CoroutineType
from typing import Any, TypeVar

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq import ConnStatus, TransactionStatus
from psycopg_pool import ConnectionPool

from antiphon._drive import drive
from antiphon.errors import ConfigError, StoreError, StoreUnavailable
from antiphon.stores.postgres.loop_pool import NAME, LoopPool, is_cancelled
from antiphon.stores.postgres.options import Options, without_secrets
from antiphon.stores.postgres.statements import Statement, register, statements

Rows = list[tuple[Any, ...]]
_SETTING = "`[store] url` (or `log`, `claims`)"
_REDO = frozenset({"40001", "40P01"})
_REFUSED = (
    "authentication failed",
    "no password supplied",
    "no pg_hba.conf entry",
    "is not permitted to log in",
    "certificate",
    "SCRAM",
    "peer authentication",
)
_NO_ROLE = re.compile('role ".*" does not exist')
_FULL = ("too many clients", "too many connections", "connection slots are reserved")
_GRACE_S = 5.0
_IDLE_S = 120.0
_LIFETIME_S = 3600.0


class _Statements:
    """What the store adds to a psycopg connection. Written once: for threads its coroutines never suspend.

    The server ends a statement after its ``statement_timeout``. A frozen server cannot, so the client gives up after
    *limit_s*, and closes the connection.
    """

    pgconn: Any
    execute: Any
    limit_s: float | None = None
    read_committed = True
    """Whether that is the isolation level of a statement outside a transaction."""
    statements: Mapping[str, Statement]
    shared_cursor: Any
    """One cursor for all statements: a new one costs a third of a statement."""

    async def fetch(self, name: str, params: Mapping[str, Any], *, prepare: bool = False) -> Rows:
        """Run one statement in one round trip, or in its own transaction if it would have another isolation level."""
        if self.read_committed or not self.idle():
            return await self._fetch(name, params, prepare)
        await self.begin()
        rows = await self._fetch(name, params, prepare)
        await self.end()
        return rows

    async def _fetch(self, name: str, params: Mapping[str, Any], prepare: bool) -> Rows:
        statement, cursor = self.statements[name], self.shared_cursor
        await maybe_await(cursor.execute(statement.text, statement.values(params), prepare=prepare))
        rows: Rows = (await maybe_await(cursor.fetchall())) if cursor.pgresult.nfields else []
        cursor.pgresult.clear()  # an idle connection must not hold on to the last result
        return rows

    async def begin(self) -> None:
        """Begin a transaction."""
        await maybe_await(self.execute("BEGIN ISOLATION LEVEL READ COMMITTED"))

    async def end(self) -> None:
        """Commit it."""
        await maybe_await(self.execute("COMMIT"))

    async def script(self, sql: str) -> None:
        """Run SQL without parameters and without a time limit; several statements are allowed."""
        limit, self.limit_s = self.limit_s, None
        try:
            await maybe_await(self.execute(sql))
        finally:
            self.limit_s = limit

    def connected(self) -> bool:
        return bool(self.pgconn.status == ConnStatus.OK)

    def idle(self) -> bool:
        """Whether it can take the next statement: connected, no reply pending, outside a transaction."""
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
        """Close it immediately."""
        self.pgconn.finish()


class SyncConnection(_Statements, psycopg.Connection[Any]):
    """A connection for threads, with autocommit."""

    def wait(self, gen: Any, interval: float = 0.1, timeout: float | None = None) -> Any:
        return super().wait(gen, interval, self.limit_s if timeout is None else timeout)


class AsyncConnection(_Statements, psycopg.AsyncConnection[Any]):
    """A connection for an event loop, with autocommit."""

    async def wait(self, gen: Any, interval: float = 0.1, timeout: float | None = None) -> Any:
        return await super().wait(gen, interval, self.limit_s if timeout is None else timeout)


Connection = SyncConnection | AsyncConnection
Pool = ConnectionPool[Any] | LoopPool
C = TypeVar("C", bound=Connection)


async def maybe_await(result: Any) -> Any:
    """What a psycopg method returns to threads, or what its coroutine returns in an event loop."""
    return await result if result.__class__ is CoroutineType else result


async def connect(kind: type[C], options: Options, *, listener: bool = False) -> C:
    """Connect in the caller's turn; an error names the setting to check."""
    dsn = (listener and options.listen_dsn) or options.dsn
    name = "antiphon-listener" if listener else "antiphon"
    try:
        connection: C = await maybe_await(kind.connect(_conninfo(options, dsn, name), **_settings(kind, options)))
    except psycopg.Error as error:
        raise cannot_connect(error, without_secrets(dsn)) from None
    try:
        await _configure(connection, options)
    except BaseException:
        connection.drop()
        raise
    return connection


class ThreadPool(ConnectionPool[Any]):
    """A pool for threads. An interrupt may leave a ``queue.Queue`` locked, so its jobs are in a ``SimpleQueue``."""

    @property
    def _tasks(self) -> Any:
        return self._jobs

    @_tasks.setter
    def _tasks(self, _: Any) -> None:
        self._jobs: SimpleQueue[Any] = SimpleQueue()


async def open_pool(kind: type[Connection], options: Options) -> Pool:
    """A pool that closes itself when it has lost its last connection and cannot make another.

    The store itself waits for a server that is down, so the pool gives up at once.
    """

    def configure(connection: Connection) -> Any:
        configuring = _configure(connection, options)
        if isinstance(pool, ConnectionPool):
            return drive(configuring)
        pool.connections.add(connection)
        return configuring

    make: Any = ThreadPool if kind is SyncConnection else LoopPool
    pool: Pool = make(
        _conninfo(options, options.dsn, "antiphon"),
        connection_class=kind,
        kwargs=_settings(kind, options),
        configure=configure,
        reconnect_failed=_close_if_empty,
        reconnect_timeout=0.0,
        min_size=0,
        max_size=options.max_connections,
        timeout=options.pool_timeout_s,
        max_idle=_IDLE_S,
        max_lifetime=_LIFETIME_S,
        num_workers=1,
        name=NAME,
        open=False,
    )
    await maybe_await(pool.open())
    return pool


def close_with(owner: object, pool: Pool) -> weakref.finalize[..., Any]:
    """Close *pool* when *owner* is collected or the process ends. A forked child leaves its parent's alone."""
    return weakref.finalize(owner, _close_abandoned, pool, os.getpid())


def _close_abandoned(pool: Pool, pid: int) -> None:
    if pid != os.getpid() or pool.closed:
        return
    if isinstance(pool, ConnectionPool):
        pool.close()
    else:
        pool.abandon()


def _close_if_empty(pool: Pool) -> None:
    if pool.get_stats().get("pool_size"):
        return
    if isinstance(pool, ConnectionPool):
        threading.Thread(target=pool.close, daemon=True).start()  # a worker cannot join itself
    elif not is_cancelled():
        pool.abandon()


async def _configure(connection: Connection, options: Options) -> None:
    """Set up a session. A transaction-pooling PgBouncer has none: limits are set on the role there."""
    connection.limit_s = options.statement_timeout_s + _GRACE_S
    register(connection)
    connection.statements = statements(options.schema)
    connection.shared_cursor = connection.cursor(binary=True)
    if options.pgbouncer:
        connection.read_committed = (await connection.fetch("isolation", {}))[0][0] == "read committed"
        return
    limits = {
        "statement_timeout_ms": str(round(options.statement_timeout_s * 1000)),
        "lock_timeout_ms": str(round(options.lock_timeout_s * 1000)),
    }
    await connection.fetch("session", limits)


def _settings(kind: type, options: Options) -> dict[str, Any]:
    return {
        "autocommit": True,
        "cursor_factory": psycopg.RawCursor if kind is SyncConnection else psycopg.AsyncRawCursor,
        "prepare_threshold": None if options.pgbouncer else 5,
    }


def _conninfo(options: Options, dsn: str, name: str) -> str:
    """The address, with our defaults for what it does not specify."""
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


class Fate(Enum):
    """The effect of a statement that raised."""

    REDO = "not executed; retry"
    LOST = "connection lost, outcome unknown"
    SILENT = "no answer in time, outcome unknown; another try would only wait as long"
    STALE = "this connection leads to a server that takes no writes; another one may not"
    FAILED = "certainly not done, and trying again would not help"


class Unreachable(StoreUnavailable):
    """No connection could be made; a retry may succeed a moment later."""


class AnswerLost(Exception):
    """The connection broke after a statement was sent: it may or may not have taken effect."""

    def __init__(self, reason: StoreUnavailable) -> None:
        super().__init__(str(reason))
        self.reason = reason


def fate_of(error: Exception, *, connected: bool, idle: bool) -> Fate:
    """Decide by the server's code first, then by the state of the connection."""
    state = _code(error)
    if state in _REDO:
        return Fate.REDO
    if state == "25006":
        return Fate.STALE
    # A server that shuts down may say so after it has committed, so that message proves nothing.
    if not connected or state.startswith(("57P", "08")):
        return Fate.LOST
    return Fate.FAILED if state or idle else Fate.SILENT


def cannot_connect(error: Exception, url: str) -> Unreachable | ConfigError:
    """The message for a server that refused the connection."""
    if isinstance(error, psycopg.ProgrammingError):  # its text quotes the address, password included
        return ConfigError(
            "The DSN of the PostgreSQL server is invalid.",
            path="store",
            hint=f"Write {_SETTING} as postgresql://user:password@host:port/database.",
        )
    said = _first_line(error)
    if any(word in said for word in _FULL):
        return Unreachable(
            f"PostgreSQL at {url} gives no connection: {said}",
            hint=f"Raise its limits, or use fewer max_connections in {_SETTING}. Nothing was written.",
        )
    if any(word in said for word in _REFUSED) or _NO_ROLE.search(said):
        return Unreachable(
            f"PostgreSQL at {url} refused the login: {said}",
            hint=f"Check user, password and TLS options in {_SETTING}. Nothing was written.",
        )
    return Unreachable(
        f"PostgreSQL at {url} cannot be reached: {said}",
        hint=f"Check host, port and database in {_SETTING}, and that the server runs. Nothing was written.",
    )


def connection_lost(error: Exception, url: str) -> Unreachable:
    """For a connection that broke under a statement."""
    return Unreachable(
        f"The connection to PostgreSQL at {url} broke: {_first_line(error)}",
        hint="The statement may or may not have taken effect.",
    )


def no_answer(url: str) -> Unreachable:
    """For a server that is connected and silent."""
    return Unreachable(
        f"PostgreSQL at {url} did not answer in time.",
        hint=f"Check that the server in {_SETTING} is not frozen. The statement may or may not have taken effect.",
    )


def all_lost(url: str) -> Unreachable:
    """For a pool whose connections all broke and could not be replaced."""
    return Unreachable(
        f"All connections to PostgreSQL at {url} broke.",
        hint=f"Check that the server in {_SETTING} runs. Nothing was written.",
    )


def no_free_connection(size: int, seconds: float) -> StoreUnavailable:
    """For a pool that stayed empty."""
    return StoreUnavailable(
        f"All {size} connections to PostgreSQL stayed busy for {seconds:g} s.",
        hint="Give PostgresStore more max_connections, or make fewer calls at once. Nothing was written.",
        reason="busy",
    )


def closed() -> StoreUnavailable:
    """For a journal used after it was closed."""
    hint = "Open another one with store.open_sync() or open_async()."
    return StoreUnavailable("This journal is closed.", hint=hint, reason="closed")


def refused(error: Exception, url: str, statement: str) -> StoreError:
    """For a statement that certainly was not carried out."""
    state = _code(error)
    said = _first_line(error)
    if state == "25006":
        reason, text = "readonly", "is read-only"
        hint = f"Point {_SETTING} to the primary, or add target_session_attrs=read-write."
    elif state in ("53100", "53200", "53300", "53400", "54000"):
        reason, text = "full", f"is full: {said}"
        hint = f"Free space or connections on the server that {_SETTING} names."
    elif state in ("55P03", "57014"):
        reason, text = "timeout", f"did not finish in time: {said}"
        hint = "Look for long transactions on the antiphon tables."
    elif state in _REDO:
        reason, text = "busy", f"has too many conflicting transactions: {said}"
        hint = "Try again; look for other programs that write to the antiphon tables."
    elif state == "42501":
        reason, text = "permission", f"denies access: {said}"
        hint = f"Grant the role in {_SETTING} its rights, or migrate as the owner."
    elif state in ("3F000", "42P01", "42703"):
        reason, text = "cannot_open", f"lacks tables of the store: {said}"
        hint = "Apply the migrations: PostgresStore(dsn).migrate()."
    else:
        return StoreError(f"PostgreSQL at {url} refused the statement '{statement}' ({state or 'no code'}): {said}")
    return StoreUnavailable(f"PostgreSQL at {url} {text}.", hint=f"{hint} Nothing was written.", reason=reason)


def _code(error: Exception) -> str:
    return getattr(error, "sqlstate", None) or ""


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
