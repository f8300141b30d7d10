"""Plain calls on SQLite, Redis and PostgreSQL take a straight way; it leaves the same behind as the pipeline."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import antiphon
from antiphon._drive import drive
from antiphon._gateway import straight
from antiphon.config.stores import open_store
from antiphon.contract.spec import Ttls
from antiphon.errors import StoreUnavailable
from antiphon.ports import Claimed, Final, Store
from tests.servers import Valkey

QUIET: dict[str, Any] = {"telemetry": {"logs": False}, "retry": {"base_ms": 0}}
MakeStore = Callable[[], Store]


@pytest.fixture(params=["sqlite", "redis", "postgres"])
def make_store(request: pytest.FixtureRequest, tmp_path: Path) -> MakeStore:
    """A new, empty store with every call."""
    numbers = iter(range(100))

    def make() -> Store:
        number = next(numbers)
        if request.param == "sqlite":
            return open_store(f"sqlite:///{tmp_path / f'{number}.db'}")
        unique = f"{request.getfixturevalue('unique')}{number}"
        if request.param == "redis":
            return open_store(f"{request.getfixturevalue('valkey_url')}?antiphon_prefix={unique}")
        return open_store(f"{request.getfixturevalue('postgres_database')}?antiphon_schema={unique}")

    return make


def _left_behind(gateway: antiphon.Gateway) -> list[dict[str, Any]]:
    """The records, without what is new with every call."""
    found = []
    for record in drive(gateway.core.journal().list(tenant="default")):
        wire = record.to_wire()
        for name in ("version", "fence", "owner", "createdAtMs", "updatedAtMs", "expiresAtMs"):
            wire.pop(name)
        for name in ("requestId", "identity"):
            wire["request"].pop(name)
        if "payloadSealed" in wire or wire.get("outputRedacted"):
            wire["payload"] = wire["payloadSealed"] = "another one every time"
        for attempt in wire.get("execution", {}).get("attempts", []):
            attempt.pop("startedAtMs")
            attempt.pop("finishedAtMs")
        found.append(wire)
    return sorted(found, key=lambda wire: str(wire["key"]))


def _story(gateway: antiphon.Gateway) -> list[Any]:
    """Calls that end in many ways."""
    seen: list[Any] = []
    failures = iter([None, ConnectionResetError("once"), None, ValueError("no"), None, None])

    @gateway.tool(idempotent=True)
    def work(n: int, text: str = "x  y", amount: float = 1.5) -> Any:
        error = next(failures, None)
        if error is not None:
            raise error
        return {"n": n, "text": text} if n != 4 else object()

    @gateway.tool(idempotent=True, reuse="session")
    def look_up(n: int) -> int:
        return n * 2

    def tell(make: Callable[[], Any]) -> None:
        try:
            value = make()
            seen.append(value if isinstance(value, (dict, int)) else type(value).__name__)
        except Exception as error:
            seen.append((type(error).__name__, str(error)))

    for n in (-1, 0, 1, 2):
        tell(lambda n=n: work(n))  # type: ignore[misc]
    with gateway.session("s", actor="a") as session, session.turn():
        for n in (1, 2):
            tell(lambda n=n: work(n))  # type: ignore[misc]
        tell(lambda: work(3, text="long " * 300))
        tell(lambda: work(3, text="long " * 300))
        tell(lambda: work(4))
        tell(lambda: work(n=5, amount=float("nan")))
        tell(lambda: work())  # type: ignore[call-arg]
        tell(lambda: work(6, text="password=hunter2hunter2"))
    for _ in range(3):
        tell(lambda: look_up(1))
    return seen


def test_both_ways_leave_the_same(make_store: MakeStore, monkeypatch: pytest.MonkeyPatch) -> None:
    with antiphon.Gateway(store=make_store(), config=QUIET) as one:
        told, left = _story(one), _left_behind(one)
    monkeypatch.setattr(straight.Straight, "enter", lambda *_: None)
    with antiphon.Gateway(store=make_store(), config=QUIET) as other:
        assert _story(other) == told
        assert _left_behind(other) == left


def test_the_straight_way_is_taken(make_store: MakeStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without this the comparison above would compare the pipeline with itself."""
    with antiphon.Gateway(store=make_store(), config=QUIET) as gateway:

        @gateway.tool(idempotent=False)
        def work(n: int) -> int:
            return n

        work(1)
        monkeypatch.setattr(gateway.core, "run", None)
        assert [work(2), work(3)] == [2, 3]
        assert len(_left_behind(gateway)) == 3


async def test_the_straight_way_is_taken_in_asyncio(make_store: MakeStore, monkeypatch: pytest.MonkeyPatch) -> None:
    async with antiphon.AsyncGateway(store=make_store(), config=QUIET) as gateway:

        @gateway.tool(idempotent=False)
        async def work(n: int) -> int:
            await asyncio.sleep(0)
            return n

        await work(1)
        run = gateway.core.run
        monkeypatch.setattr(gateway.core, "run", None)
        assert await asyncio.gather(*(work(n) for n in range(2, 12))) == list(range(2, 12))
        monkeypatch.setattr(gateway.core, "run", run)
        assert len(await gateway.core.journal().list(tenant="default")) == 11


class Around:
    """A journal with some of its steps changed; the ways without a coroutine lead to the changed ones."""

    def __init__(self, journal: Any) -> None:
        self._journal = journal

    def __getattr__(self, name: str) -> Any:
        return getattr(self._journal, name)

    def begin_now(self, *arguments: Any) -> Any:
        return drive(self.begin(*arguments))

    def settle_now(self, *arguments: Any) -> Any:
        return drive(self.settle(*arguments))


def test_a_store_that_fails_before_the_call_fails_closed(
    make_store: MakeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[int] = []
    asked: list[str] = []
    with antiphon.Gateway(store=make_store(), config=QUIET) as gateway:

        @gateway.tool(idempotent=False)
        def work(n: int) -> int:
            ran.append(n)
            return n

        work(1)

        class Failing(Around):
            async def begin(self, ask: Any, events: Any = ()) -> Any:
                asked.append(ask.key)
                raise StoreUnavailable("gone")

        failing = Failing(gateway.core.journal())
        monkeypatch.setattr(gateway.core, "journal", lambda: failing)
        with pytest.raises(StoreUnavailable, match="not made"):
            work(2)
    assert ran == [1]
    assert len(asked) == 1, "an outage is not waited for twice"


def test_a_store_that_fails_after_the_call_is_tried_again(
    make_store: MakeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    with antiphon.Gateway(store=make_store(), config=QUIET) as gateway:

        @gateway.tool(idempotent=False)
        def work(n: int) -> int:
            return n

        work(1)
        journal = gateway.core.journal()
        failures = iter([StoreUnavailable("a"), StoreUnavailable("b")])

        class Failing(Around):
            async def settle(self, *arguments: Any) -> Any:
                error = next(failures, None)
                if error is not None:
                    raise error
                return await journal.settle(*arguments)

        failing = Failing(journal)
        monkeypatch.setattr(gateway.core, "journal", lambda: failing)
        assert work(2) == 2
        assert [record["state"] for record in _left_behind(gateway)] == ["done", "done"]


def test_a_worker_that_was_away_since_it_asked_does_not_dispatch_on_an_old_claim(
    make_store: MakeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The claim was won, then the process slept beyond its lease, and another took the claim over."""
    ran: list[str] = []
    with antiphon.Gateway(store=make_store(), config=QUIET) as gateway:

        @gateway.tool(idempotent=True, reuse="session", ttl=Ttls(lease_ms=300))
        def work(n: int) -> str:
            ran.append("here")
            return "mine"

        work(1)
        journal = gateway.core.journal()
        slept: list[int] = []

        class Sleepy(Around):
            async def begin(self, ask: Any, events: Any = ()) -> Any:
                got = await journal.begin(ask, events)
                if not slept:
                    slept.append(1)
                    time.sleep(0.4)
                    found = await journal.read(ask.key)
                    assert found is not None
                    taken = await journal.take(ask._replace(identity="other", lease_ms=60_000), found.current.version)
                    assert isinstance(taken, Claimed)
                    final = Final("done", 60_000, b'"theirs"')
                    assert await journal.settle(ask.key, taken.version, final) is not None
                return got

        sleepy = Sleepy(journal)
        monkeypatch.setattr(gateway.core, "journal", lambda: sleepy)
        assert work(2) == "theirs"
    assert ran == ["here"], "only the first call"


@pytest.mark.parametrize("moment", ["tool", "settle"])
async def test_cancelled_callers_settle_what_they_began(
    moment: str, make_store: MakeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with antiphon.AsyncGateway(store=make_store(), config=QUIET) as gateway:
        reached = asyncio.Event()

        @gateway.tool(idempotent=False)
        async def work(n: int) -> int:
            if n == 2 and moment == "tool":
                reached.set()
                await asyncio.sleep(30)
            return n

        await work(1)
        journal = gateway.core.journal()

        class Slow:
            def __getattr__(self, name: str) -> Any:
                return getattr(journal, name)

            async def settle(self, *arguments: Any) -> Any:
                if moment == "settle" and not reached.is_set():
                    reached.set()
                    await asyncio.sleep(30)
                return await journal.settle(*arguments)

        slow = Slow()
        monkeypatch.setattr(gateway.core, "journal", lambda: slow)
        task = asyncio.ensure_future(work(2))
        await reached.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        records = await journal.list(tenant="default")
        states = sorted((record.state, "" if not record.error else record.error.code) for record in records)
        expected = ("done", "") if moment == "settle" else ("failed", "outcome_unknown")
        assert states == sorted([("done", ""), expected])


def test_round_trips_are_two_for_a_miss_and_one_for_a_reused_answer(valkey_server: Callable[..., Valkey]) -> None:
    """Counted on a server of its own, for whole guarded calls."""
    server = valkey_server()
    with antiphon.Gateway(
        store=open_store(server.url), config={**QUIET, "gateway": {"refresh_ms": 600_000}}
    ) as gateway:

        @gateway.tool(idempotent=True, reuse="session")
        def work(n: int) -> int:
            return n

        work(-1)
        before = _scripts(server)
        for n in range(20):
            work(n)
        missed = _scripts(server)
        for n in range(20):
            work(n)
        assert missed - before == 40
        assert _scripts(server) - missed == 20


def _scripts(server: Valkey) -> int:
    lines = server.command("INFO", "commandstats").decode().splitlines()
    return sum(
        int(line.partition("calls=")[2].partition(",")[0])
        for line in lines
        if line.startswith(("cmdstat_evalsha:", "cmdstat_eval:"))
    )
