"""Results on their way into a record and back out."""

from __future__ import annotations

import collections.abc
import enum
import sys
import types
import typing
from collections.abc import Callable
from typing import Any

import orjson

_OPTIONS = orjson.OPT_PASSTHROUGH_SUBCLASS


class NotSerialisable(Exception):
    """The tool's result has no JSON form: the effect happened, the value cannot be kept."""


def _default(value: Any) -> Any:
    dump = getattr(value, "model_dump", None)
    if callable(dump):
        return dump(mode="json")
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    wire = getattr(value, "to_wire", None)
    if callable(wire):
        return wire()
    msgspec = sys.modules.get("msgspec")
    if msgspec is not None and isinstance(value, msgspec.Struct):
        return msgspec.to_builtins(value)
    if isinstance(value, str):
        return str.__str__(value)
    if type(value).__module__ == "decimal":
        return str(value)
    if isinstance(value, dict):
        return dict(value)
    if isinstance(value, (list, tuple)):
        return list(value)
    if isinstance(value, float):
        return float(value)
    if isinstance(value, int):
        return int(value)
    raise TypeError(type(value).__name__)


def encode(value: Any) -> bytes:
    """JSON bytes of a tool's result (dataclasses, datetimes, UUIDs, pydantic and msgspec models included)."""
    try:
        return orjson.dumps(value, _default, _OPTIONS)
    except (TypeError, ValueError, RecursionError) as error:
        raise NotSerialisable(f"{type(value).__name__}: {error}") from None


plain = orjson.loads
"""How a kept result comes back where nothing better is declared."""


def decoder(returns: Any) -> Callable[[bytes], Any]:
    """How a kept result becomes the declared return type again; plain data where nothing is declared.

    A result that does not fit its declaration (any more) comes back as plain data, too.
    """
    if not _has_types(returns):
        return plain
    made: list[Callable[[bytes], Any]] = []

    def decode(data: bytes) -> Any:
        try:
            if not made:
                made.append(_typed_decoder(returns))
            return made[0](data)
        except Exception:  # whatever the user's own types raise
            return plain(data)

    return decode


def _typed_decoder(returns: Any) -> Callable[[bytes], Any]:
    if _has_types(returns, _is_pydantic):
        return _pydantic_decoder(returns)
    import msgspec

    return msgspec.json.Decoder(returns).decode


def _pydantic_decoder(returns: Any) -> Callable[[bytes], Any]:
    adapter = sys.modules["pydantic"].TypeAdapter  # it is loaded: the annotation has one of its classes
    validate = adapter(returns).validate_json

    def decode(data: bytes) -> Any:
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
        return kind in (set, frozenset, tuple)
    if (
        hasattr(kind, "__dataclass_fields__")
        or _is_pydantic(kind)
        or kind.__module__ in ("datetime", "uuid", "decimal")
    ):
        return True
    msgspec = sys.modules.get("msgspec")
    return issubclass(kind, (enum.Enum, tuple)) or (msgspec is not None and issubclass(kind, msgspec.Struct))
