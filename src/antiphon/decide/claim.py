"""May this call be dispatched? The claim's rules as one function over values (R5, D2, D3, D6, D35).

| what is there                       | same identity              | new identity                                   |
|-------------------------------------|----------------------------|------------------------------------------------|
| in flight, lease alive              | wait or ``in_flight``      | wait and share (labelled)                      |
| in flight, lease over, repeat-safe  | take over                  | take over                                      |
| in flight, lease over, otherwise    | mark unknown               | mark unknown                                   |
| done                                | reuse                      | if it waited: share; repeat-safe: by ``reuse``;|
|                                     |                            | otherwise run                                  |
| failed, outcome unknown             | unknown (reconcile)        | unknown (reconcile) for the done TTL, then run;|
|                                     |                            | repeat-safe: run                               |
| failed otherwise                    | cached error               | run                                            |
| cancelled before dispatch           | run                        | run                                            |
| cancelled after dispatch            | as outcome unknown;        | as outcome unknown;                            |
|                                     | repeat-safe: run           | repeat-safe: run                               |

A call identity with an earlier execution of its own, followed by others, is answered from that one. If it never
had an outcome (taken over, or cancelled), what followed decides: a repeat-safe takeover that is done answers.
With a key given by the caller or a hook, the key alone is the identity. ``bestEffort`` never waits, and
runs again after a retriable failure. A record kept for other parameters is a conflict before all else, unless
nothing was dispatched: then the key is free.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from antiphon.contract._base import UNSET
from antiphon.contract.record import DedupeRecord
from antiphon.ports import Existing

UNKNOWN_CODE = "outcome_unknown"
ReuseRule = Literal["turn", "session", "never"] | float


class Claimant(NamedTuple):
    """What the rules need to know of the call that asks."""

    identity: str
    params_digest: str
    idempotent: bool
    given_key: bool
    best_effort: bool
    reuse: ReuseRule
    waited_for: int = 0
    """Version of the in-flight record this call has been waiting for, if any."""
    owner_gone: bool = False
    """The process that holds the claim is certainly dead: its lease counts as over."""
    gate_ms: int = 0
    """How long an unknown outcome keeps new identities with equal arguments from running (0: as long as it is kept)."""


class Run(NamedTuple):
    """Replace *version* by our own in-flight record, and dispatch."""

    version: int
    why: str


class Reuse(NamedTuple):
    """Answer from *record*."""

    record: DedupeRecord
    matched_on: Literal["inflight", "completed"]
    shared: bool
    """The answer was produced by another call identity: label it, and remember it for ours."""


class Wait(NamedTuple):
    """Wait for *version* to settle, at most until its lease ends."""

    version: int
    lease_left_ms: int


class Busy(NamedTuple):
    """Do not wait: an equal call is in flight."""

    version: int


class Conflict(NamedTuple):
    """The key belongs to other parameters."""

    record: DedupeRecord


class Unknown(NamedTuple):
    """An earlier dispatch may have happened; only reconcile or an operator can settle it."""

    record: DedupeRecord
    mark: bool
    """The record still says in flight: settle it as unknown first."""


Decision = Run | Reuse | Wait | Busy | Conflict | Unknown


RESOLVED = ("resolved", "An operator settled this claim.", True, False)
SERVED = ("resolved_and_served", "An operator settled this claim, and a call was answered with it.", True, False)
"""What the error of a record says whose outcome an operator named."""


def is_resolution(record: DedupeRecord) -> bool:
    """Whether an operator settled this record, and may still correct that: nobody was answered with it."""
    return record.error is not UNSET and record.error.code == RESOLVED[0]


def is_unknown(record: DedupeRecord) -> bool:
    """Whether it is unknown if this record's call took effect."""
    if record.state == "failed":
        return record.error is not UNSET and record.error.code == UNKNOWN_CODE
    return record.state == "cancelled" and record.dispatched


def decide(existing: Existing, asks: Claimant) -> Decision:
    """Apply the table to what the store returned."""
    current, own, now = existing
    if asks.given_key:
        if current.request.params_digest != asks.params_digest:
            if current.state == "cancelled" and not current.dispatched:
                return Run(current.version, "the key is free")
            return Conflict(current)
        own = current
    elif own is None and current.request.identity == asks.identity:
        own = current
    overtaken = False
    if own is not None and own.version != current.version:
        answer = _earlier_execution(own, asks)
        if answer is not None:
            return answer
        overtaken = own.state == "inflight"
        own = None
    if current.state == "inflight":
        return _in_flight(current, now, asks)
    if is_unknown(current) and not asks.idempotent and not (own is None and _gate_is_over(current, now, asks)):
        return Unknown(current, mark=False)
    if own is not None:
        return _own_settled(own, asks)
    return _others_settled(current, now, asks, overtaken)


def _gate_is_over(current: DedupeRecord, now: int, asks: Claimant) -> bool:
    return bool(asks.gate_ms) and now - current.updated_at_ms >= asks.gate_ms


def _in_flight(current: DedupeRecord, now: int, asks: Claimant) -> Decision:
    lock_until = 0 if current.lock_until_ms is UNSET else current.lock_until_ms
    left = lock_until - now
    if left > 0 and not asks.owner_gone:
        return Busy(current.version) if asks.best_effort else Wait(current.version, left)
    if asks.idempotent:
        return Run(current.version, "takeover")
    return Unknown(current, mark=True)


def _earlier_execution(own: DedupeRecord, asks: Claimant) -> Decision | None:
    """A redelivery of a call that others have followed: answered from its own execution, if that has an outcome."""
    if own.state == "done":
        return Reuse(own, "completed", shared=own.request.identity != asks.identity)
    if is_unknown(own) and not asks.idempotent:
        return Unknown(own, mark=False)
    if own.state != "failed" or _runs_again(own, asks):
        return None
    return Reuse(own, "completed", shared=False)


def _own_settled(own: DedupeRecord, asks: Claimant) -> Decision:
    if own.state == "cancelled":
        return Run(own.version, "cancelled")
    if own.state == "failed" and _runs_again(own, asks):
        return Run(own.version, "retry after failure")
    return Reuse(own, "inflight" if asks.waited_for else "completed", shared=False)


def _runs_again(own: DedupeRecord, asks: Claimant) -> bool:
    """``bestEffort`` does not let a retriable failure stand (R5)."""
    return asks.best_effort and own.error is not UNSET and own.error.should_retriable and not is_unknown(own)


def _others_settled(current: DedupeRecord, now: int, asks: Claimant, overtaken: bool) -> Decision:
    if current.state == "done":
        if asks.waited_for:
            return Reuse(current, "inflight", shared=True)
        if asks.idempotent and (overtaken or _may_reuse(current, now, asks.reuse)):
            return Reuse(current, "completed", shared=True)
        return Run(current.version, "new call")
    return Run(current.version, "after " + current.state)


def _may_reuse(current: DedupeRecord, now: int, rule: ReuseRule) -> bool:
    if rule == "session":
        return True
    if isinstance(rule, (int, float)):
        return now - current.updated_at_ms < rule * 1000
    return False  # "turn" is turn control's business, "never" means never
