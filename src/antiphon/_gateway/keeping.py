"""How results are kept: as they are, spilled to blobs, or sealed when they hold a secret (R14)."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from antiphon._drive import drive
from antiphon._gateway import codec
from antiphon._gateway.call import Call, Outcome, failed
from antiphon._gateway.parts import Parts
from antiphon.contract._base import UNSET
from antiphon.contract.record import DedupeRecord
from antiphon.errors import AntiphonError, StoreError
from antiphon.ports import Final

if TYPE_CHECKING:
    from antiphon._gateway.core import Core
    from antiphon._seal import Sealer
    from antiphon.redact import Redactor

log = logging.getLogger("antiphon.gateway")

NO_PAYLOAD = "The call succeeded; its result could not be kept and cannot be given again."


class Keeper:
    """Turns outcomes into claim records and back."""

    def __init__(self, parts: Parts) -> None:
        self.redactor: Redactor | None = parts.redactor
        self.sealer: Callable[[], Sealer | None] = parts.sealer
        self.blobs = parts.blobs
        self.payload_limit = parts.settings.payload_limit
        self.result_limit = parts.settings.result_limit
        self.tenant = parts.settings.tenant

    def clean(self, text: str) -> str:
        """A message that may be stored."""
        return text if self.redactor is None else self.redactor.redact_text(text)

    def small_success(self, call: Call, outcome: Outcome) -> Final | None:
        """The common case at once: a small result of a store that never leaves the process."""
        if self.redactor is not None:
            return None
        try:
            data = codec.encode(outcome.value)
        except codec.NotSerialisable:
            return None
        if len(data) > self.result_limit:
            return None
        outcome.payload = data
        return Final("done", call.tool.ttl.done_ms, data, attempts=call.attempts, attempt_count=outcome.attempts)

    async def final_success(self, core: Core, call: Call, value: Any, outcome: Outcome | None = None) -> Final:
        """The record of a call that took effect, whatever can be kept of its result."""
        ttl = call.tool.ttl.done_ms
        count = len(call.attempts) or 1
        base = Final("done", ttl, attempts=call.attempts, attempt_count=count)
        try:
            data = codec.encode(value)
        except codec.NotSerialisable as error:
            _note(outcome, f"not kept ({error})")
            return base
        if outcome is not None:
            outcome.payload = data
        if len(data) > self.result_limit:
            _note(outcome, f"not kept ({len(data)} bytes are over the limit of {self.result_limit})")
            return base
        if self.redactor is not None:
            clean, changed = self.redactor.redact_bytes(data)
            if changed:
                sealer = self.sealer()
                if sealer is None:
                    return await self._place(core, base._replace(output_redacted=True), clean)
                if len(data) <= self.payload_limit:
                    return base._replace(payload_sealed=sealer.seal(data))
                return await self._place(core, base, sealer.seal(data).encode(), sealed=True)
        return await self._place(core, base, data)

    async def _place(self, core: Core, base: Final, data: bytes, *, sealed: bool = False) -> Final:
        if len(data) <= self.payload_limit:
            return base._replace(payload=data)
        blobs = self.blobs(core.asynchronous)
        if blobs is None:
            return base._replace(payload=data)
        ref = await blobs.put(self.tenant, data)
        return base._replace(payload_ref=f"sealed+{ref}" if sealed else ref)

    async def restore(self, call: Call, record: DedupeRecord) -> Outcome:
        """The outcome that *record* keeps."""
        if record.state != "done":
            return _restore_failure(record)
        outcome = Outcome("success", attempts=0)
        try:
            data = await self._data(record)
        except AntiphonError as error:
            outcome.metadata = {"payload": f"not readable: {error.message}"}
            return outcome
        if data is None:
            outcome.metadata = {"payload": NO_PAYLOAD}
            return outcome
        outcome.payload = data
        outcome.value = call.tool.decode(data)
        if record.output_redacted is True:
            outcome.metadata = {"outputRedacted": True}
        return outcome

    async def _data(self, record: DedupeRecord) -> bytes | None:
        if record.payload is not UNSET:
            return bytes(record.payload)
        if record.payload_sealed is not UNSET:
            return self._unseal(record.payload_sealed)
        if record.payload_ref is UNSET:
            return None
        ref = str(record.payload_ref)
        blobs = self.blobs(False)
        if blobs is None:
            raise StoreError("the blob store is not configured")
        if ref.startswith("sealed+"):
            return self._unseal((await blobs.get(self.tenant, ref[7:])).decode())
        return await blobs.get(self.tenant, ref)

    def _unseal(self, sealed: str) -> bytes:
        sealer = self.sealer()
        if sealer is None:
            raise StoreError("the seal key is missing")
        return sealer.unseal(sealed)

    # -- results that come after the fact ------------------------------------------------------------------------

    def late(self, core: Core, call: Call) -> Callable[[Any, BaseException | None], None]:
        """What to do with the result of a tool that was given up on: it settles the unknown record (R8)."""

        def settle(value: Any, error: BaseException | None) -> None:
            if error is not None or call.version == 0:
                return
            journal = core.store.open_sync()
            try:
                final = drive(self.final_success(core, call, value))
                version = drive(journal.settle(call.key, call.version, final))
                core.telemetry.late(call, version is not None)
            except Exception:
                log.exception("the late result of %s could not be recorded", call.tool.full_name)
            finally:
                drive(journal.close())

        return settle


def _note(outcome: Outcome | None, text: str) -> None:
    if outcome is not None:
        outcome.metadata = {**(outcome.metadata or {}), "payload": text}


def _restore_failure(record: DedupeRecord) -> Outcome:
    error: Any = record.error
    if error is UNSET:
        return failed("error", record.state, f"The earlier call ended as {record.state}.")
    attempts = 0 if record.execution is UNSET else record.execution.attempt_count
    if error.should_retriable:
        return failed(
            "retry_exhausted" if attempts > 1 else "retriable_error", error.code, error.message, retriable=True
        )
    return failed("error", error.code, error.message)
