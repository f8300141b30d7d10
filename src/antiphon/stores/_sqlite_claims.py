"""The claim steps as SQL. Each function is one atomic step: it runs inside the caller's transaction."""

from __future__ import annotations

import sqlite3
from typing import NamedTuple

import msgspec
from msgspec import UNSET, Raw

from antiphon.contract.record import RECORD_VERSION, DedupeRecord, RecordedRequest
from antiphon.ports import Ask, Claimed, Existing, Final
from antiphon.stores._common import (
    NO_OUTCOME,
    SQL_FOLDER,
    Outcome,
    check_version,
    named_queries,
    next_version,
    outcome_of,
)

SQL = named_queries(SQL_FOLDER / "sqlite" / "queries.sql")
_CLAIM, _EXECUTION, _INSERT_CLAIM, _SETTLE = SQL["claim"], SQL["execution"], SQL["insert_claim"], SQL["settle"]
_COLUMNS = _CLAIM[: _CLAIM.index("FROM")]

_encode = msgspec.json.Encoder().encode
_request = msgspec.json.Decoder(RecordedRequest).decode
_outcome = msgspec.json.Decoder(Outcome).decode
_record = msgspec.json.Decoder(DedupeRecord).decode


class _Claim(NamedTuple):
    """A row of ``claims`` in the order of the query."""

    key: str
    tool: str
    idempotency_key: str
    state: str
    created_at_ms: int
    updated_at_ms: int
    expires_at_ms: int
    ttl_ms: int
    request: bytes
    version: int
    fence: int
    tenant: str
    workspace: str
    owner: str
    dispatched: int
    outcome: bytes | None
    payload: bytes | None
    lock_until_ms: int
    v: int
    identity: str
    history: int
    sweep_at_ms: int

    def to_record(self) -> DedupeRecord:
        check_version(f"The claim {self.key}", self.v, RECORD_VERSION)
        outcome = NO_OUTCOME if self.outcome is None else _outcome(self.outcome)
        return DedupeRecord(
            key=self.key,
            tool=self.tool,
            idempotency_key=self.idempotency_key,
            state=self.state,  # type: ignore[arg-type]
            created_at_ms=self.created_at_ms,
            updated_at_ms=self.updated_at_ms,
            expires_at_ms=self.expires_at_ms,
            ttl_ms=self.ttl_ms,
            request=_request(self.request),
            version=self.version,
            fence=self.fence,
            tenant=self.tenant,
            workspace=self.workspace,
            owner=self.owner,
            dispatched=bool(self.dispatched),
            execution=outcome.execution,
            payload=UNSET if self.payload is None else Raw(self.payload),
            payload_ref=outcome.payload_ref,
            payload_sealed=outcome.payload_sealed,
            output_redacted=outcome.output_redacted,
            error=outcome.error,
            lock_until_ms=self.lock_until_ms if self.state == "inflight" else UNSET,
            v=self.v,
        )


def look_up(connection: sqlite3.Connection, key: str, identity: str, now: int) -> Existing | None:
    """What is there for this key and identity, if anything lives."""
    claim = _find(connection, key)
    if claim is None:
        return None
    if claim.expires_at_ms > now:
        record = claim.to_record()
        own = record if claim.identity == identity else _earlier(connection, claim, identity, now)
        return Existing(record, own, now)
    own = _earlier(connection, claim, identity, now)
    return None if own is None else Existing(own, own, now)


def begin(connection: sqlite3.Connection, ask: Ask, now: int) -> Claimed | Existing:
    """Insert, or answer with what is there."""
    version = now * 1000
    if _insert(connection, ask, now, version):
        return Claimed(version, now)
    return look_up(connection, ask.key, ask.identity, now) or _replace(connection, ask, now)


def take(connection: sqlite3.Connection, ask: Ask, version: int, now: int) -> Claimed | Existing:
    """Replace *version*, or answer with what is there instead."""
    existing = look_up(connection, ask.key, ask.identity, now)
    if existing is not None and existing.current.version != version:
        return existing
    return _replace(connection, ask, now)


def settle(connection: sqlite3.Connection, key: str, version: int, final: Final, now: int) -> int | None:
    """End the claim, or learn that it is somebody else's by now."""
    new_version = next_version(version, now)
    outcome = _encode(outcome_of(final))
    values = (final.state, new_version, now, now + final.ttl_ms, final.ttl_ms, final.dispatched, outcome, final.payload)
    changed = connection.execute(_SETTLE, (*values, key, version)).rowcount
    return new_version if changed else None


def alias(connection: sqlite3.Connection, key: str, identity: str, version: int, now: int) -> None:
    """Let another identity find a settled execution as its own."""
    claim = _find(connection, key)
    if claim is None or (claim.identity == identity and claim.expires_at_ms > now):
        return
    if claim.version == version:
        record = claim.to_record()
    else:
        found = connection.execute(SQL["execution_of_version"], (key, version, now)).fetchone()
        if found is None:
            return
        record = _known(claim.key, *found)
    if record.state != "inflight" and record.expires_at_ms > now:
        _keep(connection, record, identity)
        connection.execute(SQL["mark_history"], (record.expires_at_ms, key))


def renew(connection: sqlite3.Connection, key: str, version: int, lease_ms: int, now: int) -> bool:
    """Extend the lease of a claim that is still ours."""
    return connection.execute(SQL["renew"], (now + lease_ms, now, key, version)).rowcount > 0


def in_flight(connection: sqlite3.Connection, key: str, version: int) -> bool:
    """Whether *version* has neither settled nor gone."""
    return connection.execute(SQL["in_flight"], (key, version)).fetchone() is not None


def clear(connection: sqlite3.Connection, key: str) -> bool:
    """Forget a key and its history, but not how far its versions had come."""
    connection.execute(SQL["delete_executions"], (key,))
    gone = connection.execute(SQL["delete_claim"], (key,)).fetchall()
    if gone:
        connection.execute(SQL["raise_floor"], gone[0])
    return bool(gone)


def sweep(connection: sqlite3.Connection, limit: int, now: int) -> int:
    """Delete what has expired."""
    executions = connection.execute(SQL["sweep_executions"], (now, limit)).rowcount
    gone = connection.execute(SQL["sweep_claims"], (now, limit)).fetchall()
    _bury(connection, gone)
    return executions + len(gone)


def newest(connection: sqlite3.Connection) -> int:
    """The newest claim's row number."""
    return int(connection.execute(SQL["newest_claim"]).fetchone()[0])


class Filter(NamedTuple):
    """Which claims an operator means; an empty text means all."""

    tenant: str
    tool: str = ""
    session: str = ""
    prefix: str = ""
    state: str = ""

    def where(self) -> tuple[str, list[str]]:
        """The condition, served by one index whatever the size of the table."""
        parts, values = ["tenant = ?"], [self.tenant]
        for column, value in (("tool", self.tool), ("session", self.session), ("state", self.state)):
            if value:
                parts.append(f"{column} = ?")
                values.append(value)
        if self.prefix:
            parts.append("key >= ? AND key < ?")
            values += [self.prefix, self.prefix + "\U0010ffff"]
        return f"INDEXED BY {self._index()} WHERE " + " AND ".join(parts), values

    def _index(self) -> str:
        if self.prefix:
            return "claims_by_key"
        if self.session:
            return "claims_by_session"
        return "claims_by_state" if self.state not in ("", "done") else "claims_by_tool"


def find(connection: sqlite3.Connection, which: Filter, limit: int, now: int) -> list[DedupeRecord]:
    """Live claims, newest first."""
    condition, values = which.where()
    if which.tool or which.session or which.prefix or which.state not in ("", "done"):
        query = f"{_COLUMNS} FROM claims {condition} AND expires_at_ms > ? ORDER BY id DESC LIMIT ?"
        rows = connection.execute(query, (*values, now, limit)).fetchall()
    else:  # all tools: the newest of each, so that one index serves the order too
        tools = [tool for (tool,) in connection.execute(SQL["tools"], (which.tenant,))]
        return _newest_of_all(connection, [which._replace(tool=tool) for tool in tools], limit, now)
    return [_Claim(*row).to_record() for row in rows]


def flush(connection: sqlite3.Connection, which: Filter, up_to: int, limit: int) -> list[str]:
    """Delete up to *limit* fitting claims no newer than row *up_to*; their keys."""
    condition, values = which.where()
    some = f"SELECT id FROM claims {condition} AND id <= ? LIMIT ?"  # noqa: S608 - own words only
    query = f"DELETE FROM claims WHERE id IN ({some}) RETURNING key, version, history"  # noqa: S608 - own words only
    gone = connection.execute(query, (*values, up_to, limit)).fetchall()
    _bury(connection, gone)
    return [key for key, _, _ in gone]


def counts(connection: sqlite3.Connection, tenant: str, now: int) -> dict[tuple[str, str], int]:
    """Live claims by tool and state: done ones are what the index has, less all others."""
    done = dict(connection.execute(SQL["count_all"], (tenant,)).fetchall())
    found: dict[tuple[str, str], int] = {}
    for tool, state, stale, expired, number in connection.execute(SQL["count_not_done"], (tenant, now)):
        done[tool] -= number
        if not expired:
            name = "stale" if stale else state
            found[tool, name] = found.get((tool, name), 0) + number
    for tool, number in connection.execute(SQL["count_done_expired"], (tenant, now)):
        done[tool] -= number
    found.update({(tool, "done"): number for tool, number in done.items() if number})
    return found


def _find(connection: sqlite3.Connection, key: str) -> _Claim | None:
    row = connection.execute(_CLAIM, (key,)).fetchone()
    return None if row is None else _Claim._make(row)


def _earlier(connection: sqlite3.Connection, claim: _Claim, identity: str, now: int) -> DedupeRecord | None:
    if not claim.history:
        return None
    row = connection.execute(_EXECUTION, (claim.key, identity, now)).fetchone()
    if row is None:
        return None
    return _known(claim.key, *row)


def _known(key: str, record: bytes, v: int) -> DedupeRecord:
    check_version(f"An earlier execution of the claim {key}", v, RECORD_VERSION)
    return _record(record)


def _insert(
    connection: sqlite3.Connection, ask: Ask, now: int, version: int, sweep_at: int = 0, history: bool = False
) -> bool:
    """Add a claim, unless the key has one or *version* was already given."""
    expires = now + max(ask.ttl_ms, ask.lease_ms)
    values = (
        ask.key,
        ask.tenant,
        ask.workspace,
        ask.tool,
        ask.request.session_key,
        ask.identity,
        ask.idempotency_key,
        version,
        ask.owner,
        now,
        expires,
        now + ask.lease_ms,
        ask.ttl_ms,
        max(sweep_at, expires),
        history,
        _encode(ask.request),
        RECORD_VERSION,
    )
    return connection.execute(_INSERT_CLAIM, values).rowcount > 0


def _replace(connection: sqlite3.Connection, ask: Ask, now: int) -> Claimed:
    """Put a new claim in the place of whatever is there, which stays findable by its own identity."""
    (previous,) = connection.execute(SQL["version_floor"]).fetchone()
    sweep_at, history = 0, False
    before = _find(connection, ask.key)
    if before is not None:
        own = _earlier(connection, before, ask.identity, now)
        previous = max(previous, before.version, 0 if own is None else own.version)
        history = bool(before.history)
        if history:
            connection.execute(SQL["delete_execution"], (ask.key, ask.identity))
        if before.expires_at_ms > now and before.identity != ask.identity:
            _keep(connection, before.to_record(), before.identity)
            history = True
        sweep_at = before.sweep_at_ms if history else 0
        connection.execute(SQL["delete_claim"], (ask.key,))
    version = next_version(previous, now)
    _insert(connection, ask, now, version, sweep_at, history)
    return Claimed(version, now)


def _keep(connection: sqlite3.Connection, record: DedupeRecord, identity: str) -> None:
    values = (record.key, identity, record.tenant, record.workspace, record.version, record.expires_at_ms)
    connection.execute(SQL["insert_execution"], (*values, _encode(record), record.v))


def _bury(connection: sqlite3.Connection, gone: list[tuple[str, int, int]]) -> None:
    if gone:
        connection.executemany(SQL["delete_executions"], [(key,) for key, _, history in gone if history])
        connection.execute(SQL["raise_floor"], (max(version for _, version, _ in gone),))


def _newest_of_all(connection: sqlite3.Connection, filters: list[Filter], limit: int, now: int) -> list[DedupeRecord]:
    found = [record for which in filters for record in find(connection, which, limit, now)]
    found.sort(key=lambda record: record.fence, reverse=True)
    return found[:limit]
