"""The store's own breaker and time limits (D53).

A failing store costs one call its time; the next ones are refused at once, until the background thread of the process
has seen the store accept a write again. A step with a time limit runs on a thread or task of its own and is left there
when it is late: nothing is cut off halfway, and whatever it may have written is looked for later.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from contextvars import copy_context
from typing import Any, Protocol

from antiphon._daemon import renewed_after_fork
from antiphon._gateway.threads import Abandoned, ThreadRunner, TimedOut
from antiphon.errors import StoreError, StoreUnavailable
from antiphon.ports import Clock, SyncJournal

log = logging.getLogger("antiphon.gateway")

PROBE = "antiphon-probe"
"""A key that no call has: renewing its claim writes nothing, and needs what a write needs, except room.

The probe requests a lease of a millisecond, so that no store retries it for longer: its waiters wait for a single
attempt.
"""
GRACE_S = 0.1
"""After the deadline of a call, to write down its outcome."""
PATIENCE_S = 1.0
"""A store that answers within this time works, even if the deadline of a call has passed meanwhile."""
_LEAST_S = 0.01
_READ_LIMIT_S, _LONGEST_READ_LIMIT_S = 0.05, 0.1
PAUSE_S, _LONGEST_PAUSE_S = 0.1, 1.0
"""Between two probes of a store that does not work: doubled each time. A call that arrives triggers a probe at once."""
_TRIAL_S = 0.25
"""How long one call at a time waits for the next probe; the probe of a working store takes less."""
_MOST_WAITING = 1000
_LATE = "late"
_TOO_LATE = "deadline"
"""The reason for a step that had less than :data:`PATIENCE_S` until shortly after the deadline of its call."""
_NO_OUTAGE = frozenset(
    f"full readonly permission corrupt cannot_open busy moving replicas closed breaker_open {_LATE}".split()
)
"""Reasons of a store that answers, and of a read that was given up after a moment: neither is a failing store."""


class StoreAccess(Protocol):
    """Something whose access to the store can be blocked."""

    def connect(self, journal: Any) -> None: ...

    def shut(self) -> None: ...

    def reopen(self) -> None: ...


class _TimedRead:
    """A read of the store that a call can do without; it notes how long it took, whether or not anybody waited."""

    def __init__(self, breaker: StoreBreaker) -> None:
        self.over = False
        self._breaker = breaker
        self._began = 0.0

    def __enter__(self) -> None:
        self._began = self._breaker.clock.monotonic()

    def __exit__(self, failed: object, *_: object) -> None:
        if failed is None:
            breaker, seconds = self._breaker, self._breaker.clock.monotonic() - self._began
            breaker.read_limit_s = min(
                _LONGEST_READ_LIMIT_S, max(_READ_LIMIT_S, breaker.read_limit_s * 0.8, 4 * seconds)
            )
        self.over = True


class StoreBreaker:
    """Open while the store does not work; one per gateway."""

    def __init__(self, url: str, clock: Clock, *, on: bool, wake: Callable[[], None]) -> None:
        self.url = url
        self.is_open: bool = False
        self.failures: int = 0
        """How often the store failed."""
        self.on = on
        self._wake = wake
        self.clock = clock
        self._accesses: weakref.WeakSet[StoreAccess] = weakref.WeakSet()
        self._why = StoreError(f"The store {url} is unavailable.")
        self._probe_at = 0.0
        self._pause_s = PAUSE_S
        self.threads: ThreadRunner = ThreadRunner(_MOST_WAITING)
        """Where steps with a time limit run."""
        self.read_limit_s = _LONGEST_READ_LIMIT_S
        """How long to wait for a read that a call can do without: several times as long as such reads take."""
        self._reset()
        renewed_after_fork(self, StoreBreaker._reset)

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._trial: Future[None] | None = None
        """Of the call that waits for the next probe of the store."""
        self._waiting: Future[None] | None = None
        """Of the call that waits for the probe in progress."""
        self.is_suspected: bool = False
        """Whether a step was given up too early to tell whether the store works: a probe has to."""
        self._late: _TimedRead | None = None
        """The last read that was given up: while it is in progress, there is no other."""

    def watch(self, access: StoreAccess) -> None:
        """Block *access* to the store while the breaker is open."""
        with self._lock:
            self._accesses.add(access)

    def connect(self, access: StoreAccess, journal: Any) -> None:
        """Let *access* call the steps of *journal* directly, unless the breaker has opened in the meantime."""
        with self._lock:
            if not self.is_open:
                access.connect(journal)

    def failed(self, error: StoreError) -> None:
        """A step of the store failed; that a caller's deadline has passed is no failure, but may be due to one."""
        if error.data.get("reason") == _TOO_LATE:
            if self.on and not self.is_open:
                self.is_suspected = True
                self._wake()
        elif is_outage(error):
            self.open(error)

    def check(self, journal: Callable[[], SyncJournal]) -> None:
        """Probe a suspected store, and open if it does not answer."""
        self.is_suspected = False
        try:
            self.within(lambda: journal().renew(PROBE, 0, 1), PATIENCE_S)
        except StoreError as error:
            self.failed(error)

    def open(self, error: StoreError) -> None:
        """Refuse calls at once, until the store accepts what was left."""
        self.failures += 1
        if not self.on or self.is_open:
            return
        with self._lock:
            self._why = error
            self._probe_at = 0.0
            self._pause_s = PAUSE_S
            for access in list(self._accesses):
                access.shut()
            self.is_open = True  # once one call is told so, none gets through
        log.warning("the store %s is unavailable; calls fail fast until it recovers: %s", self.url, error)
        self._wake()

    def refusal(self) -> StoreUnavailable:
        """What a call gets in the meantime."""
        why = self._why
        hint = f"{why.hint} Calls work again as soon as the store does.".lstrip()
        return StoreUnavailable(f"{why.message} It was not contacted again.", hint=hint, reason="breaker_open")

    def probe(self, journal: Callable[[], SyncJournal], now: float) -> float:
        """Probe whether the store accepts a write, if it is time; seconds until the next probe, 0 if it does."""
        if not self.is_open:
            return 0.0
        if now < self._probe_at:
            return self._probe_at - now
        self._waiting = self._trial  # later calls wait for the probe after this one
        try:
            journal().renew(PROBE, 0, 1)
        except StoreError as error:
            if is_outage(error):
                return self.not_yet(error)
        return 0.0

    def not_yet(self, error: StoreError) -> float:
        """The store does not work yet; seconds until the next probe."""
        pause = self._pause_s
        self._why = error
        self._pause_s = min(2 * pause, _LONGEST_PAUSE_S)
        self._probe_at = self.clock.monotonic() + pause
        self._end_trial(self._waiting)
        return pause

    def close(self) -> None:
        """The store works again."""
        with self._lock:
            self.is_open = False
            for access in list(self._accesses):
                access.reopen()
        self._end_trial(self._trial)
        log.warning("the store %s works again", self.url)

    # -- a call that finds it open -----------------------------------------------------------------------------------

    def _try_now(self) -> Future[None] | None:
        """Have the store probed now; ``None`` if another call waits for that already."""
        with self._lock:
            if self._trial is not None or not self.is_open:
                return None
            trial: Future[None] = Future()
            self._trial = trial
            self._probe_at = 0.0
        self._wake()
        return trial

    def _end_trial(self, trial: Future[None] | None) -> None:
        if trial is None:
            return
        if self._trial is trial:
            self._trial = None
        with contextlib.suppress(InvalidStateError):  # its event loop is gone
            trial.set_result(None)

    def wait_for_probe(self, seconds: float = _TRIAL_S) -> None:
        """Raise unless the store works again: one call at a time waits for that, a moment at most."""
        trial = self._try_now()
        if trial is not None:
            with contextlib.suppress(TimeoutError):
                trial.result(min(seconds, _TRIAL_S))
        if self.is_open:
            raise self.refusal()

    async def wait_for_probe_async(self, seconds: float = _TRIAL_S) -> None:
        """The same in an event loop."""
        import asyncio

        trial = self._try_now()
        if trial is not None:
            await asyncio.wait({asyncio.wrap_future(trial)}, timeout=min(seconds, _TRIAL_S))
        if self.is_open:
            raise self.refusal()

    # -- time limits -------------------------------------------------------------------------------------------------

    def seconds_left(self, until: float) -> float:
        """Seconds until *until* on the monotonic clock, and a moment at least."""
        return max(_LEAST_S, until - self.clock.monotonic())

    def try_read(self, read: Callable[[], Any], seconds: float) -> Any:
        """Make a read that a call can do without. A late one says nothing about the store's health."""
        timed_read = self._new_timed_read()

        def step() -> Any:
            with timed_read:
                return read()

        try:
            return self.within(step, seconds, _LATE)
        except StoreUnavailable as error:
            self._given_up(timed_read, error)
            raise

    async def try_read_async(self, read: Callable[[], Any], seconds: float) -> Any:
        """The same for a coroutine."""
        timed_read = self._new_timed_read()

        async def step() -> Any:
            with timed_read:
                return await read()

        try:
            return await self.within_async(step(), seconds, _LATE)
        except StoreUnavailable as error:
            self._given_up(timed_read, error)
            raise

    def _new_timed_read(self) -> _TimedRead:
        late = self._late
        if late is not None and not late.over:
            raise too_slow(self.url, 0.0, _LATE)
        return _TimedRead(self)

    def _given_up(self, timed_read: _TimedRead, error: StoreUnavailable) -> None:
        if error.data.get("reason") == _LATE:
            self._late = timed_read

    def within(self, step: Callable[[], Any], seconds: float, reason: str = "timeout") -> Any:
        """Make a blocking step of the store, and wait for at most *seconds*."""
        around = copy_context()
        try:
            return self.threads.run_until(lambda: around.run(step), seconds)
        except (TimedOut, Abandoned) as error:
            raise too_slow(self.url, seconds, reason) from error

    async def within_async(self, step: Any, seconds: float, reason: str = "timeout") -> Any:
        """The same for a coroutine; it continues in a task of its own when it is late."""
        import asyncio

        task = asyncio.ensure_future(step)
        _running.add(task)
        task.add_done_callback(_over)
        done, _ = await asyncio.wait({task}, timeout=seconds)
        if not done:
            raise too_slow(self.url, seconds, reason)
        return task.result()


_running: set[Any] = set()
"""An event loop keeps its tasks by weak references only."""


def _over(task: Any) -> None:
    _running.discard(task)
    if not task.cancelled():
        task.exception()  # its waiters raise it, and nobody else needs it


def is_outage(error: StoreError) -> bool:
    """Whether the store may not have been reached, or is too slow: the request may still take effect."""
    return isinstance(error, StoreUnavailable) and error.data.get("reason") not in _NO_OUTAGE


def too_late(seconds: float) -> str:
    """The reason for giving up a step after *seconds* because of the deadline of its call."""
    return "timeout" if seconds >= PATIENCE_S else _TOO_LATE


def is_full(error: StoreError) -> bool:
    """Whether the store answers, but has no room for the write."""
    return error.data.get("reason") == "full"


def too_slow(url: str, seconds: float, reason: str = "timeout") -> StoreUnavailable:
    """The store did not answer in time."""
    return StoreUnavailable(
        f"The store {url} did not answer within {seconds:.3g} s.",
        hint="Run: antiphon doctor. The store is frozen, locked or overloaded.",
        reason=reason,
    )
