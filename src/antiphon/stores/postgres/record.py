"""Rows of the tables as records, and back."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import UNSET

from antiphon.contract.record import RECORD_VERSION, DedupeRecord, RecordedRequest
from antiphon.errors import StoreVersionError
from antiphon.ports import BreakerRow, ClaimRequest, Row, Settlement
from antiphon.stores._common import NO_OUTCOME, Outcome, check_version, outcome_of, owner_of, recorded_request
from antiphon.stores._common import record_of as stored_record
from antiphon.stores.postgres.statements import bytea_array, from_text, int8_array, text_array

_encode = msgspec.json.Encoder().encode
_request_decoder = msgspec.json.Decoder(RecordedRequest)
_outcome_decoder = msgspec.json.Decoder(Outcome)

VERSION, OP = 9, 19
"""Where a record row has its version, and says which operation wrote it."""


def new_op() -> int:
    """A number for one operation, by which it is recognised after its answer was lost."""
    return secrets.randbits(63)


def claim_params(request: ClaimRequest, op: int) -> dict[str, Any]:
    """The parameters of ``begin`` and ``take_over``."""
    template = request.template
    return {
        "key": request.key,
        "tenant": template.tenant,
        "workspace": template.workspace,
        "tool": template.tool,
        "session": template.session,
        "identity": request.identity,
        "idempotency_key": request.idempotency_key,
        "owner": owner_of(request),
        "op": op,
        "ttl_ms": template.ttl_ms,
        "lease_ms": template.lease_ms,
        "v": RECORD_VERSION,
        "request": _encode(recorded_request(request)),
    }


def settle_params(key: str, version: int, settlement: Settlement, op: int) -> dict[str, Any]:
    """The parameters of ``settle``."""
    return {
        "key": key,
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
        "run": run,
        "types": text_array([row.type for row in rows]),
        "ats": int8_array([row.at_ms for row in rows]),
        "bodies": bytea_array([row.body for row in rows]),
        "tenant": tenant,
        "workspace": workspace,
    }


def record_of(row: Sequence[Any]) -> DedupeRecord:
    """A claim record from the columns of the fragment ``_record``."""
    key, tool, idempotency_key, state = row[:4]
    request, version, fence, tenant, workspace, owner, dispatched, outcome, payload, lock_until, v, _ = row[8:]
    what = f"The claim record {key!r}"
    check_version(what, v, RECORD_VERSION)
    try:
        asked = _request_decoder.decode(request)
        ended = NO_OUTCOME if outcome is None else _outcome_decoder.decode(outcome)
    except msgspec.ValidationError as error:
        raise StoreVersionError(f"{what} cannot be read: {error}", hint="It was left as it is.") from None
    names = (*map(from_text, (key, tool, idempotency_key)), state)
    held = (version, fence, *map(from_text, (tenant, workspace, owner)), dispatched)
    return stored_record(
        (*names, *row[4:8], asked, *held), ended, payload, UNSET if lock_until is None else lock_until, v
    )


def breaker_of(row: tuple[Any, ...]) -> BreakerRow:
    """A row of the breaker table."""
    key, state, epoch, until_ms, reason, updated_at_ms, tripped_by = row
    return BreakerRow(from_text(key), state, epoch, until_ms, from_text(reason), updated_at_ms, from_text(tripped_by))
