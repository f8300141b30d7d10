"""The outcome of a claim inside the event that tells of it: what a repair needs, and nothing that is secret.

``meta.claim`` of an outcome event has the fence, a fingerprint of the key (never the key, D21), state, TTL and
marks; the result itself is the event's own value. A value the log redacted comes back as redacted.
"""

from __future__ import annotations

import hashlib
from typing import Any, Literal

import msgspec

from antiphon.contract.events import EVENT_VERSION, Event
from antiphon.contract.record import RecordedAttempt
from antiphon.ports import Attempt, Row, Settlement
from antiphon.stores._common import recorded_attempt

Result = Literal["none", "value", "redacted"]


class _Payload(msgspec.Struct):
    value: msgspec.Raw = msgspec.Raw()


class _Body(msgspec.Struct, rename="camel", omit_defaults=False):
    """An event's body whose payload stays as it is."""

    lane: str = "0"
    index: int = 0
    call: str | None = None
    parent: str | None = None
    payload: msgspec.Raw = msgspec.Raw(b"{}")
    meta: dict[str, Any] = {}
    v: int = EVENT_VERSION


class _Claim(msgspec.Struct, rename="camel", omit_defaults=True, frozen=True):
    """What ``meta.claim`` holds."""

    fence: int
    fingerprint: str
    state: str
    ttl_ms: int
    result: Result = "none"
    payload_ref: str | None = None
    payload_sealed: str | None = None
    error: tuple[str, str, bool, bool] | None = None
    attempts: tuple[RecordedAttempt, ...] = ()
    attempt_count: int = 0
    dispatched: bool = True


_body_of = msgspec.json.Decoder(_Body).decode
_payload_of = msgspec.json.Decoder(_Payload).decode
_encode = msgspec.json.Encoder().encode


def noted(row: Row, key: str, version: int, settlement: Settlement) -> Row:
    """The outcome event with the claim's end noted in its metadata."""
    body = _body_of(row.body)
    result: Result = "none"
    if settlement.payload is not None:
        unchanged = bytes(_payload_of(body.payload).value) == settlement.payload
        result = "value" if unchanged and not settlement.output_redacted else "redacted"
    claim = _Claim(
        fence=version,
        fingerprint=_fingerprint(key),
        state=settlement.state,
        ttl_ms=settlement.ttl_ms,
        result=result,
        payload_ref=settlement.payload_ref,
        payload_sealed=settlement.payload_sealed,
        error=settlement.error,
        attempts=tuple(map(recorded_attempt, settlement.attempts)),
        attempt_count=settlement.attempt_count,
        dispatched=settlement.dispatched,
    )
    body.meta = {**body.meta, "claim": claim}
    return row._replace(body=_encode(body))


def settlement_in(event: Event, key: str, version: int) -> Settlement | None:
    """The end of the claim *version* of *key*, if *event* tells of it."""
    noted_claim = event.meta.get("claim")
    if not isinstance(noted_claim, dict) or noted_claim.get("fence") != version:
        return None
    claim = msgspec.convert(noted_claim, _Claim)
    if claim.fingerprint != _fingerprint(key):
        return None
    has_result = claim.result != "none" and "value" in event.payload
    return Settlement(
        claim.state,
        claim.ttl_ms,
        payload=_encode(event.payload["value"]) if has_result else None,
        payload_ref=claim.payload_ref,
        payload_sealed=claim.payload_sealed,
        output_redacted=has_result and claim.result == "redacted",
        error=claim.error,
        attempts=tuple(map(_attempt_of, claim.attempts)),
        attempt_count=claim.attempt_count,
        dispatched=claim.dispatched,
    )


def _attempt_of(recorded: RecordedAttempt) -> Attempt:
    code = "" if recorded.error_code is msgspec.UNSET else recorded.error_code
    return recorded.started_at_ms, recorded.finished_at_ms, code, recorded.retriable


def _fingerprint(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()[:16]
