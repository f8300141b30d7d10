"""The straight way of a plain call leaves the same behind as the pipeline."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

import antiphon
from antiphon._drive import drive
from antiphon._gateway import express
from antiphon.ports import Clock
from antiphon.stores import MemoryStore

QUIET = {"telemetry": {"logs": False}, "retry": {"base_ms": 0}}


class Stopped(Clock):
    """A clock that stands still, so that two gateways leave equal records."""

    def __init__(self) -> None:
        super().__init__(seed=1)

    def monotonic(self) -> float:
        return 100.0

    def now_ms(self) -> int:
        return 1_700_000_000_000

    async def sleep(self, seconds: float) -> None:
        return None


def left_behind(gateway: antiphon.Gateway) -> list[dict[str, Any]]:
    """The records, without what is new with every call."""
    records = drive(gateway.core.journal().list(tenant="default"))
    found = []
    for record in records:
        wire = record.to_wire()
        for name in ("version", "fence", "owner", "createdAtMs", "updatedAtMs", "expiresAtMs"):
            wire.pop(name)
        for name in ("requestId", "identity"):
            wire["request"].pop(name)
        for attempt in wire.get("execution", {}).get("attempts", []):
            attempt.pop("startedAtMs")
            attempt.pop("finishedAtMs")
        found.append(wire)
    return sorted(found, key=lambda wire: str(wire["key"]))


def story(gateway: antiphon.Gateway) -> list[Any]:
    """Calls that end in many ways."""
    seen: list[Any] = []
    failures = iter([ConnectionResetError("once"), None, ValueError("no"), None, None])

    @gateway.tool(idempotent=True)
    def work(n: int, text: str = "x  y", amount: float = 1.5) -> Any:
        error = next(failures, None)
        if error is not None:
            raise error
        return {"n": n, "text": text} if n != 4 else object()

    def tell(make: Callable[[], Any]) -> None:
        try:
            value = make()
            seen.append(type(value).__name__ if not isinstance(value, (dict, antiphon.ToolDenied)) else value)
        except Exception as error:
            seen.append((type(error).__name__, str(error)))

    tell(lambda: work(0))
    with gateway.session("s", actor="a") as session, session.turn():
        tell(lambda: work(1))
        tell(lambda: work(2))
        tell(lambda: work(3, text="long " * 300))
        tell(lambda: work(3, text="long " * 300))
        tell(lambda: work(6, text="longer " * 600))
        tell(lambda: work(4))
        tell(lambda: work(n=5, amount=float("nan")))
        tell(lambda: work())  # type: ignore[call-arg]
    return [entry if not isinstance(entry, antiphon.ToolDenied) else (entry.reason, entry.tool_name) for entry in seen]


def test_both_ways_leave_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    straight = antiphon.Gateway(store=MemoryStore(clock=Stopped()), config=QUIET, clock=Stopped())
    told = story(straight)
    monkeypatch.setattr(express.Express, "open", lambda *_: None)
    through = antiphon.Gateway(store=MemoryStore(clock=Stopped()), config=QUIET, clock=Stopped())
    assert story(through) == told
    assert left_behind(through) == left_behind(straight)


def test_the_straight_way_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without this the comparison above would compare the pipeline with itself."""
    gateway = antiphon.Gateway(store=MemoryStore(), config=QUIET)

    @gateway.tool(idempotent=False)
    def work(n: int) -> int:
        return n

    work(1)  # the first call of a session prepares its keys in the pipeline
    monkeypatch.setattr(gateway.core, "run", None)
    assert [work(2), work(3)] == [2, 3]
    assert len(left_behind(gateway)) == 3


def test_a_reused_answer_is_a_copy() -> None:
    gateway = antiphon.Gateway(store=MemoryStore(), config=QUIET)

    @gateway.tool(idempotent=True, reuse="session")
    def work(n: int) -> dict[str, list[int]]:
        return {"n": [n]}

    first = work(1)
    first["n"].append(99)
    second = work(1)
    second["n"].append(98)
    assert work(1) == {"n": [1]}


def test_reentrant_and_nested_calls_are_seen() -> None:
    gateway = antiphon.Gateway(store=MemoryStore(), config=QUIET)

    @gateway.tool(idempotent=False)
    def work(n: int) -> Any:
        if n == 1:
            with pytest.raises(antiphon.AntiphonError, match="called itself"):
                work(1)
        return inner(n)

    @gateway.tool(idempotent=False)
    def inner(n: int) -> int:
        return n

    assert [work(0), work(1)] == [0, 1]


def test_an_interrupt_is_settled_as_unknown() -> None:
    gateway = antiphon.Gateway(store=MemoryStore(), config=QUIET)

    @gateway.tool(idempotent=False)
    def work(n: int) -> int:
        if n:
            raise KeyboardInterrupt
        return n

    work(0)
    with pytest.raises(KeyboardInterrupt):
        work(1)
    states = sorted((record["state"], record.get("error", {}).get("code", "")) for record in left_behind(gateway))
    assert states == [("done", ""), ("failed", "outcome_unknown")]


async def test_in_asyncio() -> None:
    gateway = antiphon.AsyncGateway(store=MemoryStore(), config=QUIET)
    running = 0

    @gateway.tool(idempotent=True)
    async def work(n: int) -> int:
        nonlocal running
        running += 1
        await asyncio.sleep(0)
        if n == 7 and running < 12:
            raise ConnectionResetError("again")
        return n

    await work(0)
    assert await asyncio.gather(*(work(n) for n in range(1, 10))) == list(range(1, 10))
    task = asyncio.ensure_future(work(50))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await work(50) == 50
