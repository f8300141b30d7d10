"""A TCP proxy that misbehaves on request: what a network does to a client and its server.

    with FaultProxy(server.port) as proxy:
        client = connect(port=proxy.port)
        proxy.drop("down")      # requests arrive, answers are lost: the outcome is unknown to the client
        ...
        proxy.heal()

It runs on a thread and an event loop of its own, so synchronous and asynchronous tests use it alike.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
import weakref
from collections.abc import Coroutine
from typing import Any, Literal, Self, TypeVar
from urllib.parse import urlsplit, urlunsplit

Direction = Literal["up", "down"]
T = TypeVar("T")


class _Faults:
    """What is wrong at the moment; ``up`` is client to server."""

    def __init__(self) -> None:
        self.delay: dict[Direction, float] = {"up": 0.0, "down": 0.0}
        self.drop: set[Direction] = set()
        self.truncate: dict[Direction, int | None] = {"up": None, "down": None}
        self.refuse = False


class FaultProxy:
    """Forwards ``127.0.0.1:port`` to ``host:target``, with faults that can be set and healed at any time."""

    def __init__(self, target: int, *, host: str = "127.0.0.1") -> None:
        self._target = (host, target)
        self._faults = _Faults()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="fault-proxy", daemon=True)
        self._links: set[tuple[asyncio.StreamWriter, asyncio.StreamWriter]] = set()
        self._half_closed: weakref.WeakSet[asyncio.StreamWriter] = weakref.WeakSet()
        self._tasks: set[asyncio.Task[None]] = set()
        self.port = 0
        self.connections = 0
        """Connections accepted so far."""
        self.carried: dict[Direction, int] = {"up": 0, "down": 0}
        """Bytes forwarded so far."""
        self.asked = 0
        """Round trips so far: how often a client spoke after its server had."""

    def __enter__(self) -> Self:
        self._thread.start()
        self._server = self._do(asyncio.start_server(self._accept, "127.0.0.1", 0))
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    def __exit__(self, *_: object) -> None:
        self._do(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def url(self, address: str) -> str:
        """*address* with its port replaced by the proxy's."""
        parts = urlsplit(address)
        login = parts.netloc.rpartition("@")[0]
        return urlunsplit(parts._replace(netloc=f"{login + '@' if login else ''}127.0.0.1:{self.port}"))

    def retarget(self, port: int) -> None:
        """Send new connections to another server; reset the open ones with :meth:`reset`."""
        self._target = (self._target[0], port)

    def delay(self, seconds: float, direction: Direction | None = None) -> None:
        """Hold every piece of data back for *seconds*."""
        for way in _ways(direction):
            self._faults.delay[way] = seconds

    def drop(self, direction: Direction | None = None) -> None:
        """Swallow data silently; connections stay open."""
        self._faults.drop.update(_ways(direction))

    def truncate(self, size: int, direction: Direction = "down") -> None:
        """Forward *size* more bytes, then close the connection in the middle of the message."""
        self._faults.truncate[direction] = size

    def refuse(self) -> None:
        """Close every new connection at once."""
        self._faults.refuse = True

    def reset(self) -> None:
        """Break all open connections with a TCP reset, towards both ends."""
        self._do(self._reset())

    def half_close(self, direction: Direction = "down") -> None:
        """Send end-of-file in one direction on all open connections; the other stays open."""
        self._do(self._half_close(direction))

    def heal(self) -> None:
        """Behave again. What was dropped stays lost."""
        self._faults = _Faults()

    def _do(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout=10)

    async def _close(self) -> None:
        self._server.close()
        await self._reset()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _reset(self) -> None:
        for link in list(self._links):
            for writer in link:
                _reset(writer)

    async def _half_close(self, direction: Direction) -> None:
        for up, down in list(self._links):
            writer = up if direction == "up" else down
            if writer.can_write_eof():
                writer.write_eof()
                self._half_closed.add(writer)

    async def _accept(self, client: asyncio.StreamReader, answer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.connections += 1
        try:
            if self._faults.refuse:
                _reset(answer)
                return
            server, request = await asyncio.open_connection(*self._target)
            link = (request, answer)
            self._links.add(link)
            try:
                spoke: list[Direction] = ["down"]
                await asyncio.gather(
                    self._pump("up", client, request, spoke), self._pump("down", server, answer, spoke)
                )
            finally:
                self._links.discard(link)
                request.close()
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            answer.close()
            self._tasks.discard(task)

    async def _pump(
        self, way: Direction, source: asyncio.StreamReader, sink: asyncio.StreamWriter, spoke: list[Direction]
    ) -> None:
        while data := await source.read(65_536):
            self.asked += (way, *spoke) == ("up", "down")
            spoke[0] = way
            if pause := self._faults.delay[way]:
                await asyncio.sleep(pause)
            if way in self._faults.drop:
                continue
            left = self._faults.truncate[way]
            if left is not None:
                data = data[:left]
                self._faults.truncate[way] = left - len(data)
            if sink in self._half_closed:
                raise ConnectionAbortedError("half-closed on request")
            sink.write(data)
            self.carried[way] += len(data)
            await sink.drain()
            if self._faults.truncate[way] == 0:
                raise ConnectionAbortedError("truncated on request")
        with contextlib.suppress(OSError):
            if way not in self._faults.drop and sink.can_write_eof():
                sink.write_eof()


def _ways(direction: Direction | None) -> tuple[Direction, ...]:
    return ("up", "down") if direction is None else (direction,)


def _reset(writer: asyncio.StreamWriter) -> None:
    sock = writer.get_extra_info("socket")
    if sock is not None:
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
