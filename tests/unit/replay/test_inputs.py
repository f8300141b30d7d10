"""A replay gives the code what it was given: objects of classes and values that JSON has no form for."""

from __future__ import annotations

import enum
import os
from dataclasses import dataclass, make_dataclass
from datetime import date, datetime, timedelta, tzinfo
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID
from zoneinfo import ZoneInfo

import attrs
import msgspec
import pytest
from pydantic import BaseModel, Field

import antiphon
from antiphon.errors import InvalidInput
from antiphon.ops.app import current, start
from antiphon.stores import SQLiteStore
from tests.unit.replay.kit import memory_app

QUIET = {"replay": {"embedder": "lexical"}, "telemetry": {"logs": False}}


class Colour(enum.Enum):
    RED = "red"


@dataclass
class Item:
    sku: str
    price: Decimal


@dataclass
class Order:
    items: list[Item]
    at: datetime


class Ticket(BaseModel):
    title: str
    due: date
    tags: set[str] = set()


@dataclass
class Taxed:
    """Its constructor changes what it is given."""

    total: int

    def __post_init__(self) -> None:
        self.total = self.total * 12 // 10


@dataclass
class Express(Item):
    fee: int = 0


class Hidden(BaseModel):
    shown: int = 0
    hidden: int = Field(default=0, exclude=True)


class Point(NamedTuple):
    x: int
    y: Decimal


class Box(msgspec.Struct):
    inner: Item | None = None


@attrs.define
class Parcel:
    weight: Decimal


class Outer:
    @dataclass
    class Inner:
        n: int


class Zone(tzinfo):
    """Of a library that we do not know."""

    def utcoffset(self, when: datetime | None) -> timedelta:
        return timedelta(hours=1)

    def dst(self, when: datetime | None) -> timedelta:
        return timedelta(0)

    def tzname(self, when: datetime | None) -> str:
        return "there"


class Client:
    """Nothing that could be recorded."""


ITEM = Item("a-1", Decimal("1.10"))
GIVEN: dict[str, Any] = {
    "dataclass": Order([ITEM], datetime(2026, 1, 2)),
    "model": Ticket(title="late", due=date(2026, 5, 1), tags={"a"}),
    "enum": Colour.RED,
    "constructor that changes": Taxed(100),
    "subclass": Express("a-1", Decimal(1), 700),
    "excluded field": Hidden(shown=1, hidden=2),
    "named tuple": Point(1, Decimal(2)),
    "struct": Box(ITEM),
    "attrs": Parcel(Decimal("1.5")),
    "class in a class": Outer.Inner(1),
    "objects in containers": {"list": [ITEM, Taxed(1)], "tuple": (Colour.RED,), "keys": {Colour.RED: ITEM}},
    "time in a zone": datetime(2026, 3, 29, 1, 30, tzinfo=ZoneInfo("Europe/Berlin")),
    "path with any bytes": Path(os.fsdecode(b"/tmp/caf\xe9")),
    "dict like an object": {"$object": ["x", {"when": date(2026, 1, 1)}]},
    "path": Path("/tmp/report.txt"),
    "decimal": Decimal("2.50"),
    "bytes": b"\xff\x00",
    "tuple": (1, (2, 3)),
    "set": {1, 2},
    "uuid": UUID(int=7),
    "duration": timedelta(seconds=4),
    "large number": 2**80,
    "keys": {1: "one", "1": "text"},
    "looks like a tag": {"$date": "2024"},
    "secret": {"mail": "ada.lovelace@example.org", "at": date(2026, 1, 1)},
    "plain": {"a": [1, 2.5, None, "é"]},
}


@pytest.mark.parametrize("store", ["memory", "sqlite"])
@pytest.mark.parametrize("by", ["position", "name"])
@pytest.mark.parametrize("kind", GIVEN)
def test_the_code_gets_what_it_was_given(kind: str, by: str, store: str, tmp_path: Path) -> None:
    app = memory_app() if store == "memory" else antiphon.Antiphon(store=SQLiteStore(tmp_path / "a.db"), config=QUIET)
    seen: list[Any] = []

    def agent(given: Any) -> str:
        seen.append(given)
        return repr(given)

    run = app.record(agent, GIVEN[kind]) if by == "position" else app.record(agent, given=GIVEN[kind])
    report = antiphon.replay(run, app=app, mode="strict", function=agent, keep=False)
    assert report.passed, report.text()
    assert seen == [GIVEN[kind]] * 2
    assert repr(seen[1]) == repr(seen[0])
    assert type(seen[1]) is type(GIVEN[kind])


def test_arguments_that_nobody_names_one_by_one() -> None:
    app = memory_app()
    seen: list[Any] = []

    def agent(*items: Any, **more: Any) -> str:
        seen.append((items, more))
        return "done"

    run = app.record(agent, ITEM, [ITEM], **{"ada.lovelace@example.org": Decimal(1), "plain": 1})
    assert antiphon.replay(run, app=app, mode="strict", function=agent, keep=False).passed
    assert seen[0] == seen[1]
    assert "lovelace" not in repr(app.journal.events(run.id))


def test_json_stays_json_whatever_the_annotation_says() -> None:
    """The command line gives objects as JSON: the live code had a dict, and so has the replay."""
    app = memory_app()
    seen: list[Any] = []

    def agent(item: Item) -> str:
        seen.append(item)
        return "done"

    run = app.record(agent, {"sku": "a-1", "price": "1.10"})  # type: ignore[call-overload]
    assert antiphon.replay(run, app=app, mode="strict", function=agent, keep=False).passed
    assert seen == [{"sku": "a-1", "price": "1.10"}] * 2


AROUND: list[Any] = []
LOST: dict[str, Any] = {
    "object": Client(),
    "local class": make_dataclass("Local", [("n", int)])(1),
    "foreign zone": datetime(2026, 1, 1, tzinfo=Zone()),
    "subclass of text": type("Id", (str,), {})("a"),
    "cycle": AROUND,
}
AROUND.append(AROUND)


@pytest.mark.parametrize("kind", LOST)
def test_what_cannot_be_made_again_is_told(kind: str, tmp_path: Path) -> None:
    app = antiphon.Antiphon(store=SQLiteStore(tmp_path / "a.db"), config=QUIET)
    made: list[Any] = []

    @app.gateway.tool(idempotent=False)
    def send(text: str) -> str:
        made.append(text)
        return "sent"

    def agent(lost: Any, amount: Decimal) -> str:
        send(f"{type(lost).__name__} {amount}")
        return "done"

    run = app.record(agent, LOST[kind], Decimal(1))
    (first, *_) = app.journal.events(run.id)
    assert first.payload["input"]["args"][1] == {"$decimal": "1"}, "what can be written does not suffer"
    assert "quokka" not in repr(first)
    report = antiphon.replay(run, app=app, mode="strict", function=agent, keep=False)
    assert report.passed is (kind == "cycle"), "a list in both, whatever is in it"
    assert report.passed or "argument 1 cannot be restored exactly" in report.text(), report.text()
    assert len(made) == 1


def test_a_path_that_a_tool_returns_is_kept() -> None:
    app = memory_app()

    @app.gateway.tool(idempotent=False)
    def save(name: str) -> Path:
        return Path("/tmp") / name

    @app.gateway.tool(idempotent=False)
    def save_all(name: str) -> Any:
        return [Path(name)]

    def agent() -> str:
        return f"{save('a.txt').name} {save_all('b.txt')[0].suffix}"

    run = app.record(agent)
    assert run.output == "a.txt .txt"
    assert antiphon.replay(run, app=app, mode="strict", function=agent, keep=False).passed
    turn = app.gateway.session("s").turn()
    first, again = (turn.call("save", {"name": "a.txt"}, "c1") for _ in range(2))
    assert again.from_cache
    assert first.output is not None
    assert again.output is not None
    assert first.output.content == again.output.content == Path("/tmp/a.txt")
    assert again.to_wire()["output"]["content"] == "/tmp/a.txt"


def test_an_object_whose_class_is_gone_comes_as_its_fields(monkeypatch: pytest.MonkeyPatch) -> None:
    app = memory_app()
    seen: list[Any] = []

    def agent(given: Any, *, name: Any) -> str:
        seen.append((given, name))
        return type(given).__name__

    run = app.record(agent, [ITEM], name=Colour.RED)
    monkeypatch.setattr("antiphon._gateway.tagged._class_of", lambda *_: None)
    antiphon.replay(run, app=app, mode="strict", function=agent, keep=False)
    assert seen[1] == ([{"sku": "a-1", "price": Decimal("1.10")}], "red")


CHARGED: list[str] = []
LEFT: list[bool] = []


def resumable(order: Any) -> str:
    """Charges, and is interrupted behind that for the first time."""
    app = current()

    @app.gateway.tool("charge", idempotent=False)
    def charge(what: str) -> str:
        CHARGED.append(what)
        return "charged"

    charge(repr(order))
    if not LEFT:
        LEFT.append(True)
        raise KeyboardInterrupt
    return "done"


@pytest.mark.parametrize("kind", ["constructor that changes", "subclass", "time in a zone", "excluded field", "plain"])
def test_a_resumed_run_has_the_input_it_began_with(kind: str, tmp_path: Path) -> None:
    CHARGED.clear()
    LEFT.clear()
    app = antiphon.Antiphon(store=SQLiteStore(tmp_path / "a.db"), config=QUIET)
    with pytest.raises(KeyboardInterrupt):
        app.record(resumable, GIVEN[kind])
    (run,) = app.journal.runs(tenant=app.tenant)
    again = start(app, f"{__name__}:resumable", None, resume=run.id)
    assert (again.error, again.output) == (None, "done")
    assert len(CHARGED) == 1


def test_a_run_whose_input_is_lost_is_not_resumed(tmp_path: Path) -> None:
    CHARGED.clear()
    LEFT.clear()
    app = antiphon.Antiphon(store=SQLiteStore(tmp_path / "a.db"), config=QUIET)
    with pytest.raises(KeyboardInterrupt):
        app.record(resumable, Client())
    (run,) = app.journal.runs(tenant=app.tenant)
    for given in (None, {"any": "input"}):
        with pytest.raises(InvalidInput, match="argument 1 cannot be restored exactly"):
            start(app, f"{__name__}:resumable", given, resume=run.id)
    assert len(CHARGED) == 1
