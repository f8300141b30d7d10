"""JSON as the host reads, sends and stores it: integers of up to 4,300 characters keep their value.

The log only takes 64-bit integers; a larger one is stored as ``{"$int": "digits"}``, and a user's object that looks
like that as ``{"$int": [value]}``, so the two cannot be confused.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
from typing import Any

import msgspec
import orjson

from antiphon._recording.plain import dump
from antiphon.canonical import canonical_digest
from antiphon.errors import CanonicalError

_MARK = "$int"
_QUOTED_MARK = b'"$int"'
_AS_ZEROS = bytes.maketrans(b"123456789", b"000000000")
_LARGE = b"0" * 19
_DEEPEST = 252
_LOW, _HIGH = -(2**63), 2**64 - 1
_DIGITS = re.compile(r"-?[0-9]{1,4300}")


def from_json(data: bytes) -> Any:
    """Decode a client's document; a ``ValueError`` says why it cannot be read."""
    if _LARGE not in data.translate(_AS_ZEROS):  # ten times faster than a regular expression
        return orjson.loads(data)
    try:
        return msgspec.json.decode(data)  # orjson turns a large integer into a float, or rejects it
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ValueError(str(error)) from None


def to_json(value: Any) -> bytes:
    """Encode a document for a client."""
    try:
        return orjson.dumps(value)
    except TypeError:
        pass
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    except (TypeError, ValueError, RecursionError):
        return dump(value)


def document_digest(value: Any) -> str:
    """The digest of a document; of one without a canonical form, that of its bytes."""
    try:
        return canonical_digest(value)
    except (CanonicalError, RecursionError):
        return hashlib.sha256(dump(value)).hexdigest()


def kept(payload: dict[str, Any]) -> dict[str, Any]:
    """Encode a payload for the log."""
    with contextlib.suppress(TypeError):
        if _QUOTED_MARK not in orjson.dumps(payload):
            return payload
    try:
        found: dict[str, Any] = _marked(payload)
    except RecursionError:  # too deep to be written anyway, or circular
        return payload
    return found


def given_back(payload: dict[str, Any]) -> dict[str, Any]:
    """Restore a payload that was encoded with :func:`kept`."""
    with contextlib.suppress(TypeError):
        if _QUOTED_MARK not in orjson.dumps(payload):
            return payload
    return {name: _unmarked(value) for name, value in payload.items()}


def _marked(value: Any, depth: int = 0) -> Any:
    if depth > _DEEPEST:
        raise RecursionError
    if isinstance(value, dict):
        inner = {name: _marked(one, depth + 1) for name, one in value.items()}
        return {_MARK: [inner[_MARK]]} if inner.keys() == {_MARK} else inner
    if isinstance(value, (list, tuple)):
        return [_marked(one, depth + 1) for one in value]
    if type(value) is int and not _LOW <= value <= _HIGH:
        return {_MARK: str(value)}
    return value


def _unmarked(value: Any) -> Any:
    if isinstance(value, dict):
        if value.keys() == {_MARK}:
            given = value[_MARK]
            if isinstance(given, list) and len(given) == 1:
                return {_MARK: _unmarked(given[0])}
            if isinstance(given, str) and _DIGITS.fullmatch(given):
                return int(given)
        return {name: _unmarked(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_unmarked(one) for one in value]
    return value
