"""Migrations: numbered, forward only, each applied once under a lock that all processes share."""

from __future__ import annotations

import hashlib
from pathlib import Path

from antiphon.errors import ConfigError, StoreVersionError
from antiphon.stores.postgres.connection import Connection
from antiphon.stores.postgres.options import Options, without_secrets
from antiphon.stores.postgres.statements import FOLDER, in_schema


def migrations() -> list[Path]:
    """The numbered files in order."""
    return sorted((FOLDER / "migrations").glob("[0-9][0-9][0-9][0-9]_*.sql"))


async def ensure_schema(connection: Connection, options: Options, *, migrate: bool) -> int:
    """Check that the tables are those of this release, or migrate them if *migrate*; returns their version."""
    latest = len(migrations())
    found = await _applied(connection, options)
    _refuse_newer(found, latest, options)
    if found == latest:
        return found
    if not migrate:
        raise StoreVersionError(
            f"The schema {options.schema!r} at {without_secrets(options.dsn)} is at version {found}; "
            f"this release needs {latest}.",
            hint="Run PostgresStore(dsn).migrate() once with a role that owns the schema.",
        )
    server = await connection.fetch("server", {})
    if server[0][1] != "UTF8":
        raise ConfigError(
            f"The database's encoding is {server[0][1]}; the store needs UTF8.",
            path="store",
            hint="Create a database with: CREATE DATABASE antiphon ENCODING 'UTF8' TEMPLATE template0.",
        )
    await connection.begin()
    try:
        await connection.script("SET LOCAL statement_timeout = 0; SET LOCAL lock_timeout = 0")
        await _apply_pending(connection, options, latest)
    except BaseException:
        if connection.connected():
            await connection.script("ROLLBACK")
        raise
    await connection.end()
    return latest


async def _apply_pending(connection: Connection, options: Options, latest: int) -> None:
    await connection.script(f"SELECT pg_advisory_xact_lock({_lock_number(options.schema)})")
    found = await _applied(connection, options)  # another process may have been faster
    _refuse_newer(found, latest, options)
    if found == 0:
        if not (await connection.fetch("has_schema", {"schema": options.schema}))[0][0]:
            await connection.fetch("create_schema", {})
        await connection.fetch("create_migrations", {})
    for version, file in enumerate(migrations(), 1):
        if version > found:
            await connection.script(in_schema(file.read_text(encoding="utf-8"), options.schema))
            await connection.fetch("note_migration", {"version": version, "name": file.stem.partition("_")[2]})


async def _applied(connection: Connection, options: Options) -> int:
    if not (await connection.fetch("has_migrations", {"schema": options.schema}))[0][0]:
        return 0
    version: int = (await connection.fetch("applied", {}))[0][0]
    return version


def _refuse_newer(found: int, latest: int, options: Options) -> None:
    if found > latest:
        raise StoreVersionError(
            f"The schema {options.schema!r} at {without_secrets(options.dsn)} is at version {found}; "
            f"this release knows {latest}.",
            hint="Upgrade Antiphon on this machine, or use another schema. Nothing was changed.",
        )


def _lock_number(schema: str) -> int:
    digest = hashlib.sha256(b"antiphon migrations " + schema.encode()).digest()
    return int.from_bytes(digest[:8], "big", signed=True)
