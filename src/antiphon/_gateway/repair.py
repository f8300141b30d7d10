"""When a step does not finish: the tool raised, the store failed, or the caller was interrupted.

One total function finds the repair step for every step and every state of the call: settle what is known, release what
was not sent, answer as not recorded. No claim is left to its lease because of an interrupt (D54).
"""

from __future__ import annotations

import logging

from antiphon._gateway import approval
from antiphon._gateway import outcome as outcomes
from antiphon._gateway.attempt import dispatch, not_renewed, raised, unquoted
from antiphon._gateway.call import NOTHING, GuardedCall
from antiphon._gateway.claim import (
    aliased,
    held_back,
    looked_at_alias,
    not_decided,
    not_readable,
    not_remembered,
    start_unclaimed,
    still_unknown,
)
from antiphon._gateway.settlement import (
    REREAD_STEPS,
    after_hooks,
    answered,
    append_broke_off,
    append_missed,
    block_late_request,
    conclude,
    interrupted,
    keep_failed,
    leave,
    not_dispatched,
    not_shared,
    own_version,
    settle_broke_off,
    settle_failure,
    settle_interrupted,
    settle_value,
    settled,
    still_not_recorded,
)
from antiphon._gateway.steps import (
    BEGIN,
    DONE,
    INVOKE,
    SETTLE,
    STORE_STEPS,
    Alias,
    Append,
    Audit,
    Consult,
    Dispatch,
    Forgotten,
    Get,
    GivenUp,
    Plain,
    Put,
    Read,
    Reclaim,
    Reconcile,
    Refresh,
    Renew,
    Replay,
    SettleVersion,
    ShareBreaker,
    Step,
    TakeOver,
)
from antiphon._gateway.store_breaker import is_outage
from antiphon.errors import StoreError
from antiphon.ports import Begun, Existing

log = logging.getLogger("antiphon.gateway")


def broke_off(call: GuardedCall, step: Step | None, error: BaseException) -> Step:
    """What to do now that *step* did not finish."""
    if call.extras.left:  # the background thread of the process decides when to retry
        call.extras.interrupt = error
        return DONE
    if step is INVOKE or isinstance(step, Dispatch):
        entered = call.entered >= call.number and call.value is NOTHING
        if entered or (isinstance(error, Exception) and call.value is NOTHING):
            return raised(call, error)
    elif isinstance(error, StoreError) and (step is BEGIN or step is SETTLE or isinstance(step, STORE_STEPS)):
        return _store_failed(call, step, error)
    elif isinstance(error, Exception):
        match step:
            case Get():
                return not_readable(call, error)
            case Put() if call.reuse is None:
                return keep_failed(call, error)
            case Reconcile() | Put():
                said = unquoted(call, f"{type(error).__name__}: {error}")
                log.error("reconcile of %s failed; the outcome stays unknown: %s", call.plan.name, said)
                call.outcome = None
                return still_unknown(call)
            case Consult():
                said = unquoted(call, f"{type(error).__name__}: {error}")
                log.error("the approver of %s failed; people have to decide: %s", call.plan.name, said)
                return not_decided(call)
            case Audit():  # the decision itself is kept in the record
                said = unquoted(call, f"{type(error).__name__}: {error}")
                log.error("a decision on %s is not in the audit log: %s", call.plan.name, said)
                return step.then(call, None)
            case Replay():  # the replay refuses the call
                call.off_path().interrupt = error
                return DONE
            case GivenUp():
                call.off_path().interrupt = error
                return settled(call, 0)
    return _interrupted(call, step, error)


# -- the caller was interrupted ------------------------------------------------------------------------------------


def _interrupted(call: GuardedCall, step: Step | None, error: BaseException) -> Step:
    """Settle what was begun; the driver propagates the interrupt at the end."""
    extras = call.off_path()
    if extras.interrupt is not None:  # a second one: the background thread of the process ends the call
        abandon(call)
        return DONE
    extras.interrupt = error
    if call.number:
        call.leave_tool()
    call.plan.release(call, None)
    if step is None or isinstance(step, Refresh):  # it was not admitted yet
        return DONE
    if step is BEGIN:
        return Reclaim(call, 0, call.events, _recovered)
    if isinstance(step, TakeOver):
        return Reclaim(call, step.version, step.events, _recovered)
    if step is SETTLE:
        return Read(call.key, call.identity, _reread)
    if isinstance(step, (Read, Forgotten, Reclaim, SettleVersion)) and step.then in REREAD_STEPS:
        abandon(call)
        return DONE
    return _settle(call, error)


def _settle(call: GuardedCall, error: BaseException) -> Step:
    if call.value is not NOTHING and (call.outcome is None or call.outcome.status == "success"):
        return settle_value(call)  # the tool had returned: only the write is missing
    if call.outcome is None:
        step = settle_interrupted(call, error)
        if not call.attempts:
            after_hooks(call, call.result())
        return step
    if call.outcome.status == "success" or not call.version:
        return settled(call, 0)
    return settle_failure(call, call.outcome)


def _recovered(call: GuardedCall, reply: Begun) -> Step:
    """The claim may have been won before the interrupt, or now: nothing was sent, so release it."""
    interrupt = call.extras.interrupt
    assert interrupt is not None
    call.version = own_version(call, reply)
    if not call.version and isinstance(reply, Existing):
        block_late_request(call, reply)
    if call.version and call.run is not None and call.events:
        call.run.begun()
    return _settle(call, interrupt)


def _reread(call: GuardedCall, reply: Existing | None) -> Step:
    """The outcome may have been written before the interrupt."""
    record = None if reply is None else reply.own or reply.current
    if record is not None and record.fence == call.version and record.state != "inflight":
        return settled(call, record.version)
    return SETTLE


def abandon(call: GuardedCall) -> None:
    """Leave the claim, if there is one, to the process's background thread, which writes what is known of the call."""
    plan = call.plan
    plan.release(call, None)
    if call.extras.ended is not None:
        ended, call.extras.ended = call.extras.ended, None
        ended(call)
    if not getattr(call, "key", "") or plan.off:  # it was never admitted
        return
    if call.version or not (call.entered or call.outcome is not None or call.policy.unclaimed):
        leave(call, call.settlement or approval.settles(call, interrupted(call, "the caller was interrupted")))


# -- the store failed ----------------------------------------------------------------------------------------------


def _store_failed(call: GuardedCall, step: Step, error: StoreError) -> Step:
    extras, plan = call.off_path(), call.plan
    _note_failure(call, step, error)
    match step:
        case Plain() if step is SETTLE:
            return settle_broke_off(call, error)
        case Read(then=then) | Forgotten(then=then) | Reclaim(then=then) | SettleVersion(then=then) if (
            then in REREAD_STEPS
        ):
            return still_not_recorded(call, error)
        case Alias(then=then) | Read(then=then) if then in (aliased, looked_at_alias):
            return not_remembered(call, error)
        case Reclaim(then=then) | Read(then=then) if then in (_recovered, _reread):
            abandon(call)
            return DONE
        case Renew() if extras.last is not None:
            return not_renewed(call)
        case ShareBreaker(row=row):
            return not_shared(call, row.name, error)
        case Append(then=then) if then is conclude:
            return append_broke_off(call, error)
        case Append() if extras.replayed:
            append_missed(call, error)
            return step.then(call, None)
    if plan.pass_through:
        extras.verdict = error.code
        call.version = 0
        return dispatch(call) if isinstance(step, Append) else start_unclaimed(call)
    if call.refusal is not None:
        return held_back(call, call.refusal)
    if not call.version:
        return _outage(call, error)
    if isinstance(step, SettleVersion):
        extras.outage = extras.outage or error
        abandon(call)
        return _given_back(call, None)
    extras.outage = error  # its start could not be written, or the claim not be verified: release it
    return SettleVersion(call.key, call.version, approval.settles(call, not_dispatched(call)), _given_back)


def _note_failure(call: GuardedCall, step: Step, error: StoreError) -> None:
    """Open the breaker of a failing store; a claim that may exist nevertheless is released once the store works."""
    call.plan.plans.store_breaker.failed(error)
    if (step is BEGIN or isinstance(step, TakeOver)) and is_outage(error):
        leave(call, not_dispatched(call), step.version if isinstance(step, TakeOver) else 0)


def _given_back(call: GuardedCall, _: int | None) -> Step:
    call.version = 0
    error = call.extras.outage
    assert error is not None
    return _outage(call, error)


def _outage(call: GuardedCall, error: StoreError) -> Step:
    """The store cannot be used: reads may run unprotected, everything else fails closed (D10)."""
    plan, extras = call.plan, call.off_path()
    fail_open = plan.tool.safe_outage and not call.policy.safety and error.code != "store_version"
    plan.reporter.outage(call, error, fail_open)
    call.version = 0
    if not fail_open:
        return answered(call, outcomes.not_made(error))
    extras.unprotected = error.code
    return dispatch(call)
