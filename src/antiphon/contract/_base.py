"""What all value types of the contract share: frozen, strict, camelCase on the wire."""

from __future__ import annotations

import re
import threading
from typing import Annotated, Any, Self, TypeVar

import msgspec
from msgspec import UNSET, Meta, UnsetType

from antiphon.errors import ContractError

__all__ = [
    "LONGEST_MS",
    "UNSET",
    "Count",
    "Id",
    "Lasting",
    "Millis",
    "Name",
    "Positive",
    "Seconds",
    "Section",
    "UnsetType",
    "Value",
    "decode",
    "given",
]

Id = Annotated[str, Meta(min_length=1, max_length=256)]
"""Any non-empty id of up to 256 characters (ours are UUIDv7)."""

Name = Annotated[str, Meta(min_length=1, max_length=256)]
Millis = Annotated[int, Meta(ge=0, le=2**53 - 1)]
LONGEST_MS = 100 * 365 * 86_400_000
"""A hundred years: as long as anything is kept."""
Lasting = Annotated[int, Meta(ge=1, le=LONGEST_MS)]
"""Milliseconds for which something is kept or held."""

Count = Annotated[int, Meta(ge=0)]
Positive = Annotated[int, Meta(ge=1)]
Seconds = Annotated[float, Meta(gt=0, le=31_536_000)]
"""At most a year; infinity is not a number of seconds."""

T = TypeVar("T")
_PATH = re.compile(r" - at `(?P<path>.+)`$")
_FIELD = re.compile(r"(?:field|missing required field) `(?P<name>[^`]+)`")


class Value(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """A frozen value with a camelCase wire form; absent stays absent, unknown fields are refused."""

    def to_wire(self) -> dict[str, Any]:
        """The JSON form as plain Python data."""
        wire: dict[str, Any] = msgspec.to_builtins(self)
        return wire

    @classmethod
    def from_wire(cls, document: Any) -> Self:
        """Read the JSON form (plain data, ``str`` or ``bytes``); an error names the field's path."""
        return decode(document, cls)


class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table of the configuration file; unknown names are refused."""


class Opaque(msgspec.Struct):
    """A struct whose fields may hold secrets: nobody who prints it sees them."""

    def __repr__(self) -> str:
        return object.__repr__(self)

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        """What the package ``rich`` prints instead."""
        return []


_known: set[type] = set()
_learning = threading.Lock()


def _learn(kind: type) -> None:
    """Let msgspec look at a type, one thread at a time: it does so at first use, and two at once crash the process."""
    with _learning:
        msgspec.json.Decoder(kind)
        _known.add(kind)


def decode(document: Any, kind: type[T]) -> T:
    """Convert *document* to *kind*; every failure is one :class:`ContractError` with a path."""
    if kind not in _known:
        _learn(kind)
    try:
        if isinstance(document, (bytes, bytearray, str)):
            return msgspec.json.decode(document, type=kind)
        return msgspec.convert(document, kind)
    except (msgspec.ValidationError, msgspec.DecodeError) as error:
        text = str(error)
        found = _PATH.search(text)
        path = found["path"].rpartition("`")[2] if found else "$"  # of a key: "key` in `$.payload.params"
        field = _FIELD.search(text)
        if field and not path.endswith("." + field["name"]):
            path = f"{path}.{field['name']}"
        said = _PATH.sub("", text)
        if not isinstance(error, msgspec.ValidationError):
            said = f"The document is not valid JSON: {said[0].lower()}{said[1:]}"
        raise ContractError(f"{said} (at {path}).", path=path, hint=_possible(kind, path, text)) from None
    except UnicodeError as error:
        raise ContractError(f"The document is not UTF-8: {error}.", path="$") from None
    except RecursionError:
        raise ContractError("The document is nested too deeply.", path="$") from None


def _possible(kind: type, path: str, text: str) -> str:
    """Suggest valid values or field names for the error."""
    wrong_value, wrong_field = text.startswith("Invalid enum value"), "unknown field" in text
    if not (wrong_value or wrong_field):
        return ""
    found: Any = msgspec.inspect.type_info(kind)
    names = path.removeprefix("$").lstrip(".").split(".")
    for name in names[:-1] if wrong_field else names:
        fields = {field.encode_name: field.type for part in _parts(found) for field in getattr(part, "fields", ())}
        if name not in fields:
            return ""
        found = fields[name]
    if wrong_value:
        values = [repr(value) for part in _parts(found) for value in getattr(part, "values", ())]
        return f"It can be {', '.join(values)}." if values else ""
    from difflib import get_close_matches

    known = [field.encode_name for part in _parts(found) for field in getattr(part, "fields", ())]
    near = get_close_matches(names[-1], known, 1)
    return f"Did you mean {near[0]}?" if near else f"It has: {', '.join(known)}." if known else ""


def _parts(found: Any) -> tuple[Any, ...]:
    """The members of a union, or the type alone; what is around them is taken off."""
    while isinstance(found, msgspec.inspect.Metadata):
        found = found.type
    return tuple(part for one in found.types for part in _parts(one)) if hasattr(found, "types") else (found,)


def given(value: T | UnsetType) -> T | None:
    """``None`` where an optional field is absent."""
    return None if value is UNSET else value
