"""Room in the write-ahead log, made before it is needed.

With ``synchronous="FULL"`` every commit waits for the disk. While the log grows, the file system has to write down its
new length and blocks as well, which doubles that wait. So the log is given zeros to overwrite, some at a time, until it
is as long as it becomes before SQLite starts again at its beginning. SQLite takes zeros for what they are: no frames.
"""

from __future__ import annotations

import os
import sqlite3
from contextlib import suppress

_EVERY = 16
"""Commits between two looks at the log: a program that writes little makes no room."""
_STEP = 2 << 20
ENOUGH = 4000 * 4120
"""Where SQLite starts again (``wal_autocheckpoint``), in bytes."""


class LogRoom:
    """Looks after the log of one database file. Whoever asks holds the lock of this process's writer."""

    __slots__ = ("_commits", "_name", "_size")

    def __init__(self, name: str) -> None:
        self._name = f"{name}-wal"
        self._commits = 0
        self._size = 0

    def keep(self, connection: sqlite3.Connection) -> None:
        """To be called before each commit, outside of a transaction. That there is no room is never an error."""
        self._commits += 1
        if self._commits % _EVERY == 0 and self._size < ENOUGH:
            with suppress(OSError, sqlite3.Error):
                if os.stat(self._name).st_size != self._size:  # noqa: PTH116
                    self._make(connection)

    def _make(self, connection: sqlite3.Connection) -> None:
        try:
            connection.execute("BEGIN IMMEDIATE")  # nobody else appends to the log now
            log = os.open(self._name, os.O_WRONLY)
            try:
                end = os.fstat(log).st_size
                os.pwrite(log, bytes(_STEP), end)
                self._size = os.fstat(log).st_size
            finally:
                os.close(log)
        finally:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
