"""A journal in this process."""

from antiphon.stores.memory.store import MemoryStore

__all__ = ["MemoryStore"]
