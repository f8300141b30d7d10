"""The ways in leave the same behind on Redis and PostgreSQL, too; the server's times and versions are not compared."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from antiphon.stores import PostgresStore, RedisStore
from tests.unit.gateway import test_ways_agree as ways
from tests.unit.gateway.kit import ManualClock

OF_THE_SERVER = {"createdAtMs", "updatedAtMs", "expiresAtMs", "startedAtMs", "finishedAtMs", "at_ms", "ageMs"}
OF_THE_SERVER |= {"version", "fence", "updated_at_ms"}
_few = settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(params=["redis", "postgres"])
def on_server(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stores of the test are on a server, each under a name of its own."""
    use_server(request.param, request, monkeypatch)


def use_server(kind: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let stores be on a server of *kind*."""
    where = request.getfixturevalue("valkey_url" if kind == "redis" else "postgres_dsn")

    @contextmanager
    def store_on(clock: ManualClock, *, sqlite: bool) -> Iterator[Any]:
        if kind == "redis":
            yield RedisStore(where, prefix=f"ways-{uuid.uuid4().hex[:8]}")
            return
        store = PostgresStore(where)
        journal = store.open_sync()
        for record in journal.list(tenant="default", limit=10_000):
            journal.clear(record.key)
        journal.delete_run("run-1")
        journal.close()
        with psycopg.connect(where, autocommit=True) as connection:
            connection.execute("DELETE FROM antiphon.breakers")
        yield store

    monkeypatch.setattr(ways, "store_on", store_on)
    monkeypatch.setattr(ways, "DIFFER", ways.DIFFER | OF_THE_SERVER)


@_few
@given(setup=ways.SETUPS, loop=st.booleans())
def test_the_ways_agree(on_server: None, setup: ways.Setup, loop: bool) -> None:
    ways.check_ways(ways.nameless(setup), ways.WAYS, loop=loop, sqlite=False)


@_few
@given(setup=ways.SETUPS, loop=st.booleans())
def test_calls_for_a_key_agree(on_server: None, setup: ways.Setup, loop: bool) -> None:
    ways.check_ways(ways.keyed(setup, None), ways.KEYED, loop=loop, sqlite=False)


@_few
@given(setup=ways.SETUPS, loop=st.booleans())
def test_calls_of_adapters_agree(on_server: None, setup: ways.Setup, loop: bool) -> None:
    ways.check_ways(ways.adapted(setup), ways.GUARDED, loop=loop, sqlite=False)
