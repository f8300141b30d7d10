"""A clock that moves only when told."""

from __future__ import annotations

from antiphon.ports import Clock


class ManualClock(Clock):
    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        super().__init__(seed=1)
        self.now = now_ms

    def now_ms(self) -> int:
        return self.now

    def advance(self, milliseconds: int) -> None:
        self.now += milliseconds
