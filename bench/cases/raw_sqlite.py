"""What the disk alone costs: the two commits of a guarded call as bare statements of ``sqlite3``."""

import hashlib
import itertools
import sqlite3
import tempfile
from pathlib import Path

REQUEST, OUTCOME, PAYLOAD = b"r" * 346, b"o" * 141, b"p" * 24
STARTED, FINISHED = 400, 200
"""Bytes of the two events of a recorded call; the parameters come on top of the first."""


def commits(file, synchronous, recorded=False):
    """Insert a claim, then update it; a recorded call adds an event to each. Rows are as long as Antiphon's."""
    started, finished = b"s" * (STARTED + Path(file).stat().st_size), b"f" * FINISHED
    connection = sqlite3.connect(Path(tempfile.mkdtemp()) / "raw.db", isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute(f"PRAGMA synchronous = {synchronous}")
    connection.execute("PRAGMA wal_autocheckpoint = 4000")
    connection.execute(
        "CREATE TABLE claims (id INTEGER PRIMARY KEY, key TEXT UNIQUE, place TEXT, state TEXT, version INTEGER,"
        " expires_at_ms INTEGER, request BLOB, outcome BLOB, payload BLOB)"
    )
    connection.execute("CREATE TABLE events (id INTEGER PRIMARY KEY, type TEXT, at_ms INTEGER, body BLOB)")
    numbers = itertools.count(1)
    execute, place = connection.execute, "w" * 200

    def commit(statement, values, kind, body):
        if not recorded:
            execute(statement, values)
            return
        execute("BEGIN IMMEDIATE")
        execute(statement, values)
        execute("INSERT INTO events (type, at_ms, body) VALUES (?, ?, ?)", (kind, 1_700_000_000_000, body))
        execute("COMMIT")

    def pair():
        number = next(numbers)
        key = hashlib.sha256(b"%d" % number).hexdigest()
        claim = (key, place, number, REQUEST)
        insert = "INSERT INTO claims (key, place, state, version, request) VALUES (?, ?, 'inflight', ?, ?)"
        commit(insert, claim, "call.started", started)
        update = "UPDATE claims SET state = 'done', expires_at_ms = ?, outcome = ?, payload = ? WHERE key = ?"
        commit(update, (number, OUTCOME, PAYLOAD, key), "call.finished", finished)

    for _ in range(1000):  # until the log is as long as it becomes: a log that grows costs more
        pair()
    yield pair
    connection.close()
