"""Short words for tests of stores."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, TypeVar

from antiphon._drive import drive
from antiphon.ports import Claimed, Existing, Journal
from antiphon.stores import MemoryStore
from antiphon.testing._bench import Bench, claimed, done, existing, failed
from tests.unit.stores.clock import ManualClock

T = TypeVar("T")

__all__ = ["Kit", "claimed", "done", "existing", "failed"]


class Kit:
    """A journal of the synchronous face, its clock, and calls that are driven at once."""

    def __init__(self, max_keys: int = 25_000, **options: Any) -> None:
        self.clock = ManualClock()
        self.store = MemoryStore(max_keys, clock=self.clock, **options)
        self.journal: Journal = self.store.open_sync()
        self.bench = Bench(lambda: self.store)

    def run(self, step: Coroutine[Any, Any, T]) -> T:
        return drive(step)

    def begin(self, key: str, identity: str = "call-1", **changes: Any) -> Claimed | Existing:
        return drive(self.journal.begin(self.bench.ask(key, identity, **changes)))

    def claim(self, key: str, identity: str = "call-1", **changes: Any) -> int:
        return claimed(self.begin(key, identity, **changes)).version

    def finish(self, key: str, identity: str = "call-1", final: Any = None) -> int:
        version = drive(self.journal.settle(key, self.claim(key, identity), final or done()))
        assert version is not None
        return version

    def known(self, key: str, identity: str = "") -> bool:
        return drive(self.journal.read(key, identity)) is not None

    def size(self) -> int:
        return int(drive(self.journal.ping())["claims"])
