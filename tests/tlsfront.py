"""TLS before a plain server, as managed services end it; the servers of the tests are built without TLS."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import socket
import ssl
import threading
from pathlib import Path
from typing import Self

from tests.servers import HOST


class TlsFront:
    """Ends TLS for ``localhost`` and passes the rest on to *port*.

    One event loop serves it: an ``SSLSocket`` must not be read and written by two threads at once. PostgreSQL's client
    takes *protocol* ``postgresql`` and ``sslnegotiation=direct``.
    """

    def __init__(self, folder: Path, port: int, *, protocol: str = "") -> None:
        self.certificate = folder / "cert.pem"
        key = folder / "key.pem"
        certificate, private = make_certificate("localhost")
        self.certificate.write_bytes(certificate)
        key.write_bytes(private)
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(self.certificate, key)
        if protocol:
            self._context.set_alpn_protocols([protocol])
        self._socket = socket.create_server((HOST, 0))
        self.port = self._socket.getsockname()[1]
        self._target = port
        self._loop = asyncio.new_event_loop()
        self._loop.set_exception_handler(lambda *_: None)  # connections are reset on purpose
        self._stopped = asyncio.Event()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._serve(),), daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def _serve(self) -> None:
        async with await asyncio.start_server(self._connected, sock=self._socket, ssl=self._context):
            await self._stopped.wait()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            up_reader, up_writer = await asyncio.open_connection(HOST, self._target)
        except OSError:  # the server is away
            writer.close()
            return
        await asyncio.gather(_pump(reader, up_writer), _pump(up_reader, writer))

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._stopped.set)
        self._thread.join()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    writer.close()


def make_certificate(host: str) -> tuple[bytes, bytes]:
    """A certificate that signs itself, and its key."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    private = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, host)])
    now = datetime.datetime.now(datetime.UTC)
    built = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(private.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(host)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(private, hashes.SHA256())
    )
    pem, plain = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    return built.public_bytes(pem), private.private_bytes(pem, plain, serialization.NoEncryption())
