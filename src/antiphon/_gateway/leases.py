"""Keeps the leases of running calls alive: one thread per process, on connections of its own (D7)."""

from __future__ import annotations

import atexit
import contextlib
import logging
import random
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from antiphon._daemon import Daemon, Signal, renewed_after_fork
from antiphon._gateway.settings import Settings
from antiphon._gateway.store_breaker import PAUSE_S as BREAKER_PAUSE_S
from antiphon._gateway.store_breaker import PROBE, StoreBreaker, is_full, is_outage
from antiphon._late import traceback_of
from antiphon.errors import StoreError, StoreUnavailable
from antiphon.ports import Clock, Store, SyncJournal

log = logging.getLogger("antiphon.leases")
_sweep_log = logging.getLogger("antiphon.janitor")

_NEVER = float("inf")
_MOST_UNFINISHED = 10_000
_MOST_TRIES = 20
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 60.0
_LAST_WORDS_S, _LAST_WORDS_OF_ONE_S = 2.0, 1.0
_LONGEST_NAP_S = 60.0
PAUSE_S = 60.0
PORTION = 1000
_SOON_S = 1.0


def _nothing(*_: Any) -> None:
    return None


class Lease(Protocol):
    """What is known here about a call that holds a claim."""

    key: str
    version: int
    started: float

    @property
    def claimed(self) -> float: ...

    @property
    def tool_name(self) -> str: ...

    @property
    def lease_ms(self) -> int: ...

    @property
    def renew_every(self) -> float: ...

    @property
    def deadline(self) -> float | None: ...

    @property
    def stream(self) -> Any:
        """What its caller reads, if the tool returns a stream."""


@dataclass(slots=True, eq=False)
class PendingOutcome:
    """A call that its caller left, and the step to continue with."""

    call: Lease
    """Version 0: it may hold a claim, and has dispatched nothing."""
    step: Any
    due: float = 0.0
    tries: int = 0
    """How often the store refused it although it accepted other writes."""


class Leases:
    """The calls of one gateway that hold a claim.

    A failed renewal is not final: it is retried until the lease would expire, and never interrupts the running tool.
    """

    def __init__(self, store: Store, clock: Clock, settings: Settings, *, attached: bool = True) -> None:
        self._store = store
        self._clock = clock
        self.configure(settings)
        self._held: dict[Lease, float] = {}
        """The calls, and their renewal intervals in seconds."""
        self._due: dict[Lease, float] = {}
        """When a call is to be renewed next, if that is not a third of its lease after its start."""
        self.release: Callable[[Lease, None], float | None] = self._held.pop
        """Stop renewing."""
        self._journal: SyncJournal | None = None
        self._opening = threading.Lock()
        self._wanted = Signal()
        self._recovery = Daemon("antiphon-mend")
        self._check = Daemon("antiphon-check")
        self._next = _NEVER
        """When to check next; later calls with longer leases need not change it."""
        self._attached = attached
        """Whether the process's thread looks after it; otherwise somebody calls :meth:`look` (tests, simulations)."""
        self._unfinished: list[PendingOutcome] = []
        self.resume: Callable[[SyncJournal, Any, Any], None] = _nothing
        """Continues a call on this thread's journal."""
        self.regain: Callable[[SyncJournal, Any], bool | None] = _nothing
        """Finds the claim of a running call, or writes it again if the store has lost it; whether it has one now."""
        self._sweeps = attached and not store.in_process
        self.breaker: StoreBreaker = StoreBreaker(store.url, clock, on=self._sweeps, wake=self._hurry)
        self._place = f"{store.url} {getattr(store, 'prefix', '')}"
        if attached:
            _service.add(self)

    def configure(self, settings: Settings) -> None:
        """Apply the limits of new settings."""
        self._cap = settings.lease_cap_ms / 1000
        self._idle = settings.stream_idle_ms / 1000

    def hold(self, call: Lease, every: float) -> None:
        """Start renewing the lease of *call*, every *every* seconds."""
        self._held[call] = every
        due = call.started + every
        if due < self._next:
            self._next = due
            if self._attached:
                _service.wake()

    def holds(self, call: Lease) -> bool:
        """Whether the lease of *call* is being renewed."""
        return call in self._held

    @property
    def unrecorded(self) -> int:
        """Outcomes that have yet to be written."""
        return sum(1 for left in list(self._unfinished) if left.call.version)

    def finish(self, call: Lease, step: Any, after_s: float = 0.0) -> None:
        """Continue a call that its caller had to leave, as soon as the store allows it, or some seconds later."""
        if len(self._unfinished) >= _MOST_UNFINISHED:
            self._unfinished.pop(0)
            log.error("too many calls wait for the store; one was given up: its claim ends with its lease")
        due = self._clock.monotonic() + after_s if after_s else 0.0
        self._unfinished.append(PendingOutcome(call, step, due))
        if self._attached:
            _service.keep(self)
        self._hurry()

    def _hurry(self) -> None:
        self._next = 0.0
        if self._attached:
            _service.wake()
            if self.breaker.is_open or self._unfinished:
                self._recover_beside()
            if self.breaker.is_suspected:  # the recovery thread may hang in the store
                self._check.start(self._check_until_done)

    def drain(self) -> Iterator[float]:
        """Pauses to make while something is left to write, a second at most."""
        until = time.monotonic() + _LAST_WORDS_OF_ONE_S
        self.retry_now()
        while self._attached and self._unfinished and time.monotonic() < until:
            self._hurry()
            yield 0.02

    def retry_now(self) -> None:
        """Make what the store refused earlier due at once."""
        for left in list(self._unfinished):
            if left.tries:
                left.due = 0.0

    def _recover_beside(self) -> None:
        """Recover on a thread of its own, however long it takes: a store that hangs does not delay other renewals."""
        self._wanted.set()
        self._recovery.start(self._recover_until_done)

    def _check_until_done(self) -> None:
        while True:
            self.breaker.check(self.journal)
            if self._check.leave_if(lambda: not self.breaker.is_suspected):
                return

    def _recover_until_done(self) -> None:
        while True:
            self._wanted.clear()
            try:
                nap = self._recover(self._clock.monotonic())
            except Exception:
                log.exception("pending outcomes could not be written; retrying")
                nap = _SOON_S
            if nap > 0.0:
                self._wanted.wait(nap)
            elif self._recovery.leave_if(lambda: not self._unfinished and not self.breaker.is_open):
                return

    def _recover(self, now: float) -> float:
        """Check whether the store works, and write what was left; seconds until there is more to do, 0 when done."""
        if self.breaker.is_open:
            if (pause := self.breaker.probe(self.journal, now)) > 0.0:
                return pause
            journal = self.journal()
            refusal = self._finish_due(journal, now)  # known outcomes first: a redelivery should find them
            if refusal is not None:
                if is_full(refusal):  # a renewal may need no room
                    self.renew_due(journal, now)
                return self.breaker.not_yet(refusal)
            self._due.update(dict.fromkeys(list(self._held), now))  # the store may have come back without the claims
            self.renew_due(journal, now)
            self.breaker.close()
            self._hurry()
        elif (refusal := self._finish_due(self.journal(), now)) is not None:
            self.breaker.open(refusal)
        if self.breaker.is_open:
            return BREAKER_PAUSE_S
        left = list(self._unfinished)
        return max(BREAKER_PAUSE_S, min(one.due for one in left) - now) if left else 0.0

    def _finish_due(self, journal: SyncJournal, now: float) -> StoreError | None:
        """Continue the calls that were left; the refusal, if the store is failing or has no room for an outcome."""
        for left in [left for left in list(self._unfinished) if left.due <= now]:
            try:
                self.resume(journal, left.call, left.step)
            except Exception as error:
                refusal = self._refusal_of_all(journal, left, error)
                if refusal is None:
                    self._put_off(left, error, now)
                elif is_outage(refusal) or is_full(refusal):
                    self._unfinished.append(left)  # there may be room for the others
                    self._unfinished.remove(left)
                    return refusal
                else:
                    left.due = now + _SOON_S
                    return None
            else:
                self._drop(left)
        return None

    def _refusal_of_all(self, journal: SyncJournal, left: PendingOutcome, error: Exception) -> StoreError | None:
        """Why the store accepts no write; ``None`` if it refuses this one only."""
        if not isinstance(error, StoreUnavailable):
            return None
        if left.call.version and is_full(error):  # whatever else it accepts: an outcome waits for room, however long
            return error
        try:
            journal.renew(PROBE, 0, 1)
        except StoreError as refusal:
            return refusal
        return None

    def _put_off(self, left: PendingOutcome, error: Exception, now: float) -> None:
        """The store accepts other writes: retry this one less and less often, and not forever."""
        left.tries += 1
        left.due = now + min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2**left.tries)
        if left.tries < _MOST_TRIES and getattr(error, "code", "") != "store_version":
            log.warning("the end of a call could not be written; retrying: %s", error)
            return
        self._drop(left)
        said = "the end of a call cannot be written and is given up: its claim ends with its lease\n%s"
        log.error(said, traceback_of(error))

    def _drop(self, left: PendingOutcome) -> None:
        with contextlib.suppress(ValueError):  # there were too many
            self._unfinished.remove(left)
        if not self._unfinished:
            _service.leave(self)
            if self._unfinished:  # added in the meantime
                _service.keep(self)

    def forget(self) -> None:
        """In a forked child: the parent's calls and connections are not its own."""
        self._held.clear()
        self._unfinished.clear()
        self._due.clear()
        self._journal = None
        self._opening = threading.Lock()
        self._wanted = Signal()
        self._next = _NEVER

    def look(self) -> float:
        """Do what is due; seconds until the next check."""
        now = self._clock.monotonic()
        if self.breaker.is_open or self._unfinished:
            if self._attached:
                self._recover_beside()
            else:
                self._recover(now)
        if self.breaker.is_open:  # the recovery thread reports when it works again
            return _LONGEST_NAP_S
        if self._next <= now:
            try:
                journal = self.journal()
            except StoreError as error:
                log.warning("leases cannot be renewed yet; retrying: %s", error)
                return 1.0
            self.renew_due(journal, now)
            self._plan()
        nap = self._next - now
        return min(nap, _janitor.sweep_if_due(self._place, self.journal, now)) if self._sweeps else nap

    def journal(self) -> SyncJournal:
        """The journal that the store's breaker does not block."""
        with self._opening:
            if self._journal is None:
                self._journal = self._store.open_sync()
            return self._journal

    def of_process(self) -> list[Leases]:
        """Those of all gateways of this process on the same store."""
        return [one for one in {self, *_service.all()} if one._place == self._place]

    def _plan(self) -> None:
        """Find the next due time. A call that begins meanwhile is seen here, or sees what is written here."""
        for call in [call for call in list(self._due) if call not in self._held]:  # it has ended
            self._due.pop(call, None)
        while True:
            earliest = self._next = self._earliest()
            if self._earliest() >= earliest:
                return

    def _due_of(self, call: Lease) -> float:
        return self._due.get(call) or call.started + call.renew_every

    def _earliest(self) -> float:
        return min((self._due_of(call) for call in list(self._held)), default=_NEVER)

    def renew_due(self, journal: SyncJournal, now: float) -> None:
        """Renew every lease of which a third has passed; give up those past their deadline or lost to another."""
        for call in list(self._held):
            stream = call.stream
            if stream is not None and now - stream.last_pull > self._idle:
                self.release(call, None)
                stream.break_off(journal, "its stream was not read for too long")
            elif self._due_of(call) <= now:
                self._renew(journal, call, now)

    def _renew(self, journal: SyncJournal, call: Lease, now: float) -> None:
        until = call.claimed + self._cap if call.deadline is None else min(call.deadline, call.claimed + self._cap)
        if now >= until:
            self.release(call, None)
            return
        every = call.renew_every
        try:
            kept = journal.renew(call.key, call.version, call.lease_ms)
            if not kept and call in self._held and self.regain(journal, call):
                log.warning("the store had lost the claim of %s; it was written again", call.tool_name)
                kept = True
        except StoreError as error:
            self.breaker.failed(error)
            log.warning("the lease of %s was not renewed; retrying: %s", call.tool_name, error)
            self._due[call] = now + min(1.0, every / 4)
            return
        if kept:
            self._due[call] = now + every
            return
        if call in self._held:
            log.warning("the lease of %s was lost; its result will be fenced", call.tool_name)
        self.release(call, None)


class _Service:
    """The one thread that looks after all leases of this process. It starts with the first claim."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._leases: list[weakref.ref[Leases]] = []
        self._wakes = Signal()
        self._thread = Daemon("antiphon-leases")
        self._busy: set[Leases] = set()
        """Those with something to write: they outlive their gateways."""

    def keep(self, leases: Leases) -> None:
        self._busy.add(leases)

    def leave(self, leases: Leases) -> None:
        self._busy.discard(leases)

    def at_exit(self) -> None:
        """Write what is left, if the stores take it now; then say what was lost."""
        deadline = time.monotonic() + _LAST_WORDS_S
        for leases in list(self._busy):
            leases.retry_now()
        while self._busy and time.monotonic() < deadline:
            self._wakes.set()
            time.sleep(0.02)
        left = sum(leases.unrecorded for leases in list(self._busy))
        if left:
            log.error("%d outcomes could not be recorded before the process ended: they will be unknown", left)

    def all(self) -> set[Leases]:
        """Those of living gateways, and those with something to write."""
        return {*self._busy.copy(), *(found for ref in self._leases if (found := ref()) is not None)}

    def add(self, leases: Leases) -> None:
        with self._lock:
            self._leases = [ref for ref in self._leases if ref() is not None]
            self._leases.append(weakref.ref(leases))

    def wake(self) -> None:
        self._wakes.set()
        self._thread.start(self._work)

    def after_fork(self) -> None:
        """Threads and locks do not survive a fork; the child's first claim starts its own."""
        self._lock = threading.Lock()
        self._wakes = Signal()
        self._busy.clear()
        for ref in self._leases:
            leases = ref()
            if leases is not None:
                leases.forget()

    def _work(self) -> None:
        while True:
            self._wakes.wait(self._look_at_all())

    def _look_at_all(self) -> float:
        nap = _LONGEST_NAP_S
        for ref in self._leases:
            leases = ref()
            if leases is None:
                continue
            try:
                nap = min(nap, leases.look())
            except Exception:
                log.exception("leases could not be renewed; retrying")
                nap = min(nap, 1.0)
        return max(0.0, nap)


class Janitor:
    """Decides when to remove expired records from which store (R6); one for all gateways of a process.

    Every process of a fleet does its share: the pauses are jittered, batches are bounded, and no process repeats what
    another has removed.
    """

    def __init__(self) -> None:
        self._due: dict[str, float] = {}
        self._random = random.Random()

    def sweep_if_due(self, place: str, journal: Callable[[], SyncJournal], now: float) -> float:
        """Sweep the store at *place* if it is due; seconds until it is due again."""
        due = self._due.get(place)
        if due is None:
            due = self._due[place] = now + self._pause()
        if now < due:
            return due - now
        pause = self._pause()
        try:
            swept = journal().sweep(PORTION)
        except StoreError as error:
            _sweep_log.info("expired records were not swept; retrying: %s", error)
        else:
            if swept >= PORTION:
                pause = _SOON_S
        self._due[place] = now + pause
        return pause

    def _pause(self) -> float:
        return PAUSE_S * self._random.uniform(0.5, 1.5)


_janitor = Janitor()
_service = _Service()
renewed_after_fork(_service, _Service.after_fork)
atexit.register(_service.at_exit)
