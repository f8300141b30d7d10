"""Migrations of the PostgreSQL store: once, forward only, and equal to the schema file (R6, D31)."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import psycopg
import pytest

from antiphon.errors import ConfigError, StoreError, StoreUnavailable, StoreVersionError
from antiphon.ports import Claimed, Existing
from antiphon.stores import PostgresStore
from antiphon.stores.postgres import schema as schema_module
from antiphon.stores.postgres.statements import FOLDER, in_schema, statements
from tests.integration.stores.postgres_kit import done, look, request_for, row

CATALOG = {
    "tables": "SELECT relname, reloptions::text FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace"
    " WHERE nspname = %s AND relkind = 'r' ORDER BY 1",
    "columns": "SELECT table_name, ordinal_position, column_name, data_type, collation_name, is_nullable,"
    " column_default, generation_expression FROM information_schema.columns WHERE table_schema = %s ORDER BY 1, 2",
    "indexes": "SELECT tablename, indexname, replace(indexdef, %s || '.', '') FROM pg_indexes"
    " WHERE schemaname = %s ORDER BY 1, 2",
    "constraints": "SELECT conrelid::regclass::text, conname, pg_get_constraintdef(c.oid) FROM pg_constraint c"
    " JOIN pg_namespace n ON n.oid = connamespace WHERE nspname = %s ORDER BY 2",
    "applied": "SELECT version, name FROM {}.migrations ORDER BY 1",
}


def catalog(dsn: str, schema: str) -> dict[str, list[tuple[Any, ...]]]:
    """Everything that makes up a schema, without its name."""
    found = {}
    for what, sql in CATALOG.items():
        rows = look(dsn, sql.format(schema), *[schema] * sql.count("%s"))
        found[what] = [tuple(str(cell).replace(f"{schema}.", "") for cell in row) for row in rows]
    return found


def test_the_schema_file_equals_the_applied_migrations(postgres_database: str) -> None:
    PostgresStore(postgres_database, schema="migrated").migrate()
    text = (FOLDER / "schema.sql").read_text()
    with psycopg.connect(postgres_database, autocommit=True) as connection:
        connection.execute(in_schema(text, "by_hand").encode())
    migrated, by_hand = catalog(postgres_database, "migrated"), catalog(postgres_database, "by_hand")
    assert migrated["columns"]
    assert migrated == by_hand
    journal = PostgresStore(postgres_database, schema="by_hand", migrate=False).open_sync()
    journal.begin(request_for("k"))
    journal.close()


def test_tenant_and_workspace_are_columns_of_every_table(postgres_database: str) -> None:
    PostgresStore(postgres_database).migrate()
    tables = {table for (table, _) in catalog(postgres_database, "antiphon")["tables"]} - {"migrations"}
    with_both = look(
        postgres_database,
        "SELECT table_name FROM information_schema.columns WHERE table_schema = 'antiphon'"
        " AND column_name IN ('tenant', 'workspace') GROUP BY 1 HAVING count(*) = 2",
    )
    assert tables
    assert {table for (table,) in with_both} == tables


def test_many_processes_may_open_an_empty_database_at_once(postgres_database: str) -> None:
    store = PostgresStore(postgres_database, schema="busy schema")
    errors: list[BaseException] = []

    def first_use(n: int) -> None:
        journal = store.open_sync()
        try:
            journal.begin(request_for(f"k{n}"))
        except BaseException as error:
            errors.append(error)
        finally:
            journal.close()

    threads = [threading.Thread(target=first_use, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert look(postgres_database, 'SELECT count(*) FROM "busy schema".migrations') == [(1,)]
    assert look(postgres_database, 'SELECT count(*) FROM "busy schema".claims') == [(8,)]


def test_migrating_again_changes_nothing(postgres_database: str) -> None:
    store = PostgresStore(postgres_database)
    assert store.migrate() == 1
    before = catalog(postgres_database, "antiphon")
    assert store.migrate() == 1
    assert catalog(postgres_database, "antiphon") == before


def test_a_later_migration_is_applied_to_what_is_there(
    postgres_database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = PostgresStore(postgres_database)
    journal = store.open_sync()
    won = journal.begin(request_for("kept"), [row("r")])
    assert isinstance(won, Claimed)
    journal.settle("kept", won.version, done())
    second = tmp_path / "0002_more.sql"
    second.write_text("ALTER TABLE antiphon.claims ADD COLUMN later text;")
    both = [*schema_module.migrations(), second]
    monkeypatch.setattr(schema_module, "migrations", lambda: both)
    assert store.migrate() == 2
    assert look(postgres_database, "SELECT key, later FROM antiphon.claims") == [("kept", None)]
    assert look(postgres_database, "SELECT version, name FROM antiphon.migrations ORDER BY 1")[-1] == (2, "more")
    found = journal.begin(request_for("kept"), [row("r")])  # statements prepared before it go on working
    assert isinstance(found, Existing)
    taken = journal.take_over(request_for("kept", "b"), found.current.version)
    assert isinstance(taken, Claimed)
    assert journal.settle("kept", taken.version, done()) is not None
    journal.close()


def test_a_migration_that_fails_leaves_nothing_behind(
    postgres_database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = tmp_path / "0002_bad.sql"
    bad.write_text("CREATE TABLE antiphon.half (n int); SELECT 1 / 0;")
    both = [*schema_module.migrations(), bad]
    monkeypatch.setattr(schema_module, "migrations", lambda: both)
    with pytest.raises(StoreError, match="division by zero"):
        PostgresStore(postgres_database).migrate()
    assert look(postgres_database, "SELECT to_regnamespace('antiphon')") == [(None,)]


def test_a_newer_schema_is_refused(postgres_database: str) -> None:
    store = PostgresStore(postgres_database)
    store.migrate()
    look(postgres_database, "INSERT INTO antiphon.migrations (version, name) VALUES (99, 'from the future')")
    journal = store.open_sync()
    with pytest.raises(StoreVersionError, match=r"version 99; this release knows 1.*Upgrade"):
        journal.begin(request_for("k"))
    with pytest.raises(StoreVersionError):
        store.migrate()
    assert look(postgres_database, "SELECT count(*) FROM antiphon.claims") == [(0,)]


def test_without_leave_to_migrate_a_missing_schema_is_refused(postgres_database: str) -> None:
    journal = PostgresStore(postgres_database, migrate=False).open_sync()
    with pytest.raises(StoreVersionError, match=r"version 0; this release needs 1.*migrate\(\)"):
        journal.ping()
    assert look(postgres_database, "SELECT to_regnamespace('antiphon')") == [(None,)]


def test_a_role_without_rights_is_told_so(postgres_database: str, unique: str) -> None:
    look(postgres_database, f"CREATE ROLE {unique} LOGIN")
    poor = postgres_database.replace("postgres@", f"{unique}@")
    try:
        with pytest.raises(StoreUnavailable, match=r"denies access.*\[store\] url"):
            PostgresStore(poor).open_sync().ping()
        PostgresStore(postgres_database).migrate()
        look(postgres_database, f"GRANT USAGE ON SCHEMA antiphon TO {unique}")
        look(postgres_database, f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA antiphon TO {unique}")
        journal = PostgresStore(poor).open_sync()
        journal.begin(request_for("k"))
        journal.close()
    finally:
        look(postgres_database, f"DROP OWNED BY {unique}")
        look(postgres_database, f"DROP ROLE {unique}")


def test_another_encoding_is_refused(postgres_database: str, unique: str) -> None:
    look(postgres_database, f"CREATE DATABASE {unique} TEMPLATE template0 ENCODING 'LATIN1' LOCALE 'C'")
    try:
        dsn = postgres_database.rpartition("/")[0] + f"/{unique}"
        with pytest.raises(ConfigError, match="LATIN1"):
            PostgresStore(dsn).migrate()
    finally:
        look(postgres_database, f"DROP DATABASE {unique} WITH (FORCE)")


def test_every_statement_stands_in_a_file_and_names_no_fixed_schema() -> None:
    compiled = statements("elsewhere")
    assert {"begin", "begin_bare", "take_over", "settle", "append", "watch"} <= set(compiled)
    for statement in compiled.values():
        assert "antiphon" not in statement.text, statement.name
        assert len(statement.names) == len(set(statement.names))
    sources = Path(schema_module.__file__).parent.glob("*postgres*.py")
    assert not [path.name for path in sources if "INSERT INTO" in path.read_text() or "UPDATE " in path.read_text()]
