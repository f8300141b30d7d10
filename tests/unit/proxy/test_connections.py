"""What a server writes to a client in one turn of the event loop leaves in one piece."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from uvicorn.server import ServerState

from antiphon.config.model import HostSection
from antiphon.host.http.connections import LimitedProtocol, ServerConfig


class Transport(asyncio.Transport):
    """Notes what is sent."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 1), "sockname": ("127.0.0.1", 2)})
        self.sent: list[bytes] = []
        self.left: Iterator[int] = iter(())
        self.closed = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        assert not self.closed
        self.sent.append(bytes(data))

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = True

    def get_write_buffer_size(self) -> int:
        return next(self.left)

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass


START = {"type": "http.response.start", "status": 200, "headers": []}
REQUEST = b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n"


class Server:
    """A server without a network: its connections have a transport that notes what is sent."""

    def __init__(self, app: Any, *, connections: int = 10, idle_s: float = 10, body_s: float = 10) -> None:
        settings = HostSection(
            header_timeout_s=10, request_timeout_s=body_s, idle_timeout_s=idle_s, max_connections=connections
        )
        self._config = ServerConfig(app, settings, log_config=None)
        self._config.load()
        self._state = ServerState()

    def connect(self) -> tuple[LimitedProtocol, Transport]:
        protocol, transport = LimitedProtocol(self._config, self._state, {}), Transport()
        protocol.connection_made(transport)
        return protocol, transport


async def turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def served(
    parts: Iterable[Iterable[bytes]], *, then: Callable[[Transport], object] = bool, head: str = ""
) -> Transport:
    """A response whose chunks are sent in these turns of the event loop; what it left on the connection."""

    transport = Transport()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send(START)
        for chunks in parts:
            for chunk in chunks:
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
            await turns(2)
            then(transport)
        await send({"type": "http.response.body", "body": b""})

    async def serve() -> Transport:
        nonlocal transport
        protocol, transport = Server(app).connect()
        protocol.data_received(f"GET / HTTP/1.1\r\nhost: localhost\r\n{head}\r\n".encode())
        while not protocol.is_waiting:
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        protocol.connection_lost(None)
        return transport

    return asyncio.run(serve())


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


END = b"0\r\n\r\n"


def test_a_head_leaves_with_the_first_chunk_and_the_last_chunk_with_the_end() -> None:
    transport = served([[b"one"]])
    (head_and_first, end) = transport.sent
    assert head_and_first.startswith(b"HTTP/1.1 200 OK\r\n")
    assert head_and_first.endswith(b"\r\n\r\n" + chunk(b"one"))
    assert end == END
    (whole,) = served([]).sent
    assert whole.endswith(b"\r\n\r\n" + END)


def test_a_chunk_does_not_wait_for_the_next_one() -> None:
    seen: list[int] = []
    served([[b"one"], [b"two"], []], then=lambda transport: seen.append(len(transport.sent)))
    assert seen == [1, 2, 2]


def test_a_head_does_not_wait_for_a_body() -> None:
    seen: list[int] = []
    served([[]], then=lambda transport: seen.append(len(transport.sent)))
    assert seen == [1]


def test_what_was_written_leaves_before_the_connection_closes() -> None:
    transport = served([], head="connection: close\r\n")
    assert b"".join(transport.sent).endswith(END)
    assert transport.closed


def test_large_chunks_are_not_held() -> None:
    large = b"x" * 40_000
    transport = served([[large, large, b"end"]])
    assert [len(sent) > 40_000 for sent in transport.sent] == [True, True, False, False]


@given(st.lists(st.lists(st.binary(min_size=1, max_size=20_000), max_size=4), max_size=4))
def test_nothing_is_lost_and_the_order_stays(turns: list[list[bytes]]) -> None:
    sent = b"".join(served(turns).sent)
    _, _, body = sent.partition(b"\r\n\r\n")
    assert body == b"".join(chunk(part) for turn in turns for part in turn) + END


def answered(*, then: Callable[[Server, LimitedProtocol, Transport], object], connections: int = 10) -> bytes:
    """What a client got before *then* happened in the very turn in which its response was complete."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send(START)
        await send({"type": "http.response.body", "body": b"whole"})
        then(server, *places)

    server = Server(app, connections=connections)
    places: Any = ()

    async def serve() -> None:
        nonlocal places
        places = server.connect()
        places[0].data_received(REQUEST)
        await turns()

    asyncio.run(serve())
    return b"".join(places[1].sent)


def test_a_client_that_sends_no_more_gets_what_was_written() -> None:
    def half_closed(server: Server, protocol: LimitedProtocol, transport: Transport) -> None:
        protocol.eof_received()
        transport.close()  # as transports do then

    assert answered(then=half_closed).endswith(chunk(b"whole") + END)


def test_a_connection_that_gives_way_to_another_one_has_its_response() -> None:
    assert answered(then=lambda server, *_: server.connect(), connections=1).endswith(chunk(b"whole") + END)


def test_a_client_that_leaves_ends_what_is_answered_although_it_has_asked_for_more() -> None:
    seen: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send(START)
        seen.append((await receive())["type"])
        await send({"type": "http.response.body", "body": b"nobody reads this"})

    async def serve() -> Transport:
        protocol, transport = Server(app).connect()
        protocol.data_received(REQUEST * 2)
        await turns()
        transport.close()
        protocol.connection_lost(None)
        await turns()
        return transport

    transport = asyncio.run(serve())
    assert seen == ["http.disconnect"]
    assert b"nobody" not in b"".join(transport.sent)


def test_fields_after_a_body_are_no_headers_of_the_request() -> None:
    seen: list[tuple[bytes, bytes]] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        while (await receive()).get("more_body"):
            pass
        seen.extend(scope["headers"])
        await send(START)
        await send({"type": "http.response.body", "body": b""})

    async def serve() -> None:
        protocol, _ = Server(app).connect()
        protocol.data_received(b"POST / HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n")
        await turns()
        protocol.data_received(b"3\r\none\r\n0\r\nconnection: authorization\r\nx-admin: yes\r\n\r\n")
        await turns()

    asyncio.run(serve())
    assert [name for name, _ in seen] == [b"host", b"transfer-encoding"]


@pytest.mark.parametrize("left", [[90_000, 60_000, 30_000, 30_000], [90_000, 89_000], [90_000, 90_000]])
def test_a_slow_reader_is_waited_for_and_one_that_does_not_read_is_not(left: list[int]) -> None:
    async def serve() -> None:
        protocol, transport = Server(None, idle_s=0).connect()
        transport.left = iter(left)
        protocol.pause_writing()
        while not transport.closed:
            await asyncio.sleep(0)
        assert list(transport.left) == []

    asyncio.run(serve())


POST = b"POST / HTTP/1.1\r\nhost: localhost\r\ncontent-length: 3\r\n\r\n"


def late(*sent: bytes, answers: int = 0) -> tuple[bytes, list[str]]:
    """What a client gets that sends this and no more, and what the application was told; *answers* come before."""
    seen: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if len(seen) < answers:
            seen.append("answered")
            await send(START)
            await send({"type": "http.response.body", "body": b"early"})
            return
        while (message := await receive()).get("more_body"):
            pass
        seen.append(message["type"])

    async def serve() -> Transport:
        protocol, transport = Server(app, body_s=0).connect()
        for data in sent:
            protocol.data_received(data)
        while not transport.closed:
            await asyncio.sleep(0)
        protocol.connection_lost(None)
        await turns()
        return transport

    return b"".join(asyncio.run(serve()).sent), seen


@pytest.mark.parametrize("body", [b"", b"{"])
def test_a_body_that_does_not_come_is_told_so(body: bytes) -> None:
    got, seen = late(POST + body)
    assert got.startswith(b"HTTP/1.1 408 ")
    assert seen == ["http.disconnect"]


def test_a_response_that_has_begun_is_not_mixed_with_that() -> None:
    got, seen = late(POST, answers=1)
    assert got.count(b"HTTP/1.1 ") == 1
    assert got.startswith(b"HTTP/1.1 200 ")
    assert seen == ["answered"]


def test_a_body_that_has_come_has_no_limit_any_more() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await turns(20)
        await send(START)
        await send({"type": "http.response.body", "body": b"whole"})

    async def serve() -> bytes:
        protocol, transport = Server(app, body_s=0).connect()
        protocol.data_received(POST + b"{}\n")
        await turns(40)
        assert not transport.closed
        return b"".join(transport.sent)

    assert asyncio.run(serve()).startswith(b"HTTP/1.1 200 ")
