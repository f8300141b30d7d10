"""Guarded calls of a gateway. Public names only: the same cases measure the working tree and release 0.1.0."""

from __future__ import annotations

import itertools
import json
import logging
import os
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import antiphon
from antiphon.ports import Clock
from antiphon.stores import MemoryStore, SQLiteStore

_serial = itertools.count(1)
_TURN = 200
"""Calls per turn: what turn control remembers must not grow without end."""
_ANSWER = {"sent": True, "id": "m-1"}
_BREAKER = {"consecutive": 5, "cooldown_ms": 3_600_000}
"""A breaker that stays open while it is measured."""
os.environ["ANTIPHON_HOME"] = str(Path(tempfile.gettempdir()) / "home")


def _params(file: str) -> dict[str, Any]:
    read: dict[str, Any] = json.loads(Path(file).read_bytes())
    return read


class _Listener:
    """Wants every event and does nothing with it."""

    def emit(self, event: str, fields: Mapping[str, Any]) -> None:
        return


class _Setup:
    """Store, logs, metrics and listener of a case."""

    def __init__(
        self,
        store: str,
        synchronous: str = "FULL",
        logs: bool = False,
        prometheus: bool = False,
        listener: bool = False,
    ) -> None:
        self.store, self.synchronous, self.logs, self.listener = store, synchronous, logs, listener
        self.config = {"telemetry": {"prometheus": prometheus}}
        if logs:  # one INFO line per call, written to a stream
            handler = logging.StreamHandler(Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115
            handler.setFormatter(logging.Formatter("%(message)s"))
            logger = logging.getLogger("antiphon")
            logger.addHandler(handler)
            logger.setLevel(logging.INFO)

    def open(self) -> MemoryStore | SQLiteStore:
        """A new store."""
        if self.store == "memory":
            return MemoryStore()
        return SQLiteStore(Path(tempfile.mkdtemp()) / "bench.db", self.synchronous)

    def listen(self, gateway: Any) -> Any:
        """The gateway, with the listener if the case has one."""
        if self.listener:
            gateway.listen(_Listener())
        return gateway


@contextmanager
def _lines(expected: int) -> Iterator[None]:
    """Make sure that so many INFO lines are written."""
    seen: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = lambda record: seen.append(record) if record.levelno == logging.INFO else None
    logging.getLogger("antiphon").addHandler(handler)
    yield
    logging.getLogger("antiphon").removeHandler(handler)
    assert len(seen) == expected, f"{len(seen)} INFO lines, not {expected}"


# -- a decorated call with a new intent each time: key, claim, loop guard, retry, breaker and metrics on ---------


def memory_call(file: str, **options: Any) -> Callable[[int], None]:
    """In turns of a session, on a new memory store for each sample."""
    setup, params = _Setup("memory", **options), _params(file)
    made: list[Any] = []

    def prepare() -> None:
        gateway = setup.listen(antiphon.Gateway(store=setup.open(), config=setup.config))

        @gateway.tool(idempotent=True)
        def send(params: dict[str, Any], n: int) -> int:
            return n

        made[:] = (gateway, send)
        run(2)  # the first calls prepare what the others share

    def run(n: int) -> None:
        gateway, send = made
        session = gateway.session("bench", actor="bench")
        for done in range(0, n, _TURN):
            with session.turn():
                for _ in range(min(_TURN, n - done)):
                    send(params, next(_serial))

    prepare()
    with _lines(2 if setup.logs else 0):
        run(2)
    run.prepare = prepare  # type: ignore[attr-defined]
    return run


async def async_memory_call(file: str, **options: Any) -> Callable[[int], Awaitable[None]]:
    """The same in asyncio."""
    setup, params = _Setup("memory", **options), _params(file)
    made: list[Any] = []

    def prepare() -> None:
        gateway = setup.listen(antiphon.AsyncGateway(store=setup.open(), config=setup.config))

        @gateway.tool(idempotent=True)
        async def send(params: dict[str, Any], n: int) -> int:
            return n

        made[:] = (gateway, send)

    async def run(n: int) -> None:
        gateway, send = made
        session = gateway.session("bench", actor="bench")
        for done in range(0, n, _TURN):
            with session.turn():
                for _ in range(min(_TURN, n - done)):
                    await send(params, next(_serial))

    prepare()
    with _lines(2 if setup.logs else 0):
        await run(2)
    run.prepare = prepare  # type: ignore[attr-defined]
    return run


def sqlite_call(file: str, idempotent: bool = False, **options: Any) -> Iterator[Callable[[int], None]]:
    """With a durable claim."""
    setup, params = _Setup("sqlite", **options), _params(file)
    gateway = setup.listen(antiphon.Gateway(store=setup.open(), config=setup.config))

    @gateway.tool(idempotent=idempotent)
    def send(params: dict[str, Any], n: int) -> dict[str, Any]:
        return _ANSWER

    def run(n: int) -> None:
        for _ in range(n):
            send(params, next(_serial))

    with _lines(2 if setup.logs else 0):
        run(2)
    yield run
    gateway.close()


async def async_sqlite_call(file: str, **options: Any) -> AsyncIterator[Callable[[int], Awaitable[None]]]:
    """The same in asyncio."""
    setup, params = _Setup("sqlite", **options), _params(file)
    gateway = setup.listen(antiphon.AsyncGateway(store=setup.open(), config=setup.config))

    @gateway.tool(idempotent=False)
    async def send(params: dict[str, Any], n: int) -> dict[str, Any]:
        return _ANSWER

    async def run(n: int) -> None:
        for _ in range(n):
            await send(params, next(_serial))

    with _lines(2 if setup.logs else 0):
        await run(2)
    yield run
    await gateway.close()


# -- the same inside a run: start and outcome of each call are in its log ----------------------------------------


def recorded_call(file: str, store: str, batch: int, idempotent: bool = False, **options: Any) -> Callable[[int], None]:
    """Runs of *batch* calls; a memory store is new with each sample."""
    setup, params = _Setup(store, **options), _params(file)
    made: list[Any] = []

    def prepare() -> None:
        app = antiphon.Antiphon(setup.config, store=setup.open())

        @setup.listen(app.gateway).tool(idempotent=idempotent)
        def send(params: dict[str, Any], n: int) -> dict[str, Any]:
            return _ANSWER

        made[:] = (app, send)
        run(2)

    def run(n: int) -> None:
        app, send = made
        for done in range(0, n, batch):
            with app.run("bench"):
                for _ in range(min(batch, n - done)):
                    send(params, next(_serial))

    prepare()
    with _lines(2 if setup.logs else 0):
        run(2)
    if store == "memory":
        run.prepare = prepare  # type: ignore[attr-defined]
    return run


async def async_recorded_call(file: str, store: str, batch: int, **options: Any) -> Callable[[int], Awaitable[None]]:
    """The same in asyncio."""
    setup, params = _Setup(store, **options), _params(file)
    made: list[Any] = []

    def prepare() -> None:
        app = antiphon.Antiphon(setup.config, store=setup.open())

        @setup.listen(app.async_gateway).tool(idempotent=False)
        async def send(params: dict[str, Any], n: int) -> dict[str, Any]:
            return _ANSWER

        made[:] = (app, send)

    async def run(n: int) -> None:
        app, send = made
        for done in range(0, n, batch):
            async with app.run("bench"):
                for _ in range(min(batch, n - done)):
                    await send(params, next(_serial))

    prepare()
    with _lines(2 if setup.logs else 0):
        await run(2)
    if store == "memory":
        run.prepare = prepare  # type: ignore[attr-defined]
    return run


def log_line(line: str) -> Callable[[], None]:
    """What ``logging`` alone costs: a line that is there already, through the same handler."""
    _Setup("memory", logs=True)
    logger = logging.getLogger("antiphon")
    return lambda: logger.handle(logger.makeRecord("antiphon", logging.INFO, __file__, 0, line, (), None, "emit"))


# -- calls that are not dispatched, or not guarded ---------------------------------------------------------------


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


async def async_reused(file: str, keys: int = 100) -> Callable[[], Awaitable[Any]]:
    """The same in asyncio."""
    gateway = antiphon.AsyncGateway(store=MemoryStore())
    params = _params(file)

    @gateway.tool(idempotent=True, reuse="session")
    async def send(params: dict[str, Any], n: int) -> dict[str, bool]:
        return {"ok": True}

    async def call() -> None:
        await send(params, 0)

    for number in range(keys):
        await send(params, number)
    return call


def refused(file: str) -> Callable[[], Any]:
    """An open breaker answers."""
    gateway = antiphon.Gateway(store=MemoryStore(), config={"breaker": _BREAKER})
    params = _params(file)
    dispatched = 0

    @gateway.tool(idempotent=True)
    def send(params: dict[str, Any], n: int) -> int:
        nonlocal dispatched
        dispatched += 1
        raise ConnectionRefusedError("down")

    def call() -> None:
        try:
            send(params, next(_serial))
        except (antiphon.AntiphonError, ConnectionRefusedError):
            return

    for _ in range(20):
        call()
    assert dispatched == _BREAKER["consecutive"], dispatched
    return call


async def async_refused(file: str) -> Callable[[], Awaitable[None]]:
    """The same in asyncio."""
    gateway = antiphon.AsyncGateway(store=MemoryStore(), config={"breaker": _BREAKER})
    params = _params(file)
    dispatched = 0

    @gateway.tool(idempotent=True)
    async def send(params: dict[str, Any], n: int) -> int:
        nonlocal dispatched
        dispatched += 1
        raise ConnectionRefusedError("down")

    async def call() -> None:
        try:
            await send(params, next(_serial))
        except (antiphon.AntiphonError, ConnectionRefusedError):
            return

    for _ in range(20):
        await call()
    assert dispatched == _BREAKER["consecutive"], dispatched
    return call


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

    def sleep(self, seconds: float) -> Any:
        self.now += seconds
        return _Slept()


class _Slept:
    """Release 0.1.0 awaits the pause."""

    def __await__(self) -> Iterator[None]:
        return iter(())
