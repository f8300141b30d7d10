"""The claim record: one per intent, in the documented shape (R6), plus what fencing and tenancy need."""

from __future__ import annotations

from typing import Any, Literal, Self

import msgspec

from antiphon.contract._base import UNSET, Millis, UnsetType, Value, decode

ClaimState = Literal["inflight", "done", "failed", "cancelled"]
RECORD_VERSION = 1


class RecordedRequest(Value, frozen=True):
    """The call that holds or held the claim; ``identity`` tells redeliveries from new calls (D2)."""

    session_key: str
    actor_id: str
    request_id: str
    params_digest: str
    identity: str
    params_digest_exact: str = ""
    tool_call_id: str | UnsetType = UNSET


class RecordedAttempt(Value, frozen=True):
    """One try of the call."""

    started_at_ms: Millis
    finished_at_ms: Millis
    status: Literal["success", "error"]
    retriable: bool
    error_code: str | UnsetType = UNSET


class RecordedExecution(Value, frozen=True):
    """All tries of the call."""

    attempt_count: int
    attempts: tuple[RecordedAttempt, ...] = ()


class RecordedError(Value, frozen=True):
    """The classified failure that ended the call."""

    code: str
    message: str
    terminal: bool
    should_retriable: bool


class DedupeRecord(Value, frozen=True):
    """The claim on one intent. ``version`` doubles as fencing token: it only ever grows."""

    key: str
    tool: str
    idempotency_key: str
    state: ClaimState
    created_at_ms: Millis
    updated_at_ms: Millis
    expires_at_ms: Millis
    ttl_ms: Millis
    request: RecordedRequest
    version: int
    fence: int
    tenant: str = "default"
    workspace: str = "default"
    owner: str = ""
    dispatched: bool = False
    execution: RecordedExecution | UnsetType = UNSET
    payload: msgspec.Raw | UnsetType = UNSET
    payload_ref: str | UnsetType = UNSET
    payload_sealed: str | UnsetType = UNSET
    output_redacted: bool | UnsetType = UNSET
    error: RecordedError | UnsetType = UNSET
    lock_until_ms: Millis | UnsetType = UNSET
    v: int = RECORD_VERSION
    arguments: str | UnsetType = UNSET
    """Sealed or masked, of a claim in flight whose outcome is unknown if its worker is lost."""

    def to_wire(self) -> dict[str, Any]:
        """The JSON form as plain Python data."""
        wire: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(self))
        return wire

    @classmethod
    def from_wire(cls, document: Any) -> Self:
        """Read the JSON form; plain data goes through JSON, for the payload is kept as its bytes."""
        return decode(document if isinstance(document, (bytes, bytearray, str)) else msgspec.json.encode(document), cls)


UNKNOWN_CODE = "outcome_unknown"
"""The code of the error of a record of unknown outcome."""


def is_unsettled(record: DedupeRecord) -> bool:
    """Whether the outcome of this record's call is unknown until a person or ``reconcile`` settles it."""
    return record.state == "failed" and record.error is not UNSET and record.error.code == UNKNOWN_CODE


def is_unknown(record: DedupeRecord) -> bool:
    """Whether it is unknown if this record's call took effect; a cancelled one may simply run again."""
    return is_unsettled(record) or (record.state == "cancelled" and record.dispatched)


def unknown_for(age_ms: int) -> str:
    """The state that an unknown outcome of this age is counted in."""
    return "unknown_1d" if age_ms >= 86_400_000 else "unknown_1h" if age_ms >= 3_600_000 else "unknown"
