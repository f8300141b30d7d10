"""R6, D31: the migrations make the published schema, and no query walks through a table that grows."""

from __future__ import annotations

import re
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from antiphon.stores import SQLiteStore
from antiphon.stores.sqlite import schema
from antiphon.stores.sqlite.claims import SQL
from antiphon.stores.sqlite.index import Filter
from antiphon.stores.sqlite.schema import FOLDER, migrations, statements
from antiphon.testing.journal_conformance import Harness, claimed, done, existing

ALLOWED_SCANS = {"tools", "tenants", "o", "p", "breakers"}
"""One row per tool, tenant or breaker, and the table of claims that are not done: none grows with history."""


def shape(connection: sqlite3.Connection) -> list[tuple[str, ...]]:
    rows = connection.execute("SELECT type, name, tbl_name, sql FROM sqlite_master ORDER BY type, name").fetchall()
    return [(kind, name, table, " ".join((sql or "").split())) for kind, name, table, sql in rows]


@pytest.fixture
def migrated(tmp_path: Path) -> sqlite3.Connection:
    store = SQLiteStore(tmp_path / "a.db")
    journal = store.open_sync()
    journal.ping()
    journal.close()
    return sqlite3.connect(store.path)


def test_schema_equals_migrations(migrated: sqlite3.Connection) -> None:
    fresh = sqlite3.connect(":memory:")
    for statement in statements((FOLDER / "schema.sql").read_text()):
        fresh.execute(statement)
    assert shape(fresh) == shape(migrated)
    assert migrated.execute("SELECT value FROM meta WHERE name = 'schema'").fetchone() == (len(migrations()),)
    migrated.close()


def test_migrations_are_numbered_without_a_gap() -> None:
    numbers = [int(path.name[:4]) for path in migrations()]
    assert numbers == list(range(1, len(numbers) + 1))


def test_tenant_and_workspace_are_columns_of_every_table_of_records(migrated: sqlite3.Connection) -> None:
    for table in ("claims", "executions", "runs"):
        columns = {row[1] for row in migrated.execute(f"PRAGMA table_info({table})")}
        assert {"tenant", "workspace"} <= columns, table
    migrated.close()


def plan(connection: sqlite3.Connection, query: str) -> list[str]:
    return [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {query}", [1] * query.count("?"))]


@pytest.mark.parametrize("name", sorted(SQL))
def test_parameters_have_no_numbers(name: str) -> None:
    """Python 3.12.0 warns of them, and says that 3.14 will refuse them."""
    assert re.findall(r"\?\d", SQL[name]) == []


@pytest.mark.parametrize("name", sorted(SQL))
def test_named_queries_never_scan(migrated: sqlite3.Connection, name: str) -> None:
    scans = [step for step in plan(migrated, SQL[name]) if step.startswith("SCAN") and "CONSTANT ROW" not in step]
    assert [step for step in scans if step.split()[1] not in ALLOWED_SCANS] == []
    migrated.close()


@pytest.mark.parametrize("tool", ["", "t"])
@pytest.mark.parametrize("session", ["", "s"])
@pytest.mark.parametrize("prefix", ["", "p"])
@pytest.mark.parametrize("state", ["", "done", "inflight"])
def test_filters_never_scan(migrated: sqlite3.Connection, tool: str, session: str, prefix: str, state: str) -> None:
    source, _ = Filter("tenant", tool, session, prefix, state).source()
    steps = plan(migrated, f"SELECT c.id FROM {source} AND c.expires_at_ms > ? ORDER BY c.id DESC LIMIT ?")
    scans = [step for step in steps if step.startswith("SCAN")]
    assert scans == (["SCAN p"] if "claim_open AS p" in source else []), steps
    migrated.close()


def test_runs_of_a_status_are_found_by_an_index(migrated: sqlite3.Connection) -> None:
    query = "SELECT manifest FROM runs WHERE tenant = ? AND status = ? ORDER BY started_at_ms DESC, id DESC LIMIT ?"
    (step,) = plan(migrated, query)
    assert "runs_by_status (tenant=? AND status=?)" in step
    migrated.close()


def test_a_file_of_an_earlier_release_gets_later_indexes_when_it_is_free(
    migrated: sqlite3.Connection, tmp_path: Path
) -> None:
    """Its number stays, so that processes of that release go on to use it; a lock does not keep it from opening."""
    made = shape(migrated)
    migrated.execute("DROP INDEX runs_by_status")
    migrated.execute("BEGIN IMMEDIATE")
    schema.connect(tmp_path / "a.db", "NORMAL", 0.01, new=True)[0].close()
    migrated.execute("ROLLBACK")
    assert shape(migrated) != made
    for _ in range(2):
        connection, number = schema.connect(tmp_path / "a.db", "NORMAL", 60.0, new=True)
        connection.close()
        assert number == len(migrations()) == 1
        assert shape(migrated) == made
    migrated.close()


def test_a_planted_full_scan_is_found(migrated: sqlite3.Connection) -> None:
    assert plan(migrated, "SELECT * FROM claims WHERE owner = ?")[0].startswith("SCAN")
    migrated.close()


def test_records_of_earlier_releases_are_read_and_settled(tmp_path: Path) -> None:
    """They name only the process as their owner, and write a request without what came later."""
    journal = SQLiteStore(tmp_path / "a.db").open_sync()
    harness = Harness(lambda: SQLiteStore(tmp_path / "a.db"))
    held = claimed(journal.begin(harness.request("k")))
    request = b'{"sessionKey":"s","actorId":"a","requestId":"r","paramsDigest":"d","identity":"call-1"}'
    with sqlite3.connect(tmp_path / "a.db") as connection:
        connection.execute("UPDATE claims SET owner = 'worker-1', request = ?", (request,))
    connection.close()
    seen = existing(journal.begin(harness.request("k"))).current
    assert (seen.owner, seen.request.params_digest_exact, seen.request.tool_call_id or None) == ("worker-1", "", None)
    assert [record.owner for record in journal.list(tenant=harness.tenant)] == ["worker-1"]
    settled = journal.settle("k", held.version, done())
    claimed(journal.take_over(harness.request("k", "call-2"), settled or 0))
    own = existing(journal.read("k", "call-1")).own
    assert own is not None
    assert own.owner == "worker-1"
    journal.close()


def test_a_database_that_is_busy_while_its_schema_is_read_is_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it is for a moment while another process recovers the write-ahead log."""
    busy = [sqlite3.OperationalError("database is locked") for _ in range(3)]
    for error in busy:
        error.sqlite_errorcode = sqlite3.SQLITE_BUSY

    class Busy(schema.Connection):
        def execute(self, sql: str, *parameters: Any) -> sqlite3.Cursor:
            if "sqlite_master" in sql and busy:
                raise busy.pop()
            return super().execute(sql, *parameters)

    monkeypatch.setattr(schema, "Connection", Busy)
    journal = SQLiteStore(tmp_path / "antiphon.db").open_sync()
    assert journal.ping()["schema"] == len(schema.migrations())
    assert not busy
    journal.close()
