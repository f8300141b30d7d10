"""Results on their way into a record and back out."""

from __future__ import annotations

import sys
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


def decoder(returns: Any) -> Callable[[bytes], Any]:
    """How a kept result becomes the declared return type again; plain data where nothing is declared."""
    kind = _model_type(returns)
    if kind is None:
        return orjson.loads
    import msgspec

    validate = getattr(kind, "model_validate_json", None)
    if callable(validate):
        return lambda data: validate(data)

    def convert(data: bytes) -> Any:
        try:
            return msgspec.json.decode(data, type=kind)
        except msgspec.ValidationError:
            return orjson.loads(data)

    return convert


def _model_type(returns: Any) -> Any:
    """The annotation if it names a class that JSON alone would not bring back."""
    if not isinstance(returns, type) or returns.__module__ == "builtins":
        return None
    import dataclasses

    import msgspec

    if (
        dataclasses.is_dataclass(returns)
        or issubclass(returns, msgspec.Struct)
        or hasattr(returns, "model_validate_json")
    ):
        return returns
    if returns.__module__ in ("datetime", "uuid", "decimal"):
        return returns
    return None
