"""Opening the database file: folder, mode, pragmas, migrations."""

from __future__ import annotations

import os
import random
import sqlite3
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from antiphon.errors import StoreUnavailable
from antiphon.stores._common import SQL_FOLDER, check_version
from antiphon.stores._sqlite_errors import is_busy, unavailable

T = TypeVar("T")

APPLICATION_ID = 0x416E7068
OLDEST_SQLITE = (3, 37, 0)  # STRICT tables
_FOLDER = SQL_FOLDER / "sqlite"


def connect(path: Path, synchronous: str, busy_s: float) -> sqlite3.Connection:
    """A connection ready for use. It belongs to one thread at a time, never to a forked child."""
    try:
        connection = sqlite3.connect(path, timeout=0, isolation_level=None, check_same_thread=False)
        try:
            retry_busy(lambda: _set_up(connection, path, synchronous), busy_s)
        except BaseException:
            connection.close()
            raise
    except sqlite3.Error as error:
        raise unavailable(str(path), error) from error
    return connection


def create(path: Path) -> None:
    """Make the file with mode 0600 and, if it is missing, its folder with a ``.gitignore`` for all in it."""
    if sqlite3.sqlite_version_info < OLDEST_SQLITE:
        needed = ".".join(map(str, OLDEST_SQLITE))
        raise StoreUnavailable(f"SQLiteStore needs SQLite {needed} or newer; here is {sqlite3.sqlite_version}.")
    try:
        if path.exists():
            return
        if not path.parent.exists():
            path.parent.mkdir(mode=0o700, exist_ok=True)
            (path.parent / ".gitignore").write_text("*\n", encoding="ascii")
        os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
    except OSError as error:
        raise unavailable(str(path), error) from error


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
    return sorted(_FOLDER.glob("[0-9][0-9][0-9][0-9]_*.sql"))


def statements(text: str) -> Iterator[str]:
    """The statements of an SQL text; semicolons in comments do not count."""
    pending = ""
    for line in text.splitlines(keepends=True):
        pending += line
        if sqlite3.complete_statement(pending):
            yield pending
            pending = ""


def retry_busy(step: Callable[[], T], busy_s: float) -> T:
    """Run *step*, again after short random pauses while another process holds the lock, for at most *busy_s*."""
    deadline = 0.0
    pause = 0.0001
    while True:
        try:
            return step()
        except sqlite3.OperationalError as error:
            if not is_busy(error):
                raise
            now = time.monotonic()
            deadline = deadline or now + busy_s
            if now >= deadline:
                raise
        time.sleep(pause * random.uniform(0.5, 1.0))
        pause = min(pause * 1.5, 0.001)  # longer ones starve: the lock is free only for moments


def _set_up(connection: sqlite3.Connection, path: Path, synchronous: str) -> None:
    mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
    if mode != "wal":
        raise StoreUnavailable(
            f"The store {path} cannot use a write-ahead log (journal mode is {mode!r}).",
            hint="Put it on a local disk: SQLite does not work across network file systems.",
        )
    connection.execute(f"PRAGMA synchronous = {synchronous}")
    connection.execute("PRAGMA temp_store = MEMORY")
    connection.execute("PRAGMA cache_size = -8000")
    connection.execute("PRAGMA wal_autocheckpoint = 4000")
    connection.execute("PRAGMA journal_size_limit = 67108864")


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
