"""Request bodies over ASGI."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]


class Disconnected(Exception):
    """The client has disconnected."""


class TooLarge(Exception):
    """A body is larger than allowed."""


async def read_body(receive: Receive, most: int, declared: str = "") -> bytes:
    """The body of a request, of at most *most* bytes; *declared* is its ``Content-Length``, if known."""
    if declared.isdigit() and int(declared) > most:
        raise TooLarge
    chunks: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Disconnected
        chunks.append(message.get("body", b""))
        size += len(chunks[-1])
        if size > most:
            raise TooLarge
        if not message.get("more_body"):
            return chunks[0] if len(chunks) == 1 else b"".join(chunks)
