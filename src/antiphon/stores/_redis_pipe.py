"""A Redis server for the asynchronous journal: one connection per event loop that pipelines by itself.

Commands that are given in one step of the loop leave in one write. A caller that is cancelled only stops
listening: its command is still sent and answered, so replies never shift. What was unanswered when a
connection broke is sent again on the next one: every command of this store may be repeated.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from antiphon.errors import StoreUnavailable
from antiphon.stores._redis_stream import Stream, connect
from antiphon.stores._redis_url import Address, Target
from antiphon.stores._redis_wire import ask_sentinels, fresh, unreachable

if TYPE_CHECKING:
    from antiphon.stores._redis_wire import Orphan

_FIRST_PAUSE_S = 0.01
_LONGEST_PAUSE_S = 0.25

_new = tuple.__new__  # half the price of a named tuple's own constructor

Place = Callable[[], Awaitable[Address]]


def placer(target: Target, address: Address | None = None) -> Place:
    """Which address to connect to: *address*, the target's in turn, or what Sentinel names."""
    turn: Iterator[Address] = iter(())

    async def given() -> Address:
        assert address is not None
        return address

    async def named() -> Address:
        return await asyncio.to_thread(ask_sentinels, target)

    async def next_one() -> Address:
        nonlocal turn
        chosen = next(turn, None)
        if chosen is None:
            turn = iter(target.addresses)
            chosen = next(turn)
        return chosen

    if address is not None:
        return given
    return named if target.mode == "sentinel" else next_one


class _Entry(NamedTuple):
    """A command on its way."""

    data: bytes
    again: bytes
    future: asyncio.Future[Any]
    orphan: Orphan | None
    since: float
    patience_s: float


class Pipe:
    """One auto-pipelined connection, made when it is needed and made anew when it breaks."""

    def __init__(self, target: Target, place: Place, patience_s: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._target = target
        self._place = place
        self._patience_s = patience_s
        self._stream: Stream | None = None
        self._queue: list[_Entry] = []
        self._sent: deque[_Entry] = deque()
        self._scheduled = False
        self._connecting: asyncio.Task[None] | None = None
        self._watch: asyncio.TimerHandle | None = None
        self._mark: _Entry | None = None
        self._looks = 0
        self._closed = False

    def call(
        self, data: bytes, again: bytes = b"", orphan: Orphan | None = None, patience_s: float = 0.0
    ) -> asyncio.Future[Any]:
        loop = self._loop
        future: asyncio.Future[Any] = loop.create_future()
        if self._closed:
            future.set_exception(StoreUnavailable("The store was closed.", hint="Open it again."))
            return future
        self._queue.append(_new(_Entry, (data, again, future, orphan, loop.time(), patience_s)))
        if self._scheduled:
            return future
        if self._sent or self._stream is None:
            self._scheduled = True
            loop.call_soon(self._flush)
        else:
            self._flush()  # nothing is under way: a lone caller need not wait for others to join
        return future

    async def many(self, datas: Sequence[bytes], *, orphan: Orphan | None = None) -> list[Any]:
        futures = [self.call(data, orphan=orphan if at == 0 else None) for at, data in enumerate(datas)]
        try:
            return await asyncio.gather(*futures)
        except asyncio.CancelledError:
            first = futures[0]
            if orphan is not None and first.done() and not first.cancelled() and first.exception() is None:
                orphan(first.result())
            raise

    async def pause(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def reset(self) -> None:
        if self._stream is not None:
            self._stream.close()

    async def close(self) -> None:
        self._closed = True
        for entry in (*self._sent, *self._queue):
            self._fail(entry, StoreUnavailable("The store was closed.", hint="Open it again."))
        self._sent.clear()
        self._queue.clear()
        for timer in (self._watch, self._connecting):
            if timer is not None:
                timer.cancel()
        if self._stream is not None:
            self._stream.close()
            self._stream = None
            await asyncio.sleep(0)  # lets the transport close its socket

    def _flush(self) -> None:
        self._scheduled = False
        if self._stream is None:
            if self._connecting is None and self._queue:
                self._connecting = self._loop.create_task(self._connect())
            return
        entries = [entry for entry in self._queue if not entry.future.done()]  # a cancelled one was never sent
        self._queue.clear()
        if entries:
            self._sent.extend(entries)
            self._stream.write(b"".join([entry.data for entry in entries]))
            if self._watch is None:
                self._watch = self._loop.call_later(self._target.timeout_s / 2, self._look)

    def _reply(self, reply: Any) -> None:
        entry = self._sent.popleft()
        future = entry.future
        if not future.done():
            future.set_result(reply)
        elif entry.orphan is not None and future.cancelled():
            entry.orphan(reply)

    def _look(self) -> None:
        """Break a connection off on which nothing has moved for the time limit."""
        self._watch = None
        if not self._sent or self._stream is None:
            self._mark = None
            return
        head = self._sent[0]
        self._looks = self._looks + 1 if head is self._mark else 0
        self._mark = head
        if self._looks >= 2:
            overdue = self._loop.time() - self._target.timeout_s
            silence = TimeoutError(f"no answer for {self._target.timeout_s} s")
            for entry in self._sent:
                if entry.since <= overdue:
                    self._fail(entry, unreachable(self._target, silence))
            self._stream.close()
        else:
            self._watch = self._loop.call_later(self._target.timeout_s / 2, self._look)

    def _lost(self, stream: Stream) -> None:
        if stream is not self._stream:
            return
        self._stream = None
        unanswered = [entry for entry in self._sent if not entry.future.done() or entry.orphan is not None]
        self._queue[:0] = [entry._replace(data=entry.again or entry.data) for entry in unanswered]
        self._sent.clear()
        if self._queue and not self._closed:
            self._flush()

    async def _connect(self) -> None:
        pause = _FIRST_PAUSE_S
        try:
            while self._queue:
                try:
                    address = await self._place()
                    self._stream = await connect(self._target, address, self._reply, self._lost)
                except StoreUnavailable as refusal:
                    self._expire(refusal, at_once=True)
                except OSError as error:
                    self._expire(unreachable(self._target, error))
                else:
                    return
                if self._queue:
                    await asyncio.sleep(pause * random.uniform(0.5, 1.0))
                    pause = min(pause * 2, _LONGEST_PAUSE_S)
        finally:
            self._connecting = None
            self._flush()

    def _expire(self, error: StoreUnavailable, *, at_once: bool = False) -> None:
        """Fail the commands whose patience is used up, each with an exception of its own."""
        now = self._loop.time()
        patient = []
        for entry in self._queue:
            limit = max(entry.patience_s, self._patience_s)
            if at_once or now - entry.since >= limit:
                self._fail(entry, fresh(error))
            else:
                patient.append(entry)
        self._queue = patient

    @staticmethod
    def _fail(entry: _Entry, error: Exception) -> None:
        if not entry.future.done():
            entry.future.set_exception(error)
