"""Calls on real stores: what they leave behind, stores that fail in the middle, callers that go away."""

from __future__ import annotations

import asyncio
import re
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import antiphon
from antiphon.config.wiring import open_store
from antiphon.contract.spec import Ttls
from antiphon.errors import StoreUnavailable
from antiphon.ports import Begun, Claimed, ClaimRequest, Journal, Settlement, Store, SyncJournal
from antiphon.stores import ComposedStore, SQLiteStore
from tests.faults.fleet_kit import Tampered, of_another, until

_ID = re.compile(r"\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b")
QUIET: dict[str, Any] = {"telemetry": {"logs": False}, "retry": {"base_ms": 0}}


@pytest.fixture(params=["sqlite", "redis", "postgres", "composed"])
def store(request: pytest.FixtureRequest, tmp_path: Path, unique: str) -> Store:
    file = f"sqlite:///{tmp_path / 'journal.db'}"
    if request.param == "sqlite":
        return open_store(file)
    if request.param == "postgres":
        return open_store(f"{request.getfixturevalue('postgres_database')}?antiphon_schema={unique}")
    claims = open_store(f"{request.getfixturevalue('valkey_url')}?antiphon_prefix={unique}")
    return claims if request.param == "redis" else ComposedStore(claims=claims, log=open_store(file))


class Listener:
    def __init__(self) -> None:
        self.heard: list[str] = []

    def emit(self, event: str, fields: Any) -> None:
        self.heard.append(event)


def _left_behind(store: Store) -> list[dict[str, Any]]:
    """The records, without what is new with every call."""
    found = []
    for record in store.open_sync().list(tenant="default"):
        wire = record.to_wire()
        for name in ("version", "fence", "owner", "createdAtMs", "updatedAtMs", "expiresAtMs"):
            wire.pop(name)
        for name in ("requestId", "identity"):
            wire["request"].pop(name)
        if "payloadSealed" in wire or wire.pop("outputRedacted", False):  # a store with or without a key
            wire["payload"] = wire["payloadSealed"] = "not as it was given"
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
            seen.append((type(error).__name__, _ID.sub("ID", str(error))))

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


@pytest.mark.parametrize("watched", [False, True])
def test_every_store_is_left_the_same(watched: bool, store: Store, tmp_path: Path) -> None:
    """With a listener and hooks or without them."""
    reference = SQLiteStore(tmp_path / "reference.db")
    with antiphon.Gateway(store=reference, config=QUIET) as gateway:
        told = _story(gateway)
    listener = Listener()
    with antiphon.Gateway(store=store, config=QUIET) as gateway:
        if watched:
            gateway.listen(listener)
            gateway.before(lambda call: None)
            gateway.after(lambda call, outcome: None)
        assert _story(gateway) == told
    assert _left_behind(store) == _left_behind(reference)
    assert ("tool_call_end" in listener.heard) == watched


def test_a_store_that_fails_before_the_call_fails_closed(store: Store) -> None:
    ran: list[int] = []
    asked: list[int] = []
    gone, told = True, 0

    def begin(journal: SyncJournal, request: ClaimRequest, *events: Any) -> Begun:
        nonlocal told
        if ran and gone:
            asked.append(threading.get_ident())
            raise StoreUnavailable("gone")
        told += 1
        return journal.begin(request, *events)

    with antiphon.Gateway(store=Tampered(store, begin=begin), config=QUIET) as gateway:

        @gateway.tool(idempotent=False)
        def work(n: int) -> int:
            ran.append(n)
            return n

        work(1)
        with pytest.raises(StoreUnavailable, match="not made"):
            work(2)
    assert ran == [1]
    assert asked.count(threading.get_ident()) == 1, "an outage is not waited for twice"
    assert len(asked) < 12, "whether a claim was made all the same is asked less and less often"
    assert [record["state"] for record in _left_behind(store)] == ["done"]
    gone = False
    until(lambda: told == 2, "the thread of the process asks until it is told")


async def test_in_asyncio_a_store_that_fails_before_the_call_fails_closed(store: Store) -> None:
    ran: list[int] = []

    async def begin(journal: Journal, request: ClaimRequest, *events: Any) -> Begun:
        if ran:
            raise StoreUnavailable("gone")
        return await journal.begin(request, *events)

    async with antiphon.AsyncGateway(store=Tampered(store, begin=begin), config=QUIET) as gateway:

        @gateway.tool(idempotent=False)
        async def work(n: int) -> int:
            ran.append(n)
            return n

        await work(1)
        with pytest.raises(StoreUnavailable, match="not made"):
            await work(2)
    assert ran == [1]


@pytest.mark.parametrize("failures", [2, 100])
def test_a_store_that_fails_after_the_call_is_tried_again(failures: int, store: Store) -> None:
    left, tries = 0, 0

    def settle(journal: SyncJournal, *arguments: Any) -> int | None:
        nonlocal left, tries
        tries += 1
        if left:
            left -= 1
            raise StoreUnavailable("gone")
        return journal.settle(*arguments)

    with antiphon.Gateway(store=Tampered(store, settle=settle), config=QUIET) as gateway:

        @gateway.tool(idempotent=False)
        def work(n: int) -> int:
            return n

        work(1)
        left, tries = failures, 0
        assert work(2) == 2, "the effect has happened: its result is not lost"
        asked = tries
        until(lambda: tries >= (3 if failures == 2 else 2), "the thread of the process asks the store again")
    states = sorted(record["state"] for record in _left_behind(store))
    assert asked <= 2, "the caller asks once: the rest is left to the thread of the process"
    assert states == (["done", "done"] if failures == 2 else ["done", "inflight"])
    assert (tries == 3) if failures == 2 else (2 <= tries < 12), tries
    left = 0
    until(
        lambda: [record["state"] for record in _left_behind(store)] == ["done", "done"],
        "the thread outlives its gateway",
    )


async def test_in_asyncio_a_store_that_fails_after_the_call_is_tried_again(store: Store) -> None:
    failures = iter([None, StoreUnavailable("a"), StoreUnavailable("b")])

    async def settle(journal: Journal, *arguments: Any) -> int | None:
        error = next(failures, None)
        if error is not None:
            raise error
        return await journal.settle(*arguments)

    async with antiphon.AsyncGateway(store=Tampered(store, settle=settle), config=QUIET) as gateway:

        @gateway.tool(idempotent=False)
        async def work(n: int) -> int:
            return n

        assert [await work(1), await work(2)] == [1, 2]
    until(
        lambda: [record["state"] for record in _left_behind(store)] == ["done", "done"],
        "the thread of the process writes the outcome",
    )


def test_a_worker_that_was_away_since_it_asked_does_not_dispatch_on_an_old_claim(store: Store) -> None:
    """The claim was won, then the process slept beyond its lease, and another took the claim over."""
    ran: list[int] = []
    away = False

    def begin(journal: SyncJournal, request: ClaimRequest, *events: Any) -> Begun:
        nonlocal away
        got = journal.begin(request, *events)
        if away:
            away = False
            time.sleep(0.4)
            found = journal.read(request.key)
            assert found is not None
            taken = journal.take_over(of_another(request), found.current.version)
            assert isinstance(taken, Claimed)
            assert journal.settle(request.key, taken.version, Settlement("done", 60_000, b'"theirs"')) is not None
        return got

    with antiphon.Gateway(store=Tampered(store, begin=begin), config=QUIET) as gateway:

        @gateway.tool(idempotent=True, reuse="session", ttl=Ttls(lease_ms=300))
        def work(n: int) -> str:
            ran.append(n)
            return "mine"

        work(1)
        away = True
        assert work(2) == "theirs"
    assert ran == [1]


LEFT = {
    "begin": ("cancelled", ""),
    "tool": ("failed", "outcome_unknown"),
    "settle": ("done", ""),
    "settled": ("done", ""),
}


@pytest.mark.parametrize("moment", LEFT)
async def test_cancelled_callers_settle_what_they_began(moment: str, store: Store) -> None:
    """``begin`` and ``settled``: the store has done its part, and the reply is on its way."""
    reached, ran = asyncio.Event(), 0

    async def stop_here() -> None:
        if not reached.is_set():
            reached.set()
            await asyncio.sleep(30)

    async def begin(journal: Journal, request: ClaimRequest, *events: Any) -> Begun:
        got = await journal.begin(request, *events)
        if ran == 1 and moment == "begin":
            await stop_here()
        return got

    async def settle(journal: Journal, *arguments: Any) -> int | None:
        if ran == 2 and moment == "settle":
            await stop_here()
        version = await journal.settle(*arguments)
        if ran == 2 and moment == "settled":
            await stop_here()
        return version

    async with antiphon.AsyncGateway(store=Tampered(store, begin=begin, settle=settle), config=QUIET) as gateway:

        @gateway.tool(idempotent=False)
        async def work(n: int) -> int:
            nonlocal ran
            ran += 1
            if n == 2 and moment == "tool":
                await stop_here()
            return n

        await work(1)
        task = asyncio.ensure_future(work(2))
        await reached.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    records = store.open_sync().list(tenant="default")
    states = sorted((record.state, "" if not record.error else record.error.code) for record in records)
    assert states == sorted([("done", ""), LEFT[moment]])
    assert ran == (1 if moment == "begin" else 2)
