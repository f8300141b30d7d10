"""Where claims, the run log and breaker state are kept. A store is a description; each face opens its own journal."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from antiphon.stores.memory import MemoryStore
    from antiphon.stores.postgres import PostgresStore
    from antiphon.stores.sqlite import SQLiteStore

_MODULES = {"MemoryStore": "memory", "PostgresStore": "postgres", "SQLiteStore": "sqlite"}

__all__ = ["MemoryStore", "PostgresStore", "SQLiteStore"]


def __getattr__(name: str) -> Any:
    """Import a back-end when it is first named: nobody pays for a store he does not use."""
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{module}"), name)
