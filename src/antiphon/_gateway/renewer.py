"""Keeps the leases of running calls alive: one thread per process, on a connection of its own (D7)."""

from __future__ import annotations

import logging
import os
import threading
import weakref

from antiphon._drive import drive
from antiphon._gateway.call import Call
from antiphon._gateway.settings import Settings
from antiphon.errors import StoreError
from antiphon.ports import Clock, Journal, Store

log = logging.getLogger("antiphon.leases")


class Renewer:
    """Knows the calls that hold a claim, and looks at them when the earliest lease could be due.

    A renewal that fails is no verdict: it is tried again until the lease would be over, and the running tool is
    never interrupted for it.
    """

    def __init__(self, store: Store, clock: Clock, settings: Settings) -> None:
        self._store = store
        self._clock = clock
        self._cap = settings.lease_cap_ms / 1000
        self._idle = settings.stream_idle_ms / 1000
        self._held: dict[int, Call] = {}
        self._due: dict[int, float] = {}
        """When a call is to be renewed next, if that is not a third of its lease after its start."""
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None
        self._next = float("inf")
        _all.add(self)

    def hold(self, call: Call) -> None:
        """Start renewing the lease of *call*."""
        self._held[id(call)] = call
        if call.started + call.tool.renew_every < self._next:
            self._next = call.started + call.tool.renew_every
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._work, name="antiphon-leases", daemon=True)
                self._thread.start()
            self._wake.set()

    def release(self, call: Call) -> None:
        """Stop renewing."""
        self._held.pop(id(call), None)
        if self._due:
            self._due.pop(id(call), None)

    def after_fork(self) -> None:
        """In a child: the parent's calls are not its own, and threads do not survive."""
        self._held.clear()
        self._due.clear()
        self._wake = threading.Event()
        self._thread = None
        self._next = float("inf")

    def _work(self) -> None:
        journal: Journal | None = None
        while True:
            now = self._clock.monotonic()
            self._wake.clear()
            if self._next > now:  # set by the first call after a pause; most calls are over by then
                self._wake.wait(min(60.0, self._next - now))
                continue
            if journal is None:
                try:
                    journal = self._store.open_sync()
                except StoreError as error:
                    log.warning("leases cannot be renewed yet: %s", error)
                    self._wake.wait(1.0)
                    continue
            self.renew_due(journal, now)
            self._next = float("inf")  # first, so that a call that begins now is either seen below or sets it itself
            self._next = min(self._next, self._earliest())

    def _due_of(self, call: Call) -> float:
        return self._due.get(id(call)) or call.started + call.tool.renew_every

    def _earliest(self) -> float:
        return min((self._due_of(call) for call in list(self._held.values())), default=float("inf"))

    def renew_due(self, journal: Journal, now: float) -> None:
        """Renew every lease whose third has passed; give up those past their deadline or lost to another."""
        for call in list(self._held.values()):
            stream = call.lease
            if stream is not None and now - stream.last_pull > self._idle:
                stream.break_off("its stream was not read for too long")
                self.release(call)
            elif self._due_of(call) <= now:
                self._renew(journal, call, now)

    def _renew(self, journal: Journal, call: Call, now: float) -> None:
        until = call.started + self._cap if call.deadline is None else min(call.deadline, call.started + self._cap)
        if now >= until:
            self.release(call)
            return
        every = call.tool.renew_every
        try:
            kept = drive(journal.renew(call.key, call.version, call.tool.ttl.lease_ms))
        except StoreError as error:
            log.warning("lease of %s not renewed, will try again: %s", call.tool.full_name, error)
            self._due[id(call)] = now + min(1.0, every / 4)
            return
        if kept:
            self._due[id(call)] = now + every
            return
        if id(call) in self._held:
            log.warning("lease of %s was lost; its result will be fenced", call.tool.full_name)
        self.release(call)


_all: weakref.WeakSet[Renewer] = weakref.WeakSet()


def _after_fork() -> None:
    for renewer in list(_all):
        renewer.after_fork()


os.register_at_fork(after_in_child=_after_fork)
