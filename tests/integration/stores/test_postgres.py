"""What is particular to the PostgreSQL store: round trips, bytes, plans, batches, addresses (R6, D31, K1)."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from antiphon.contract.events import RunManifest
from antiphon.errors import ConfigError, InvalidInput
from antiphon.ops.doctor import _server
from antiphon.ports import Claimed, Cursor, Existing, Pinned, Row, Settlement, SyncJournal
from antiphon.stores import PostgresStore
from antiphon.stores._common import recorded_request
from antiphon.stores.postgres import log as log_module
from antiphon.stores.postgres.connection import SyncConnection
from antiphon.stores.postgres.statements import from_text, statements, to_text
from tests.integration.stores.postgres_kit import done, look, request_for, row, seqs

anything = st.text(st.characters(codec="utf-8"), min_size=1, max_size=40)


@pytest.fixture
def trips(postgres_database: str, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The statements sent to the database of the test, one per round trip; threads of other tests use theirs."""
    sent: list[str] = []
    fetch, script = SyncConnection.fetch, SyncConnection.script
    database = postgres_database.rpartition("/")[2]

    async def counted(self: SyncConnection, name: str, *args: Any, **kwargs: Any) -> Any:
        if self.info.dbname == database:
            sent.append(name)
        return await fetch(self, name, *args, **kwargs)

    async def scripted(self: SyncConnection, sql: str) -> None:
        if self.info.dbname == database:
            sent.append(sql)
        await script(self, sql)

    monkeypatch.setattr(SyncConnection, "fetch", counted)
    monkeypatch.setattr(SyncConnection, "script", scripted)
    return sent


def test_a_guarded_call_takes_two_round_trips_and_a_reused_one_takes_one(
    postgres_database: str, trips: list[str]
) -> None:
    journal = PostgresStore(postgres_database).open_sync()
    journal.ping()
    trips.clear()
    won = journal.begin(request_for("k"), [row("r")])
    assert isinstance(won, Claimed)
    journal.settle("k", won.version, done(), [row("r", "call.finished")])
    assert trips == ["begin", "settle"]
    trips.clear()
    reused = journal.begin(request_for("k", "again"), [row("r")])
    assert isinstance(reused, Existing)
    assert trips == ["begin"]
    trips.clear()
    named = request_for("named")._replace(pin=("call", 7))
    won = journal.begin(named, [row("r")])
    assert isinstance(won, Claimed)
    journal.settle("named", won.version, done())
    assert isinstance(journal.begin(named), Existing)
    assert journal.begin(request_for("other")._replace(pin=("call", 8))) == Pinned(7)
    assert trips == ["begin_pinned", "settle_bare", "begin_pinned_bare", "begin_pinned_bare"]
    with psycopg.connect(postgres_database, autocommit=True) as other:
        here = "application_name = 'antiphon' AND datname = current_database()"
        plan = other.execute(f"SELECT count(*) FROM pg_stat_activity WHERE {here}").fetchone()
    assert plan == (1,), "one caller uses one connection"
    journal.close()


@given(key=anything, identity=anything, session=anything, tool=anything, reason=anything)
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_any_text_comes_back_as_it_was(
    postgres_dsn: str, key: str, identity: str, session: str, tool: str, reason: str
) -> None:
    journal = PostgresStore(postgres_dsn).open_sync()
    try:
        check_text(journal, key, identity, session, tool, reason)
    finally:
        journal.close()


def check_text(journal: SyncJournal, key: str, identity: str, session: str, tool: str, reason: str) -> None:
    key, run, tenant = (f"{time.time_ns()}{text}" for text in (key, tool, reason))
    request = request_for(key, identity, session=session, tool=tool, tenant=tenant, idempotency_key=reason)
    assert isinstance(journal.begin(request, [Row(run, tool, 1, b"{}")]), Claimed)
    found = journal.begin(request)
    assert isinstance(found, Existing)
    assert found.own is not None
    assert (found.own.key, found.own.tool, found.own.tenant) == (key, tool, tenant)
    assert found.own.request == recorded_request(request)
    assert [record.key for record in journal.list(tenant=tenant, tool=tool, session=session)] == [key]
    assert [event.type for event in journal.events(run)] == [tool]


@given(text=st.text(st.sampled_from("a\0\ue00001")), other=st.text(st.sampled_from("a\0\ue00001")))
def test_escaped_text_is_reversible_and_never_collides(text: str, other: str) -> None:
    assert from_text(to_text(text)) == text
    assert "\0" not in to_text(text)
    assert (to_text(text) == to_text(other)) == (text == other)


def test_text_that_has_no_encoding_is_refused_before_anything_is_sent(postgres_dsn: str) -> None:
    journal = PostgresStore(postgres_dsn).open_sync()
    for request in (request_for("\ud800"), request_for("k", "x\udfff")):
        with pytest.raises(InvalidInput, match="surrogate"):
            journal.begin(request)
    journal.close()


def test_the_owner_names_request_and_process(postgres_database: str) -> None:
    """A record of release 0.1.0 names the process only; it is read, settled and replaced all the same."""
    journal = PostgresStore(postgres_database).open_sync()
    held = journal.begin(request_for("k", token="t1", owner="boot.1.22.333"))
    assert isinstance(held, Claimed)
    assert look(postgres_database, "SELECT owner FROM antiphon.claims") == [("t1/boot.1.22.333",)]
    look(postgres_database, "UPDATE antiphon.claims SET owner = 'boot.1.22.333'")
    seen = journal.begin(request_for("k", "b"))
    assert isinstance(seen, Existing)
    assert (seen.current.owner, seen.current.version) == ("boot.1.22.333", held.version)
    settled = journal.settle("k", held.version, done())
    assert settled is not None
    assert isinstance(journal.take_over(request_for("k", "b", token="t2"), settled), Claimed)
    found = journal.read("k", "a")
    assert found is not None
    assert (found.current.owner, found.own and found.own.owner) == ("t2/test", "boot.1.22.333")
    journal.close()


def test_bodies_are_kept_byte_for_byte(postgres_database: str) -> None:
    journal = PostgresStore(postgres_database).open_sync()
    odd = b'{"b":1.0,  "a":[1e5,-0.0,"\\u00e4\\u0000"],"a":2}'
    won = journal.begin(request_for("k"), [Row("r", "call.started", 1, b'{"payload": {"z":1.50}}')])
    assert isinstance(won, Claimed)
    journal.settle("k", won.version, Settlement("done", 60_000, payload=odd))
    found = journal.read("k")
    assert found is not None
    assert bytes(found.current.payload) == odd  # type: ignore[arg-type]
    assert look(postgres_database, "SELECT payload, (SELECT body FROM antiphon.events) FROM antiphon.claims") == [
        (odd, b'{"payload": {"z":1.50}}')
    ]
    journal.close()


def test_one_step_may_write_to_several_runs_or_to_none(postgres_database: str) -> None:
    journal = PostgresStore(postgres_database).open_sync()
    mixed = [row("r1"), row("r2"), row("r2", n=1), row("r1", n=1)]
    won = journal.begin(request_for("k"), mixed)
    assert isinstance(won, Claimed)
    assert isinstance(journal.begin(request_for("k", "b"), mixed), Existing)
    assert journal.settle("k", won.version + 1, done(), mixed) is None
    settled = journal.settle("k", won.version, done(), mixed)
    assert settled is not None
    assert isinstance(journal.take_over(request_for("k", "c"), settled, mixed), Claimed)
    assert isinstance(journal.take_over(request_for("k", "d"), settled, mixed), Existing)
    for run in ("r1", "r2"):
        assert list(seqs(journal, run)) == list(range(8)), run
    journal.close()


def test_a_long_run_is_read_in_pages_and_deleted_in_batches(
    postgres_database: str, trips: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_module, "_APPEND_BATCH", 400)
    monkeypatch.setattr(log_module, "_DELETE_BATCH", 300)
    journal = PostgresStore(postgres_database).open_sync()
    manifest = RunManifest(id="r", name="long", status="running", started_at_ms=1)
    journal.open_run(manifest)
    assert journal.append("r", [row("r", n=n) for n in range(1000)]) == 0
    assert journal.append("r", []) == 1000
    assert journal.append("other", []) == 0
    assert list(seqs(journal, "r")) == list(range(1000))
    trips.clear()
    assert journal.delete_run("r")
    assert trips.count("delete_batch") == 5
    assert look(postgres_database, "SELECT count(*) FROM antiphon.events") == [(0,)]
    journal.close()


def test_a_deletion_that_was_broken_off_stays_hidden_and_is_finished(postgres_database: str) -> None:
    journal = PostgresStore(postgres_database).open_sync()
    manifest = RunManifest(id="r", name="n", status="running", started_at_ms=1)
    for finish in ("sweep", "open again"):
        journal.open_run(manifest)
        journal.append("r", [row("r"), row("r")])
        look(postgres_database, "UPDATE antiphon.runs SET deleting = true")
        assert journal.manifest("r") is None
        assert journal.events("r") == []
        assert journal.runs(tenant="default") == []
        assert not journal.delete_run("r")
        if finish == "sweep":
            journal.sweep()
            assert look(postgres_database, "SELECT count(*) FROM antiphon.events") == [(0,)]
        else:
            journal.open_run(manifest)
            assert journal.manifest("r") == manifest
            assert journal.append("r", [row("r")]) == 0
    journal.close()


def test_pages_of_runs_use_the_index(postgres_database: str) -> None:
    journal = PostgresStore(postgres_database).open_sync()
    for n in range(300):
        journal.open_run(RunManifest(id=f"run-{n:03}", name="n", status="completed", started_at_ms=n // 3))
    seen: list[str] = []
    before: Cursor | None = None
    while page := journal.runs(tenant="default", limit=70, before=before):
        seen.extend(manifest.id for manifest in page)
        before = Cursor(page[-1].started_at_ms, page[-1].id)
    assert seen == [f"run-{n:03}" for n in reversed(range(300))]
    look(postgres_database, "ANALYZE antiphon.runs")
    statement = statements("antiphon")["runs"]
    values = {"tenant": "default", "prefix": "", "name": "", "status": "", "at": 50, "id": "run-150", "limit": 5}
    with psycopg.connect(postgres_database, cursor_factory=psycopg.RawCursor) as connection:
        plan = connection.execute(f"EXPLAIN {statement.text}".encode(), statement.values(values)).fetchall()
    assert any("runs_by_start" in line for (line,) in plan), plan
    journal.close()


def test_settling_moves_no_index_entry(postgres_database: str) -> None:
    """The cost of the ten thousandth call is that of the tenth: updates stay within their page."""
    journal = PostgresStore(postgres_database).open_sync()
    journal.ping()
    for n in range(200):
        won = journal.begin(request_for(f"k{n}", ttl_ms=86_400_000), [row("r")])
        assert isinstance(won, Claimed)
        journal.settle(f"k{n}", won.version, done(ttl_ms=86_400_000), [row("r")])
    journal.close()
    time.sleep(0.1)
    stats = "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE relname = %s AND schemaname = 'antiphon'"
    deadline = time.monotonic() + 60
    for table, least in (("claims", 0.9), ("runs", 0.9)):
        while not (found := look(postgres_database, stats, table)[0])[0] and time.monotonic() < deadline:
            time.sleep(0.1)
        assert found[1] >= least * found[0], (table, found)


async def test_one_journal_per_loop_and_many_tasks(postgres_database: str) -> None:
    journal = PostgresStore(postgres_database, max_connections=3).open_async()

    async def guarded(n: int) -> None:
        won = await journal.begin(request_for(f"k{n}"), [row("r", n=n)])
        assert isinstance(won, Claimed)
        assert await journal.settle(f"k{n}", won.version, done(), [row("r", "call.finished", n)]) is not None

    await asyncio.gather(*(guarded(n) for n in range(100)))
    assert [event.seq for event in await journal.events("r")] == list(range(200))
    used = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'antiphon' AND datname = current_database()"
    assert (await asyncio.to_thread(look, postgres_database, used))[0][0] <= 3
    await journal.close()


def test_a_store_is_usable_from_loop_after_loop(postgres_database: str) -> None:
    store = PostgresStore(postgres_database)

    async def use(n: int) -> None:
        journal = store.open_async()
        assert isinstance(await journal.begin(request_for(f"k{n}")), Claimed)
        await journal.close()

    for n in range(3):
        asyncio.run(use(n))


def test_ping_says_what_operators_ask(postgres_database: str) -> None:
    journal = PostgresStore(postgres_database, schema="elsewhere").open_sync()
    answer = journal.ping()
    assert answer["store"] == "postgres"
    assert answer["schema"] == "elsewhere"
    assert answer["version"][0].isdigit()
    assert answer["readOnly"] is False
    assert answer["latencyMs"] > 0
    journal.close()


@pytest.mark.parametrize(
    ("dsn", "shown"),
    [
        ("postgresql://ada:s3cret@db:5432/x?sslmode=require", "postgresql://ada@db:5432/x?sslmode=require"),
        ("postgres://ada:a%40b@db/x?password=s3cret&sslpassword=s3cret", "postgresql://ada@db/x"),
        ("postgresql://ada:p@ss:w@rd@one,two/x", "postgresql://ada@one,two/x"),
        ("postgresql:///x?host=/run/postgresql", "postgresql:///x?host=%2Frun%2Fpostgresql"),
        ("host=db user=ada password='s3 cret\\'' dbname=x", "host=db user=ada password=*** dbname=x"),
        ("host=db PASSWORD = s3cret", "host=db PASSWORD=***"),
        ("s3cret", "postgresql://(unreadable)"),
        ("postgresql://ada:s3cret@[::1/x", "postgresql://(unreadable)"),
    ],
)
def test_the_address_is_shown_without_its_secrets(dsn: str, shown: str) -> None:
    assert PostgresStore(dsn).url == shown
    assert "s3cret" not in repr(PostgresStore(dsn))


@pytest.mark.parametrize(
    "options",
    [{"schema": ""}, {"schema": "s" * 60}, {"max_connections": 0}, {"statement_timeout_s": 0}, {"poll_s": -1}],
)
def test_settings_that_cannot_work_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as raised:
        PostgresStore("postgresql://db/x", **options)
    assert raised.value.path in options


def test_the_address_may_carry_options(postgres_database: str, unique: str) -> None:
    dsn = f"{postgres_database}?antiphon_schema={unique}&connect_timeout=3&antiphon_pgbouncer=true&antiphon_poll_s=0.5"
    store = PostgresStore(dsn, max_connections=2)
    options = store._options
    assert (options.schema, options.pgbouncer, options.poll_s, options.max_connections) == (unique, True, 0.5, 2)
    assert store.url.endswith(f"?connect_timeout=3&antiphon_schema={unique}")
    journal = store.open_sync()
    journal.begin(request_for("k"))
    journal.close()
    assert look(postgres_database, f"SELECT count(*) FROM {unique}.claims") == [(1,)]


@pytest.mark.parametrize("option", ["antiphon_colour=red", "antiphon_pgbouncer=maybe", "antiphon_max_connections=many"])
def test_options_in_the_address_are_checked(option: str) -> None:
    with pytest.raises(ConfigError) as raised:
        PostgresStore(f"postgresql://db/x?{option}")
    assert raised.value.path == option.partition("=")[0]


def test_a_journal_is_durable_and_pushes_breakers(postgres_database: str) -> None:
    journal = PostgresStore(postgres_database).open_sync()
    assert journal.durable
    stop = journal.subscribe_breakers("default", lambda _: None)
    assert stop is not None
    stop()
    journal.close()


def test_a_server_that_does_not_write_through_is_told_as_not_durable(postgres_database: str) -> None:
    """The tests' own server runs with fsync off; doctor prints these lines."""
    journal = PostgresStore(postgres_database).open_sync()
    facts = journal.ping()
    journal.close()
    assert (facts["durable"], facts["fsync"]) == (False, False)
    assert any("fsync is off" in text for text in facts["warnings"])
    said = list(_server("postgresql://x", facts))
    assert "not durable" in said[0]["message"]
    assert [line["level"] for line in said[1:]][:1] == ["warning"]


def test_a_record_that_has_expired_is_forgotten_also_before_it_is_swept(postgres_database: str) -> None:
    """Else the zombie of a call that was taken over would write its result anew, as if the server had lost it."""
    journal = PostgresStore(postgres_database).open_sync()
    zombie = request_for("expired")
    won = journal.begin(zombie)
    assert isinstance(won, Claimed)
    journal.settle("expired", won.version, done()._replace(ttl_ms=1))
    while journal.read("expired") is not None:
        pass
    assert journal.forgotten(zombie, won.version)
    assert not journal.forgotten(request_for("never"), won.version)
    journal.close()


def test_a_connection_more_is_no_class_more(postgres_database: str) -> None:
    """psycopg keeps every class that adapts values, so one made for each connection would stay for good."""
    import psycopg
    from psycopg.types.string import BytesBinaryDumper

    from antiphon.stores.postgres.statements import register

    with psycopg.connect(postgres_database) as connection:
        register(connection)
        before = len(BytesBinaryDumper.__subclasses__())
        register(connection)
        assert len(BytesBinaryDumper.__subclasses__()) == before
