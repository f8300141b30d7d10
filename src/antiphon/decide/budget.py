"""The retry budget of one dependency in one process: a token bucket that never blocks (D22, R8).

It starts at 10. A success puts in 0.1 (up to 100), a retry takes 1, at the decision and before its pause.
Time puts in 1 per second, but only up to the starting level: after an outage retries come back without a
success, yet idle hours save up no burst.

So an outage of *T* seconds in which *N* calls are made costs at most ``10 + T`` retries (after a long
healthy time ``100 + T``), whatever the number of attempts a call would be allowed: attempts per call are at
most ``1 + (10 + T) / N``, which is 1.02 at 100 calls per second and stays under 1.1 down to about 11. Below
that the bucket still adds no more than one request per second, and the breaker, which opens after five
failures in a row, keeps the attempts per call under 1.1 at every rate.
"""

from __future__ import annotations

import threading
from typing import Annotated

from msgspec import Meta

from antiphon.contract._base import Value

Amount = Annotated[float, Meta(ge=0.0)]


class BudgetPolicy(Value, frozen=True):
    """How many retries a dependency may cost."""

    start: Amount = 10.0
    per_success: Amount = 0.1
    cap: Amount = 100.0
    floor_per_s: Amount = 1.0


DEFAULT_BUDGET = BudgetPolicy()


class TokenBucket:
    """Counts what retries may cost. Thread-safe; a full bucket costs a success next to nothing."""

    __slots__ = ("_cap", "_floor", "_lock", "_per_success", "_stamp", "_start", "_tokens")

    def __init__(self, policy: BudgetPolicy = DEFAULT_BUDGET) -> None:
        self._start = min(policy.start, policy.cap)
        self._cap = policy.cap
        self._per_success = policy.per_success
        self._floor = policy.floor_per_s
        self._tokens = self._start
        self._stamp: float | None = None
        self._lock = threading.Lock()

    def success(self) -> None:
        """A call went well."""
        if self._tokens >= self._cap:
            return
        with self._lock:
            self._tokens = min(self._cap, self._tokens + self._per_success)

    def withdraw(self, now: float) -> bool:
        """Take the price of one retry, or refuse; never waits."""
        with self._lock:
            self._refill(now)
            if self._tokens < 1.0 - 1e-9:
                return False
            self._tokens = max(0.0, self._tokens - 1.0)
            return True

    def tokens(self, now: float) -> float:
        """What is in it."""
        with self._lock:
            self._refill(now)
            return self._tokens

    def _refill(self, now: float) -> None:
        since, self._stamp = self._stamp, now
        if since is not None and now > since and self._tokens < self._start:
            self._tokens = min(self._start, self._tokens + (now - since) * self._floor)
