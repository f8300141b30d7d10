"""The subscriber of the synchronous journal: one daemon thread that listens for all threads of the process."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable
from typing import Any

from antiphon.errors import StoreError
from antiphon.stores._redis_pool import Dial
from antiphon.stores._redis_push import Channel, Channels, Listener, WatchKey, subscribe, unsubscribe, watch_key
from antiphon.stores._redis_wire import Wire, fresh

log = logging.getLogger("antiphon.stores.redis")

_FIRST_PAUSE_S = 0.02
_LONGEST_PAUSE_S = 1.0


class _Watch:
    __slots__ = ("armed", "channel", "error", "event", "waiters")

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.armed = False
        self.event = threading.Event()
        self.error: Exception | None = None
        self.waiters = 0


class ThreadHub:
    """Waiting threads, and the thread that wakes them."""

    def __init__(self, dial: Dial, flag: Callable[[str, int], bool], channel_of: Callable[[str], str]) -> None:
        self._dial = dial
        self._flag = flag
        self._channel_of = channel_of
        self._lock = threading.Lock()
        self._channels = Channels(threading.Event)
        self._watches: dict[WatchKey, _Watch] = {}
        self._wire: Wire | None = None
        self._thread: threading.Thread | None = None
        self._closed = False

    async def wait(self, key: str, version: int, timeout_s: float) -> None:
        until = time.monotonic() + timeout_s
        with self._lock:
            watch = self._watches.get((key, version))
            leads = watch is None
            if watch is None:
                watch = self._watches[key, version] = _Watch(self._enter(self._channel_of(key), of_claims=True))
            watch.waiters += 1
        try:
            if leads:
                self._arm((key, version), watch, until)
            watch.event.wait(max(0.0, until - time.monotonic()))
            if watch.error is not None:
                raise fresh(watch.error)
        finally:
            with self._lock:
                watch.waiters -= 1
                if not watch.waiters:
                    if self._watches.get((key, version)) is watch:
                        del self._watches[key, version]
                    self._leave(watch.channel)

    def listen(self, name: str, on_message: Callable[[bytes], None], reload: Callable[[], Any]) -> Callable[[], None]:
        listener = Listener(on_message, reload)
        with self._lock:
            channel = self._enter(name, of_claims=False)
            channel.listeners.add(listener)
        if channel.ready.is_set():
            reload()

        def stop() -> None:
            with self._lock:
                if listener in channel.listeners:
                    channel.listeners.remove(listener)
                    self._leave(channel)

        return stop

    async def close(self) -> None:
        with self._lock:
            self._closed = True
            wire, thread = self._wire, self._thread
            for watch in self._watches.values():
                watch.event.set()
        if wire is not None:
            wire.stop()
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout=1.0)

    def _arm(self, key: WatchKey, watch: _Watch, until: float) -> None:
        """Subscribed first, flagged second: whoever leads does it for all who wait for the same."""
        try:
            watch.channel.ready.wait(max(0.0, until - time.monotonic()))
            watch.armed = True  # before the flag: a connection lost meanwhile must lead to a second one
            if not self._flag(*key):
                watch.event.set()
        except StoreError as error:
            watch.error = error
            watch.event.set()

    def _enter(self, name: str, *, of_claims: bool) -> Channel:
        channel, new = self._channels.enter(name, of_claims=of_claims)
        if new:
            self._send(subscribe([name]))
        if self._thread is None and not self._closed:
            self._thread = threading.Thread(target=self._run, name="antiphon-redis-push", daemon=True)
            self._thread.start()
        return channel

    def _leave(self, channel: Channel) -> None:
        self._send(unsubscribe(self._channels.leave(channel)))

    def _send(self, data: bytes) -> None:
        if self._wire is not None and data:
            try:
                self._wire.send(data)
            except OSError:
                self._wire.stop()  # the listening thread connects anew and subscribes to all that is wanted

    def _run(self) -> None:
        pause = _FIRST_PAUSE_S
        while not self._closed:
            wire: Wire | None = None
            try:
                wire = self._dial()
                wire.listen()
                with self._lock:
                    self._wire = wire
                    self._send(subscribe(self._channels.names()))
                pause = _FIRST_PAUSE_S
                while not self._closed:
                    self._heard(wire.receive())
            except (OSError, StoreError) as error:
                if not self._closed:
                    log.warning("the subscriber lost its connection and connects anew: %s", error)
            except Exception:  # whatever it is, those who wait depend on this thread
                log.exception("the subscriber failed and starts anew")
            finally:
                with self._lock:
                    self._wire = None
                    for channel in self._channels.all():
                        channel.ready.clear()
                if wire is not None:
                    wire.close()
            if not self._closed:
                time.sleep(pause * random.uniform(0.5, 1.0))
                pause = min(pause * 2, _LONGEST_PAUSE_S)

    def _heard(self, message: Any) -> None:
        if not isinstance(message, list) or len(message) != 3:
            return
        kind, name, body = message
        with self._lock:
            channel = self._channels.get(name.decode())
            listeners = [] if channel is None else list(channel.listeners)
        if channel is None:
            return
        if kind == b"message":
            if channel.of_claims:
                self._wake(watch_key(body))
            for listener in listeners:
                _tell(listener.on_message, body)
        elif kind == b"subscribe":
            channel.ready.set()
            for listener in listeners:
                _tell(listener.reload)
            self._flag_again(channel)

    def _wake(self, key: WatchKey) -> None:
        with self._lock:
            watch = self._watches.pop(key, None)
        if watch is not None:
            watch.event.set()

    def _flag_again(self, channel: Channel) -> None:
        """After a gap: whoever waits on *channel* may have missed a message."""
        with self._lock:
            keys = [key for key, watch in self._watches.items() if watch.armed and watch.channel is channel]
        for key in keys:
            try:
                changed = not self._flag(*key)
            except StoreError:
                return  # the next connection brings us back here
            if changed:
                self._wake(key)


def _tell(function: Callable[..., Any], *arguments: Any) -> None:
    """A callback of somebody else must not end the thread that everyone depends on."""
    try:
        function(*arguments)
    except Exception:
        log.exception("a listener failed")
