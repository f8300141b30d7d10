"""Redis without a coroutine: the claims of the synchronous face keep every rule and survive the same faults."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import urlsplit

import pytest
import redis

from antiphon._drive import drive
from antiphon.errors import StoreUnavailable
from antiphon.ports import Ask, Claimed, Existing, Final, Row
from antiphon.stores import RedisStore
from antiphon.stores._redis_sync import SyncJournal
from antiphon.testing.journal_conformance import JournalConformance
from tests.faultproxy import FaultProxy
from tests.integration.stores.redis_kit import Cluster, ask, claimed, done, existing
from tests.servers import Valkey


class AtOnce:
    """A journal whose claims and settlements go the way without a coroutine."""

    def __init__(self, journal: SyncJournal) -> None:
        self._journal = journal

    def __getattr__(self, name: str) -> Any:
        return getattr(self._journal, name)

    async def begin(self, ask: Ask, events: Sequence[Row] = ()) -> Claimed | Existing:
        return self._journal.begin_now(ask, events)

    async def settle(self, key: str, version: int, final: Final, events: Sequence[Row] = ()) -> int | None:
        return self._journal.settle_now(key, version, final, events)


class AtOnceStore(RedisStore):
    """The same store, asked at once."""

    def open_sync(self) -> Any:
        journal = super().open_sync()
        assert isinstance(journal, SyncJournal)
        return AtOnce(journal)


@pytest.mark.parametrize("rule", JournalConformance.rules())
def test_every_rule_holds(rule: str, valkey_url: str, unique: str) -> None:
    JournalConformance(lambda: AtOnceStore(valkey_url, prefix=unique)).check(rule)


def test_a_cluster_is_asked_the_other_way(unique: str) -> None:
    with Cluster() as cluster:
        journal = AtOnceStore(cluster.url, prefix=unique).open_sync()
        for n in range(20):
            held = claimed(journal.begin_now(ask(f"k{n}")))
            assert journal.settle_now(f"k{n}", held.version, done()) is not None
            assert existing(journal.begin_now(ask(f"k{n}", "call-2"))).current.state == "done"
        drive(journal.close())


def test_scripts_are_loaded_again(valkey_server: Callable[..., Valkey]) -> None:
    url = valkey_server().url
    journal = AtOnceStore(url).open_sync()
    with redis.Redis.from_url(url) as client:
        held = claimed(journal.begin_now(ask("warm")))
        client.script_flush()
        assert journal.settle_now("warm", held.version, done()) is not None
        client.script_flush()
        held = claimed(journal.begin_now(ask("k")))
        assert existing(journal.begin_now(ask("k", "call-2"))).current.version == held.version
    drive(journal.close())


def test_a_connection_that_breaks_is_made_anew(
    valkey_url: str, unique: str, fault_proxy: Callable[[int], FaultProxy]
) -> None:
    port = urlsplit(valkey_url).port
    assert port is not None
    proxy = fault_proxy(port)
    journal = AtOnceStore(proxy.url(valkey_url), prefix=unique).open_sync()
    held = claimed(journal.begin_now(ask("k")))
    proxy.reset()
    assert journal.settle_now("k", held.version, done()) is not None
    proxy.reset()
    claimed(journal.begin_now(ask("k2")))
    drive(journal.close())


def test_a_claim_that_got_no_answer_is_given_back(valkey_server: Callable[..., Valkey]) -> None:
    server = valkey_server()
    url = f"{server.url}?socket_timeout=0.3&socket_connect_timeout=0.2"
    journal = AtOnceStore(url, patience_s=0.1).open_sync()
    claimed(journal.begin_now(ask("first")))
    server.pause()
    with pytest.raises(StoreUnavailable, match="cannot be reached"):
        journal.begin_now(ask("ghost"))
    server.resume()
    claimed(journal.begin_now(ask("second")))
    claimed(journal.begin_now(ask("ghost", "call-2")))
    drive(journal.close())
