"""The synchronous Redis journal: blocking connections of redis-py, and the faults they survive."""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import urlsplit

import pytest
import redis

from antiphon.errors import StoreUnavailable
from antiphon.stores import RedisStore
from tests.faultproxy import FaultProxy
from tests.integration.stores.redis_kit import Cluster, claimed, done, existing, request_for
from tests.servers import Valkey


def test_a_cluster(unique: str) -> None:
    with Cluster() as cluster:
        journal = RedisStore(cluster.url, prefix=unique).open_sync()
        for n in range(20):
            held = claimed(journal.begin(request_for(f"k{n}")))
            assert journal.settle(f"k{n}", held.version, done()) is not None
            assert existing(journal.begin(request_for(f"k{n}", "call-2"))).current.state == "done"
        journal.close()


def test_scripts_are_loaded_again(valkey_server: Callable[..., Valkey]) -> None:
    url = valkey_server().url
    journal = RedisStore(url).open_sync()
    with redis.Redis.from_url(url) as client:
        held = claimed(journal.begin(request_for("warm")))
        client.script_flush()
        assert journal.settle("warm", held.version, done()) is not None
        client.script_flush()
        held = claimed(journal.begin(request_for("k")))
        assert existing(journal.begin(request_for("k", "call-2"))).current.version == held.version
    journal.close()


def test_a_connection_that_breaks_is_made_anew(
    valkey_url: str, unique: str, fault_proxy: Callable[[int], FaultProxy]
) -> None:
    port = urlsplit(valkey_url).port
    assert port is not None
    proxy = fault_proxy(port)
    journal = RedisStore(proxy.url(valkey_url), prefix=unique).open_sync()
    held = claimed(journal.begin(request_for("k")))
    proxy.reset()
    assert journal.settle("k", held.version, done()) is not None
    proxy.reset()
    claimed(journal.begin(request_for("k2")))
    journal.close()


def test_a_claim_that_got_no_answer_is_given_back(valkey_server: Callable[..., Valkey]) -> None:
    server = valkey_server()
    url = f"{server.url}?socket_timeout=2&socket_connect_timeout=2"
    journal = RedisStore(url, retry_timeout_s=0.1).open_sync()
    claimed(journal.begin(request_for("first")))
    server.pause()
    with pytest.raises(StoreUnavailable, match="cannot be reached"):
        journal.begin(request_for("ghost"))
    server.resume()
    claimed(journal.begin(request_for("second")))
    claimed(journal.begin(request_for("ghost", "call-2")))
    journal.close()
