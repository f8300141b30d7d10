"""Values of the user's own classes in a recording: the input of a run, and the results of frameworks' tools.

JSON is recorded as it is. Anything else is recorded with tags, an object of a data class with its class and fields, and
only if reading it back gives the same: code must never continue with a different input.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import inspect
import sys
from collections.abc import Callable, Iterable
from datetime import datetime, time, timezone
from typing import Any, NamedTuple

from antiphon.errors import class_name, class_named

_OBJECT, _ENUM, _ZONED, _MADE = "$object", "$enum", "$zoned", "$made"


class Kept(NamedTuple):
    """How the arguments of an input were recorded, by place: ``0`` is the first one, ``k0`` the first with a name."""

    tagged: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()
    """What could not be recorded so that the same comes back."""

    @classmethod
    def of(cls, wire: Any) -> Kept | None:
        return None if wire is None else cls(tuple(wire.get("tagged", ())), tuple(wire.get("lost", ())))

    def to_wire(self) -> dict[str, list[str]]:
        return {name: list(places) for name, places in self._asdict().items() if places}


def is_arguments(given: Any) -> bool:
    """Whether the input says ``args`` and ``kwargs`` itself."""
    return isinstance(given, dict) and bool(given) and set(given) <= {"args", "kwargs"}


def arguments_of(given: Any) -> tuple[list[Any], dict[str, Any]]:
    """The input as call arguments."""
    if is_arguments(given):
        return list(given.get("args", [])), dict(given.get("kwargs", {}))
    return ([] if given is None else [given]), {}


def by_name(function: Callable[..., Any], given: Any) -> dict[str, Any]:
    """The positional arguments of an input under the names of their parameters, as far as *function* names them."""
    args, _ = arguments_of(given)
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):  # code that does not tell
        return {}
    return dict(zip(parameters, args, strict=False))


def written_input(given: Any) -> tuple[Any, Kept | None]:
    """An input as it is recorded, and how; ``None`` if all of it is JSON."""
    if not is_arguments(given) or _is_json(given):
        return given, None
    tagged: list[str] = []
    lost: list[str] = []

    def written(place: str, value: Any) -> Any:
        if _is_json(value):
            return value
        try:
            form = _written(value)
            if _written(_made(form)) == form:
                tagged.append(place)
                return form
        except Exception:  # noqa: S110 - whatever the user's own classes raise: it is recorded as far as it goes
            pass
        lost.append(place)
        return value

    args, kwargs = arguments_of(given)
    form: dict[str, Any] = {}
    if "args" in given:
        form["args"] = [written(str(place), value) for place, value in enumerate(args)]
    if "kwargs" in given:
        form["kwargs"] = {name: written(f"k{place}", value) for place, (name, value) in enumerate(kwargs.items())}
    return form, Kept(tuple(tagged), tuple(lost))


def arguments_again(given: Any, kept: Kept | None) -> tuple[list[Any], dict[str, Any], list[str]]:
    """The arguments of a recorded input as the code was given them, and in words which of them are not."""
    args, kwargs = arguments_of(given)
    if kept is None:
        return args, kwargs, []
    lost: list[str] = []

    def again(place: str, words: str, value: Any) -> Any:
        if place in kept.lost:
            lost.append(words)
        elif place in kept.tagged:
            try:
                made = _made(value)
                if _written(made) == value:
                    return made
            except Exception:  # noqa: S110 - a class that is not loaded, or another one by now
                pass
            lost.append(words)
            return _fields_of(value)
        return value

    args = [again(str(place), f"argument {place + 1}", value) for place, value in enumerate(args)]
    named = enumerate(kwargs.items())
    return args, {name: again(f"k{place}", f"argument {name!r}", value) for place, (name, value) in named}, lost


def packed(value: Any) -> Any:
    """The result of a framework's tool as it is kept: an object of a data class with its class, if it comes back so."""
    if _is_json(value) and not _is_packed(value):
        return value
    from antiphon._gateway import codec

    try:
        again = codec.plain(codec.encode(value))
        if type(again) is type(value) and again == value and not _is_packed(value):
            return value
    except Exception:  # noqa: S110 - perhaps with its class
        pass
    try:
        form = _written(value)
        return {_MADE: form} if _written(_made(form)) == form else value
    except Exception:  # whatever its classes raise: it is kept as far as it goes
        return value


def unpacked(value: Any) -> Any:
    """What :func:`packed` was given; where its class is not loaded, as plain data."""
    if not _is_packed(value):
        return value
    try:
        return _made(value[_MADE])
    except Exception:
        return _fields_of(value[_MADE])


def _is_packed(value: Any) -> bool:
    return type(value) is dict and len(value) == 1 and _MADE in value


def _fields_of(form: Any) -> Any:
    """A form without the classes that it names."""
    from antiphon._gateway.tagged import untagged

    return untagged(form, {_OBJECT: lambda form, made: made(form[1]), _ENUM: lambda form, made: form[1]})


def _is_json(value: Any) -> bool:
    """Whether JSON brings *value* back as it is."""
    try:
        return _is_plain(value)
    except RecursionError:
        return False


def _is_plain(value: Any) -> bool:
    kind = type(value)
    if kind is dict:
        return all(type(name) is str and _is_plain(name) and _is_plain(item) for name, item in value.items())
    if kind is list:
        return all(map(_is_plain, value))
    if kind is int:
        return bool(-(2**63) <= value < 2**64)
    if kind is float:
        return bool(value - value == 0)  # neither infinite nor NaN
    if kind is str:
        return value.isascii() or _is_text(value)
    return value is None or kind is bool


def _is_text(value: str) -> bool:
    try:
        value.encode()
        return True
    except UnicodeEncodeError:
        return False


# -- objects -----------------------------------------------------------------------------------------------------------


def _written(value: Any) -> Any:
    from antiphon._gateway.tagged import tagged

    return tagged(value, _written_object)


def _written_object(value: Any, written: Callable[[Any], Any]) -> Any:
    """The form of an object of a class; ``None`` for what has no class of its own; ``TypeError`` if it has no form."""
    kind = type(value)
    if isinstance(value, enum.Enum):
        if kind[value.name] is not value:  # several flags
            raise TypeError(kind.__name__)
        return {_ENUM: [class_name(kind), value.name]}
    if kind in (datetime, time) and value.tzinfo is not None and type(value.tzinfo) is not timezone:
        zone = getattr(value.tzinfo, "key", None)
        if kind is time or zone is None:
            raise TypeError(type(value.tzinfo).__name__)
        return {_ZONED: [value.replace(tzinfo=None).isoformat(), value.fold, zone]}
    names = _fields(kind)
    if names is not None:
        more = [name for name in getattr(value, "__dict__", ()) if name not in names and not _is_cached(kind, name)]
        if more or getattr(value, "__pydantic_extra__", None) or getattr(value, "__pydantic_private__", None):
            raise TypeError(kind.__name__)
        there = {name: written(getattr(value, name)) for name in names if hasattr(value, name)}
        given = getattr(value, "__pydantic_fields_set__", None)
        return {_OBJECT: [class_name(kind), there, *([] if given is None else [sorted(given)])]}
    if kind.__module__ not in _PLAIN:
        raise TypeError(kind.__name__)
    return None


def _is_cached(kind: type, name: str) -> bool:
    return isinstance(inspect.getattr_static(kind, name, None), functools.cached_property)


_PLAIN = ("builtins", "datetime", "decimal", "uuid", "pathlib", "pathlib._local")


def _fields(kind: type) -> Iterable[str] | None:
    """The fields of a class that holds data and nothing else; ``None`` for any other class."""
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


def _made(form: Any) -> Any:
    from antiphon._gateway.tagged import untagged

    return untagged(form, {_OBJECT: _made_object, _ENUM: _made_enum, _ZONED: _made_time})


def _made_object(form: Any, made: Callable[[Any], Any]) -> Any:
    """An object as it was, with the fields that it had: nothing of its class's own code runs but where it must."""
    name, there, *given = form
    kind: Any = class_named(name)
    if kind is None or _fields(kind) is None:
        raise LookupError(name)
    values = {field: made(value) for field, value in there.items()}
    if hasattr(kind, "model_construct"):
        return kind.model_construct(set(given[0]), **values)
    if issubclass(kind, tuple) or hasattr(kind, "__struct_fields__"):
        return kind(**values)
    new = object.__new__(kind)
    for field, value in values.items():
        object.__setattr__(new, field, value)
    return new


def _made_enum(form: Any, made: Callable[[Any], Any]) -> Any:
    name, member = form
    kind: Any = class_named(name)
    if not isinstance(kind, enum.EnumMeta):
        raise LookupError(name)
    return kind[member]


def _made_time(form: Any, made: Callable[[Any], Any]) -> Any:
    from zoneinfo import ZoneInfo

    text, fold, zone = form
    return datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone), fold=fold)
