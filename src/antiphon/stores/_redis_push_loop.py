"""The subscriber of the asynchronous journal: one task per event loop that listens for all tasks there."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from typing import Any

from antiphon.errors import StoreError
from antiphon.stores._redis_pipe import Place
from antiphon.stores._redis_push import Channel, Channels, Listener, WatchKey, subscribe, unsubscribe, watch_key
from antiphon.stores._redis_stream import Stream, connect
from antiphon.stores._redis_url import Target
from antiphon.stores._redis_wire import fresh

log = logging.getLogger("antiphon.stores.redis")

_FIRST_PAUSE_S = 0.02
_LONGEST_PAUSE_S = 1.0


class _Watch:
    __slots__ = ("armed", "channel", "waiting")

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.armed = False
        self.waiting: set[asyncio.Future[None]] = set()

    def wake(self, error: Exception | None = None) -> None:
        for future in self.waiting:
            if not future.done():
                if error is None:
                    future.set_result(None)
                else:
                    future.set_exception(fresh(error))


class LoopHub:
    """Waiting tasks, and the connection that wakes them. One cancelled waiter concerns nobody else."""

    def __init__(
        self,
        target: Target,
        place: Place,
        flag: Callable[[str, int], Awaitable[bool]],
        channel_of: Callable[[str], str],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._target = target
        self._place = place
        self._flag = flag
        self._channel_of = channel_of
        self._channels = Channels(asyncio.Event)
        self._watches: dict[WatchKey, _Watch] = {}
        self._stream: Stream | None = None
        self._lost = asyncio.Event()
        self._supervisor: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._closed = False

    async def wait(self, key: str, version: int, timeout_s: float) -> None:
        watch = self._watches.get((key, version))
        if watch is None:
            watch = self._watches[key, version] = _Watch(self._enter(self._channel_of(key), of_claims=True))
            self._spawn(self._arm((key, version), watch))
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

    def listen(self, name: str, on_message: Callable[[bytes], None], reload: Callable[[], Any]) -> Callable[[], None]:
        listener = Listener(on_message, reload)
        channel = self._enter(name, of_claims=False)
        channel.listeners.add(listener)
        if channel.ready.is_set():
            self._spawn(reload())

        def stop() -> None:
            if listener in channel.listeners:
                channel.listeners.remove(listener)
                self._leave(channel)

        return stop

    async def close(self) -> None:
        self._closed = True
        for watch in self._watches.values():
            watch.wake()
        for task in (self._supervisor, *self._tasks):
            if task is not None:
                task.cancel()
        if self._stream is not None:
            self._stream.close()
        await asyncio.sleep(0)

    async def _arm(self, key: WatchKey, watch: _Watch) -> None:
        """Subscribed first, flagged second; in a task of its own, so that no waiter's end can stop it."""
        try:
            await watch.channel.ready.wait()
            watch.armed = True  # before the flag: a connection lost meanwhile must lead to a second one
            if not await self._flag(*key):
                self._wake(key)
        except StoreError as error:
            watch.wake(error)

    def _enter(self, name: str, *, of_claims: bool) -> Channel:
        channel, new = self._channels.enter(name, of_claims=of_claims)
        if new and self._stream is not None:
            self._stream.write(subscribe([name]))
        if self._supervisor is None and not self._closed:
            self._supervisor = self._loop.create_task(self._run())
        return channel

    def _leave(self, channel: Channel) -> None:
        idle = unsubscribe(self._channels.leave(channel))
        if idle and self._stream is not None:
            self._stream.write(idle)

    async def _run(self) -> None:
        pause = _FIRST_PAUSE_S
        while not self._closed:
            self._lost.clear()
            try:
                self._stream = await connect(self._target, await self._place(), self._heard, lambda _: self._lost.set())
                wanted = subscribe(self._channels.names())
                if wanted:
                    self._stream.write(wanted)
                pause = _FIRST_PAUSE_S
                await self._lost.wait()
                log.warning("the subscriber lost its connection and connects anew")
            except (OSError, StoreError) as error:
                log.warning("the subscriber cannot connect and tries again: %s", error)
            self._stream = None
            for channel in self._channels.all():
                channel.ready.clear()
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(pause * 2, _LONGEST_PAUSE_S)

    def _heard(self, message: Any) -> None:
        if not isinstance(message, list) or len(message) != 3:
            return
        kind, name, body = message
        channel = self._channels.get(name.decode())
        if channel is None:
            return
        if kind == b"message":
            if channel.of_claims:
                self._wake(watch_key(body))
            for listener in list(channel.listeners):
                _tell(listener.on_message, body)
        elif kind == b"subscribe":
            channel.ready.set()
            for listener in channel.listeners:
                self._spawn(listener.reload())
            self._spawn(self._flag_again(channel))

    def _wake(self, key: WatchKey) -> None:
        watch = self._watches.pop(key, None)
        if watch is not None:
            watch.wake()

    async def _flag_again(self, channel: Channel) -> None:
        """After a gap: whoever waits on *channel* may have missed a message."""
        for key in [key for key, watch in self._watches.items() if watch.armed and watch.channel is channel]:
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


def _tell(function: Callable[[bytes], None], message: bytes) -> None:
    """A callback of somebody else must not disturb the others."""
    try:
        function(message)
    except Exception:
        log.exception("a listener failed")
