"""Being told of changes: one subscriber per event loop for all who wait there.

Who waits for a claim subscribes to the channel of its shard, then flags the record, and only then waits: a
change before the flag is seen by the flag itself, a change after it is published. When the subscriber had to
connect again, every flag is set again, which also is the look at what was missed. Nothing polls.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Awaitable, Callable
from typing import Any

from redis.exceptions import RedisClusterException, RedisError

from antiphon.errors import StoreError
from antiphon.stores._common import fresh
from antiphon.stores.redis.client import cancel

log = logging.getLogger("antiphon.stores.redis")

LINGER_S = 10.0
"""How long a channel stays subscribed after the last one who waited: the next one often comes soon."""
_FIRST_PAUSE_S = 0.02
_LONGEST_PAUSE_S = 1.0

WatchKey = tuple[str, int]
"""Key and version of the claim that is waited for."""
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


class _Watch:
    """Those who wait for one claim."""

    __slots__ = ("channel", "flagged", "waiting")

    def __init__(self, channel: _Channel) -> None:
        self.channel = channel
        self.flagged = False
        self.waiting: set[asyncio.Future[None]] = set()

    def wake(self, error: Exception | None = None) -> None:
        for future in self.waiting:
            if not future.done():
                if error is None:
                    future.set_result(None)
                else:
                    future.set_exception(fresh(error))


class Subscriber:
    """Waiting tasks, and the connection that wakes them. One cancelled waiter concerns nobody else."""

    def __init__(
        self,
        pubsub: Callable[[], Awaitable[Any]],
        flag: Callable[[str, int], Awaitable[bool]],
        channel_of: Callable[[str], str],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._pubsub = pubsub
        self._flag = flag
        self._channel_of = channel_of
        self._channels: dict[str, _Channel] = {}
        self._changed = asyncio.Event()
        self._watches: dict[WatchKey, _Watch] = {}
        self._task: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[Any]] = set()

    async def wait(self, key: str, version: int, timeout_s: float) -> None:
        watch = self._watches.get((key, version))
        if watch is None:
            watch = self._watches[key, version] = _Watch(self._enter(self._channel_of(key)))
            self._spawn(self._watch((key, version), watch))
        future: asyncio.Future[None] = self._loop.create_future()
        watch.waiting.add(future)
        timer = self._loop.call_later(max(0.0, timeout_s), _time_over, future)
        try:
            await future
        finally:
            timer.cancel()
            watch.waiting.discard(future)
            if not watch.waiting:
                if self._watches.get((key, version)) is watch:
                    del self._watches[key, version]
                self._leave(watch.channel)

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
        for watch in self._watches.values():
            watch.wake()
        await cancel(task for task in (self._task, *self._tasks) if task is not None)

    async def _watch(self, key: WatchKey, watch: _Watch) -> None:
        """Subscribed first, flagged second; in a task of its own, so that no waiter's end can stop it."""
        try:
            await watch.channel.ready.wait()
            watch.flagged = True  # before the flag: a connection lost meanwhile must lead to a second one
            if not await self._flag(*key):
                self._wake(key)
        except StoreError as error:
            watch.wake(error)

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
            updating: asyncio.Task[None] | None = None
            try:
                pubsub = await self._pubsub()
                await pubsub.subscribe(*self._channels)
                updating = self._loop.create_task(self._update(pubsub, set(self._channels)))
                pause = _FIRST_PAUSE_S
                while True:
                    self._heard(await pubsub.get_message(timeout=None))
            except (OSError, RedisError, RedisClusterException) as error:
                log.warning("the subscriber lost its connection and connects again: %s", error)
            finally:
                if updating is not None:
                    updating.cancel()
                if pubsub is not None:
                    with contextlib.suppress(OSError, RedisError):
                        await pubsub.aclose()
            for channel in self._channels.values():
                channel.ready.clear()
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(pause * 2, _LONGEST_PAUSE_S)

    async def _update(self, pubsub: Any, subscribed: set[str]) -> None:
        """Keep the subscriptions in step with the channels that somebody uses."""
        with contextlib.suppress(OSError, RedisError):  # the reader notices it, too, and connects again
            while True:
                self._changed.clear()
                wanted = set(self._channels)
                if wanted - subscribed:
                    await pubsub.subscribe(*(wanted - subscribed))
                if subscribed - wanted:
                    await pubsub.unsubscribe(*(subscribed - wanted))
                subscribed = wanted
                await self._changed.wait()

    def _heard(self, message: dict[str, Any] | None) -> None:
        channel = self._channels.get(message["channel"].decode()) if message else None
        if channel is None or message is None:
            return
        if message["type"] == "message":
            self._wake(_watch_key(message["data"]))
            for on_message, _ in tuple(channel.listeners.values()):
                try:
                    on_message(message["data"])
                except Exception:  # a callback of somebody else must not disturb the others
                    log.exception("a listener failed")
        elif message["type"] == "subscribe":
            channel.ready.set()
            for _, reload in channel.listeners.values():
                self._spawn(reload())
            self._spawn(self._flag_again(channel))

    def _wake(self, key: WatchKey) -> None:
        watch = self._watches.pop(key, None)
        if watch is not None:
            watch.wake()

    async def _flag_again(self, channel: _Channel) -> None:
        """After a gap: whoever waits on *channel* may have missed a message."""
        for key in [key for key, watch in self._watches.items() if watch.flagged and watch.channel is channel]:
            try:
                if not await self._flag(*key):
                    self._wake(key)
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


def _time_over(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _watch_key(message: bytes) -> WatchKey:
    """Whom a message about a claim concerns: ``VERSION KEY``. Nobody waits for what is not such a message."""
    version, _, key = message.partition(b" ")
    return key.decode(errors="replace"), int(version) if version.isdigit() else 0
