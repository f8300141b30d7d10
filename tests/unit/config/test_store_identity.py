"""Claims and log count as one store only where they are one: the same server, and the same part of it."""

from __future__ import annotations

import pytest

from antiphon.config.wiring import compose
from antiphon.ports import Store
from antiphon.stores import ComposedStore, PostgresStore, RedisStore

REDIS = "redis://ada:s3cret@cache.example:6379/0"
POSTGRES = "postgresql://ada:s3cret@db.example/agents"


@pytest.mark.parametrize(
    ("claims", "log"),
    [
        (RedisStore(REDIS), RedisStore(REDIS, prefix="other")),
        (RedisStore(REDIS), RedisStore(f"{REDIS}?antiphon_prefix=other")),
        (RedisStore(f"{REDIS}?db=1", prefix="one"), RedisStore(f"{REDIS}?db=1", prefix="two")),
        (PostgresStore(POSTGRES), PostgresStore(POSTGRES, schema="other")),
        (PostgresStore(f"{POSTGRES}?sslmode=require"), PostgresStore(f"{POSTGRES}?sslmode=require&antiphon_schema=o")),
        (PostgresStore("host=db dbname=agents"), PostgresStore("host=db dbname=agents", schema="other")),
    ],
)
def test_two_parts_of_one_server_are_two_stores(claims: Store, log: Store) -> None:
    assert isinstance(compose(claims, log), ComposedStore)
    assert "s3cret" not in f"{claims.url} {log.url} {claims!r} {log!r}"


@pytest.mark.parametrize(
    ("claims", "log"),
    [
        (RedisStore(REDIS), RedisStore(f"{REDIS}?antiphon_prefix=antiphon")),
        (RedisStore(REDIS, prefix="team"), RedisStore(f"{REDIS}?antiphon_prefix=team", wait_ms=50)),
        (PostgresStore(POSTGRES), PostgresStore(POSTGRES, schema="antiphon")),
        (PostgresStore(POSTGRES, schema="team"), PostgresStore(f"{POSTGRES}?antiphon_schema=team")),
    ],
)
def test_one_part_of_one_server_is_one_store(claims: Store, log: Store) -> None:
    assert compose(claims, log) is claims


def test_a_prefix_with_marks_of_a_url_stays_one_option() -> None:
    store = RedisStore("redis://cache.example", prefix="a&b=c d")
    assert store.url == "redis://cache.example?antiphon_prefix=a%26b%3Dc%20d"
    assert RedisStore(store.url).prefix == store.prefix
