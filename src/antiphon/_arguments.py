"""Arguments of ordinary Python types as tagged JSON, from which keys are derived where plain JSON has no form.

| type                                     | written as                                                    |
|------------------------------------------|---------------------------------------------------------------|
| ``Decimal``                              | ``{"$decimal": "12.5"}``, equal numbers alike                 |
| ``UUID``                                 | ``{"$uuid": "…"}``                                            |
| ``datetime``                             | ``{"$datetime": "…"}``, in UTC if it has a time zone          |
| ``date``, ``time``, ``timedelta``        | ``{"$date": "…"}``, ``{"$time": "…"}``, ``{"$timedelta": […]}`` |
| ``Path``                                 | ``{"$path": "a/b"}``                                          |
| ``bytes``, ``bytearray``, ``memoryview`` | ``{"$bytes": "…"}``, as Latin-1 text                          |
| ``Enum``                                 | ``{"$enum": [class, member]}``; a ``StrEnum`` is its text     |
| ``set``, ``frozenset``                   | ``{"$set": […]}``, in the order of their canonical form       |
| dataclass, msgspec, pydantic, attrs      | ``{"$object": [class, fields]}``                              |
| NumPy scalars                            | as the Python value; times ``{"$numpy": [dtype, text]}``      |
| integers beyond ±(2^53−1)                | ``{"$int": "…"}``                                             |
| a mapping with keys that are not strings | ``{"$items": [[name, value], …]}``                            |

A tuple is written as a list, as in JSON. A caller's object that looks like a tag is wrapped in ``{"$literal": …}``.
Equal values have equal forms, and values of different types have different ones. NaN and infinity have none.
"""

from __future__ import annotations

import dataclasses
import enum
import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from fractions import Fraction
from pathlib import PurePath
from typing import Any
from uuid import UUID

from antiphon.canonical import MAX_DEPTH, MAX_SAFE_INTEGER, MAX_VALUES, canonical_json, path_of
from antiphon.errors import CanonicalError, InvalidInput

OBJECT = "$object"
"""The tag of an object of a class."""
_HINT = "Pass its data instead, or declare how it is written: serialisers={%r: function}."


class _NoForm(Exception):
    """A value that has no JSON form; collects the path as it propagates."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.trail: list[str | int] = []


class Unwritable(Exception):
    """Canonical JSON rejected the value: nested too deeply, too large, contains itself, or is not an object."""


def written(params: Mapping[str, Any], left_out: frozenset[str] = frozenset()) -> tuple[dict[str, Any], bool]:
    """The parameters as JSON types, and whether any is tagged; :class:`CanonicalError` names one without a form.

    A parameter in *left_out* is not part of the intent: if it has no form, its class name replaces it.
    """
    writer = _Writer(escape=True)
    fields = _written(params, left_out, writer)
    if writer.tags == 0 and writer.escaped:  # everything was plain, so nothing can be mistaken for a tag
        fields = _written(params, left_out, _Writer(escape=False))
    return fields, writer.tags > 0


def _written(params: Mapping[str, Any], left_out: frozenset[str], writer: _Writer) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for name, value in params.items():
        if not isinstance(name, str):
            raise Unwritable
        try:
            fields[name] = writer.write(value, 2)
        except _NoForm as bad:
            if name in left_out:
                fields[name] = writer.tagged({OBJECT: [type(value).__qualname__, None]})
                continue
            path = path_of([name, *bad.trail[::-1]])
            raise CanonicalError(f"{bad.reason} (at {path}).", path=path, hint=_HINT % name) from None
        except RecursionError:
            raise Unwritable from None
    return fields


def serialised(params: Mapping[str, Any], serialisers: Mapping[str, Callable[[Any], Any]]) -> dict[str, Any]:
    """The parameters, with each serialiser applied to its own."""
    fields = dict(params)
    for name, write in serialisers.items():
        if name not in fields:
            continue
        try:
            fields[name] = write(fields[name])
        except Exception as error:
            path = path_of([name])
            raise InvalidInput(
                f"The serialiser of parameter {name!r} failed: {type(error).__name__}: {error} (at {path}).", path=path
            ) from error
    return fields


class _Writer:
    """Writes values and counts them; a shared value counts each time."""

    __slots__ = ("_escape", "_left", "escaped", "tags")

    def __init__(self, *, escape: bool) -> None:
        self._left = MAX_VALUES
        self._escape = escape
        self.escaped = False
        self.tags = 0

    def tagged(self, form: dict[str, Any]) -> dict[str, Any]:
        self.tags += 1
        return form

    def write(self, value: Any, depth: int) -> Any:
        self._left -= 1
        if depth > MAX_DEPTH or self._left < 0:
            raise Unwritable
        if value is None or value is True or value is False:
            return value
        if isinstance(value, str):
            return _text(value)
        if isinstance(value, int):
            safe = -MAX_SAFE_INTEGER <= value <= MAX_SAFE_INTEGER
            return int(value) if safe else self.tagged({"$int": str(int(value))})
        if isinstance(value, float):
            if not math.isfinite(value):
                raise _NoForm(f"The number {float.__repr__(value)} is not finite")
            return float(value)
        if isinstance(value, Mapping):
            return self._mapping(value, depth + 1)
        if isinstance(value, (list, tuple)):
            return self._items(value, depth + 1)
        return self._typed(value, depth)

    def _typed(self, value: Any, depth: int) -> Any:
        """Write a value for which JSON has no form."""
        if isinstance(value, (set, frozenset)):
            members = sorted((self.write(item, depth + 2) for item in value), key=canonical_json)
            return self.tagged({"$set": members})
        for kind, write in _LEAVES:
            if isinstance(value, kind):
                return self.tagged(write(value))
        if isinstance(value, enum.Enum):
            name: Any = value.name  # a combination of flags may have none
            return self.tagged({"$enum": [type(value).__qualname__, name or self.write(value.value, depth + 2)]})
        fields = _fields(value)
        if fields is not None:
            inner = {name: self._at(name, item, depth + 3) for name, item in fields.items()}
            return self.tagged({OBJECT: [type(value).__qualname__, inner]})
        numpy = sys.modules.get("numpy")
        if numpy is not None and isinstance(value, numpy.generic):
            item = value.item()
            if value.dtype.kind in "mM" or isinstance(item, numpy.generic):
                return self.tagged({"$numpy": [value.dtype.str, str(value)]})
            return self.write(item, depth + 1)
        raise _NoForm(f"A {type(value).__name__} is not JSON")

    def _at(self, place: str | int, item: Any, depth: int) -> Any:
        try:
            return self.write(item, depth)
        except _NoForm as bad:
            bad.trail.append(place)
            raise

    def _items(self, value: Any, depth: int) -> list[Any]:
        return [self._at(index, item, depth) for index, item in enumerate(value)]

    def _mapping(self, value: Mapping[Any, Any], depth: int) -> Any:
        if not all(isinstance(name, str) for name in value):
            pairs = [[self.write(name, depth + 2), self._at(str(name), value[name], depth + 2)] for name in value]
            return self.tagged({"$items": sorted(pairs, key=canonical_json)})
        inner = {_text(name): self._at(name, item, depth) for name, item in value.items()}
        if self._escape and len(inner) == 1 and next(iter(inner)).startswith("$"):
            self.escaped = True
            return {"$literal": inner}
        return inner


def _text(value: str) -> str:
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise _NoForm(f"The string has a lone surrogate at index {error.start}") from None
    return value if type(value) is str else str.__str__(value)


def _decimal(value: Decimal) -> dict[str, str]:
    if not value.is_finite():
        return {"$decimal": str(value)}
    if not value:
        return {"$decimal": "0"}
    sign, digits, exponent = value.as_tuple()
    assert isinstance(exponent, int)
    text = "".join(map(str, digits)).lstrip("0")
    kept = text.rstrip("0")
    exponent += len(text) - len(kept)
    if -20 <= exponent <= 20:
        return {"$decimal": format(Decimal((sign, tuple(map(int, kept)), exponent)), "f")}
    return {"$decimal": f"{'-' if sign else ''}{kept}E{exponent}"}


def _datetime(value: datetime) -> dict[str, str]:
    return {"$datetime": (value if value.utcoffset() is None else value.astimezone(UTC)).isoformat()}


def time_text(value: time) -> str:
    """A time of day, with the name of a zone whose UTC offset is not known without a date."""
    named = value.tzinfo is not None and value.utcoffset() is None
    return f"{value.isoformat()}[{value.tzinfo}]" if named else value.isoformat()


_LEAVES: tuple[tuple[Any, Callable[[Any], Any]], ...] = (
    (Decimal, _decimal),
    (UUID, lambda value: {"$uuid": str(value)}),
    (datetime, _datetime),
    (date, lambda value: {"$date": value.isoformat()}),
    (time, lambda value: {"$time": time_text(value)}),
    (timedelta, lambda value: {"$timedelta": [value.days, value.seconds, value.microseconds]}),
    (PurePath, lambda value: {"$path": _text(value.as_posix())}),
    ((bytes, bytearray, memoryview), lambda value: {"$bytes": bytes(value).decode("latin-1")}),
    (Fraction, lambda value: {"$fraction": str(value)}),
    (complex, lambda value: {"$complex": [float.__repr__(value.real), float.__repr__(value.imag)]}),
)


def field_names(kind: Any) -> Sequence[str] | None:
    """The declared fields of a dataclass, Pydantic model, msgspec struct, named tuple or attrs class."""
    if dataclasses.is_dataclass(kind):
        return [field.name for field in dataclasses.fields(kind)]
    known = getattr(kind, "__pydantic_fields__", None)
    if known is None:
        known = getattr(kind, "__struct_fields__", None)
    if known is None and is_named_tuple(kind):
        known = kind._fields
    if known is None and (attributes := getattr(kind, "__attrs_attrs__", None)) is not None:
        known = [attribute.name for attribute in attributes]
    return list(known) if isinstance(known, Iterable) else None


def is_named_tuple(kind: type) -> bool:
    return issubclass(kind, tuple) and hasattr(kind, "_fields")


def _fields(value: Any) -> dict[str, Any] | None:
    """The fields of an object whose class declares them; a named tuple counts as a tuple."""
    kind = type(value)
    names = None if isinstance(value, tuple) else field_names(kind)
    if names is None:
        return None
    fields = {name: getattr(value, name) for name in names}
    if hasattr(kind, "__is_pydantic_dataclass__"):  # it may have more
        return {**vars(value), **fields}
    return {**fields, **(getattr(value, "model_extra", None) or {})} if hasattr(kind, "__pydantic_fields__") else fields
