"""The schema of the database file: numbered migrations, forward only."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

from antiphon.errors import StoreUnavailable
from antiphon.stores._common import check_version
from antiphon.stores.sqlite.connect import retry_busy, unavailable

APPLICATION_ID = 0x416E7068
FOLDER = Path(__file__).parent


def migrate(connection: sqlite3.Connection, path: Path, busy_s: float) -> int:
    """Bring the schema up to date; returns its number. A newer or a foreign database is refused."""
    steps = migrations()
    try:
        if _schema(connection, path) < len(steps):
            retry_busy(lambda: connection.execute("BEGIN IMMEDIATE"), busy_s)
            try:
                for number in range(_schema(connection, path), len(steps)):
                    _apply(connection, number + 1, steps[number])
                connection.execute("COMMIT")
            except BaseException:
                connection.execute("ROLLBACK")
                raise
        found = _schema(connection, path)
    except sqlite3.Error as error:
        raise unavailable(str(path), error) from error
    check_version(f"The database {path}", found, len(steps))
    return found


def migrations() -> list[Path]:
    """The numbered migration files in order."""
    return sorted(FOLDER.glob("[0-9][0-9][0-9][0-9]_*.sql"))


def statements(text: str) -> Iterator[str]:
    """The statements of an SQL text; semicolons in comments do not count."""
    pending = ""
    for line in text.splitlines(keepends=True):
        pending += line
        if sqlite3.complete_statement(pending):
            yield pending
            pending = ""


def _schema(connection: sqlite3.Connection, path: Path) -> int:
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if not tables:
        return 0
    # In this order: another process may be creating the tables, and they come with the mark.
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    if application != APPLICATION_ID:
        raise StoreUnavailable(
            f"The database {path} belongs to another program.", hint="Give SQLiteStore a path of its own."
        )
    (number,) = connection.execute("SELECT value FROM meta WHERE name = 'schema'").fetchone()
    return int(number)


def _apply(connection: sqlite3.Connection, number: int, file: Path) -> None:
    for statement in statements(file.read_text(encoding="utf-8")):
        connection.execute(statement)
    connection.execute("INSERT OR REPLACE INTO meta (name, value) VALUES ('schema', ?)", (number,))
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
