"""Keeps the leases of running calls alive: one thread per process, on a connection of its own (D7)."""

from __future__ import annotations

import logging
import os
import threading
from typing import Any

from antiphon._drive import drive
from antiphon._gateway.call import Call
from antiphon._gateway.settings import Settings
from antiphon.errors import StoreError
from antiphon.ports import Clock, Journal, Store

log = logging.getLogger("antiphon.leases")


class Lease:
    """One held claim."""

    __slots__ = ("call", "due", "every", "key", "last_pull", "stream", "until", "version")

    def __init__(self, call: Call, now: float, cap: float) -> None:
        self.call = call
        self.key = call.key
        self.version = call.version
        self.every = max(0.01, call.tool.ttl.lease_ms / 3000)
        self.due = now + self.every
        self.until = min(call.deadline, now + cap) if call.deadline is not None else now + cap
        self.stream: Any = None
        self.last_pull = now


class Renewer:
    """A dict of held claims, looked at when the earliest of them could be due.

    A renewal that fails is no verdict: it is tried again until the lease would be over, and the running tool is
    never interrupted for it.
    """

    def __init__(self, store: Store, clock: Clock, settings: Settings) -> None:
        self._store = store
        self._clock = clock
        self._cap = settings.lease_cap_ms / 1000
        self._idle = settings.stream_idle_ms / 1000
        self._held: dict[int, Lease] = {}
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None
        self._pid = 0
        self._next = float("inf")

    def hold(self, call: Call) -> Lease:
        """Start renewing the lease of *call*."""
        lease = Lease(call, call.started, self._cap)
        self._held[id(lease)] = lease
        if lease.due < self._next or self._pid != os.getpid():
            self._next = lease.due
            self._ensure_thread()
            self._wake.set()
        return lease

    def release(self, lease: Lease) -> None:
        """Stop renewing."""
        self._held.pop(id(lease), None)

    def release_key(self, key: str) -> None:
        """Stop renewing whatever holds *key*."""
        for number, lease in list(self._held.items()):
            if lease.key == key:
                self._held.pop(number, None)

    def _ensure_thread(self) -> None:
        pid = os.getpid()
        if self._pid != pid:  # first use, or a forked child: its parent's calls are not its own
            if self._pid:
                current = self._next
                self._held = {key: lease for key, lease in self._held.items() if lease.due >= current}
                self._wake = threading.Event()
            self._pid = pid
            self._thread = None
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._work, name="antiphon-leases", daemon=True)
            self._thread.start()

    def _work(self) -> None:
        journal: Journal | None = None
        while True:
            now = self._clock.monotonic()
            due = self._earliest()
            self._next = due
            self._wake.clear()
            if due > now:
                self._wake.wait(min(60.0, due - now))
                continue
            if journal is None:
                try:
                    journal = self._store.open_sync()
                except StoreError as error:
                    log.warning("leases cannot be renewed yet: %s", error)
                    self._wake.wait(1.0)
                    continue
            self.renew_due(journal, now)

    def _earliest(self) -> float:
        try:
            return min((lease.due for lease in list(self._held.values())), default=float("inf"))
        except RuntimeError:  # changed while being copied
            return 0.0

    def renew_due(self, journal: Journal, now: float) -> None:
        """Renew every lease whose third has passed; give up those past their deadline or lost to another."""
        for lease in list(self._held.values()):
            if lease.stream is not None and now - lease.last_pull > self._idle:
                lease.stream.break_off("it was not read for too long")
                self._held.pop(id(lease), None)
                continue
            if lease.due > now:
                continue
            if now >= lease.until:
                self._held.pop(id(lease), None)
                continue
            try:
                kept = drive(journal.renew(lease.key, lease.version, lease.call.tool.ttl.lease_ms))
            except StoreError as error:
                log.warning("lease of %s not renewed, will try again: %s", lease.call.tool.full_name, error)
                lease.due = now + min(1.0, lease.every / 4)
                continue
            if not kept:
                log.warning("lease of %s was lost; its result will be fenced", lease.call.tool.full_name)
                self._held.pop(id(lease), None)
                continue
            lease.due = now + lease.every
