"""How results are stored: as they are, spilled to blobs, or sealed when they hold a secret (R14)."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import orjson

from antiphon._gateway import codec
from antiphon._gateway.settings import Settings
from antiphon._scope import current_scope
from antiphon.contract._base import UNSET
from antiphon.contract.record import DedupeRecord
from antiphon.errors import StoreError
from antiphon.ports import Blobs, Settlement

if TYPE_CHECKING:
    from antiphon._late import LateRedactor
    from antiphon.redact import Redactor

log = logging.getLogger("antiphon.gateway")

NO_PAYLOAD = "The call succeeded; its result could not be stored and is not available."
NOT_NOW = "The call succeeded; its result is kept, but cannot be read now."
NOT_READABLE = "The call succeeded; its result cannot be read."
_SEALED = "sealed+"

_UNSHOWN = "(cannot be shown)"
_SHOWN = 2000
_NOTED = 16_384
_REMEMBERED = 1024
_REMEMBERED_BYTES = 128


class ResultStore:
    """Turns results into settlements, and back."""

    def __init__(
        self,
        settings: Settings,
        redactor: Any,
        sealer: Callable[[], Any],
        blobs: Callable[[], Blobs | None],
        masks: Any = None,
    ) -> None:
        """*redactor*: for what is stored; *masks*: for messages, which leave the process whatever the store."""
        self.redactor: Redactor | None = redactor
        self._masks: Redactor | None = masks or redactor
        self.blobs = blobs
        self._sealer = sealer
        self._plain: set[bytes] = set()
        """Small results that were inspected and hold no secret: many tools return the same few."""
        self._warned = False
        self.tenant: str = settings.tenant
        self.configure(settings)

    def configure(self, settings: Settings) -> None:
        """Apply the limits of new settings."""
        self.payload_limit: int = settings.payload_limit
        self._result_limit = settings.result_limit
        self.largest_plain: int = min(self.payload_limit, self._result_limit) if self.redactor is None else -1
        """The size up to which a result is stored as it is, whatever it contains."""

    @property
    def run_redactor(self) -> Any:
        """The redactor for what is stored now: within a run, the one that knows the secrets found there so far."""
        return None if self.redactor is None else _of_run() or self.redactor

    def clean(self, text: str) -> str:
        """A message that may be stored."""
        redactor = self.run_redactor
        return text if redactor is None else str(redactor.redact_text(text))

    def shown(self, arguments: dict[str, Any]) -> str:
        """Arguments as an operator may see them; empty if they cannot be serialised."""
        try:
            return masked(_written(arguments), self.run_redactor)
        except Exception:  # whatever the classes of the arguments raise
            return ""

    def for_approval(self, key: str, arguments: dict[str, Any]) -> str:
        """Arguments for a person who decides about the call *key*: all of them, sealed if possible, else masked.

        Secrets that only the run knows are masked in any case: whoever views them later does not know them.
        """
        try:
            data, sealer, known = _written(arguments), self._sealer(), self._masks and _of_run()
            if sealer is None:
                return masked(data, known or self.redactor, None)
            return str(sealer.seal(masked(data, known, None).encode(), key.encode()))
        except Exception:  # whatever the classes of the arguments raise, or a key file that cannot be read
            return _UNSHOWN

    def for_listeners(self, arguments: dict[str, Any]) -> str:
        """The same for listeners, whatever the store: masked."""
        try:
            return masked(_written(arguments), self._masks and (_of_run() or self._masks), None)
        except Exception:  # whatever the classes of the arguments raise
            return _UNSHOWN

    def for_claim(self, key: str, arguments: dict[str, Any]) -> str:
        """Arguments for the claim *key* while it is in flight: sealed if possible, which costs less than masking.

        As they were given, and not as the key was made from them (there 10.0 is 10): ``reconcile`` may need them. They
        are masked when an operator views them; without a seal key, or if they are large, here. Those with a secret that
        only the run knows are followed by a line for operators, in which it is masked.
        """
        try:
            sealer, data, known = self._sealer(), _written(arguments), self._masks and _of_run()
            if sealer is not None and len(data) <= _NOTED:
                if known and known.pseudonyms.occurs(data.decode()):
                    data = b"%b\n%b" % (data, masked(data, known, None).encode())
                return str(sealer.seal(data, key.encode()))
        except Exception:  # noqa: S110 - whatever the classes of the arguments raise, or a key file nobody can read
            pass
        return self.shown(arguments)

    def quoted(self, arguments: dict[str, Any]) -> dict[str, str]:
        """The secrets among the arguments of a call, which an exception may quote, and their replacements."""
        if self._masks is None:
            return {}
        from antiphon.redact import secrets_in

        return secrets_in(arguments, self._masks.redact)

    # -- the caller's key ----------------------------------------------------------------------------------------

    def kept_key(self, key: str, given: str, arguments: dict[str, Any]) -> str:
        """The key that a caller gave, as the record *key* stores it: sealed if it is, or contains, a secret, also one
        that only the name of an argument reveals.
        """
        if self.redactor is None or (self.is_plain(orjson.dumps(given)) and not self._quotes(given, arguments)):
            return given
        try:
            sealer = self._sealer()
            return given if sealer is None else str(sealer.seal(given.encode(), key.encode()))
        except Exception:  # a key file that cannot be read
            return self.clean(given)

    def _quotes(self, text: str, arguments: dict[str, Any]) -> bool:
        """Whether *text* repeats a secret of the arguments."""
        from antiphon.redact import without_values

        return without_values(text, self.quoted(arguments)) != text

    def given_key(self, record: DedupeRecord) -> str:
        """The key that the caller gave."""
        kept = record.idempotency_key
        if kept.startswith("s2."):
            with contextlib.suppress(StoreError):  # of another seal key; or the caller's key looks like a sealed one
                return self._unseal(record, kept).decode()
        return kept

    # -- keeping -------------------------------------------------------------------------------------------------

    def is_plain(self, payload: bytes) -> bool:
        """Whether a result is small and holds no secret, nor one that its run has found: it is stored as it is."""
        known = None if self.redactor is None else _of_run()
        if known is not None and known.pseudonyms.occurs(payload.decode()):
            return False
        if payload in self._plain:
            return True
        if len(payload) > self.payload_limit or len(payload) > self._result_limit:
            return False
        if self.redactor is not None and self.redactor.redact_bytes(payload)[1]:
            return False
        if len(payload) <= _REMEMBERED_BYTES:
            if len(self._plain) >= _REMEMBERED:
                self._plain.clear()
            self._plain.add(payload)
        return True

    def keep(self, key: str, base: Settlement, payload: bytes, streamed: bool) -> tuple[Settlement, bytes | None]:
        """The settlement of a call with this result, and what must be in the blob store before it (:meth:`placed`).

        A sealed result is bound to the record *key*: it cannot be read from another record.
        Raises :class:`~antiphon._gateway.codec.NotSerialisable` if the result cannot be kept.
        """
        if len(payload) > self._result_limit:
            raise codec.NotSerialisable(f"{len(payload)} bytes exceed the limit of {self._result_limit}")
        clean, secret, redactor = payload, False, self.run_redactor
        if redactor is not None:
            clean, secret = _clean_chunks(redactor, payload) if streamed else redactor.redact_bytes(payload)
        if not secret:
            kept, data = base._replace(payload=payload), payload
        else:
            sealer = self._sealer()
            if sealer is None:
                self._warn_of_masks()
                kept, data = base._replace(payload=clean, output_redacted=True), clean
            else:
                sealed: str = sealer.seal(payload, context=key.encode())
                kept, data = base._replace(payload_sealed=sealed), sealed.encode()
        spills = len(data) > self.payload_limit and self.blobs() is not None
        return kept, data if spills else None

    def _warn_of_masks(self) -> None:
        if not self._warned:
            self._warned = True
            log.warning(
                "a result that contains a secret is stored masked, and a repeated call gets the masked result: "
                "there is no seal key. Set [store] seal_key_file, see docs/how-to/keep-secrets-out.md"
            )

    @staticmethod
    def placed(settlement: Settlement, ref: str) -> Settlement:
        """The settlement whose result is in the blob store under *ref*."""
        mark = _SEALED if settlement.payload_sealed is not None else ""
        return settlement._replace(payload=None, payload_sealed=None, payload_ref=mark + ref)

    def required_blobs(self) -> Blobs:
        blobs = self.blobs()
        if blobs is None:
            raise StoreError("The result is in a blob store, but none is configured.")
        return blobs

    # -- giving again --------------------------------------------------------------------------------------------

    @staticmethod
    def ref_of(record: DedupeRecord) -> str:
        """The result's reference in the blob store, or ``""``."""
        return "" if record.payload_ref is UNSET else record.payload_ref.removeprefix(_SEALED)

    def kept(self, record: DedupeRecord, blob: bytes | None) -> bytes | None:
        """The stored result of *record* as JSON, if it has one; *blob* is its content from the blob store."""
        if record.payload is not UNSET:
            return bytes(record.payload)
        if record.payload_sealed is not UNSET:
            return self._unseal(record, record.payload_sealed)
        if blob is not None and str(record.payload_ref).startswith(_SEALED):
            return self._unseal(record, blob.decode())
        return blob

    def _unseal(self, record: DedupeRecord, sealed: str) -> bytes:
        sealer = self._sealer()
        if sealer is None:
            from antiphon._seal import key_id_in

            raise StoreError(
                f"The result is sealed with key {key_id_in(sealed)!r}, and no seal key is configured here.",
                hint="Name its file: [store] seal_key_file.",
            )
        data: bytes = sealer.unseal(sealed, context=record.key.encode())
        return data


def _of_run() -> Redactor | None:
    """The redactor of the run in this context, if there is one and it has found anything."""
    scope = current_scope()
    return None if scope is None else scope.known()


def _written(arguments: dict[str, Any]) -> bytes:
    return orjson.dumps(arguments, default=_readable, option=_OPTIONS)


_OPTIONS = orjson.OPT_NON_STR_KEYS | orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_SUBCLASS


def _readable(value: Any) -> Any:
    """An object as all of its fields; anything else as its text."""
    if isinstance(value, (str, dict, list)):
        return str.__str__(value) if isinstance(value, str) else dict(value) if isinstance(value, dict) else list(value)
    from antiphon._gateway.tagged import fields

    try:
        return fields(value)
    except TypeError:
        return str(value)


def masked(arguments: bytes, redactor: Redactor | LateRedactor | None, most: int | None = _SHOWN) -> str:
    """Serialised arguments as an operator may see them; those who decide about them see all."""
    text = (arguments if redactor is None else redactor.redact_bytes(arguments)[0]).decode()
    return text if most is None or len(text) <= most else f"{text[:most]}…"


def _clean_chunks(redactor: Redactor, data: bytes) -> tuple[bytes, bool]:
    """The chunks of a stream without secrets; a secret may span several of them."""
    from antiphon.redact._stream import redacting

    found = orjson.loads(data)  # in its stored form: objects of classes, too
    if not isinstance(found, list):
        return redactor.redact_bytes(data)
    chunks = [_bytes_again(chunk) for chunk in found]
    stream = redacting(getattr(redactor, "made", redactor), chunks[0] if chunks else None)  # one that is built late
    clean = [final for chunk in chunks for final in stream.feed(chunk)] + stream.finish()
    return (data, False) if clean == chunks else (orjson.dumps([_written_chunk(chunk) for chunk in clean]), True)


def _written_chunk(chunk: Any) -> Any:
    return {"$bytes": chunk.decode("latin-1")} if isinstance(chunk, bytes) else chunk


def _bytes_again(chunk: Any) -> Any:
    """A secret in bytes may span several chunks, too."""
    if type(chunk) is dict and len(chunk) == 1 and isinstance(chunk.get("$bytes"), str):
        return chunk["$bytes"].encode("latin-1", "replace")
    return chunk
