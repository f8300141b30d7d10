"""Anything a call may carry as JSON bytes: what has no JSON form is named, never guessed."""

from __future__ import annotations

import enum
import hashlib
import math
from collections.abc import Mapping, Sequence
from datetime import time, timedelta
from itertools import chain, repeat
from pathlib import PurePath
from typing import Any

import orjson

from antiphon._arguments import field_names, time_text
from antiphon.canonical import canonical_digest
from antiphon.contract.events import CLASSES, UNSERIALISABLE
from antiphon.errors import CanonicalError, class_name, find_class

_TEXT_KEYS = orjson.OPT_PASSTHROUGH_SUBCLASS | orjson.OPT_PASSTHROUGH_DATACLASS
"""orjson omits dataclass fields that begin with an underscore."""
_OPTIONS = _TEXT_KEYS | orjson.OPT_NON_STR_KEYS  # twice as slow
_KEPT = _TEXT_KEYS | orjson.OPT_APPEND_NEWLINE
"""The newline is sliced off: a result of orjson keeps its 4 KB buffer alive, a slice of it does not."""
_DEEPEST = 252
"""orjson's depth limit: what is cut here is cut at the same place when it is written again, one level deeper."""
_MOST_BITS = 14_000
"""Python refuses to print larger integers."""
_SMALLEST, _LARGEST = -(2**63), 2**64 - 1
_TAGS = frozenset({"$bytes", "$float", "$int", "$items", "$literal", "$path", "$str", "$timedelta", UNSERIALISABLE})
"""Names of objects that encode a value in an output."""


def _default(value: Any) -> Any:
    dump_model = getattr(value, "model_dump", None)
    if callable(dump_model):
        return dump_model(mode="json")
    wire = getattr(value, "to_wire", None)
    if callable(wire):
        return wire()
    names = _names(value)
    if names is not None:  # even if it would become a list: the names identify secrets
        return {name: getattr(value, name) for name in names if hasattr(value, name)}
    if isinstance(value, (set, frozenset)):
        return sorted(value, key=repr)
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, (list, tuple)):
        return list(value)
    if isinstance(value, (bytes, bytearray)):
        return {"$bytes": value.decode("latin-1")}  # keeps secrets in it detectable
    if type(value).__module__ == "decimal":
        return str(value)
    if isinstance(value, time):  # with a time zone
        return time_text(value)
    if isinstance(value, bool | int | float):
        return float(value) if isinstance(value, float) else int(value)
    return unserialisable(value)


def _names(value: Any) -> Sequence[str] | None:
    """The fields of an object that does not serialise itself."""
    return None if hasattr(value, "model_dump") else field_names(type(value))


def note_class(meta: dict[str, Any], response: Any, number: int = 1) -> None:
    """Add to *meta* the class of a response, or of the *number*-th chunk, that is an object of an SDK."""
    kind = type(response)
    name = class_name(kind) if hasattr(kind, "model_dump") and hasattr(kind, "model_validate") else ""
    if name or CLASSES in meta:
        runs = meta.setdefault(CLASSES, [["", number - 1]] if number > 1 else [[name, 0]])
        if runs[-1][0] == name:
            runs[-1][1] += 1
        else:
            runs.append([name, 1])


def with_classes(values: Sequence[Any], meta: Mapping[str, Any]) -> list[Any]:
    """Recorded *values*; those of a class in *meta* that this process has loaded are objects again."""
    names = (name for name, number in meta.get(CLASSES, ()) for _ in range(number))
    return [_as_object(value, name) for value, name in zip(values, chain(names, repeat("")), strict=False)]


def _as_object(value: Any, name: str) -> Any:
    validate = getattr(find_class(name), "model_validate", None) if name else None
    if validate is None or type(value) is not dict:
        return value
    try:
        return validate(value)
    except ValueError:  # SDKs accept more from servers than their classes declare
        return validate.__self__.model_construct(**value)


def chunk_of(data: Any) -> Any:
    """A recorded chunk of a model's stream in its original form: bytes become bytes again."""
    if type(data) is dict and len(data) == 1 and isinstance(data.get("$bytes"), str):
        return data["$bytes"].encode("latin-1", "replace")
    return data


def unserialisable(value: Any) -> dict[str, str]:
    """The stand-in for a value that cannot be serialised: the name of its type."""
    return {UNSERIALISABLE: f"{type(value).__module__}.{type(value).__qualname__}"}


def quick_dump(value: Any) -> bytes | None:
    """*value* as JSON bytes if it is JSON in which all names are text, or objects written as such."""
    try:
        return orjson.dumps(value, _default, _KEPT)[:-1]
    except Exception:  # whatever it is, the next one knows it or comes to it, too
        return None


def dump(value: Any) -> bytes:
    """*value* as JSON bytes. One leaf without a JSON form does not cost the rest."""
    quick = quick_dump(value)
    if quick is not None:
        return quick
    try:
        data = orjson.dumps(value, _default, _OPTIONS)
        if len(orjson.dumps(orjson.loads(data))) == len(data):  # else an object would have duplicate members
            return data
    except Exception:  # noqa: S110 - too large a number, half a character, a cycle, a conversion that raised
        pass
    return orjson.dumps(_leaf_by_leaf(value, ()), option=_OPTIONS)


def digest_of(value: Any) -> str:
    """The canonical digest of *value*, or that of its sorted JSON bytes if it has no canonical form."""
    try:
        return canonical_digest(value)
    except CanonicalError:  # for example a large integer
        ordered = orjson.dumps(orjson.loads(dump(value)), option=orjson.OPT_SORT_KEYS)
        return hashlib.sha256(ordered).hexdigest()


def with_members(value: Any) -> Any:
    """*value* with the members of an enum that are names in it under their own names, not their values."""
    if isinstance(value, Mapping):
        pairs = value.items()
        return {name.name if isinstance(name, enum.Enum) else name: with_members(item) for name, item in pairs}
    if isinstance(value, (list, tuple)):
        return [with_members(item) for item in value]
    names = _names(value) or ()
    return {name: with_members(getattr(value, name)) for name in names if hasattr(value, name)} if names else value


def _leaf_by_leaf(value: Any, above: tuple[int, ...]) -> Any:
    """*above* are the containers that hold *value*: a value inside itself would never end."""
    within = (*above, id(value))
    if len(above) > _DEEPEST or id(value) in above:
        return unserialisable(value)
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, int):
        if _SMALLEST <= value <= _LARGEST:
            return int(value)
        return {"$int": str(value)} if value.bit_length() < _MOST_BITS else unserialisable(value)
    if isinstance(value, Mapping):
        members = [(_leaf_by_leaf(str(key), ()), key, _leaf_by_leaf(item, within)) for key, item in value.items()]
        inner = {name: item for name, _, item in members}
        if len(inner) == len(members):
            return inner
        return {"$items": [[_leaf_by_leaf(key, within), item] for _, key, item in members]}
    if isinstance(value, (list, tuple)) and _names(value) is None:
        return [_leaf_by_leaf(item, within) for item in value]
    try:
        return orjson.loads(orjson.dumps(value, _default, _OPTIONS))
    except Exception:
        return _converted(value, within)


def _converted(value: Any, above: tuple[int, ...]) -> Any:
    try:
        inner = _default(value)
    except Exception:
        return unserialisable(value)
    return unserialisable(value) if inner is value else _leaf_by_leaf(inner, above)


def exact_output(value: Any) -> Any:
    """What a run returned, in a form that keeps everything a replay has to compare.

    A list stands for a tuple or a set, and text for a decimal, a time or a name: these are their JSON forms.
    """
    try:
        data = orjson.dumps(value, option=_TEXT_KEYS)  # rejects what is not JSON, but writes NaN as null
        if b"null" not in data and b'{"$' not in data:
            return value
    except TypeError:
        pass
    try:
        return _exact(value, ())
    except Exception:  # whatever the user's own types raise
        return unserialisable(value)


def _exact(value: Any, above: tuple[int, ...]) -> Any:
    """*above* are the containers that hold *value*."""
    if len(above) > _DEEPEST or id(value) in above:
        return unserialisable(value)
    within = (*above, id(value))
    if isinstance(value, enum.Enum):
        return _exact(value.value, within)
    if isinstance(value, str):
        return _exact_text(str.__str__(value))
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else {"$float": str(float(value))}
    names = _names(value)
    if names is not None:
        more = [name for name in getattr(value, "__dict__", ()) if name not in names and not name.startswith("_")]
        present = [name for name in (*names, *more) if hasattr(value, name)]
        return _exact_object({name: getattr(value, name) for name in present}, within)
    if isinstance(value, Mapping):
        return _exact_object(value, within)
    if isinstance(value, (list, tuple)):
        return [_exact(item, within) for item in value]
    if isinstance(value, timedelta):
        return {"$timedelta": [value.days, value.seconds, value.microseconds]}
    if isinstance(value, PurePath):
        return {"$path": _exact_text(value.as_posix())}
    if value is None or isinstance(value, int | bytes | bytearray):
        return _leaf_by_leaf(value, above)
    try:
        return orjson.loads(orjson.dumps(value, option=_OPTIONS))  # a date, a time, a UUID
    except TypeError:
        pass
    try:
        inner = _default(value)
        return unserialisable(value) if inner == unserialisable(value) else _exact(inner, within)
    except Exception:  # a conversion by the user that raised
        return unserialisable(value)


def _exact_text(value: str) -> Any:
    try:
        value.encode()
    except UnicodeEncodeError:
        return {"$str": value.encode("utf-8", "surrogatepass").decode("latin-1")}
    return value


def _exact_object(value: Mapping[Any, Any], within: tuple[int, ...]) -> Any:
    inner = {_name(name): _exact(item, within) for name, item in value.items()}
    if len(inner) < len(value) or not all(isinstance(_exact_text(name), str) for name in inner):
        return {"$items": [[_exact(name, within), _exact(item, within)] for name, item in value.items()]}
    return {"$literal": inner} if len(inner) == 1 and not _TAGS.isdisjoint(inner) else inner


def _name(name: Any) -> str:
    """The name of a member of an object, as JSON has it."""
    if isinstance(name, str):
        return str.__str__(name)
    try:
        return next(iter(orjson.loads(orjson.dumps({name: None}, option=_OPTIONS))))  # type: ignore[no-any-return]
    except TypeError:
        return str(name)
