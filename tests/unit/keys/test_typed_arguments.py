"""Arguments of ordinary types have keys: equal values alike, other values apart, plain JSON as in release 0.1.0."""

from __future__ import annotations

import dataclasses
import enum
import hashlib
import uuid
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from pathlib import Path, PurePosixPath
from typing import Any

import msgspec
import numpy as np
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon import _arguments, keys
from antiphon.canonical import canonical_json
from antiphon.contract.spec import ToolSpec
from antiphon.errors import CanonicalError, InvalidInput

WRITE = ToolSpec(name="pay", idempotent=False, effect="write")


@dataclasses.dataclass
class Order:
    number: int
    price: Decimal
    note: str = ""


class Struct(msgspec.Struct):
    number: int


class Model(pydantic.BaseModel):
    number: int
    at: datetime | None = None


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


class Level(enum.IntEnum):
    LOW = 1


class Kind(enum.StrEnum):
    CARD = "card"


NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
APART: list[Any] = [
    Decimal("10"),
    Decimal("10.01"),
    Decimal("-0.1"),
    Decimal("1e400"),
    Decimal("NaN"),
    "10",
    10,
    10.5,
    uuid.UUID(int=1),
    str(uuid.UUID(int=1)),
    NOW,
    NOW + timedelta(microseconds=1),
    NOW.replace(tzinfo=None),
    NOW.isoformat(),
    date(2026, 1, 2),
    time(3, 4, 5),
    timedelta(seconds=1),
    timedelta(seconds=2),
    Path("a/b"),
    "a/b",
    b"ab",
    "ab",
    b"\xff",
    Colour.RED,
    Colour.BLUE,
    {1, 2},
    [1, 2],
    {3, "x"},
    Order(1, Decimal("2")),
    Order(1, Decimal("3")),
    Struct(1),
    Model(number=1),
    Model(number=1, at=NOW),
    {"number": 1},
    2**64,
    str(2**64),
    np.datetime64("2026-01-02T03:04:05.000000001"),
    {"$decimal": "10"},
    {"$uuid": str(uuid.UUID(int=1))},
    {"$bytes": "ab"},
    {"$literal": {"$decimal": "10"}},
    {"$typed": 1},
    ["$typed", {"a": 1}],
    {1: "a"},
    {"1": "a"},
    {2: "a", 1: "b"},
]
ALIKE: list[tuple[Any, Any]] = [
    (Decimal("10"), Decimal("10.00")),
    (Decimal("0"), Decimal("-0.0")),
    (Decimal("1E+2"), Decimal(100)),
    (NOW, NOW.astimezone(timezone(timedelta(hours=5)))),
    ({1, 2, 3}, frozenset([3, 2, 1])),
    ({"b", "a"}, {"a", "b"}),
    ((1, (2,)), [1, [2]]),
    (b"ab", bytearray(b"ab")),
    (b"ab", memoryview(b"ab")),
    (Path("a/b"), PurePosixPath("a/b")),
    (Kind.CARD, "card"),
    (Level.LOW, 1),
    (np.int64(3), 3),
    (np.float64(2.5), 2.5),
    (np.bool_(True), True),
    (np.str_("x"), "x"),
    ([np.int32(3), {"$decimal": "1"}], [3, {"$decimal": "1"}]),
    (Order(1, Decimal("2.0")), Order(1, Decimal("2"))),
    ({2: "a", 1: "b"}, {1: "b", 2: "a"}),
]


def key(spec: ToolSpec = WRITE, /, **params: Any) -> str:
    return keys.KeyMaker(spec, session="s", actor="a").keys(params).store_key


def both_ways(value: Any) -> list[Any]:
    """The value by itself, and inside others."""
    return [value, [value, Decimal("1")], {"x": value, "y": b""}, [[{"$decimal": "1"}, value], Decimal(1)]]


def test_values_of_other_types_or_contents_have_other_keys() -> None:
    for make in (lambda v: v, lambda v: [v, Decimal("1")], lambda v: {"x": v, "y": b""}, lambda v: {"$uuid": [v, b""]}):
        made = [key(a=make(value)) for value in APART]
        assert len(set(made)) == len(APART)


@pytest.mark.parametrize(
    ("one", "other"), ALIKE, ids=[f"{at}-{type(pair[0]).__name__}" for at, pair in enumerate(ALIKE)]
)
def test_equal_values_have_equal_keys(one: Any, other: Any) -> None:
    for a, b in zip(both_ways(one), both_ways(other), strict=True):
        assert key(a=a) == key(a=b)


names = st.text(st.characters(codec="utf-8"), max_size=5)
plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53) + 1, 2**53 - 1) | st.text(st.characters(codec="utf-8")),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.text(st.characters(codec="utf-8"), max_size=5) | st.sampled_from(["$typed", "$int"]), inner
        )
    ),
    max_leaves=8,
)


@given(st.dictionaries(st.text(st.characters(codec="utf-8"), min_size=1, max_size=5), plain, max_size=4))
def test_keys_of_plain_arguments_are_those_of_release_0_1_0(params: dict[str, Any]) -> None:
    """Namespace, tool, canonical JSON, session and actor, joined and hashed; volatile names aside."""
    maker = keys.KeyMaker(WRITE, session="s", actor="a")
    kept = {name: value for name, value in params.items() if name not in keys.VOLATILE}
    text = f"tools::pay::{canonical_json(kept).decode()}::s::a"
    assert maker.keys(params).idempotency_key == hashlib.sha256(text.encode()).hexdigest()


def test_what_is_left_out_may_be_anything_and_changes_nothing() -> None:
    spec = ToolSpec(name="pay", idempotent=False, volatile=("connection", "order.note"))
    assert key(spec, amount=1, connection=object()) == key(spec, amount=1, connection=None) == key(spec, amount=1)
    one, other = Order(1, Decimal(2), "first try"), Order(1, Decimal(2), "second try")
    assert key(spec, order=one) == key(spec, order=other)
    assert key(WRITE, order=one) != key(WRITE, order=other)


def test_a_read_squeezes_text_and_never_bytes() -> None:
    read = ToolSpec(name="find", idempotent=True, effect="read")
    assert key(read, q=" a  b", price=Decimal(1)) == key(read, q="a b", price=Decimal(1))
    assert key(read, q=b" a  b") != key(read, q=b"a b")


class Frame:
    def __init__(self, text: str) -> None:
        self.text = text


def test_a_serialiser_writes_what_has_no_form() -> None:
    spec = ToolSpec(name="load", idempotent=False, serialisers={"frame": lambda frame: {"text": frame.text}})
    assert key(spec, frame=Frame("a")) == key(spec, frame=Frame("a"))
    assert key(spec, frame=Frame("a")) != key(spec, frame=Frame("b"))
    assert key(spec, other=1) == key(ToolSpec(name="load", idempotent=False), other=1)
    with pytest.raises(InvalidInput, match="serialiser of parameter 'frame' failed: AttributeError"):
        key(spec, frame=1)
    assert "serialisers" not in spec.to_wire()


@pytest.mark.parametrize(
    ("params", "says"),
    [
        (
            {"a": object()},
            r"A object is not JSON \(at \$\.a\)\. Pass its data .*serialisers=\{'a': function\}",
        ),
        ({"a": [1, {"b": object()}], "c": b""}, r"at \$\.a\[1\]\.b"),
        ({"a": Order(1, object())}, r"at \$\.a\.price"),  # type: ignore[arg-type]
        ({"a": float("nan"), "b": b""}, "nan is not finite"),
        ({"a": "\ud800"}, "lone surrogate"),
    ],
)
def test_what_has_no_form_is_named_with_what_to_do(params: dict[str, Any], says: str) -> None:
    with pytest.raises(CanonicalError, match=says):
        key(**params)


def test_a_value_that_contains_itself_is_refused() -> None:
    loop: list[Any] = [b""]
    loop.append(loop)
    with pytest.raises(CanonicalError):
        key(a=loop)


class _NeverEscapes(_arguments._Writer):
    def __init__(self, *, escape: bool) -> None:
        super().__init__(escape=False)


def test_user_data_that_is_not_escaped_would_meet_a_tag(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_arguments, "_Writer", _NeverEscapes)
    with pytest.raises(AssertionError):
        test_values_of_other_types_or_contents_have_other_keys()
