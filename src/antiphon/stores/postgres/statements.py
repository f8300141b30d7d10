"""What is sent to PostgreSQL and what comes back: statements for one schema, their values, and records.

The driver's own list adaptation costs more than the whole statement (about 40 µs per array), so arrays of the
three kinds the store sends are packed here in the binary format of the protocol.
"""

from __future__ import annotations

import re
import secrets
import struct
from collections.abc import Mapping, Sequence
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from msgspec import UNSET

from antiphon.contract.record import RECORD_VERSION, DedupeRecord, RecordedRequest
from antiphon.errors import InvalidInput, StoreVersionError
from antiphon.ports import BreakerRow, ClaimRequest, Row, Settlement
from antiphon.stores._common import (
    NO_OUTCOME,
    Outcome,
    check_version,
    inflight_outcome,
    named_queries,
    outcome_of,
    owner_of,
    recorded_request,
)
from antiphon.stores._common import record_of as stored_record

FOLDER = Path(__file__).parent
_FILES = ("claims.sql", "log.sql", "breakers.sql", "admin.sql")
_INCLUDE = re.compile(r"\{(_\w+)\}")
_PARAMETER = re.compile(r"%\((\w+)\)s")
_SCHEMA = re.compile(r"\bantiphon\b(?=\.|;|\s*$)", re.MULTILINE)
_COMMENT = re.compile(r"^\s*--.*$", re.MULTILINE)

_HEAD = struct.Struct("!iiIii")
_NUMBER = struct.Struct("!iq")
_LENGTH = struct.Struct("!i")
_EMPTY = struct.Struct("!iiI")
_TEXT, _BYTEA, _INT8 = 25, 17, 20
_TEXT_ARRAY, _BYTEA_ARRAY, _INT8_ARRAY = 1009, 1001, 1016
_ESCAPE = "\ue000"
_NO_ENCODING = "Text with a lone surrogate cannot be stored."


_encode = msgspec.json.Encoder().encode
_request_decoder = msgspec.json.Decoder(RecordedRequest)
_outcome_decoder = msgspec.json.Decoder(Outcome)

VERSION, OP = 9, 19
"""The columns of a record row with its version, and with the operation that wrote it."""


class Statement(NamedTuple):
    """SQL with numbered parameters, and the names that fill them in order."""

    name: str
    text: str
    names: tuple[str, ...]

    def values(self, given: Mapping[str, Any]) -> tuple[Any, ...]:
        """The parameters in the order of their numbers."""
        return tuple([given[name] for name in self.names])


def in_schema(sql: str, schema: str) -> str:
    """The text with *schema* in place of the placeholder ``antiphon``."""
    quoted = quote(schema)
    return _SCHEMA.sub(lambda _: quoted, sql)


def quote(name: str) -> str:
    """*name* as an SQL identifier."""
    return '"' + name.replace('"', '""') + '"'


@lru_cache(maxsize=16)
def statements(schema: str) -> Mapping[str, Statement]:
    """Every statement of the store by name; ``NAME_bare`` is the one for a step without events."""
    texts: dict[str, str] = {}
    for file in _FILES:
        for name, text in named_queries(FOLDER / file).items():
            texts[name] = _COMMENT.sub("", text)
    found = {name: _compile(name, texts, schema) for name in texts if not name.startswith("_")}
    without_log = {**texts, "_log_if_won": "", "_log_anyway": ""}
    for name in [name for name, text in texts.items() if "{_log_" in text]:
        found[name + "_bare"] = _compile(name, without_log, schema)
    return found


def _compile(name: str, texts: Mapping[str, str], schema: str) -> Statement:
    text = texts[name]
    while _INCLUDE.search(text):
        text = _INCLUDE.sub(lambda found: texts[found[1]], text)
    names: list[str] = []

    def number(found: re.Match[str]) -> str:
        if found[1] not in names:
            names.append(found[1])
        return f"${names.index(found[1]) + 1}"

    text = _PARAMETER.sub(number, in_schema(text, schema))
    return Statement(name, " ".join(text.split()), tuple(names))


class TextArray(bytes):
    """``text[]`` in binary form."""


class ByteaArray(bytes):
    """``bytea[]`` in binary form."""


class Int8Array(bytes):
    """``bigint[]`` in binary form."""


def text_array(items: Sequence[str]) -> TextArray:
    """Pack strings."""
    return TextArray(_pack(_TEXT, [to_text(item).encode() for item in items]))


def bytea_array(items: Sequence[bytes]) -> ByteaArray:
    """Pack byte strings."""
    return ByteaArray(_pack(_BYTEA, items))


def int8_array(items: Sequence[int]) -> Int8Array:
    """Pack whole numbers."""
    if not items:
        return Int8Array(_EMPTY.pack(0, 0, _INT8))
    return Int8Array(_HEAD.pack(1, 0, _INT8, len(items), 1) + b"".join([_NUMBER.pack(8, item) for item in items]))


def _pack(kind: int, items: Sequence[bytes]) -> bytes:
    if not items:
        return _EMPTY.pack(0, 0, kind)
    parts = [_HEAD.pack(1, 0, kind, len(items), 1)]
    for item in items:
        parts.append(_LENGTH.pack(len(item)))
        parts.append(item)
    return b"".join(parts)


def to_text(value: str) -> str:
    """*value* without NUL, which PostgreSQL text cannot hold; reversible, and the identity for ordinary text."""
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise InvalidInput(_NO_ENCODING) from None
    if "\0" in value or _ESCAPE in value:
        return value.replace(_ESCAPE, _ESCAPE + "1").replace("\0", _ESCAPE + "0")
    return value


def storable(params: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters with text that PostgreSQL can hold."""
    return {name: to_text(value) if value.__class__ is str else value for name, value in params.items()}


def from_text(value: str) -> str:
    """Undo :func:`to_text`."""
    if _ESCAPE in value:
        return value.replace(_ESCAPE + "0", "\0").replace(_ESCAPE + "1", _ESCAPE)
    return value


def register(connection: Any) -> None:
    """Register the arrays, and one width for all numbers: a statement is then prepared once, not per size."""
    for kind, dumper in _dumpers().items():
        connection.adapters.register_dumper(kind, dumper)


@cache
def _dumpers() -> dict[type, Any]:
    """Created once: psycopg keeps every class that it was ever given."""
    from psycopg.types.numeric import Int8BinaryDumper
    from psycopg.types.string import BytesBinaryDumper

    arrays: dict[type, int] = {TextArray: _TEXT_ARRAY, ByteaArray: _BYTEA_ARRAY, Int8Array: _INT8_ARRAY}
    made = {kind: type(f"{kind.__name__}Dumper", (BytesBinaryDumper,), {"oid": oid}) for kind, oid in arrays.items()}
    return {**made, int: Int8BinaryDumper}


def new_op() -> int:
    """A number that identifies one operation after its reply was lost."""
    return secrets.randbits(63)


def claim_params(request: ClaimRequest, op: int) -> dict[str, Any]:
    """The parameters of ``begin`` and ``take_over``."""
    template = request.template
    params = {
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
        "request": _request_json(request),
        "asked": _encode(inflight_outcome(shown)) if (shown := request.shown) else None,
    }
    if request.pin is not None:
        params["call"], params["mark"] = request.pin
    return params


def _request_json(request: ClaimRequest) -> bytes:
    try:
        return _encode(recorded_request(request))
    except UnicodeEncodeError:
        raise InvalidInput(_NO_ENCODING) from None


def settle_params(key: str, version: int, settlement: Settlement) -> dict[str, Any]:
    """The parameters of ``settle``, except for the number of the operation."""
    return {
        "key": key,
        "version": version,
        "state": settlement.state,
        "ttl_ms": settlement.ttl_ms,
        "dispatched": settlement.dispatched,
        "outcome": _encode(outcome_of(settlement)),
        "payload": settlement.payload,
    }


def log_params(run: str, rows: Sequence[Row], tenant: str = "default", workspace: str = "default") -> dict[str, Any]:
    """The parameters of the log part of a statement; tenant and workspace count only for a run nobody opened."""
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
        made = _request_decoder.decode(request)
        ended = NO_OUTCOME if outcome is None else _outcome_decoder.decode(outcome)
    except msgspec.ValidationError as error:
        raise StoreVersionError(f"{what} cannot be read: {error}", hint="It was left as it is.") from None
    names = (*map(from_text, (key, tool, idempotency_key)), state)
    held = (version, fence, *map(from_text, (tenant, workspace, owner)), dispatched)
    return stored_record(
        (*names, *row[4:8], made, *held), ended, payload, UNSET if lock_until is None else lock_until, v
    )


def breaker_of(row: tuple[Any, ...]) -> BreakerRow:
    """A row of the breaker table."""
    key, state, epoch, until_ms, reason, updated_at_ms, tripped_by = row
    return BreakerRow(from_text(key), state, epoch, until_ms, from_text(reason), updated_at_ms, from_text(tripped_by))
