"""Threads and events that an interrupt cannot leave half made.

A signal handler may raise at any call that the main thread makes. Inside :class:`threading.Event` or
:meth:`threading.Thread.start` that can leave a lock held, or a thread that never starts, and the next caller blocks
forever. A :class:`queue.SimpleQueue` has no such moment.

The garbage collector interrupts a thread in the same way: it runs finalizers wherever an object is allocated, even
while a lock is held. A finalizer that needs a lock of its own hands its work to another thread
(:func:`outside_collection`).
"""

from __future__ import annotations

import atexit
import gc
import logging
import os
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any, TypeVar, cast

log = logging.getLogger("antiphon")


T = TypeVar("T")
_renewals: weakref.WeakKeyDictionary[Any, Callable[[Any], object]] = weakref.WeakKeyDictionary()


def renewed_after_fork(thing: T, renew: Callable[[T], object]) -> None:
    """Have *renew* called with *thing* in each forked child: neither threads nor locks survive a fork."""
    _renewals[thing] = renew


def _after_fork() -> None:
    for thing, renew in list(_renewals.items()):
        renew(thing)


os.register_at_fork(after_in_child=_after_fork)


class Signal:
    """An event for one waiting thread; waking the thread resets it."""

    __slots__ = ("_queue",)

    def __init__(self) -> None:
        self._queue: SimpleQueue[None] = SimpleQueue()

    def set(self) -> None:
        self._queue.put(None)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Block this thread; return whether it was woken."""
        try:
            self._queue.get(timeout=timeout_s)
        except Empty:
            return False
        self.clear()
        return True

    def clear(self) -> None:
        with suppress(Empty):
            while True:
                self._queue.get_nowait()


class Latch:
    """An event that is set once and stays set for every waiter."""

    __slots__ = ("_is_set", "_queue")

    def __init__(self) -> None:
        self._is_set = False
        self._queue: SimpleQueue[None] = SimpleQueue()

    def set(self) -> None:
        self._is_set = True
        self._queue.put(None)

    def is_set(self) -> bool:
        return self._is_set

    def wait(self, timeout_s: float | None = None) -> bool:
        """Block this thread; return whether it is set."""
        if not self._is_set:
            with suppress(Empty):
                self._queue.get(timeout=timeout_s)
                self._queue.put(None)  # for the next waiter
        return self._is_set


class Daemon:
    """A background thread, at most one at a time: started when there is work, ends by itself.

    The thread registers itself, so an interrupted start does not prevent the next one.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self.thread: threading.Thread | None = None
        renewed_after_fork(self, Daemon._after_fork)

    def start(self, work: Callable[[], object]) -> None:
        """Start the thread unless it is running. Call this after queuing its work."""
        if self.thread is None:
            threading.Thread(target=self._run, args=(work,), name=self._name, daemon=True).start()

    def leave_if(self, idle: Callable[[], bool]) -> bool:
        """Called by the work before it ends: whether nothing is left to do. Later work starts another thread."""
        with self._lock:
            if idle():
                self.thread = None
                if idle():  # check again: work queued in the meantime may have seen this thread and started none
                    return True
                self.thread = threading.current_thread()
            return False

    def _run(self, work: Callable[[], object]) -> None:
        with self._lock:
            if self.thread is not None:
                return
            self.thread = threading.current_thread()
        try:
            work()
        finally:
            with self._lock:
                if self.thread is threading.current_thread():
                    self.thread = None

    def _after_fork(self) -> None:
        self._lock = threading.Lock()
        self.thread = None


_phases: OrderedDict[str, None] = OrderedDict(start=None, stop=None)
"""The phases of the garbage collector, the latest one last."""
_left: SimpleQueue[Callable[[], object]] = SimpleQueue()
_finisher = Daemon("antiphon-finish")


def expect_collection() -> None:
    """Start the thread that runs deferred finalizer work: a collection may happen where no thread can be started."""
    _finisher.start(_finish_all)


def outside_collection(work: Callable[[], object]) -> None:
    """Run a finalizer's *work*: at once, or on another thread while the garbage collector runs."""
    if list(_phases)[-1] == "start":  # read in one step: a collection may start at any moment
        _left.put(work)
    else:
        work()


def _finish_all() -> None:
    while True:
        _finish(_left.get())


def _finish_left() -> None:
    with suppress(Empty):
        while True:
            _finish(_left.get_nowait())


def _finish(work: Callable[[], object]) -> None:
    try:
        work()
    except Exception:
        log.exception("a finalizer failed")


# Called as move_to_end(phase, info). Not a Python function, because an interrupt that arrives inside one is lost.
gc.callbacks.append(cast(Any, _phases.move_to_end))
atexit.register(_finish_left)
