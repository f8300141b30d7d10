"""R7, D5: failures that really happened on a socket are what the classifier says they are."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import anthropic
import httpx
import httpx2
import openai
import psycopg
import pytest
import redis
import redis.asyncio
import requests
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.retry import Retry

from antiphon.decide.classify import Failure, classify
from tests.servers import free_port

BUSY = b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 2\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}"


@contextlib.contextmanager
def server(behave: Callable[[socket.socket], None]) -> Iterator[int]:
    """A listener on loopback that treats each connection badly in its own way."""
    stop = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(0.05)
        held: list[socket.socket] = []

        def serve() -> None:
            while not stop.is_set():
                with contextlib.suppress(OSError):
                    connection, _ = listener.accept()
                    held.append(connection)
                    behave(connection)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            stop.set()
            thread.join()
            for connection in held:
                connection.close()


def stay_silent(connection: socket.socket) -> None:
    connection.recv(65_536)


def hang_up(connection: socket.socket) -> None:
    connection.recv(65_536)
    connection.close()


def reset(connection: socket.socket) -> None:
    connection.recv(65_536)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def busy(connection: socket.socket) -> None:
    connection.recv(65_536)
    connection.sendall(BUSY)


def by_httpx(url: str) -> Any:
    httpx.post(url, timeout=0.3, trust_env=False).raise_for_status()


def by_httpx2(url: str) -> Any:
    httpx2.post(url, timeout=0.3, trust_env=False).raise_for_status()


def by_httpx2_async(url: str) -> Any:
    async def post() -> None:
        async with httpx2.AsyncClient(timeout=0.3, trust_env=False) as client:
            (await client.post(url)).raise_for_status()

    asyncio.run(post())


def by_requests(url: str) -> Any:
    with requests.Session() as session:
        session.trust_env = False
        session.post(url, timeout=0.3).raise_for_status()


def by_urllib(url: str) -> Any:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    opener.open(url, data=b"{}", timeout=0.3)


def by_openai(url: str) -> Any:
    with openai.OpenAI(api_key="none", base_url=url, max_retries=0, timeout=0.3) as client:
        client.chat.completions.create(model="m", messages=[{"role": "user", "content": "hi"}])


def by_anthropic(url: str) -> Any:
    with anthropic.Anthropic(api_key="none", base_url=url, max_retries=0, timeout=0.3) as client:
        client.messages.create(model="m", max_tokens=1, messages=[{"role": "user", "content": "hi"}])


CLIENTS = [by_httpx, by_httpx2, by_httpx2_async, by_requests, by_urllib, by_openai, by_anthropic]


def failure_of(call: Callable[[str], Any], url: str) -> Failure:
    with pytest.raises(Exception) as caught:
        call(url)
    return classify(caught.value)


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.__name__)
def test_refused_connection_certainly_had_no_effect(client: Callable[[str], Any]) -> None:
    failure = failure_of(client, f"http://127.0.0.1:{free_port()}/v1")
    assert (failure.code, failure.retriable, failure.phase) == ("ECONNREFUSED", True, "not_sent")
    assert failure.certainly_no_effect


@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.__name__)
def test_silence_after_the_request_leaves_the_outcome_open(client: Callable[[str], Any]) -> None:
    with server(stay_silent) as port:
        failure = failure_of(client, f"http://127.0.0.1:{port}/v1")
    assert (failure.code, failure.kind, failure.retriable) == ("ETIMEDOUT", "timeout", True)
    assert failure.may_have_applied


@pytest.mark.parametrize("behave", [hang_up, reset], ids=lambda behave: behave.__name__)
@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.__name__)
def test_lost_connection_after_the_request_leaves_the_outcome_open(
    client: Callable[[str], Any], behave: Callable[[socket.socket], None]
) -> None:
    with server(behave) as port:
        failure = failure_of(client, f"http://127.0.0.1:{port}/v1")
    assert (failure.code, failure.kind, failure.retriable) == ("ECONNRESET", "transport", True)
    assert failure.may_have_applied


@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.__name__)
def test_503_with_retry_after_certainly_had_no_effect(client: Callable[[str], Any]) -> None:
    with server(busy) as port:
        failure = failure_of(client, f"http://127.0.0.1:{port}/v1")
    assert (failure.code, failure.status, failure.retry_after_ms) == ("http_503", 503, 2_000)
    assert failure.certainly_no_effect


@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.__name__)
def test_unknown_host_certainly_had_no_effect(client: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: Any, **__: Any) -> Any:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    failure = failure_of(client, "http://nowhere.invalid/v1")
    assert (failure.code, failure.phase) == ("dns", "not_sent")
    assert failure.certainly_no_effect


def test_databases_refuse() -> None:
    with pytest.raises(redis.ConnectionError) as redis_error:
        redis.Redis(port=free_port(), retry=Retry(NoBackoff(), 0)).ping()
    assert classify(redis_error.value).certainly_no_effect

    async def ping() -> None:
        await redis.asyncio.Redis(port=free_port(), retry=AsyncRetry(NoBackoff(), 0)).ping()

    with pytest.raises(redis.ConnectionError) as async_error:
        asyncio.run(ping())
    assert classify(async_error.value).certainly_no_effect
    with pytest.raises(psycopg.OperationalError) as postgres_error:
        psycopg.connect(f"host=127.0.0.1 port={free_port()}")
    assert classify(postgres_error.value).retriable
