"""A journal in one SQLite file: the durable default, for any number of threads, loops and processes of a machine.

Claim and events are committed in one transaction. With ``synchronous="FULL"`` an answered step survives a power
failure; with ``"NORMAL"`` it survives a killed process, but a power failure may undo the last commits. Time is
the machine's wall clock.
"""

from __future__ import annotations

import os
from pathlib import Path

from antiphon.errors import InvalidInput
from antiphon.ports import Clock
from antiphon.stores._waiters import loop_waiter
from antiphon.stores.sqlite.file import DatabaseFile, shared_file
from antiphon.stores.sqlite.journal import SQLiteJournal, SyncSQLiteJournal


class SQLiteStore:
    """Claims, log and breakers in the file *path*. Its folder is made if only the last part is missing.

    >>> SQLiteStore("/tmp/antiphon.db").url
    'sqlite:////tmp/antiphon.db'
    """

    in_process = False

    def __init__(
        self,
        path: str | os.PathLike[str],
        synchronous: str = "FULL",
        *,
        busy_timeout: float = 5.0,
        clock: Clock | None = None,
    ) -> None:
        if synchronous not in ("FULL", "NORMAL", "EXTRA"):
            raise InvalidInput("synchronous must be 'FULL', 'NORMAL' or 'EXTRA'.", path="synchronous")
        if os.fspath(path) in ("", ":memory:"):
            raise InvalidInput("SQLiteStore needs a file.", path="path", hint="Use MemoryStore() to keep nothing.")
        self._path = Path(path)
        self._synchronous = synchronous
        self._busy_timeout = busy_timeout
        self._clock = clock or Clock()

    @property
    def url(self) -> str:
        return f"sqlite:///{self._path}"

    @property
    def path(self) -> Path:
        """The database file."""
        return self._path

    def open_sync(self) -> SyncSQLiteJournal:
        return SyncSQLiteJournal(self._file(), self._clock)

    def open_async(self) -> SQLiteJournal:
        from antiphon.stores.sqlite.executor import AsyncAccess

        file = self._file()
        return SQLiteJournal(file, self._clock, AsyncAccess(file), loop_waiter)

    def _file(self) -> DatabaseFile:
        return shared_file(self._path, self._synchronous, self._busy_timeout)
