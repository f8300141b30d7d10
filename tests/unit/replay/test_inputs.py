"""A replay gives the code what it was given: objects of classes and values that JSON has no form for."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from pydantic import BaseModel

import antiphon
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


ITEM = Item("a-1", Decimal("1.10"))
GIVEN: dict[str, Any] = {
    "dataclass": Order([ITEM], datetime(2026, 1, 2)),
    "model": Ticket(title="late", due=date(2026, 5, 1), tags={"a"}),
    "enum": Colour.RED,
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
    assert type(seen[1]) is type(GIVEN[kind])


def test_annotations_name_what_a_container_holds() -> None:
    app = memory_app()
    seen: list[Any] = []

    def agent(items: list[Item], by_sku: dict[str, Item] | None = None) -> str:
        seen.append((items, by_sku))
        return "done"

    run = app.record(agent, [ITEM], by_sku={"a-1": ITEM})
    assert antiphon.replay(run, app=app, mode="strict", function=agent, keep=False).passed
    assert seen == [([ITEM], {"a-1": ITEM})] * 2


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


def test_what_cannot_be_written_does_not_cost_the_rest() -> None:
    app = memory_app()
    around: list[Any] = []
    around.append(around)

    def agent(client: Any, amount: Any, loop: Any = None) -> str:
        return "done"

    run = app.record(agent, object(), Decimal(1), around)
    (first, *_) = app.journal.events(run.id)
    assert first.payload["input"]["args"][1] == {"$decimal": "1"}
    assert "$unserialisable" in repr(first.payload["input"]["args"][0])


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
