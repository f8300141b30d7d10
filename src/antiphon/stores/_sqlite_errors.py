"""What SQLite and the file system complain about, as one sentence that names the file."""

from __future__ import annotations

import sqlite3

from antiphon.errors import StoreUnavailable

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
