"""Off or in shadow mode a call is what it would be without the gateway, whatever it is given, however the store is."""

from __future__ import annotations

import asyncio
import sqlite3
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from antiphon._gateway.gateway import AsyncGateway, Gateway
from antiphon._gateway.hooks import HookCall
from antiphon._gateway.plan import Dependencies
from antiphon._gateway.report import Reporter
from antiphon._gateway.settings import Settings
from antiphon.ports import Clock
from antiphon.stores import MemoryStore, SQLiteStore
from tests.ticks import Ticks
from tests.unit.gateway.kit import Ears, eventually

MODES = {"off": {"enabled": False}, "shadow": {"shadow": True}}


class Hangs:
    """A store of another process that does not answer until it is told to."""

    url = "hangs://"
    in_process = False

    def __init__(self) -> None:
        self.inner = MemoryStore()
        self.answers = threading.Event()

    def open_sync(self) -> Any:
        return _Hangs(self)

    open_async = open_sync  # in shadow mode nobody waits for it


class _Hangs:
    durable = True

    def __init__(self, store: Hangs) -> None:
        self._store = store
        self._journal = store.inner.open_sync()

    def __getattr__(self, name: str) -> Any:
        def step(*args: Any, **more: Any) -> Any:
            self._store.answers.wait()
            return getattr(self._journal, name)(*args, **more)

        return step

    def close(self) -> None:
        pass


class Face:
    """One of the two gateways, called the same way."""

    def __init__(self, kind: str, store: Any, **settings: Any) -> None:
        self.ears = Ears()
        self.store = store
        parts = Dependencies(
            store=store, clock=Clock(), settings=Settings(**settings), reporter=Reporter(None, (self.ears,))
        )
        self.sync = kind == "threads"
        self.gateway: Any = Gateway(parts) if self.sync else AsyncGateway(parts)

    def tool(self, function: Callable[..., Any], **spec: Any) -> Callable[..., Any]:
        if self.sync:
            return self.gateway.tool("work", **{"idempotent": False, **spec})(function)  # type: ignore[no-any-return]

        async def work(*args: Any, **more: Any) -> Any:
            return function(*args, **more)

        work.__wrapped__ = function  # type: ignore[attr-defined]
        guarded = self.gateway.tool("work", **{"idempotent": False, **spec})(work)
        return lambda *args, **more: asyncio.run(guarded(*args, **more))

    def verdicts(self, expected: int) -> list[str]:
        """What was said of the calls, as soon as it was said of so many."""
        eventually(lambda: len(self.ears.of("tool_call_shadow")) >= expected, "nothing was said")
        return [fields["wouldHave"] for fields in self.ears.of("tool_call_shadow")]


@pytest.fixture(params=["threads", "loop"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=list(MODES))
def mode(request: pytest.FixtureRequest) -> dict[str, Any]:
    return MODES[request.param]


@pytest.fixture
def hanging() -> Iterator[Hangs]:
    store = Hangs()
    yield store
    store.answers.set()


def test_nobody_waits_for_a_store_that_hangs(kind: str, mode: dict[str, Any], hanging: Hangs) -> None:
    face = Face(kind, hanging, **mode)
    work = face.tool(lambda n: n + 1)
    assert [work(n) for n in range(50)] == list(range(1, 51))
    hanging.answers.set()
    assert face.verdicts(50 if mode == MODES["shadow"] else 0) == ["run"] * (50 if mode == MODES["shadow"] else 0)


def test_a_call_takes_at_most_a_millisecond_more(mode: dict[str, Any], hanging: Hangs) -> None:
    gateway: Gateway = Face("threads", hanging, **mode).gateway

    @gateway.tool(idempotent=False)
    def work(n: int) -> int:
        return n

    took = []
    for n in range(300):
        began = time.perf_counter()
        work(n)
        took.append(time.perf_counter() - began)
    assert statistics.median(took) < 0.001


async def test_a_call_of_an_event_loop_takes_at_most_a_millisecond_more(mode: dict[str, Any], hanging: Hangs) -> None:
    gateway: AsyncGateway = Face("loop", hanging, **mode).gateway

    @gateway.tool(idempotent=False)
    async def work(n: int) -> int:
        return n

    took = []
    for n in range(300):
        began = time.perf_counter()
        await work(n)
        took.append(time.perf_counter() - began)
    assert statistics.median(took) < 0.001


def test_more_calls_than_can_wait_are_only_called(kind: str, hanging: Hangs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("antiphon._gateway.watcher._MOST_WAITING", 10)
    face = Face(kind, hanging, shadow=True)
    work = face.tool(lambda n: n)
    assert [work(n) for n in range(30)] == list(range(30))
    assert "store_unavailable" in face.verdicts(10)
    hanging.answers.set()
    assert len(face.verdicts(30)) >= 30


def test_nor_for_a_locked_file(kind: str, mode: dict[str, Any], tmp_path: Path, ticks: Ticks) -> None:
    path = tmp_path / "store.db"
    SQLiteStore(path).open_sync().close()
    lock = sqlite3.connect(path, isolation_level=None)
    lock.execute("BEGIN EXCLUSIVE")
    work = Face(kind, SQLiteStore(path), **mode).tool(lambda n: n)
    began = time.monotonic()
    assert [work(n) for n in range(20)] == list(range(20))
    assert ticks.since(began) < 4.0  # one wait for the lock takes five seconds
    lock.execute("ROLLBACK")
    lock.close()


class Odd:
    """Has no canonical form, and does not like to be looked at."""

    def __repr__(self) -> str:
        raise RuntimeError("do not look")

    __str__ = __repr__
    __eq__ = __hash__ = None  # type: ignore[assignment]


def _endless() -> list[Any]:
    inside: list[Any] = []
    inside.append(inside)
    return inside


ARGUMENTS: dict[str, Callable[[], Any]] = {
    "object": object,
    "odd": Odd,
    "generator": lambda: (n for n in (1, 2, 3)),
    "lock": threading.Lock,
    "lone surrogate": lambda: "\ud800",
    "NaN": lambda: float("nan"),
    "itself inside": _endless,
    "keys of two types": lambda: {1: "one", "1": "two"},
    "function": lambda: test_nor_for_a_locked_file,
    "large integer": lambda: 10**5000,
}


@pytest.mark.parametrize("make", ARGUMENTS.values(), ids=ARGUMENTS)
def test_any_argument_reaches_the_function_as_it_is(make: Callable[[], Any], kind: str, mode: dict[str, Any]) -> None:
    face = Face(kind, MemoryStore(), **mode)
    got: list[Any] = []
    argument = make()

    def echo(value: Any) -> Any:
        got.append(value)
        return value

    work = face.tool(echo)
    assert work(argument) is argument
    assert len(got) == 1
    assert got[0] is argument
    if make is ARGUMENTS["generator"]:
        assert list(argument) == [1, 2, 3]


@pytest.mark.parametrize(
    "key", [lambda **_: None, lambda **_: 1 / 0, lambda **_: object()], ids=["none", "raises", "no"]
)
def test_a_key_that_cannot_be_made_keeps_no_call_from_its_function(key: Any, kind: str, mode: dict[str, Any]) -> None:
    face = Face(kind, MemoryStore(), **mode)
    assert face.tool(lambda order: f"sent {order}", key=key)("o1") == "sent o1"
    answer = face.gateway.session("s").turn().call("work", {"order": "o2"})
    answer = answer if face.sync else asyncio.run(_awaited(answer))
    assert answer.content == "sent o2"
    if mode == MODES["shadow"]:
        assert face.verdicts(2) == ["validation_error"] * 2


async def _awaited(answer: Any) -> Any:
    return await answer


def test_a_result_is_given_as_it_is(mode: dict[str, Any], kind: str) -> None:
    face = Face(kind, MemoryStore(), **mode)

    async def later() -> int:
        return 7

    for value in (object(), Odd(), later, {1: {2}}, threading.Lock()):
        assert face.tool(lambda: value)() is value  # noqa: B023
    if face.sync:  # a coroutine that the caller awaits himself
        assert asyncio.run(face.tool(lambda: later())()) == 7


def test_exceptions_are_the_functions_own(mode: dict[str, Any], kind: str) -> None:
    face = Face(kind, MemoryStore(), **mode)
    for error in (ValueError("mine"), TimeoutError(), ConnectionResetError(), KeyError(1), StopIteration("no")):
        if isinstance(error, StopIteration) and not face.sync:
            continue  # no coroutine can raise it

        def work() -> None:
            raise error  # noqa: B023

        with pytest.raises(type(error)) as caught:
            face.tool(work)()
        assert caught.value is error
        assert not hasattr(error, "__notes__")
        assert (error.__cause__, error.__context__) == (None, None)


def test_arguments_that_do_not_fit_raise_what_python_raises(mode: dict[str, Any]) -> None:
    face = Face("threads", MemoryStore(), **mode)

    def work(a: int, /, b: int = 2, *rest: int, c: int = 3, **more: int) -> Any:
        return a, b, rest, c, more

    guarded = face.gateway.tool(idempotent=True)(work)
    assert guarded(1, 2, 3, 4, c=5, d=6) == work(1, 2, 3, 4, c=5, d=6)
    for args, more in (((), {}), ((), {"a": 1})):
        with pytest.raises(TypeError):
            guarded(*args, **more)


def test_effects_come_in_the_order_of_the_calls(mode: dict[str, Any], kind: str, hanging: Hangs) -> None:
    face = Face(kind, hanging, **mode)
    seen: list[int] = []
    work = face.tool(lambda n: seen.append(n))
    for n in (3, 1, 2, 1, 1):
        work(n)
    assert seen == [3, 1, 2, 1, 1]


def test_a_hook_that_raises_does_what_it_does_otherwise(mode: dict[str, Any], kind: str) -> None:
    """A before-hook is a rule of the user's own, not one of the layer: it denies in every mode."""
    face = Face(kind, MemoryStore(), **mode)
    calls: list[int] = []

    def deny(call: HookCall) -> None:
        if call.params["n"] == 13:
            raise PermissionError("not thirteen")

    def fails(call: HookCall, outcome: Any) -> None:
        raise RuntimeError("an after-hook that fails")

    face.gateway.before(deny)
    face.gateway.after(fails)

    def echo(n: int) -> int:
        calls.append(n)
        return n

    work = face.tool(echo)
    assert work(1) == 1
    with pytest.raises(PermissionError):
        work(13)
    assert calls == [1]


def test_a_duplicate_in_a_turn_is_said_to_be_denied(kind: str) -> None:
    face = Face(kind, MemoryStore(), shadow=True)
    face.tool(lambda to: to, idempotent=True)
    turn = face.gateway.session("s").turn()
    for call_id in ("c1", "c2"):
        answer = turn.call("work", {"to": "ada"}, call_id)
        answer = answer if face.sync else asyncio.run(_awaited(answer))
        assert answer.content == "ada"
    assert face.verdicts(2) == ["run", "denied"]


def test_a_store_that_comes_back_is_asked_again(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """While its breaker is open, calls are only made; what it said before is not lost."""
    face = Face(kind, MemoryStore(), shadow=True)
    work = face.tool(lambda n: n, idempotent=True, reuse="session")
    breaker = face.gateway._plans.store_breaker
    monkeypatch.setattr(breaker, "probe", lambda *_: 60.0)
    breaker.is_open = True
    assert work(1) == 1
    assert face.verdicts(1) == ["store_unavailable"]
    breaker.is_open = False
    assert (work(1), work(1)) == (1, 1)
    assert face.verdicts(3) == ["store_unavailable", "run", "reuse"]


def test_an_interrupt_in_the_function_passes_and_leaves_no_claim(kind: str) -> None:
    face = Face(kind, MemoryStore(), shadow=True)

    def work() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        face.tool(work)()
    assert face.verdicts(1) == ["run"]
    assert not face.gateway._plans.leases._held
