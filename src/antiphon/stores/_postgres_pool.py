"""A pool of links: the one used last is used next, a broken one is never handed out twice.

It dials in the caller's own turn, so that a wrong password is that caller's error and not a timeout, and needs no
thread of its own. A link that comes back goes straight to whoever has waited longest, so nobody starves.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable

from antiphon.stores._postgres_errors import closed, no_free_connection
from antiphon.stores._postgres_link import Link
from antiphon.stores._waiters import NewWaiter, Waiter

Dial = Callable[[], Awaitable[Link]]
_IDLE_S = 120.0
_LIFETIME_S = 3600.0


class _Ticket:
    """A place in the queue: served with a link, or with the right to dial one."""

    __slots__ = ("link", "served", "waiter")

    def __init__(self, waiter: Waiter) -> None:
        self.waiter = waiter
        self.link: Link | None = None
        self.served = False


class Pool:
    """At most *size* links. The lock is held for bookkeeping only, never across an ``await``."""

    def __init__(self, dial: Dial, new_waiter: NewWaiter, size: int, patience_s: float) -> None:
        self._dial = dial
        self._new_waiter = new_waiter
        self._size = size
        self._patience_s = patience_s
        self._lock = threading.Lock()
        self._idle: list[Link] = []
        self._queue: deque[_Ticket] = deque()
        self._count = 0
        self._closed = False

    async def take(self) -> Link:
        """A working link; dials if none is idle and there may be more."""
        with self._lock:
            if self._closed:
                raise closed()
            link = self._pop_idle()
            if link is not None:
                return link
            ticket = None
            if self._count < self._size:
                self._count += 1
            else:
                ticket = _Ticket(self._new_waiter())
                self._queue.append(ticket)
        if ticket is not None:
            link = await self._queued(ticket)
            if link is not None:
                return link
        try:
            return await self._dial()
        except BaseException:
            with self._lock:
                self._pass_on(None)
            raise

    async def _queued(self, ticket: _Ticket) -> Link | None:
        await ticket.waiter.wait(self._patience_s)
        with self._lock:
            if ticket.served:
                return ticket.link
            if self._closed:
                raise closed()
            self._queue.remove(ticket)
        raise no_free_connection(self._size, self._patience_s)

    def give(self, link: Link) -> None:
        """Hand a healthy link back."""
        now = time.monotonic()
        with self._lock:
            if self._closed or now - link.born > _LIFETIME_S or not link.connected():
                link.drop()
                self._pass_on(None)
                return
            link.used = now
            if self._queue:
                self._pass_on(link)
                return
            self._idle.append(link)
            if now - self._idle[0].used > _IDLE_S:
                self._idle.pop(0).drop()
                self._count -= 1

    def discard(self, link: Link) -> None:
        """Hang up a link whose state is not known."""
        link.drop()
        with self._lock:
            self._pass_on(None)

    def forget_idle(self) -> None:
        """Hang up what is idle: the next caller dials anew."""
        with self._lock:
            self._drop_idle()

    def close(self) -> None:
        """Hang up what is idle; what is in use hangs up when it comes back."""
        with self._lock:
            self._closed = True
            self._drop_idle()
            while self._queue:
                self._queue.popleft().waiter.wake()

    def _drop_idle(self) -> None:
        while self._idle:
            self._idle.pop().drop()
            self._count -= 1

    def _pop_idle(self) -> Link | None:
        while self._idle:
            link = self._idle.pop()
            if not link.stale():
                return link
            link.drop()
            self._count -= 1
        return None

    def _pass_on(self, link: Link | None) -> None:
        """Serve whoever waits longest with *link* or the right to dial; without a queue that right lapses."""
        if not self._queue:
            self._count -= 1
            return
        ticket = self._queue.popleft()
        ticket.link, ticket.served = link, True
        ticket.waiter.wake()
