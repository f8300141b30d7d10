"""Values that JSON has no form for, written as objects with one name, and read back as what they were.

``{"$bytes": "…"}`` is a ``bytes``, ``{"$float": "nan"}`` a float. Bytes are written as Latin-1 text, so that a secret
in them is seen by the redactor. An object of the user's that looks like one of these is wrapped in ``$literal``.
"""

from __future__ import annotations

import dataclasses
import enum
import math
import sys
from collections.abc import Callable, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path, PurePath
from typing import Any
from uuid import UUID

LITERAL = "$literal"
_SMALLEST, _LARGEST = -(2**63), 2**64 - 1

_WRITE: dict[type, Callable[[Any], dict[str, Any]]] = {
    bytes: lambda value: {"$bytes": value.decode("latin-1")},
    bytearray: lambda value: {"$bytearray": value.decode("latin-1")},
    datetime: lambda value: {"$datetime": value.isoformat()},
    date: lambda value: {"$date": value.isoformat()},
    time: lambda value: {"$time": value.isoformat()},
    timedelta: lambda value: {"$timedelta": [value.days, value.seconds, value.microseconds]},
    Decimal: lambda value: {"$decimal": str(value)},
    UUID: lambda value: {"$uuid": str(value)},
    set: lambda value: {"$set": _members(value)},
    frozenset: lambda value: {"$frozenset": _members(value)},
    tuple: lambda value: {"$tuple": [tagged(item) for item in value]},
}

_READ: dict[str, Callable[[Any], Any]] = {
    "$bytes": lambda value: value.encode("latin-1"),
    "$bytearray": lambda value: bytearray(value.encode("latin-1")),
    "$datetime": datetime.fromisoformat,
    "$date": date.fromisoformat,
    "$time": time.fromisoformat,
    "$timedelta": lambda value: timedelta(*value),
    "$decimal": Decimal,
    "$uuid": UUID,
    "$path": Path,
    "$set": lambda value: set(untagged(value)),
    "$frozenset": lambda value: frozenset(untagged(value)),
    "$tuple": lambda value: tuple(untagged(value)),
    "$float": float,
    "$int": int,
    "$str": lambda value: value.encode("latin-1").decode("utf-8", "surrogatepass"),
    "$items": lambda value: {untagged(name): untagged(item) for name, item in value},
    LITERAL: lambda value: {name: untagged(item) for name, item in value.items()},
}

BUILT_IN = (bytes, bytearray, datetime, date, time, timedelta, Decimal, UUID)
"""What a value that was read back may hold beside JSON's own types."""


def _members(value: set[Any] | frozenset[Any]) -> list[Any]:
    return sorted((tagged(item) for item in value), key=repr)


def tagged(value: Any) -> Any:
    """*value* in JSON's own types; ``TypeError`` where it has no form that could be read back."""
    kind = type(value)
    write = _WRITE.get(kind)
    if write is not None:
        return write(value)
    if value is None or kind is bool:
        return value
    if isinstance(value, enum.Enum):
        return tagged(value.value)
    if isinstance(value, str):
        return _text(str.__str__(value))
    if isinstance(value, int):
        return int(value) if _SMALLEST <= value <= _LARGEST else {"$int": str(int(value))}
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else {"$float": str(float(value))}
    if isinstance(value, dict):
        return _mapping(value)
    if isinstance(value, (list, tuple)):
        return [tagged(item) for item in value]
    if isinstance(value, PurePath):
        return {"$path": str(value)}
    return tagged(fields(value, exactly=True))


def _text(value: str) -> Any:
    if value.isascii():
        return value
    try:
        value.encode()
    except UnicodeEncodeError:
        return {"$str": value.encode("utf-8", "surrogatepass").decode("latin-1")}
    return value


def _mapping(value: Mapping[Any, Any]) -> Any:
    if not all(isinstance(name, str) for name in value):
        return {"$items": [[tagged(name), tagged(item)] for name, item in value.items()]}
    inner = {str.__str__(name): tagged(item) for name, item in value.items()}
    return {LITERAL: inner} if len(inner) == 1 and next(iter(inner)) in _READ else inner


def fields(value: Any, *, exactly: bool = False) -> Any:
    """An object of a class as plain data; *exactly* keeps values that the class would write as something else."""
    dump = getattr(value, "model_dump", None)
    if callable(dump):
        try:
            return dump(mode="json")
        except ValueError:  # bytes that are no text
            if exactly:
                return dump()
            raise
    wire = getattr(value, "to_wire", None)
    if callable(wire):
        return wire()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    msgspec = sys.modules.get("msgspec")
    if msgspec is not None and isinstance(value, msgspec.Struct):
        return msgspec.to_builtins(value, builtin_types=(bytes, bytearray))
    raise TypeError(type(value).__name__)


def untagged(value: Any) -> Any:
    """The value that :func:`tagged` was given; a tag whose content was changed (redacted, edited) stays as it is."""
    if type(value) is list:
        return [untagged(item) for item in value]
    if type(value) is not dict:
        return value
    if len(value) == 1:
        [(name, inner)] = value.items()
        read = _READ.get(name)
        if read is not None:
            try:
                return read(inner)
            except (ArithmeticError, AttributeError, TypeError, ValueError):
                return value
    return {name: untagged(item) for name, item in value.items()}
