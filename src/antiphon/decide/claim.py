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

A call identity with an earlier execution of its own, followed by others, is answered from that one. If it never had an
outcome (taken over, or cancelled), what followed decides: a repeat-safe takeover that is done answers. An execution
that was undone answers no call: its own identity (or key) is refused, unless the tool says ``after_undo="run"``; new
identities run.

If a person must approve the call, nothing runs by this table alone. What would run asks, or spends the approval:

| the approval of this call            | then                                              |
|--------------------------------------|---------------------------------------------------|
| none; another call's                 | ask                                               |
| over; other arguments, other policy  | ask again                                         |
| waiting                              | pending                                           |
| approved                             | spend: replaced by version, as it goes in flight  |
| denied, withdrawn                    | that is the answer until the question would be    |
|                                      | over, too                                         |

A call that waits for a person replaces no live question or approval of another call: it asks when that is over.
A claim that was made only to ask is never unknown: nothing was sent.
With a key given by the caller or a hook, the key alone is the identity. ``bestEffort`` never waits, and
runs again after a retriable failure. A record kept for other parameters is a conflict before all else, unless
nothing was dispatched: then the key is free.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from msgspec import Struct

from antiphon.contract._base import UNSET
from antiphon.contract.approval import GRANTED, REQUIRED, Approval, approval_of, is_asking
from antiphon.contract.record import UNKNOWN_CODE as UNKNOWN_CODE
from antiphon.contract.record import DedupeRecord
from antiphon.contract.record import is_unknown as is_unknown
from antiphon.ports import Existing

ReuseRule = Literal["turn", "session", "never"] | float


class ApprovalRequirement(NamedTuple):
    """That a person must approve the call, and what makes an approval valid for it."""

    policy: str
    version: str
    digests: tuple[str, ...]
    """Of the exact arguments, under the current key of the store and older ones."""
    any_identity: bool = False
    """Whether the approval of another equal call of the session is valid, too."""
    anonymous: bool = False
    """The call has no id and no position in a run: an equal call without either is a delivery of it."""


class Claimant(Struct, frozen=True):
    """What the rules need to know about the requesting call."""

    identity: str
    params_digest: str
    idempotent: bool
    given_key: bool
    best_effort: bool
    reuse: ReuseRule
    waited_for: int = 0
    """Version of the in-flight record this call has been waiting for, if any."""
    owner_gone: bool = False
    """The process that holds the claim is certainly dead: its lease counts as expired."""
    gate_ms: int = 0
    """How long an unknown outcome keeps new identities with equal arguments from running (0: as long as it is kept)."""
    requirement: ApprovalRequirement | None = None
    """Set if a person must approve the call."""
    runs_after_undo: bool = False
    """Whether the call runs again if its earlier execution was undone."""
    waits_for_person: bool = False
    """Whether the call has found or asked its question before, and waits for the decision."""


class Run(NamedTuple):
    """Replace *version* by our own in-flight record, and dispatch."""

    version: int
    why: str


class Reuse(Struct, frozen=True):
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
    """An earlier dispatch may have had an effect; only reconcile or an operator can settle it."""

    record: DedupeRecord
    mark: bool
    """The record still says in flight: settle it as unknown first."""


class Ask(NamedTuple):
    """Replace *version* by a question to a person; nothing is dispatched."""

    version: int
    why: str


class Pending(NamedTuple):
    """A person has been asked and has not decided."""

    version: int
    approval: Approval


class Replaced(NamedTuple):
    """Another call's question has replaced the one that this call waits for."""

    version: int
    approval: Approval


class Spend(NamedTuple):
    """Replace *version*, which is approved, by our own in-flight record, and dispatch."""

    version: int
    approval: Approval


class Undone(NamedTuple):
    """The execution that would answer was undone: its result no longer holds."""

    record: DedupeRecord


Decision = Run | Reuse | Wait | Busy | Conflict | Unknown | Undone | Ask | Pending | Replaced | Spend


RESOLVED = ("resolved", "An operator settled this claim.", True, False)
SERVED = ("resolved_and_served", "An operator settled this claim, and a call was answered with it.", True, False)
"""The error in a record whose outcome was set by an operator."""


def is_resolution(record: DedupeRecord) -> bool:
    """Whether an operator settled this record, and may still correct that: no call was answered with it."""
    return record.error is not UNSET and record.error.code == RESOLVED[0]


UNDONE = ("undone", "The effect of this call was undone, or is being undone.", True, False)
"""The error in a record whose effect an undo takes back; to earlier releases it is a failure."""


def is_undone(record: DedupeRecord) -> bool:
    """Whether the effect of this record's call was taken back."""
    return record.state == "failed" and record.error is not UNSET and record.error.code == UNDONE[0]


def decide(existing: Existing, asks: Claimant) -> Decision:
    """Apply the tables to what the store returned."""
    decision = _by_claim(existing, asks)
    return decision if asks.requirement is None or type(decision) is not Run else _by_approval(existing, asks, decision)


def may_spend(approval: Approval, requirement: ApprovalRequirement, now: int) -> bool:
    """Whether an approval is valid for a call with this requirement, at the store's time *now*."""
    same = approval.policy == requirement.policy and approval.policy_version == requirement.version
    return same and approval.digest in requirement.digests and now < approval.expires_at_ms


def _by_approval(existing: Existing, asks: Claimant, run: Run) -> Decision:
    """The decision for a call that would run and needs a person."""
    current, _, now = existing
    requirement, kept = asks.requirement, approval_of(current)
    assert requirement is not None
    same = requirement.any_identity or asks.given_key or current.request.identity == asks.identity
    if kept is None:
        return Ask(run.version, run.why)
    ours = same or (requirement.anonymous and current.owner.startswith(f"{current.request.identity}/"))
    if not (ours and may_spend(kept.approval, requirement, now)):
        if asks.waits_for_person and kept.code in (REQUIRED, GRANTED) and now < kept.approval.expires_at_ms:
            return Replaced(run.version, kept.approval)
        return Ask(run.version, "its approval is over, or for another call" if ours else run.why)
    if kept.code == GRANTED:
        return Spend(run.version, kept.approval)
    if kept.code == REQUIRED:
        return Pending(run.version, kept.approval)
    return Reuse(current, "completed", shared=False)


def _by_claim(existing: Existing, asks: Claimant) -> Decision:
    current, own, now = existing
    if asks.given_key:
        if is_undone(current):
            return _undone(current, current.version, asks)
        if current.request.params_digest != asks.params_digest:
            if (current.state == "cancelled" and not current.dispatched) or approval_of(current) is not None:
                return Run(current.version, "the key is free")
            return Conflict(current)
        own = current
    elif own is None and current.request.identity == asks.identity:
        own = current
    overtaken = False
    if own is not None and is_undone(own):
        return _undone(own, current.version, asks)
    if own is not None and own.version != current.version:
        answer = _earlier_execution(own, now, asks)
        if answer is not None:
            return answer
        overtaken = own.state == "inflight" and not is_asking(own)
        own = None
    if current.state == "inflight":
        return _in_flight(current, now, asks)
    if not asks.idempotent and is_unknown(current) and not (own is None and _gate_is_over(current, now, asks)):
        return Unknown(current, mark=False)
    if own is not None:
        return _own_settled(own, now, asks)
    return _others_settled(current, now, asks, overtaken)


def _undone(found: DedupeRecord, version: int, asks: Claimant) -> Decision:
    return Run(version, "after undo") if asks.runs_after_undo else Undone(found)


def _gate_is_over(current: DedupeRecord, now: int, asks: Claimant) -> bool:
    return bool(asks.gate_ms) and now - current.updated_at_ms >= asks.gate_ms


def _in_flight(current: DedupeRecord, now: int, asks: Claimant) -> Decision:
    lock_until = 0 if current.lock_until_ms is UNSET else current.lock_until_ms
    left = lock_until - now
    if left > 0 and not asks.owner_gone:
        return Busy(current.version) if asks.best_effort else Wait(current.version, left)
    if asks.idempotent or is_asking(current):
        return Run(current.version, "takeover")
    return Unknown(current, mark=True)


def _earlier_execution(own: DedupeRecord, now: int, asks: Claimant) -> Decision | None:
    """A redelivery of a call that others have followed: answered from its own execution, if that has an outcome."""
    if own.state == "done":
        return Reuse(own, "completed", shared=own.request.identity != asks.identity)
    if is_unknown(own) and not asks.idempotent:
        return Unknown(own, mark=False)
    if own.state != "failed" or _runs_again(own, asks) or _is_open(own, now, asks):
        return None
    return Reuse(own, "completed", shared=False)


def _own_settled(own: DedupeRecord, now: int, asks: Claimant) -> Decision:
    if own.state == "cancelled" or _is_open(own, now, asks):
        return Run(own.version, own.state)
    if own.state == "failed" and _runs_again(own, asks):
        return Run(own.version, "retry after failure")
    return Reuse(own, "inflight" if asks.waited_for else "completed", False)


def _is_open(own: DedupeRecord, now: int, asks: Claimant) -> bool:
    """Whether a person was asked about this call and has not refused it, or the refusal no longer holds for it."""
    kept = approval_of(own)
    if kept is None or kept.code in (REQUIRED, GRANTED):
        return kept is not None
    return asks.requirement is not None and not may_spend(kept.approval, asks.requirement, now)


def _runs_again(own: DedupeRecord, asks: Claimant) -> bool:
    """``bestEffort`` does not let a retriable failure stand (R5)."""
    return asks.best_effort and own.error is not UNSET and own.error.should_retriable and not is_unknown(own)


def _others_settled(current: DedupeRecord, now: int, asks: Claimant, overtaken: bool) -> Decision:
    if current.state == "done":
        if asks.waited_for:
            return Reuse(current, "inflight", shared=True)
        if asks.idempotent and (overtaken or _may_reuse(current, now, asks.reuse)):
            return Reuse(current, "completed", True)
        return Run(current.version, "new call")
    return Run(current.version, "after " + current.state)


def _may_reuse(current: DedupeRecord, now: int, rule: ReuseRule) -> bool:
    if rule == "session":
        return True
    if isinstance(rule, (int, float)):
        return now - current.updated_at_ms < rule * 1000
    return False  # "turn" is up to turn control, "never" means never
