"""Notifications of changes: one subscriber per event loop for all of its waiters.

A waiter subscribes to the channel of the claim's shard, then flags the record, and only then waits: a change before the
flag is seen by setting the flag, a change after it is published. After the subscriber has reconnected, every flag is
set again, which also reveals what was missed. Nothing polls, except on a Cluster: its nodes pass messages on to each
other without confirming them, so waiters there set their flag again every few seconds.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Awaitable, Callable, Container, Iterable, Mapping
from typing import Any

from redis.exceptions import RedisClusterException, RedisError

from antiphon.errors import StoreError
from antiphon.stores._waiters import Waiters, loop_waiter
from antiphon.stores.redis.client import cancel, end_if_cancelled

log: logging.Logger = logging.getLogger("antiphon.stores.redis")

LINGER_S = 10.0
"""How long a channel stays subscribed after its last waiter: the next one often comes soon."""
LOOK_AGAIN_S = 5.0
"""How often waiters on a Cluster look whether they missed a message."""
_FIRST_PAUSE_S = 0.02
_LONGEST_PAUSE_S = 1.0

OnMessage = Callable[[bytes], None]
Reload = Callable[[], Awaitable[None]]


class _Channel:
    """A channel with users. ``ready`` is set while the server has it subscribed."""

    __slots__ = ("idle_since", "listeners", "name", "ready", "users")

    def __init__(self, name: str) -> None:
        self.name = name
        self.ready = asyncio.Event()
        self.users = 0
        self.idle_since = 0.0
        self.listeners: dict[object, tuple[OnMessage, Reload]] = {}


class Subscriber:
    """Waiting tasks, and the connection that wakes them. Cancelling one waiter affects no other."""

    def __init__(
        self,
        pubsub: Callable[[], Awaitable[Any]],
        flag: Callable[[str, int], Awaitable[bool]],
        channel_of: Callable[[str], str],
        is_lossy: Callable[[], bool],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._pubsub = pubsub
        self._flag = flag
        self._channel_of = channel_of
        self._is_lossy = is_lossy
        self._channels: dict[str, _Channel] = {}
        self._changed = asyncio.Event()
        self._waiters = Waiters()
        self._task: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[Any]] = set()

    async def wait(self, key: str, version: int, timeout_s: float) -> None:
        waiter = loop_waiter()
        channel = self._enter(self._channel_of(key))
        first = version not in self._waiters.by_key.get(key, {})
        self._waiters.add(key, version, waiter)
        if first:
            self._spawn(self._flag_first(key, version, channel))
        try:
            await waiter.wait(timeout_s)
        finally:
            self._waiters.discard(key, version, waiter)
            self._leave(channel)

    def listen(self, name: str, on_message: OnMessage, reload: Reload) -> Callable[[], None]:
        """Call *on_message* for each message, and *reload* whenever messages may have been missed."""
        channel, listener = self._enter(name), object()
        channel.listeners[listener] = (on_message, reload)
        if channel.ready.is_set():
            self._spawn(reload())

        def stop() -> None:
            if channel.listeners.pop(listener, None):
                self._leave(channel)

        return stop

    async def close(self) -> None:
        for key in tuple(self._waiters.by_key):
            self._waiters.wake(key)
        await cancel(task for task in (self._task, *self._tasks) if task is not None)

    async def _flag_first(self, key: str, version: int, channel: _Channel) -> None:
        """Subscribed first, flagged second; in a task of its own, so that no waiter's end can stop it."""
        try:
            await channel.ready.wait()
            if not await self._flag(key, version):
                self._waiters.wake(key, version)
        except StoreError as error:
            self._waiters.wake(key, version, error)

    def _enter(self, name: str) -> _Channel:
        channel = self._channels.get(name)
        if channel is None:
            channel = self._channels[name] = _Channel(name)
            self._changed.set()
        channel.users += 1
        if self._task is None:
            self._task = self._loop.create_task(self._run())
        return channel

    def _leave(self, channel: _Channel) -> None:
        channel.users -= 1
        channel.idle_since = now = time.monotonic()
        for other in tuple(self._channels.values()):
            if not other.users and now - other.idle_since >= LINGER_S:
                del self._channels[other.name]
                self._changed.set()

    async def _run(self) -> None:
        pause = _FIRST_PAUSE_S
        while True:
            pubsub: Any = None
            beside: list[asyncio.Task[None]] = []
            try:
                pubsub = await self._pubsub()
                subscribed = dict(self._channels)
                await pubsub.subscribe(*subscribed)
                end_if_cancelled()
                work = (self._update(pubsub, subscribed), self._look_again())
                beside = [self._loop.create_task(one) for one in work]
                pause = _FIRST_PAUSE_S
                while True:
                    message = await pubsub.get_message(timeout=None)
                    end_if_cancelled()
                    self._received(message)
            except (OSError, RedisError, RedisClusterException) as error:
                if pause == _FIRST_PAUSE_S:  # once for each outage
                    log.warning("the subscriber lost its connection and connects again: %s", error)
            finally:
                if not self._loop.is_closed():  # otherwise this task is only being collected
                    await _stop(beside, pubsub)
            for channel in self._channels.values():
                channel.ready.clear()
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(pause * 2, _LONGEST_PAUSE_S)

    async def _update(self, pubsub: Any, subscribed: dict[str, _Channel]) -> None:
        """Keep the subscriptions in step with the channels in use.

        A channel that was left and entered again is subscribed again: only the server's reply makes it ready.
        """
        with contextlib.suppress(OSError, RedisError):  # the reader notices it, too, and reconnects
            while True:
                self._changed.clear()
                wanted = dict(self._channels)
                if new := [name for name, channel in wanted.items() if subscribed.get(name) is not channel]:
                    await pubsub.subscribe(*new)
                if gone := subscribed.keys() - wanted.keys():
                    await pubsub.unsubscribe(*gone)
                subscribed = wanted
                end_if_cancelled()
                await self._changed.wait()

    def _received(self, message: dict[str, Any] | None) -> None:
        channel = self._channels.get(message["channel"].decode()) if message else None
        if channel is None or message is None:
            return
        if message["type"] == "message":
            self._waiters.wake(*_watched(message["data"]))
            for on_message, _ in tuple(channel.listeners.values()):
                try:
                    on_message(message["data"])
                except Exception:  # one failing callback must not disturb the others
                    log.exception("a listener failed")
        elif message["type"] == "subscribe":
            channel.ready.set()
            for work in self._catching_up({channel.name: channel}):
                self._spawn(work)

    async def _look_again(self) -> None:
        while True:
            await asyncio.sleep(LOOK_AGAIN_S)
            if self._is_lossy():
                await asyncio.gather(*self._catching_up(dict(self._channels)), return_exceptions=True)

    def _catching_up(self, channels: Mapping[str, _Channel]) -> list[Awaitable[None]]:
        """What those who use *channels* do after they may have missed a message."""
        reloads = [reload() for channel in channels.values() for _, reload in channel.listeners.values()]
        return [*reloads, self._flag_again(channels)]

    async def _flag_again(self, channels: Container[str]) -> None:
        watched = [(key, version) for key, watches in self._waiters.by_key.items() for version in watches]
        for key, version in [which for which in watched if self._channel_of(which[0]) in channels]:
            try:
                if not await self._flag(key, version):
                    self._waiters.wake(key, version)
            except StoreError:
                return  # the next connection brings us back here

    def _spawn(self, work: Any) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.warning("a listener failed: %s", task.exception())


async def _stop(beside: Iterable[asyncio.Task[None]], pubsub: Any) -> None:
    for task in beside:
        task.cancel()
    if pubsub is not None:
        with contextlib.suppress(OSError, RedisError):
            await pubsub.aclose()


def _watched(message: bytes) -> tuple[str, int]:
    """The claim that a message is about: ``VERSION KEY``. Other messages have no waiters."""
    version, _, key = message.partition(b" ")
    return key.decode(errors="replace"), int(version) if version.isdigit() else 0
