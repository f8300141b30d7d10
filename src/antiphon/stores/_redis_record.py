"""How a claim record lies in Redis: a hash of few fields, so that a script never decodes a body.

| field | holds                                                                             |
|-------|-----------------------------------------------------------------------------------|
| m     | what scripts compare and change, twelve words: format, version, state, nonce of the |
|       | operation that wrote it last, fence, created, updated, TTL, dispatched, expires, end of lease, identity |
| h     | head: tool, session key and the rest of the request, as three lines of JSON       |
| b, r  | outcome and result, as JSON                                                       |
| w     | somebody waits: publish the next change                                           |
| t     | instead of all others: the version a cleared record had, so that versions go on   |

Times are milliseconds of the server's clock.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import UNSET, Raw, UnsetType

from antiphon.contract.record import RECORD_VERSION, DedupeRecord, RecordedRequest
from antiphon.ports import Ask, Final
from antiphon.stores._common import NO_OUTCOME, Outcome, check_version, outcome_of


class _Head(msgspec.Struct, frozen=True, array_like=True):
    idempotency_key: str
    tenant: str
    workspace: str
    owner: str
    actor_id: str
    request_id: str
    params_digest: str
    params_digest_exact: str = ""
    tool_call_id: str | None = None


_encode = msgspec.json.Encoder().encode
_head_of = msgspec.json.Decoder(_Head).decode
_text_of = msgspec.json.Decoder(str).decode
_outcome_from = msgspec.json.Decoder(Outcome).decode
_packed_fields = msgspec.msgpack.Decoder(list[str]).decode


def head_of(ask: Ask) -> bytes:
    """The head of a record: what the claim says about the call, once for its whole life."""
    request = ask.request
    call_id: str | UnsetType | None = request.tool_call_id
    rest = (
        ask.idempotency_key,
        ask.tenant,
        ask.workspace,
        ask.owner,
        request.actor_id,
        request.request_id,
        request.params_digest,
        request.params_digest_exact,
        None if call_id is UNSET else call_id,
    )
    return b"%b\n%b\n%b" % (_encode(ask.tool), _encode(request.session_key), _encode(rest))


def line_of(text: str) -> bytes:
    """A tool or session as it stands in a head; empty for any."""
    return _encode(text) if text else b""


def text_of(line: bytes) -> str:
    """The inverse of :func:`line_of`."""
    return _text_of(line)


def outcome_bytes(final: Final) -> bytes:
    """The outcome of a claim, without the payload's own bytes."""
    return _encode(outcome_of(final))


def unpacked(packed: bytes) -> list[bytes]:
    """The fields of an earlier execution, as the history keeps them."""
    return [field.encode() for field in _packed_fields(packed)]


def record_of(key: str, fields: Sequence[bytes]) -> DedupeRecord:
    """The record from names and values in turn; one that a newer release wrote is refused (D1)."""
    found = dict(zip(fields[::2], fields[1::2], strict=True))
    meta = found[b"m"].split(b" ", 11)
    check_version(f"The claim record {key}", int(meta[0]), RECORD_VERSION)
    _, version, state, _, fence, created, updated, ttl, dispatched, expires, lock, identity = meta
    tool, session, rest = found[b"h"].split(b"\n", 2)
    about_call = _head_of(rest)
    outcome_text = found.get(b"b")
    outcome = NO_OUTCOME if outcome_text is None else _outcome_from(outcome_text)
    payload = found.get(b"r")
    lock_until = int(lock)
    return DedupeRecord(
        key=key,
        tool=_text_of(tool),
        idempotency_key=about_call.idempotency_key,
        state=state.decode(),  # type: ignore[arg-type]
        created_at_ms=int(created),
        updated_at_ms=int(updated),
        expires_at_ms=int(expires),
        ttl_ms=int(ttl),
        request=RecordedRequest(
            session_key=_text_of(session),
            actor_id=about_call.actor_id,
            request_id=about_call.request_id,
            params_digest=about_call.params_digest,
            identity=identity.decode(),
            params_digest_exact=about_call.params_digest_exact,
            tool_call_id=UNSET if about_call.tool_call_id is None else about_call.tool_call_id,
        ),
        version=int(version),
        fence=int(fence),
        tenant=about_call.tenant,
        workspace=about_call.workspace,
        owner=about_call.owner,
        dispatched=dispatched == b"1",
        execution=outcome.execution,
        payload=UNSET if payload is None else Raw(payload),
        payload_ref=outcome.payload_ref,
        payload_sealed=outcome.payload_sealed,
        output_redacted=outcome.output_redacted,
        error=outcome.error,
        lock_until_ms=lock_until if lock_until else UNSET,
    )
