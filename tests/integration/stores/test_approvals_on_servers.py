"""D49 on Redis and PostgreSQL: every attack on an approval is refused, and legitimate flows run once."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from urllib.parse import urlsplit

import pytest

from antiphon.ports import Store
from antiphon.stores import PostgresStore, RedisStore
from tests.approval_cases import check_attacks, check_flows
from tests.campaigns.approval_attacks import round_trips
from tests.faultproxy import FaultProxy


@pytest.fixture(params=["redis", "postgres"])
def store(request: pytest.FixtureRequest) -> Store:
    if request.param == "redis":
        return RedisStore(request.getfixturevalue("valkey_url"), prefix=f"approvals-{uuid.uuid4().hex[:8]}")
    return PostgresStore(request.getfixturevalue("postgres_dsn"))


@pytest.mark.parametrize("kind", ["redis", "postgres"])
def test_an_approval_costs_at_most_one_more_round_trip(
    kind: str, request: pytest.FixtureRequest, fault_proxy: Callable[[int], FaultProxy]
) -> None:
    url: str = request.getfixturevalue("valkey_url" if kind == "redis" else "postgres_dsn")
    port = urlsplit(url).port
    assert port is not None

    def store(address: str) -> Store:
        return RedisStore(address, prefix="trips") if kind == "redis" else PostgresStore(address)

    trips = round_trips(url, fault_proxy(port), store)
    assert trips["plain"] >= 2
    assert trips["asks"] <= trips["plain"]
    assert trips["approved"] <= trips["plain"] + 1


@pytest.mark.parametrize("face", ["sync", "async"])
def test_every_attack_is_refused(store: Store, face: str) -> None:
    assert check_attacks(store, face, every=False) >= 60


def test_legitimate_flows_run_once(store: Store) -> None:
    assert check_flows(lambda: store, "sync", 20) == 20
