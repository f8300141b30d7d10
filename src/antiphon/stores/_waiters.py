"""Waits for a key to change without polling: one waiter per caller, woken from any thread."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from antiphon._daemon import Latch
from antiphon.stores._common import fresh

if TYPE_CHECKING:
    import asyncio


class ThreadWaiter:
    """A thread that waits."""

    __slots__ = ("_woken",)

    def __init__(self) -> None:
        self._woken = Latch()

    def wake(self, error: Exception | None = None) -> None:
        self._woken.set()

    def block(self, timeout_s: float) -> bool:
        """Block this thread; return whether it was woken."""
        return self._woken.wait(max(0.0, timeout_s))

    async def wait(self, timeout_s: float) -> bool:
        """The same for steps that are written as coroutines."""
        return self.block(timeout_s)


class LoopWaiter:
    """A waiting task of one event loop. Cancelling it affects no other waiter."""

    __slots__ = ("_future", "_loop")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._future: asyncio.Future[bool] = loop.create_future()

    def wake(self, error: Exception | None = None) -> None:
        """May be called from another thread; with *error*, waiting fails."""
        with suppress(RuntimeError):  # the loop is closed: nobody waits there any more
            self._loop.call_soon_threadsafe(self._answer, True, error)

    async def wait(self, timeout_s: float) -> bool:
        """Suspend this task; return whether it was woken."""
        timer = self._loop.call_later(max(0.0, timeout_s), self._answer, False)
        try:
            return await self._future
        finally:
            timer.cancel()

    def _answer(self, woken: bool, error: Exception | None = None) -> None:
        if self._future.done():
            return
        if error is None:
            self._future.set_result(woken)
        else:
            self._future.set_exception(error)


Waiter = ThreadWaiter | LoopWaiter


class Watch:
    """The waiters of one version of one claim; ``due`` is when to read it without a notification."""

    __slots__ = ("due", "waiters")

    def __init__(self) -> None:
        self.waiters: set[Waiter] = set()
        self.due: float = 0.0


class Waiters:
    """All waiters by version and key. Guarded by the lock of its owner."""

    __slots__ = ("by_key",)

    def __init__(self) -> None:
        self.by_key: dict[str, dict[int, Watch]] = {}

    def __bool__(self) -> bool:
        return bool(self.by_key)

    def add(self, key: str, version: int, waiter: Waiter) -> Watch:
        watch = self.by_key.setdefault(key, {}).setdefault(version, Watch())
        watch.waiters.add(waiter)
        return watch

    def discard(self, key: str, version: int, waiter: Waiter) -> None:
        watches = self.by_key.get(key, {})
        watch = watches.get(version)
        if watch is not None:
            watch.waiters.discard(waiter)
            if not watch.waiters:
                self._pop(key, version)

    def wake(self, key: str, version: int | None = None, error: Exception | None = None) -> None:
        """Wake the waiters of *version*, or all of the key; with *error*, waiting fails."""
        versions = tuple(self.by_key.get(key, ())) if version is None else (version,)
        for watch in [self._pop(key, number) for number in versions]:
            for waiter in watch.waiters if watch else ():
                waiter.wake(None if error is None else fresh(error))

    def _pop(self, key: str, version: int) -> Watch | None:
        watches = self.by_key.get(key, {})
        watch = watches.pop(version, None)
        if not watches:
            self.by_key.pop(key, None)
        return watch


def loop_waiter() -> LoopWaiter:
    """A waiter for the running task."""
    import asyncio

    return LoopWaiter(asyncio.get_running_loop())


NewWaiter = Callable[[], Waiter]
"""How a journal waits: ``ThreadWaiter`` or ``loop_waiter``."""
