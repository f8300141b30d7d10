"""Waiting on PostgreSQL: by push, announced only if somebody waits, one listener and one read per process (R5, R9)."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import psycopg
import pytest

from antiphon.ports import BreakerRow, Claimed, SyncJournal
from antiphon.stores import PostgresStore
from antiphon.stores.postgres import wait as wait_module
from antiphon.stores.postgres.connection import SyncConnection
from antiphon.stores.postgres.engine import Engine
from antiphon.stores.postgres.journal import PostgresJournal
from tests.integration.stores.postgres_kit import Background, done, eventually, look, request_for
from tests.ticks import Ticks

LISTENERS = (
    "SELECT pid FROM pg_stat_activity WHERE application_name = 'antiphon-listener' AND datname = current_database()"
)
WAITED = "SELECT 1 FROM antiphon.claims WHERE waited"


def claim(journal: SyncJournal, key: str, **changes: Any) -> int:
    won = journal.begin(request_for(key, **changes))
    assert isinstance(won, Claimed)
    return won.version


def subscribers(database: str) -> list[wait_module.Subscriber]:
    """Those of one database: other tests may have journals open."""
    return [found for options, found in wait_module._subscribers.items() if options.dsn == database]


@pytest.fixture(autouse=True)
def no_listener_is_left() -> Iterator[None]:
    """Every test closes its journals, and the last one to leave hangs up."""

    def listening() -> int:
        return sum(thread.name == "antiphon-postgres-listener" for thread in threading.enumerate())

    known, threads = set(wait_module._subscribers), listening()
    yield
    assert wait_module._subscribers.keys() <= known
    eventually(lambda: listening() <= threads)


@pytest.fixture
def reads(postgres_database: str, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The statements sent to the database of the test from now on; threads of other tests may look at theirs."""
    sent: list[str] = []
    attempts = Engine._attempts

    async def counted(self: Engine, name: str, *rest: Any) -> Any:
        if self.options.dsn == postgres_database:
            sent.append(name)
        return await attempts(self, name, *rest)

    monkeypatch.setattr(Engine, "_attempts", counted)
    return sent


def test_a_claim_is_announced_only_if_somebody_waits(postgres_database: str) -> None:
    journal = PostgresStore(postgres_database).open_sync()
    quiet, watched = claim(journal, "quiet"), claim(journal, "watched")
    with psycopg.connect(postgres_database, autocommit=True) as ear:
        ear.execute('LISTEN "antiphon:antiphon"')
        journal.settle("quiet", quiet, done())
        waiting = Background(lambda: journal.wait("watched", watched, 20))
        eventually(lambda: look(postgres_database, WAITED))
        journal.settle("watched", watched, done())
        waiting.result(timeout=30)
        assert [notify.payload for notify in ear.notifies(timeout=0.3)] == ["cwatched"]
    journal.close()


def test_what_is_over_is_not_waited_for(postgres_database: str, ticks: Ticks) -> None:
    journal = PostgresStore(postgres_database).open_sync()
    version = claim(journal, "k")
    settled = journal.settle("k", version, done())
    assert settled is not None
    start = time.monotonic()
    for key, number in (("k", version), ("k", settled), ("never", 1)):
        journal.wait(key, number, 20)
    assert ticks.since(start) < 5
    journal.close()


async def test_many_tasks_share_one_listener_and_few_reads(postgres_database: str, reads: list[str]) -> None:
    journal = PostgresStore(postgres_database).open_async()
    won = await journal.begin(request_for("k"))
    assert isinstance(won, Claimed)
    latencies: list[float] = []
    settled_at = 0.0

    async def wait(n: int) -> None:
        await journal.wait("k", won.version, 20)
        existing = await journal.read("k", f"waiter-{n}")
        latencies.append(time.perf_counter() - settled_at)
        assert existing is not None
        assert existing.current.state == "done"
        assert existing.own is None

    waiters = [asyncio.create_task(wait(n)) for n in range(64)]
    while not await asyncio.to_thread(look, postgres_database, WAITED):
        await asyncio.sleep(0.01)
    reads.clear()
    await asyncio.sleep(0.3)
    assert reads == [], "nobody polls"
    settled_at = time.perf_counter()
    await journal.settle("k", won.version, done())
    await asyncio.gather(*waiters)
    assert reads.count("read") <= 4
    assert len(await asyncio.to_thread(look, postgres_database, LISTENERS)) == 1
    print(f"64 tasks woken, p50 {sorted(latencies)[32] * 1000:.1f} ms, p100 {max(latencies) * 1000:.1f} ms")
    await journal.close()


def test_many_threads_share_one_listener_and_few_reads(postgres_database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever asks while a read is under way shares the next one."""
    awake: list[int] = []
    reads: list[str] = []
    attempts = Engine._attempts

    async def counted(self: Engine, name: str, *rest: Any) -> Any:
        if name == "read":
            reads.append(name)
            eventually(lambda: len(awake) == 32)  # on a busy machine threads wake one after the other
        return await attempts(self, name, *rest)

    monkeypatch.setattr(Engine, "_attempts", counted)
    with closing(PostgresStore(postgres_database, max_connections=2).open_sync()) as journal:
        version = claim(journal, "k")

        def wait(n: int) -> str:
            journal.wait("k", version, 60)
            awake.append(n)
            existing = journal.read("k", f"waiter-{n}")
            assert existing is not None
            return existing.current.state

        with ThreadPoolExecutor(32) as pool:
            waiting = [pool.submit(wait, n) for n in range(32)]
            eventually(lambda: look(postgres_database, WAITED))
            journal.settle("k", version, done())
            assert {thread.result(timeout=60) for thread in waiting} == {"done"}
        assert len(reads) < 16
        assert len(look(postgres_database, LISTENERS)) == 1


def test_journals_for_threads_and_loops_share_the_listener(postgres_database: str) -> None:
    store = PostgresStore(postgres_database)
    one, two = store.open_sync(), PostgresStore(postgres_database).open_sync()
    version = claim(one, "k")
    waiting = [Background(lambda journal=journal: journal.wait("k", version, 20)) for journal in (one, two)]  # type: ignore[misc]

    async def third() -> None:
        journal = store.open_async()
        await journal.wait("k", version, 20)
        await journal.close()

    waiting.append(Background(lambda: asyncio.run(third())))
    eventually(lambda: look(postgres_database, WAITED))
    time.sleep(0.2)
    assert len(look(postgres_database, LISTENERS)) == 1
    one.settle("k", version, done())
    for thread in waiting:
        thread.result(timeout=30)
    one.close()
    assert subscribers(postgres_database)
    two.close()
    assert not subscribers(postgres_database)
    eventually(lambda: not look(postgres_database, LISTENERS))


def test_the_end_of_a_lease_wakes_and_a_renewal_does_not(postgres_database: str, ticks: Ticks) -> None:
    journal = PostgresStore(postgres_database).open_sync()
    version = claim(journal, "k", lease_ms=600)
    start = time.monotonic()
    waiting = Background(lambda: journal.wait("k", version, 20))
    time.sleep(0.3)
    assert journal.renew("k", version, 1000)
    waiting.result(timeout=30)
    assert time.monotonic() - start > 1.2
    assert ticks.since(start) < 4
    journal.close()


def test_a_takeover_wakes(postgres_database: str) -> None:
    journal = PostgresStore(postgres_database).open_sync()
    version = claim(journal, "k")
    waiting = Background(lambda: journal.wait("k", version, 20))
    eventually(lambda: look(postgres_database, WAITED))
    assert isinstance(journal.take_over(request_for("k", "b"), version), Claimed)
    waiting.result(timeout=30)
    assert look(postgres_database, WAITED) == []
    journal.close()


def test_a_listener_that_lost_its_connection_reads_what_it_missed(postgres_database: str, ticks: Ticks) -> None:
    journal = PostgresStore(postgres_database).open_sync()
    version = claim(journal, "k")
    waiting = Background(lambda: wait_until_settled(journal, version))
    eventually(lambda: look(postgres_database, WAITED))
    # One transaction ends the listener and the claim: the announcement is made while nobody listens.
    with psycopg.connect(postgres_database) as connection:
        connection.execute("SELECT pg_terminate_backend(pid) FROM (" + LISTENERS + ") AS listeners")
        connection.execute("UPDATE antiphon.claims SET state = 'done', version = version + 1")
    start = time.monotonic()
    waiting.result(timeout=60)
    assert ticks.since(start) < 5
    journal.close()


def test_a_key_that_text_cannot_hold_is_waited_for(postgres_database: str, ticks: Ticks) -> None:
    journal = PostgresStore(postgres_database).open_sync()
    version = claim(journal, "a\0b\ue000")
    started = time.monotonic()
    waiting = Background(lambda: journal.wait("a\0b\ue000", version, 20))
    eventually(lambda: look(postgres_database, "SELECT 1 FROM antiphon.claims WHERE waited"))
    assert journal.settle("a\0b\ue000", version, done()) is not None
    waiting.result(timeout=60)
    assert ticks.since(started) < 10
    journal.close()


def wait_until_settled(journal: SyncJournal, version: int) -> None:
    """As the gateway waits: a wake-up is a reason to look, not a promise."""
    while (existing := journal.read("k")) is not None and existing.current.state == "inflight":
        journal.wait("k", version, 20)


async def test_a_waiter_that_is_cancelled_leaves_nothing_behind(postgres_database: str) -> None:
    journal = PostgresStore(postgres_database).open_async()
    won = await journal.begin(request_for("k"))
    assert isinstance(won, Claimed)
    waiting = [asyncio.create_task(journal.wait("k", won.version, 20)) for _ in range(2)]
    await asyncio.sleep(0.2)
    waiting[0].cancel()
    await journal.settle("k", won.version, done())
    await asyncio.wait_for(waiting[1], 5)
    with pytest.raises(asyncio.CancelledError):
        await waiting[0]
    assert [hub._waiters.by_key for hub in subscribers(postgres_database)] == [{}]
    await journal.close()


def test_behind_a_pooler_without_a_direct_line_waiting_polls(postgres_database: str, reads: list[str]) -> None:
    journal = PostgresStore(postgres_database, pgbouncer=True, poll_s=0.1).open_sync()
    version = claim(journal, "k")
    waiting = Background(lambda: journal.wait("k", version, 20))
    time.sleep(0.3)
    journal.settle("k", version, done())
    waiting.result(timeout=30)
    assert look(postgres_database, "SELECT 1 FROM pg_stat_activity WHERE query LIKE 'LISTEN%'") == []
    assert look(postgres_database, "SELECT count(*) FROM pg_prepared_statements") == [(0,)]
    journal.close()


def test_very_long_keys_wake_too(postgres_database: str) -> None:
    journal = PostgresStore(postgres_database).open_sync()
    key = "ä" * 600
    version = claim(journal, key)
    waiting = Background(lambda: journal.wait(key, version, 20))
    eventually(lambda: look(postgres_database, WAITED))
    journal.settle(key, version, done())
    waiting.result(timeout=30)
    journal.close()


def test_breakers_are_pushed_to_every_process(postgres_database: str, ticks: Ticks) -> None:
    mine, theirs = PostgresStore(postgres_database).open_sync(), PostgresStore(postgres_database).open_sync()
    theirs.save_breaker("acme", BreakerRow("early", "OPEN", 1, 0, "before", 1))
    heard: list[BreakerRow] = []
    changed = threading.Event()

    def told(row: BreakerRow) -> None:
        heard.append(row)
        changed.set()

    unsubscribe = mine.subscribe_breakers("acme", told)
    assert unsubscribe is not None
    assert changed.wait(30), "what is there is told at once"
    changed.clear()
    theirs.save_breaker("other", BreakerRow("x", "OPEN", 1, 0, "not mine", 1))
    start = time.monotonic()
    theirs.save_breaker("acme", BreakerRow("tool/x", "FORCED_OPEN", 2, 0, "an operator", 1))
    assert changed.wait(30)
    assert ticks.since(start) < 1
    assert [row.key for row in heard] == ["early", "tool/x"]
    changed.clear()
    look(postgres_database, "SELECT pg_terminate_backend(pid) FROM (" + LISTENERS + ") AS listeners")
    theirs.save_breaker("acme", BreakerRow("tool/x", "CLOSED", 3, 0, "reset", 2))
    assert changed.wait(30), "what was missed during a reconnect is told afterwards"
    assert heard[-1].state == "CLOSED"
    unsubscribe()
    theirs.save_breaker("acme", BreakerRow("tool/x", "OPEN", 4, 0, "unheard", 3))
    time.sleep(0.3)
    assert heard[-1].state == "CLOSED"
    mine.close()
    theirs.close()


async def test_breakers_are_told_in_the_event_loop(postgres_database: str) -> None:
    journal = PostgresStore(postgres_database).open_async()
    assert isinstance(journal, PostgresJournal)
    heard: asyncio.Queue[tuple[BreakerRow, int]] = asyncio.Queue()
    unsubscribe = journal.subscribe_breakers("acme", lambda row: heard.put_nowait((row, threading.get_ident())))
    row = BreakerRow("tool/\0odd", "OPEN", 1, 7, "why\0", 1, "me")
    await journal.save_breaker("acme", row)
    assert await asyncio.wait_for(heard.get(), 30) == (row, threading.get_ident())
    unsubscribe()
    await journal.close()


def test_a_listener_that_raises_does_not_end_the_listening(postgres_database: str) -> None:
    journal = PostgresStore(postgres_database).open_sync()
    heard: list[str] = []

    def bad(_: BreakerRow) -> None:
        raise ValueError("no")

    listeners: list[Callable[[BreakerRow], None]] = [bad, lambda row: heard.append(row.key)]
    for listener in listeners:
        journal.subscribe_breakers("acme", listener)
    journal.save_breaker("acme", BreakerRow("a", "OPEN", 1, 0, "", 1))
    eventually(lambda: "a" in heard)
    journal.save_breaker("acme", BreakerRow("b", "OPEN", 1, 0, "", 1))
    eventually(lambda: "b" in heard)
    journal.close()


def test_what_is_announced_while_breakers_are_read_is_read_again(
    postgres_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[str] = []
    fetch, saved = SyncConnection.fetch, threading.Event()
    with closing(PostgresStore(postgres_database).open_sync()) as journal:
        journal.save_breaker("acme", BreakerRow("a", "OPEN", 1, 0, "", 1))

        async def fetch_and_hear(self: SyncConnection, name: str, params: Any, **more: Any) -> Any:
            rows = await fetch(self, name, params, **more)
            if name == "load_breakers" and not saved.is_set():
                saved.set()
                journal.save_breaker("acme", BreakerRow("b", "OPEN", 1, 0, "", 1))
                await fetch(self, name, params, **more)  # takes the announcement off the socket
            return rows

        monkeypatch.setattr(SyncConnection, "fetch", fetch_and_hear)
        journal.subscribe_breakers("acme", lambda row: heard.append(row.key))
        eventually(lambda: heard == ["a", "b"])
