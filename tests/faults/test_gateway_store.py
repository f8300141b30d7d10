"""A SQLite store that is locked, full, gone or damaged, and clocks that jump (D10, D16)."""

from __future__ import annotations

import resource
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from antiphon import Gateway
from antiphon.ports import Clock
from antiphon.stores import MemoryStore, SQLiteStore
from antiphon.stores.sqlite import schema
from tests.faults.fleet_kit import Effects, envelope, fleet, open_gateway, serve, short, summary, until


def tools(gateway: Gateway, effects: Effects, **options: Any) -> Gateway:
    @gateway.tool("send", idempotent=False, **options)
    def send(to: str) -> str:
        effects.add("send")
        return f"sent to {to}"

    @gateway.tool("look", idempotent=True, effect="read", **options)
    def look(to: str) -> str:
        effects.add("look")
        return f"seen {to}"

    return gateway


def call(gateway: Gateway, tool: str, call_id: str, to: str = "ada") -> dict[str, Any]:
    return summary(gateway.execute(envelope(tool, {"to": to}, call_id)))


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Somebody else holds the write lock."""
    with sqlite3.connect(path, isolation_level=None) as other:
        other.execute("BEGIN IMMEDIATE")
        yield
        other.execute("ROLLBACK")


def test_a_locked_store_fails_closed_or_open_and_comes_back(tmp_path: Path, effects: Effects) -> None:
    path = tmp_path / "claims.db"
    gateway = tools(Gateway(store=SQLiteStore(path, busy_timeout=0.2)), effects)
    call(gateway, "send", "warm", "warm")
    with locked(path):
        closed = call(gateway, "send", "c1")
        opened = call(gateway, "look", "c1")
    assert (closed["status"], closed["code"], closed["attempts"]) == ("retriable_error", "store_unavailable", 0)
    assert (opened["status"], opened["metadata"]) == ("success", {"unprotected": "store_unavailable"})
    assert effects.counts() == {"send": 1, "look": 1}
    until(lambda: call(gateway, "send", "c1")["status"] == "success", "the store is seen to work again")
    assert call(gateway, "send", "c1")["fromCache"] is True


def test_a_store_that_is_locked_when_the_result_comes_in_loses_nothing(tmp_path: Path, effects: Effects) -> None:
    path = tmp_path / "claims.db"
    gateway = Gateway(store=SQLiteStore(path, busy_timeout=0.05))
    locks: list[Any] = []

    @gateway.tool("send", idempotent=False, ttl=short(1_500))
    def send(to: str) -> str:
        effects.add("send")
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        locks.append(other)
        return "sent"

    result = call(gateway, "send", "c1")
    assert (result["value"], result["metadata"]) == ("sent", {"notRecorded": "store_unavailable"})
    locks[0].execute("ROLLBACK")
    until(lambda: call(gateway, "send", "c1")["fromCache"], "the result is written when the store works again")
    assert call(gateway, "send", "c1")["value"] == "sent"
    assert effects.counts() == {"send": 1}


@pytest.mark.parametrize("damage", ["a folder", "no database", "another program's"])
def test_a_store_that_cannot_be_opened(tmp_path: Path, effects: Effects, damage: str) -> None:
    path = tmp_path / "claims.db"
    if damage == "a folder":
        path.mkdir()
    elif damage == "no database":
        path.write_bytes(b"not a database at all" * 100)
    else:
        with sqlite3.connect(path) as other:
            other.execute("CREATE TABLE theirs (x)")
    gateway = tools(Gateway(store=SQLiteStore(path)), effects)
    closed, opened = call(gateway, "send", "c1"), call(gateway, "look", "c1")
    assert (closed["status"], closed["code"]) == ("retriable_error", "store_unavailable")
    assert "was not made" in closed["message"]
    assert opened["status"] == "success"
    assert effects.counts() == {"look": 1}


def _on_a_full_disk(url: str, effects: Effects, number: int, pipe: Connection) -> None:
    gateway = tools(open_gateway(url, loop={"enabled": False}), effects)

    def limit(size: int) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

    def fill() -> tuple[int, dict[str, Any]]:
        for count in range(2_000):
            result = call(gateway, "send", f"c{count}", f"{count}" * 200)
            if result["status"] != "success" or result["metadata"]:
                return count, result
        raise AssertionError("the disk never got full")

    serve(
        pipe,
        {
            "limit": limit,
            "fill": fill,
            "call": lambda tool, call_id, to: call(gateway, tool, call_id, to),
        },
    )


def test_a_full_disk_is_said_and_nothing_is_sent_twice(tmp_path: Path, effects: Effects) -> None:
    url = f"sqlite:///{tmp_path / 'claims.db'}"
    with fleet(_on_a_full_disk, url, effects, size=1) as [worker]:
        worker.ask(("call", "send", "warm", "warm"))
        worker.ask(("limit", 400_000))
        count, result = worker.ask(("fill",))
        sent = effects.counts()["send"]
        assert result["code"] == "store_unavailable" or result["metadata"] == {"notRecorded": "store_unavailable"}
        assert worker.ask(("call", "look", "l1", "x"))["status"] == "success"
        worker.ask(("limit", resource.RLIM_INFINITY))
        words = ("call", "send", f"c{count}", f"{count}" * 200)
        until(lambda: worker.ask(words)["status"] == "success", "the store is seen to work again")
        # one that was not made is made now; of one that was made, the result is written down now
        made = 1 if result["code"] == "store_unavailable" else 0
        assert effects.counts()["send"] == sent + made
        before = worker.ask(("call", "send", "c0", "0" * 200))
        assert before["fromCache"] is True


class _NoRoom(schema.Connection):
    """SQLite itself finds the disk full: the file may not grow. What fits into its free pages is written."""

    full = False

    def cursor(self, factory: Any = None) -> Any:
        return super().cursor(_Limited)


class _Limited(sqlite3.Cursor):
    def execute(self, sql: str, *arguments: Any) -> Any:
        if not self.connection.in_transaction:
            super().execute(f"PRAGMA max_page_count = {1 if _NoRoom.full else 1_000_000}")
        return super().execute(sql, *arguments)


def test_a_result_that_finds_no_room_is_recorded_when_there_is(
    tmp_path: Path, effects: Effects, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schema, "Connection", _NoRoom)
    monkeypatch.setattr(_NoRoom, "full", False)
    gateway = Gateway(store=SQLiteStore(tmp_path / "claims.db"))
    answer = "paid" * 20_000

    @gateway.tool("pay", idempotent=False)
    def pay(to: str) -> str:
        effects.add("pay")
        _NoRoom.full = to == "ada"
        return answer if to == "ada" else "paid"

    result = call(gateway, "pay", "c1")
    assert (result["value"], result["metadata"]) == (answer, {"notRecorded": "store_unavailable"})
    until(lambda: call(gateway, "pay", "c1")["code"] == "store_unavailable", "a redelivery is told", 5.0)
    assert call(gateway, "pay", "c2", "bob")["code"] == "store_unavailable"
    _NoRoom.full = False
    until(lambda: call(gateway, "pay", "c1")["fromCache"], "the result is written", 5.0)
    assert call(gateway, "pay", "c1")["value"] == answer
    assert call(gateway, "pay", "c2", "bob")["value"] == "paid"
    assert effects.counts() == {"pay": 2}
    gateway.close()


# -- clocks that jump ----------------------------------------------------------------------------------------


class Jumping(Clock):
    """The live clock, off by as much as the test says."""

    def __init__(self) -> None:
        super().__init__()
        self.offset_ms = 0

    def now_ms(self) -> int:
        return super().now_ms() + self.offset_ms


@pytest.fixture(params=["memory", "sqlite"])
def store_on(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[Clock], Any]:
    if request.param == "memory":
        return lambda clock: MemoryStore(clock=clock)
    return lambda clock: SQLiteStore(tmp_path / "claims.db", clock=clock)


@pytest.mark.parametrize("jump_ms", [-86_400_000, -1, 3_600_000])
def test_a_wall_clock_that_jumps_never_sends_twice(
    store_on: Callable[[Clock], Any], effects: Effects, jump_ms: int
) -> None:
    clock = Jumping()
    gateway = Gateway(store=store_on(clock), clock=clock)
    meanwhile: list[dict[str, Any]] = []

    def duplicate() -> None:
        meanwhile.append(summary(gateway.execute({**envelope("send", {"to": "ada"}, "c2"), **NO_WAIT})))

    @gateway.tool("send", idempotent=False)
    def send(to: str) -> str:
        effects.add(f"send:{to}")
        if to == "ada":
            clock.offset_ms = jump_ms
            thread = threading.Thread(target=duplicate)
            thread.start()
            thread.join()
        return "sent"

    assert call(gateway, "send", "c1")["value"] == "sent"
    # a jump forward ends a lease early: the outcome is unknown then, never sent again
    assert meanwhile[0]["code"] == ("outcome_unknown" if jump_ms > 0 else "in_flight")
    for number in range(3):
        call(gateway, "send", f"later-{number}", f"bob-{number}")
    # fences are ordered within an intent (the next test); two intents of one millisecond may share a number
    assert len({found.key for found in _records(gateway)}) == 4
    assert set(effects.counts().values()) == {1}


NO_WAIT = {"transport": {"dedupeMode": "bestEffort", "retryBudget": {"maxAttempts": 1, "maxElapsedMs": 1_000}}}


def _records(gateway: Gateway) -> list[Any]:
    return gateway._runtime.journal.list(tenant="default")


def test_fences_grow_even_if_the_clock_goes_back(store_on: Callable[[Clock], Any]) -> None:
    clock = Jumping()
    gateway = Gateway(store=store_on(clock), clock=clock)
    fences: list[int] = []

    @gateway.tool("send", idempotent=False)
    def send(to: str, ctx: Any) -> str:
        fences.append(ctx.fence)
        return "sent"

    for number in range(4):
        call(gateway, "send", f"c{number}")
        clock.offset_ms -= 3_600_000
    assert fences == sorted(set(fences))


def test_answers_are_never_older_than_now(store_on: Callable[[Clock], Any]) -> None:
    clock = Jumping()
    gateway = Gateway(store=store_on(clock), clock=clock)
    gateway.tool("send", idempotent=False)(_sent)
    call(gateway, "send", "c1")
    clock.offset_ms = -3_600_000
    wire = gateway.execute(envelope("send", {"to": "ada"}, "c1")).to_wire()
    assert wire["fromCache"] is True
    assert wire["cache"]["ageMs"] == 0


def _sent(to: str) -> str:
    return "sent"
