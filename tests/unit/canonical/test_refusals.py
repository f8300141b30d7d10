"""What has no canonical form is refused with a typed error that names the place; nothing else ever comes out."""

from __future__ import annotations

import datetime as dt
import decimal
import enum
import sys
import uuid
from collections.abc import Iterator
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon import canonical
from antiphon.canonical import MAX_DEPTH, canonical_json, parse_json
from antiphon.errors import CanonicalError


class Suit(enum.Enum):
    HEARTS = "hearts"


def nested(depth: int) -> Any:
    value: Any = 1
    for level in range(depth):
        value = [value] if level % 2 else {"a": value}
    return value


CYCLE: list[Any] = [1, {"x": []}]
CYCLE[1]["x"].append(CYCLE)
TWINS: list[Any] = []
TWINS += [TWINS, TWINS]

REFUSED: list[tuple[str, Any, str, str]] = [
    ("bytes", {"a": b"x"}, "$.a", "bytes is not JSON"),
    ("bytearray", [bytearray()], "$[0]", "base64"),
    ("nan", {"a": [1, 2, 3, {"b": float("nan")}]}, "$.a[3].b", "nan is not finite"),
    ("infinity", -float("inf"), "$", "-inf is not finite"),
    ("big integer", {"n": 2**53}, "$.n", "2^53"),
    ("huge integer", [-(10**400)], "$[0]", "2^53"),
    ("integer key", {"a": {1: 2}}, "$.a", "of type int, not a string"),
    ("none key", {None: 2}, "$", "of type NoneType"),
    ("surrogate value", {"a": ["ok", "x\ud800"]}, "$.a[1]", "lone surrogate at index 1"),
    ("surrogate key", {"a": {"\udfff": 1}}, '$.a["\\udfff"]', "lone surrogate at index 0"),
    ("set", {"a b": {1}}, '$["a b"]', "A set is not JSON"),
    ("object", object(), "$", "A object is not JSON"),
    ("datetime", [dt.datetime(2026, 1, 1)], "$[0]", "datetime"),
    ("date", [dt.date(2026, 1, 1)], "$[0]", "date"),
    ("uuid", {"id": uuid.UUID(int=1)}, "$.id", "UUID"),
    ("decimal", {"d": decimal.Decimal("1.5")}, "$.d", "Decimal"),
    ("enum", {"s": Suit.HEARTS}, "$.s", "Suit"),
    ("complex", [1j], "$[0]", "complex"),
    ("fragment", [orjson.Fragment(b"1")], "$[0]", "Fragment"),
    ("generator", (x for x in "ab"), "$", "generator"),
    ("cycle", CYCLE, "$[1].x[0]", "contains itself"),
    ("branching cycle", TWINS, "$[0]", "contains itself"),
    ("too deep", nested(MAX_DEPTH + 1), "", "nested deeper than 200"),
    ("far too deep", nested(100_000), "", "nested deeper"),
]


@pytest.mark.parametrize(("value", "path", "words"), [row[1:] for row in REFUSED], ids=[row[0] for row in REFUSED])
def test_the_error_names_the_place(value: Any, path: str, words: str) -> None:
    with pytest.raises(CanonicalError) as caught:
        canonical_json(value)
    assert words in str(caught.value)
    if path:
        assert caught.value.path == path
        assert f"(at {path})" in caught.value.message


def test_the_depth_limit_is_exact() -> None:
    assert canonical_json(nested(MAX_DEPTH))
    assert canonical_json([nested(MAX_DEPTH - 1), 1.0])
    with pytest.raises(CanonicalError):
        canonical_json([nested(MAX_DEPTH), 1.0])


def test_a_value_that_grows_by_sharing_is_refused_before_it_fills_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(canonical, "MAX_VALUES", 20_000)
    value: Any = ["leaf"]
    for _ in range(150):
        value = [value, value]
    for case in (value, [1.0, value], {"wide": [list(range(10_000))] * 3}):
        with pytest.raises(CanonicalError, match="more than 20000 parts"):
            canonical_json(case)
    assert canonical_json([list(range(9_000))] * 2)


def test_no_recursion_error_escapes_near_the_end_of_the_stack() -> None:
    value = [nested(150), 1.0]

    def down(left: int) -> None:
        if left:
            down(left - 1)
        else:
            canonical_json(value)

    depth = len(list(_frames()))
    with pytest.raises(CanonicalError, match="stack"):
        down(sys.getrecursionlimit() - depth - 60)


def _frames() -> Iterator[Any]:
    frame: Any = sys._getframe()
    while frame is not None:
        yield frame
        frame = frame.f_back


anything = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters())
    | st.binary()
    | st.uuids()
    | st.dates()
    | st.complex_numbers()
    | st.just(Suit.HEARTS),
    lambda inner: (
        st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text() | st.integers() | st.none(), inner)
    ),
    max_leaves=12,
)


@given(anything)
def test_anything_gives_bytes_or_the_typed_error(value: Any) -> None:
    try:
        data = canonical_json(value)
    except CanonicalError as error:
        data = error.path.encode()
    assert data


@pytest.mark.parametrize(
    ("text", "path", "words"),
    [
        ('{"a":1,"a":2}', "$.a", "twice"),
        ('[{"b":{"c":1,"d":0,"c":1}}]', "$[0].b.c", "twice"),
        ('"\\ud800"', "$", "lone surrogate"),
        ('{"\\udc00x":1}', '$["\\udc00x"]', "lone surrogate"),
        ("9007199254740992", "$", "2^53"),
        ('{"n":[-9007199254740992]}', "$.n[0]", "2^53"),
        ("[" + "9" * 5000 + "]", "$[0]", "2^53"),
        ("[NaN]", "$[0]", "not finite"),
        ("[-Infinity]", "$[0]", "not finite"),
        ("[1e400]", "$[0]", "not finite"),
        ("{", "$", "line 1, column 2"),
        ("", "$", "not JSON"),
        ("\ufeff1", "$", "not JSON"),
        ("[" * 100_000, "$", "nested deeper"),
        ("[" * 201 + "]" * 201, "", "nested deeper"),
    ],
)
def test_text_with_more_than_one_meaning_is_refused(text: str, path: str, words: str) -> None:
    with pytest.raises(CanonicalError) as caught:
        parse_json(text)
    assert words in str(caught.value)
    if path:
        assert caught.value.path == path


def test_text_that_is_not_utf8_is_refused() -> None:
    with pytest.raises(CanonicalError, match="byte 1"):
        parse_json(b'"\xff"')


def test_plain_text_is_read() -> None:
    assert parse_json(b'{"a":[1,-0,2.5,"\\ud83d\\ude00",null,true]}') == {"a": [1, 0, 2.5, "😀", None, True]}
    assert parse_json(bytearray(b"9007199254740991")) == 2**53 - 1


@given(st.text())
def test_any_text_gives_a_value_or_the_typed_error(text: str) -> None:
    try:
        value = parse_json(text)
    except CanonicalError:
        return
    assert parse_json(canonical_json(value)) == value
