"""A store from its URL."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from antiphon.errors import ConfigError
from antiphon.ports import Store


def open_store(url: str, *, setting: str = "[store]") -> Store:
    """``sqlite:///relative``, ``sqlite:////absolute``, ``memory:``, ``redis://…`` or ``postgresql://…``."""
    scheme = url.partition(":")[0].lower()
    if scheme == "memory":
        from antiphon.stores.memory import MemoryStore

        return MemoryStore()
    if scheme == "sqlite":
        from antiphon.stores.sqlite import SQLiteStore

        path, _, query = url.partition(":")[2].partition("?")
        options: Any = dict(part.partition("=")[::2] for part in query.split("&") if part)
        return SQLiteStore(Path(path.removeprefix("///")), **options)
    if scheme.startswith(("redis", "valkey", "unix")):
        from antiphon.stores.redis import RedisStore

        return RedisStore(url, setting=setting)
    if scheme.startswith("postgres"):
        from antiphon.stores.postgres import PostgresStore

        return PostgresStore(url)
    raise ConfigError(
        f"{setting}: the store URL {url.split('@')[-1]!r} has an unknown scheme.",
        hint="Use memory:, sqlite:///path, redis://host:port/0 or postgresql://host/database.",
        path=setting,
    )


def compose(claims: Store, log: Store) -> Store:
    """Claims in one store, the run log in another (they may be the same)."""
    if claims is log or claims.url == log.url:
        return claims
    from antiphon.stores.composed import ComposedStore

    return ComposedStore(claims=claims, log=log)
