"""Short words for tests of stores."""

from __future__ import annotations

from typing import Any

from antiphon.ports import Begun, Settlement
from antiphon.stores import MemoryStore
from antiphon.testing.journal_conformance import Harness, claimed, done, existing, failed
from tests.unit.stores.clock import ManualClock

__all__ = ["Kit", "claimed", "done", "existing", "failed"]


class Kit:
    """A synchronous journal, its clock, and short ways to claim and settle."""

    def __init__(self, max_keys: int = 25_000, **options: Any) -> None:
        self.clock = ManualClock()
        self.store = MemoryStore(max_keys, clock=self.clock, **options)
        self.journal = self.store.open_sync()
        self.harness = Harness(lambda: self.store)

    def begin(self, key: str, identity: str = "call-1", **changes: Any) -> Begun:
        return self.journal.begin(self.harness.request(key, identity, **changes))

    def claim(self, key: str, identity: str = "call-1", **changes: Any) -> int:
        return claimed(self.begin(key, identity, **changes)).version

    def finish(self, key: str, identity: str = "call-1", settlement: Settlement | None = None) -> int:
        version = self.journal.settle(key, self.claim(key, identity), settlement or done())
        assert version is not None
        return version

    def known(self, key: str, identity: str = "") -> bool:
        return self.journal.read(key, identity) is not None

    def size(self) -> int:
        return int(self.journal.ping()["claims"])
