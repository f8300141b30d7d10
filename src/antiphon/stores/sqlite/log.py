"""The run log and breaker state as SQL. Each function runs inside the caller's transaction."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence

import msgspec

from antiphon.contract.events import RunManifest
from antiphon.ports import BreakerRow, Row
from antiphon.stores._common import BREAKER_KEPT_MS, RunQuery
from antiphon.stores.sqlite.claims import SQL

_END_OF_RUN, _INSERT_EVENT = SQL["end_of_run"], SQL["insert_event"]
INSERT_NEXT = SQL["insert_next_event"]
"""Adds an event, if its run exists and its number is free."""
_PER_RUN = 2**32

_encode = msgspec.json.Encoder().encode


def write(connection: sqlite3.Connection, rows: Iterable[Row]) -> None:
    """Append each row to its run."""
    for row in rows:
        append(connection, row.run, (row,))


def append(connection: sqlite3.Connection, run: str, rows: Sequence[Row]) -> int:
    """Append rows to one run; returns the number of the first one."""
    found = connection.execute(_END_OF_RUN, (run,)).fetchone()
    if found is None:
        connection.execute(SQL["name_run"], (run,))
        found = connection.execute(_END_OF_RUN, (run,)).fetchone()
    number, last = found
    first = number * _PER_RUN if last is None else last + 1
    for place, row in enumerate(rows, first):
        connection.execute(_INSERT_EVENT, (place, row.type, row.at_ms, row.body))
    return int(first - number * _PER_RUN)


def next_place(connection: sqlite3.Connection, run: str) -> int:
    """The id that the next event of a run will have; 0 for a run that nothing was written to."""
    number, last = connection.execute(_END_OF_RUN, (run,)).fetchone() or (0, 0)
    return number * _PER_RUN if last is None else last + 1 if number else 0


def keep(connection: sqlite3.Connection, query: str, manifest: RunManifest) -> None:
    """Insert a run's manifest: with the query ``open_run``, an existing one is left as it is, otherwise replaced."""
    about = (manifest.id, manifest.tenant, manifest.workspace, manifest.name, manifest.status, manifest.started_at_ms)
    connection.execute(SQL[query], (*about, _encode(manifest)))


def manifest_bytes(connection: sqlite3.Connection, run: str) -> bytes | None:
    """The manifest of a run as it was written."""
    found = connection.execute(SQL["manifest"], (run,)).fetchone()
    return None if found is None else found[0]


def runs(connection: sqlite3.Connection, which: RunQuery) -> list[bytes]:
    """Manifests, newest first."""
    parts = ["tenant = ?"]
    values: list[str | int] = [which.tenant]
    for column, value in (("name", which.name), ("status", which.status)):
        if value:
            parts.append(f"{column} = ?")
            values.append(value)
    if which.prefix:
        parts.append("id >= ? AND id < ?")
        values += [which.prefix, which.prefix + "\U0010ffff"]
    if which.before is not None:
        parts.append("(started_at_ms, id) < (?, ?)")
        values += which.before
    fitting = f"SELECT manifest FROM runs WHERE {' AND '.join(parts)}"  # noqa: S608 - own words only
    newest = f"{fitting} ORDER BY started_at_ms DESC, id DESC LIMIT ?"
    return [manifest for (manifest,) in connection.execute(newest, (*values, which.limit))]


def rows(connection: sqlite3.Connection, run: str, start: int, stop: int | None, limit: int) -> list[tuple[int, Row]]:
    """Events of a run with their sequence numbers."""
    found = _first_id(connection, run)
    if found is None:
        return []
    low = found + min(max(0, start), _PER_RUN)
    high = found + (_PER_RUN if stop is None else min(max(0, stop), _PER_RUN))
    cursor = connection.execute(SQL["events"], (low, high, max(0, limit)))
    return [(number - found, Row(run, kind, at_ms, body)) for number, kind, at_ms, body in cursor]


def delete_run(connection: sqlite3.Connection, run: str) -> bool:
    """Delete a run with its events; returns whether there was one."""
    found = _first_id(connection, run)
    if found is None:
        return False
    connection.execute(SQL["delete_events"], (found, found + _PER_RUN))
    connection.execute(SQL["delete_run"], (found // _PER_RUN,))
    return True


def load_breakers(connection: sqlite3.Connection, tenant: str) -> list[BreakerRow]:
    """All breakers of a tenant."""
    return [BreakerRow(*row) for row in connection.execute(SQL["breakers"], (tenant,))]


def save_breaker(connection: sqlite3.Connection, tenant: str, row: BreakerRow) -> None:
    """Keep a breaker's state unless a newer epoch is there."""
    connection.execute(SQL["save_breaker"], (tenant, *row))


def sweep_breakers(connection: sqlite3.Connection, now: int) -> None:
    """Drop states that ended long ago: each process of a fleet leaves one behind."""
    connection.execute(SQL["sweep_breakers"], (now - BREAKER_KEPT_MS,))


def _first_id(connection: sqlite3.Connection, run: str) -> int | None:
    """The id of a run's first event."""
    found = connection.execute(SQL["run_number"], (run,)).fetchone()
    return None if found is None else found[0] * _PER_RUN
