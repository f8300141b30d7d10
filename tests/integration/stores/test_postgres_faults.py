"""The PostgreSQL store when connections break, answers are lost, and servers restart, freeze or refuse (D10)."""

from __future__ import annotations

import asyncio
import functools
import gc
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from antiphon.errors import ConfigError, StoreError, StoreUnavailable
from antiphon.ports import Claimed, Existing
from antiphon.stores import PostgresStore
from antiphon.stores.postgres import engine as engine_module
from antiphon.stores.postgres.connection import AnswerLost, SyncConnection, connect
from antiphon.stores.postgres.engine import Engine
from antiphon.stores.postgres.loop_pool import NAME
from tests.faultproxy import FaultProxy
from tests.integration.stores.postgres_kit import Background, done, eventually, look, request_for, row, seqs
from tests.servers import Postgres, ServerFailed
from tests.ticks import Ticks

StartProxy = Callable[[int], FaultProxy]
StartServer = Callable[..., Postgres]


BLOCKED = (
    "SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND application_name = 'antiphon'"
    " AND datname = current_database()"
)

SESSIONS = "SELECT pid FROM pg_stat_activity WHERE application_name = 'antiphon' AND datname = current_database()"


class Line:
    """A store behind a network that loses answers on request."""

    def __init__(self, dsn: str, proxy: FaultProxy, **options: Any) -> None:
        self.dsn = dsn
        self.proxy = proxy
        self.reopen(**options)

    def reopen(self, **options: Any) -> None:
        self.journal = PostgresStore(self.proxy.url(self.dsn), max_connections=1, **options).open_sync()
        for events in ([], [row("warm")]):  # a statement's first use takes a second round trip, to prepare it
            first = self.journal.begin(request_for("warm", "a"), events)
            assert isinstance(first, Claimed)
            version = self.journal.settle("warm", first.version, done(), events)
            assert version is not None
            self.journal.take_over(request_for("warm", "b"), version, events)
            self.journal.append("warm", [row("warm")])
            self.journal.clear("warm")
        self.journal.delete_run("warm")

    def lose_the_answer(self, call: Callable[[], Any], happened: Callable[[], Any]) -> Any:
        """Run *call* so that it takes effect on the server but its answer never comes back."""
        self.proxy.drop("down")
        running = Background(call)
        eventually(happened)
        self.proxy.heal()
        self.proxy.reset()
        return running.result()

    def lose_the_request(self, call: Callable[[], Any]) -> Any:
        """Run *call* so that the connection breaks before the server has seen it."""
        before = self.proxy.carried["up"]
        self.proxy.drop("up")
        running = Background(call)
        time.sleep(0.2)
        assert self.proxy.carried["up"] == before
        self.proxy.heal()
        self.proxy.reset()
        return running.result()

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        return look(self.dsn, sql)


@pytest.fixture
def line(postgres_database: str, fault_proxy: StartProxy) -> Line:
    port = psycopg.conninfo.conninfo_to_dict(postgres_database)["port"]
    assert port is not None
    return Line(postgres_database, fault_proxy(int(port)))


def test_begin_whose_answer_was_lost_is_recognised_as_ours(line: Line) -> None:
    claimed = line.lose_the_answer(
        lambda: line.journal.begin(request_for("k"), [row("r")]),
        lambda: line.rows("SELECT 1 FROM antiphon.claims"),
    )
    assert isinstance(claimed, Claimed)
    assert line.rows("SELECT version, state FROM antiphon.claims") == [(claimed.version, "inflight")]
    assert seqs(line.journal, "r") == [0]
    assert line.journal.settle("k", claimed.version, done()) is not None


def test_begin_whose_request_was_lost_is_sent_again(line: Line) -> None:
    claimed = line.lose_the_request(lambda: line.journal.begin(request_for("k"), [row("r")]))
    assert isinstance(claimed, Claimed)
    assert seqs(line.journal, "r") == [0]


def test_a_lost_begin_that_somebody_else_won_is_not_taken_for_ours(line: Line) -> None:
    """The same process and the same identity: only the operation itself may recognise its claim."""
    other = PostgresStore(line.dsn).open_sync()
    line.proxy.drop("up")
    running = Background(lambda: line.journal.begin(request_for("k")))
    time.sleep(0.1)
    assert isinstance(other.begin(request_for("k")), Claimed)
    line.proxy.heal()
    line.proxy.reset()
    assert isinstance(running.result(), Existing)
    other.close()


def test_take_whose_answer_was_lost_is_recognised_as_ours(line: Line) -> None:
    first = line.journal.begin(request_for("k", "a"))
    assert isinstance(first, Claimed)
    settled = line.journal.settle("k", first.version, done())
    assert settled is not None
    taken = line.lose_the_answer(
        lambda: line.journal.take_over(request_for("k", "b"), settled, [row("r")]),
        lambda: line.rows("SELECT 1 FROM antiphon.claims WHERE state = 'inflight'"),
    )
    assert isinstance(taken, Claimed)
    assert seqs(line.journal, "r") == [0]
    assert line.rows("SELECT count(*) FROM antiphon.executions") == [(1,)]


@pytest.mark.parametrize("events", [True, False])
def test_settle_whose_answer_was_lost_counts_once(line: Line, events: bool) -> None:
    first = line.journal.begin(request_for("k"))
    assert isinstance(first, Claimed)
    rows = [row("r", "call.finished")] if events else []
    version = line.lose_the_answer(
        lambda: line.journal.settle("k", first.version, done(), rows),
        lambda: line.rows("SELECT 1 FROM antiphon.claims WHERE state = 'done'"),
    )
    assert line.rows("SELECT version FROM antiphon.claims") == [(version,)]
    assert len(seqs(line.journal, "r")) == len(rows)


def test_a_fenced_settle_whose_answer_was_lost_writes_its_events_once(line: Line) -> None:
    first = line.journal.begin(request_for("k", lease_ms=1))
    assert isinstance(first, Claimed)
    second = line.journal.take_over(request_for("k", "b"), first.version)
    assert isinstance(second, Claimed)
    version = line.lose_the_answer(
        lambda: line.journal.settle("k", first.version, done(), [row("r", "call.finished")]),
        lambda: line.rows("SELECT 1 FROM antiphon.events"),
    )
    assert version is None
    assert seqs(line.journal, "r") == [0]
    assert line.rows("SELECT version FROM antiphon.claims") == [(second.version,)]


def test_append_whose_answer_was_lost_is_written_once(line: Line) -> None:
    line.journal.append("r", [row("r")])
    first = line.lose_the_answer(
        lambda: line.journal.append("r", [row("r", n=1), row("r", n=2)]),
        lambda: line.rows("SELECT 1 FROM antiphon.events WHERE seq = 2"),
    )
    assert first == 1
    assert seqs(line.journal, "r") == [0, 1, 2]
    assert line.lose_the_request(lambda: line.journal.append("r", [row("r", n=3)])) == 3
    assert seqs(line.journal, "r") == [0, 1, 2, 3]


@pytest.mark.parametrize("step", ["settle", "append"])
@pytest.mark.parametrize("pgbouncer", [False, True])
def test_a_statement_that_outlives_its_connection_is_waited_for(line: Line, pgbouncer: bool, step: str) -> None:
    """Cut off while it waits for a lock, it would come to life after its twin and write history a second time."""
    line.reopen(pgbouncer=pgbouncer)
    first = line.journal.begin(request_for("k"), [row("r")])
    assert isinstance(first, Claimed)
    steps: dict[str, Callable[[], Any]] = {
        "settle": lambda: line.journal.settle("k", first.version, done(), [row("r", n=1)]),
        "append": lambda: line.journal.append("r", [row("r", n=1)]),
    }
    with psycopg.connect(line.dsn) as blocker:
        blocker.execute("SELECT * FROM antiphon.runs FOR UPDATE")
        running = Background(steps[step])
        eventually(lambda: line.rows(BLOCKED))
        line.proxy.reset()
        eventually(lambda: len(line.rows(BLOCKED)) == 2)
    found = running.result()
    assert found == (1 if step == "append" else line.rows("SELECT version FROM antiphon.claims")[0][0])
    assert seqs(line.journal, "r") == [0, 1]


@pytest.mark.parametrize("pgbouncer", [False, True])
def test_a_statement_that_arrives_after_it_was_given_up_does_nothing(
    line: Line, monkeypatch: pytest.MonkeyPatch, pgbouncer: bool
) -> None:
    monkeypatch.setattr("antiphon.stores.postgres.connection._GRACE_S", 0.5)
    line.reopen(pgbouncer=pgbouncer, statement_timeout_s=0.5)
    line.journal.append("r", [row("r")])
    connections = line.proxy.connections
    line.proxy.delay(4, "up")
    running = Background(lambda: line.journal.append("r", [row("r", n=1)]))
    time.sleep(0.3)
    line.proxy.heal()  # what is under way stays so
    assert running.result() == 1
    assert line.proxy.connections > connections
    time.sleep(4)
    assert seqs(line.journal, "r") == [0, 1]


def test_a_mutant_that_blindly_repeats_is_caught(line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted bug: a lost answer taken for a lost request writes history twice."""

    async def blindly(_: Engine, send: Callable[[int], Any], __: Callable[[int], Any]) -> Any:
        try:
            return await send(1)
        except AnswerLost:
            return await send(1)

    monkeypatch.setattr(Engine, "at_most_once", blindly)
    line.lose_the_answer(
        lambda: line.journal.append("r", [row("r")]), lambda: line.rows("SELECT 1 FROM antiphon.events")
    )
    assert seqs(line.journal, "r") == [0, 1]


def test_broken_idle_connections_are_thrown_away_unseen(postgres_database: str) -> None:
    journal = PostgresStore(postgres_database, reconnect_s=0.001).open_sync()
    journal.begin(request_for("k1"))
    look(
        postgres_database,
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE application_name = 'antiphon' AND datname = current_database()",
    )
    time.sleep(0.05)
    assert isinstance(journal.begin(request_for("k2")), Claimed)
    journal.close()


def started(server: Postgres) -> bool:
    """Start a server that was killed; it refuses while the last of its processes still dies."""
    try:
        server.start()
    except ServerFailed:
        return False
    return True


@pytest.mark.parametrize("how", ["restart", "crash"])
def test_a_restarted_server_loses_no_claim_and_runs_none_twice(postgres_server: StartServer, how: str) -> None:
    server = postgres_server(settings={"fsync": "on", "synchronous_commit": "on", "full_page_writes": "on"})
    journal = PostgresStore(server.url, max_connections=4, reconnect_s=20).open_sync()
    journal.ping()
    won: list[str] = []
    unknown: list[str] = []
    stop = threading.Event()

    def work(worker: int) -> None:
        n = 0
        while not stop.is_set():
            n += 1
            key = f"{worker}-{n}"
            try:
                claimed = journal.begin(request_for(key, f"i{worker}"), [row(f"run{worker}")])
                assert isinstance(claimed, Claimed), "a claim of our own looked like somebody else's"
                won.append(key)
                version = journal.settle(key, claimed.version, done(), [row(f"run{worker}", "call.finished")])
                assert version is not None
            except StoreUnavailable:
                unknown.append(key)

    threads = [Background(lambda worker=worker: work(worker)) for worker in range(4)]  # type: ignore[misc]
    try:
        for _ in range(3):
            time.sleep(0.4)
            if how == "crash":
                server.kill()
                eventually(lambda: started(server))
            else:
                server.restart()
        time.sleep(0.4)
    finally:
        stop.set()
    for thread in threads:
        thread.result()
    assert len(won) > 50
    assert unknown == []
    assert look(server.url, "SELECT count(*) FROM antiphon.claims WHERE state = 'done'") == [(len(won),)]
    for worker in range(4):
        events = seqs(journal, f"run{worker}")
        assert list(events) == list(range(len(events)))
        assert len(events) == 2 * len([key for key in won if key.startswith(f"{worker}-")])
    journal.close()


def test_a_server_that_stays_away_is_an_outage_after_patience(postgres_server: StartServer, ticks: Ticks) -> None:
    server = postgres_server()
    journal = PostgresStore(server.url, reconnect_s=0.5).open_sync()
    journal.ping()
    server.stop()
    start = time.monotonic()
    with pytest.raises(StoreUnavailable, match=r"cannot be reached.*\[store\] url.*Nothing was written"):
        journal.begin(request_for("k"))
    assert time.monotonic() - start > 0.4
    assert ticks.since(start) < 5


def test_a_frozen_server_does_not_freeze_the_caller(
    postgres_server: StartServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("antiphon.stores.postgres.connection._GRACE_S", 0.5)
    server = postgres_server()
    journal = PostgresStore(server.url, statement_timeout_s=0.5, reconnect_s=0.5, connect_timeout_s=1).open_sync()
    claimed = journal.begin(request_for("k"))
    assert isinstance(claimed, Claimed)
    server.pause()
    try:
        start = time.monotonic()
        with pytest.raises(StoreUnavailable):
            journal.settle("k", claimed.version, done())
        assert time.monotonic() - start < 15
    finally:
        server.resume()


def test_a_statement_to_a_frozen_server_is_given_up_in_its_time(
    postgres_server: StartServer, monkeypatch: pytest.MonkeyPatch, ticks: Ticks
) -> None:
    """Trying again would only wait as long again."""
    monkeypatch.setattr("antiphon.stores.postgres.connection._GRACE_S", 0.5)
    server = postgres_server()
    journal = PostgresStore(server.url, statement_timeout_s=0.5, reconnect_s=20).open_sync()
    journal.ping()
    server.pause()
    try:
        start = time.monotonic()
        with pytest.raises(StoreUnavailable, match=r"did not answer in time.*\[store\] url.*may or may not"):
            journal.read("k")
        assert ticks.since(start) < 10
    finally:
        server.resume()


def test_wrong_addresses_fail_at_once_and_keep_their_secrets(postgres_database: str, ticks: Ticks) -> None:
    parts = psycopg.conninfo.conninfo_to_dict(postgres_database)
    elsewhere = f"postgresql://ada:s3cret-word@127.0.0.1:1/{parts['dbname']}"
    nobody = f"postgresql://nobody_here:s3cret-word@127.0.0.1:{parts['port']}/{parts['dbname']}"
    nowhere = f"postgresql://postgres:s3cret-word@127.0.0.1:{parts['port']}/no_such_database"
    for dsn, words in ((elsewhere, "cannot be reached"), (nobody, "refused the login"), (nowhere, "no_such_database")):
        store = PostgresStore(dsn)
        start = time.monotonic()
        with pytest.raises(StoreUnavailable, match=words) as raised:
            store.open_sync().ping()
        assert ticks.since(start) < 2
        assert "[store] url" in str(raised.value)
        assert "s3cret-word" not in f"{raised.value!r} {raised.value} {raised.value.__cause__} {store.url} {store!r}"
    for dsn in ("postgresql://ada:s3cret-word@[oops/db", "host=127.0.0.1 password=s3cret-word port", "not an address"):
        with pytest.raises((ConfigError, StoreUnavailable)) as unreadable:
            PostgresStore(dsn).open_sync().ping()
        assert "s3cret-word" not in f"{unreadable.value!r} {unreadable.value} {PostgresStore(dsn).url}"


def test_a_password_is_checked_and_named(postgres_server: StartServer) -> None:
    server = postgres_server()
    look(server.url, "CREATE ROLE ada LOGIN PASSWORD 'right'")
    look(server.url, "GRANT CREATE ON DATABASE postgres TO ada")
    hba = server.folder / "data" / "pg_hba.conf"
    hba.write_text("host all postgres 127.0.0.1/32 trust\nhost all ada 127.0.0.1/32 scram-sha-256\n")
    look(server.url, "SELECT pg_reload_conf()")

    def store(password: str) -> PostgresStore:
        return PostgresStore(f"postgresql://ada:{password}@127.0.0.1:{server.port}/postgres")

    def refused() -> StoreUnavailable | None:
        try:
            store("wrong").open_sync().ping()
        except StoreUnavailable as error:
            return error
        return None

    error = eventually(refused)
    assert "refused the login" in str(error)
    assert "wrong" not in str(error)
    store("right").open_sync().ping()


def test_a_read_only_server_is_named_as_such(postgres_database: str) -> None:
    PostgresStore(postgres_database).migrate()
    name = postgres_database.rpartition("/")[2]
    look(postgres_database, f"ALTER DATABASE {name} SET default_transaction_read_only = on")
    journal = PostgresStore(postgres_database).open_sync()
    with pytest.raises(StoreUnavailable, match=r"is read-only.*\[store\] url.*primary"):
        journal.begin(request_for("k"))
    assert journal.read("k") is None
    assert journal.ping()["readOnly"] is True
    journal.close()


def test_a_role_without_connections_left_is_named_as_such(postgres_database: str, unique: str) -> None:
    look(postgres_database, f"CREATE ROLE {unique} LOGIN CONNECTION LIMIT 0")
    dsn = psycopg.conninfo.make_conninfo(postgres_database, user=unique)
    with pytest.raises(StoreUnavailable, match=r"gives no connection: .*for role.*Raise its limits"):
        PostgresStore(dsn).open_sync().ping()
    look(postgres_database, f"DROP ROLE {unique}")


def test_a_full_server_is_named_as_such(postgres_server: StartServer) -> None:
    server = postgres_server(settings={"max_connections": "4", "superuser_reserved_connections": "0"})
    journal = PostgresStore(server.url).open_sync()
    held = []
    try:
        while True:
            held.append(psycopg.connect(server.url))
    except psycopg.OperationalError:
        pass
    with pytest.raises(StoreUnavailable, match=r"too many clients.*\[store\] url"):
        journal.ping()
    for connection in held:
        connection.close()
    journal.close()


def test_a_busy_pool_is_an_outage_that_says_what_to_do(postgres_database: str) -> None:
    journal = PostgresStore(postgres_database, max_connections=1, pool_timeout_s=0.2).open_sync()
    claimed = journal.begin(request_for("k"))
    assert isinstance(claimed, Claimed)
    with psycopg.connect(postgres_database) as blocker:
        blocker.execute("SELECT * FROM antiphon.claims FOR UPDATE")
        settling = Background(lambda: journal.settle("k", claimed.version, done()))
        time.sleep(0.1)
        with pytest.raises(StoreUnavailable, match=r"All 1 connections.*max_connections"):
            journal.read("k")
    assert settling.result() is not None
    journal.close()


def test_a_lock_held_too_long_is_an_outage_and_the_connection_lives_on(postgres_database: str) -> None:
    journal = PostgresStore(postgres_database, max_connections=1, lock_timeout_s=0.2).open_sync()
    claimed = journal.begin(request_for("k"))
    assert isinstance(claimed, Claimed)
    with psycopg.connect(postgres_database) as blocker:
        blocker.execute("SELECT * FROM antiphon.claims FOR UPDATE")
        with pytest.raises(StoreUnavailable, match=r"did not finish in time.*long transactions"):
            journal.settle("k", claimed.version, done())
    assert journal.settle("k", claimed.version, done()) is not None
    journal.close()


def test_a_deadlock_is_done_again(postgres_database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = PostgresStore(postgres_database).open_sync()
    journal.ping()
    fetch = SyncConnection.fetch
    failures = [psycopg.errors.DeadlockDetected(), psycopg.errors.SerializationFailure()]

    async def sometimes(self: SyncConnection, *args: Any, **kwargs: Any) -> Any:
        if failures:
            raise failures.pop()
        return await fetch(self, *args, **kwargs)

    monkeypatch.setattr(SyncConnection, "fetch", sometimes)
    assert isinstance(journal.begin(request_for("k")), Claimed)
    assert failures == []
    journal.close()


def test_conflicts_without_end_are_an_outage(postgres_database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = PostgresStore(postgres_database).open_sync()
    journal.ping()

    async def never(*_: Any, **__: Any) -> Any:
        raise psycopg.errors.SerializationFailure("could not serialize access")

    monkeypatch.setattr(SyncConnection, "fetch", never)
    with pytest.raises(StoreUnavailable, match=r"conflicting.*could not serialize access.*Nothing was written"):
        journal.begin(request_for("k"))
    journal.close()


@pytest.mark.parametrize("pgbouncer", [False, True])
@pytest.mark.parametrize("isolation", ["repeatable read", "serializable"])
def test_the_servers_default_isolation_does_not_matter(postgres_database: str, isolation: str, pgbouncer: bool) -> None:
    name = postgres_database.rpartition("/")[2]
    look(postgres_database, f"ALTER DATABASE {name} SET default_transaction_isolation = '{isolation}'")
    journals = [PostgresStore(postgres_database, pgbouncer=pgbouncer).open_sync() for _ in range(6)]
    gate = threading.Barrier(len(journals))

    def work(number: int) -> None:
        journal = journals[number]
        gate.wait()
        for n in range(15):
            key = f"{number}-{n}"
            claimed = journal.begin(request_for(key), [row("r")])
            assert isinstance(claimed, Claimed)
            assert journal.settle(key, claimed.version, done(), [row("r"), row(f"r{number}")]) is not None

    for running in [Background(functools.partial(work, number)) for number in range(len(journals))]:
        running.result(60)
    assert list(seqs(journals[0], "r")) == list(range(2 * 15 * len(journals)))
    for journal in journals:
        journal.close()


def test_what_postgresql_does_not_understand_is_not_called_an_outage(postgres_database: str) -> None:
    journal = PostgresStore(postgres_database).open_sync()
    journal.ping()
    look(postgres_database, "ALTER TABLE antiphon.claims ADD CONSTRAINT no_bad_tool CHECK (tool <> 'bad')")
    with pytest.raises(StoreError, match="no_bad_tool") as raised:
        journal.begin(request_for("k", tool="bad"))
    assert not isinstance(raised.value, StoreUnavailable)
    journal.close()


def test_dropped_tables_are_named_as_such(postgres_database: str) -> None:
    journal = PostgresStore(postgres_database).open_sync()
    journal.ping()
    look(postgres_database, "DROP SCHEMA antiphon CASCADE")
    with pytest.raises(StoreUnavailable, match=r"lacks tables.*migrate\(\)"):
        journal.begin(request_for("k"))
    journal.close()


def test_a_closed_journal_says_so(postgres_database: str) -> None:
    journal = PostgresStore(postgres_database).open_sync()
    journal.ping()
    journal.close()
    with pytest.raises(StoreUnavailable, match="closed"):
        journal.read("k")


async def test_a_cancelled_caller_breaks_off_no_statement(postgres_database: str) -> None:
    """Whoever reads the record after the cancellation sees the outcome, and writes it no second time."""
    journal = PostgresStore(postgres_database).open_async()
    await journal.ping()
    claimed = await journal.begin(request_for("k"))
    assert isinstance(claimed, Claimed)
    with psycopg.connect(postgres_database) as blocker:
        blocker.execute("SELECT * FROM antiphon.claims FOR UPDATE")
        settling = asyncio.create_task(journal.settle("k", claimed.version, done(), [row("r")]))
        await asyncio.sleep(0.1)
        settling.cancel()
        await asyncio.wait({settling}, timeout=0.1)
        settling.cancel()
        await asyncio.wait({settling}, timeout=0.1)
        assert not settling.done(), "the statement has not ended yet"
    with pytest.raises(asyncio.CancelledError):
        await settling
    existing = await journal.read("k")
    assert existing is not None
    assert existing.current.state == "done"
    assert [event.seq for event in await journal.events("r")] == [0]
    await journal.close()


async def test_closing_lets_a_statement_end_first(postgres_database: str) -> None:
    journal = PostgresStore(postgres_database).open_async()
    await journal.ping()
    cancelled = asyncio.create_task(journal.begin(request_for("k")))
    await asyncio.sleep(0)
    cancelled.cancel()
    await journal.close()
    assert look(postgres_database, "SELECT count(*) FROM antiphon.claims") == [(1,)]


def test_a_forked_child_dials_for_itself(postgres_database: str) -> None:
    journal = PostgresStore(postgres_database).open_sync()
    claimed = journal.begin(request_for("parent"))
    assert isinstance(claimed, Claimed)
    waiting = Background(lambda: journal.wait("parent", claimed.version, 20))
    eventually(lambda: look(postgres_database, "SELECT 1 FROM antiphon.claims WHERE waited"))
    child = os.fork()
    if child == 0:
        try:
            first = journal.begin(request_for("child"))
            assert isinstance(first, Claimed)
            journal.wait("child", first.version, 0.3)
            journal.settle("child", first.version, done())
            journal.close()
            os._exit(0)
        except BaseException:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert journal.settle("parent", claimed.version, done()) is not None
    waiting.result(timeout=30)
    assert look(postgres_database, "SELECT count(*) FROM antiphon.claims WHERE state = 'done'") == [(2,)]
    journal.close()


def test_a_child_forked_while_a_thread_reads_can_read_the_same(
    postgres_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = PostgresStore(postgres_database).open_sync()
    journal.ping()
    parent, reads, go_on = os.getpid(), threading.Event(), threading.Event()
    borrow = Engine._borrow

    async def slow(self: Engine, pool: Any) -> Any:
        if os.getpid() == parent:
            reads.set()
            assert go_on.wait(30)
        return await borrow(self, pool)

    monkeypatch.setattr(Engine, "_borrow", slow)
    reading = Background(lambda: journal.read("k"))
    assert reads.wait(30)
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(20)
        os._exit(0 if journal.read("k") is None else 1)
    _, status = os.waitpid(child, 0)
    go_on.set()
    assert reading.result() is None
    assert os.waitstatus_to_exitcode(status) == 0
    journal.close()


def test_ctrl_c_leaves_no_half_used_connection(postgres_database: str) -> None:
    journal = PostgresStore(postgres_database, max_connections=1).open_sync()
    claimed = journal.begin(request_for("k"))
    assert isinstance(claimed, Claimed)
    with psycopg.connect(postgres_database) as blocker:
        blocker.execute("SELECT * FROM antiphon.claims FOR UPDATE")
        timer = threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGINT))
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            journal.settle("k", claimed.version, done())
    assert journal.settle("k", claimed.version, done()) is not None
    journal.close()


def test_ctrl_c_while_waiting_for_a_connection_loses_none(postgres_database: str) -> None:
    journal = PostgresStore(postgres_database, max_connections=1).open_sync()
    claimed = journal.begin(request_for("k"))
    assert isinstance(claimed, Claimed)
    with psycopg.connect(postgres_database) as blocker:
        blocker.execute("SELECT * FROM antiphon.claims FOR UPDATE")
        settling = Background(lambda: journal.settle("k", claimed.version, done()))
        eventually(lambda: look(postgres_database, BLOCKED))
        timer = threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGINT))
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            journal.read("k")
    assert settling.result() is not None
    assert journal.read("k") is not None
    journal.close()


def test_a_server_that_gives_no_more_connections_is_named_as_such(postgres_server: StartServer) -> None:
    """One connection works, but is busy; the second cannot be had: not the pool is too small, the server is."""
    server = postgres_server(settings={"max_connections": "5", "superuser_reserved_connections": "0"})
    journal = PostgresStore(server.url, pool_timeout_s=0.3, reconnect_s=0.1).open_sync()
    claimed = journal.begin(request_for("k"))
    assert isinstance(claimed, Claimed)
    held = [psycopg.connect(server.url)]
    held[0].execute("SELECT * FROM antiphon.claims FOR UPDATE")
    settling = Background(lambda: journal.settle("k", claimed.version, done()))
    time.sleep(0.2)
    try:
        while True:
            held.append(psycopg.connect(server.url))
    except psycopg.OperationalError:
        pass
    with pytest.raises(StoreUnavailable, match=r"too many clients.*\[store\] url"):
        journal.read("k")
    for connection in held:
        connection.close()
    assert settling.result() is not None
    journal.close()


def test_many_callers_of_a_server_that_is_away_all_get_the_reason(postgres_server: StartServer, ticks: Ticks) -> None:
    server = postgres_server()
    journal = PostgresStore(server.url, max_connections=4, reconnect_s=0.5).open_sync()
    for call in [Background(journal.ping) for _ in range(8)]:
        call.result()
    server.stop()
    start = time.monotonic()
    for call in [Background(lambda: journal.read("k")) for _ in range(8)]:
        with pytest.raises(StoreUnavailable, match="cannot be reached"):
            call.result()
    assert ticks.since(start) < 5
    server.start()
    assert journal.read("k") is None
    journal.close()


async def test_tasks_of_a_server_that_is_away_all_get_the_reason(postgres_server: StartServer) -> None:
    server = postgres_server()
    journal = PostgresStore(server.url, max_connections=4, reconnect_s=0.5).open_async()
    await asyncio.gather(*(journal.ping() for _ in range(8)))
    server.stop()
    errors = await asyncio.gather(*(journal.renew("k", 1, 1) for _ in range(8)), return_exceptions=True)
    assert all(isinstance(error, StoreUnavailable) and "cannot be reached" in str(error) for error in errors), errors
    server.start()
    assert await journal.read("k") is None
    await journal.close()


def test_first_callers_connect_once(postgres_database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    connects = []

    async def counted(kind: Any, options: Any) -> Any:
        if options.dsn == postgres_database:
            connects.append(threading.get_ident())
        return await connect(kind, options)

    monkeypatch.setattr(engine_module, "connect", counted)
    journal = PostgresStore(postgres_database, max_connections=2).open_sync()
    for call in [Background(journal.ping) for _ in range(16)]:
        call.result()
    assert len(connects) == 1
    assert len(look(postgres_database, SESSIONS)) <= 2
    journal.close()


def test_callers_whose_pool_was_closed_connect_once(postgres_database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server gave no connection to the pool: all who wait at once would be too many for it."""
    connects, refusals = [], [psycopg.OperationalError("too many clients already")] * 2

    async def counted(kind: Any, options: Any) -> Any:
        if options.dsn == postgres_database:
            connects.append(threading.get_ident())
        return await connect(kind, options)

    def refused(*args: Any, **options: Any) -> Any:
        if refusals and threading.current_thread().name.startswith(NAME):
            time.sleep(0.3)  # until all wait
            raise refusals.pop()
        return given(*args, **options)

    journal = PostgresStore(postgres_database, max_connections=2).open_sync()
    given = SyncConnection.connect
    monkeypatch.setattr(engine_module, "connect", counted)
    monkeypatch.setattr(SyncConnection, "connect", refused)
    for call in [Background(functools.partial(journal.read, str(n))) for n in range(16)]:
        assert call.result() is None
    assert len(connects) == 2
    journal.close()


def test_a_journal_that_nobody_holds_closes_its_connections(postgres_database: str) -> None:
    journal = PostgresStore(postgres_database).open_sync()
    journal.ping()
    assert look(postgres_database, SESSIONS)
    del journal
    gc.collect()
    eventually(lambda: not look(postgres_database, SESSIONS))


async def test_an_async_journal_that_nobody_holds_closes_its_connections(postgres_database: str) -> None:
    journal = PostgresStore(postgres_database).open_async()
    await journal.ping()
    assert look(postgres_database, SESSIONS)
    del journal
    gc.collect()
    while look(postgres_database, SESSIONS):
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("face", ["sync", "async"])
def test_a_process_that_closes_nothing_ends_at_once_and_quietly(
    postgres_database: str, face: str, ticks: Ticks
) -> None:
    program = {
        "sync": "journal = PostgresStore(sys.argv[1]).open_sync(); journal.ping()",
        "async": "async def main():\n    await PostgresStore(sys.argv[1]).open_async().ping()\nasyncio.run(main())",
    }[face]
    program += "\nprint(time.monotonic())"
    program = "import asyncio, sys, time\nfrom antiphon.stores import PostgresStore\n" + program
    ended = subprocess.run(
        [sys.executable, "-c", program, postgres_database],
        capture_output=True,
        text=True,
        check=True,
    )
    assert ticks.since(float(ended.stdout)) < 3
    assert ended.stderr == ""
