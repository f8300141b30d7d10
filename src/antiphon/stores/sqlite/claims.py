"""The claim steps as SQL. Each function is one atomic step: it runs inside the caller's transaction."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from msgspec import UNSET
from orjson import dumps

from antiphon.contract.record import RECORD_VERSION, DedupeRecord, RecordedRequest, is_unknown
from antiphon.ports import Begun, Claimed, ClaimRequest, ClaimTemplate, Existing, Pinned, Settlement, Success
from antiphon.stores._common import (
    NO_OUTCOME,
    Outcome,
    check_version,
    named_queries,
    next_version,
    outcome_of,
    record_of,
    resettled,
)

SQL = named_queries(Path(__file__).with_name("queries.sql"))
_CLAIM, _EXECUTION, INSERT_CLAIM, SETTLE = SQL["claim"], SQL["execution"], SQL["insert_claim"], SQL["settle"]
COLUMNS = "SELECT c." + ", c.".join(_CLAIM[len("SELECT ") : _CLAIM.index("FROM")].replace("\n", " ").split(","))
"""The columns of a claim, for queries that name its table ``c``."""

_VERSION_GAP = 500
"""How far the new version of an earlier execution lies above those of the current claim: they never meet."""
LOOK_AGAIN_MS = 300_000
"""How soon a claim that was in flight is checked again: its outcome may have shortened its life."""

_REQUEST = bytearray(
    b'{"sessionKey":%b,"actorId":%b,"requestId":%b,"paramsDigest":%b,"identity":%b,"paramsDigestExact":%b}'
)
_REQUEST_OF_CALL = _REQUEST[:-1] + b',"toolCallId":%b}'
"""The JSON of a :class:`~antiphon.contract.record.RecordedRequest`.

A ``bytearray``, like all values for blobs: ``sqlite3`` binds ``int``, ``float``, ``str`` and ``bytearray`` as they are,
and looks for an adapter of any other type (also ``bytes`` and ``bool``), which takes up to a microsecond.
"""
_ONE_SUCCESS = bytearray(
    b'{"execution":{"attemptCount":1,"attempts":['
    b'{"startedAtMs":%d,"finishedAtMs":%d,"status":"success","retriable":false}]}}'
)
"""The outcome of a :class:`~antiphon.ports.Success`."""
_INFLIGHT_OUTCOME = bytearray(b'{"arguments":%b}')
"""What stands in place of the outcome while the claim is in flight."""

_encode = msgspec.json.Encoder().encode
_request = msgspec.json.Decoder(RecordedRequest).decode
_outcome = msgspec.json.Decoder(Outcome).decode
_record = msgspec.json.Decoder(DedupeRecord).decode


class _Claim(NamedTuple):
    """A row of ``claims`` in the order of the query, whose first columns are those of a record."""

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
    id: int
    session: str

    def to_record(self) -> DedupeRecord:
        check_version(f"The claim {self.key}", self.v, RECORD_VERSION)
        outcome = NO_OUTCOME if self.outcome is None else _outcome(self.outcome)
        known = (*self[:8], _request(self.request), *self[9:14], bool(self.dispatched))
        lock_until = self.lock_until_ms if self.state == "inflight" else UNSET
        return record_of(known, outcome, self.payload, lock_until, self.v)

    def lives(self, now: int) -> bool:
        """Whether it still counts; one in flight always does."""
        return self.expires_at_ms > now or self.state == "inflight"

    def ref(self) -> ClaimRef:
        return ClaimRef(self.id, self.key, self.version, self.history, self.tenant, self.tool, self.session)


def read(connection: sqlite3.Connection, key: str, identity: str, now: int) -> Existing | None:
    """What is there for this key and identity, if anything lives."""
    claim = _find(connection, key)
    if claim is None:
        return None
    if claim.lives(now):
        record = claim.to_record()
        own = record if claim.identity == identity else _earlier(connection, claim, identity, now)
        return Existing(record, own, now)
    own = _earlier(connection, claim, identity, now)
    return None if own is None else Existing(own, own, now)


def answer_without_writing(connection: sqlite3.Connection, request: ClaimRequest, now: int) -> Existing | Pinned | None:
    """The reply to a claim request, if nothing has to be written for it."""
    if request.pin is not None:
        kept = _mark(connection, request.pin[0], now)
        if kept != request.pin[1]:
            return None if kept is None else Pinned(kept)
    return read(connection, request.key, request.identity, now)


def begin(connection: sqlite3.Connection, request: ClaimRequest, now: int) -> Begun:
    """Insert a claim, or return what is there."""
    if request.pin is not None:
        kept = _pin(connection, *request.pin, request.template, now)
        if kept != request.pin[1]:
            return Pinned(kept)
    version = now * 1000
    if connection.execute(INSERT_CLAIM, claim_values(request, now, version)).rowcount > 0:
        return Claimed(version, now)
    return read(connection, request.key, request.identity, now) or _replace(connection, request, now)


def take_over(connection: sqlite3.Connection, request: ClaimRequest, version: int, now: int) -> Begun:
    """Replace *version*, or return what is there instead."""
    existing = read(connection, request.key, request.identity, now)
    if existing is not None:
        current, own, _ = existing
        if current.version != version or (own is not None and own.state == "done"):
            return existing
    return _replace(connection, request, now)


def _mark(connection: sqlite3.Connection, call: str, now: int) -> int | None:
    """The live mark of a call."""
    found = connection.execute(SQL["pinned"], (call, now)).fetchone()
    return None if found is None else int(found[0])


def _pin(connection: sqlite3.Connection, call: str, mark: int, template: ClaimTemplate, now: int) -> int:
    """Store a mark for a call unless it has one; returns the mark it has."""
    values = (call, template.tenant, template.workspace, mark, now + template.ttl_ms, now)
    if connection.execute(SQL["pin"], values).rowcount > 0:
        return mark
    return _mark(connection, call, now) or mark


def settle(connection: sqlite3.Connection, key: str, version: int, settlement: Settlement, now: int) -> int | None:
    """End the claim, or find out that it is another's by now."""
    new_version = next_version(version, now)
    if not connection.execute(SETTLE, settle_values(key, version, settlement, new_version, now)).rowcount:
        return _settle_earlier(connection, key, version, settlement, now)
    if settlement.state != "done":
        connection.execute(SQL["open_claim"], (key,))
    if settlement.state != "done" or settlement.ttl_ms < LOOK_AGAIN_MS:
        connection.execute(SQL["expire_claim"], (key,))
    return new_version


def _settle_earlier(
    connection: sqlite3.Connection, key: str, version: int, settlement: Settlement, now: int
) -> int | None:
    """The same for an execution of unknown outcome that others have followed, and for all who share it."""
    found = connection.execute(SQL["execution_of_version"], (key, version, now)).fetchone()
    before = None if found is None else _known(key, *found)
    if before is None or not is_unknown(before):
        return None
    current = _find(connection, key)
    new_version = next_version(version if current is None else max(version, current.version), now) + _VERSION_GAP
    after = resettled(before, settlement, new_version, now)
    connection.execute(SQL["settle_execution"], (new_version, _encode(after), key, version))
    return new_version


def claim_values(request: ClaimRequest, now: int, version: int, sweep_at: int = 0, history: int = 0) -> tuple[Any, ...]:
    """The values of :data:`INSERT_CLAIM`."""
    template = request.template
    expires = now + template.lives_ms
    return (
        request.key,
        template.tenant,
        template.workspace,
        template.tool,
        template.session,
        request.identity,
        request.idempotency_key,
        version,
        version,
        f"{request.token}/{template.owner}",
        now,
        now,
        expires,
        now + template.lease_ms,
        template.ttl_ms,
        sweep_at if sweep_at > expires else expires,
        history,
        _request_json(request),
        _INFLIGHT_OUTCOME % dumps(shown) if (shown := request.shown) else None,
        RECORD_VERSION,
        version,
    )


def settle_values(key: str, version: int, settlement: Settlement, new_version: int, now: int) -> tuple[Any, ...]:
    """The values of :data:`SETTLE`."""
    state, ttl_ms, payload, _, _, _, _, attempts, _, dispatched = settlement
    expires = now + ttl_ms
    if type(settlement) is Success:
        ((started, finished, _, _),) = attempts
        outcome: bytes | bytearray = _ONE_SUCCESS % (started, finished)
    else:
        outcome = bytearray(_encode(outcome_of(settlement)))
    return (
        state,
        new_version,
        now,
        expires,
        ttl_ms,
        1 if dispatched else 0,
        outcome,
        payload if payload is None else bytearray(payload),
        expires,
        key,
        version,
        now,
    )


def _request_json(request: ClaimRequest) -> bytes | bytearray:
    template, params, call_id = request.template, request.params, request.call_id
    if type(params) is bytes:
        digest = exact = dumps(sha256(params).hexdigest())
    else:
        digest, exact = map(dumps, params)
    request_id, identity = request.request_id, request.identity
    caller = named = dumps(request_id)
    if identity is not request_id:
        caller = dumps(identity)
    values = (template.session_json, template.actor_json, named, digest, caller, exact)
    return _REQUEST % values if call_id is None else _REQUEST_OF_CALL % (*values, dumps(call_id))


def alias(connection: sqlite3.Connection, key: str, identity: str, version: int, now: int) -> bool:
    """Let another identity find a settled execution as its own, unless it has one."""
    claim = _find(connection, key)
    if claim is None:
        return False
    if claim.identity == identity and claim.lives(now):
        return claim.version == version and claim.state != "inflight"
    own = _earlier(connection, claim, identity, now)
    if own is not None and (own.state == "done" or own.version == version):
        return own.version == version
    if claim.version == version:
        record = claim.to_record()
    else:
        found = connection.execute(SQL["execution_of_version"], (key, version, now)).fetchone()
        if found is None:
            return False
        record = _known(claim.key, *found)
    if record.state == "inflight" or record.expires_at_ms <= now:
        return False
    _keep(connection, record, identity)
    connection.execute(SQL["mark_history"], (record.expires_at_ms, key))
    return True


def renew(connection: sqlite3.Connection, key: str, version: int, lease_ms: int, now: int) -> bool:
    """Extend the lease of a claim that is still ours."""
    until = now + lease_ms
    return connection.execute(SQL["renew"], (now, until, until, until, key, version)).rowcount > 0


def in_flight(connection: sqlite3.Connection, key: str, version: int) -> bool:
    """Whether *version* is neither settled nor gone."""
    return connection.execute(SQL["in_flight"], (key, version)).fetchone() is not None


def clear(connection: sqlite3.Connection, key: str, version: int | None) -> bool:
    """Forget a key and its history."""
    claim = _find(connection, key)
    if claim is None or version not in (None, claim.version):
        return False
    forget(connection, [claim.ref()])
    return True


def earlier(connection: sqlite3.Connection, tenant: str, key: str, now: int) -> list[DedupeRecord]:
    """Executions that others have followed, newest first."""
    rows = connection.execute(SQL["executions"], (tenant, key, key, now))
    found = [_known(*row) for row in rows]
    found.sort(key=lambda record: record.fence, reverse=True)
    return found


ID = _Claim._fields.index("id")


class ClaimRef(NamedTuple):
    """What must be known about a claim to forget it."""

    id: int
    key: str
    version: int
    history: int
    tenant: str
    tool: str
    session: str


def known_up_to(connection: sqlite3.Connection, key: str) -> int:
    """The highest version that is known to be forgotten, or to have expired without being swept yet."""
    floor = int(connection.execute(SQL["version_floor"]).fetchone()[0])
    left = _find(connection, key)
    return floor if left is None else max(floor, left.version)


def forget(connection: sqlite3.Connection, claims: Sequence[ClaimRef]) -> None:
    """Delete claims with their history and index entries, but remember how far their versions had come."""
    if not claims:
        return
    for claim in claims:
        connection.execute(SQL["delete_claim"], (claim.id,))
        _leave_index(connection, claim)
        if claim.history:
            connection.execute(SQL["delete_executions"], (claim.key,))
    connection.execute(SQL["raise_floor"], (max(claim.version for claim in claims),))
    connection.execute(SQL["shrink_indexed"])


def to_record(row: Sequence[Any]) -> DedupeRecord:
    """The record of a row with :data:`COLUMNS`."""
    return _Claim._make(row).to_record()


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


def _replace(connection: sqlite3.Connection, request: ClaimRequest, now: int) -> Claimed:
    """Put a new claim in place of what is there, which can still be found by its own identity."""
    (previous,) = connection.execute(SQL["version_floor"]).fetchone()
    sweep_at, history = 0, 0
    before = _find(connection, request.key)
    if before is not None:
        own = _earlier(connection, before, request.identity, now)
        previous = max(previous, before.version, 0 if own is None else own.version)
        history = before.history
        if history:
            connection.execute(SQL["delete_execution"], (request.key, request.identity))
        if before.expires_at_ms > now and before.identity != request.identity:
            _keep(connection, before.to_record(), before.identity)
            history = 1
        sweep_at = before.sweep_at_ms if history else 0
        connection.execute(SQL["delete_claim"], (before.id,))
        _leave_index(connection, before.ref())
        connection.execute(SQL["shrink_indexed"])
    version = next_version(previous, now)
    connection.execute(INSERT_CLAIM, claim_values(request, now, version, sweep_at, history))
    return Claimed(version, now)


def _keep(connection: sqlite3.Connection, record: DedupeRecord, identity: str) -> None:
    values = (record.key, identity, record.tenant, record.workspace, record.version, record.expires_at_ms)
    connection.execute(SQL["insert_execution"], (*values, _encode(record), record.v))


def _leave_index(connection: sqlite3.Connection, claim: ClaimRef) -> None:
    """Expiry entries stay: when they are due, they lead nowhere and are dropped."""
    connection.execute(SQL["delete_place"], (claim.tenant, "tool", claim.tool, claim.id))
    connection.execute(SQL["delete_place"], (claim.tenant, "session", claim.session, claim.id))
    connection.execute(SQL["delete_open"], (claim.id,))
