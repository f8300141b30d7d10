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
from typing import Any, NamedTuple

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
