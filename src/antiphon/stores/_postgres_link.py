"""One connection to PostgreSQL, for threads or an event loop: the seam under which everything else is written once."""

from __future__ import annotations

import contextlib
import select
import time
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

from antiphon.errors import missing_extra
from antiphon.stores._postgres_errors import cannot_connect
from antiphon.stores._postgres_options import Options, without_secrets
from antiphon.stores._postgres_sql import Statement, statements
from antiphon.stores._postgres_types import register

Rows = list[tuple[Any, ...]]
_GRACE_S = 5.0


class Session(NamedTuple):
    """Which server process is at the other end: its number, and when it began, for numbers are used again."""

    pid: int
    started: str


class Link(Protocol):
    """A connection with autocommit: each statement is a transaction unless one was begun."""

    born: float
    used: float
    session: Session | None

    async def fetch(self, statement: Statement, values: Sequence[Any], *, prepare: bool) -> Rows:
        """Run one statement in one round trip."""
        ...

    async def script(self, sql: str) -> None:
        """Run SQL without parameters, however long it takes; several statements are allowed."""
        ...

    def stale(self) -> bool:
        """Whether the server hung up while nobody looked. Costs no round trip."""
        ...

    def connected(self) -> bool: ...

    def idle(self) -> bool:
        """Whether it is fit for the next statement: connected, answered, outside a transaction."""
        ...

    def drop(self) -> None:
        """Hang up at once."""
        ...


class _Socket:
    """What both kinds of link know of their connection."""

    __slots__ = ("_cursor", "_poll", "born", "connection", "session", "used")

    def __init__(self, connection: Any) -> None:
        self.connection = connection
        self._cursor = connection.cursor(binary=True)
        self.session: Session | None = None
        self.born = self.used = time.monotonic()
        self._poll = select.poll()
        self._poll.register(connection.pgconn.socket, select.POLLIN)

    def stale(self) -> bool:
        if not self._poll.poll(0):
            return False
        import psycopg

        with contextlib.suppress(psycopg.Error):  # a notice is no reason to hang up
            self.connection.pgconn.consume_input()
        return not self.connected()

    def connected(self) -> bool:
        return not self.connection.closed

    def idle(self) -> bool:
        return self.connected() and self.connection.pgconn.transaction_status == 0

    def drop(self) -> None:
        self.connection.pgconn.finish()


class SyncLink(_Socket):
    """A link whose coroutines never suspend."""

    __slots__ = ()

    async def fetch(self, statement: Statement, values: Sequence[Any], *, prepare: bool) -> Rows:
        cursor = self._cursor
        cursor.execute(statement.text, values, prepare=prepare)
        result = cursor.pgresult
        rows: Rows = cursor.fetchall() if result.nfields else []
        result.clear()  # an idle connection must not keep the last answer alive
        return rows

    async def script(self, sql: str) -> None:
        limit, self.connection.limit_s = self.connection.limit_s, None
        try:
            self.connection.execute(sql)
        finally:
            self.connection.limit_s = limit


class AsyncLink(_Socket):
    """A link of one event loop."""

    __slots__ = ()

    async def fetch(self, statement: Statement, values: Sequence[Any], *, prepare: bool) -> Rows:
        cursor = self._cursor
        await cursor.execute(statement.text, values, prepare=prepare)
        result = cursor.pgresult
        rows: Rows = (await cursor.fetchall()) if result.nfields else []
        result.clear()
        return rows

    async def script(self, sql: str) -> None:
        limit, self.connection.limit_s = self.connection.limit_s, None
        try:
            await self.connection.execute(sql)
        finally:
            self.connection.limit_s = limit


async def connect_sync(options: Options, *, listener: bool = False) -> SyncLink:
    """Dial; every failure is one error that names the setting."""
    dsn = (listener and options.listen_dsn) or options.dsn
    driver = load_driver()
    try:
        connection = driver.Sync.connect(
            _conninfo(options, dsn, "antiphon-listener" if listener else "antiphon"),
            autocommit=True,
            cursor_factory=driver.SyncCursor,
            prepare_threshold=_prepares(options),
        )
    except driver.Error as error:
        raise cannot_connect(error, without_secrets(dsn)) from None
    connection.limit_s = options.statement_timeout_s + _GRACE_S
    register(connection)
    return SyncLink(connection)


async def connect_async(options: Options) -> AsyncLink:
    """Dial from within an event loop."""
    driver = load_driver()
    try:
        connection = await driver.Async.connect(
            _conninfo(options, options.dsn, "antiphon"),
            autocommit=True,
            cursor_factory=driver.AsyncCursor,
            prepare_threshold=_prepares(options),
        )
    except driver.Error as error:
        raise cannot_connect(error, without_secrets(options.dsn)) from None
    connection.limit_s = options.statement_timeout_s + _GRACE_S
    register(connection)
    return AsyncLink(connection)


async def prepare_session(link: Link, options: Options) -> None:
    """Set the limits of a session. A transaction-pooling PgBouncer has no sessions: set them on the role there."""
    if options.pgbouncer:
        return
    statement = statements(options.schema)["session"]
    limits = {
        "statement_timeout_ms": str(round(options.statement_timeout_s * 1000)),
        "lock_timeout_ms": str(round(options.lock_timeout_s * 1000)),
    }
    rows = await link.fetch(statement, statement.values(limits), prepare=False)
    link.session = Session(*rows[0][-2:])


class Driver(NamedTuple):
    """What is used of psycopg."""

    Sync: Any
    Async: Any
    SyncCursor: Any
    AsyncCursor: Any
    Error: type[Exception]


@lru_cache(maxsize=1)
def load_driver() -> Driver:
    """psycopg, imported when a connection is first needed, with connections that do not wait for ever.

    The server ends a statement after its ``statement_timeout``. A server that is frozen cannot, so the client
    gives up a little later, and the connection with it.
    """
    try:
        import psycopg
    except ImportError as error:
        raise missing_extra("psycopg", "postgres", "PostgresStore", ">= 3.3") from error
    if tuple(map(int, psycopg.__version__.split(".")[:2])) < (3, 3):
        raise missing_extra("psycopg", "postgres", "PostgresStore", ">= 3.3")

    class Sync(psycopg.Connection[Any]):
        limit_s: float | None = None

        def wait(self, gen: Any, interval: float = 0.1, timeout: float | None = None) -> Any:
            return super().wait(gen, interval, self.limit_s if timeout is None else timeout)

    class Async(psycopg.AsyncConnection[Any]):
        limit_s: float | None = None

        async def wait(self, gen: Any, interval: float = 0.1, timeout: float | None = None) -> Any:
            return await super().wait(gen, interval, self.limit_s if timeout is None else timeout)

    return Driver(Sync, Async, psycopg.RawCursor, psycopg.AsyncRawCursor, psycopg.Error)


def _prepares(options: Options) -> int | None:
    return None if options.pgbouncer else 5


def _conninfo(options: Options, dsn: str, name: str) -> str:
    """The address, with our defaults for what it leaves open."""
    from psycopg.conninfo import conninfo_to_dict, make_conninfo

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
