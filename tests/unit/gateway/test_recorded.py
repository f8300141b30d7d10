"""The straight way of a call inside a run leaves the same events and records behind as the pipeline."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest

import antiphon
from antiphon import Antiphon
from antiphon._drive import drive
from antiphon._gateway import recorded
from antiphon.ports import Store
from antiphon.stores import MemoryStore, SQLiteStore

QUIET = {"telemetry": {"logs": False}, "retry": {"base_ms": 0}}
_PASSING = frozenset("requestId durationMs sum ageMs tries delayMs".split())
_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_OWN = ("version", "fence", "owner", "createdAtMs", "updatedAtMs", "expiresAtMs", "key", "idempotencyKey")


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return MemoryStore() if request.param == "memory" else SQLiteStore(tmp_path / "a.db", "NORMAL")


def application(store: Store, **more: Any) -> Antiphon:
    return Antiphon({**QUIET, **more}, store=store)


def body(app: Antiphon) -> list[Any]:
    """Calls that end in many ways, some of them inside others."""
    seen: list[Any] = []
    failures = iter([ConnectionResetError("once"), None, ValueError("no"), None])

    @app.gateway.tool(idempotent=True)
    def work(n: int, text: str = "x  y", amount: float = 1.5) -> Any:
        error = next(failures, None)
        if error is not None:
            raise error
        return {"n": n, "text": text} if n != 4 else object()

    @app.gateway.tool(idempotent=False, effect="write")
    def send(to: str, password: str = "") -> Any:
        return {"to": to, "seen": inner(len(to))}

    @app.gateway.tool(idempotent=True)
    def inner(n: int) -> int:
        return n * 2

    def tell(make: Any) -> None:
        try:
            value = make()
            seen.append(type(value).__name__ if not isinstance(value, dict) else value)
        except Exception as error:
            seen.append((type(error).__name__, str(error)))

    tell(lambda: work(0))
    tell(lambda: work(1))
    tell(lambda: work(2))
    tell(lambda: work(3, text="long " * 30_000))
    tell(lambda: work(4))
    tell(lambda: work(4))
    tell(lambda: work(n=5, amount=float("nan")))
    tell(lambda: send("ana"))
    tell(lambda: send("ana@example.org", password="hunter2-hunter2"))
    tell(lambda: send("ana"))
    with app.gateway.session("s", actor="a") as session, session.turn():
        tell(lambda: work(7))
        tell(lambda: work(7))
        tell(lambda: send("bob"))
        tell(lambda: send("bob"))
    for _ in range(12):
        tell(lambda: work(8))
    return seen


def told(run: Any) -> list[Any]:
    """The events without times and ids."""
    return [
        (
            event.type,
            event.lane,
            event.index,
            event.call,
            event.parent,
            _ID.sub("id", str(event.payload)),
            _bare(event.meta),
        )
        for event in run.events()
        if event.type != "run.started"
    ]


def _bare(meta: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in meta.items() if name not in _PASSING}


def kept(app: Antiphon, run: Any) -> list[dict[str, Any]]:
    """The records, without what is new with every call."""
    found = []
    for record in drive(app.gateway.core.journal().list(tenant="default", limit=1000)):
        wire = record.to_wire()
        for name in _OWN:
            wire.pop(name)
        wire["request"].pop("requestId")
        wire["request"]["identity"] = wire["request"]["identity"].replace(run.id, "run")
        for attempt in wire.get("execution", {}).get("attempts", []):
            attempt.pop("startedAtMs")
            attempt.pop("finishedAtMs")
        found.append(wire)
    return sorted(found, key=lambda wire: str((wire["request"]["identity"], wire["request"]["paramsDigest"])))


def _fixed_salt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.urandom", lambda n: b"\x07" * n)


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_both_ways_leave_the_same(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _fixed_salt(monkeypatch)
    one, other = (application(MemoryStore() if kind == "memory" else SQLiteStore(tmp_path / name)) for name in "ab")
    with one.run("r") as straight:
        seen = body(one)
    monkeypatch.setattr(recorded.Recorded, "enter", lambda *_: None)
    with other.run("r") as through:
        assert body(other) == seen
    assert told(through) == told(straight)
    assert kept(other, through) == kept(one, straight)


def test_the_straight_way_is_taken(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    app = application(store)

    @app.gateway.tool(idempotent=False)
    def work(n: int) -> int:
        return n

    with app.run("r") as run:
        work(1)  # the first call prepares the keys in the pipeline
        monkeypatch.setattr(app.gateway.core, "run", None)
        assert [work(2), work(3)] == [2, 3]
    calls = [event for event in run.events() if event.type.startswith("call.")]
    assert [event.type for event in calls] == ["call.started", "call.finished"] * 3
    assert [event.index for event in calls] == [0, 0, 1, 1, 2, 2]


def test_the_asynchronous_way_is_taken(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    app = application(store)
    gateway = app.async_gateway

    @gateway.tool(idempotent=False)
    async def work(n: int) -> int:
        await asyncio.sleep(0)
        return n

    async def main() -> Any:
        async with app.run("r") as run:
            await work(1)
            monkeypatch.setattr(gateway.core, "run", None)
            assert list(await asyncio.gather(work(2), work(3), work(4))) == [2, 3, 4]
        return run

    run = asyncio.run(main())
    finished = [event for event in run.events() if event.type == "call.finished"]
    assert sorted(event.payload["value"] for event in finished) == [1, 2, 3, 4]
    assert len({event.call for event in finished}) == 4


def test_a_call_of_a_call_is_inside_it(store: Store) -> None:
    app = application(store)

    @app.gateway.tool(idempotent=False)
    def outer(n: int) -> int:
        return inner(n) + 1

    @app.gateway.tool(idempotent=False)
    def inner(n: int) -> int:
        return n

    with app.run("r") as run:
        for n in range(3):
            outer(n)
    parents = {event.call: event.parent for event in run.events() if event.type == "call.started"}
    assert parents == {"0@0": None, "0@0>@0": "0@0", "0@1": None, "0@1>@0": "0@1", "0@2": None, "0@2>@0": "0@2"}


def test_a_worker_that_was_away_starts_once(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """It gives its claim back and takes the long way; the run keeps one start and one end of the call (D3)."""
    app = application(store)
    made: list[int] = []

    @app.gateway.tool(idempotent=False)
    def work(n: int) -> int:
        made.append(n)
        return n

    with app.run("r") as run:
        work(1)
        way = recorded.Recorded
        begun = way._started
        clock = app.gateway.core.clock
        monotonic = clock.monotonic

        def away(self: Any, ticket: Any) -> Any:
            monkeypatch.setattr(self, "_monotonic", lambda: monotonic() + 3600)
            return begun(self, ticket)

        monkeypatch.setattr(way, "_started", away)
        work(2)
    assert made == [1, 2]
    types = [event.type for event in run.events() if event.index == 1 and event.type.startswith("call.")]
    assert types == ["call.started", "call.finished"]


def test_the_guard_of_the_run_counts_both_ways(store: Store) -> None:
    """Calls that take the straight way count for the loop guard and the caps of the run (D25)."""
    app = application(store, loop={"max_calls": 5})

    @app.gateway.tool(idempotent=True)
    def work(n: int) -> int:
        return n

    with app.run("r"):
        for n in range(5):
            work(n)
        with pytest.raises(antiphon.AntiphonError, match="5"):
            work(6)


@pytest.mark.parametrize("straight", [True, False])
def test_a_loop_is_noticed_as_early_either_way(store: Store, straight: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first of the equal calls counts, whichever way it took (D25)."""
    if not straight:
        monkeypatch.setattr(recorded.Recorded, "enter", lambda *_: None)
    app = application(store, loop={"block_after": 3})

    @app.gateway.tool(idempotent=False, reuse="never")
    def work(n: int) -> int:
        return n

    with app.run("r"):
        work(1)
        for _ in range(3):
            work(2)
        with pytest.raises(antiphon.AntiphonError, match="3 times"):
            work(2)


def test_secrets_of_arguments_and_results_stay_out(store: Store) -> None:
    app = application(store)
    secret = "sk-ant-api03-" + "aB3dE5fG7hJ9kL1mN" * 4

    @app.gateway.tool(idempotent=False)
    def work(n: int, api_key: str) -> dict[str, str]:
        return {"token": api_key}

    with app.run("r") as run:
        assert [work(n, secret)["token"] for n in range(3)] == [secret] * 3
    assert secret not in str([event.payload for event in run.events()])
    assert "[secret:" in str([event.payload for event in run.events()])
