"""JSON from strangers: what could be read in two ways, or not be written again, is refused."""

from __future__ import annotations

import json
from typing import Any, NoReturn

import orjson

_LARGEST = 2**64 - 1
_LONGEST_INT = 20


class BadJson(ValueError):
    """Says what is wrong with the document."""


def strict_loads(data: bytes) -> Any:
    """The value of *data*; raises :class:`BadJson`. What we wrote ourselves is recognised and read at full speed."""
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise BadJson(str(error)) from None
    try:
        if orjson.dumps(value) != data:
            json.loads(data, object_pairs_hook=_unique, parse_int=_fitting, parse_constant=_refused)
    except (TypeError, RecursionError):
        raise BadJson("it is nested too deeply") from None
    return value


def _unique(pairs: list[tuple[str, Any]]) -> None:
    names = set()
    for name, _ in pairs:
        if name in names:
            raise BadJson(f"the key {name[:60]!r} stands there twice")
        names.add(name)


def _fitting(digits: str) -> int:
    if len(digits) > _LONGEST_INT or abs(number := int(digits)) > _LARGEST:
        raise BadJson("a number is too large to be kept exactly")
    return number


def _refused(word: str) -> NoReturn:
    raise BadJson(f"{word} is no JSON")
