"""Claims and run log on PostgreSQL."""

from antiphon.stores.postgres.store import PostgresStore

__all__ = ["PostgresStore"]
