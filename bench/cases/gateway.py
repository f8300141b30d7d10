"""The guarded call of a gateway, in memory and on SQLite."""

from __future__ import annotations

import itertools
import json
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

from antiphon._gateway.express import Express

import antiphon
from antiphon.ports import Clock
from antiphon.stores import MemoryStore, SQLiteStore

_serial = itertools.count(1)
_TURN = 200
"""Calls per turn: what turn control remembers must not grow without end."""


def _params(file: str) -> dict[str, Any]:
    read: dict[str, Any] = json.loads(Path(file).read_bytes())
    return read


def sync_call(file: str) -> Callable[[int], None]:
    """Key, claim, turn, loop guard, retry, breaker and metrics on; a new intent with every call."""
    gateway = antiphon.Gateway(store=MemoryStore())
    params = _params(file)

    @gateway.tool(idempotent=True)
    def send(params: dict[str, Any], n: int) -> int:
        return n

    def run(n: int) -> None:
        session = gateway.session("bench", actor="bench")
        done = 0
        while done < n:
            with session.turn():
                for _ in range(min(_TURN, n - done)):
                    send(params, next(_serial))
            done += _TURN

    return run


def stage(file: str, name: str) -> Callable[[], Any]:
    """One stage of that call by itself, as the straight way makes it."""
    gateway = antiphon.Gateway(store=MemoryStore())
    params = _params(file)

    @gateway.tool(idempotent=True)
    def send(params: dict[str, Any], n: int) -> int:
        return n

    session = gateway.session("bench", actor="bench")
    with session.turn():
        for _ in range(2):  # the first call prepares what the others share
            send(params, next(_serial))
    way = Express(gateway.core, send.tool)  # type: ignore[attr-defined]
    form = way._form(session.state.place)
    assert form is not None
    maker, breakers, guard = form.maker, way._permits() or [], session.state.known_guard
    assert guard is not None
    loop, count = guard.loop, way._bind_tally()

    def key() -> None:
        maker.quick({"params": params, "n": next(_serial)})

    def claim() -> None:
        key = str(next(_serial))
        way._succeed(key, way._begin(key, key, form, b"1"), b"1", 0.1)

    def turn() -> None:
        call = ("tools/send", str(next(_serial)))
        if loop.is_new(call):
            loop.succeeded(call, b"1")

    def breaker() -> None:
        way._permits()
        for one, permit in breakers:
            one.success(permit, 1.0)
        way._budget.success()

    def metrics() -> None:
        count(0.1)

    stages: dict[str, Callable[[], None]] = {
        "key": key,
        "claim": claim,
        "turn": turn,
        "breaker": breaker,
        "metrics": metrics,
    }
    return stages[name]


def async_call(file: str) -> Callable[[int], Awaitable[None]]:
    """The same in asyncio."""
    gateway = antiphon.AsyncGateway(store=MemoryStore())
    params = _params(file)

    @gateway.tool(idempotent=True)
    async def send(params: dict[str, Any], n: int) -> int:
        return n

    async def run(n: int) -> None:
        session = gateway.session("bench", actor="bench")
        done = 0
        while done < n:
            with session.turn():
                for _ in range(min(_TURN, n - done)):
                    await send(params, next(_serial))
            done += _TURN

    return run


def bare(file: str) -> Callable[[int], None]:
    """The function itself."""
    params = _params(file)

    def send(params: dict[str, Any], n: int) -> int:
        return n

    def run(n: int) -> None:
        for _ in range(n):
            send(params, next(_serial))

    return run


def switched_off(file: str) -> Callable[[int], None]:
    """The decorated function with the kill switch off."""
    gateway = antiphon.Gateway(store=MemoryStore(), config={"gateway": {"enabled": False}})
    params = _params(file)

    @gateway.tool(idempotent=True)
    def send(params: dict[str, Any], n: int) -> int:
        return n

    def run(n: int) -> None:
        for _ in range(n):
            send(params, next(_serial))

    return run


def reused(file: str, keys: int = 100) -> Callable[[], Any]:
    """A duplicate answered from the record, with that many keys in the store."""
    gateway = antiphon.Gateway(store=MemoryStore())
    params = _params(file)

    @gateway.tool(idempotent=True, reuse="session")
    def send(params: dict[str, Any], n: int) -> dict[str, bool]:
        return {"ok": True}

    for number in range(keys):
        send(params, number)
    return lambda: send(params, 0)


def refused(file: str) -> Callable[[], Any]:
    """An open breaker answers."""
    gateway = antiphon.Gateway(store=MemoryStore())
    params = _params(file)

    @gateway.tool(idempotent=True)
    def send(params: dict[str, Any], n: int) -> int:
        raise ConnectionRefusedError("down")

    def call() -> None:
        try:
            send(params, next(_serial))
        except antiphon.AntiphonError:
            return
        except ConnectionRefusedError:
            return

    for _ in range(20):
        call()
    return call


def sqlite_call(file: str, synchronous: str) -> Iterator[Callable[[], Any]]:
    """A guarded call whose claim is durable."""
    with tempfile.TemporaryDirectory() as folder:
        gateway = antiphon.Gateway(store=SQLiteStore(Path(folder) / "bench.db", synchronous))
        params = _params(file)

        @gateway.tool(idempotent=False)
        def send(params: dict[str, Any], n: int) -> dict[str, Any]:
            return {"sent": True, "id": "m-1"}

        yield lambda: send(params, next(_serial))
        gateway.close()


def outage(calls: int = 2000) -> Callable[[int], dict[str, float]]:
    """Attempts per call while a dependency is down, with the default retry budget and no breaker."""
    clock = _Clock()
    gateway = antiphon.Gateway(
        store=MemoryStore(), config={"breaker": {"consecutive": 10**6, "rate": 1.0, "min_calls": 10**6}}, clock=clock
    )
    attempts = 0

    @gateway.tool(idempotent=True)
    def send(n: int) -> int:
        nonlocal attempts
        attempts += 1
        raise ConnectionResetError("down")

    def run(n: int) -> dict[str, float]:
        nonlocal attempts
        attempts = 0
        for _ in range(calls):
            clock.now += 0.02
            try:
                send(next(_serial))
            except Exception:
                continue
        return {"attempts": attempts / calls}

    return run


class _Clock(Clock):
    """Fifty calls per second in virtual time."""

    def __init__(self) -> None:
        super().__init__(seed=1)
        self.now = 1000.0

    def monotonic(self) -> float:  # type: ignore[override]
        return self.now

    def now_ms(self) -> int:
        return int(self.now * 1000)

    async def sleep(self, seconds: float) -> None:
        self.now += seconds


async def async_refused(file: str) -> AsyncIterator[Callable[[], Awaitable[None]]]:
    """An open breaker answers in asyncio."""
    gateway = antiphon.AsyncGateway(store=MemoryStore())
    params = _params(file)

    @gateway.tool(idempotent=True)
    async def send(params: dict[str, Any], n: int) -> int:
        raise ConnectionRefusedError("down")

    async def call() -> None:
        try:
            await send(params, next(_serial))
        except (antiphon.AntiphonError, ConnectionRefusedError):
            return

    for _ in range(20):
        await call()
    yield call
