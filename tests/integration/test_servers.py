"""The real servers and the faults that other tests rely on do what they promise."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
from collections.abc import Callable

import psycopg
import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from tests.conftest import S3Access
from tests.faultproxy import FaultProxy
from tests.servers import Postgres, ServerFailed, Valkey, free_port

StartProxy = Callable[[int], FaultProxy]


def test_shared_valkey_answers(valkey_url: str, unique: str) -> None:
    with redis.Redis.from_url(valkey_url) as client:
        assert client.set(unique, "1", nx=True, ex=60)
        assert not client.set(unique, "2", nx=True)


def test_shared_postgres_answers(postgres_dsn: str, postgres_database: str) -> None:
    assert postgres_dsn != postgres_database
    with psycopg.connect(postgres_database) as connection:
        row = connection.execute("select count(*) from pg_tables where schemaname = 'public'").fetchone()
    assert row == (0,)


def test_shared_s3_takes_only_the_right_secret(s3_access: S3Access) -> None:
    from obstore import get, put
    from obstore.exceptions import BaseError
    from obstore.store import S3Store

    def store(secret: str) -> S3Store:
        return S3Store(
            s3_access.bucket,
            endpoint=s3_access.endpoint,
            access_key_id=s3_access.key,
            secret_access_key=secret,
            region=s3_access.region,
            client_options={"allow_http": True},
        )

    put(store(s3_access.secret), "a/b", b"kept")
    assert bytes(get(store(s3_access.secret), "a/b").bytes()) == b"kept"
    with pytest.raises(BaseError):
        put(store("wrong"), "a/b", b"lost")


def test_private_valkey_survives_what_it_should(valkey_server: Callable[..., Valkey]) -> None:
    server = valkey_server(appendonly=True, appendfsync="always", requirepass="secret")
    assert server.command("SET", "k", "v") == b"+OK"
    server.kill()
    with pytest.raises(OSError):
        server.command("PING")
    server.start()
    assert server.command("EXISTS", "k") == b":1"
    server.pause()
    with pytest.raises(TimeoutError):
        server.command("PING")
    server.resume()
    assert server.command("PING") == b"+PONG"


def test_private_valkey_replica_and_memory_limit(valkey_server: Callable[..., Valkey]) -> None:
    primary = valkey_server(maxmemory="2mb")
    replica = valkey_server(replicaof=primary)
    with redis.Redis.from_url(primary.url, single_connection_client=True) as client:
        client.set("k", "v")
        assert client.wait(1, 5000) == 1
    assert replica.command("EXISTS", "k") == b":1"
    answers = [primary.command("SET", f"big{n}", "x" * 300_000) for n in range(20)]
    assert answers[-1].startswith(b"-OOM")


def test_private_postgres_keeps_its_data_over_a_crash(postgres_server: Callable[..., Postgres]) -> None:
    server = postgres_server(settings={"synchronous_commit": "on"})
    with psycopg.connect(server.url) as connection:
        connection.execute("create table t (n int)")
    server.kill()
    server.start()
    server.restart()
    with psycopg.connect(server.url) as connection:
        connection.execute("insert into t values (1)")


def test_a_server_that_cannot_start_says_why(valkey_server: Callable[..., Valkey]) -> None:
    with pytest.raises(ServerFailed, match="no-such-option"):
        valkey_server(options={"no-such-option": "1"})


@pytest.fixture
def client(valkey_server: Callable[..., Valkey], fault_proxy: StartProxy) -> tuple[FaultProxy, redis.Redis]:
    proxy = fault_proxy(valkey_server().port)
    return proxy, redis.Redis(port=proxy.port, socket_timeout=1.0, retry=Retry(NoBackoff(), 0), protocol=2)


def test_proxy_loses_answers_after_the_request_arrived(client: tuple[FaultProxy, redis.Redis]) -> None:
    proxy, valkey = client
    assert valkey.ping()
    proxy.drop("down")
    with pytest.raises(redis.TimeoutError):
        valkey.incr("n")
    proxy.heal()
    assert valkey.get("n") == b"1"


def test_proxy_delays_refuses_resets_and_truncates(client: tuple[FaultProxy, redis.Redis]) -> None:
    proxy, valkey = client
    valkey.set("n", "12345")
    proxy.delay(2.0)
    with pytest.raises(redis.TimeoutError):
        valkey.ping()
    proxy.heal()
    proxy.truncate(3)
    with pytest.raises(redis.ConnectionError):
        valkey.get("n")
    proxy.heal()
    with socket.create_connection(("127.0.0.1", proxy.port), timeout=2) as connection:
        connection.sendall(b"PING\r\n")
        assert connection.recv(7) == b"+PONG\r\n"
        proxy.reset()
        with pytest.raises(ConnectionResetError):
            connection.recv(1)
    proxy.refuse()
    with pytest.raises(redis.ConnectionError):
        valkey.ping()
    proxy.heal()
    assert valkey.get("n") == b"12345"


async def test_proxy_half_closes_and_works_beside_a_running_loop(
    valkey_server: Callable[..., Valkey], fault_proxy: StartProxy
) -> None:
    server = valkey_server()
    proxy = fault_proxy(server.port)
    assert proxy.url(f"redis://:pw@127.0.0.1:{server.port}/3") == f"redis://:pw@127.0.0.1:{proxy.port}/3"
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    writer.write(b"PING\r\n")
    assert await reader.readline() == b"+PONG\r\n"
    proxy.half_close("down")
    assert await reader.read() == b""
    writer.close()
    assert proxy.connections == 1
    assert proxy.carried["down"] == len(b"+PONG\r\n")


def test_tests_stay_on_loopback() -> None:
    with pytest.raises(PermissionError, match="loopback"):
        socket.create_connection(("192.0.2.1", 9), timeout=0.1)


def test_a_port_given_out_stays_free_for_its_process() -> None:
    """Also before a server listens there: others that look for ports at that moment must not get it."""
    port = free_port(spread=(0, 1, 10_000))
    takes = f"print(*map(_PORTS._takes, ({port}, {port + 1})))"
    code = f"from tests.servers import _PORTS, free_port; free_port(); {takes}"
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert other.stdout.split() == ["False", "False"]
    assert len({free_port() for _ in range(50)}) == 50
