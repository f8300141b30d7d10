"""Synchronous tools with a time limit: they run on their own thread and cannot be stopped (R8)."""

from __future__ import annotations

import gc
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from antiphon._daemon import Latch, renewed_after_fork

Late = Callable[[Any, BaseException | None], None]


class TimedOut(Exception):
    """An attempt exceeded its time limit."""

    def __init__(self, seconds: float, *, still_running: bool = False) -> None:
        super().__init__(f"no result within {seconds:g} s")
        self.seconds = seconds
        self.still_running = still_running


class Abandoned(Exception):
    """Too many timed-out tools are still running."""

    code = "too_many_abandoned_threads"


class _Work:
    """One tool call on its thread; the later of waiter and worker sees that the other is gone."""

    __slots__ = ("done", "ended", "error", "gave_up", "late", "lock", "value")

    def __init__(self, late: Late | None) -> None:
        self.late = late
        self.lock = threading.Lock()
        self.done = False
        self.ended = Latch()
        self.value: Any = None
        self.error: BaseException | None = None
        self.gave_up = False


_gc_off = threading.RLock()
os.register_at_fork(before=_gc_off.acquire, after_in_parent=_gc_off.release, after_in_child=_gc_off.release)


@contextmanager
def without_gc() -> Iterator[None]:
    """No garbage collection inside; one thread at a time, so that none turns it on for another."""
    with _gc_off:
        enabled = gc.isenabled()
        gc.disable()
        try:
            yield
        finally:
            if enabled:
                gc.enable()


# A collection that starts while another thread's frame is read lets that thread continue: before Python 3.12 the
# interpreter then crashes or hangs (https://github.com/python/cpython/issues/106883).
@without_gc()
def is_waited_for(key: str) -> bool:
    """Whether a call with *key* waits, in another thread, for this one to end: waiting for it would never end.

    A plain thread does not know who started it, so this looks at who waits: in ``Thread.join``, or for the ``Future``
    of what a pool runs here.
    """
    frames = sys._current_frames()
    waited, seen = [threading.get_ident()], {threading.get_ident()}
    while waited:
        ident = waited.pop()
        work = _futures(frames.get(ident))
        for other, frame in frames.items():
            if other in seen or not _waits(frame, ident, work):
                continue
            if any(_key_of(one) == key for one in _stack(frame)):
                return True
            seen.add(other)
            waited.append(other)
    return False


def _stack(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _key_of(frame: FrameType) -> Any:
    if frame.f_globals.get("__name__") != "antiphon._gateway.drivers":
        return None  # only the drivers hold calls
    return getattr(frame.f_locals.get("call"), "key", None)


def _futures(frame: FrameType | None) -> list[Any]:
    """The futures that are waited for by those who wait for a result of this stack."""
    works = [one.f_locals.get("self") for one in _stack(frame) if _is(one, "concurrent.futures.thread", "run")]
    return [getattr(work, "future", None) for work in works]


def _waits(frame: FrameType, ident: int, futures: list[Any]) -> bool:
    for one in _stack(frame):
        if _is(one, "threading", "join"):
            return bool(one.f_locals["self"].ident == ident)
        if _is(one, "concurrent.futures._base", "result"):
            return any(one.f_locals["self"] is future for future in futures)
    return False


def _is(frame: FrameType, module: str, function: str) -> bool:
    return frame.f_code.co_name == function and frame.f_globals.get("__name__") == module


class ThreadRunner:
    """Starts tool threads, and counts those that were given up on while still running."""

    def __init__(self, cap: int) -> None:
        self.cap: int = cap
        self._reset()
        renewed_after_fork(self, ThreadRunner._reset)

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self.abandoned: int = 0

    def _start(self, work: Callable[[], Any], late: Late | None, notify: Callable[[], None]) -> _Work:
        if self.abandoned >= self.cap:
            raise Abandoned(
                f"{self.abandoned} tools that timed out are still running (limit {self.cap}). The call was not made."
            )
        job = _Work(late)

        def body() -> None:
            try:
                job.value = work()
            except BaseException as error:
                job.error = error
            with job.lock:
                job.done = True
                gave_up = job.gave_up
            job.ended.set()
            if gave_up:
                with self._lock:
                    self.abandoned -= 1
                if job.late is not None:
                    job.late(job.value, job.error)
            else:
                notify()

        threading.Thread(target=body, name="antiphon-tool", daemon=True).start()
        return job

    def _give_up(self, job: _Work) -> bool:
        with job.lock:
            if job.done:
                return False
            job.gave_up = True
        with self._lock:
            self.abandoned += 1
        return True

    @staticmethod
    def _result(job: _Work) -> Any:
        if job.error is not None:
            raise job.error
        return job.value

    def run(self, work: Callable[[], Any], limit: float | None, late: Late | None) -> Any:
        """Wait in this thread, at most *limit* seconds from the start of the work."""
        job = self._start(work, late, lambda: None)
        return self._wait(job, limit)

    def run_until(self, work: Callable[[], Any], limit: float) -> Any:
        """Wait in this thread, at most *limit* seconds from now: a busy machine starts a thread late."""
        until = time.monotonic() + limit
        job = self._start(work, None, lambda: None)
        return self._wait(job, max(0.0, until - time.monotonic()))

    def _wait(self, job: _Work, limit: float | None) -> Any:
        try:
            finished = job.ended.wait(limit)
        except BaseException:
            self._give_up(job)
            raise
        if not finished and self._give_up(job):
            raise TimedOut(limit or 0.0, still_running=True)
        return self._result(job)

    async def run_async(self, work: Callable[[], Any], limit: float | None, late: Late | None) -> Any:
        """Wait in the event loop, at most *limit* seconds."""
        import asyncio

        loop = asyncio.get_running_loop()
        ready = asyncio.Event()

        def notify() -> None:
            try:
                loop.call_soon_threadsafe(ready.set)
            except RuntimeError:  # the loop was closed in the meantime: nobody waits any more
                return

        job = self._start(work, late, notify)
        try:
            async with asyncio.timeout(limit):
                await ready.wait()
        except TimeoutError:
            if self._give_up(job):
                raise TimedOut(limit or 0.0, still_running=True) from None
        except BaseException:
            self._give_up(job)
            raise
        return self._result(job)
