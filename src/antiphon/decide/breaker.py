"""The circuit breaker of one dependency: a state machine without a clock of its own (R9, D8).

| state       | lets through                  | leaves it when                                                    |
|-------------|-------------------------------|-------------------------------------------------------------------|
| CLOSED      | everything (unless throttled) | a failing attempt meets one of the two conditions below -> OPEN   |
| OPEN        | nothing                       | a call comes after the cool-down -> HALF_OPEN                     |
| HALF_OPEN   | ``probes`` at a time          | ``close_after`` good probes in a row -> CLOSED; a bad or lost one |
|             |                               | -> OPEN, and the cool-down starts again                           |
| FORCED_OPEN | nothing                       | reset, or the expiry the operator gave -> CLOSED                  |

Both conditions look at attempts that *ended* within the last ``window_ms``, and both are only evaluated when an attempt
has failed (a success never opens a breaker):

- the last ``consecutive`` votes are all failures;
- among the last ``window_calls`` attempts there are at least ``min_calls``, and failures are ``rate`` or more.

A 429 counts in the rate, neither prolongs nor ends a run of consecutive failures, fails a probe, and its Retry-After
pauses the dependency ("throttled") without a change of state; a reset ends the pause. A cancelled attempt returns its
permit and does not vote. Refused calls change nothing.

Each period between two changes of state has its own counters, and a permit carries those of the period in which it was
issued: a late result counts in a period that has ended. A probe has a lease; one that never reports ends with its
lease.

Permits and results of a closed breaker take no lock; everything else takes one, for counters only.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from dataclasses import dataclass
from typing import NamedTuple

from antiphon.contract.result import BreakerStateName
from antiphon.contract.spec import DEFAULT_BREAKER, BreakerPolicy
from antiphon.decide.failure import Vote

RESET_REASON = "reset"
CONFIGURED_REASON = "configured"
THROTTLED_REASON = "throttled: the dependency asked to wait"
_EARLY_S = 0.005
"""Timers may fire a tick early: a caller that slept for the whole Retry-After is let through."""
_HALF_OPEN_RETRY_MS = 1_000
_new = tuple.__new__  # half the cost of a named tuple's own constructor


class Transition(NamedTuple):
    """A change of state, for logs, metrics and the other processes."""

    from_state: BreakerStateName
    to_state: BreakerStateName
    reason: str
    epoch: int


class Refusal(NamedTuple):
    """The breaker refuses an attempt."""

    state: BreakerStateName
    reason: str
    retry_after_ms: int | None
    """When to try again; ``None`` = not before it is reset."""
    transitions: tuple[Transition, ...] = ()


class Snapshot(NamedTuple):
    """The state of a breaker that is stored and shared. Counters stay in the process."""

    state: BreakerStateName
    epoch: int
    remaining_ms: int
    """Until the end of the cool-down, of a requested pause, or of a forced state (there 0 = no end)."""
    reason: str


Failed = tuple[float]


@dataclass(slots=True, eq=False)
class Permit:
    """Permission for one attempt; return it with its result. All permits of a closed period are one object."""

    epoch: int
    ring: deque[float | Failed]
    """When the last attempts ended; a failed one is wrapped in a tuple."""
    fails: deque[float]
    """When the current consecutive failures came in."""
    probe: bool = False
    lease_until: float = math.inf
    transitions: tuple[Transition, ...] = ()


class Breaker:
    """One breaker. *now* is monotonic seconds throughout.

    >>> breaker = Breaker()
    >>> permit = breaker.permit(now=0.0)
    >>> breaker.success(permit, now=0.1)
    ()
    """

    def __init__(self, policy: BreakerPolicy = DEFAULT_BREAKER) -> None:
        self.policy = policy
        self.state: BreakerStateName = "CLOSED"
        self.epoch: int = 0
        self.reason: str = ""
        self._until = math.inf
        self._throttled = -math.inf
        self._good = 0
        self._probes: set[Permit] = set()
        self._lock = threading.Lock()
        self._closed = self._period()
        self.pass_for_all: Permit | None = self._closed
        """What every caller gets without asking; ``None`` as soon as callers have to ask."""
        if policy.forced_open:
            self._enter("FORCED_OPEN", CONFIGURED_REASON, math.inf)

    # -- asking ------------------------------------------------------------------------------------------------------

    def permit(self, now: float) -> Permit | Refusal:
        """Permission for one attempt, or why not."""
        given = self.pass_for_all
        if given is not None:
            return given
        with self._lock:
            moves = self._pass_time(now)
            refusal = self._refusal(now)
            if refusal is not None:
                return refusal._replace(transitions=moves)
            if self.state == "CLOSED":
                own = self.pass_for_all = self._closed
                return Permit(own.epoch, own.ring, own.fails, transitions=moves) if moves else own
            if self.state == "OPEN":
                moves += self._enter("HALF_OPEN", "cooled down", math.inf)
            until = now + self.policy.probe_lease_ms / 1000
            probe = Permit(self.epoch, deque(), deque(), probe=True, lease_until=until, transitions=moves)
            self._probes.add(probe)
            return probe

    def peek(self, now: float) -> Refusal | None:
        """The refusal that :meth:`permit` would return, changing nothing."""
        if self.pass_for_all is not None:
            return None
        with self._lock:
            return self._refusal(now)

    def is_open(self, now: float) -> bool:
        """Whether retries are pointless: open or forced open. A throttled dependency is merely waited for."""
        if self.pass_for_all is not None:
            return False
        with self._lock:
            state, until = self._projected(now)
            return state == "FORCED_OPEN" or (state == "OPEN" and now < until)

    # -- reporting ---------------------------------------------------------------------------------------------------

    def success(self, permit: Permit, now: float) -> tuple[Transition, ...]:
        """The attempt succeeded."""
        if not permit.probe:
            permit.ring.append(now)
            if permit.fails:
                permit.fails.clear()
            return ()
        with self._lock:
            moves = self._pass_time(now)
            if permit not in self._probes:
                return moves
            self._probes.discard(permit)
            return moves + self._good_probe()

    def failure(
        self, permit: Permit, now: float, vote: Vote = "failure", retry_after_ms: int | None = None
    ) -> tuple[Transition, ...]:
        """The attempt failed; *vote* is :attr:`antiphon.decide.failure.Failure.breaker_vote`.

        *retry_after_ms*: how long to leave the dependency alone (:func:`antiphon.decide.retry.pause_ms`).
        """
        if vote == "success":
            return self.success(permit, now)
        if vote == "none":
            return self.neutral(permit, now)
        with self._lock:
            moves = self._pass_time(now)
            if permit.probe:
                if permit not in self._probes:
                    return moves
                pause = max(self.policy.cooldown_ms, retry_after_ms or 0) if vote == "rate_only" else None
                return moves + self._open(now, "probe failed", pause)
            permit.ring.append((now,))
            if vote == "failure":
                permit.fails.append(now)
            if permit.ring is not self._closed.ring or self.state != "CLOSED":
                return moves
            if vote == "rate_only" and retry_after_ms:
                self._throttled = max(self._throttled, now + retry_after_ms / 1000)
                self.reason = THROTTLED_REASON
                self.pass_for_all = None
            why = self._tripped(now)
            return moves + self._open(now, why) if why else moves

    def neutral(self, permit: Permit, now: float) -> tuple[Transition, ...]:
        """The attempt was cancelled or says nothing about the dependency: return the permit without a vote."""
        if not permit.probe:
            return ()
        with self._lock:
            moves = self._pass_time(now)
            self._probes.discard(permit)
            return moves

    # -- operators and other processes -------------------------------------------------------------------------------

    def force_open(self, now: float, reason: str, for_ms: float | None = None) -> tuple[Transition, ...]:
        """Refuse everything until :meth:`reset`, or for *for_ms*."""
        with self._lock:
            until = math.inf if for_ms is None else now + for_ms / 1000
            return self._pass_time(now) + self._enter("FORCED_OPEN", reason, until)

    def reset(self, now: float, reason: str = "") -> tuple[Transition, ...]:
        """Close at once, from any state, with fresh counters."""
        with self._lock:
            moves = self._pass_time(now)
            self._throttled = -math.inf
            return moves + self._enter("CLOSED", f"{RESET_REASON}: {reason}" if reason else RESET_REASON, math.inf)

    def export(self, now: float) -> Snapshot:
        """What to store and to share."""
        with self._lock:
            state, until = self._projected(now)
            if state == "CLOSED" and self._throttled > now:
                until = self._throttled
            left = 0 if math.isinf(until) else max(0, math.ceil((until - now) * 1000))
            return Snapshot(state, self.epoch, left, self.reason)

    def adopt(
        self, state: BreakerStateName, epoch: int, remaining_ms: float, reason: str, now: float
    ) -> tuple[Transition, ...]:
        """Adopt what was stored, or what another process wrote, if it is newer than what we know.

        A forced state wins over others of its epoch and is left only by a reset; if a process that had not
        heard of it overwrote it, we answer with a still newer epoch, to be published again. Somebody else's
        half-open is our open: each process sends its own probes.
        """
        with self._lock:
            moves = self._pass_time(now)
            forced = state == "FORCED_OPEN"
            if epoch < self.epoch or (epoch == self.epoch and not (forced and self.state != "FORCED_OPEN")):
                return moves
            reset = state == "CLOSED" and reason.startswith(RESET_REASON)
            if reset:
                self._throttled = -math.inf
            if self.state == "FORCED_OPEN" and not forced and not reset:
                self.epoch = epoch
                return moves + self._enter("FORCED_OPEN", self.reason, self._until)
            target: BreakerStateName = "OPEN" if state == "HALF_OPEN" else state
            until = now + remaining_ms / 1000
            if target == "CLOSED" or (forced and not remaining_ms):
                until = math.inf
            same = target == self.state
            if same and not reset:
                self.epoch, self._until, self.reason = epoch, until, reason
                return moves
            self.epoch = epoch - 1
            entered = self._enter(target, reason, until)
            return moves if same else moves + entered

    # -- the machine (under the lock) --------------------------------------------------------------------------------

    def _projected(self, now: float) -> tuple[BreakerStateName, float]:
        """The state and its end as time alone has changed them."""
        if self.state == "HALF_OPEN":
            lost = min((probe.lease_until for probe in self._probes), default=math.inf)
            if lost <= now:
                return "OPEN", lost + self.policy.cooldown_ms / 1000
        if self.state == "FORCED_OPEN" and self._until <= now:
            return "CLOSED", math.inf
        return self.state, self._until

    def _pass_time(self, now: float) -> tuple[Transition, ...]:
        """Let expired leases and forced states take effect."""
        state, until = self._projected(now)
        if state == self.state:
            return ()
        return self._enter(state, "probe lost" if state == "OPEN" else "forced state expired", until)

    def _refusal(self, now: float) -> Refusal | None:
        state, until = self._projected(now)
        if state == "FORCED_OPEN":
            return Refusal(state, self.reason, None if math.isinf(until) else _ms(until - now))
        throttled = self._throttled - _EARLY_S
        if state == "OPEN" and now < until:
            return _new(Refusal, (state, self.reason, _ms((until if until > throttled else throttled) - now), ()))
        if now < throttled:
            return Refusal("OPEN", THROTTLED_REASON, _ms(self._throttled - now))
        if state == "HALF_OPEN" and len(self._probes) >= self.policy.probes:
            lease = min(probe.lease_until for probe in self._probes)
            return Refusal(state, "a probe is under way", min(_HALF_OPEN_RETRY_MS, _ms(lease - now)))
        return None

    def _good_probe(self) -> tuple[Transition, ...]:
        self._good += 1
        if self._good < self.policy.close_after:
            return ()
        return self._enter("CLOSED", f"{self._good} good probes", math.inf)

    def _tripped(self, now: float) -> str:
        """Which of the two conditions is met, in words."""
        policy = self.policy
        since = now - policy.window_ms / 1000
        row = self._closed.fails.copy()  # a success in another thread may empty it at any moment
        if len(row) >= policy.consecutive and row[0] >= since:
            return f"{policy.consecutive} consecutive failures"
        seen = bad = 0
        for entry in self._closed.ring.copy():
            failed = isinstance(entry, tuple)
            ended = entry[0] if isinstance(entry, tuple) else entry
            if ended >= since:
                seen += 1
                bad += failed
        if seen >= policy.min_calls and bad >= policy.rate * seen - 1e-9:
            return f"{bad} of the last {seen} attempts failed"
        return ""

    def _open(self, now: float, reason: str, cooldown_ms: float | None = None) -> tuple[Transition, ...]:
        pause = self.policy.cooldown_ms if cooldown_ms is None else cooldown_ms
        return self._enter("OPEN", reason, now + pause / 1000)

    def _enter(self, state: BreakerStateName, reason: str, until: float) -> tuple[Transition, ...]:
        """Begin a new period: new epoch, new counters, no probes."""
        self.epoch += 1
        move = Transition(self.state, state, reason, self.epoch)
        self.state, self.reason, self._until = state, reason, until
        self._good = 0
        self._probes.clear()
        self._closed = self._period()
        self.pass_for_all = self._closed if state == "CLOSED" and self._throttled == -math.inf else None
        return (move,)

    def _period(self) -> Permit:
        return Permit(self.epoch, deque(maxlen=self.policy.window_calls), deque(maxlen=self.policy.consecutive))


def _ms(seconds: float) -> int:
    return math.ceil(seconds * 1000)
