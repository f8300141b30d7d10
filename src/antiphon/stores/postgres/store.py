"""Claims and run log on PostgreSQL, for a fleet: each step is one transaction and one round trip."""

from __future__ import annotations

from urllib.parse import quote

from antiphon._drive import drive
from antiphon.errors import missing_extra
from antiphon.ports import Journal, SyncJournal
from antiphon.stores._adapters import SyncFromAsync
from antiphon.stores.postgres.options import Options, without_secrets

_SCHEMA = "antiphon"


class PostgresStore:
    """Describes a PostgreSQL database; each gateway opens its own journal.

    The tables live in *schema* and are created or migrated by the first connection (``migrate=False``: only by
    :meth:`migrate`). A journal uses up to *max_connections*, and a process one more to listen on as soon as somebody
    waits. If the server goes away, the store waits *reconnect_s* for it. Through a PgBouncer that pools transactions,
    pass ``pgbouncer=True``, and *listen_dsn*, a direct address, unless waiting may poll every *poll_s*. Where only an
    address can be given, it may carry any of these: ``postgresql://host/db?antiphon_schema=team``.

    >>> PostgresStore("postgresql://ada:secret@db.example/agents").url
    'postgresql://ada@db.example/agents'
    """

    in_process = False

    def __init__(
        self,
        dsn: str,
        *,
        schema: str = _SCHEMA,
        max_connections: int = 10,
        migrate: bool = True,
        connect_timeout_s: float = 5.0,
        pool_timeout_s: float = 10.0,
        statement_timeout_s: float = 10.0,
        lock_timeout_s: float = 5.0,
        reconnect_s: float = 5.0,
        pgbouncer: bool = False,
        listen_dsn: str = "",
        poll_s: float = 0.25,
    ) -> None:
        options = Options(
            dsn=dsn,
            schema=schema,
            max_connections=max_connections,
            migrate=migrate,
            connect_timeout_s=connect_timeout_s,
            pool_timeout_s=pool_timeout_s,
            statement_timeout_s=statement_timeout_s,
            lock_timeout_s=lock_timeout_s,
            reconnect_s=reconnect_s,
            pgbouncer=pgbouncer,
            listen_dsn=listen_dsn,
            poll_s=poll_s,
        )
        self._options = options.with_address_options().check()
        _import_driver()

    @property
    def url(self) -> str:
        """Where it is, without secrets; includes a non-default schema, which makes it a different store."""
        place, schema = without_secrets(self._options.dsn), self._options.schema
        if schema == _SCHEMA:
            return place
        mark = " " if "://" not in place else "&" if "?" in place else "?"
        return f"{place}{mark}antiphon_schema={quote(schema, safe='')}"

    def __repr__(self) -> str:
        return f"PostgresStore({self.url!r}, schema={self._options.schema!r})"

    def open_sync(self) -> SyncJournal:
        """A journal for threads. It connects on first use."""
        from antiphon.stores.postgres.engine import Engine
        from antiphon.stores.postgres.journal import PostgresJournal

        return SyncFromAsync(PostgresJournal(Engine(self._options)))

    def open_async(self) -> Journal:
        """A journal for the running event loop. It connects on first use."""
        from antiphon.stores.postgres.engine import AsyncEngine
        from antiphon.stores.postgres.journal import PostgresJournal

        return PostgresJournal(AsyncEngine(self._options))

    def migrate(self) -> int:
        """Bring the tables to the version this release needs, and return it. Any process may call it at any time."""
        import psycopg

        from antiphon.stores.postgres.connection import SyncConnection, connect, refused
        from antiphon.stores.postgres.schema import ensure_schema

        connection = drive(connect(SyncConnection, self._options))
        try:
            return drive(ensure_schema(connection, self._options, migrate=True))
        except psycopg.Error as error:
            raise refused(error, self.url, "migrate") from error
        finally:
            connection.drop()


def _import_driver() -> None:
    """Import everything that a journal needs, or say what to install if psycopg or its pool is missing or too old.

    Not on the first call: if a process forks while a thread imports, the child would wait for that import forever.
    """
    needed = missing_extra("psycopg", "postgres", "PostgresStore", ">= 3.3")
    try:
        import psycopg
        import psycopg_pool  # noqa: F401
    except ImportError as error:
        raise needed from error
    if tuple(map(int, psycopg.__version__.split(".")[:2])) < (3, 3):
        raise needed
    import antiphon.stores.postgres.journal  # noqa: F401
