"""One Redis connection of an event loop: replies are handed on as they come."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from antiphon.stores._redis_url import Address, Target
from antiphon.stores._redis_wire import Reader, check_greeting, greeting, keep_alive

OnReply = Callable[[Any], None]
OnLost = Callable[["Stream"], None]


class Stream(asyncio.Protocol):
    """Calls ``on_reply`` for each reply and ``on_lost`` at the end."""

    def __init__(self) -> None:
        self._reader = Reader()
        self._transport: asyncio.Transport | None = None
        self.on_reply: OnReply = _ignore
        self.on_lost: OnLost = _ignore

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        connection = transport.get_extra_info("socket")
        if connection is not None:
            keep_alive(connection)

    def data_received(self, data: bytes) -> None:
        next_reply, on_reply = self._reader.gets, self.on_reply
        self._reader.feed(data)
        reply = next_reply()
        while reply is not False:
            on_reply(reply)
            reply = next_reply()

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self.on_lost(self)

    def write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)

    def close(self) -> None:
        """Break the connection off; ``on_lost`` follows."""
        if self._transport is not None:
            self._transport.abort()


async def connect(target: Target, address: Address, on_reply: OnReply, on_lost: OnLost) -> Stream:
    """Open a connection and log in; what goes wrong is an ``OSError`` or a refusal in words."""
    loop = asyncio.get_running_loop()
    stream = Stream()
    hello = greeting(target)
    replies: list[Any] = []
    greeted: asyncio.Future[bool] = loop.create_future()

    def collect(reply: Any) -> None:
        replies.append(reply)
        if len(replies) == len(hello) and not greeted.done():
            greeted.set_result(True)

    def broken(_: Stream) -> None:
        if not greeted.done():
            greeted.set_result(False)

    stream.on_reply, stream.on_lost = collect, broken
    try:
        async with asyncio.timeout(target.connect_timeout_s):
            if isinstance(address, str):
                await loop.create_unix_connection(lambda: stream, address)
            else:
                await loop.create_connection(lambda: stream, *address, ssl=target.tls)
            stream.write(b"".join(hello))
            if not await greeted:
                raise ConnectionResetError("the server closed the connection")
        check_greeting(target, replies)
    except BaseException:
        stream.close()
        raise
    stream.on_reply, stream.on_lost = on_reply, on_lost
    return stream


def _ignore(_: Any) -> None: ...
