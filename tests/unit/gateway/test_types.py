"""Results of the types that people return: kept, given again, replayed and put on the wire as what they were."""

from __future__ import annotations

import dataclasses
import enum
import json
import threading
import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import PureWindowsPath
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

import msgspec
import pydantic
import pytest

import antiphon
from antiphon._gateway import codec
from tests.unit.gateway.kit import Rig
from tests.unit.replay.kit import memory_app


@dataclasses.dataclass
class Point:
    x: int
    y: Decimal = Decimal("0.10")


class Struct(msgspec.Struct):
    at: datetime


class Aliased(pydantic.BaseModel):
    user_id: int = pydantic.Field(alias="userId")


class Pair(NamedTuple):
    left: int
    right: str


class Colour(enum.Enum):
    RED = "red"


@dataclasses.dataclass
class Labelled(Point):
    label: str = "a"


@dataclasses.dataclass
class Refused:
    reason: str


class Longer(Aliased):
    more: list[Point] = []


NOW = datetime(2026, 1, 2, tzinfo=UTC)
RESULTS: list[tuple[Any, Any]] = [
    (Point, Point(1)),
    (list[Point], [Point(1), Point(2)]),
    (Point | None, Point(1)),
    (Point | None, None),
    (dict[str, Struct], {"a": Struct(NOW)}),
    (Aliased, Aliased(userId=7)),
    (list[Aliased] | None, [Aliased(userId=7)]),
    (set[int], {1, 2}),
    (frozenset[str], frozenset({"a"})),
    (tuple[int, str], (1, "a")),
    (list[tuple[int, int]], [(1, 2)]),
    (Pair, Pair(1, "a")),
    (Colour, Colour.RED),
    (list[datetime], [NOW]),
    (Decimal, Decimal("1.10")),
    (uuid.UUID, uuid.UUID(int=7)),
    (dict[str, Any], {"a": [1]}),
    (str, "text"),
    (Point, Labelled(1, label="b")),
    (list[Point], [Point(1), Labelled(1)]),
    (Aliased, Longer(userId=7, more=[Point(1)])),
    (Point | Refused, Refused("sold out")),
    (tuple[Point | Refused, int], (Refused("sold out"), 1)),
    (datetime, datetime(2026, 10, 25, 2, 30, fold=1, tzinfo=ZoneInfo("Europe/Berlin"))),
    (Any, Point(1)),
    (Any, {"rows": [Point(1)], "first": Aliased(userId=7)}),
    (Any, Struct(NOW)),
    (Any, Pair(1, "a")),
    (Any, Colour.RED),
    (Any, PureWindowsPath("c:/a")),
    (Any, {"$object": ["tests.unit.gateway.test_types.Point", {"x": 1}]}),
    (dict[str, Point], {"$object": Point(1)}),
]


def tool_of(gateway: Any, returns: Any, value: Any) -> Callable[[], Any]:
    def made() -> Any:
        return value

    made.__annotations__["return"] = returns
    return gateway.tool(idempotent=True, reuse="session")(made)  # type: ignore[no-any-return]


@pytest.mark.parametrize(("returns", "value"), RESULTS, ids=lambda value: str(value)[:40])
def test_a_reused_result_is_of_its_declared_type(returns: Any, value: Any) -> None:
    call = tool_of(Rig().gateway, returns, value)
    assert [call(), call()] == [value, value]
    assert type(call()) is type(value)


@pytest.mark.parametrize(("returns", "value"), RESULTS, ids=lambda value: str(value)[:40])
def test_a_replayed_result_is_of_its_declared_type(returns: Any, value: Any) -> None:
    app = memory_app()
    call = tool_of(app.gateway, returns, value)

    def main() -> str:
        return repr(call())

    run = app.record(main)
    report = antiphon.replay(run, app=app, mode="strict", function=main, keep=False)
    assert report.passed, report.text()
    assert report["outputsB"] == report["outputsA"] == [repr(value)]


def test_what_its_declaration_gives_back_is_kept_as_plain_data() -> None:
    for returns, value in RESULTS[:3]:
        assert b"$object" not in codec.encode(value, codec.decoder(returns))


def test_an_object_whose_class_is_gone_comes_as_its_fields() -> None:
    data = codec.encode([Labelled(1)]).replace(b".Labelled", b".Gone")
    assert codec.plain(data) == [{"x": 1, "y": Decimal("0.10"), "label": "a"}]
    data = codec.encode(Refused("no"), codec.decoder(Point)).replace(b".Refused", b".Gone")
    assert codec.decoder(Refused)(data) == Refused("no"), "of the type that is declared"


@pytest.mark.parametrize("inner", ["Point", ["Point"], ["x", 1], ["antiphon.errors.AntiphonError", {}], [1, {}], None])
def test_what_only_looks_like_an_object_of_a_class_stays_as_it_is(inner: Any) -> None:
    assert codec.plain(codec.encode({"$object": inner})) == {"$object": inner}
    if inner is None or len(inner) != 2 or type(inner[1]) is not dict:  # of a record that does not wrap it
        assert codec.plain(json.dumps({"$object": inner}).encode()) == {"$object": inner}


def test_what_does_not_fit_its_declaration_comes_back_as_plain_data() -> None:
    for returns in (Point, list[Point], Aliased, set[int], Point | Struct, "Nobody"):
        assert codec.decoder(returns)(b'{"other": [1]}') == {"other": [1]}


@pytest.mark.parametrize(
    ("value", "content"),
    [
        (Aliased(userId=7), {"user_id": 7}),
        ([Aliased(userId=7)], [{"user_id": 7}]),
        ({"at": NOW}, {"at": "2026-01-02T00:00:00Z"}),
        (threading.Lock(), None),
        ({"deep": [object()]}, None),
        ((i for i in range(3)), None),
    ],
    ids=["model", "models", "time", "lock", "deep", "generator"],
)
@pytest.mark.parametrize("mode", ["enforced", "disabled"])
def test_any_result_has_a_wire_form(value: Any, content: Any, mode: str) -> None:
    rig = Rig()
    rig.tool(value)
    wire = rig.execute(mode=mode).to_wire()
    assert wire["status"] == "success"
    assert json.loads(json.dumps(wire))["output"]["content"] == content
    if content is None:
        assert wire["output"]["metadata"]["payload"].startswith(("not kept (", "not serialisable ("))


def test_a_result_that_contains_itself_has_a_wire_form() -> None:
    loop: list[Any] = []
    loop.append(loop)
    rig = Rig()
    rig.tool(loop)
    assert rig.execute().to_wire()["output"]["content"] is None
