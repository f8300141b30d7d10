"""Connections to an upstream: an httpx transport on top of aiohttp."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import aiohttp
import httpx
from multidict import CIMultiDict
from yarl import URL

from antiphon.host.http.app import _trusted

_AUTO_HEADERS = ("accept", "accept-encoding", "content-type", "user-agent")
"""Headers that aiohttp adds by default; the upstream gets only what the client sent."""
_MAX_HEAD_BYTES = 65_536
_INVALID_NAME = re.compile(rb"[^!#$%&'*+\-.^_`|~0-9A-Za-z]")
_INVALID_VALUE = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")
"""Not allowed in a header (RFC 9110, section 5); aiohttp accepts some of it."""


class UpstreamTransport:
    """A transport to one upstream: no cookies, redirects or retries; uses the environment's proxy if there is one.

    Connecting may take *connect_s*; *read_s* is the longest pause between two reads.
    """

    def __init__(self, url: str, max_connections: int, *, connect_s: float, read_s: float) -> None:
        parts = urlsplit(url)
        self._is_secure = parts.scheme == "https"
        self._max_connections = max_connections
        self._timeouts = aiohttp.ClientTimeout(connect=2 * connect_s, sock_connect=connect_s, sock_read=read_s)
        self._session: aiohttp.ClientSession | None = None
        proxies = {} if proxy_bypass(parts.hostname or "") else getproxies()
        proxy_url = proxies.get(parts.scheme) or proxies.get("all")
        proxy = URL(proxy_url) if proxy_url else None
        self._proxy = proxy and proxy.with_user(None)
        self._proxy_auth = aiohttp.BasicAuth.from_url(proxy) if proxy else None

    def _open(self) -> aiohttp.ClientSession:
        trusted = _trusted() if self._is_secure else False
        session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=trusted, limit=self._max_connections, keepalive_timeout=30),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            timeout=self._timeouts,
            skip_auto_headers=_AUTO_HEADERS,
            max_line_size=_MAX_HEAD_BYTES,
            max_field_size=_MAX_HEAD_BYTES,
            max_headers=1_000,
        )
        session._retry_connection = False  # otherwise PUT and DELETE are resent when the connection breaks
        return session

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send *request* and return the response once its headers have arrived."""
        if self._session is None:
            self._session = self._open()
        try:
            response = await self._session.request(
                request.method,
                URL(str(request.url), encoded=True),
                headers=CIMultiDict([(name.decode(), _text(value)) for name, value in request.headers.raw]),
                data=aiohttp.BytesPayload(request.content) if request.content else None,
                allow_redirects=False,
                proxy=self._proxy,
                proxy_auth=self._proxy_auth,
            )
        except (aiohttp.ClientError, TimeoutError) as error:
            raise _as_httpx_error(error, request) from None
        if not 200 <= response.status <= 599:  # a protocol switch, or not HTTP: nothing to forward
            response.close()
            raise httpx.RemoteProtocolError(f"The status {response.status} is no answer.", request=request)
        if any(_INVALID_NAME.search(name) or _INVALID_VALUE.search(value) for name, value in response.raw_headers):
            response.close()
            raise httpx.RemoteProtocolError("A header of the answer cannot be passed on.", request=request)
        return httpx.Response(response.status, headers=response.raw_headers, stream=_Body(response, request))

    async def aclose(self) -> None:
        """Close all connections."""
        if self._session is not None:
            await self._session.close()


class _Body(httpx.AsyncByteStream):
    """A response body, streamed as it arrives."""

    def __init__(self, response: aiohttp.ClientResponse, request: httpx.Request) -> None:
        self._response, self._request = response, request

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            while chunk := await self._response.content.readany():
                yield chunk
        except (aiohttp.ClientError, TimeoutError) as error:
            raise _as_httpx_error(error, self._request) from None

    async def aclose(self) -> None:
        self._response.close()  # if it was read to the end, its connection is already back in the pool


def _as_httpx_error(error: BaseException, request: httpx.Request) -> httpx.RequestError:
    """The failure as an httpx exception; only connection errors guarantee that nothing was sent."""
    kind: type[httpx.RequestError] = httpx.ReadError
    if isinstance(error, aiohttp.ConnectionTimeoutError):
        kind = httpx.ConnectTimeout
    elif isinstance(error, (aiohttp.ClientConnectorError, aiohttp.ClientHttpProxyError)):
        kind = httpx.ConnectError
    elif isinstance(error, TimeoutError):
        kind = httpx.ReadTimeout
    elif isinstance(error, aiohttp.ClientPayloadError):
        kind = httpx.RemoteProtocolError
    return kind(str(error), request=request)


def _text(value: bytes) -> str:
    """A header value as text; it is sent as UTF-8, so UTF-8 keeps its bytes and Latin-1 keeps its characters."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.decode("latin-1")
