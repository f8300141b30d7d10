"""How long something took on a machine that has other work, too."""

from __future__ import annotations

import bisect
import threading
import time


class Ticks:
    """A clock that stands still while the machine lets nobody of this process work: a thread that wakes every 5 ms."""

    EVERY_S = 0.005
    MOST_S = 0.025
    """A tick that came later than this counts no more."""

    def __init__(self) -> None:
        self._at: list[float] = []
        self._sums: list[float] = [0.0]
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Ticks:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        before = time.monotonic()
        while not self._over.wait(self.EVERY_S):
            now = time.monotonic()
            self._sums.append(self._sums[-1] + min(now - before, self.MOST_S))
            self._at.append(now)
            before = now

    def since(self, moment: float) -> float:
        """Seconds of this clock, from *moment* until now."""
        return self._sums[-1] - self._sums[bisect.bisect_right(self._at, moment)]
