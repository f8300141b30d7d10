"""D10: a shared store that cannot be used is named with its setting; effects fail closed, and nothing replaces it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import psycopg
import pytest
import redis

from antiphon import Gateway
from antiphon.config.wiring import open_store
from antiphon.errors import ConfigError
from antiphon.stores.redis.schema import Names
from tests.faults.fleet_kit import envelope, open_async_gateway, open_gateway, summary
from tests.integration.stores.redis_kit import make_newer
from tests.servers import HOST, Postgres, Valkey, free_port

FAULTS = {"redis": ("nobody", "auth", "replica", "full"), "postgres": ("nobody", "auth", "replica", "database")}


@pytest.fixture(params=[f"{kind} {fault}" for kind, faults in FAULTS.items() for fault in faults])
def broken(request: pytest.FixtureRequest) -> tuple[str, str]:
    """The URL of a store that cannot take claims, and words of the error."""
    kind, _, fault = request.param.partition(" ")
    return (_broken_redis if kind == "redis" else _broken_postgres)(fault, request)


def _broken_redis(fault: str, request: pytest.FixtureRequest) -> tuple[str, str]:
    start: Callable[..., Valkey] = request.getfixturevalue("valkey_server")
    if fault == "nobody":
        return f"redis://user:geheim@{HOST}:{free_port()}/0?antiphon_retry_timeout_s=0.2", "cannot be reached"
    if fault == "auth":
        return f"redis://:wrong-geheim@{HOST}:{start(requirepass='right').port}/0", "refused user or password"
    if fault == "replica":
        return f"{start(replicaof=start()).url}?antiphon_retry_timeout_s=0.1", "read-only replica"
    server = start(maxmemory="64mb")
    with redis.Redis(HOST, server.port) as client:
        client.config_set("maxmemory", "100kb")
    return server.url, "full"


def _broken_postgres(fault: str, request: pytest.FixtureRequest) -> tuple[str, str]:
    if fault == "nobody":
        return f"postgresql://ada:geheim@{HOST}:{free_port()}/db", "cannot be reached"
    url: str = request.getfixturevalue("postgres_database")
    if fault == "auth":
        return url.replace("postgres@", "nobody_here:geheim@"), "refused the login"
    if fault == "database":
        return f"{url.rpartition('/')[0]}/no_such_database", "no_such_database"
    open_store(url).migrate()  # type: ignore[attr-defined]
    with psycopg.connect(url, autocommit=True) as connection:
        name = url.rpartition("/")[2]
        connection.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = on".encode())
    return url, "read-only"


def _tools(gateway: Gateway, ran: list[str]) -> None:
    @gateway.tool(idempotent=False)
    def charge(order: str) -> str:
        ran.append(order)
        return "charged"

    @gateway.tool(idempotent=True, effect="read")
    def look_up(order: str) -> str:
        return "seen"


def test_effects_fail_closed_and_the_error_names_the_setting(broken: tuple[str, str]) -> None:
    url, words = broken
    ran: list[str] = []
    with open_gateway(url) as gateway:
        _tools(gateway, ran)
        closed = summary(gateway.execute(envelope("charge", {"order": "o1"}, "c1")))
        assert (closed["status"], closed["code"], closed["attempts"]) == ("retriable_error", "store_unavailable", 0)
        assert words in closed["message"]
        assert "[store]" in closed["message"], "it says which setting to look at"
        assert "geheim" not in str(closed)
        opened = summary(gateway.execute(envelope("look_up", {"order": "o1"}, "c2")))
        assert (opened["status"], opened["metadata"]["unprotected"]) == ("success", "store_unavailable")
    assert ran == [], "nothing was run, and no other store stepped in"


async def test_effects_fail_closed_in_asyncio(broken: tuple[str, str]) -> None:
    url, words = broken
    ran: list[str] = []
    async with open_async_gateway(url) as gateway:

        @gateway.tool(idempotent=False)
        async def charge(order: str) -> str:
            ran.append(order)
            return "charged"

        results = await asyncio.gather(*(gateway.execute(envelope("charge", {"order": "o1"}, "c1")) for _ in range(3)))
        for result in results:
            closed = summary(result)
            assert (closed["status"], closed["code"], closed["attempts"]) == ("retriable_error", "store_unavailable", 0)
            assert words in closed["message"]
            assert "[store]" in closed["message"]
    assert ran == []


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("redis://host:notaport/0", r"\[store\]"),
        ("redis://host/zero", r"number of the database.*\[store\]"),
        ("redis+sentinel://host", r"SERVICE.*\[store\]"),
        ("mongodb://host", r"unknown scheme"),
    ],
)
def test_wrong_addresses_are_refused_at_once(url: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        open_gateway(url)


def test_an_address_that_postgresql_cannot_read_stops_the_call() -> None:
    ran: list[str] = []
    with open_gateway("postgresql://ada:geheim@[oops/db") as gateway:
        _tools(gateway, ran)
        with pytest.raises(ConfigError, match=r"\[store\]") as caught:
            gateway.execute(envelope("charge", {"order": "o1"}, "c1"))
    assert "geheim" not in f"{caught.value!r} {caught.value}"
    assert ran == []


def test_a_record_of_a_newer_release_fails_closed_for_everything(fleet_url: str, unique: str) -> None:
    """D1: this release cannot know what such a record means, so not even a read runs beside it."""
    ran: list[str] = []
    with open_gateway(fleet_url) as gateway:
        _tools(gateway, ran)
        for tool in ("charge", "look_up"):
            assert summary(gateway.execute(envelope(tool, {"order": "o1"}, "c1")))["status"] == "success"
        _make_newer(fleet_url, unique)
        for tool in ("charge", "look_up"):
            refused = summary(gateway.execute(envelope(tool, {"order": "o1"}, "c2")))
            assert (refused["code"], refused["attempts"]) == ("store_version", 0), refused
            assert "Upgrade Antiphon" in refused["message"]
    assert ran == ["o1"], "once, before"


def _make_newer(url: str, prefix: str) -> None:
    if url.startswith("postgresql"):
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("UPDATE antiphon.claims SET v = 99")
        return
    with redis.Redis.from_url(url.partition("?")[0]) as client:
        names = Names(prefix)
        found = 0
        for shard in names.shards:
            for name in client.scan_iter(match=f"{shard.record.replace('{', '[{]').replace('}', '[}]')}*", count=1000):
                make_newer(client, name)
                found += 1
        assert found == 2


def test_a_full_server_lets_running_calls_settle(valkey_server: Callable[..., Valkey]) -> None:
    server = valkey_server(maxmemory="64mb")
    with open_gateway(server.url) as gateway:

        @gateway.tool(idempotent=False)
        def charge(order: str) -> str:
            with redis.Redis(HOST, server.port) as client:
                client.config_set("maxmemory", "100kb")
            return "charged"

        done = summary(gateway.execute(envelope("charge", {"order": "o1"}, "c1")))
        assert (done["status"], done["metadata"]) == ("success", {})
        refused = summary(gateway.execute(envelope("charge", {"order": "o2"}, "c2")))
        assert (refused["code"], refused["attempts"]) == ("store_unavailable", 0)
        again = summary(gateway.execute(envelope("charge", {"order": "o1"}, "c1")))
        assert (again["status"], again["fromCache"]) == ("success", True)


def test_a_lost_connection_pool_is_not_a_verdict(postgres_server: Callable[..., Postgres]) -> None:
    """Every connection is cut by the server; the next call dials again and nobody notices."""
    server = postgres_server()
    ran: list[str] = []
    with open_gateway(server.url) as gateway:
        _tools(gateway, ran)
        for number in range(3):
            result = summary(gateway.execute(envelope("charge", {"order": f"o{number}"}, f"c{number}")))
            assert result["status"] == "success"
            with psycopg.connect(server.url, autocommit=True) as connection:
                connection.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()"
                    " AND backend_type = 'client backend'"
                )
    assert ran == ["o0", "o1", "o2"]
