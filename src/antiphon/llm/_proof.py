"""Proofs that orjson prints a value canonically, remembered where the same value comes again and again.

A canonical form needs a walk through the document, because orjson prints some numbers and orders some names in another
way than RFC 8785. Texts need none; calls in a conversation and tools of an agent need it once.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from typing import Any, Final

import orjson

from antiphon.canonical import _AS_GIVEN, _SORTED, MAX_SAFE_INTEGER, canonical_json, parse_json
from antiphon.errors import CanonicalError

_LONGEST: Final = 4096
"""Arguments of a call up to this many characters are remembered."""
_LARGEST: Final = 65_536
"""Tools or schemas up to this many bytes are remembered."""
_TOOLBOXES: Final = 64
_new_hash = hashlib.sha256().copy  # a copy starts quicker than a new one


def look(text: str) -> tuple[bool, bool]:
    """Whether a quick parser reads *text* like the strict one, and whether orjson prints what it says canonically.

    A conversation repeats its calls with each request: they are proved once, and read anew each time.
    """
    return _looked(text) if len(text) <= _LONGEST else (False, False)


@lru_cache(maxsize=512)
def _looked(text: str) -> tuple[bool, bool]:
    try:
        value = parse_json(text)
        is_strict = orjson.dumps(value) == orjson.dumps(orjson.loads(text))
    except (CanonicalError, orjson.JSONDecodeError, TypeError):
        return False, False
    return is_strict, is_strict and _prints_canonically(value)


def _prints_canonically(value: Any) -> bool:
    """Whether orjson's sorted output is canonical, also some levels down in a request."""
    try:
        return canonical_json([[[[[[value]]]]]])[6:-6] == orjson.dumps(value, None, _SORTED)
    except (CanonicalError, TypeError):
        return False


_proved: dict[bytes, None] = {}
"""JSON of tools and schemas that were proved; an agent sends the same ones again and again."""


def is_proved(value: Any) -> bool:
    """Whether orjson is known to print *value* canonically; else it is proved now."""
    try:
        data = orjson.dumps(value, None, _AS_GIVEN)
    except TypeError:
        return False
    if data in _proved:
        return True
    if not _prints_canonically(value):
        return False
    if len(data) <= _LARGEST and b"null" not in data:  # orjson prints what is not a number like that, too
        if len(_proved) >= _TOOLBOXES:
            _proved.clear()
        _proved[data] = None
    return True


def key_of_proved(request: dict[str, Any]) -> str | None:
    """The key of a request that is proved; a text that is not Unicode has none."""
    parts = {
        "messages": request["messages"],
        "model": request["model"],
        "provider": request["provider"],
        "responseSchema": request.get("responseSchema"),
        "temperature": request.get("temperature"),
        "tools": request["tools"],
    }
    try:
        data = orjson.dumps(parts, None, _SORTED)
    except TypeError:
        return None
    state = _new_hash()
    state.update(data)
    return state.hexdigest()


def is_proved_number(value: Any) -> bool:
    """The same for a number, or ``None``."""
    if type(value) is float:
        return 1e-3 <= abs(value) < 1e15 and not value.is_integer()
    return value is None or -MAX_SAFE_INTEGER <= value <= MAX_SAFE_INTEGER
