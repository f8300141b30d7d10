"""Opening the database file, waiting for its lock, and its errors as one sentence that names the file."""

from __future__ import annotations

import os
import random
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from antiphon.errors import StoreUnavailable

T = TypeVar("T")

OLDEST_SQLITE = (3, 37, 0)  # STRICT tables
_KEPT = "Nothing was written."
_SENTENCES = {
    sqlite3.SQLITE_BUSY: (
        "locked",
        "is locked by another process",
        "Look for a process that keeps a transaction open.",
    ),
    sqlite3.SQLITE_LOCKED: ("locked", "is locked", "Look for a process that keeps a transaction open."),
    sqlite3.SQLITE_FULL: ("full", "cannot grow: the disk is full", "Free some space; claims work again at once."),
    sqlite3.SQLITE_READONLY: ("readonly", "cannot be written", "Check the owner and mode of the file and its folder."),
    sqlite3.SQLITE_CANTOPEN: ("cannot_open", "cannot be opened", "Check that its folder exists and can be written."),
    sqlite3.SQLITE_PERM: ("permission", "cannot be opened", "Check the owner and mode of the file and its folder."),
    sqlite3.SQLITE_IOERR: (
        "io",
        "cannot be read or written",
        "Check the disk. All that was answered before is kept.",
    ),
    sqlite3.SQLITE_CORRUPT: ("corrupt", "is damaged", "Restore it from a backup, or move it away to start a new one."),
    sqlite3.SQLITE_NOTADB: ("corrupt", "is not an SQLite database", "Move it away, or give SQLiteStore another path."),
}


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


def unavailable(path: str, error: sqlite3.Error | OSError) -> StoreUnavailable:
    """The error as the rest of Antiphon knows it."""
    translated = _translate(path, error)
    translated.__cause__ = error
    return translated


def _translate(path: str, error: sqlite3.Error | OSError) -> StoreUnavailable:
    if isinstance(error, OSError):
        return StoreUnavailable(
            f"The store {path} cannot be used: {error.strerror or error}. {_KEPT}",
            hint="Check that its folder exists and can be written.",
            reason="cannot_open",
        )
    code = getattr(error, "sqlite_errorcode", None)
    reason, what, hint = _SENTENCES.get(
        (code or 0) & 0xFF, ("failed", "failed", "This is not an error of yours: please report it.")
    )
    kept = "Whether this step was kept is uncertain." if reason == "io" else _KEPT
    return StoreUnavailable(f"The store {path} {what} ({error}). {kept}", hint=hint, reason=reason)


def is_busy(error: sqlite3.Error) -> bool:
    """Whether trying again in a moment can help."""
    return (getattr(error, "sqlite_errorcode", None) or 0) & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
