"""Rows of the tables as records, and back."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import UNSET, Raw

from antiphon.contract.record import RECORD_VERSION, DedupeRecord, RecordedRequest
from antiphon.errors import StoreVersionError
from antiphon.ports import BreakerRow, ClaimRequest, Row, Settlement
from antiphon.stores._common import NO_OUTCOME, Outcome, check_version, outcome_of, owner_of, recorded_request
from antiphon.stores.postgres.codec import bytea_array, from_text, int8_array, text_array, to_text

_encode = msgspec.json.Encoder().encode
_request_decoder = msgspec.json.Decoder(RecordedRequest)
_outcome_decoder = msgspec.json.Decoder(Outcome)

VERSION, OP = 7, 9
"""Where a record row has its version, and says which operation wrote it."""


def new_op() -> int:
    """A number for one operation, by which it is recognised after its answer was lost."""
    return secrets.randbits(63)


def claim_params(request: ClaimRequest, op: int) -> dict[str, Any]:
    """The parameters of ``begin`` and ``take_over``."""
    template = request.template
    return {
        "key": to_text(request.key),
        "tenant": to_text(template.tenant),
        "workspace": to_text(template.workspace),
        "tool": to_text(template.tool),
        "session": to_text(template.session),
        "identity": to_text(request.identity),
        "idempotency_key": to_text(request.idempotency_key),
        "owner": to_text(owner_of(request)),
        "op": op,
        "ttl_ms": template.ttl_ms,
        "lease_ms": template.lease_ms,
        "v": RECORD_VERSION,
        "request": _encode(recorded_request(request)),
    }


def settle_params(key: str, version: int, settlement: Settlement, op: int) -> dict[str, Any]:
    """The parameters of ``settle``."""
    return {
        "key": to_text(key),
        "version": version,
        "state": settlement.state,
        "op": op,
        "ttl_ms": settlement.ttl_ms,
        "dispatched": settlement.dispatched,
        "outcome": _encode(outcome_of(settlement)),
        "payload": settlement.payload,
    }


def log_params(run: str, rows: Sequence[Row], tenant: str = "default", workspace: str = "default") -> dict[str, Any]:
    """The parameters of the log's part of a statement; tenant and workspace count only for a run nobody opened."""
    return {
        "run": to_text(run),
        "types": text_array([row.type for row in rows]),
        "ats": int8_array([row.at_ms for row in rows]),
        "bodies": bytea_array([row.body for row in rows]),
        "tenant": to_text(tenant),
        "workspace": to_text(workspace),
    }


def record_of(row: Sequence[Any]) -> DedupeRecord:
    """A claim record from the columns of the fragment ``_record``."""
    key, tenant, workspace, tool, idempotency_key, owner, state, version, fence, _, created, updated = row[:12]
    expires, ttl, lock_until, dispatched, v, request, outcome, payload = row[12:]
    what = f"The claim record {key!r}"
    check_version(what, v, RECORD_VERSION)
    try:
        asked = _request_decoder.decode(request)
        ended = NO_OUTCOME if outcome is None else _outcome_decoder.decode(outcome)
    except msgspec.ValidationError as error:
        raise StoreVersionError(f"{what} cannot be read: {error}", hint="It was left as it is.") from None
    return DedupeRecord(
        key=from_text(key),
        tool=from_text(tool),
        idempotency_key=from_text(idempotency_key),
        state=state,
        created_at_ms=created,
        updated_at_ms=updated,
        expires_at_ms=expires,
        ttl_ms=ttl,
        request=asked,
        version=version,
        fence=fence,
        tenant=from_text(tenant),
        workspace=from_text(workspace),
        owner=from_text(owner),
        dispatched=dispatched,
        execution=ended.execution,
        payload=UNSET if payload is None else Raw(payload),
        payload_ref=ended.payload_ref,
        payload_sealed=ended.payload_sealed,
        output_redacted=ended.output_redacted,
        error=ended.error,
        lock_until_ms=UNSET if lock_until is None else lock_until,
        v=v,
    )


def breaker_of(row: tuple[Any, ...]) -> BreakerRow:
    """A row of the breaker table."""
    key, state, epoch, until_ms, reason, updated_at_ms, tripped_by = row
    return BreakerRow(from_text(key), state, epoch, until_ms, from_text(reason), updated_at_ms, from_text(tripped_by))
