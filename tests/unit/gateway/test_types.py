"""Results of the types that people return: kept, given again, replayed and put on the wire as what they were."""

from __future__ import annotations

import dataclasses
import enum
import json
import threading
import uuid
from collections import Counter, defaultdict
from collections.abc import Callable
from datetime import UTC, datetime, time
from decimal import Decimal
from pathlib import PureWindowsPath
from typing import Any, NamedTuple, TypedDict
from zoneinfo import ZoneInfo

import attrs
import msgspec
import pydantic
import pytest

import antiphon
from antiphon._gateway import codec
from antiphon.stores import SQLiteStore
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


class Seat(msgspec.Struct):
    number: int

    def __post_init__(self) -> None:
        self.number += 100


class Listed(msgspec.Struct, array_like=True):
    user: str
    password: str


class Bill(pydantic.BaseModel):
    net: float
    _paid: bool = pydantic.PrivateAttr(default=False)

    def model_post_init(self, _: Any) -> None:
        self.net *= 2


def paid() -> Bill:
    bill = Bill(net=1.5)
    bill._paid = True
    return bill


class Open(pydantic.BaseModel, extra="allow"):
    name: str
    city: str | None = None
    url: pydantic.HttpUrl | None = None


class Ids(pydantic.RootModel[list[int]]):
    pass


class Visit(pydantic.BaseModel):
    at: datetime


@dataclasses.dataclass(eq=False)
class Tagged:
    id: int
    _etag: str = ""
    total: float = 0.0
    level: int = 0

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Tagged) and other.id == self.id

    def __repr__(self) -> str:
        return f"{self.id} {self._etag} {self.total} {self.level!r}"


class Level(enum.IntEnum):
    HIGH = 3


class Size(enum.StrEnum):
    SMALL = "small"


@dataclasses.dataclass
class Stock:
    of: dict[Size, int]


class Right(enum.Flag):
    READ = 1
    WRITE = 2


@attrs.define
class Ack:
    pass


class Row(TypedDict):
    id: uuid.UUID


class User(pydantic.BaseModel):
    id: int
    name: str = "?"


@dataclasses.dataclass
class Broken(Exception):
    code: int


@dataclasses.dataclass
class Outcome:
    ok: bool
    error: Broken | None = None


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
    (Seat, Seat(1)),
    (Bill, paid()),
    (Any, paid()),
    (Open, Open(name="a", more=[1], url="https://example.org/")),  # type: ignore[call-arg, arg-type]
    (Any, Ids([1])),
    (Visit, Visit(at=datetime(2026, 1, 2, tzinfo=ZoneInfo("Europe/Berlin")))),
    (time, time(9, tzinfo=ZoneInfo("Europe/Berlin"))),
    (datetime, datetime(2026, 10, 25, 2, fold=1)),
    (Tagged, Tagged(1, "v7", 100, Level.HIGH)),
    (list[Tagged], [Tagged(1, "v7")]),
    (Any, Right.READ | Right.WRITE),
    (Any, Ack()),
    (Row, {"id": uuid.UUID(int=7)}),
    (Any, Counter("aab")),
    (Any, {"by name": defaultdict(list, a=[1])}),
    (Any, ["begin", ("token", 1), Colour.RED]),
    (dict[Size, int], {Size.SMALL: 1}),
    (dict[str, list[dict[Size, Decimal]]], {"a": [{Size.SMALL: Decimal("1.10")}]}),
    (dict[Size, Point], {Size.SMALL: Point(1)}),
    (dict[str, dict[Size, Aliased]], {"a": {Size.SMALL: Aliased(userId=7)}}),
    (Stock, Stock({Size.SMALL: 1})),
    (Any, [{Size.SMALL: Point(1)}]),
    (User | dict, {"id": 1}),
    (list[Point], [{"x": 1, "more": 2}]),
    (set[int], [1, 1]),
    (datetime | str, "2026-01-01T00:00:00"),
    (Any, {"$unserialisable": "x.y"}),
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
    assert repr(call()) == repr(value)


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


def test_what_an_earlier_release_kept_is_of_its_declared_type() -> None:
    assert codec.decoder(Point)(b'{"x":1,"y":"0.10"}') == Point(1)
    assert codec.decoder(list[Aliased])(b'[{"user_id":7}]') == [Aliased(userId=7)]
    assert codec.decoder(tuple[Point, int])(b'{"$tuple":[{"x":1},2]}') == (Point(1), 2)


def test_fields_that_are_not_compared_come_back() -> None:
    kept = codec.encode(Open(name="a"), codec.decoder(Open))
    assert codec.decoder(Open)(kept).model_dump(exclude_unset=True) == {"name": "a"}
    assert codec.plain(codec.encode(paid()))._paid
    parsed = Visit.model_validate_json('{"at": "2026-01-01T00:00:00Z"}')
    assert codec.plain(codec.encode(parsed)) == parsed


@dataclasses.dataclass
class Everything:
    label: Labelled
    user: User
    pair: Paired
    listed: Listing
    colour: Colour
    ack: Noted


class Paired(NamedTuple):
    left: int
    right: str = "r"


class Listing(msgspec.Struct, array_like=True, rename="camel"):
    first_name: str
    last_name: str = "l"


@attrs.define
class Noted:
    note: str
    more: list[int] = attrs.Factory(list)


EVERYTHING = Everything(Labelled(1), User(id=1), Paired(1), Listing("f"), Colour.RED, Noted("n"))
ADDED = (b',"label":"a"', b',"name":"?"', b',"right":"r"', b',"last_name":"l"', b',"more":[]')


def test_fields_that_a_class_has_got_since_then_have_their_defaults() -> None:
    data = codec.encode(EVERYTHING)
    for field in ADDED:
        assert field in data
        data = data.replace(field, b"")
    assert codec.plain(data) == codec.decoder(Everything)(data) == EVERYTHING


def test_a_class_that_has_moved_or_was_the_scripts_is_known_by_its_declaration() -> None:
    data = codec.encode(EVERYTHING)
    here = EVERYTHING.__module__.encode()
    for place in (b"elsewhere", b"__main__"):
        assert codec.decoder(Everything | None)(data.replace(here, place)) == EVERYTHING
        assert codec.decoder(Colour)(codec.encode(Colour.RED).replace(here, place)) is Colour.RED


def test_a_class_of_another_script_is_not_taken_for_the_declared_one(monkeypatch: pytest.MonkeyPatch) -> None:
    data = codec.encode(Point(1)).replace(Point.__module__.encode(), b"__main__")
    other = dataclasses.make_dataclass("Point", [("x", int), ("y", Decimal)])
    monkeypatch.setattr("antiphon._gateway.tagged._loaded", lambda name: other)
    assert type(codec.plain(data)) is other
    assert type(codec.decoder(Point)(data)) is Point


def test_an_object_of_a_class_that_has_lost_fields_comes_as_its_fields(caplog: pytest.LogCaptureFixture) -> None:
    assert codec.plain(codec.encode(Refused("no")).replace(b'"reason"', b'"why"')) == {"why": "no"}
    assert codec.plain(codec.encode(Colour.RED).replace(b".Colour", b".Gone")) == "red"
    assert "its class is not loaded, or has changed" in caplog.text


def test_a_dataclass_that_is_an_exception_is_never_half_made() -> None:
    call = tool_of(Rig().gateway, Outcome, Outcome(False, Broken(5)))
    assert call().error.code == 5
    assert call() == {"ok": False, "error": {"code": 5}}
    assert codec.decoder(Outcome)(b'{"ok":false,"error":{"code":5}}') == {"ok": False, "error": {"code": 5}}


class Login(NamedTuple):
    user: str
    password: str


class Hidden(pydantic.BaseModel):
    value: pydantic.SecretStr


SECRET = "Sommerwind-88-plum"
HOLDERS: list[Any] = [Login("ada", SECRET), Listed("ada", SECRET), Hidden(value=pydantic.SecretStr(SECRET))]


@pytest.mark.parametrize("value", HOLDERS, ids=["named", "listed", "hidden"])
@pytest.mark.parametrize("redacts", [False, True], ids=["sealed", "masked"])
def test_a_secret_in_a_chunk_is_seen_by_its_name(
    value: Any, redacts: bool, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    if redacts:  # as on a server without a seal key
        monkeypatch.setattr("antiphon.config.wiring.seal_key_file", lambda config, store: None)
    app = antiphon.Antiphon(store=SQLiteStore(tmp_path / "a.db"), config={"telemetry": {"logs": False}})

    @app.gateway.tool(idempotent=False, key="x")
    def told(x: int) -> Any:
        yield from (value, {"inner": value}, b"bytes", "text")

    assert list(told(1)) == [value, {"inner": value}, b"bytes", "text"]
    again = list(told(1))
    assert again[2:] == [b"bytes", "text"]
    assert redacts or again[:2] == [value, {"inner": value}]
    for file in tmp_path.iterdir():
        assert SECRET.encode() not in file.read_bytes()


@pytest.mark.parametrize(
    "value",
    [Login("ada", SECRET), Listed("ada", SECRET), Hidden(value=pydantic.SecretStr(SECRET))],
    ids=["named", "listed", "hidden"],
)
@pytest.mark.parametrize("declared", [False, True])
def test_a_secret_in_a_field_is_seen_by_its_name(value: Any, declared: bool, tmp_path: Any) -> None:
    app = antiphon.Antiphon(store=SQLiteStore(tmp_path / "a.db"), config={"telemetry": {"logs": False}})
    sign_up = tool_of(app.gateway, type(value) if declared else Any, value)

    @app.gateway.tool(idempotent=False)
    def sign_in(login: Any) -> str:
        return "ok"

    def main() -> Any:
        login = sign_up()
        assert login == value
        if not isinstance(login, Hidden):  # which has no form as an argument
            sign_in(login)
        return login

    run = app.record(main)
    report = antiphon.replay(run, app=app, mode="strict", function=main, keep=False)
    assert report.passed, report.text()
    assert sign_up() == value
    for file in tmp_path.iterdir():
        assert SECRET.encode() not in file.read_bytes()


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
