"""What has no JSON form is named where it stands, and costs nothing else."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import msgspec
import orjson
from hypothesis import given
from hypothesis import strategies as st

from antiphon._recording.artifact import BadJson, strict_loads
from antiphon._recording.plain import dump


class Struct(msgspec.Struct):
    a: int


@dataclass
class Data:
    a: int


class Odd:
    def model_dump(self, mode: str) -> Any:
        raise RuntimeError("not today")


def test_what_has_a_json_form_has_it() -> None:
    value = {"struct": Struct(1), "data": Data(2), "set": {3, 1}, 4: (5,), "none": None}
    assert orjson.loads(dump(value)) == {
        "struct": {"a": 1},
        "data": {"a": 2},
        "set": [1, 3],
        "4": [5],
        "none": None,
    }


def test_one_odd_leaf_does_not_cost_the_rest() -> None:
    cycle: list[Any] = [1]
    cycle.append(cycle)
    value = {
        "kept": "yes",
        "large": 10**30,
        "half": "a\ud800b",
        "object": object(),
        "raising": Odd(),
        "bytes": b"x",
        "cycle": cycle,
    }
    found = orjson.loads(dump(value))
    assert found["kept"] == "yes"
    assert found["large"] == {"$int": str(10**30)}
    assert found["half"] == "a?b"
    assert found["object"] == {"$unserialisable": "builtins.object"}
    assert found["raising"]["$unserialisable"].endswith("Odd")
    assert found["bytes"] == {"$bytes": "x"}


def test_names_that_are_written_alike_are_kept_apart() -> None:
    assert orjson.loads(dump({1: "a", "1": "b"})) == {"$items": [[1, "a"], ["1", "b"]]}
    assert orjson.loads(dump([{None: {2: 3}, "null": 1}])) == [{"None": {"2": 3}, "null": 1}]
    assert orjson.loads(dump({1: "a", "2": "b"})) == {"1": "a", "2": "b"}


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(max_size=4),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text() | st.integers(), inner, max_size=4),
    max_leaves=15,
)


@given(JSON)
def test_anything_becomes_json(value: Any) -> None:
    orjson.loads(dump(value))


@given(JSON)
def test_what_we_write_is_read_strictly(value: Any) -> None:
    data = orjson.dumps(orjson.loads(dump(value)))
    assert strict_loads(data) == orjson.loads(data)


def test_strict_reading_refuses_what_has_two_meanings() -> None:
    for bad in (b'{"a":1,"a":1}', b'{"a": {"b":1, "b":2}}', b"1" * 40, b"[NaN]", b'{"a":', b"[" * 300 + b"]" * 300):
        try:
            strict_loads(bad)
        except BadJson:
            continue
        raise AssertionError(bad)
    assert strict_loads(b'{ "a": [1, 2.50, "x"] }') == {"a": [1, 2.5, "x"]}
    assert math.isclose(strict_loads(b"[1.7976931348623157e308]")[0], 1.7976931348623157e308)
