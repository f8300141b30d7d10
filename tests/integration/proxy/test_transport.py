"""The transport to an upstream, against servers that send exactly these bytes."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvloop

from antiphon.errors import ConfigError
from antiphon.proxy import transport as transports
from antiphon.proxy.transport import UpstreamTransport
from tests.tlsfront import TlsFront, make_certificate

Server = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
Found = tuple[int, list[tuple[bytes, bytes]], bytes]
_LENGTH = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
_CHUNK = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n"
_RESPONSES = {
    "length": (_LENGTH, (200, [(b"content-length", b"2")], b"ok")),
    "chunked": (
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\no\r\n1;x=y\r\nk\r\n0\r\nx-trailer: 1\r\n\r\n",
        (200, [(b"Transfer-Encoding", b"chunked")], b"ok"),
    ),
    "to the end": (b"HTTP/1.1 200 OK\r\nx: 1\r\n\r\nok", (200, [(b"x", b"1")], b"ok")),
    "HTTP/1.0": (b"HTTP/1.0 404 No\r\n\r\nno", (404, [], b"no")),
    "after hints": (
        b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\nHTTP/1.1 100 Continue\r\n\r\n" + _LENGTH,
        (200, [(b"content-length", b"2")], b"ok"),
    ),
    "odd headers": (
        b"HTTP/1.1 200 OK\r\nX-Empty:\r\nx: \t a b \r\nx: 2\r\ncity: M\xfcnchen\r\ncontent-length: 0\r\n\r\n",
        (
            200,
            [(b"X-Empty", b""), (b"x", b"a b"), (b"x", b"2"), (b"city", b"M\xfcnchen"), (b"content-length", b"0")],
            b"",
        ),
    ),
    "bare line feeds": (
        b"HTTP/1.1 200 OK\ncontent-length: 2\n\nok",
        (200, [(b"content-length", b"2")], b"ok"),
    ),
    "no content": (b"HTTP/1.1 204 No Content\r\netag: x\r\n\r\n", (204, [(b"etag", b"x")], b"")),
    "another protocol offered": (
        b"HTTP/1.1 200 OK\r\nconnection: upgrade\r\nupgrade: h2\r\ncontent-length: 2\r\n\r\nok",
        (200, [(b"connection", b"upgrade"), (b"upgrade", b"h2"), (b"content-length", b"2")], b"ok"),
    ),
}


@contextlib.asynccontextmanager
async def _serving(serve: Server) -> AsyncIterator[str]:
    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            await serve(reader, writer)
        writer.close()

    async with await asyncio.start_server(connected, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


def _to(url: str, *, connections: int = 10, connect_s: float = 30.0, read_s: float = 30.0) -> UpstreamTransport:
    return UpstreamTransport(url, connections, connect_s=connect_s, read_s=read_s)


def _tls(folder: Path, monkeypatch: pytest.MonkeyPatch) -> ssl.SSLContext:
    """The context of a server for ``localhost`` that the transport trusts."""
    certificate, key = folder / "cert.pem", folder / "key.pem"
    for path, data in zip((certificate, key), make_certificate("localhost"), strict=True):
        path.write_bytes(data)
    trusted = ssl.create_default_context(cafile=str(certificate))
    monkeypatch.setattr(transports, "_trusted", lambda: trusted)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    return context


async def _read(response: httpx.Response, into: list[bytes] | None = None) -> bytes:
    chunks = [] if into is None else into
    async for chunk in response.stream:  # type: ignore[union-attr]
        chunks.append(chunk)
    return b"".join(chunks)


async def _ask(transport: UpstreamTransport, url: str, *, into: list[bytes] | None = None) -> Found:
    response = await transport.handle_async_request(httpx.Request("GET", url))
    return response.status_code, response.headers.raw, await _read(response, into)


@pytest.mark.parametrize("name", _RESPONSES)
def test_a_response_is_the_same_however_its_bytes_are_cut(name: str) -> None:
    said, expected = _RESPONSES[name]
    cuts = iter(range(len(said)))

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await reader.readuntil(b"\r\n\r\n")
            at = next(cuts)
            for part in (said[:at], said[at:]):
                writer.write(part)
                await asyncio.sleep(0.001)
            if b"length" not in said and b"hunked" not in said and b" 204 " not in said:
                return

    async def run() -> None:
        async with _serving(serve) as url:
            transport = _to(url)
            for _ in range(len(said)):
                assert await _ask(transport, url) == expected
            await transport.aclose()

    uvloop.run(run())


@pytest.mark.parametrize(
    ("said", "arrived", "kind"),
    [
        (b"", b"", httpx.ReadError),
        (b"HTTP/1.1 200 OK\r\ncontent-le", b"", httpx.ReadError),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nok", b"ok", httpx.RemoteProtocolError),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n", b"ok", httpx.RemoteProtocolError),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nodd\r\n", b"", httpx.RemoteProtocolError),
        (
            b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ntransfer-encoding: chunked\r\n\r\nok",
            b"",
            httpx.RemoteProtocolError,
        ),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 3\r\n\r\nok", b"", httpx.RemoteProtocolError),
        (
            b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n",
            b"",
            httpx.RemoteProtocolError,
        ),
        (b"HTTP/1.1 200 OK\r\nx: a\x0bb\r\ncontent-length: 2\r\n\r\nok", b"", httpx.RemoteProtocolError),
        (b"HTTP/1.1 200 OK\r\n" + b"x: %b\r\n" % (b"y" * 8_000) * 90 + b"\r\n", b"", httpx.RemoteProtocolError),
        (b"HTTP/1.1 103 Early Hints\r\nx: y\r\n\r\n" * 10_000, b"", httpx.RemoteProtocolError),
        (_CHUNK + b"0\r\nx: " + b"y" * 300_000, b"ok", httpx.RemoteProtocolError),
        (_CHUNK + b"0\r\n" + b"x: y\r\n" * 50_000, b"ok", httpx.RemoteProtocolError),
        (_CHUNK + b"2;" + b"x" * 300_000, b"ok", httpx.RemoteProtocolError),
        (b"SSH-2.0-OpenSSH\r\n", b"", httpx.RemoteProtocolError),
    ],
)
def test_what_is_no_whole_response_is_an_error_after_what_arrived(
    said: bytes, arrived: bytes, kind: type[Exception]
) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(said)
        if len(said) > 65_536:
            await reader.read()  # it could go on

    async def run() -> None:
        async with _serving(serve) as url:
            transport = _to(url, connections=1)
            for _ in range(3):  # the connection is given back each time
                chunks: list[bytes] = []
                with pytest.raises(httpx.RequestError) as caught:
                    await _ask(transport, url, into=chunks)
                assert type(caught.value) is kind
                assert b"".join(chunks) == arrived
            await transport.aclose()

    uvloop.run(run())


def test_a_connection_is_used_again_only_if_its_exchange_ended_cleanly() -> None:
    connections = 0
    said = iter(
        [
            _LENGTH,
            _LENGTH.replace(b"200 OK", b"200 OK\r\nconnection: close"),  # the connection of the first is used once more
            _LENGTH + _LENGTH,  # the second of these answers no request
            _LENGTH + b"odd",
            b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
            b"HTTP/1.1 304 Not Modified\r\ncontent-length: 30\r\n\r\n",
            b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n",  # to a HEAD request
            b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nok",  # and its reader leaves
            _LENGTH,
        ]
    )

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        while True:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(next(said))

    async def run() -> list[int]:
        counts = []
        async with _serving(serve) as url:
            transport = _to(url, connections=1)
            for number in range(9):
                method = "HEAD" if number == 6 else "GET"
                response = await transport.handle_async_request(httpx.Request(method, url))
                if number == 7:
                    await response.stream.aclose()  # type: ignore[union-attr]
                else:
                    assert await _read(response) == (b"" if number in (5, 6) else b"ok")
                counts.append(connections)
            await transport.aclose()
        return counts

    assert uvloop.run(run()) == [1, 1, 2, 3, 4, 4, 4, 4, 5]


@pytest.mark.parametrize(
    ("said", "connections"), [(b"timeout=1, max=100", 3), (b"timeout=0", 3), (b"max=5; Timeout = 60", 1), (b"soon", 1)]
)
def test_a_connection_that_the_upstream_soon_closes_is_not_used_again(said: bytes, connections: int) -> None:
    made = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal made
        made += 1
        while True:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(_LENGTH.replace(b"200 OK", b"200 OK\r\nKeep-Alive: " + said))

    async def run() -> None:
        async with _serving(serve) as url:
            transport = _to(url)
            for _ in range(3):
                assert (await _ask(transport, url))[2] == b"ok"
            await transport.aclose()

    uvloop.run(run())
    assert made == connections


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
@pytest.mark.parametrize("turns", range(4))
def test_a_connection_whose_end_was_not_noticed_yet_is_not_used_again(run: Callable[..., None], turns: int) -> None:
    """The event loop was busy when the server closed it, and notices it in one of its next *turns*."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        server.settimeout(20)

        def answer() -> socket.socket:
            connection, _ = server.accept()
            connection.recv(65536)
            connection.sendall(_LENGTH)
            return connection

        async def ask() -> None:
            transport = _to(url)
            first = asyncio.create_task(_ask(transport, url))
            connection = await asyncio.to_thread(answer)
            await first
            connection.close()  # on loopback its end arrives at once
            for _ in range(turns):
                await asyncio.sleep(0)
            second = asyncio.create_task(_ask(transport, url))
            (await asyncio.to_thread(answer)).close()
            assert (await second)[2] == b"ok"
            await transport.aclose()

        run(ask())


def test_bytes_that_nobody_asked_for_end_an_idle_connection() -> None:
    """They would be the answer to the next request."""
    told = asyncio.Event()
    connections = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        await reader.readuntil(b"\r\n\r\n")
        writer.write(_LENGTH)
        await told.wait()
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nevil")
        await reader.read()
        told.clear()

    async def run() -> Found:
        async with _serving(serve) as url:
            transport = _to(url)
            await _ask(transport, url)
            told.set()
            while told.is_set():
                await asyncio.sleep(0.001)
            found = await _ask(transport, url)
            told.set()
            await transport.aclose()
        return found

    assert uvloop.run(run())[2] == b"ok"
    assert connections == 2


def test_a_request_is_sent_as_it_was_made_with_its_length_and_host() -> None:
    seen: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            lines = head.lower().split(b"\r\n")
            length = next((int(line[15:]) for line in lines if line.startswith(b"content-length:")), 0)
            seen.append(head + await reader.readexactly(length))
            writer.write(_LENGTH)

    async def run() -> str:
        async with _serving(serve) as url:
            transport = _to(url)
            headers = [(b"x-One", b"M\xfcnchen"), (b"x-One", b"")]
            for method, body in (("POST", b"{}"), ("POST", b""), ("DELETE", b"")):
                made = httpx.Request(method, f"{url}/a%2Fb?q=%20", headers=headers, stream=httpx.ByteStream(body))
                made.read()
                await _read(await transport.handle_async_request(made))
            with pytest.raises(httpx.LocalProtocolError):
                await transport.handle_async_request(httpx.Request("GET", url, headers=[(b"x", b"1\r\ny: 2")]))
            await transport.aclose()
        return url.removeprefix("http://")

    host = uvloop.run(run()).encode()
    rest = b"x-One: M\xfcnchen\r\nx-One: \r\n"
    assert seen == [
        b"POST /a%%2Fb?q=%%20 HTTP/1.1\r\nhost: %b\r\n%bcontent-length: 2\r\n\r\n{}" % (host, rest),
        b"POST /a%%2Fb?q=%%20 HTTP/1.1\r\nhost: %b\r\n%bcontent-length: 0\r\n\r\n" % (host, rest),
        b"DELETE /a%%2Fb?q=%%20 HTTP/1.1\r\nhost: %b\r\n%b\r\n" % (host, rest),
    ]


def test_what_certainly_was_not_sent_is_a_connection_error() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        await asyncio.sleep(60)

    async def no_tls(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)

    async def run() -> None:
        with socket.create_server(("127.0.0.1", 0)) as closed:
            nobody = f"http://127.0.0.1:{closed.getsockname()[1]}"
        with pytest.raises(httpx.ConnectError):
            await _ask(_to(nobody), nobody)
        with pytest.raises(httpx.ConnectError):
            await _ask(_to("http://no-such-host.invalid"), "http://no-such-host.invalid")
        async with _serving(no_tls) as url:
            with pytest.raises(httpx.ConnectError):
                await _ask(_to(url.replace("http", "https")), url)
        async with _serving(serve) as url:
            transport = _to(url, connections=1, connect_s=0.05)
            first = asyncio.create_task(_ask(transport, url))
            await asyncio.sleep(0)
            with pytest.raises(httpx.ConnectTimeout):  # no connection becomes free
                await _ask(transport, url)
            first.cancel()
            with pytest.raises(asyncio.CancelledError):
                await first
            waiting = asyncio.create_task(_ask(transport, url))  # the cancelled one gave its place back
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(waiting, 0.1)

    uvloop.run(run())


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def test_an_upstream_that_refuses_connections_in_http_was_sent_nothing_or_is_heard(run: Callable[..., None]) -> None:
    """As a server with too many connections does: it does not wait for the request."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 503 Service Unavailable\r\nconnection: close\r\ncontent-length: 0\r\n\r\n")
        await reader.read(1000)

    async def ask(transport: UpstreamTransport, url: str) -> int:
        try:
            return (await _ask(transport, url))[0]
        except httpx.ConnectError:
            return 0

    async def asked() -> None:
        async with _serving(serve) as url:
            transport = _to(url, read_s=5.0)
            for _ in range(20):
                found = await asyncio.gather(*(ask(transport, url) for _ in range(10)))
                assert {0, 503}.issuperset(found)
            await transport.aclose()

    run(asked())


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def test_a_connection_that_ends_before_tls_is_an_error_and_no_noise(run: Callable[..., None]) -> None:
    problems: list[Any] = []

    async def ask() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, problem: problems.append(problem))
        with socket.create_server(("127.0.0.1", 0), backlog=50) as server:

            def close_all() -> None:
                for _ in range(400):
                    server.accept()[0].close()

            closing = threading.Thread(target=close_all, daemon=True)
            closing.start()
            url = f"https://localhost:{server.getsockname()[1]}"
            transport = _to(url)
            for _ in range(40):
                found = await asyncio.gather(*(_ask(transport, url) for _ in range(10)), return_exceptions=True)
                assert {type(error) for error in found} == {httpx.ConnectError}
            closing.join(30)
            await transport.aclose()

    run(ask())
    assert not problems


def test_a_pause_of_the_upstream_has_a_limit_and_one_of_the_reader_has_none() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            asked = await reader.readuntil(b"\r\n\r\n")
            if b"/silent" in asked:
                continue
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 3000000\r\n\r\n")
            writer.write(b"x" * (3_000_000 if b"/all" in asked else 200_000))

    async def run() -> None:
        async with _serving(serve) as url:
            transport = _to(url, read_s=0.3)
            with pytest.raises(httpx.ReadTimeout):
                await _ask(transport, f"{url}/silent")
            response = await transport.handle_async_request(httpx.Request("GET", f"{url}/all"))
            await asyncio.sleep(1.0)
            assert len(await _read(response)) == 3_000_000
            with pytest.raises(httpx.ReadTimeout):
                await _ask(transport, f"{url}/part")
            await transport.aclose()

    uvloop.run(run())


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
@pytest.mark.parametrize("scheme", ["http", "https"])
def test_an_upstream_that_reads_slowly_is_waited_for_and_one_that_stops_reading_is_left(
    run: Callable[..., None], scheme: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connections = 0
    body = b"x" * 20_000_000

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        while head := await reader.readuntil(b"\r\n\r\n"):
            if b"/early" in head:
                writer.write(_LENGTH)
                await asyncio.sleep(10)
            for _ in range(20):
                await reader.readexactly(1_000_000)
                await asyncio.sleep(0.1)
            writer.write(_LENGTH)

    async def ask() -> None:
        context = _tls(tmp_path, monkeypatch) if scheme == "https" else None
        with socket.socket() as listening:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
            listening.bind(("127.0.0.1", 0))
            url = f"{scheme}://localhost:{listening.getsockname()[1]}"
            server = await asyncio.start_server(serve, sock=listening, ssl=context)
            transport = _to(url, read_s=1.2)
            for path in ("/slow", "/early", "/early"):
                response = await transport.handle_async_request(httpx.Request("POST", url + path, content=body))
                assert await _read(response) == b"ok"
            await transport.aclose()
            server.close()

    run(ask())
    assert connections == 2


@pytest.mark.parametrize(
    "address",
    ["socks5://us:secret@127.0.0.1", "http://us:secret@127.0.0.1:99999", "http://", "://secret", "http://[secret"],
)
def test_a_proxy_of_the_environment_that_cannot_be_used_is_said(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", address)
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ConfigError, match="environment") as refused:
        _to("http://api.example")
    assert "secret" not in str(refused.value)
    monkeypatch.setenv("no_proxy", "other.example,api.example:8080")
    _to("http://api.example:8080")


def test_a_proxy_of_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Plain requests are sent to it whole, TLS goes through it; it gets its credentials, the upstream does not."""
    seen: list[bytes] = []

    async def proxy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(head := await reader.readuntil(b"\r\n\r\n"))
        while not head.startswith(b"CONNECT"):
            writer.write(_LENGTH)
            seen.append(head := await reader.readuntil(b"\r\n\r\n"))
        if b"refused" in head:
            writer.write(b"HTTP/1.1 407 No\r\ncontent-length: 2\r\n\r\nno")
            return
        port = int(head.split(b" ")[1].rpartition(b":")[2])
        inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")

        async def pump(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
            while data := await source.read(65536):
                target.write(data)
            target.close()

        await asyncio.gather(pump(reader, inner_writer), pump(inner_reader, writer))

    async def plain(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            seen.append(await reader.readuntil(b"\r\n\r\n"))
            writer.write(_LENGTH)

    async def run() -> None:
        async with _serving(proxy) as url, _serving(plain) as upstream:
            at = url.replace("http://", "http://us%40er:pass@")
            monkeypatch.setenv("http_proxy", at)
            monkeypatch.setenv("https_proxy", at)
            with TlsFront(tmp_path, int(upstream.rpartition(":")[2])) as front:
                trusted = ssl.create_default_context(cafile=str(front.certificate))
                monkeypatch.setattr(transports, "_trusted", lambda: trusted)
                away, secure = "http://api.example/v1", f"https://localhost:{front.port}/v1"
                for target in (away, secure):
                    transport = _to(target)
                    assert (await _ask(transport, target))[2] == b"ok"
                    assert (await _ask(transport, target))[2] == b"ok"
                    await transport.aclose()
                with pytest.raises(httpx.ConnectError):
                    await _ask(_to("https://refused.example"), "https://refused.example")
                with pytest.raises(httpx.ConnectError):  # its certificate is for another name
                    await _ask(_to(f"https://127.0.0.1:{front.port}"), f"https://127.0.0.1:{front.port}")

    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    uvloop.run(run())
    credentials = b"proxy-authorization: Basic dXNAZXI6cGFzcw=="
    heads = [head.split(b"\r\n") for head in seen]
    assert [lines[0].split(b" ")[0] for lines in heads] == [b"GET"] * 2 + [b"CONNECT", b"GET", b"GET"] + [
        b"CONNECT"
    ] * 2
    assert [credentials in lines for lines in heads] == [True, True, True, False, False, True, True]
    assert heads[0][0] == b"GET http://api.example/v1 HTTP/1.1"
    assert heads[3][0] == b"GET /v1 HTTP/1.1"
