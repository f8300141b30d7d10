"""Connections to an upstream: an httpx transport that reads responses with httptools."""

from __future__ import annotations

import asyncio
import base64
import re
import select
import socket
from collections.abc import AsyncIterator, Callable
from urllib.parse import SplitResult, unquote_to_bytes, urlsplit
from urllib.request import getproxies, proxy_bypass

import httptools
import httpx
from aiohappyeyeballs import start_connection

from antiphon.errors import ConfigError
from antiphon.host.http.app import _trusted
from antiphon.proxy.upstreams import Headers, address_of

_IDLE_S = 30.0
"""How long an idle connection is kept, unless the upstream says that it closes it earlier …"""
_ON_THE_WAY_S = 1.0
"""… and how much earlier it is not used any more: a request that meets the end of its connection may have arrived."""
_MAX_HEAD_BYTES = 65_536
"""The same holds for what comes between and behind the bytes of a body: sizes of chunks, trailers."""
_MAX_HELD_BYTES = 65_536
"""Bytes of a body that may wait for their reader; then the connection is not read until they are gone."""
_NEXT_ADDRESS_S = 0.25
"""How long one address of a host may take before the next is tried beside it (RFC 8305)."""
_INVALID_NAME = re.compile(rb"[^!#$%&'*+\-.^_`|~0-9A-Za-z]")
_INVALID_VALUE = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")
"""Not allowed in a header (RFC 9110, section 5); the parser accepts some of it."""
_TIMEOUT = re.compile(rb"(?i)\btimeout\s*=\s*(\d{1,9})")
_WITH_CONTENT = ("POST", "PUT", "PATCH")
_PORTS = {"http": 80, "https": 443}


class UpstreamTransport:
    """A transport to one upstream: no cookies, redirects or retries; uses the environment's proxy if there is one.

    Connecting may take *connect_s*, and so may waiting for one of *max_connections*; *read_s* is the longest pause
    between two reads.
    """

    def __init__(self, url: str, max_connections: int, *, connect_s: float, read_s: float) -> None:
        self._route = _Route(url)
        self._connect_s, self._read_s = connect_s, read_s
        self._free = asyncio.Semaphore(max_connections)
        self._idle: list[_Connection] = []
        """The most recently used comes last."""
        self._sweep: asyncio.TimerHandle | None = None

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send *request* and return the response once its headers have arrived."""
        message = self._route.message(request)
        try:
            connection = await self._connection()
        except TimeoutError:
            raise httpx.ConnectTimeout("No connection was made in time.", request=request) from None
        except (OSError, UnicodeError) as error:
            raise httpx.ConnectError(str(error), request=request) from None
        exchange = _UpstreamExchange(connection, self._read_s, self._give_back, request.method)
        try:
            status, headers = await exchange.send(message)
        except BaseException:
            exchange.end()
            raise
        return httpx.Response(status, headers=headers, stream=exchange)

    async def aclose(self) -> None:
        """Close the idle connections."""
        if self._sweep is not None:
            self._sweep.cancel()
        while self._idle:
            self._idle.pop().close()

    async def _connection(self) -> _Connection:
        """An idle connection, or else a new one."""
        async with asyncio.timeout(self._connect_s if self._free.locked() else None):
            await self._free.acquire()
        while self._idle:
            connection = self._idle.pop()
            if connection.use_before > asyncio.get_running_loop().time() and connection.is_quiet():
                return connection
            connection.close()
        try:
            async with asyncio.timeout(self._connect_s):
                connection = await self._route.connect(self._read_s)
            if connection.is_closed or connection.transport.is_closing():
                raise ConnectionResetError("The upstream closed the connection before a request was sent.")
            return connection
        except BaseException:
            self._free.release()
            raise

    def _give_back(self, connection: _Connection) -> None:
        self._free.release()
        if connection.is_closed:
            return
        loop = asyncio.get_running_loop()
        connection.use_before = loop.time() + connection.keep_s
        self._idle.append(connection)
        if self._sweep is None:
            self._sweep = loop.call_later(_IDLE_S, self._close_idle)

    def _close_idle(self) -> None:
        loop = asyncio.get_running_loop()
        for connection in self._idle:
            if connection.use_before <= loop.time():
                connection.close()
        self._idle = [connection for connection in self._idle if not connection.is_closed]
        self._sweep = loop.call_later(_IDLE_S, self._close_idle) if self._idle else None


class _Route:
    """How an upstream is reached: directly, or through the proxy that the environment names."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._is_secure = parts.scheme == "https"
        self._host, self._port = parts.hostname or "", parts.port or _PORTS[parts.scheme]
        is_exempt = proxy_bypass(self._host) or proxy_bypass(f"{self._host}:{self._port}")
        proxies = {} if is_exempt else getproxies()
        address = (proxies.get(parts.scheme) or proxies.get("all") or "").strip()
        self._proxy = _proxy_at(address if "://" in address else f"http://{address}") if address else None
        self._credentials: Headers = []
        if self._proxy and self._proxy.username is not None:
            pair = b":".join(unquote_to_bytes(part or "") for part in (self._proxy.username, self._proxy.password))
            self._credentials = [(b"proxy-authorization", b"Basic " + base64.b64encode(pair))]

    def message(self, request: httpx.Request) -> bytes:
        """*request* as it is sent."""
        url, headers, content = request.url, request.headers.raw, request.content
        named = {name.lower() for name, _ in headers}
        if b"host" not in named:
            headers = [(b"host", url.netloc), *headers]
        if b"content-length" not in named and (content or request.method in _WITH_CONTENT):
            headers.append((b"content-length", b"%d" % len(content)))
        target = url.raw_path
        if self._proxy is not None and not self._is_secure:
            target = b"%b://%b%b" % (url.raw_scheme, url.netloc, target)
            headers += self._credentials
        return _head_of(request.method, target, headers) + content

    async def connect(self, read_s: float) -> _Connection:
        """Open a connection; nothing of a request has been sent until this returns."""
        if self._proxy is None:
            connection = await _Connection.open(self._host, self._port)
        else:
            scheme, host = self._proxy.scheme, self._proxy.hostname or ""
            connection = await _Connection.open(host, self._proxy.port or _PORTS[scheme])
            if scheme == "https":
                await connection.start_tls(host)
            if self._is_secure:
                place = httpx.URL(scheme="https", host=self._host, port=self._port).raw_host + b":%d" % self._port
                await connection.tunnel(_head_of("CONNECT", place, [(b"host", place), *self._credentials]), read_s)
        if self._is_secure:
            await connection.start_tls(self._host)
        return connection


def _proxy_at(address: str) -> SplitResult:
    parts = address_of(address)
    if parts is not None:
        return parts
    scheme = address.partition("://")[0]
    raise ConfigError(
        f"The proxy that the environment names ({scheme}://…) cannot be used.",
        hint="Set HTTP_PROXY, HTTPS_PROXY or ALL_PROXY to http://HOST:PORT, or except the upstream with NO_PROXY.",
        path="HTTPS_PROXY",
    )


def _head_of(method: str, target: bytes, headers: Headers) -> bytes:
    head = b"%b %b HTTP/1.1\r\n%b\r\n" % (method.encode(), target, b"".join([b"%b: %b\r\n" % one for one in headers]))
    if not head.count(b"\n") == head.count(b"\r") == len(headers) + 2:
        raise httpx.LocalProtocolError("A header contains a line break.")
    return head


class _Connection(asyncio.Protocol):
    """A connection to an upstream, for one exchange at a time."""

    transport: asyncio.Transport
    _below: tuple[asyncio.Transport, ...] = ()
    """What carries the encrypted bytes."""
    exchange: _UpstreamExchange | None = None
    is_closed: bool = False
    keep_s: float = _IDLE_S
    """How long it may be used after an exchange."""
    use_before: float = 0.0

    @classmethod
    async def open(cls, host: str, port: int) -> _Connection:
        """Connect to the address of *host* that answers first."""
        loop = asyncio.get_running_loop()
        addresses = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        opened = await start_connection(addresses, happy_eyeballs_delay=_NEXT_ADDRESS_S, interleave=1)
        try:
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            _, found = await loop.create_connection(cls, sock=opened)
        except BaseException:
            opened.close()
            raise
        return found

    async def tunnel(self, asked: bytes, read_s: float) -> None:
        """Have a proxy connect us to the upstream."""
        exchange = _UpstreamExchange(self, read_s, lambda _: None, "CONNECT")
        try:
            status, _ = await exchange.send(asked)
            if not 200 <= status <= 299:
                raise ConnectionError(f"The proxy of the environment answered {status}.")
        except BaseException as error:
            exchange.end()
            self.close()
            if isinstance(error, httpx.RequestError):
                raise ConnectionError(str(error)) from None
            raise

    async def start_tls(self, host: str) -> None:
        """Continue in TLS."""
        loop = asyncio.get_running_loop()
        try:
            if self.is_closed or self.transport.is_closing():
                raise ConnectionResetError("The upstream closed the connection before TLS began.")
            secured = await loop.start_tls(self.transport, self, _trusted(), server_hostname=host)
            if secured is None:
                raise ConnectionResetError("The upstream closed the connection after TLS began.")
        except BaseException:
            self.close()
            raise
        self._below = (*self._below, self.transport)
        self.transport = secured

    def unsent(self) -> int:
        """How many bytes wait for the upstream to read what was sent before."""
        return sum(one.get_write_buffer_size() for one in (self.transport, *self._below))

    def is_quiet(self) -> bool:
        """Whether nothing has come on an idle connection, not even its end that the event loop has yet to notice."""
        if self.is_closed or self.transport.is_closing():
            return False
        arrived = select.poll()
        arrived.register(self.transport.get_extra_info("socket").fileno(), select.POLLIN)
        return not arrived.poll(0)

    def close(self) -> None:
        """Close at once."""
        self.is_closed = True
        self.transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        if self.exchange is None:  # nobody asked
            self.close()
        else:
            self.exchange.feed(data)

    def connection_lost(self, error: Exception | None) -> None:
        self.is_closed = True
        if self.exchange is not None:
            self.exchange.lose(error)


class _UpstreamExchange(httpx.AsyncByteStream):
    """A request and its response, whose body is streamed as it arrives."""

    def __init__(
        self, connection: _Connection, read_s: float, give_back: Callable[[_Connection], None], method: str
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._connection, self._give_back = connection, give_back
        self._read_s = read_s
        self._method = method
        self._parser = httptools.HttpResponseParser(self)
        self._parser.set_dangerous_leniencies(lenient_optional_cr_before_lf=True, lenient_spaces_after_chunk_size=True)
        self._head: asyncio.Future[tuple[int, Headers]] = self._loop.create_future()
        self._overhead = 0
        """Bytes since the last of the body."""
        self._headers: Headers = []
        self._unsent = 0
        """Bytes of the request that were unsent at the last look."""
        self._chunks: list[bytes] = []
        self._held = 0
        """Bytes in *chunks*."""
        self._more: asyncio.Future[None] | None = None
        """Set while the reader waits for a chunk."""
        self._is_paused = False
        self._is_over = False
        self._error: httpx.RequestError | None = None

    async def send(self, message: bytes) -> tuple[int, Headers]:
        """Send the request and return the status and headers of its response."""
        self._heard = self._loop.time()
        self._timer = self._loop.call_later(self._read_s, self._look_at_time)
        self._connection.exchange = self
        self._connection.transport.write(message)
        self._unsent = len(message)
        return await self._head

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while True:
            while not self._chunks:
                if self._error is not None:
                    raise self._error
                if self._is_over:
                    return
                self._more = self._loop.create_future()
                await self._more
            chunks, self._chunks, self._held = self._chunks, [], 0
            self._read_again()
            yield chunks[0] if len(chunks) == 1 else b"".join(chunks)

    async def aclose(self) -> None:
        self.end()

    def end(self, *, reusable: bool = False) -> None:
        """Part from the connection, which is closed unless it can be used again."""
        if self._is_over:
            return
        self._is_over = True
        self._timer.cancel()
        self._read_again()
        connection = self._connection
        connection.exchange = None
        if reusable:
            connection.keep_s = self._keep_s()
        if not reusable or connection.unsent():  # it did not read all of the request
            connection.close()
        self._give_back(connection)
        self._wake()

    def _fail(self, error: httpx.RequestError) -> None:
        """End with an error, which whoever waits for the head or the body gets."""
        if self._is_over:  # what came behind the response
            self._connection.close()
            return
        self._error = error
        if not self._head.done():
            self._head.set_exception(error)
        self.end()

    def _wake(self) -> None:
        if self._more is not None and not self._more.done():
            self._more.set_result(None)

    def _look_at_time(self) -> None:
        before, self._unsent = self._unsent, self._connection.unsent()
        if self._is_paused or self._unsent < before:  # its reader is slow, not the upstream; or it still reads
            self._heard = self._loop.time()
        left = self._heard + self._read_s - self._loop.time()
        if left > 0:
            self._timer = self._loop.call_later(left, self._look_at_time)
        else:
            self._fail(httpx.ReadTimeout(f"Nothing arrived for {self._read_s:g} s."))

    def _read_again(self) -> None:
        if self._is_paused:
            self._is_paused = False
            self._heard = self._loop.time()
            if not self._connection.is_closed:
                self._connection.transport.resume_reading()

    # -- what the connection says --------------------------------------------------------------------------------

    def feed(self, data: bytes) -> None:
        """Read *data* from the upstream."""
        self._heard = self._loop.time()
        self._overhead += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._fail(httpx.RemoteProtocolError(f"The response cannot be read: {error}"))
        if self._overhead > _MAX_HEAD_BYTES and not self._is_over:
            self._fail(httpx.RemoteProtocolError(f"The headers of the response exceed {_MAX_HEAD_BYTES} bytes."))
        if self._held > _MAX_HELD_BYTES and not self._is_paused and not self._is_over:
            self._is_paused = True
            self._connection.transport.pause_reading()
        if self._chunks:
            self._wake()

    def lose(self, error: Exception | None) -> None:
        """The connection has ended."""
        if not self._head.done():
            self._fail(httpx.ReadError(str(error or "The connection ended without a response.")))
        elif error is None and not self._has_length():
            self.end()
        else:
            self._fail(httpx.RemoteProtocolError("The connection ended before the response."))

    def _keep_s(self) -> float:
        """How long the upstream keeps the connection for another request."""
        said = next((value for name, value in self._headers if name.lower() == b"keep-alive"), b"")
        found = _TIMEOUT.search(said)
        return min(_IDLE_S, float(found[1]) - _ON_THE_WAY_S) if found else _IDLE_S

    def _has_length(self) -> bool:
        """Whether the response says where its body ends, other than by closing the connection."""
        return any(
            name.lower() == b"content-length" or (name.lower() == b"transfer-encoding" and b"chunked" in value.lower())
            for name, value in self._headers
        )

    # -- what the parser says ------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        if self._is_over:  # a second response, which nobody asked for
            self._connection.close()

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._head.done():  # trailers are left out
            self._headers.append((name, value.strip(b" \t")))

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if 100 <= status < 200 and status != 101:
            self._headers = []
        elif not 200 <= status <= 599:
            self._fail(httpx.RemoteProtocolError(f"The status {status} is no answer."))
        elif any(_INVALID_NAME.search(name) or _INVALID_VALUE.search(value) for name, value in self._headers):
            self._fail(httpx.RemoteProtocolError("A header of the answer cannot be passed on."))
        elif not self._head.done():
            self._head.set_result((status, self._headers))
            if self._method in ("CONNECT", "HEAD"):  # there is no body, whatever the headers say
                self.end(reusable=self._method == "CONNECT" or self._parser.should_keep_alive())

    def on_body(self, data: bytes) -> None:
        if self._is_over:
            self._connection.close()
        else:
            self._chunks.append(data)
            self._held += len(data)
            self._overhead = 0

    def on_message_complete(self) -> None:
        if self._head.done():
            self.end(reusable=self._parser.should_keep_alive())
