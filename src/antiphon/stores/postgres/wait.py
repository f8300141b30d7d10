"""Waits by push: one listening connection per process notifies every local waiter, thread or task.

A thread owns the connection. It flags the claims that have waiters, so that only those are announced when they end (an
announcement takes a lock that all commits of the server share), and it reads again on its own at the end of a lease and
after a reconnect. Nothing else polls.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import threading
import time
from collections.abc import Callable, Iterable

import psycopg
from psycopg.pq.abc import PGconn

from antiphon._daemon import Daemon
from antiphon._drive import drive
from antiphon.errors import AntiphonError
from antiphon.ports import BreakerCallback, BreakerRow
from antiphon.stores._waiters import Waiter, Waiters
from antiphon.stores.postgres.connection import SyncConnection, connect
from antiphon.stores.postgres.options import Options
from antiphon.stores.postgres.statements import (
    breaker_of,
    from_text,
    int8_array,
    quote,
    text_array,
    to_text,
)

_log = logging.getLogger("antiphon.stores")
_BATCH = 500
_BACKOFF_S = (0.1, 2.0)
_NAME = 512
"""How much of a key or tenant a notification carries."""


class Subscriber:
    """The listener of one process and one schema. Started by the first waiter."""

    def __init__(self, options: Options) -> None:
        self.pid: int = os.getpid()
        self.users = 0
        self._options = options
        self._lock = threading.Lock()
        self._waiters = Waiters()
        self._listeners: dict[str, list[BreakerCallback]] = {}
        self._seen: dict[str, dict[str, BreakerRow]] = {}
        self._changed: set[str] = set()
        self._thread = Daemon("antiphon-postgres-listener")
        self._stopping = threading.Event()
        self._pipe: tuple[int, int] | None = None

    def add(self, key: str, version: int, waiter: Waiter) -> None:
        """Wake *waiter* when this version of the claim, or its lease, has ended."""
        with self._lock:
            watch = self._waiters.add(to_text(key), version, waiter)
        self._start()
        if not watch.due:
            self._signal()

    def discard(self, key: str, version: int, waiter: Waiter) -> None:
        """Stop waiting."""
        with self._lock:
            self._waiters.discard(to_text(key), version, waiter)

    def subscribe(self, tenant: str, callback: BreakerCallback) -> Callable[[], None]:
        """Call *callback* with every breaker row of *tenant*, now and on each change; returns a function to end it."""
        tenant = to_text(tenant)
        with self._lock:
            self._listeners.setdefault(tenant, []).append(callback)
            self._seen.pop(tenant, None)  # the newcomer has seen nothing yet
            self._changed.add(tenant)
        self._start()
        self._signal()

        def unsubscribe() -> None:
            with self._lock, contextlib.suppress(ValueError, KeyError):
                self._listeners[tenant].remove(callback)

        return unsubscribe

    def stop(self) -> None:
        """Let the thread disconnect, without waiting for it, and wake all remaining waiters."""
        self._stopping.set()
        self._signal()
        self._wake_all()

    def _start(self) -> None:
        if not self._stopping.is_set():
            self._thread.start(self._run)

    def _signal(self) -> None:
        with self._lock, contextlib.suppress(BlockingIOError):  # already signalled
            if self._pipe is not None:
                os.write(self._pipe[1], b"!")

    def _run(self) -> None:
        signals, sender = os.pipe()
        os.set_blocking(sender, False)
        with self._lock:
            self._pipe = signals, sender
        try:
            self._serve(signals)
        finally:
            with self._lock:  # its number may soon be that of another file
                self._pipe = None
            os.close(signals)
            os.close(sender)

    def _serve(self, signals: int) -> None:
        failures = 0
        broken = (psycopg.Error, AntiphonError, OSError)
        while not self._stopping.is_set():
            if not self._wanted():
                _sleep_until(signals)
                continue
            connection = None
            try:
                connection = self._connect()
                failures = 0
                while not self._stopping.is_set():
                    self._listen(connection, signals)
            except broken as error:
                # Each waiter reads for itself: either it gets through, or it can say what is wrong.
                self._wake_all()
                _log.log(logging.DEBUG if failures else logging.WARNING, "Not listening to PostgreSQL now: %s", error)
                failures += 1
                low, high = _BACKOFF_S
                self._stopping.wait(min(high, low * 2**failures))
            finally:
                if connection is not None:
                    connection.drop()

    def _wanted(self) -> bool:
        with self._lock:
            return bool(self._waiters or any(self._listeners.values()))

    def _connect(self) -> SyncConnection:
        connection = drive(connect(SyncConnection, self._options, listener=True))
        connection.add_notify_handler(lambda notify: self._notified(notify.payload))
        if self._options.can_listen:
            drive(connection.script(f"LISTEN {quote(self._options.channel)}"))
        with self._lock:  # read what was announced while nobody listened
            self._changed.update(self._listeners)
            for watches in self._waiters.by_key.values():
                for watch in watches.values():
                    watch.due = 0.0
        return connection

    def _listen(self, connection: SyncConnection, signals: int) -> None:
        """One round: read what is due, then sleep until notified, signalled or due."""
        due, wake_up = self._due()
        for start in range(0, len(due), _BATCH):
            self._look(connection, due[start : start + _BATCH])
        self._publish_breakers(connection)
        socket = connection.pgconn
        self._read_notifications(socket)  # those that came with the answers: the socket does not show them any more
        if due or self._changed:
            return
        _sleep_until(signals, socket.socket, None if wake_up is None else max(0.0, wake_up - time.monotonic()))
        socket.consume_input()
        self._read_notifications(socket)

    def _read_notifications(self, socket: PGconn) -> None:
        while (notify := socket.notifies()) is not None:
            self._notified(notify.extra.decode())

    def _due(self) -> tuple[list[tuple[str, int]], float | None]:
        now = time.monotonic()
        due: list[tuple[str, int]] = []
        earliest: float | None = None
        with self._lock:
            for key, watches in self._waiters.by_key.items():
                for version, watch in watches.items():
                    if watch.due <= now:
                        due.append((key, version))
                    elif earliest is None or watch.due < earliest:
                        earliest = watch.due
        return due, earliest

    def _look(self, connection: SyncConnection, due: list[tuple[str, int]]) -> None:
        """Flag what is still in flight, and wake the waiters of claims that have ended or whose lease has expired."""
        asked = sorted(due)
        keys = text_array([from_text(key) for key, _ in asked])
        versions = int8_array([version for _, version in asked])
        rows = drive(connection.fetch("watch", {"keys": keys, "versions": versions}, prepare=True))
        now = time.monotonic()
        left = {(key, version): left_ms / 1000 for key, version, left_ms in rows}
        with self._lock:
            for key, version in asked:
                seconds = left.get((key, version), 0.0)
                if seconds <= 0:
                    self._waiters.wake(key, version)
                elif watch := self._waiters.by_key.get(key, {}).get(version):
                    watch.due = now + (seconds if self._options.can_listen else min(seconds, self._options.poll_s))

    def _notified(self, payload: str) -> None:
        kind, name = payload[:1], payload[1:]
        with self._lock:
            if kind == "c":
                whole = len(name) < _NAME
                for key in (name,) if whole else [key for key in self._waiters.by_key if key.startswith(name)]:
                    self._waiters.wake(key)
            elif kind == "b":
                self._changed.update(tenant for tenant in self._listeners if tenant[:_NAME] == name)

    def _publish_breakers(self, connection: SyncConnection) -> None:
        """Read the breakers of the tenants that changed, once, and pass on what is new."""
        with self._lock:
            changed, self._changed = self._changed, set()
        for tenant in changed:
            rows = drive(connection.fetch("load_breakers", {"tenant": tenant}, prepare=True))
            with self._lock:
                listeners = list(self._listeners.get(tenant, ()))
                seen = self._seen.setdefault(tenant, {})
            for row in map(breaker_of, rows):
                if seen.get(row.key) != row:
                    seen[row.key] = row
                    _pass_on(listeners, row)

    def _wake_all(self) -> None:
        with self._lock:
            for key in tuple(self._waiters.by_key):
                self._waiters.wake(key)


def _sleep_until(signals: int, socket: int | None = None, seconds: float | None = None) -> None:
    """Sleep until there is a signal, the server sends something, or time is up."""
    poll = select.poll()
    poll.register(signals, select.POLLIN)
    if socket is not None:
        poll.register(socket, select.POLLIN)
    if signals in dict(poll.poll(None if seconds is None else seconds * 1000 + 1)):
        os.read(signals, 4096)


def _pass_on(listeners: Iterable[BreakerCallback], row: BreakerRow) -> None:
    for listener in listeners:
        try:
            listener(row)
        except Exception:  # one listener's failure must not end the listening of all
            _log.exception("A breaker listener failed on %r", row.key)


_subscribers: dict[Options, Subscriber] = {}
_registry = threading.Lock()


def acquire_subscriber(options: Options) -> Subscriber:
    """The subscriber of this process for *options*; each call is paired with :func:`release_subscriber`."""
    with _registry:
        subscriber = _subscribers.get(options)
        if subscriber is None:
            subscriber = _subscribers[options] = Subscriber(options)
        subscriber.users += 1
        return subscriber


def release_subscriber(subscriber: Subscriber) -> None:
    """The last user to release it ends the connection."""
    if subscriber.pid != os.getpid():
        return
    with _registry:
        subscriber.users -= 1
        last = subscriber.users == 0 and _subscribers.get(subscriber._options) is subscriber
        if last:
            del _subscribers[subscriber._options]
    if last:
        subscriber.stop()


def _after_fork() -> None:
    """A child has neither the thread nor a right to use the connection."""
    global _registry
    _registry = threading.Lock()
    _subscribers.clear()


os.register_at_fork(after_in_child=_after_fork)
