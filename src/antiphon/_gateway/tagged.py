"""Values for which JSON has no form, written as objects with one name, and read back as what they were.

``{"$bytes": "…"}`` is a ``bytes``, ``{"$float": "nan"}`` a float, ``{"$object": ["app.Order", {…}]}`` an object of a
class that only holds data. Bytes are written as Latin-1 text, so that the redactor sees a secret in them. An object of
the user's that looks like one of these is wrapped in ``$literal``.
"""

from __future__ import annotations

import collections
import enum
import functools
import inspect
import math
import pathlib
import sys
from collections.abc import Callable, Mapping
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from pathlib import Path, PurePath
from types import MappingProxyType
from typing import Any, NamedTuple
from uuid import UUID
from weakref import WeakValueDictionary

from antiphon._arguments import field_names, is_named_tuple
from antiphon.contract.events import UNSERIALISABLE
from antiphon.errors import class_name, find_class

LITERAL, EXACT = "$literal", "$exact"
_OBJECT, _ENUM, _TEXT = "$object", "$enum", "$text"
_JSON = frozenset({dict, list, str, int, float})
_PURE: dict[str, type[PurePath]] = {kind.__name__: kind for kind in (pathlib.PurePosixPath, pathlib.PureWindowsPath)}
_SMALLEST, _LARGEST = -(2**63), 2**64 - 1

_WRITE: dict[type, Callable[[Any], dict[str, Any]]] = {
    bytes: lambda value: {"$bytes": value.decode("latin-1")},
    bytearray: lambda value: {"$bytearray": value.decode("latin-1")},
    datetime: lambda value: _zoned(value) or {"$datetime": value.isoformat()},
    date: lambda value: {"$date": value.isoformat()},
    time: lambda value: _zoned(value) or {"$time": value.isoformat()},
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
    "$secret": lambda value: sys.modules["pydantic"].SecretStr(value),
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
Known = Mapping[str, type]
_NOBODY: Known = MappingProxyType({})
_READ_GROUP: dict[str, Callable[[Any, Read], Any]] = {
    "$set": lambda value, read: set(map(read, value)),
    "$frozenset": lambda value, read: frozenset(map(read, value)),
    "$tuple": lambda value, read: tuple(map(read, value)),
    "$items": lambda value, read: {read(name): read(item) for name, item in value},
    LITERAL: lambda value, read: {name: read(item) for name, item in value.items()},
    EXACT: lambda value, read: read(value),
    "$collection": lambda value, read: _collection_of(value, read),
}

COLLECTIONS = (collections.Counter, collections.OrderedDict, collections.defaultdict, collections.deque)
_FACTORIES: dict[str, Any] = {kind.__name__: kind for kind in (dict, float, int, list, set, str, tuple)}
"""What a ``defaultdict`` may create."""
BUILT_IN = (bytes, bytearray, datetime, date, time, timedelta, Decimal, UUID)
"""What a value that was read back may contain besides JSON's own types."""


def tagged(value: Any, *, classes: bool = True) -> Any:
    """*value* in JSON's own types; ``TypeError`` if it has no form that could be read back.

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
    if classes and kind in COLLECTIONS:
        return _collection(kind, value)
    if isinstance(value, dict):
        return _mapping(value, classes)
    if isinstance(value, (list, tuple)) and not is_named_tuple(kind):
        return [tagged(item, classes=classes) for item in value]
    if isinstance(value, Path):
        return {"$path": _text(str(value))}
    if kind in _PURE.values():
        return {"$purepath": [kind.__name__, str(value)]}
    return tagged(fields(value, exactly=True), classes=classes)


def _zoned(value: datetime | time) -> dict[str, Any] | None:
    """A time with its zone, if the zone has a name: the UTC offset may differ for the same hour tomorrow."""
    zone = getattr(value.tzinfo, "key", None)
    if zone is None and (value.tzinfo is not None or not value.fold):
        return None
    return {"$zoned": [value.replace(tzinfo=None).isoformat(), value.fold, zone]}


def _in_zone(text: str, fold: int, zone: str | None) -> datetime | time:
    from zoneinfo import ZoneInfo

    found: Any = datetime if "T" in text else time
    made: datetime | time = found.fromisoformat(text)
    return made.replace(tzinfo=None if zone is None else ZoneInfo(zone), fold=fold)


def _is_fixed(value: datetime | time) -> bool:
    """Whether the zone of the time says nothing but its UTC offset."""
    zone = value.tzinfo
    if zone is None or type(zone) is timezone:
        return True
    return type(zone).__module__.partition(".")[0] in _FIXED and zone.utcoffset(None) is not None


_FIXED = ("dateutil", "pydantic_core", "pytz")


def _text(value: str) -> Any:
    if value.isascii():
        return value
    try:
        value.encode()
    except UnicodeEncodeError:
        return {"$str": value.encode("utf-8", "surrogatepass").decode("latin-1")}
    return value


def _mapping(value: Mapping[Any, Any], classes: bool) -> Any:
    if not all(isinstance(name, str) and not (classes and isinstance(name, enum.Enum)) for name in value):
        pairs = value.items()
        return {"$items": [[tagged(name, classes=classes), tagged(item, classes=classes)] for name, item in pairs]}
    inner = {str.__str__(name): tagged(item, classes=classes) for name, item in value.items()}
    if len(inner) != 1:
        return inner
    (name,) = inner
    is_tag = name in _READ or name in _READ_GROUP or name in _READ_CLASS or name == UNSERIALISABLE
    return {LITERAL: inner} if is_tag else inner


def _collection(kind: type, value: Any) -> dict[str, Any]:
    more = getattr(value, "maxlen", None)
    if kind is collections.defaultdict and value.default_factory is not None:
        more = next((name for name, made in _FACTORIES.items() if made is value.default_factory), None)
        if more is None:
            raise TypeError("a function in a defaultdict")
    items = value.items() if isinstance(value, dict) else value
    return {"$collection": [kind.__name__, tagged(list(items)), more]}


def _collection_of(form: Any, read: Read) -> Any:
    name, items, more = form
    kind: Any = next(kind for kind in COLLECTIONS if kind.__name__ == name)
    if kind is collections.deque:
        return collections.deque(read(items), more)
    if kind is not collections.defaultdict:
        return kind(dict(read(items)))
    return collections.defaultdict(None if more is None else _FACTORIES[more], dict(read(items)))


def fields(value: Any, *, exactly: bool = False) -> Any:
    """An object of a class as plain data; *exactly* keeps values that the class would serialise as something else."""
    if is_named_tuple(type(value)):
        return value._asdict()
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
    names = field_names(type(value))
    if names is None:
        raise TypeError(type(value).__name__)
    return {name: getattr(value, name) for name in names}


def untagged(value: Any, *, classes: bool = True, known: Known = _NOBODY) -> Any:
    """The value that :func:`tagged` was given; a tag whose content was changed (redacted, edited) is left as it is.

    An object whose class is not loaded, or has lost fields, raises. *known* are classes by their names that may have
    moved since, or been defined in the script. Without *classes* an object becomes its fields.
    """
    read: Any = functools.partial(untagged, classes=classes, known=known)
    if type(value) is list:
        return [read(item) for item in value]
    if type(value) is not dict:
        return value
    if len(value) == 1:
        [(name, inner)] = value.items()
        if classes and _names_class(name, inner):
            return _READ_CLASS[name](inner, read, known)
        try:
            of_json = _READ.get(name)
            if of_json is not None:
                return of_json(read(inner) if type(inner) is dict else inner)
            group = _READ_GROUP.get(name)
            if group is not None:
                return group(inner, read)
            if _names_class(name, inner):
                return read(inner[2 if name == _ENUM and len(inner) > 2 else 1])
        except (ArithmeticError, AttributeError, LookupError, StopIteration, TypeError, ValueError):
            return value
    return {name: read(item) for name, item in value.items()}


def exactly(value: Any) -> Any:
    """The form of *value* with its classes, if it can be read back exactly; otherwise ``None``."""
    try:
        form = tagged(value)
        return form if tagged(untagged(form)) == form else None
    except Exception:  # whatever its classes raise
        return None


def has_classes(form: Any) -> bool:
    """Whether a form names classes: then no declared type is needed to read it back."""
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

_PLAIN = ("builtins", "collections", "datetime", "decimal", "uuid", "pathlib", "pathlib._local")
_BY_TEXT = ("fractions", "ipaddress", "pydantic.networks")
"""Modules of classes that are built from their text."""


def _names_class(name: str, inner: Any) -> bool:
    if name not in _READ_CLASS or type(inner) is not list or len(inner) < 2:
        return False
    return type(inner[0]) is str and type(inner[1]) in ((dict,) if name == _OBJECT else (str, type(None)))


def _with_class(kind: type, value: Any) -> Any:
    """The form of an object of a class; ``None`` for what has no class of its own; ``TypeError`` if it has no form."""
    if isinstance(value, enum.Enum):
        several = isinstance(value, enum.Flag) and value.name not in type(value).__members__
        return {_ENUM: [class_name(kind), None if several else value.name, _value_of(value)]}
    if kind in (datetime, time) and not _is_fixed(value) and not _zoned(value):
        raise TypeError(type(value.tzinfo).__name__)
    if kind.__name__ == "SecretStr" and kind.__module__ == "pydantic.types":
        return {"$secret": tagged(value.get_secret_value())}
    if kind.__module__ in _BY_TEXT:
        return {_TEXT: [class_name(kind), str(value)]}
    shape = _shape(kind)
    if shape is not None:
        if any(name not in shape.fields and not _is_cached(kind, name) for name in getattr(value, "__dict__", ())):
            raise TypeError(kind.__name__)
        there = {name: tagged(getattr(value, name)) for name in shape.fields}
        if not shape.is_pydantic:
            return {_OBJECT: [shape.name, there]}
        state = value.__getstate__()
        rest = [state.get(f"__pydantic_{name}__") for name in ("extra", "private")]
        more = [tagged(rest)] if any(rest) else []
        return {_OBJECT: [shape.name, there, sorted(state["__pydantic_fields_set__"]), *more]}
    if kind.__module__ not in _PLAIN:
        raise TypeError(kind.__name__)
    return None


def _value_of(member: enum.Enum) -> Any:
    """The value of a member, for readers without its class; none if it has no form."""
    try:
        return tagged(member.value)
    except TypeError:
        return None


def _is_cached(kind: type, name: str) -> bool:
    return isinstance(inspect.getattr_static(kind, name, None), functools.cached_property)


class _Shape(NamedTuple):
    """What is known about a class that holds data and nothing else."""

    name: str
    fields: dict[str, None]
    is_pydantic: bool


@functools.lru_cache(maxsize=1024)
def _shape(kind: type) -> _Shape | None:
    names, is_pydantic = field_names(kind), hasattr(kind, "model_construct")
    holds_data = is_pydantic or hasattr(kind, "__struct_fields__") or is_named_tuple(kind) or has_no_base(kind)
    if names is None or not holds_data:
        return None
    return _Shape(class_name(kind), dict.fromkeys(names), is_pydantic)


def has_no_base(kind: Any) -> bool:
    """Whether an object of the class is nothing but its attributes: no exception, dictionary or list."""
    return kind.__new__ is object.__new__


_found: WeakValueDictionary[str, type] = WeakValueDictionary()


def _class_of(name: str, known: Known) -> type | None:
    """The class of that name: where it was, or, if it has moved or was the script's, a known one of that name."""
    own = name.partition(".")[0] == "__main__"
    kind = known.get(name.removeprefix("__main__.")) if own and known else None
    kind = kind or _loaded(name)
    return kind or next((kind for known_as, kind in known.items() if name.endswith(f".{known_as}")), None)


def _loaded(name: str) -> type | None:
    """The class that is loaded under that name; one that was found is not looked up again."""
    kind = _found.get(name)
    if kind is None or getattr(sys.modules.get(kind.__module__), kind.__qualname__, None) is not kind:
        kind = find_class(name)
        if kind is not None:
            _found[name] = kind
    return kind


def _object_of(form: Any, read: Read, known: Known) -> Any:
    """An object as it was, with the fields that it had: its class's own code runs only where it must.

    Fields that its class has gained since then have their defaults.
    """
    name, there, *more = form
    kind: Any = _class_of(name, known)
    shape = None if kind is None else _shape(kind)
    if shape is None or not there.keys() <= shape.fields.keys():  # a different class by now
        raise LookupError(name)
    values = {field: read(value) for field, value in there.items()}
    if shape.is_pydantic:
        extra, private = read(more[1]) if len(more) > 1 else (None, None)
        if extra is None and kind.model_config.get("extra") == "allow":
            extra = {}
        for field in shape.fields.keys() - values.keys():
            if kind.__pydantic_fields__[field].is_required():
                raise LookupError(name)
            values[field] = kind.__pydantic_fields__[field].get_default(call_default_factory=True)
        state = {"__pydantic_fields_set__": set(more[0]), "__pydantic_extra__": extra, "__pydantic_private__": private}
        new = kind.__new__(kind)
        new.__setstate__({"__dict__": values, **state})
        return new
    if is_named_tuple(kind):
        return kind._make({**kind._field_defaults, **values}[field] for field in shape.fields)
    if len(values) < len(shape.fields) or hasattr(kind, "__struct_fields__"):
        new = kind(**values)
    else:
        new = object.__new__(kind)
    put = sys.modules["msgspec"].structs.force_setattr if hasattr(kind, "__struct_fields__") else object.__setattr__
    for field, value in values.items():
        put(new, field, value)  # also if its own code has changed it
    return new


def _member_of(form: Any, read: Read, known: Known) -> Any:
    name, member, *value = form
    kind: Any = _class_of(name, known)
    if not isinstance(kind, enum.EnumMeta):
        raise LookupError(name)
    return kind(read(value[0])) if member is None else kind[member]


def _of_text(form: Any, read: Read, known: Known) -> Any:
    name, text = form
    kind: Any = _loaded(name)
    if kind is None or kind.__module__ not in _BY_TEXT:
        raise LookupError(name)
    return kind(text)


_READ_CLASS: dict[str, Callable[[Any, Read, Known], Any]] = {_OBJECT: _object_of, _ENUM: _member_of, _TEXT: _of_text}
