"""How results are kept: as they are, spilled to blobs, or sealed when they hold a secret (R14)."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import orjson

from antiphon._gateway import codec
from antiphon._gateway.call import Call, Outcome, failed
from antiphon._gateway.parts import Parts
from antiphon.contract._base import UNSET
from antiphon.contract.record import DedupeRecord
from antiphon.errors import StoreError
from antiphon.ports import Final

if TYPE_CHECKING:
    from antiphon.redact import Redactor

log = logging.getLogger("antiphon.gateway")

NO_PAYLOAD = "The call succeeded; its result could not be kept and cannot be given again."
_SEALED = "sealed+"


class Keeper:
    """Turns outcomes into claim records and back."""

    def __init__(self, parts: Parts) -> None:
        self.redactor: Redactor | None = parts.redactor
        self.sealer = parts.sealer
        self.blobs = parts.blobs
        self.payload_limit = parts.settings.payload_limit
        self.result_limit = parts.settings.result_limit
        self.tenant = parts.settings.tenant

    def clean(self, text: str) -> str:
        """A message that may be stored."""
        return text if self.redactor is None else self.redactor.redact_text(text)

    # -- keeping -------------------------------------------------------------------------------------------------

    def small_success(self, call: Call, outcome: Outcome) -> Final | None:
        """The common case at once: a small result of a store that never leaves the process."""
        if self.redactor is not None:
            return None
        try:
            data = codec.encode(outcome.value)
        except codec.NotSerialisable:
            return None
        if len(data) > self.payload_limit:
            return None
        outcome.payload = data
        return Final("done", call.tool.ttl.done_ms, data, attempts=call.attempts, attempt_count=outcome.attempts)

    async def final_success(self, call: Call, value: Any, asynchronous: bool, outcome: Outcome | None = None) -> Final:
        """The record of a call that took effect, whatever can be kept of its result."""
        base = Final("done", call.tool.ttl.done_ms, attempts=call.attempts, attempt_count=len(call.attempts) or 1)
        try:
            data = codec.encode(value)
            if outcome is not None:
                outcome.payload = data
            if len(data) > self.result_limit:
                raise codec.NotSerialisable(f"{len(data)} bytes are over the limit of {self.result_limit}")
            return await self._kept(base, data, asynchronous, call.tool.kind in ("generator", "async_generator"))
        except codec.NotSerialisable as error:
            why = str(error)
        except Exception as error:  # a full disk or a lost key must not hide that the call took effect
            log.exception("the result of %s could not be kept", call.tool.full_name)
            why = f"{type(error).__name__}: {self.clean(str(error))}"
        if outcome is not None:
            outcome.metadata = {**(outcome.metadata or {}), "payload": f"not kept ({why})"}
        return base

    async def _kept(self, base: Final, data: bytes, asynchronous: bool, streamed: bool) -> Final:
        if self.redactor is None:
            return await self._place(base, data, asynchronous)
        clean, changed = _clean_pieces(self.redactor, data) if streamed else self.redactor.redact_bytes(data)
        if not changed:
            return await self._place(base, data, asynchronous)
        sealer = self.sealer()
        if sealer is None:
            return await self._place(base._replace(output_redacted=True), clean, asynchronous)
        sealed: str = sealer.seal(data)
        if len(sealed) <= self.payload_limit:
            return base._replace(payload_sealed=sealed)
        return await self._place(base, sealed.encode(), asynchronous, mark=_SEALED)

    async def _place(self, base: Final, data: bytes, asynchronous: bool, mark: str = "") -> Final:
        blobs = None if len(data) <= self.payload_limit else self.blobs(asynchronous)
        if blobs is not None:
            return base._replace(payload_ref=mark + await blobs.put(self.tenant, data))
        return base._replace(payload_sealed=data.decode()) if mark else base._replace(payload=data)

    # -- giving again --------------------------------------------------------------------------------------------

    async def restore(self, call: Call, record: DedupeRecord, asynchronous: bool) -> Outcome:
        """The outcome that *record* keeps."""
        if record.state != "done":
            return _restore_failure(record)
        outcome = Outcome("success")
        try:
            data = await self._data(record, asynchronous)
            if data is not None:
                outcome.value = _decoded(call, data)
        except Exception as error:
            log.exception("the kept result of %s cannot be read", call.tool.full_name)
            outcome.metadata = {"payload": f"not readable ({type(error).__name__}). {NO_PAYLOAD}"}
            return outcome
        outcome.payload = data
        if data is None:
            outcome.metadata = {"payload": NO_PAYLOAD}
        elif record.output_redacted is True:
            outcome.metadata = {"outputRedacted": True}
        return outcome

    async def _data(self, record: DedupeRecord, asynchronous: bool) -> bytes | None:
        if record.payload is not UNSET:
            return bytes(record.payload)
        if record.payload_sealed is not UNSET:
            return self._unseal(record.payload_sealed)
        if record.payload_ref is UNSET:
            return None
        blobs = self.blobs(asynchronous)
        if blobs is None:
            raise StoreError("The result was spilled to a blob store, and none is configured.")
        ref = record.payload_ref.removeprefix(_SEALED)
        data = await blobs.get(self.tenant, ref)
        return data if ref == record.payload_ref else self._unseal(data.decode())

    def _unseal(self, sealed: str) -> bytes:
        sealer = self.sealer()
        if sealer is None:
            raise StoreError("The result is sealed, and the seal key is missing.")
        data: bytes = sealer.unseal(sealed)
        return data


def _clean_pieces(redactor: Redactor, data: bytes) -> tuple[bytes, bool]:
    """The pieces of a stream without secrets; one may run through several of them."""
    from antiphon.redact._events import redacting

    found = codec.plain(data)
    if not isinstance(found, list):
        return redactor.redact_bytes(data)
    pieces = [_bytes_again(piece) for piece in found]
    stream = redacting(getattr(redactor, "made", redactor), pieces[0] if pieces else None)  # one that is built late
    clean = [final for piece in pieces for final in stream.feed(piece)] + stream.finish()
    return (data, False) if clean == pieces else (codec.encode(clean), True)


def _bytes_again(piece: Any) -> Any:
    """A secret in bytes may run through several pieces, too."""
    if type(piece) is dict and len(piece) == 1 and isinstance(piece.get("$bytes"), str):
        return piece["$bytes"].encode("latin-1", "replace")
    return piece


def _decoded(call: Call, data: bytes) -> Any:
    try:
        return call.tool.decode(data)
    except ValueError:  # the declared type has changed since: plain data is better than nothing
        return orjson.loads(data)


def _restore_failure(record: DedupeRecord) -> Outcome:
    error = record.error
    if error is UNSET:
        return failed("error", record.state, f"The earlier call ended as {record.state}.")
    attempts = 0 if record.execution is UNSET else record.execution.attempt_count
    if error.should_retriable:
        return failed(
            "retry_exhausted" if attempts > 1 else "retriable_error", error.code, error.message, retriable=True
        )
    return failed("error", error.code, error.message)
