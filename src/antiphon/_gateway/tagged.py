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
from types import MappingProxyType
from typing import Any
from uuid import UUID

LITERAL = "$literal"
_JSON = frozenset({dict, list, str, int, float})
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
}
_GROUPS: dict[type, str] = {tuple: "$tuple", set: "$set", frozenset: "$frozenset"}

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
    "$float": float,
    "$int": int,
    "$str": lambda value: value.encode("latin-1").decode("utf-8", "surrogatepass"),
}
_READ_GROUP: dict[str, Callable[[Any, Callable[[Any], Any]], Any]] = {
    "$set": lambda value, read: set(map(read, value)),
    "$frozenset": lambda value, read: frozenset(map(read, value)),
    "$tuple": lambda value, read: tuple(map(read, value)),
    "$items": lambda value, read: {read(name): read(item) for name, item in value},
    LITERAL: lambda value, read: {name: read(item) for name, item in value.items()},
}
Own = Callable[[Any, Callable[[Any], Any]], Any]
"""A form of one's own for a value, or ``None``; the function writes what is inside of it."""

BUILT_IN = (bytes, bytearray, datetime, date, time, timedelta, Decimal, UUID)
"""What a value that was read back may hold beside JSON's own types."""


def tagged(value: Any, own: Own | None = None) -> Any:
    """*value* in JSON's own types; ``TypeError`` where it has no form that could be read back.

    *own* is asked first about what is neither JSON nor a collection.
    """
    kind = type(value)
    if value is None or kind is bool:
        return value
    group = _GROUPS.get(kind)
    if group is not None:
        members = [tagged(item, own) for item in value]
        return {group: members if kind is tuple else sorted(members, key=repr)}
    if own is not None and kind not in _JSON:
        form = own(value, lambda inner: tagged(inner, own))
        if form is not None:
            return form
    write = _WRITE.get(kind)
    if write is not None:
        return write(value)
    if isinstance(value, enum.Enum):
        return tagged(value.value, own)
    if isinstance(value, str):
        return _text(str.__str__(value))
    if isinstance(value, int):
        return int(value) if _SMALLEST <= value <= _LARGEST else {"$int": str(int(value))}
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else {"$float": str(float(value))}
    if isinstance(value, dict):
        return _mapping(value, own)
    if isinstance(value, (list, tuple)):
        return [tagged(item, own) for item in value]
    if isinstance(value, PurePath):
        return _path(value)
    return tagged(fields(value, exactly=True), own)


def _path(value: PurePath) -> Any:
    if not isinstance(value, Path):
        raise TypeError(type(value).__name__)  # of another system, perhaps
    return {"$path": _text(str(value))}


def _text(value: str) -> Any:
    if value.isascii():
        return value
    try:
        value.encode()
    except UnicodeEncodeError:
        return {"$str": value.encode("utf-8", "surrogatepass").decode("latin-1")}
    return value


def _mapping(value: Mapping[Any, Any], own: Own | None) -> Any:
    if not all(isinstance(name, str) for name in value):
        return {"$items": [[tagged(name, own), tagged(item, own)] for name, item in value.items()]}
    inner = {str.__str__(name): tagged(item, own) for name, item in value.items()}
    if len(inner) != 1:
        return inner
    (name,) = inner
    looks_like_one = name in _READ or name in _READ_GROUP or (own is not None and name.startswith("$"))
    return {LITERAL: inner} if looks_like_one else inner


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


def untagged(value: Any, own: Mapping[str, Own] = MappingProxyType({})) -> Any:
    """The value that :func:`tagged` was given; a tag whose content was changed (redacted, edited) stays as it is.

    *own* reads the forms of one's own, by their names; what these raise is the caller's.
    """
    if type(value) is list:
        return [untagged(item, own) for item in value]
    if type(value) is not dict:
        return value
    if len(value) == 1:
        [(name, inner)] = value.items()
        mine = own.get(name)
        if mine is not None:
            return mine(inner, lambda item: untagged(item, own))
        try:
            read = _READ.get(name)
            if read is not None:
                return read(untagged(inner) if type(inner) is dict else inner)
            group = _READ_GROUP.get(name)
            if group is not None:
                return group(inner, lambda item: untagged(item, own))
        except (ArithmeticError, AttributeError, TypeError, ValueError):
            return value
    return {name: untagged(item, own) for name, item in value.items()}
