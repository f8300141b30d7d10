"""A journal in one SQLite file."""

from antiphon.stores.sqlite.store import SQLiteStore

__all__ = ["SQLiteStore"]
