"""A store that tells what it was asked for, and whose steps fail or freeze on order; and both faces of a gateway."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

from antiphon._gateway.gateway import AsyncGateway, Gateway
from antiphon._gateway.plan import Dependencies
from antiphon._gateway.settings import Settings
from antiphon.errors import StoreUnavailable
from antiphon.stores import MemoryStore
from tests.unit.gateway.kit import envelope

PATIENCE_S = 20.0
NO_REFRESH_MS = 3_600_000
"""Tests say when it is time to look for news."""


class Steps(list[str]):
    """What a store was asked for; one can wait for it."""

    def __init__(self) -> None:
        super().__init__()
        self.times: list[float] = []
        self._more = threading.Condition()

    def append(self, step: str) -> None:
        with self._more:
            super().append(step)
            self.times.append(time.monotonic())
            self._more.notify_all()

    def until(self, step: str, times: int = 1) -> None:
        """Until the store was asked for *step* so often."""
        with self._more:
            assert self._more.wait_for(lambda: self.count(step) >= times, PATIENCE_S), list(self)

    def until_met(self, met: Callable[[], bool]) -> None:
        """Until something is so, which follows a step."""
        deadline = time.monotonic() + PATIENCE_S
        while not met():
            seen = len(self)
            with self._more:
                self._more.wait_for(lambda seen=seen: len(self) > seen, 0.02)  # type: ignore[misc]
            assert time.monotonic() < deadline, list(self)


class Heard:
    """A store of this process that passes for one that others share."""

    in_process = False

    def __init__(self, url: str = "memory://heard") -> None:
        self.url = url
        self.inner = MemoryStore()
        self.steps = Steps()
        self.broken: dict[str, Exception] = {}
        self.frozen: dict[str, threading.Event] = {}
        self.listeners: list[Any] = []
        """Who wants to be told of breakers, if the store pushes."""
        self.pushes = False
        self.on_open: Callable[[], None] | None = None
        """What happens while it is opened the next time."""

    def fail(self, *steps: str) -> None:
        for step in steps:
            self.broken[step] = StoreUnavailable("The store is gone. Nothing was changed.")

    def freeze(self, *steps: str) -> None:
        for step in steps:
            self.frozen[step] = threading.Event()

    def thaw(self) -> None:
        frozen, self.frozen = self.frozen, {}
        for event in frozen.values():
            event.set()

    def repair(self) -> None:
        self.broken.clear()
        self.thaw()

    def _opened(self) -> None:
        self.steps.append("open")
        on_open, self.on_open = self.on_open, None
        if on_open is not None:
            on_open()

    def open_sync(self) -> Any:
        self._opened()
        return _Journal(self, self.inner.open_sync())

    def open_async(self) -> Any:
        self._opened()
        return _AsyncJournal(self, self.inner.open_async())

    @property
    def states(self) -> list[str]:
        return [record.state for record in self.inner.open_sync().list(tenant="default")]


class _Journal:
    durable = True

    def __init__(self, store: Heard, inner: Any) -> None:
        self._store = store
        self._inner = inner

    def subscribe_breakers(self, tenant: str, callback: Any) -> Callable[[], None] | None:
        self._store.steps.append("subscribe")
        if not self._store.pushes:
            return None
        self._store.listeners.append(callback)
        return lambda: self._store.listeners.remove(callback)

    def __getattr__(self, name: str) -> Any:
        store, step = self._store, getattr(self._inner, name)

        def run(*args: Any, **kwargs: Any) -> Any:
            store.steps.append(name)
            if name in store.frozen:
                assert store.frozen[name].wait(PATIENCE_S)
            if name in store.broken:
                raise store.broken[name]
            return step(*args, **kwargs)

        return run


class _AsyncJournal(_Journal):
    def __getattr__(self, name: str) -> Any:
        store, step = self._store, getattr(self._inner, name)

        async def run(*args: Any, **kwargs: Any) -> Any:
            store.steps.append(name)
            if name in store.frozen:
                assert await asyncio.to_thread(store.frozen[name].wait, PATIENCE_S)
            if name in store.broken:
                raise store.broken[name]
            return await step(*args, **kwargs)

        return run


class Face:
    """A gateway whose calls a test makes from its own thread, whichever face it has."""

    def __init__(self, kind: str, store: Any, **parts: Any) -> None:
        self.store = store
        calm = {"settings": Settings(refresh_ms=NO_REFRESH_MS)}
        dependencies = Dependencies(store=store, **(calm | parts))
        self.gateway: Any = (Gateway if kind == "sync" else AsyncGateway)(dependencies)
        self._loop = asyncio.new_event_loop() if kind == "async" else None
        self.made: list[str] = []

    def _done(self, result: Any) -> Any:
        return result if self._loop is None else self._loop.run_until_complete(result)

    def tool(self, name: str = "send", answer: Any = "sent", **spec: Any) -> None:
        """A tool whose calls are counted; *answer*: what it returns, or raises."""

        def send(to: str = "ada") -> Any:
            self.made.append(to)
            if isinstance(answer, Exception):
                raise answer
            return answer

        async def send_async(to: str = "ada") -> Any:
            return send(to)

        self.gateway.tool(name, **{"idempotent": False, **spec})(send if self._loop is None else send_async)

    def execute(self, within_s: float | None = None, *, refresh: bool = False, **changes: Any) -> Any:
        if refresh:  # it is time to look for news
            self.gateway._plans.next_refresh = 0.0
        if within_s is not None:
            changes["deadline_at_ms"] = int((time.time() + within_s) * 1000)
        return self._done(self.gateway.execute(envelope(**changes)))

    def until(self, met: Callable[[], bool]) -> None:
        """Until something is so, while the tasks of the event loop go on."""

        def looked() -> bool:
            if self._loop is not None:
                self._loop.run_until_complete(asyncio.sleep(0.01))
            return met()

        self.store.steps.until_met(looked)

    def close(self) -> None:
        self._done(self.gateway.close())

    @property
    def world(self) -> Any:
        return self.gateway._runtime if self._loop is None else self.gateway._last_runtime

    @property
    def leases(self) -> Any:
        return self.gateway._plans.leases

    def breaker(self, name: str = "send") -> Any:
        return self.gateway._plans.breakers.get(f"tool/tools/{name}")
