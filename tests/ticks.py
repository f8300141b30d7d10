"""How long something took on a machine that has other work, too."""

from __future__ import annotations

import bisect
import gc
import threading
import time


class Ticks:
    """A clock that stands still while the machine lets nobody of this process work: a thread that wakes every 5 ms.

    A tick that comes late counts as far as this process has worked meanwhile: what keeps a core, or the interpreter,
    from the thread is then its own code. Waiting for locks, servers and timers counts whole, because ticks go on.
    What other tests have left in this process is kept from the garbage collector, which would stop everybody to look
    at it.
    """

    EVERY_S = 0.005

    def __init__(self) -> None:
        self._at: list[float] = []
        self._sums: list[float] = [0.0]
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Ticks:
        gc.freeze()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        gc.unfreeze()

    def _watch(self) -> None:
        before, worked = time.monotonic(), time.process_time()
        while not self._over.wait(self.EVERY_S):
            now, work = time.monotonic(), time.process_time()
            self._sums.append(self._sums[-1] + min(now - before, self.EVERY_S + work - worked))
            self._at.append(now)
            before, worked = now, work

    def since(self, moment: float) -> float:
        """Seconds of this clock, from *moment* until now."""
        return self._sums[-1] - self._sums[bisect.bisect_right(self._at, moment)]
