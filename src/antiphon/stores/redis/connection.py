"""A redis-py connection that the callers of one event loop share.

Commands given in one iteration of the loop leave in one write; replies are matched in order. A caller that is
cancelled only stops listening: its command is still answered, so replies never shift.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from redis.exceptions import ResponseError


class PipelinedConnection:
    """Connects when it is first needed, and again after it was lost."""

    def __init__(self, make: Callable[[], Any], timeout_s: float, connect_timeout_s: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._make = make
        self._timeout_s = timeout_s
        self._connect_timeout_s = connect_timeout_s
        self._queue: list[tuple[bytes, asyncio.Future[Any]]] = []
        self._sent: deque[asyncio.Future[Any]] = deque()
        self._task: asyncio.Task[None] | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._scheduled = self._retired = False
        self._last_reply = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def send(self, data: bytes) -> asyncio.Future[Any]:
        """The reply to a packed command; an error reply or a lost connection is an exception as value."""
        future: asyncio.Future[Any] = self._loop.create_future()
        self._queue.append((data, future))
        if self._task is None:
            self._task = self._loop.create_task(self._run())
        elif not self._sent:
            self._flush()  # nothing is under way: a lone caller need not wait for others to join
        elif not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._flush)
        return future

    async def disconnect(self, *, at_once: bool) -> None:
        """Be used no more: close when all is answered, or *at_once*."""
        self._retired = True
        task = self._task
        if task is not None and (at_once or not (self._sent or self._queue)):
            await cancel({task})

    async def _run(self) -> None:
        connection = self._make()
        error: Exception = ConnectionResetError("the connection was closed")
        try:
            async with asyncio.timeout(self._connect_timeout_s):
                await connection.connect()
            async with asyncio.timeout(None) as self._limit:
                self._writer = connection._writer  # its send_packed_command() would take a task for each write
                self._flush()
                await self._read(connection.read_response)
        except asyncio.CancelledError:
            pass
        except TimeoutError:
            error = TimeoutError("no answer in time")
        except Exception as failure:
            error = failure
        finally:
            self._task = self._writer = None
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            unanswered = [*self._sent, *(future for _, future in self._queue)]
            self._sent.clear()
            self._queue.clear()
            for future in unanswered:
                if not future.done():
                    future.set_result(error)
            await connection.disconnect(nowait=True)

    def _flush(self) -> None:
        self._scheduled = False
        if self._writer is None:
            return
        batch = [entry for entry in self._queue if not entry[1].done()]  # a cancelled one was never sent
        self._queue.clear()
        if batch:
            if not self._sent:
                self._last_reply = self._loop.time()
            if self._timer is None:
                self._timer = self._loop.call_later(self._timeout_s, self._check)
            self._sent.extend([future for _, future in batch])
            self._writer.write(b"".join([data for data, _ in batch]))

    async def _read(self, read: Callable[[], Awaitable[Any]]) -> None:
        while self._sent or self._queue or not self._retired:
            try:
                reply = await read()
            except ResponseError as error:
                reply = error
            future = self._sent.popleft()
            self._last_reply = self._loop.time()
            if not future.done():
                future.set_result(reply)

    def _check(self) -> None:
        """Give up a connection on which a reply has been due for the timeout."""
        self._timer = None
        if self._sent:
            due = self._last_reply + self._timeout_s
            if due <= self._loop.time():
                self._limit.reschedule(due)
            else:
                self._timer = self._loop.call_at(due, self._check)


async def cancel(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel until all have ended: ``wait_for`` of Python 3.11, with which redis-py writes, can lose a cancellation."""
    pending = set(tasks)
    while pending:
        for task in pending:
            task.cancel()
        _, pending = await asyncio.wait(pending, timeout=0.05)
