"""A thread for the store's part of shadow mode: nobody waits for it, so a store that hangs costs a call nothing."""

from __future__ import annotations

import atexit
import contextlib
import logging
import time
import weakref
from collections.abc import Callable, Iterator
from queue import Empty, SimpleQueue
from typing import Any

from antiphon._daemon import Daemon, renewed_after_fork
from antiphon._gateway.store_breaker import StoreBreaker
from antiphon._late import traceback_of

log = logging.getLogger("antiphon.gateway")

_MOST_WAITING = 1000
"""Calls that may wait to be shadowed; further ones are only called."""
_IDLE_S = 5.0
_LAST_WORDS_S = 1.0


class ShadowWorker:
    """Performs shadow mode's store requests in order, alongside the calls; one per gateway."""

    def __init__(self, breaker: StoreBreaker) -> None:
        self._breaker = breaker
        self.drive: Callable[[Any, Any], Any] = lambda call, step: None
        """Performs the steps of a call."""
        self.exchange: Callable[[], None] = lambda: None
        """Exchanges the states of breakers."""
        self._reset()
        renewed_after_fork(self, ShadowWorker._reset)
        _all.add(self)

    def _reset(self) -> None:
        self._jobs: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._begun = 0
        self._over = 0
        self._thread = Daemon("antiphon-shadow")

    @property
    def beside(self) -> bool:
        """Whether the store's work is done on the thread; a store in this process is called directly."""
        return self._breaker.on

    @property
    def waiting(self) -> int:
        """The number of jobs that are not done yet."""
        return self._begun - self._over

    def takes(self) -> bool:
        """Whether the store can be used at all at the moment."""
        return not self._breaker.is_open and self.waiting < _MOST_WAITING

    def do(self, job: Callable[[], None]) -> None:
        """Run *job*: on the thread, or at once."""
        if not self.beside:
            job()
            return
        self._begun += 1
        self._jobs.put(job)
        self._thread.start(self._work)

    def _work(self) -> None:
        while True:
            try:
                job = self._jobs.get(timeout=_IDLE_S)
            except Empty:
                if self._thread.leave_if(self._jobs.empty):
                    return
                continue
            try:
                job()
            except Exception as error:
                log.error("shadow mode could not look at a call\n%s", traceback_of(error))
            except BaseException as interrupt:  # of the call: its caller has it
                log.debug("a call in shadow mode was interrupted: %r", interrupt)
            del job
            self._over += 1

    def drain(self) -> Iterator[float]:
        """Pauses to make while something is left to shadow, a second at most."""
        until = time.monotonic() + _LAST_WORDS_S
        while self.waiting and not self._breaker.is_open and time.monotonic() < until:
            yield 0.005


_all: weakref.WeakSet[ShadowWorker] = weakref.WeakSet()


def _at_exit() -> None:
    with contextlib.suppress(Exception):
        for watcher in list(_all):
            for pause in watcher.drain():
                time.sleep(pause)


atexit.register(_at_exit)
