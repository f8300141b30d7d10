"""Claims in one store, the run log in another."""

from antiphon.stores.composed.store import ComposedStore

__all__ = ["ComposedStore"]
