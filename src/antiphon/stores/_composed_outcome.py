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
from antiphon.ports import Final, Row

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


def noted(row: Row, key: str, version: int, final: Final) -> Row:
    """The outcome event with the claim's end noted in its metadata."""
    body = _body_of(row.body)
    result: Result = "none"
    if final.payload is not None:
        unchanged = bytes(_payload_of(body.payload).value) == final.payload
        result = "value" if unchanged and not final.output_redacted else "redacted"
    claim = _Claim(
        fence=version,
        fingerprint=_fingerprint(key),
        state=final.state,
        ttl_ms=final.ttl_ms,
        result=result,
        payload_ref=final.payload_ref,
        payload_sealed=final.payload_sealed,
        error=final.error,
        attempts=tuple(final.attempts),
        attempt_count=final.attempt_count,
        dispatched=final.dispatched,
    )
    body.meta = {**body.meta, "claim": claim}
    return row._replace(body=_encode(body))


def final_in(event: Event, key: str, version: int) -> Final | None:
    """The end of the claim *version* of *key*, if *event* tells of it."""
    noted_claim = event.meta.get("claim")
    if not isinstance(noted_claim, dict) or noted_claim.get("fence") != version:
        return None
    claim = msgspec.convert(noted_claim, _Claim)
    if claim.fingerprint != _fingerprint(key):
        return None
    has_result = claim.result != "none" and "value" in event.payload
    return Final(
        claim.state,
        claim.ttl_ms,
        payload=_encode(event.payload["value"]) if has_result else None,
        payload_ref=claim.payload_ref,
        payload_sealed=claim.payload_sealed,
        output_redacted=has_result and claim.result == "redacted",
        error=claim.error,
        attempts=claim.attempts,
        attempt_count=claim.attempt_count,
        dispatched=claim.dispatched,
    )


def _fingerprint(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()[:16]
