"""R6, D7, R9: who waits is told at once, without polling, whatever happens to the subscriber's connection."""

from __future__ import annotations

import asyncio
import os
import statistics
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from antiphon.ports import BreakerRow
from antiphon.stores import RedisStore
from antiphon.stores.redis import wait as wait_module
from antiphon.stores.redis.schema import Names
from tests.faultproxy import FaultProxy
from tests.integration.stores.redis_kit import (
    FACES,
    Face,
    RedisJournal,
    calls,
    claimed,
    command,
    done,
    existing,
    in_face,
    request_for,
    sleep,
    told_of_the_end,
    until,
    until_sync,
    waited_for,
)
from tests.servers import Valkey
from tests.ticks import Ticks

WAITERS = 64
Start = Callable[..., Valkey]
Proxy = Callable[[int], FaultProxy]

both_faces = pytest.mark.parametrize("face", FACES)


@both_faces
def test_only_a_claim_that_somebody_waits_for_is_published(face: Face, valkey_server: Start) -> None:
    server = valkey_server()
    with redis.Redis.from_url(server.url) as client:

        async def work(journal: RedisJournal) -> None:
            for n in range(20):
                held = claimed(await journal.begin(request_for(f"k{n}")))
                await journal.settle(f"k{n}", held.version, done())
            assert calls(client, "publish") == {}
            held = claimed(await journal.begin(request_for("waited")))
            await journal.wait("waited", held.version, 0.3)
            await journal.settle("waited", held.version, done())
            assert calls(client, "publish") == {"publish": 1}

        in_face(face, RedisStore(server.url), work)


async def test_a_crowd_flags_once_reads_once_and_sends_nothing_while_it_waits(valkey_server: Start) -> None:
    server = valkey_server()
    leader, journal = (RedisStore(server.url).open_async() for _ in range(2))
    held = claimed(await leader.begin(request_for("k")))
    await journal.read("k")
    woken: list[float] = []

    async def wait(n: int) -> None:
        await journal.wait("k", held.version, 60)
        seen = existing(await journal.read("k", f"waiter-{n}"))
        assert seen.current.state == "done"
        woken.append(time.perf_counter())

    with redis.Redis.from_url(server.url) as client:
        client.config_resetstat()
        tasks = [asyncio.create_task(wait(n)) for n in range(WAITERS)]
        await until(lambda: calls(client, "evalsha", "eval"))
        await asyncio.sleep(0.3)
        client.config_resetstat()
        await asyncio.sleep(1.0)
        assert set(calls(client)) <= {"config|resetstat", "info"}, "nobody polls"
        started = time.perf_counter()
        await leader.settle("k", held.version, done())
        await asyncio.gather(*tasks)
        assert calls(client, "evalsha", "eval").get("evalsha", 0) <= 2, "one to settle, one read for all"
    assert statistics.median(woken) - started < 0.1
    await leader.close()
    await journal.close()


def test_a_crowd_of_threads_shares_reads(valkey_server: Start) -> None:
    server = valkey_server()
    leader, journal = (RedisStore(server.url).open_sync() for _ in range(2))
    held = claimed(leader.begin(request_for("k")))
    woken: list[float] = []

    def wait(n: int) -> None:
        journal.wait("k", held.version, 60)
        assert existing(journal.read("k", f"waiter-{n}")).current.state == "done"
        woken.append(time.perf_counter())

    with redis.Redis.from_url(server.url) as client, ThreadPoolExecutor(WAITERS) as pool:
        waiting = [pool.submit(wait, n) for n in range(WAITERS)]
        until_sync(lambda: waited_for(client, Names("antiphon").shard("k").record + "k"))
        time.sleep(0.5)
        client.config_resetstat()
        time.sleep(0.5)
        assert set(calls(client)) <= {"config|resetstat", "info"}, "nobody polls"
        started = time.perf_counter()
        leader.settle("k", held.version, done())
        for future in waiting:
            future.result()
        assert calls(client, "evalsha", "eval").get("evalsha", 0) <= WAITERS // 2, "most share a read"
    assert statistics.median(woken) - started < 0.5
    leader.close()
    journal.close()


@both_faces
def test_what_happened_while_the_subscriber_was_cut_off_is_seen_on_reconnect(
    face: Face, valkey_server: Start, fault_proxy: Proxy
) -> None:
    server = valkey_server()
    proxy = fault_proxy(server.port)
    outside = RedisStore(server.url).open_sync()

    async def work(journal: RedisJournal) -> None:
        def act(version: int) -> None:
            with redis.Redis.from_url(server.url) as client:
                until_sync(lambda: waited_for(client, Names("antiphon").shard("k").record + "k"))
            proxy.refuse()
            proxy.reset()
            assert outside.settle("k", version, done()) is not None
            time.sleep(0.2)
            proxy.heal()

        await told_of_the_end(journal, act)

    in_face(face, RedisStore(proxy.url(server.url), retry_timeout_s=5), work)
    outside.close()


@both_faces
def test_waiting_survives_the_end_of_many_subscriber_connections(face: Face, valkey_server: Start) -> None:
    server = valkey_server()
    outside = RedisStore(server.url).open_sync()
    with redis.Redis.from_url(server.url) as client:

        async def work(journal: RedisJournal) -> None:
            for n in range(5):
                held = claimed(await journal.begin(request_for(f"k{n}")))
                timer = threading.Timer(0.1, lambda: command(client, "CLIENT", "KILL", "TYPE", "pubsub"))
                timer.start()
                later = threading.Timer(
                    0.3,
                    lambda n=n, held=held: outside.settle(f"k{n}", held.version, done()),
                )
                later.start()
                started = time.monotonic()
                await journal.wait(f"k{n}", held.version, 60)
                assert time.monotonic() - started < 30

        in_face(face, RedisStore(server.url), work)
    outside.close()


@both_faces
def test_a_subscriber_says_once_that_the_server_is_gone(
    face: Face, valkey_server: Start, caplog: pytest.LogCaptureFixture
) -> None:
    server = valkey_server()

    def said() -> int:
        return sum("the subscriber lost its connection" in line for line in caplog.messages)

    async def work(journal: RedisJournal) -> None:
        heard: list[BreakerRow] = []
        journal.subscribe_breakers("default", heard.append)
        for outage in (1, 2):
            await _eventually(face, client.pubsub_channels)
            heard.clear()
            await journal.save_breaker("default", BreakerRow("b", "OPEN", outage, 0, "tripped", outage))
            await _eventually(face, lambda: heard)
            server.kill()
            await _eventually(face, lambda outage=outage: said() >= outage)  # type: ignore[misc]
            await sleep(face, 0.5)
            assert said() == outage
            server.start()

    with redis.Redis.from_url(server.url, retry=Retry(NoBackoff(), 1)) as client:
        in_face(face, RedisStore(server.url, retry_timeout_s=5), work)


@both_faces
def test_channels_nobody_needs_are_given_up(face: Face, valkey_server: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wait_module, "LINGER_S", 0.0)
    server = valkey_server()
    with redis.Redis.from_url(server.url) as client:

        async def work(journal: RedisJournal) -> None:
            for n in range(10):
                held = claimed(await journal.begin(request_for(f"k{n}")))
                await journal.wait(f"k{n}", held.version, 0.02)
            await sleep(face, 0.1)
            assert len(client.pubsub_channels()) <= 1

        in_face(face, RedisStore(server.url), work)


async def test_a_channel_that_is_entered_again_at_once_tells_of_changes(
    valkey_url: str, unique: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wait_module, "LINGER_S", 0.0)  # who leaves it gives it up
    journal = RedisStore(valkey_url, prefix=unique).open_async()
    held = claimed(await journal.begin(request_for("k")))

    async def wait_twice() -> None:
        await journal.wait("k", held.version - 1, 60)  # that one is over
        await journal.wait("k", held.version, 60)  # in the same turn of the event loop

    waiting = asyncio.create_task(wait_twice())
    await asyncio.sleep(0.6)
    await journal.settle("k", held.version, done())
    await asyncio.wait_for(waiting, 20)
    await journal.close()


async def test_one_cancelled_waiter_does_not_disturb_the_others(valkey_url: str, unique: str) -> None:
    journal = RedisStore(valkey_url, prefix=unique).open_async()
    held = claimed(await journal.begin(request_for("k")))
    tasks = [asyncio.create_task(journal.wait("k", held.version, 60)) for _ in range(10)]
    await asyncio.sleep(0)
    tasks[0].cancel()  # the one that subscribes and flags for all
    await asyncio.sleep(0.1)
    tasks[5].cancel()
    await journal.settle("k", held.version, done())
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert [isinstance(result, asyncio.CancelledError) for result in results] == [n in (0, 5) for n in range(10)]
    await journal.close()


@both_faces
def test_breakers_are_told_of_within_a_second(face: Face, valkey_url: str, unique: str, ticks: Ticks) -> None:
    """R9: trips, forced states and resets reach the other processes; another tenant's do not."""
    store = RedisStore(valkey_url, prefix=unique)
    here = store.open_sync()
    heard: list[BreakerRow] = []
    here.save_breaker("default", BreakerRow("before", "OPEN", 1, 0, "tripped", 1))

    async def work(journal: RedisJournal) -> None:
        stop = journal.subscribe_breakers("default", heard.append)
        assert stop is not None
        await _eventually(face, lambda: heard)
        assert heard == [BreakerRow("before", "OPEN", 1, 0, "tripped", 1)], "what was there is told first"
        rows = [
            BreakerRow("tools/send", "OPEN", 2, 99, "5 consecutive failures", 2, "host-1"),
            BreakerRow("tools/send", "FORCED_OPEN", 3, 0, "operator", 3),
            BreakerRow("tools/send", "CLOSED", 4, 0, "reset", 4),
        ]
        started = time.monotonic()
        for row in rows:
            here.save_breaker("default", row)
        here.save_breaker("default", BreakerRow("tools/send", "OPEN", 1, 0, "late news", 9))
        here.save_breaker("other", rows[0])
        await _eventually(face, lambda: heard[1:] == rows)
        assert ticks.since(started) < 1.0
        stop()
        stop()
        here.save_breaker("default", rows[0]._replace(epoch=9))
        await sleep(face, 0.1)
        assert heard[1:] == rows, "nothing after the end"

    in_face(face, store, work)
    here.close()


@both_faces
def test_breakers_missed_while_cut_off_are_told_later(face: Face, valkey_server: Start, fault_proxy: Proxy) -> None:
    server = valkey_server()
    proxy = fault_proxy(server.port)
    outside = RedisStore(server.url).open_sync()
    row = BreakerRow("tools/send", "OPEN", 1, 0, "tripped", 1)

    async def work(journal: RedisJournal) -> None:
        heard: list[BreakerRow] = []
        outside.save_breaker("default", row._replace(key="before"))
        journal.subscribe_breakers("default", heard.append)
        await _eventually(face, lambda: heard)  # both connections are open
        proxy.refuse()
        proxy.reset()
        outside.save_breaker("default", row)
        await sleep(face, 0.2)
        assert row not in heard
        proxy.heal()
        await _eventually(face, lambda: row in heard)

    in_face(face, RedisStore(proxy.url(server.url)), work)
    outside.close()


@both_faces
def test_a_listener_that_fails_disturbs_nobody(face: Face, valkey_url: str, unique: str) -> None:
    async def work(journal: RedisJournal) -> None:
        heard: list[BreakerRow] = []

        def fail(row: BreakerRow) -> None:
            heard.append(row)
            raise ValueError("a bug of somebody else")

        await journal.save_breaker("default", BreakerRow("b", "OPEN", 0, 0, "", 1))
        journal.subscribe_breakers("default", fail)
        await _eventually(face, lambda: heard)
        for epoch in range(1, 4):
            await journal.save_breaker("default", BreakerRow("b", "OPEN", epoch, 0, "", 1))
        await _eventually(face, lambda: len(heard) == 4)
        held = claimed(await journal.begin(request_for("k")))
        await journal.wait("k", held.version, 0.05)

    in_face(face, RedisStore(valkey_url, prefix=unique), work)


def test_a_forked_child_has_connections_and_a_subscriber_of_its_own(valkey_url: str, unique: str) -> None:
    journal = RedisStore(valkey_url, prefix=unique).open_sync()
    held = claimed(journal.begin(request_for("k")))
    journal.wait("k", held.version, 0.05)  # the subscriber thread runs, connections are open
    pid = os.fork()
    if pid == 0:
        try:
            for n in range(200):
                claimed(journal.begin(request_for(f"child-{n}")))
            journal.wait("k", held.version, 30)
            good = existing(journal.read("k")).current.state == "done"
            os._exit(0 if good else 1)
        except BaseException:
            os._exit(2)
    for n in range(200):
        own = claimed(journal.begin(request_for(f"parent-{n}")))
        assert journal.settle(f"parent-{n}", own.version, done()) is not None
    time.sleep(0.5)
    assert journal.settle("k", held.version, done()) is not None
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    journal.close()


async def _eventually(face: Face, condition: Callable[[], object]) -> None:
    limit = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < limit, "it did not happen in time"
        await sleep(face, 0.005)


@both_faces
def test_strange_messages_wake_nobody_and_break_nothing(face: Face, valkey_url: str, unique: str) -> None:
    with redis.Redis.from_url(valkey_url) as client:

        async def work(journal: RedisJournal) -> None:
            held = claimed(await journal.begin(request_for("k")))

            def shout() -> None:
                for message in (b"", b"x", b"\xff\xfe k", b"1 k", b"999999999999999999999 k", b"[1,2]"):
                    client.publish(Names(unique).shard("k").channel, message)

            timer = threading.Timer(0.2, shout)
            timer.start()
            started = time.monotonic()
            await journal.wait("k", held.version, 0.5)
            assert time.monotonic() - started >= 0.45
            timer = threading.Timer(0.1, lambda: other.settle("k", held.version, done()))
            timer.start()
            await journal.wait("k", held.version, 60)
            assert time.monotonic() - started < 30

        other = RedisStore(valkey_url, prefix=unique).open_sync()
        in_face(face, RedisStore(valkey_url, prefix=unique), work)
        other.close()
