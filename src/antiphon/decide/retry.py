"""After a failed attempt: retry, or stop with which status? (R1, R8, D3, D5, D22)

The rows are checked from the top; the first match decides.

| # | situation                                                        | decision                                    |
|---|------------------------------------------------------------------|---------------------------------------------|
| 1 | not idempotent, and the attempt's thread is still running        | outcome_unknown                             |
| 2 | not retriable                                                    | error (terminal)                            |
| 3 | not idempotent, no leave to repeat, effect not certainly absent  | retriable_error (not_safe)                  |
| 4 | breaker open                                                     | retriable_error (breaker)                   |
| 5 | only one attempt allowed                                         | timeout or retriable_error (not_allowed)    |
| 6 | all attempts used                                                | retry_exhausted (attempts)                  |
| 7 | Retry-After over the tool's cap                                  | retriable_error (retry_after)               |
| 8 | the next attempt would start after maxElapsedMs or the deadline  | retry_exhausted (elapsed, deadline)         |
| 9 | the dependency's budget is empty                                 | retry_exhausted (budget)                    |
|10 | otherwise                                                        | retry                                       |

Whenever rows 2 to 9 stop a call that is not idempotent, and an attempt (this one, or an earlier one) may have had an
effect (``may_have_applied``), the call ends as ``outcome_unknown`` instead (D3).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from itertools import count
from typing import Literal, NamedTuple

from antiphon.contract.spec import RetryPolicy
from antiphon.decide.failure import Failure

StopStatus = Literal["error", "retriable_error", "retry_exhausted", "timeout", "outcome_unknown"]
StopReason = Literal[
    "terminal", "not_safe", "breaker", "not_allowed", "attempts", "retry_after", "elapsed", "deadline", "budget"
]


class Retry(NamedTuple):
    """Wait *delay_ms*, then retry. The budget has been charged."""

    delay_ms: float


class Stop(NamedTuple):
    """The call ends here. ``outcome_unknown`` is shown as status ``error`` with that code."""

    status: StopStatus
    reason: StopReason


def delay_ms(retry: int, policy: RetryPolicy, chance: float, retry_after_ms: int | None = None) -> float:
    """Full jitter, ``chance · min(max_delay, base · 2^retry)``; the first *retry* is 0 (R8).

    A Retry-After is a minimum, and the jitter is added to it: callers told to wait equally long must not come back at
    the same moment.
    """
    ceiling = min(policy.max_delay_ms, policy.base_ms << min(retry, 62))
    return chance * ceiling + (retry_after_ms or 0)


def after_failure(
    failure: Failure,
    *,
    attempt: int,
    max_attempts: int,
    elapsed_ms: float,
    max_elapsed_ms: float,
    remaining_ms: float | None,
    policy: RetryPolicy,
    idempotent: bool,
    retry_safe: bool,
    breaker_open: bool,
    budget: TokenBucket | None,
    now: float,
    chance: float,
    may_have_applied: bool = False,
) -> Retry | Stop:
    """Decide what follows the failure of attempt number *attempt* (1 is the first).

    *retry_safe*: the call says ``expectedRetrySafe``, or the tool takes our key downstream (D5). *may_have_applied*: an
    earlier attempt of this call may have had its effect. *remaining_ms*: to the deadline, if there is one.
    *chance*: a number in [0, 1). The budget is asked last and charged at once, before the pause, so that
    sleeping retries cannot pile up unseen.
    """
    if failure.still_running and not idempotent:
        return Stop("outcome_unknown", "not_safe")
    safe = idempotent or retry_safe or failure.certainly_no_effect
    step: Retry | Stop | None = _stopped(failure, safe, breaker_open, attempt, max_attempts)
    if step is None:
        step = _paused(failure, policy, attempt - 1, chance, max_elapsed_ms - elapsed_ms, remaining_ms)
    if isinstance(step, Retry):
        if budget is None or budget.withdraw(now):
            return step
        step = Stop("retry_exhausted", "budget")
    if not idempotent and (may_have_applied or failure.may_have_applied):
        return Stop("outcome_unknown", step.reason)
    return step


def pause_ms(failure: Failure, policy: RetryPolicy) -> int | None:
    """How long to leave the dependency alone: as long as it asked for, up to the cap of the policy."""
    asked = failure.retry_after_ms
    return None if asked is None else min(asked, policy.retry_after_cap_ms)


def _stopped(failure: Failure, safe: bool, breaker_open: bool, attempt: int, allowed: int) -> Stop | None:
    """Rows 2 to 6."""
    if not failure.retriable:
        return Stop("error", "terminal")
    if not safe:
        return Stop("retriable_error", "not_safe")
    if breaker_open:
        return Stop("retriable_error", "breaker")
    if allowed <= 1:
        return Stop("timeout" if failure.kind == "timeout" else "retriable_error", "not_allowed")
    return Stop("retry_exhausted", "attempts") if attempt >= allowed else None


def _paused(
    failure: Failure, policy: RetryPolicy, retry: int, chance: float, room_ms: float, remaining_ms: float | None
) -> Retry | Stop:
    """Rows 7 and 8: the pause, if it fits."""
    floor = failure.retry_after_ms or 0
    if floor > policy.retry_after_cap_ms:
        return Stop("retriable_error", "retry_after")
    pause = delay_ms(retry, policy, chance, floor)
    limit = room_ms if remaining_ms is None else min(room_ms, remaining_ms)
    if pause >= limit and 0 < floor < limit:
        pause = floor
    if pause >= room_ms:
        return Stop("retry_exhausted", "elapsed")
    if remaining_ms is not None and pause >= remaining_ms:
        return Stop("retry_exhausted", "deadline")
    return Retry(pause)


class TokenBucket:
    """The retry budget of one dependency in one process: a token bucket that never blocks (D22, R8).

    It starts at 10. A success adds 0.1 (up to 100), a retry takes 1, when it is decided and before its pause. Time adds
    1 per second, but only up to the starting level: after an outage retries resume without a success, yet idle hours
    accumulate no burst.

    So an outage of *T* seconds in which *N* calls are made costs at most ``10 + T`` retries (after a long
    healthy time ``100 + T``), whatever the number of attempts a call would be allowed: attempts per call are at
    most ``1 + (10 + T) / N``, which is 1.02 at 100 calls per second and stays under 1.1 down to about 11. Below
    that the bucket still adds no more than one request per second, and the breaker, which opens after five
    failures in a row, keeps the attempts per call under 1.1 at every rate.

    Thread-safe. A success is only counted, which takes no lock; it is added when somebody wants a token.
    """

    __slots__ = ("_cap", "_counted", "_floor", "_lock", "_per_success", "_stamp", "_start", "_tokens", "success")

    def __init__(
        self, start: float = 10.0, per_success: float = 0.1, cap: float = 100.0, floor_per_s: float = 1.0
    ) -> None:
        self._start = min(start, cap)
        self._cap = cap
        self._per_success = per_success
        self._floor = floor_per_s
        self._tokens = self._start
        self._stamp: float | None = None
        self._lock = threading.Lock()
        self._counted = 0
        self.success: Callable[[], int] = count().__next__
        """A call succeeded."""

    def withdraw(self, now: float) -> bool:
        """Take the cost of one retry, or refuse; never waits."""
        with self._lock:
            self._refill(now)
            if self._tokens < 1.0 - 1e-9:
                return False
            self._tokens = max(0.0, self._tokens - 1.0)
            return True

    def tokens(self, now: float) -> float:
        """The number of tokens."""
        with self._lock:
            self._refill(now)
            return self._tokens

    def _refill(self, now: float) -> None:
        counted = self.success()  # reading the counter increments it
        self._tokens = min(self._cap, self._tokens + (counted - self._counted) * self._per_success)
        self._counted = counted + 1
        since, self._stamp = self._stamp, now
        if since is not None and now > since and self._tokens < self._start:
            self._tokens = min(self._start, self._tokens + (now - since) * self._floor)
