"""Planted bugs: each guarantee of the scripts is broken on purpose, and a test must notice."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
import redis

from antiphon.ports import Claimed
from antiphon.stores import RedisStore, _common
from antiphon.stores.redis import claims, schema
from antiphon.stores.redis.claims import RedisClaims
from antiphon.stores.redis.client import Client
from antiphon.stores.redis.journal import AsyncRedisJournal
from antiphon.stores.redis.schema import Names
from antiphon.testing.journal_conformance import JournalConformance
from tests.integration.stores.redis_kit import (
    RedisJournal,
    claimed,
    done,
    existing,
    in_face,
    make_newer,
    request_for,
    waited_for,
)
from tests.ticks import Ticks

Plant = Callable[[str, str, str], None]


@pytest.fixture
def plant(monkeypatch: pytest.MonkeyPatch) -> Plant:
    """Change one place of a script: ``plant("settle", "what stands there", "what shall stand there")``."""

    def change(name: str, old: str, new: str) -> None:
        source = schema.SOURCES[schema.DIGESTS[name]].decode()
        assert source.count(old) >= 1, f"{name}.lua has no {old!r} any more"
        monkeypatch.setitem(schema.DIGESTS, name, schema.DIGESTS[name])
        schema.load(name, source.replace(old, new).encode())

    return change


@pytest.mark.parametrize(
    ("rule", "script", "old", "new"),
    [
        ("begin_inserts_or_returns", "claim", "local seen = state and version == ARGV[3]", "local seen = true"),
        ("one_of_many_takes", "claim", "state and version == ARGV[3]", "state and ARGV[3] ~= ''"),
        ("versions_only_grow", "claim", "local fresh = micros\n", "local fresh = '1'\n"),
        ("versions_only_grow", "settle", "local fresh = micros\n", "local fresh = ARGV[4]\n"),
        ("replaced_executions_are_kept", "claim", "'i:' .. identity, place)", "'i:', place)"),
        ("own_execution_outlives_the_current_one", "claim", "elseif state or own then", "elseif state then"),
        ("own_execution_outlives_the_current_one", "read", "there and flat or false, owns", "false, {}"),
        ("settle_is_fenced_after_takeover", "settle", "if version ~= ARGV[4] then", "if false then"),
        ("unknown_is_settled_by_its_new_version", "settle", "'1 ' .. fresh", "'1 ' .. ARGV[4]"),
        ("unknown_is_settled_after_others_followed", "settle_earlier", "or not unknown or", "or"),
        ("unknown_is_settled_after_others_followed", "settle_earlier", "'v:' .. fresh, place)", "'v:0', place)"),
        ("an_outdated_version_is_neither_shared_nor_replaced", "alias", "its ~= ARGV[2] or ", ""),
        ("an_outdated_version_is_neither_shared_nor_replaced", "claim", "'^%d+ (%d+) ') == ARGV[3]", "'') ~= ARGV[3]"),
        ("earlier_executions_are_listed", "earlier", "KEYS[2], now,", "KEYS[2], '-inf',"),
        ("final_state_sets_the_ttl", "settle", "'PX', ARGV[6]).err", "'KEEPTTL').err"),
        ("only_the_holder_renews", "renew", "if version ~= ARGV[1] then", "if false then"),
        ("only_the_holder_renews", "renew", "math.max(left, ARGV[2], 1)", "math.max(left, 1)"),
        ("alias", "alias", "if state == 'inflight' then", "if false then"),
        ("an_identity_has_one_answer", "alias", "if result == 'done' then", "if false then"),
        ("an_identity_has_one_answer", "alias", "if identity == ARGV[1] then", "if false then"),
        ("sharing_and_running_exclude_each_other", "claim", "done ') then", "nothing ') then"),
        ("clear_forgets_record_and_history", "clear", "redis.call('DEL', KEYS[2], KEYS[3])", "0"),
        ("counts_by_tool_and_state", "count", "math.floor(updated / 1000) + lease <= now", "false"),
        ("append_is_gap_free", "append", "return length\n", "return length + 1\n"),
        ("breakers_keep_the_newest_epoch", "breaker", "> tonumber(ARGV[2])", "> 1e300"),
    ],
)
def test_the_conformance_rules_notice(
    rule: str, script: str, old: str, new: str, plant: Plant, valkey_url: str, unique: str
) -> None:
    plant(script, old, new)
    with pytest.raises((AssertionError, TypeError, ValueError)):
        JournalConformance(lambda: RedisStore(valkey_url, prefix=unique)).check(rule)


@pytest.mark.parametrize(
    ("rule", "life"),
    [
        ("lapsed_lease_is_still_seen", lambda ttl, lease: lease),
        ("lease_longer_than_ttl", lambda ttl, lease: ttl),
        ("a_claim_in_flight_does_not_expire", max),
        ("an_abandoned_claim_is_forgotten", lambda ttl, lease: 10 * ttl),
    ],
)
def test_a_claim_in_flight_that_is_kept_too_briefly(
    rule: str, life: Callable[[int, int], int], valkey_url: str, unique: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claims, "kept_for", life)
    claims._durations.cache_clear()
    try:
        with pytest.raises(AssertionError):
            JournalConformance(lambda: RedisStore(valkey_url, prefix=unique)).check(rule)
    finally:
        claims._durations.cache_clear()


def test_a_repeated_claim_that_is_not_recognised(plant: Plant, valkey_url: str, unique: str) -> None:
    """Without the nonce, the second try of a claim whose answer got lost finds the claim held: by itself."""
    _claim_twice(valkey_url, unique)
    plant("claim", "nonce == string.match(ARGV[7], '^ %a+ (%S+)')", "false")
    with pytest.raises(AssertionError):
        _claim_twice(valkey_url, unique + "2")


def _claim_twice(url: str, prefix: str) -> None:
    async def work(journal: RedisJournal) -> None:
        first = claimed(await journal.begin(request_for("k")))
        assert claimed(await journal.begin(request_for("k"))).version == first.version

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Client, "nonce", lambda _: "same-operation")
        in_face("sync", RedisStore(url, prefix=prefix), work)


def test_a_repeated_settlement_that_is_not_recognised(plant: Plant, valkey_url: str, unique: str) -> None:
    _settle_twice(valkey_url, unique)
    plant("settle", "return nonce == ARGV[5] and tonumber(version)", "return false")
    with pytest.raises(AssertionError):
        _settle_twice(valkey_url, unique + "2")


def _settle_twice(url: str, prefix: str) -> None:
    async def work(journal: RedisJournal) -> None:
        held = claimed(await journal.begin(request_for("k")))
        first = await journal.settle("k", held.version, done())
        assert first is not None
        assert await journal.settle("k", held.version, done()) == first

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Client, "nonce", lambda _: "same-operation")
        in_face("sync", RedisStore(url, prefix=prefix), work)


@pytest.mark.parametrize("script", ["settle", "clear"])
def test_a_change_that_is_not_published(script: str, plant: Plant, valkey_url: str, unique: str) -> None:
    _woken(script, valkey_url, unique)
    plant(script, "redis.call('PUBLISH'", "tostring('PUBLISH'")
    with pytest.raises(AssertionError):
        _woken(script, valkey_url, unique + "2")


def _woken(script: str, url: str, prefix: str) -> None:
    import threading
    import time

    store = RedisStore(url, prefix=prefix)

    async def work(journal: RedisJournal) -> None:
        held = claimed(await journal.begin(request_for("k")))
        other = store.open_sync()

        def act() -> None:
            with redis.Redis.from_url(url) as client:
                while not waited_for(client, Names(prefix).shard("k").record + "k"):
                    time.sleep(0.01)
            other.clear("k") if script == "clear" else other.settle("k", held.version, done())

        thread = threading.Thread(target=act)
        thread.start()
        with Ticks() as ticks:
            started = time.monotonic()
            await journal.wait("k", held.version, 8.0)
            thread.join()
            assert ticks.since(started) < 2.0

    in_face("sync", store, work)


def test_a_newer_record_that_is_taken(plant: Plant, valkey_url: str, unique: str) -> None:
    plant("claim", "'^1 (%d+)", "'^%d+ (%d+)")

    async def work(journal: RedisJournal) -> None:
        held = claimed(await journal.begin(request_for("k")))
        with redis.Redis.from_url(valkey_url) as client:
            make_newer(client, Names(unique).shard("k").record + "k")
        assert isinstance(await journal.take_over(request_for("k", "call-2"), held.version), Claimed), "the planted bug"

    in_face("sync", RedisStore(valkey_url, prefix=unique), work)


async def test_a_cancelled_caller_whose_claim_stays(
    valkey_url: str, unique: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unless it is given back, the claim of a cancelled caller blocks others until its lease ends."""
    journal = RedisStore(valkey_url, prefix=unique).open_async()
    claimed(await journal.begin(request_for("another")))
    await _cancel(journal, "good")  # type: ignore[arg-type]
    claimed(await journal.begin(request_for("good", "call-2")))

    async def keep(steps: RedisClaims) -> None:
        steps._abandoned.clear()

    monkeypatch.setattr(RedisClaims, "_give_back", keep)
    await _cancel(journal, "bad")  # type: ignore[arg-type]
    assert existing(await journal.begin(request_for("bad", "call-2"))).current.state == "inflight", "the planted bug"
    await journal.close()


async def _cancel(journal: AsyncRedisJournal, key: str) -> None:
    """Cancel the caller of a claim after its command was sent."""
    task = asyncio.create_task(journal.begin(request_for(key)))
    for _ in range(3):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await asyncio.sleep(0.2)


def test_a_settlement_that_forgets_what_it_has_logged(monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.integration.stores.test_composed import test_a_repeated_settle_writes_its_events_once as check

    monkeypatch.setattr(_common.Settling, "_remember", lambda *_: None)
    from antiphon.stores import MemoryStore

    with pytest.raises(AssertionError):
        check((MemoryStore(), MemoryStore()))
