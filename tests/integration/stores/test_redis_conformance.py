"""R6: Redis keeps every rule of a journal in both faces, alone and as a Cluster, also across processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import pytest
import redis

from antiphon.stores.redis import RedisStore
from antiphon.stores.redis.schema import Names
from antiphon.testing.journal_conformance import FACES, Face, JournalConformance
from tests.integration.stores import redis_kit
from tests.integration.stores.redis_kit import BUSY_S, Cluster


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster() as running:
        yield running


def make_newer(client: redis.Redis, prefix: str) -> Callable[[str], None]:
    """Rewrites a record as a release of the future would have written it."""
    names = Names(prefix)

    def change(key: str) -> None:
        redis_kit.make_newer(client, names.shard(key).record + key)

    return change


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("rule", JournalConformance.rules(across_processes=True, newer_records=True))
def test_redis(rule: str, face: Face, valkey_url: str, unique: str) -> None:
    make = partial(RedisStore, valkey_url, prefix=unique, retry_timeout_s=BUSY_S)
    with redis.Redis.from_url(valkey_url) as client:
        JournalConformance(make, face, make_newer=make_newer(client, unique)).check(rule)


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("rule", JournalConformance.rules(across_processes=True))
def test_redis_cluster(rule: str, face: Face, cluster: Cluster, unique: str) -> None:
    JournalConformance(partial(RedisStore, cluster.url, prefix=unique, retry_timeout_s=BUSY_S), face).check(rule)
