"""Values that JSON has no form for, written as objects with one name, and read back as what they were.

``{"$bytes": "…"}`` is a ``bytes``, ``{"$float": "nan"}`` a float, ``{"$object": ["app.Order", {…}]}`` an object of a
class that only holds data. Bytes are written as Latin-1 text, so that a secret in them is seen by the redactor. An
object of the user's that looks like one of these is wrapped in ``$literal``.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import inspect
import math
import pathlib
import sys
from collections.abc import Callable, Iterable, Mapping
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from pathlib import Path, PurePath
from typing import Any, NamedTuple
from uuid import UUID
from weakref import WeakValueDictionary

from antiphon.errors import class_name, class_named

LITERAL = "$literal"
_OBJECT, _ENUM = "$object", "$enum"
_JSON = frozenset({dict, list, str, int, float})
_PURE: dict[str, type[PurePath]] = {kind.__name__: kind for kind in (pathlib.PurePosixPath, pathlib.PureWindowsPath)}
_SMALLEST, _LARGEST = -(2**63), 2**64 - 1

_WRITE: dict[type, Callable[[Any], dict[str, Any]]] = {
    bytes: lambda value: {"$bytes": value.decode("latin-1")},
    bytearray: lambda value: {"$bytearray": value.decode("latin-1")},
    datetime: lambda value: _zoned(value) or {"$datetime": value.isoformat()},
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
    "$zoned": lambda value: _in_zone(*value),
    "$date": date.fromisoformat,
    "$time": time.fromisoformat,
    "$timedelta": lambda value: timedelta(*value),
    "$decimal": Decimal,
    "$uuid": UUID,
    "$path": Path,
    "$purepath": lambda value: _PURE[value[0]](value[1]),
    "$float": float,
    "$int": int,
    "$str": lambda value: value.encode("latin-1").decode("utf-8", "surrogatepass"),
}
Read = Callable[[Any], Any]
_READ_GROUP: dict[str, Callable[[Any, Read], Any]] = {
    "$set": lambda value, read: set(map(read, value)),
    "$frozenset": lambda value, read: frozenset(map(read, value)),
    "$tuple": lambda value, read: tuple(map(read, value)),
    "$items": lambda value, read: {read(name): read(item) for name, item in value},
    LITERAL: lambda value, read: {name: read(item) for name, item in value.items()},
}

BUILT_IN = (bytes, bytearray, datetime, date, time, timedelta, Decimal, UUID)
"""What a value that was read back may hold beside JSON's own types."""


def tagged(value: Any, *, classes: bool = True) -> Any:
    """*value* in JSON's own types; ``TypeError`` where it has no form that could be read back.

    Without *classes*, an object is written as its fields, a member of an enum as its value, and so on.
    """
    kind = type(value)
    if value is None or kind is bool:
        return value
    group = _GROUPS.get(kind)
    if group is not None:
        members = [tagged(item, classes=classes) for item in value]
        return {group: members if kind is tuple else sorted(members, key=repr)}
    if classes and kind not in _JSON:
        form = _with_class(kind, value)
        if form is not None:
            return form
    write = _WRITE.get(kind)
    if write is not None:
        return write(value)
    if isinstance(value, enum.Enum):
        return tagged(value.value, classes=classes)
    if isinstance(value, str):
        return _text(str.__str__(value))
    if isinstance(value, int):
        return int(value) if _SMALLEST <= value <= _LARGEST else {"$int": str(int(value))}
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else {"$float": str(float(value))}
    if isinstance(value, dict):
        return _mapping(value, classes)
    if isinstance(value, (list, tuple)):
        return [tagged(item, classes=classes) for item in value]
    if isinstance(value, Path):
        return {"$path": _text(str(value))}
    if kind in _PURE.values():
        return {"$purepath": [kind.__name__, str(value)]}
    return tagged(fields(value, exactly=True), classes=classes)


def _zoned(value: datetime | time) -> dict[str, Any] | None:
    """A time with its zone, where the zone has a name: the same hour tomorrow may be at another distance from UTC."""
    zone = getattr(value.tzinfo, "key", None)
    if not isinstance(value, datetime) or zone is None:
        return None
    return {"$zoned": [value.replace(tzinfo=None).isoformat(), value.fold, zone]}


def _in_zone(text: str, fold: int, zone: str) -> datetime:
    from zoneinfo import ZoneInfo

    return datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone), fold=fold)


def _text(value: str) -> Any:
    if value.isascii():
        return value
    try:
        value.encode()
    except UnicodeEncodeError:
        return {"$str": value.encode("utf-8", "surrogatepass").decode("latin-1")}
    return value


def _mapping(value: Mapping[Any, Any], classes: bool) -> Any:
    if not all(isinstance(name, str) for name in value):
        pairs = value.items()
        return {"$items": [[tagged(name, classes=classes), tagged(item, classes=classes)] for name, item in pairs]}
    inner = {str.__str__(name): tagged(item, classes=classes) for name, item in value.items()}
    if len(inner) != 1:
        return inner
    (name,) = inner
    return {LITERAL: inner} if name in _READ or name in _READ_GROUP or name in _READ_CLASS else inner


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


def untagged(value: Any, *, classes: bool = True) -> Any:
    """The value that :func:`tagged` was given; a tag whose content was changed (redacted, edited) stays as it is.

    An object whose class is not loaded, or has changed, raises. Without *classes* it comes as its fields.
    """
    read = functools.partial(untagged, classes=classes)
    if type(value) is list:
        return [read(item) for item in value]
    if type(value) is not dict:
        return value
    if len(value) == 1:
        [(name, inner)] = value.items()
        if classes and _names_class(name, inner):
            return _READ_CLASS[name](inner, read)
        try:
            of_json = _READ.get(name)
            if of_json is not None:
                return of_json(read(inner) if type(inner) is dict else inner)
            group = _READ_GROUP.get(name)
            if group is not None:
                return group(inner, read)
            if _names_class(name, inner):
                return read(inner[1])
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
            return value
    return {name: read(item) for name, item in value.items()}


def exactly(value: Any) -> Any:
    """The form of *value* with its classes, if the same can be made of it; else ``None``."""
    try:
        form = tagged(value)
        return form if tagged(untagged(form)) == form else None
    except Exception:  # whatever its classes raise
        return None


def has_classes(form: Any) -> bool:
    """Whether a form names classes: what it is read back as needs no declared type any more."""
    if type(form) is list:
        return any(map(has_classes, form))
    if type(form) is not dict:
        return False
    if len(form) == 1:
        [(name, inner)] = form.items()
        if _names_class(name, inner):
            return True
        if name == LITERAL and type(inner) is dict:
            return any(map(has_classes, inner.values()))
    return any(map(has_classes, form.values()))


# -- classes -----------------------------------------------------------------------------------------------------------

_PLAIN = ("builtins", "datetime", "decimal", "uuid", "pathlib", "pathlib._local")


def _names_class(name: str, inner: Any) -> bool:
    if name not in _READ_CLASS or type(inner) is not list or len(inner) not in (2, 3):
        return False
    return type(inner[0]) is str and type(inner[1]) is (dict if name == _OBJECT else str)


def _with_class(kind: type, value: Any) -> Any:
    """The form of an object of a class; ``None`` for what has no class of its own; ``TypeError`` if it has no form."""
    if isinstance(value, enum.Enum):
        if kind[value.name] is not value:  # type: ignore[index] # several flags
            raise TypeError(kind.__name__)
        return {_ENUM: [class_name(kind), value.name]}
    if kind in (datetime, time) and type(value.tzinfo) not in (timezone, type(None)) and not _zoned(value):
        raise TypeError(type(value.tzinfo).__name__)
    shape = _shape(kind)
    if shape is not None:
        if any(name not in shape.fields and not _is_cached(kind, name) for name in getattr(value, "__dict__", ())):
            raise TypeError(kind.__name__)
        there = {name: tagged(getattr(value, name)) for name in shape.fields if hasattr(value, name)}
        if not shape.is_pydantic:
            return {_OBJECT: [shape.name, there]}
        if value.__pydantic_extra__ or value.__pydantic_private__:
            raise TypeError(kind.__name__)
        return {_OBJECT: [shape.name, there, sorted(value.__pydantic_fields_set__)]}
    if kind.__module__ not in _PLAIN:
        raise TypeError(kind.__name__)
    return None


def _is_cached(kind: type, name: str) -> bool:
    return isinstance(inspect.getattr_static(kind, name, None), functools.cached_property)


class _Shape(NamedTuple):
    """What is known of a class that holds data and nothing else."""

    name: str
    fields: dict[str, None]
    is_pydantic: bool


@functools.lru_cache(maxsize=1024)
def _shape(kind: type) -> _Shape | None:
    names = _field_names(kind)
    return None if names is None else _Shape(class_name(kind), dict.fromkeys(names), hasattr(kind, "model_construct"))


def _field_names(kind: type) -> Iterable[str] | None:
    """The fields of a class; ``None`` if it may hold more than data."""
    if dataclasses.is_dataclass(kind):
        return [field.name for field in dataclasses.fields(kind)]
    known: Any = getattr(kind, "__pydantic_fields__", None)
    if known is None:
        known = getattr(kind, "__struct_fields__", None) if "msgspec" in sys.modules else None
    if known is None and issubclass(kind, tuple):
        known = getattr(kind, "_fields", None)
    if known is None:
        known = [field.name for field in getattr(kind, "__attrs_attrs__", ())] or None
    return None if known is None else list(known)


_known: WeakValueDictionary[str, type] = WeakValueDictionary()


def _class_of(name: str) -> type | None:
    """The class of that name, if it is loaded; one that was found is not looked for again."""
    kind = _known.get(name)
    if kind is None or getattr(sys.modules.get(kind.__module__), kind.__qualname__, None) is not kind:
        kind = class_named(name)
        if kind is not None:
            _known[name] = kind
    return kind


def _object_of(form: Any, read: Read) -> Any:
    """An object as it was, with the fields that it had: nothing of its class's own code runs but where it must."""
    name, there, *given = form
    kind: Any = _class_of(name)
    shape = None if kind is None else _shape(kind)
    if shape is None:
        raise LookupError(name)
    values = {field: read(value) for field, value in there.items()}
    if shape.is_pydantic:
        return kind.model_construct(set(given[0]), **values)
    if issubclass(kind, tuple) or hasattr(kind, "__struct_fields__"):
        return kind(**values)
    new = object.__new__(kind)
    for field, value in values.items():
        object.__setattr__(new, field, value)
    return new


def _member_of(form: Any, read: Read) -> Any:
    name, member = form
    kind: Any = _class_of(name)
    if not isinstance(kind, enum.EnumMeta):
        raise LookupError(name)
    return kind[member]


_READ_CLASS: dict[str, Callable[[Any, Read], Any]] = {_OBJECT: _object_of, _ENUM: _member_of}
