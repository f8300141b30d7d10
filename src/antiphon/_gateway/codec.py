"""Results on their way into a record and back out."""

from __future__ import annotations

import collections.abc
import contextlib
import enum
import logging
import sys
import threading
import types
import typing
from collections.abc import Callable
from typing import Any

import orjson

log = logging.getLogger("antiphon.gateway")
_looking = threading.Lock()
"""msgspec crashes the process if two threads make it inspect a type for the first time."""

_ONLY_JSON = orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_DATETIME | orjson.OPT_PASSTHROUGH_SUBCLASS
_KEPT = _ONLY_JSON | orjson.OPT_APPEND_NEWLINE
"""The newline is cut off: the bytes that orjson returns hold on to its buffer of 4 KB, a slice of them does not."""
_dumps = orjson.dumps
_NULL, _TAG, _DOLLAR = b"null", b'{"$', ord("$")  # bytes are looked for with find(): "in" first tries them as a number
_LOSSLESS = frozenset({dict, str, int, float, bool, type(None)})
_BASES: tuple[type[Any], ...] = (dict, list, int, float)
_PLAIN_ITEMS = _LOSSLESS | {list}


class NotSerialisable(Exception):
    """The tool's result has no JSON form: the effect happened, the value cannot be kept."""


def _default(value: Any) -> Any:
    """JSON of a subclass of JSON's own types; an object of any other class is more than its fields."""
    if type(value).__module__ == "collections":
        raise TypeError(type(value).__name__)
    if isinstance(value, str):
        return str.__str__(value)
    for kind in _BASES:
        if isinstance(value, kind):
            return kind(value)
    raise TypeError(type(value).__name__)


def _has_tag(data: bytes) -> bool:
    return _DOLLAR in data and data.find(_TAG) >= 0  # searching for an int is ten times as fast as searching for bytes


def _loses(kind: type, value: Any) -> bool:
    """Whether the JSON form of *value* is that of another value, too: a tuple, a UUID, rows of a database."""
    if kind is list:
        return not _PLAIN_ITEMS.issuperset(map(type, value))
    return kind is tuple or kind.__name__ == "UUID" or kind.__module__ == "collections" or issubclass(kind, enum.Enum)


def plain(data: bytes) -> Any:
    """How a stored result is read if nothing better is declared."""
    return revived(orjson.loads(data)) if _has_tag(data) else orjson.loads(data)


def encode(value: Any, decode: Callable[[bytes], Any] = plain) -> bytes:
    """Encode a tool's result as JSON bytes that *decode* turns back into the same value.

    Plain data costs one call. If that call loses something, the result is written with tags: a ``null`` may have been
    NaN, an object with a ``$`` name may look like a tag. So is everything that a tool with a declared type returns:
    plain data that fits the type may be what it returned, or what an earlier release stored.
    """
    kind = type(value)
    if decode is plain and (kind in _LOSSLESS or not _loses(kind, value)):
        try:
            data = _dumps(value, _default, _KEPT)[:-1]
            if (_DOLLAR not in data or not _has_tag(data)) and (data.find(_NULL) < 0 or orjson.loads(data) == value):
                return data
        except Exception:  # noqa: S110 - whatever the classes of the result raise; below it is said what
            pass
    from antiphon._gateway.tagged import EXACT, exactly, has_classes, tagged

    try:
        form = exactly(value)
        if form is None and value is not None:
            return orjson.dumps(tagged(value, classes=False))
        by_form = decode is plain or value is None or has_classes(form)
        return orjson.dumps(form if by_form else {EXACT: form})
    except Exception as error:  # also of data that is nested too deeply
        raise NotSerialisable(f"{kind.__name__}: {error}") from None


def revived(value: Any) -> Any:
    """Restore a stored result that was read as JSON; always a new object, which the caller may change."""
    try:
        data = orjson.dumps(value, option=_ONLY_JSON)
    except TypeError:  # a static answer of the caller's own
        data = b""
    if data and not _has_tag(data):
        return orjson.loads(data)
    from antiphon._gateway.tagged import untagged

    try:
        return untagged(value)
    except Exception as error:
        log.warning("a stored object comes back as its fields: its class is not loaded, or has changed (%s)", error)
        return untagged(value, classes=False)


def written(value: Any, decode: Callable[[bytes], Any] = plain) -> Any:
    """A result as it is recorded, in JSON's own types if it has a form there; otherwise :class:`NotSerialisable`."""
    data = encode(value, decode)
    return orjson.loads(data) if _has_tag(data) else value


def as_declared(decode: Callable[[bytes], Any], value: Any) -> Any:
    """A recorded result as the code knows it: the original value, in the type that the tool declares."""
    if decode is plain:
        return revived(value)
    try:
        return decode(orjson.dumps(value, _default, _ONLY_JSON))
    except TypeError:  # a static answer of the caller's own, already as it should be
        return value


def decoder(returns: Any, name: str = "") -> Callable[[bytes], Any]:
    """What turns a stored result back into the declared return type; plain data if nothing is declared."""
    try:
        has_types = _has_types(returns)
    except (NameError, RecursionError, TypeError):  # a dictionary of a type that is not known here, or of itself
        has_types = True
    return Declared(returns, name) if has_types else plain


class Declared:
    """Restores stored results in the declared return type.

    A result that does not fit the declaration (any more) comes back as plain data, and the log says so.
    """

    def __init__(self, returns: Any, name: str) -> None:
        self._returns, self._name = returns, name
        self._made: tuple[Callable[[bytes], Any], Callable[[Any], Any]] | None = None
        self._known: dict[str, type] | None = None

    def __call__(self, data: bytes) -> Any:
        try:
            return self._fitting(data)
        except Exception as error:  # whatever the user's own types raise
            log.warning(
                "a stored result of %s is returned as plain data: it does not match the declared type (%s)",
                self._name,
                type(error).__name__,
            )
            return plain(data)

    def _fitting(self, data: bytes) -> Any:
        if _has_tag(data):
            return self._of_tagged(orjson.loads(data))
        return self._typed()[0](data)

    def _of_tagged(self, form: Any) -> Any:
        from antiphon._gateway.tagged import EXACT, has_classes, untagged

        if has_classes(form) or (type(form) is dict and form.keys() == {EXACT}):
            with contextlib.suppress(Exception):  # a class that is not loaded, or has changed
                return untagged(form, known=self._classes())
        return self._typed()[1](untagged(form, classes=False))

    def _classes(self) -> dict[str, type]:
        if self._known is None:
            self._known = {kind.__qualname__: kind for kind in _classes_in(self._returns, set())}
        return self._known

    def _typed(self) -> tuple[Callable[[bytes], Any], Callable[[Any], Any]]:
        if self._made is None:
            with _looking:
                self._made = _typed(self._returns)
        return self._made


def _typed(returns: Any) -> tuple[Callable[[bytes], Any], Callable[[Any], Any]]:
    """How JSON, and values that were read back, are turned into the declared type."""
    if _has_types(returns, _is_pydantic):
        adapter = sys.modules["pydantic"].TypeAdapter(returns)  # loaded: the annotation has one of its classes
        return _by_name(adapter.validate_json), _by_name(adapter.validate_python)
    import msgspec

    from antiphon._gateway.tagged import has_no_base

    for kind in _classes_in(returns, set()):
        if hasattr(kind, "__dataclass_fields__") and not has_no_base(kind):  # it would crash the process
            raise TypeError("msgspec cannot make a dataclass that is an exception or a collection, too")

    def convert(value: Any) -> Any:
        from antiphon._gateway.tagged import BUILT_IN

        return msgspec.convert(value, returns, builtin_types=BUILT_IN)

    return msgspec.json.Decoder(returns).decode, convert


def _classes_in(annotation: Any, seen: set[Any]) -> set[Any]:
    """The classes in an annotation, and in those of their fields."""
    if isinstance(annotation, type) and typing.get_origin(annotation) is None:
        if annotation not in seen and annotation.__module__ != "builtins":
            seen.add(annotation)
            with contextlib.suppress(NameError, TypeError):  # of a name that is not known here
                for hint in typing.get_type_hints(annotation).values():
                    _classes_in(hint, seen)
    for part in typing.get_args(annotation):
        _classes_in(part, seen)
    return seen


def _by_name(validate: Callable[..., Any]) -> Callable[[Any], Any]:
    def decode(data: Any) -> Any:
        try:
            return validate(data, by_alias=True, by_name=True)  # kept by name, whatever the fields are called outside
        except TypeError:  # before 2.11
            return validate(data)

    return decode


def _has_types(annotation: Any, wanted: Callable[[type], bool] | None = None) -> bool:
    """Whether the annotation names a class that JSON alone would not bring back."""
    origin = typing.get_origin(annotation)
    if origin is None:
        return isinstance(annotation, type) and (wanted or _is_lost_in_json)(annotation)
    if origin not in _CONTAINERS:
        return False
    if wanted is None and origin in (set, frozenset, tuple):
        return True
    return any(_has_types(part, wanted) for part in typing.get_args(annotation))


_CONTAINERS = (
    list,
    dict,
    set,
    frozenset,
    tuple,
    typing.Union,
    types.UnionType,
    typing.Annotated,
    collections.abc.Sequence,
    collections.abc.Mapping,
)


def _is_pydantic(kind: type) -> bool:
    return hasattr(kind, "model_validate_json")


def _is_lost_in_json(kind: type) -> bool:
    if kind.__module__ == "builtins":
        return kind in (set, frozenset, tuple, bytes, bytearray)
    if (
        hasattr(kind, "__dataclass_fields__")
        or _is_pydantic(kind)
        or kind.__module__ in ("datetime", "uuid", "decimal")
    ):
        return True
    if typing.is_typeddict(kind):
        return any(map(_has_types, typing.get_type_hints(kind).values()))
    msgspec = sys.modules.get("msgspec")
    return issubclass(kind, (enum.Enum, tuple)) or (msgspec is not None and issubclass(kind, msgspec.Struct))
