"""Looks up claims by tool, session, state and age: for operators and the sweeper, not for calls.

The index is brought up to date on demand (:func:`catch_up`), each claim once, so that a call writes two pages and not
six. Entries are hints: a claim that was settled, replaced or deleted since is judged by its row.
"""

from __future__ import annotations

import sqlite3
from operator import itemgetter

from antiphon.contract.record import DedupeRecord
from antiphon.stores._common import ClaimQuery
from antiphon.stores.sqlite import log
from antiphon.stores.sqlite.claims import COLUMNS, ID, LOOK_AGAIN_MS, SQL, ClaimRef, forget, to_record


def is_behind(connection: sqlite3.Connection) -> bool:
    """Whether there are claims that the index does not have."""
    return newest(connection) > _indexed(connection)


def catch_up(connection: sqlite3.Connection, limit: int, now: int) -> bool:
    """Enter up to *limit* claims; returns whether there are more."""
    low, last = _indexed(connection), newest(connection)
    if last <= low:
        return False
    high = min(low + limit, last)
    connection.execute(SQL["index_tools"], (low, high))
    connection.execute(SQL["index_sessions"], (low, high))
    connection.execute(SQL["index_open"], (low, high))
    connection.execute(SQL["index_expiry"], (now + LOOK_AGAIN_MS, low, high))
    connection.execute(SQL["set_indexed"], (high,))
    return high < last


class Filter(ClaimQuery):
    """A query as SQL."""

    __slots__ = ()

    def source(self) -> tuple[str, list[str]]:
        """Tables and condition: one index leads to the claims, whatever the size of the store."""
        table, parts, values = "claims AS c INDEXED BY claims_by_key", ["c.tenant = ?"], [self.tenant]
        if self.prefix:
            parts.append("c.key >= ? AND c.key < ?")
            values += [self.prefix, self.prefix + "\U0010ffff"]
        elif self.state not in ("", "done"):
            table = "claim_open AS p CROSS JOIN claims AS c ON c.id = p.id"
        else:
            kind, value = ("session", self.session) if self.session else ("tool", self.tool)
            table = "claim_places AS p CROSS JOIN claims AS c ON c.id = p.id"
            parts.append("p.tenant = ? AND p.kind = ? AND p.value = ?")
            values += [self.tenant, kind, value]
        for column, value in (("tool", self.tool), ("session", self.session), ("state", self.state)):
            if value:
                parts.append(f"c.{column} = ?")
                values.append(value)
        return f"{table} WHERE {' AND '.join(parts)}", values

    def each(self, connection: sqlite3.Connection) -> list[Filter]:
        """The same in parts that an index can return in order: if nothing else is given, one tool after the other."""
        if self.tool or self.session or self.prefix or self.state not in ("", "done"):
            return [self]
        return [self._replace(tool=tool) for (tool,) in connection.execute(SQL["tools"], (self.tenant, self.tenant))]


def find(connection: sqlite3.Connection, which: Filter, now: int) -> list[DedupeRecord]:
    """Live claims, newest first; after a cursor by row, or by time if the claim there is gone."""
    rows = []
    before, limit = which.before, which.limit
    place: tuple[int] | None = None
    if before is not None:
        place = connection.execute(SQL["row_of"], (before.id, which.tenant, before.at)).fetchone()
    older = place or (() if before is None else (before.at,))
    for part in which.each(connection):
        source, values = part.source()
        if place is not None:
            source += f" AND {'p' if ' AS p ' in source else 'c'}.id < ?"
        elif older:
            source += " AND c.fence <= ?"
        query = f"{COLUMNS} FROM {source} AND (c.expires_at_ms > ? OR c.state = 'inflight') ORDER BY c.id DESC LIMIT ?"
        rows += connection.execute(query, (*values, *older, now, limit)).fetchall()
    rows.sort(key=itemgetter(ID), reverse=True)
    return [to_record(row) for row in rows[:limit]]


def counts(connection: sqlite3.Connection, tenant: str, now: int) -> dict[tuple[str, str], int]:
    """Live claims by tool and state: the done ones are those in the index, minus all others."""
    known = _indexed(connection)
    done = dict(connection.execute(SQL["count_all"], (tenant,)).fetchall())
    found: dict[tuple[str, str], int] = {}
    for tool, state, expired, number in connection.execute(SQL["count_not_done"], (now, now, now, now, tenant, known)):
        done[tool] -= number
        if not expired:
            found[tool, state] = number
    for tool, number in connection.execute(SQL["count_done_expired"], (now, now, tenant, known)):
        done[tool] -= number
    found.update({(tool, "done"): number for tool, number in done.items() if number})
    return found


def tenants(connection: sqlite3.Connection) -> list[str]:
    """The tenants in the index."""
    return [tenant for (tenant,) in connection.execute(SQL["tenants"])]


def sweep(connection: sqlite3.Connection, limit: int, now: int) -> int:
    """Delete what has expired; what is still alive is checked again when its time comes.

    A claim in flight is spared the first time: a clock that was set forward may have ended its life, but not its call.
    """
    log.sweep_breakers(connection, now)
    connection.execute(SQL["sweep_pins"], (now, limit))
    swept = connection.execute(SQL["sweep_executions"], (now, limit)).rowcount
    connection.execute(SQL["close_open"])
    due = connection.execute(SQL["due"], (now, limit)).fetchall()
    gone: dict[int, ClaimRef] = {}
    for at_ms, number, *about, state, sweep_at, expires, ttl_ms, spared in due:
        connection.execute(SQL["delete_expiry"], (at_ms, number))
        if state is None:
            continue
        again = sweep_at
        if state == "inflight" and not (spared and expires <= now):
            if expires <= now:
                expires = now + max(1, ttl_ms)
                connection.execute(SQL["spare"], (expires, expires, number))
            again = min(expires, now + LOOK_AGAIN_MS)
        elif sweep_at <= now:
            gone[number] = ClaimRef(number, *about)
            continue
        elif state == "inflight":
            connection.execute(SQL["abandon"], (number,))
        connection.execute(SQL["insert_expiry"], (again, number))
    forget(connection, list(gone.values()))
    return swept + len(gone)


def newest(connection: sqlite3.Connection) -> int:
    """The newest claim's row number."""
    return int(connection.execute(SQL["newest_claim"]).fetchone()[0])


def _indexed(connection: sqlite3.Connection) -> int:
    return int(connection.execute(SQL["indexed"]).fetchone()[0])
