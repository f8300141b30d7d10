"""Where claims, the run log and breaker states are kept. A store describes a back-end; gateways open its journals."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from antiphon.stores.composed import ComposedStore
    from antiphon.stores.memory import MemoryStore
    from antiphon.stores.postgres import PostgresStore
    from antiphon.stores.redis import RedisStore
    from antiphon.stores.sqlite import SQLiteStore

_MODULES = {
    "ComposedStore": "composed",
    "MemoryStore": "memory",
    "PostgresStore": "postgres",
    "RedisStore": "redis",
    "SQLiteStore": "sqlite",
}

__all__ = ["ComposedStore", "MemoryStore", "PostgresStore", "RedisStore", "SQLiteStore"]


def __getattr__(name: str) -> Any:
    """Import a back-end on first use, so that unused stores cost nothing."""
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{module}"), name)
