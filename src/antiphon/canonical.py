"""Canonical JSON (RFC 8785): the bytes every key and digest is made from.

A value is first proved *plain*: built-in types only, no number that orjson would print in another way
than ECMAScript. Then orjson's sorted output is canonical as it stands. What is not plain is rebuilt
(numbers get their ECMAScript text, names their UTF-16 order) or refused with the path of the culprit.

Accepted: ``None``, ``bool``, ``int``, ``float``, ``str``, ``list``, ``tuple`` (as a list) and ``dict``. A
subclass counts as the built-in value it holds, as in ``json.dumps``: a ``StrEnum`` member has the same bytes
as its string, an ``OrderedDict`` the same as a ``dict``. Everything else is refused.
"""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any, Final

import orjson

from antiphon.errors import CanonicalError

__all__ = [
    "MAX_DEPTH",
    "MAX_SAFE_INTEGER",
    "MAX_VALUES",
    "canonical_digest",
    "canonical_json",
    "parse_json",
    "writable_json",
]

MAX_SAFE_INTEGER: Final = 2**53 - 1
MAX_DEPTH: Final = 200
"""Lists and objects may be nested this deep."""
_ORJSON_DEPTH: Final = 253
"""What orjson writes may be nested this deep."""
MAX_VALUES: Final = 1_000_000
"""A document may hold this many values; a shared value counts each time, so a small cycle cannot exhaust the memory."""

_AS_GIVEN: Final = (
    orjson.OPT_STRICT_INTEGER
    | orjson.OPT_PASSTHROUGH_SUBCLASS
    | orjson.OPT_PASSTHROUGH_DATACLASS
    | orjson.OPT_PASSTHROUGH_DATETIME
)
_SORTED: Final = _AS_GIVEN | orjson.OPT_SORT_KEYS | orjson.OPT_APPEND_NEWLINE
"""The newline is cut off: the bytes that orjson returns hold on to its buffer of 4 KB, a slice of them does not."""
_ASTRAL_LEADS: Final = (b"\xf0", b"\xf1", b"\xf2", b"\xf3", b"\xf4")
_STRING_END: Final = re.compile(rb'[^"\\]*(?:\\.[^"\\]*)*"').match
_IDENTIFIER: Final = re.compile(r"[A-Za-z_$][A-Za-z0-9_$-]*\Z")
_LEAVES: Final = frozenset({int, bool, type(None)})
_CONTAINERS: Final = frozenset({dict, list, tuple})
_dumps = orjson.dumps
_new_sha256 = hashlib.sha256().copy  # a copy is created faster than a new one


def canonical_json(value: Any) -> bytes:
    """The RFC 8785 form of *value*; raises :class:`~antiphon.errors.CanonicalError` with the path of what has none.

    >>> canonical_json({"b": 1.0, "a": [1e21, -0.0]})
    b'{"a":[1e+21,0],"b":1}'
    """
    try:
        data = _dumps(value if is_plain(value) else _mend(value, 1, [MAX_VALUES]), None, _SORTED)[:-1]
        if data.isascii() or _sorted_alike(data):
            return data
    except (TypeError, RecursionError, _Bad):
        pass  # a subclass or something that is not JSON: the copy below repairs it or names it
    return _slowly(value)


def canonical_digest(value: Any) -> str:
    """SHA-256 of the canonical form, as lower-case hex."""
    state = _new_sha256()
    state.update(canonical_json(value))
    return state.hexdigest()


def parse_json(text: str | bytes | bytearray) -> Any:
    """Read JSON that has exactly one meaning (I-JSON): no duplicate names, lone surrogates, NaN or unsafe integers."""
    try:
        value = orjson.loads(text)
        if is_plain(value) and _has_every_name(value, text):
            return value
    except (TypeError, orjson.JSONDecodeError):
        pass  # not JSON, or not I-JSON: the decoder below says why
    try:
        if not isinstance(text, str):
            text = text.decode("utf-8")
        value = _DECODER.decode(text)
    except UnicodeDecodeError as error:
        raise CanonicalError(f"The text is not UTF-8 (byte {error.start}).") from None
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise CanonicalError(f"The text is not JSON: {error.msg} ({where}).") from None
    except RecursionError:
        raise CanonicalError(f"The text is nested deeper than {MAX_DEPTH} levels.") from None
    canonical_json(value)
    return value


def writable_json(data: bytes) -> Any:
    """Read JSON that can be written again inside an event: a ``ValueError`` if it is nested deeper than that."""
    value = orjson.loads(data)
    if data.count(b"[") + data.count(b"{") > MAX_DEPTH:
        nested = value
        for _ in range(_ORJSON_DEPTH - MAX_DEPTH):
            nested = [nested]
        try:
            _dumps(nested)
        except TypeError:
            raise ValueError(f"The JSON is nested deeper than {MAX_DEPTH} levels.") from None
    return value


def _has_every_name(value: Any, text: str | bytes | bytearray) -> bool:
    """Whether no name is repeated in *text*, which orjson read as *value*: a lost name took its colon along."""
    data = text if isinstance(text, str) else text.decode()
    return data.count(":") == _dumps(value, None, _AS_GIVEN).count(b":") and "\\u003" not in data


def is_plain(value: Any) -> bool:
    """Whether orjson prints *value* as RFC 8785 does, apart from the key order of exotic names.

    Walks the document container by container: one flat loop is the fastest proof that Python offers.
    """
    nodes: list[Any] = [value if type(value) is dict else (value,)]
    left = MAX_VALUES
    for node in nodes:  # grows while it is read
        for item in node.values() if type(node) is dict else node:
            kind = type(item)
            if kind is str or kind in _LEAVES:
                continue
            if kind in _CONTAINERS:
                nodes.append(item)
                left -= len(item)
            elif kind is not float or not (1e-3 <= item < 1e15 or -1e15 < item <= -1e-3) or item.is_integer():
                return False
        if left < 0:
            return False
    return len(nodes) <= MAX_DEPTH or _is_shallow(value)


def _is_shallow(value: Any) -> bool:
    """Whether a document of many containers is not nested too deeply."""
    level, depth = [value], 0
    while level:
        depth += 1
        if depth > MAX_DEPTH:
            return False
        inner = (node.values() if type(node) is dict else node for node in level)
        level = [item for items in inner for item in items if type(item) in _CONTAINERS]
    return True


def _mend(node: Any, depth: int, budget: list[int]) -> Any:
    """*node* with the numbers replaced that orjson would print differently; shares other parts, checks all types."""
    mended: Any = None
    is_object = type(node) is dict
    if not is_object and type(node) is not list and type(node) is not tuple:
        return _leaf(node)
    budget[0] -= len(node)
    if depth > MAX_DEPTH or budget[0] < 0:
        raise _Bad("")
    depth += 1
    for key, item in node.items() if is_object else enumerate(node):
        kind = type(item)
        if kind is str or kind is int or kind is bool or item is None:
            continue
        if kind is float:
            if 1e-3 <= abs(item) < 1e15 and not item.is_integer():
                continue
            better = _number(item)
        else:
            better = _mend(item, depth, budget)
            if better is item:
                continue
        if mended is None:
            mended = dict(node) if is_object else list(node)
        mended[key] = better
    return node if mended is None else mended


def _sorted_alike(data: bytes) -> bool:
    """Whether the UTF-8 order of all names is their UTF-16 order too.

    The two differ only between U+E000..U+FFFF and the characters beyond, so only a name with one of the latter
    matters. From such a character to the end of its string: a name is what a colon follows.
    """
    if b"\xee" not in data and b"\xef" not in data:
        return True
    for lead in _ASTRAL_LEADS:
        start = data.find(lead)
        while start >= 0:
            end = _STRING_END(data, start).end()  # type: ignore[union-attr]
            if data[end : end + 1] == b":":
                return False
            start = data.find(lead, end)
    return True


def _slowly(value: Any) -> bytes:
    try:
        return _dumps(_rebuild(value), None, _AS_GIVEN)
    except RecursionError:
        raise CanonicalError("The value is nested deeper than the interpreter's stack allows here.") from None


class _Bad(Exception):
    """Why a value has no canonical form; collects the path as it propagates."""

    def __init__(self, reason: str, hint: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.hint = hint
        self.trail: list[str | int] = []


class _Marked:
    """Marks something that the parser saw and Python's data model cannot hold."""

    def __init__(self, reason: str) -> None:
        self.reason = reason


def _rebuild(value: Any) -> Any:
    """A copy of *value* in built-in types, with sorted names, that orjson prints canonically as it is."""
    try:
        return _copy(value, 1, [MAX_VALUES])
    except _Bad as bad:
        trail = bad.trail[::-1]
        loop = _loop(value, trail)
        if loop is not None:
            raise CanonicalError(f"The value contains itself (at {loop}).", path=loop) from None
        path = path_of(trail)
        raise CanonicalError(f"{bad.reason} (at {path}).", path=path, hint=bad.hint) from None


def _copy(value: Any, depth: int, budget: list[int]) -> Any:
    if not isinstance(value, (dict, list, tuple)):
        return _leaf(value)
    if depth > MAX_DEPTH:
        raise _Bad(f"The value is nested deeper than {MAX_DEPTH} levels")
    budget[0] -= len(value)
    if budget[0] < 0:
        raise _Bad(f"The value has more than {MAX_VALUES} parts")
    if isinstance(value, dict):
        return _copy_object(value, depth + 1, budget)
    items: list[Any] = []
    try:
        for item in list.__iter__(value) if isinstance(value, list) else tuple.__iter__(value):
            items.append(_copy(item, depth + 1, budget))
    except _Bad as bad:
        bad.trail.append(len(items))
        raise
    return items


def _copy_object(value: dict[Any, Any], depth: int, budget: list[int]) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for key, item in dict.items(value):
        if not isinstance(key, str):
            raise _Bad(f"A name is of type {type(key).__name__}, not a string")
        try:
            name = key if type(key) is str and key.isascii() else _text(key, "The name")
            if name in fields:
                raise _Bad("The name occurs twice")
            fields[name] = _copy(item, depth, budget)
        except _Bad as bad:
            bad.trail.append(str.__str__(key))
            raise
    return dict(sorted(fields.items(), key=_utf16_units))


def _utf16_units(field: tuple[str, Any]) -> bytes:
    return field[0].encode("utf-16-be")


def _leaf(value: Any) -> Any:
    if value is None or value is True or value is False:
        return value
    if isinstance(value, str):
        return _text(value, "The string")
    if isinstance(value, int):
        if not -MAX_SAFE_INTEGER <= value <= MAX_SAFE_INTEGER:
            raise _Bad("The integer is beyond ±(2^53−1)", "Pass it as a string.")
        return int(value)
    if isinstance(value, float):
        return _number(value)
    if type(value) is _Marked:
        raise _Bad(value.reason)
    hint = "Encode it as text, e.g. base64." if isinstance(value, (bytes, bytearray, memoryview)) else ""
    raise _Bad(f"A {type(value).__name__} is not JSON", hint)


def _text(value: str, what: str) -> str:
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:
        raise _Bad(f"{what} has a lone surrogate at index {error.start}") from None
    return value if type(value) is str else str.__str__(value)


def _number(value: float) -> int | orjson.Fragment:
    """The number as ECMAScript prints it (RFC 8785, 3.2.2.3)."""
    if value.is_integer() and -MAX_SAFE_INTEGER <= value <= MAX_SAFE_INTEGER:
        return int(value)
    text = float.__repr__(value)
    if text in ("nan", "inf", "-inf"):
        raise _Bad(f"The number {text} is not finite")
    mantissa, _, exponent = text.partition("e")
    if not exponent:
        return orjson.Fragment(mantissa.removesuffix(".0"))
    sign = "-" if mantissa.startswith("-") else ""
    whole, _, fraction = mantissa.lstrip("-").partition(".")
    digits = whole + fraction
    point = int(exponent) + 1  # repr has one digit before the point
    if len(digits) <= point <= 21:
        text = digits + "0" * (point - len(digits))
    elif 0 < point <= 21:
        text = f"{digits[:point]}.{digits[point:]}"
    elif -6 < point <= 0:
        text = f"0.{'0' * -point}{digits}"
    else:
        text = f"{whole}.{fraction}" if fraction else whole
        text += f"e{point - 1:+d}"
    return orjson.Fragment(sign + text)


def _loop(value: Any, trail: list[str | int]) -> str | None:
    """The path at which *trail* returns to a container that it has already been in."""
    seen = {id(value)}
    node = value
    for position, part in enumerate(trail):
        if isinstance(node, dict):
            node = dict.get(node, part)
        elif isinstance(node, (list, tuple)) and isinstance(part, int):
            node = node[part]
        if isinstance(node, (dict, list, tuple)):
            if id(node) in seen:
                return path_of(trail[: position + 1])
            seen.add(id(node))
    return None


def path_of(trail: list[str | int]) -> str:
    """``$.a[3].b``; names that are not plain words are quoted."""
    path = "$"
    for part in trail:
        if isinstance(part, int):
            path += f"[{part}]"
        else:
            path += f".{part}" if _IDENTIFIER.match(part) else f"[{json.dumps(part)}]"
    return path


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                fields[name] = _Marked("The name occurs twice in its object")
            seen.add(name)
    return fields


def _safe_integer(text: str) -> Any:
    if len(text) <= 17 and -MAX_SAFE_INTEGER <= (number := int(text)) <= MAX_SAFE_INTEGER:
        return number
    return _Marked("The integer is beyond ±(2^53−1)")


_DECODER: Final = json.JSONDecoder(object_pairs_hook=_unique, parse_int=_safe_integer)
