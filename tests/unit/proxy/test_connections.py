"""What a server writes to a client in one turn of the event loop leaves in one piece."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from uvicorn.server import ServerState

from antiphon.config.model import HostSection
from antiphon.host.http.connections import LimitedProtocol, Limits, ServerConfig


class Transport(asyncio.Transport):
    """Notes what is sent."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 1), "sockname": ("127.0.0.1", 2)})
        self.sent: list[bytes] = []
        self.closed = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        assert not self.closed
        self.sent.append(bytes(data))

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True


def served(
    turns: Iterable[Iterable[bytes]], *, then: Callable[[Transport], object] = bool, head: str = ""
) -> Transport:
    """A response whose chunks are sent in these turns of the event loop; what it left on the connection."""

    async def app(scope: object, receive: object, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for chunks in turns:
            for chunk in chunks:
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            then(transport)
        await send({"type": "http.response.body", "body": b""})

    transport = Transport()

    async def serve() -> None:
        config = ServerConfig(app, HostSection(), limits=Limits(10, 10, 10), log_config=None)
        config.load()
        protocol = LimitedProtocol(config, ServerState(), {})
        protocol.connection_made(transport)
        protocol.data_received(f"GET / HTTP/1.1\r\nhost: localhost\r\n{head}\r\n".encode())
        while not protocol.is_waiting:
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        protocol.connection_lost(None)

    asyncio.run(serve())
    return transport


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
