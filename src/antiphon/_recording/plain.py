"""Anything a call may carry as JSON bytes: what has no JSON form is named, never guessed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import orjson

from antiphon.contract.events import UNSERIALISABLE

_TEXT_KEYS = orjson.OPT_PASSTHROUGH_SUBCLASS
_OPTIONS = _TEXT_KEYS | orjson.OPT_NON_STR_KEYS  # at twice the price
_KEPT = _TEXT_KEYS | orjson.OPT_APPEND_NEWLINE
"""The newline is cut off: what orjson returns holds on to its buffer of 4 KB, and a slice of it does not."""
_DEEPEST = 252
"""As deep as orjson goes: what is cut here is cut at the same place when it is written again, one level further in."""
_MOST_BITS = 14_000
"""Python writes no larger number out."""
_SMALLEST, _LARGEST = -(2**63), 2**64 - 1


def _default(value: Any) -> Any:
    dump_model = getattr(value, "model_dump", None)
    if callable(dump_model):
        return dump_model(mode="json")
    wire = getattr(value, "to_wire", None)
    if callable(wire):
        return wire()
    if isinstance(value, msgspec.Struct):
        return msgspec.to_builtins(value)
    if isinstance(value, (set, frozenset)):
        return sorted(value, key=repr)
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, (list, tuple)):
        return list(value)
    if isinstance(value, (bytes, bytearray)):
        return {"$bytes": value.decode("latin-1")}  # a secret in it stays one that can be seen
    if type(value).__module__ == "decimal":
        return str(value)
    if isinstance(value, bool | int | float):
        return float(value) if isinstance(value, float) else int(value)
    return unserialisable(value)


def chunk_of(data: Any) -> Any:
    """A recorded chunk of a model's stream as it was: bytes are bytes again."""
    if type(data) is dict and len(data) == 1 and isinstance(data.get("$bytes"), str):
        return data["$bytes"].encode("latin-1", "replace")
    return data


def unserialisable(value: Any) -> dict[str, str]:
    """What stands for a value that cannot be written: the name of its type."""
    return {UNSERIALISABLE: f"{type(value).__module__}.{type(value).__qualname__}"}


def dump(value: Any) -> bytes:
    """JSON bytes of *value*. One leaf that has no JSON form does not cost the rest."""
    try:
        return orjson.dumps(value, _default, _KEPT)[:-1]
    except Exception:  # noqa: S110 - whatever it is, the next one knows it or comes to it, too
        pass
    try:
        return orjson.dumps(value, _default, _OPTIONS)
    except Exception:  # too large a number, half a character, a cycle, a conversion of the user's that raised
        return orjson.dumps(_leaf_by_leaf(value, ()), option=_OPTIONS)


def _leaf_by_leaf(value: Any, above: tuple[int, ...]) -> Any:
    """*above* are the containers that *value* lies in: one that lies in itself has no end."""
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
        return {_leaf_by_leaf(str(key), ()): _leaf_by_leaf(item, within) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
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
