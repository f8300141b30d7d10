"""Limits against clients that stall: endless headers, unread responses, too many connections."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from typing import Any

import httptools
import uvicorn
from uvicorn.lifespan.on import LifespanOn, LifespanReceiveMessage
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from antiphon.config.model import HostSection
from antiphon.host.http import CLOSING

log: logging.Logger = logging.getLogger("antiphon.host")

_AFTER_GRACE_S = 2
"""Responses that complete at the end of the grace period can still be sent."""
_MAX_HEAD_BYTES = 65_536
"""The maximum size of a request head that arrives in parts, in bytes."""
_COALESCE_BYTES = 16_384
_MIN_PROGRESS_BYTES = 16_384
"""Bytes that a client must read within the idle timeout to count as making progress."""
_TOO_LONG = b"HTTP/1.1 431 Request Header Fields Too Large\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
_TOO_LATE = b"HTTP/1.1 408 Request Timeout\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
_FRAMING = (b"content-length", b"transfer-encoding")
_REFUSAL = b"HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nRetry-After: 1\r\nContent-Length: 0\r\n\r\n"


class ServerConfig(uvicorn.Config):
    """The HTTP configuration shared by all our server processes."""

    def __init__(self, app: Any, settings: HostSection, **more: Any) -> None:
        self.settings = settings
        self.max_connections: int = _max_connections(settings)
        given: dict[str, Any] = {
            "server_header": False,
            "date_header": False,
            "access_log": False,
            "timeout_graceful_shutdown": math.ceil(settings.shutdown_grace_s) + _AFTER_GRACE_S,
            "timeout_keep_alive": math.ceil(settings.idle_timeout_s),
            "lifespan": "on",
            "http": LimitedProtocol,
            "ws": "none",
        }
        super().__init__(app, **(given | more))

    def load(self) -> None:
        super().load()
        self.lifespan_class: type[Any] = Lifespan


def _max_connections(settings: HostSection) -> int:
    """Half of the file descriptors stay free for the store, files and providers."""
    with contextlib.suppress(ImportError):  # this platform has no such limit
        import resource

        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft > 0:
            return min(settings.max_connections, max(8, soft // 2))
    return settings.max_connections


class Lifespan(LifespanOn):
    """Also shuts the application down if a second Ctrl-C, which cancels all tasks, ends the wait for clients."""

    async def receive(self) -> LifespanReceiveMessage:
        try:
            return await super().receive()
        except asyncio.CancelledError:
            return {"type": "lifespan.shutdown"}


class JoinedWrites:
    """A transport that joins the writes of one event loop iteration: a head and its body, a chunk and the end.

    Each separate write is a system call and wakes the client.
    """

    def __init__(self, transport: Any, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._held: bytes = b""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        """Buffer *data* until the end of this iteration; if something is already buffered, send both at once.

        Large data is not buffered, so that a slow client pauses its writer.
        """
        held = self._held
        if held or len(data) >= _COALESCE_BYTES:
            self._held = held + data
            self.flush()
        elif data:
            self._held = data
            self._loop.call_soon(self.flush)

    def flush(self) -> None:
        """Send what is buffered, unless the connection is closing."""
        held, self._held = self._held, b""
        if held and not self._transport.is_closing():
            self._transport.write(held)

    def close(self) -> None:
        """Close once everything written has been sent."""
        self.flush()
        self._transport.close()

    def abort(self) -> None:
        """Pass on what is buffered, then close at once."""
        self.flush()
        self._transport.abort()


class LimitedProtocol(HttpToolsProtocol):
    """Closes stalled connections; at the connection limit, drops the one that has been idle longest."""

    refused: bool = False
    _deadline: asyncio.TimerHandle | None = None
    _stalled: asyncio.TimerHandle | None = None
    waiting_since: float = 0.0
    config: ServerConfig
    transport: JoinedWrites  # type: ignore[assignment]
    _answered: Any = None
    """The request being answered; pipelined requests wait for it."""
    _in_head: bool = False
    _head: int = 0
    """Bytes received of an incomplete head."""
    _declines: bool = False
    """Whether a new parser is being fed the framing headers again."""

    def connection_made(self, transport: Any) -> None:
        if len(self.connections) >= self.config.max_connections and not self._give_way():
            log.warning("a connection was refused: %d are open", len(self.connections))
            self.refused = True
            transport.write(_REFUSAL)
            transport.close()
            return
        super().connection_made(JoinedWrites(transport, self.loop))  # type: ignore[arg-type]
        self.app_state = {**self.app_state, "connection": object()}  # addresses do not identify it: ports are reused
        self.waiting_since = self.loop.time()
        self._expect_headers()

    @property
    def is_waiting(self) -> bool:
        """Whether no request is being answered."""
        cycle: Any = self.cycle  # none before the first request
        return cycle is None or cycle.response_complete

    def _give_way(self) -> bool:
        waiting = [one for one in self.connections if isinstance(one, LimitedProtocol) and one.is_waiting]
        if not waiting:
            return False
        oldest = min(waiting, key=lambda one: one.waiting_since)
        self.connections.discard(oldest)
        oldest.transport.abort()
        return True

    def _expect_headers(self) -> None:
        if self._deadline is None:
            self._deadline = self.loop.call_later(self.config.settings.header_timeout_s, self.transport.abort)

    def _expect_body(self) -> None:
        if self._deadline is None:
            self._deadline = self.loop.call_later(self.config.settings.request_timeout_s, self._give_up_body)

    def _give_up_body(self) -> None:
        if self.cycle is self._answered and not self.cycle.response_started:  # otherwise another response is being sent
            self.transport.write(_TOO_LATE)
        self.transport.close()

    def _stop_waiting(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def data_received(self, data: bytes) -> None:
        if self.refused:
            return
        self._unset_keepalive_if_required()
        self._parse(data)
        if self.is_waiting:
            self._expect_headers()  # counted from the first byte; more bytes do not extend it
        elif self.cycle.more_body:
            self._expect_body()
        else:
            self._stop_waiting()

    def _parse(self, data: bytes) -> None:
        goes_on = self._in_head
        left = memoryview(data)
        try:
            while left:
                try:
                    self.parser.feed_data(left)
                    break
                except httptools.HttpParserUpgrade as found:
                    left = left[found.args[0] :]
                    self._decline()
        except httptools.HttpParserError:
            self.send_400_response("Invalid HTTP request received.")
        if goes_on and self._in_head:
            self._head += len(data)
            if self._head > _MAX_HEAD_BYTES:
                self._refuse_head()

    def _decline(self) -> None:
        """Ignore a request's offer to switch protocols, as Java clients make, and continue in HTTP/1.1.

        The parser would treat the body as the other protocol, so a new parser is given the body's framing.
        """
        self._declines = True
        self.parser: Any = httptools.HttpRequestParser(self)
        lines = [b"%b: %b\r\n" % header for header in self.scope["headers"] if header[0] in _FRAMING]
        self.parser.feed_data(b"".join([b"POST / HTTP/1.1\r\n", *lines, b"\r\n"]))
        self._declines = False

    def on_message_begin(self) -> None:
        if not self._declines:
            super().on_message_begin()
            self._in_head, self._head = True, 0

    def on_url(self, url: bytes) -> None:
        if not self._declines:
            super().on_url(url)

    def on_headers_complete(self) -> None:
        if not self._declines:
            self._in_head = False
            self._stop_waiting()
            super().on_headers_complete()
        self.headers = []  # discards trailers

    def on_message_complete(self) -> None:
        if not self.parser.should_upgrade():
            self._stop_waiting()
            super().on_message_complete()

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        self._answered = cycle
        super()._start_asgi_task(cycle, app)

    def _refuse_head(self) -> None:
        if self.is_waiting and not self.transport.is_closing():
            self.transport.write(_TOO_LONG)
        self.transport.close()

    def send_400_response(self, msg: str) -> None:
        if self.is_waiting:
            super().send_400_response(msg)
            return
        self.transport.close()  # a response is under way, here or for an earlier request
        self.cycle.disconnected = True  # nobody is left to receive the response
        self.cycle.message_event.set()

    def on_response_complete(self) -> None:
        self.waiting_since = self.loop.time()
        super().on_response_complete()
        if not self.is_waiting:  # the next request had already arrived
            self._stop_waiting()

    def shutdown(self) -> None:
        if CLOSING in self.app_state:
            self.app_state[CLOSING]()
        super().shutdown()

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._stalled is None:
            self._await_reader()

    def _await_reader(self) -> None:
        left = self.transport.get_write_buffer_size()
        self._stalled = self.loop.call_later(self.config.settings.idle_timeout_s, self._see_reader, left)

    def _see_reader(self, left: int) -> None:
        if left - self.transport.get_write_buffer_size() < _MIN_PROGRESS_BYTES:
            self.transport.abort()
        else:
            self._await_reader()

    def _read_again(self) -> None:
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None

    def resume_writing(self) -> None:
        self._read_again()
        super().resume_writing()

    def eof_received(self) -> None:
        if not self.refused:
            self.transport.flush()  # the connection closes now

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        self._read_again()
        if self._answered is not None and not self._answered.response_complete:  # it may not be the latest request
            self._answered.disconnected = True
            self._answered.message_event.set()
        if not self.refused:
            super().connection_lost(exc)
