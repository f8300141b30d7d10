"""Clients of the proxy: requests, responses and disconnects."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, NamedTuple

import orjson

from antiphon._asgi import Disconnected
from antiphon.adapters import _mcp
from antiphon.adapters._wire import ModelCall
from antiphon.proxy.upstreams import Headers, Upstream

_BODILESS = (204, 304)
"""Statuses without a body, whatever ``Content-Length`` says."""


class Refused(Exception):
    """A request that the proxy does not forward."""

    def __init__(self, status: int, code: str, text: str, **more: Any) -> None:
        super().__init__(text)
        self.status: int = status
        self.code: str = code
        self.more: dict[str, Any] = more


class Request(NamedTuple):
    """One request of a client."""

    method: str
    upstream: Upstream
    path: bytes
    """Relative to the upstream, as sent."""
    query: bytes
    headers: Headers
    """As sent."""
    named: Mapping[str, str]
    """The same headers by name."""
    body: bytes
    client: str
    run: str | None
    connection: object
    """Identifies the client connection that it arrived on."""
    asks: ModelCall | None = None
    """The model call that it makes, if any."""
    wait_s: float | None = None
    """How long the client waits, in seconds, if it says so."""
    said: _mcp.Request | None = None
    """The message to an MCP server that it brings, if any."""


async def wait_for_disconnect(receive: Any) -> None:
    """Wait until the client disconnects or has its response."""
    await asyncio.sleep(0)  # let the request to the upstream start first
    while (await receive())["type"] != "http.disconnect":
        pass


class abort_on_disconnect:  # noqa: N801 (used like a function)
    """Raises :class:`Disconnected` in the current task as soon as *disconnect* is done."""

    __slots__ = ("_aborted", "_disconnect", "_over", "_task")

    def __init__(self, disconnect: asyncio.Future[None]) -> None:
        self._disconnect = disconnect
        self._aborted = False
        self._over = False

    def _abort(self, _: Any) -> None:
        if (
            not self._disconnect.cancelled() and not self._over
        ):  # a callback that is already scheduled cannot be removed
            self._aborted = True
            self._task.cancel()

    async def __aenter__(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._disconnect.add_done_callback(self._abort)

    async def __aexit__(self, kind: Any, error: Any, trace: Any) -> None:
        self._over = True
        self._disconnect.remove_done_callback(self._abort)
        if self._aborted:
            self._task.uncancel()
            raise Disconnected from None


class Reply:
    """The response to a client."""

    def __init__(self, send: Any) -> None:
        self._send = send
        self.headers: Headers = []
        """Our own headers, sent in addition to those of the upstream."""
        self.run: object = None
        """The run that it belongs to, if any."""
        self.status: int | None = None
        """Of the response that has begun."""
        self.encoding: str = ""
        """Its ``Content-Encoding``, once it has begun."""
        self.captured_body: list[bytes] | None = None
        """The chunks passed on, if they are kept."""
        self.mcp: bytes | None = None
        """The message to an MCP server that it answers, if any."""

    async def start(self, status: int, headers: Headers, named: Mapping[str, str]) -> None:
        """Start a response; ``Content-Length`` is sent only if the body is forwarded unchanged."""
        length = named.get("content-length")
        if length is not None and "transfer-encoding" not in named and status not in _BODILESS:
            headers.append((b"content-length", length.encode()))
        self.status = status
        self.encoding = b", ".join(value for name, value in headers if name == b"content-encoding").decode("latin-1")
        await self._send({"type": "http.response.start", "status": status, "headers": headers + self.headers})

    @property
    def begun(self) -> bool:
        return self.status is not None

    async def chunk(self, data: bytes) -> None:
        if self.captured_body is not None:
            self.captured_body.append(data)
        await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def finish(self) -> None:
        await self._send({"type": "http.response.body", "body": b""})

    async def json(self, status: int, value: Any) -> None:
        data = orjson.dumps(value, default=str)
        self.headers += [(b"content-type", b"application/json"), (b"content-length", str(len(data)).encode())]
        await self._send({"type": "http.response.start", "status": status, "headers": self.headers})
        await self._send({"type": "http.response.body", "body": data})

    async def refuse(self, refused: Refused) -> None:
        """Send an error in the client's protocol; once the response has started, just close the connection."""
        if self.begun:
            return
        more = dict(refused.more)
        if not more.pop("retry", False):
            self.headers.append((b"x-should-retry", b"false"))
        after = more.pop("after_ms", None)
        if after is not None:
            self.headers.append((b"retry-after", str(-(-after // 1000)).encode()))
        self.headers.append((b"antiphon-error", refused.code.encode()))
        message = more.pop("message", None)
        asked = None if self.mcp is None else _mcp.read_request(self.mcp)
        if message is None and asked is not None and asked.id is not None:
            message = _mcp.failed(asked.id, str(refused), {"code": refused.code, **more})
        if message is not None:
            await self.json(refused.status, message)
            return
        error = {"type": "antiphon_error", "code": refused.code, "message": str(refused), **more}
        await self.json(refused.status, {"type": "error", "error": error})
