"""How values cross the wire: text that PostgreSQL can hold, and arrays packed without a detour.

The driver's own list adaptation costs more than the whole statement (about 40 µs per array), so arrays of the
three kinds the store sends are packed here in the binary format of the protocol.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

from antiphon.errors import InvalidInput

_HEAD = struct.Struct("!iiIii")
_NUMBER = struct.Struct("!iq")
_LENGTH = struct.Struct("!i")
_EMPTY = struct.Struct("!iiI")
_TEXT, _BYTEA, _INT8 = 25, 17, 20
_TEXT_ARRAY, _BYTEA_ARRAY, _INT8_ARRAY = 1009, 1001, 1016
_ESCAPE = "\ue000"


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
    """*value* without NUL, which PostgreSQL's text cannot hold; reversible, and the identity for ordinary text."""
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise InvalidInput("A text with half a surrogate pair cannot be stored.") from None
    if "\0" in value or _ESCAPE in value:
        return value.replace(_ESCAPE, _ESCAPE + "1").replace("\0", _ESCAPE + "0")
    return value


def from_text(value: str) -> str:
    """Undo :func:`to_text`."""
    if _ESCAPE in value:
        return value.replace(_ESCAPE + "0", "\0").replace(_ESCAPE + "1", _ESCAPE)
    return value


def register(connection: Any) -> None:
    """Teach a connection the arrays, and one width for every number: a statement is prepared once, not per size."""
    from psycopg.types.numeric import Int8BinaryDumper
    from psycopg.types.string import BytesBinaryDumper

    for kind, oid in ((TextArray, _TEXT_ARRAY), (ByteaArray, _BYTEA_ARRAY), (Int8Array, _INT8_ARRAY)):
        connection.adapters.register_dumper(kind, type(f"{kind.__name__}Dumper", (BytesBinaryDumper,), {"oid": oid}))
    connection.adapters.register_dumper(int, Int8BinaryDumper)
