"""A Redis connection that closes between two commands: an event loop may refuse the write before the reader knows."""

from __future__ import annotations

import asyncio
import gc
import sys
from typing import Any

import pytest

from antiphon.stores.redis.client import PipelinedConnection


class Closing:
    """A connection whose transport takes one command; the reader learns later that it is gone."""

    def __init__(self) -> None:
        self._writer = self
        self._answers: asyncio.Queue[Any] = asyncio.Queue()
        self._closed = False

    async def connect(self) -> None: ...

    async def disconnect(self, *, nowait: bool) -> None: ...

    def write(self, data: bytes) -> None:
        if self._closed:
            asyncio.get_running_loop().call_soon(self._answers.put_nowait, ConnectionResetError("gone"))
            raise RuntimeError("unable to perform operation on <TCPTransport closed=True>; the handler is closed")
        self._closed = True
        self._answers.put_nowait(b"OK")

    async def read_response(self) -> Any:
        answer = await self._answers.get()
        if isinstance(answer, Exception):
            raise answer
        return answer


async def test_a_write_that_uvloop_refuses_is_a_lost_connection() -> None:
    connection = PipelinedConnection(Closing, 30.0, 30.0)
    assert await connection.send(b"one") == b"OK"
    assert isinstance(await connection.send(b"two"), ConnectionResetError)
    assert await connection.send(b"three") == b"OK", "on a new connection"
    await connection.disconnect(at_once=True)


class Ended(Closing):
    """A connection that can only be closed in a running loop, as that of redis-py."""

    async def disconnect(self, *, nowait: bool) -> None:
        asyncio.get_running_loop()


def test_a_loop_that_is_closed_under_a_connection_leaves_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    gc.collect()  # what other tests have left
    raised: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda error: raised.append(error.exc_value))
    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda *_: None)  # asyncio says of each task that it was destroyed

    async def use() -> None:
        assert await PipelinedConnection(Ended, 30.0, 30.0).send(b"one") == b"OK"

    loop.run_until_complete(use())
    loop.close()
    gc.collect()
    assert not raised
