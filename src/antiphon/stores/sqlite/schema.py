"""Opens the database file: its settings and schema, waiting for its lock, and its errors as one sentence.

The schema is created by numbered migrations, forward only. An index that was added later has no number: every release
works with and without it, so old and new ones can share a file.
"""

from __future__ import annotations

import contextlib
import functools
import os
import random
import sqlite3
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from antiphon.errors import StoreUnavailable
from antiphon.stores._common import check_version

T = TypeVar("T")

APPLICATION_ID = 0x416E7068
FOLDER = Path(__file__).parent
OLDEST_SQLITE = (3, 37, 0)  # STRICT tables
_LATER_INDEXES = (
    "CREATE INDEX IF NOT EXISTS runs_by_status ON runs (tenant, status, started_at_ms, id)",
    "CREATE INDEX IF NOT EXISTS executions_of_calls ON executions (tenant, key) WHERE identity <> ''",
)
_INDEX_BUSY_S = 0.25
_KEPT = "Nothing was written."
_SENTENCES = {
    sqlite3.SQLITE_BUSY: ("locked", "is locked by another process", "Find the process with an open transaction."),
    sqlite3.SQLITE_LOCKED: ("locked", "is locked", "Find the process with an open transaction."),
    sqlite3.SQLITE_FULL: ("full", "cannot grow: the disk is full", "Free some space; claims work again at once."),
    sqlite3.SQLITE_READONLY: ("readonly", "cannot be written", "Check the owner and mode of the file and its folder."),
    sqlite3.SQLITE_CANTOPEN: ("cannot_open", "cannot be opened", "Check that its folder exists and can be written."),
    sqlite3.SQLITE_PERM: ("permission", "cannot be opened", "Check the owner and mode of the file and its folder."),
    sqlite3.SQLITE_IOERR: ("io", "cannot be read or written", "Check the disk. What was answered before is kept."),
    sqlite3.SQLITE_CORRUPT: ("corrupt", "is damaged", "Restore it from a backup, or move it away to start a new one."),
    sqlite3.SQLITE_NOTADB: ("corrupt", "is not an SQLite database", "Move it away, or give SQLiteStore another path."),
}


class Connection(sqlite3.Connection):
    """Belongs to one thread at a time, never to a forked child."""

    inode = 0
    """The file that it has open, whatever its path leads to now."""
    look_at: float = 0.0
    """When to check again whether these are the same."""
    is_open: bool = True
    writes: sqlite3.Cursor
    """For statements that return no rows: one that is made for each costs as much as binding its values."""

    def close(self) -> None:
        super().close()
        self.is_open = False


def connect(path: Path, synchronous: str, busy_s: float, *, new: bool) -> tuple[Connection, int]:
    """A connection ready for use, and the version of the schema; *new*: the file may not exist yet."""
    if new:
        _create(path)
    try:
        connection = sqlite3.connect(path, timeout=0, isolation_level=None, check_same_thread=False, factory=Connection)
        try:
            retry_busy(lambda: _set_up(connection, path, synchronous), busy_s)
            connection.inode = path.stat().st_ino
            connection.writes = connection.cursor()
            number = _migrate(connection, path, busy_s)
            if new:
                _add_indexes(connection, min(busy_s, _INDEX_BUSY_S))
            return connection, number
        except BaseException:
            connection.close()
            raise
    except (sqlite3.Error, OSError) as error:
        raise unavailable(str(path), error) from error


def _create(path: Path) -> None:
    """Create the file with mode 0600 and, if it is missing, its folder with a ``.gitignore`` for everything in it."""
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


def retry_busy(step: Callable[[], T], busy_s: float) -> T:
    """Run *step*, retrying after short random pauses while another process holds the lock, for at most *busy_s*."""
    deadline = 0.0
    pause = 0.0001
    while True:
        try:
            return step()
        except sqlite3.OperationalError as error:
            if _code(error) not in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
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


def _migrate(connection: Connection, path: Path, busy_s: float) -> int:
    """Migrate the schema; returns its version. A newer or a foreign database is refused."""
    steps = migrations()
    found = retry_busy(lambda: _schema(connection, path), busy_s)  # busy while another process recovers the log
    if found < len(steps):
        retry_busy(lambda: connection.execute("BEGIN IMMEDIATE"), busy_s)
        for number in range(_schema(connection, path), len(steps)):
            _apply(connection, number + 1, steps[number])
        connection.execute("COMMIT")
        found = _schema(connection, path)
    check_version(f"The database {path}", found, len(steps))
    return found


def _add_indexes(connection: Connection, busy_s: float) -> None:
    """Create missing indexes; if that is not possible now, the next process retries."""
    for statement in _LATER_INDEXES:
        with contextlib.suppress(sqlite3.Error):  # another process creates it or is at work; full; read-only
            retry_busy(functools.partial(connection.execute, statement), busy_s)


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


def unavailable(path: str, error: sqlite3.Error | OSError) -> StoreUnavailable:
    """The error as the rest of Antiphon knows it."""
    if isinstance(error, OSError):
        reason, hint = "cannot_open", "Check that its folder exists and can be written."
        text = f"cannot be used: {error.strerror or error}. {_KEPT}"
    else:
        reason, what, hint = _SENTENCES.get(_code(error), ("failed", "failed", "This is a bug: please report it."))
        kept = "It is uncertain whether this step was stored." if reason == "io" else _KEPT
        text = f"{what} ({error}). {kept}"
    found = StoreUnavailable(f"The store {path} {text}", hint=hint, reason=reason)
    found.__cause__ = error
    return found


def _code(error: sqlite3.Error) -> int:
    return (getattr(error, "sqlite_errorcode", None) or 0) & 0xFF
