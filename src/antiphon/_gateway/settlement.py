"""The end of a call: what the record says, what goes into the log, and who must be told."""

from __future__ import annotations

import contextlib
import inspect
import logging
from collections.abc import Sequence
from copy import copy

from antiphon._gateway import approval, codec
from antiphon._gateway import outcome as outcomes
from antiphon._gateway.call import NO_EXTRAS, NOTHING, Extras, GuardedCall
from antiphon._gateway.codec import encode
from antiphon._gateway.outcome import UNKNOWN_HINT, Outcome
from antiphon._gateway.owner import is_owned_by
from antiphon._gateway.steps import (
    DONE,
    SETTLE,
    Append,
    Forgotten,
    Put,
    Read,
    Reclaim,
    SettleVersion,
    ShareBreaker,
    Step,
)
from antiphon._late import traceback_of
from antiphon.contract._base import LONGEST_MS
from antiphon.contract.record import DedupeRecord
from antiphon.decide.claim import UNKNOWN_CODE, is_unknown
from antiphon.errors import InvalidInput, StoreError
from antiphon.ports import ONLY_EVENTS, Attempt, Begun, Claimed, Existing, Pinned, Row, Settlement, Success

log = logging.getLogger("antiphon.gateway")

ARGUMENTS = " Arguments: "
"""Precedes the masked arguments in the message of an unknown outcome."""
NEVER_MS = LONGEST_MS
"""Time to live of a record that somebody has to settle."""
_UNDER_WAY_S = 30.0
"""How long a request whose caller was interrupted may take to reach the store."""
_new = tuple.__new__  # half the cost of a named tuple's own constructor
_WATCHED = b"null"


# -- what the record says ------------------------------------------------------------------------------------------


def settle_success(call: GuardedCall, now: float) -> Step:
    """Store the result with the claim, and the end event in the log."""
    plan = call.plan
    try:
        payload = call.payload = encode(call.value, plan.tool.decode)
    except codec.NotSerialisable as error:
        if inspect.iscoroutine(call.value):
            return _never_awaited(call)
        return not_kept(call, str(error))
    if call.outcome is not None:
        call.outcome.payload = payload
    if plan.pass_through:
        payload = _WATCHED
    elif len(payload) > plan.largest and (plan.tool.streams or not plan.results.is_plain(payload)):
        return _keep(call, payload)
    number, attempts, run = call.number, call.attempts, call.run
    kind = Success if number == 1 else Settlement
    call.settlement = _new(kind, ("done", plan.ttl_ms, payload, None, None, False, None, attempts, number, True))
    if run is not None and run.together and not plan.pass_through:
        known_clean = call.extras is NO_EXTRAS and plan.results.redactor is not None
        outcome = call.outcome if known_clean else call.result()
        call.events = run.ended(outcome, payload, (now - call.started) * 1000, attempts)
    return SETTLE


def _never_awaited(call: GuardedCall) -> Step:
    """The tool returned a coroutine, which has not run and never will."""
    call.value.close()
    call.value = NOTHING
    message = f"{call.plan.name} returned a coroutine that was never awaited: it did not run."
    outcome = outcomes.failed("error", "not_awaited", message)
    outcome.exception = InvalidInput(message, hint="Register the function with an AsyncGateway.")
    return settle_failure(call, outcome)


def _keep(call: GuardedCall, payload: bytes) -> Step:
    """A result that is large or holds a secret: it is sealed, left out, or spilled to the blob store."""
    plan = call.plan
    base = Settlement("done", plan.ttl_ms, attempts=call.attempts, attempt_count=call.number)
    try:
        settlement, spilled = plan.results.keep(call.key, base, payload, plan.tool.streams)
        if spilled is not None:
            call.settlement = settlement
            return Put(plan.results.required_blobs(), plan.results.tenant, spilled, _kept)
    except codec.NotSerialisable as error:
        return not_kept(call, str(error))
    except Exception as error:  # a lost key must not hide that the call took effect
        return keep_failed(call, error)
    return _settle_as(call, settlement)


def _kept(call: GuardedCall, ref: str) -> Step:
    assert call.settlement is not None
    return _settle_as(call, call.plan.results.placed(call.settlement, ref))


def keep_failed(call: GuardedCall, error: Exception) -> Step:
    """A full disk must not hide that the call took effect."""
    secrets = call.plan.results.quoted(call.arguments)
    log.error("the result of %s could not be kept\n%s", call.plan.name, traceback_of(error, secrets))
    return not_kept(call, f"{type(error).__name__}: {call.plan.results.clean(str(error))}")


def not_kept(call: GuardedCall, why: str) -> Step:
    """The call is done; its result cannot be returned again."""
    call.result().note(payload=f"not kept ({why})")
    count = call.number or 1
    return _settle_as(call, Settlement("done", call.plan.ttl_ms, attempts=call.attempts, attempt_count=count))


def settle_failure(call: GuardedCall, outcome: Outcome) -> Step:
    """Write how the call failed."""
    call.outcome = outcome
    plan = call.plan
    if outcome.attempts == 0:
        after_hooks(call, outcome)
    if not call.version:
        return settled(call, 0)
    plan.release(call, None)
    if outcome.attempts == 0:
        return _settle_as(call, not_dispatched(call))
    code, retriable = outcome.code, outcome.retriable
    if plan.pass_through and call.extras.may_have_applied:
        code, retriable = UNKNOWN_CODE, False
    message = plan.results.clean(outcome.message)
    error = (code, message + _asked(call) if code == UNKNOWN_CODE else message, outcome.terminal, retriable)
    ttl_ms = _long(call) if code == UNKNOWN_CODE else plan.tool.ttl.failed_ms
    count = outcome.attempts
    if plan.is_keyed and code != UNKNOWN_CODE:  # it may run again; if nothing has happened, also for other arguments
        settlement = Settlement("cancelled", ttl_ms, error=error, attempts=call.attempts, attempt_count=count)
        return _settle_as(call, settlement._replace(dispatched=call.extras.may_have_applied))
    return _settle_as(call, Settlement("failed", ttl_ms, error=error, attempts=call.attempts, attempt_count=count))


def settle_interrupted(call: GuardedCall, interrupt: BaseException | None, why: str = "") -> Step:
    """The caller went away: write what is known of the call, then let the interrupt propagate."""
    plan = call.plan
    plan.release(call, None)
    if call.outcome is None and interrupt is not None:
        call.outcome = outcomes.interrupted(plan.name, interrupt, len(call.attempts))
    if not call.version:
        return settled(call, 0)
    why = why or f"the caller was interrupted ({type(interrupt).__name__})"
    return _settle_as(call, interrupted(call, why))


def settle_value(call: GuardedCall) -> Step:
    """Store a result whose write was interrupted."""
    plan, now = call.plan, call.plan.monotonic()
    if not call.version:
        return settled(call, 0)
    plan.release(call, None)
    if len(call.attempts) < call.number:
        note(call, now, "", False)
    return settle_success(call, now)


def note(call: GuardedCall, now: float, code: str, retriable: bool) -> None:
    """Remember an attempt for the claim record, with the error code of a failed one."""
    ended_ms = call.plan.now_ms()
    call.attempts += ((ended_ms - int((now - call.began) * 1000), ended_ms, code, retriable),)


def _settle_as(call: GuardedCall, settlement: Settlement) -> Step:
    call.settlement = settlement if call.extras.approval_state is None else approval.settles(call, settlement)
    run = call.run
    if run is not None and run.together and not call.plan.pass_through:
        call.events = _end_rows(call)
    return SETTLE


def not_dispatched(call: GuardedCall) -> Settlement:
    """Nothing was sent: the next call may run. The record blocks a request that is still in transit."""
    ttl_ms = max(call.plan.tool.ttl.failed_ms, int(_UNDER_WAY_S * 1000))
    return Settlement("cancelled", ttl_ms, attempts=call.attempts, dispatched=False)


def unknown(call: GuardedCall, why: str) -> Settlement:
    """Nobody knows whether the call took effect."""
    message = f"{call.plan.name} was dispatched, but {why}. {UNKNOWN_HINT}{_asked(call)}"
    error = (UNKNOWN_CODE, message, True, False)
    count = len(call.attempts) or 1
    return Settlement("failed", _long(call), error=error, attempts=call.attempts, attempt_count=count)


def interrupted(call: GuardedCall, why: str) -> Settlement:
    """What was certainly not sent may run again; the rest is unknown unless it may be repeated."""
    extras = call.extras
    if call.value is not NOTHING:  # the tool had returned
        return _as_returned(call)
    in_tool = call.entered > len(call.attempts)
    if not (extras.dispatched or extras.may_have_applied or in_tool):
        return not_dispatched(call)
    if call.plan.idempotent:
        count = len(call.attempts)
        ttl_ms = call.plan.tool.ttl.failed_ms
        return Settlement("cancelled", ttl_ms, attempts=call.attempts, attempt_count=count)
    return unknown(call, why)


def _as_returned(call: GuardedCall) -> Settlement:
    """Done, with the result if it can be stored as it is."""
    plan = call.plan
    payload: bytes | None = None
    with contextlib.suppress(codec.NotSerialisable):
        payload = encode(call.value, plan.tool.decode)
        if len(payload) > plan.largest and (plan.tool.streams or not plan.results.is_plain(payload)):
            payload = None
    return Settlement("done", plan.ttl_ms, payload, attempts=call.attempts, attempt_count=call.number or 1)


def _long(call: GuardedCall) -> int:
    """How long an unknown outcome is kept: until somebody settles it, unless the tool says otherwise."""
    given = call.plan.tool.spec.unknown_ttl
    return NEVER_MS if given is None else int(given * 1000)


def _asked(call: GuardedCall) -> str:
    """The arguments as an operator may see them, for a record that only a person can settle."""
    text = call.plan.results.shown(call.arguments)
    return text and f"{ARGUMENTS}{text}"


# -- when it cannot be written -------------------------------------------------------------------------------------


def settle_broke_off(call: GuardedCall, error: StoreError) -> Step:
    """The effect has happened: a failing store never hides it, and receives the outcome as soon as it works again."""
    plan, run = call.plan, call.run
    if plan.pass_through:
        call.off_path()
        plan.reporter.shadow(call, error.code)
        return settled(call, 0)
    assert call.settlement is not None
    if error.code != "store_version":
        leave(call, call.settlement, only_events=ONLY_EVENTS in error.data)
        if run is not None and run.together:
            run.finished = True  # its end event is written with the record
    _not_recorded(call, error)
    return settled(call, 0)


def leave(
    call: GuardedCall, settlement: Settlement, taken: int = 0, after_s: float = 0.0, *, only_events: bool = False
) -> None:
    """Let the background thread write the call's end; *taken*: the version of the claim to replace, if any.

    It works on a copy: the call continues, or has ended. *only_events*: its claim has been settled already.
    """
    detached = _detached_copy(call, settlement)
    if call.extras.approval_state is not None and call.extras.approval_state.spending is not None:
        detached.extras.approval_state = copy(call.extras.approval_state)
    if not call.extras.left:
        detached.started = call.plan.monotonic()
    step: Step = (
        Read(detached.key, detached.identity, reread) if detached.version else Reclaim(detached, taken, (), reclaimed)
    )
    if only_events:
        step, detached.version = (
            SettleVersion(detached.key, detached.version, settlement, _resettled, detached.events),
            0,
        )
    call.plan.plans.leases.finish(detached, step, after_s)


def recover_lost_claim(call: GuardedCall) -> tuple[GuardedCall, Step]:
    """A copy of a running call that finds its claim, or writes it again if the store has lost it.

    Its version is then that of the claim; 0: the claim now belongs to another call, or was settled or cleared.
    """
    detached = _detached_copy(call, None)
    state = call.extras.approval_state
    if state is not None:
        state = detached.extras.approval_state = copy(state)
        state.spending = state.spent
    return detached, Read(detached.key, detached.identity, reread)


def _detached_copy(call: GuardedCall, settlement: Settlement | None) -> GuardedCall:
    """A copy that nobody is told about: only the record matters."""
    detached = copy(call)
    detached.extras = Extras()
    detached.extras.left = True
    detached.settlement = settlement
    detached.run = detached.turn = detached.guard = None
    detached.value = NOTHING
    return detached


def block_late_request(call: GuardedCall, found: Existing) -> None:
    """Make sure that a claim request still in transit claims nothing, and leaves no claim without an owner.

    The record of another call keeps it out. Should that expire soon, the background thread of the process takes its
    place then. A record in flight may be settled at any moment.
    """
    plan, now = call.plan, call.plan.monotonic()
    in_flight = found.current.state == "inflight"
    left_ms = min(plan.ttl_ms, plan.tool.ttl.failed_ms) if in_flight else found.current.expires_at_ms - found.now_ms
    since = call.started if call.extras.left else now
    if now + left_ms / 1000 < since + _UNDER_WAY_S:
        leave(call, not_dispatched(call), after_s=left_ms / 1000)


def reread(call: GuardedCall, reply: Existing | None) -> Step:
    """What there is of a record whose settlement or renewal failed or was refused."""
    settlement = call.settlement
    if reply is None:
        return Forgotten(call, call.version, _lost)
    record = reply.current if settlement is None else reply.own or reply.current
    if _is_in_flight_for(call, record):
        first = record.version == call.version  # otherwise it was lost, and begun again
        return _held(call, record.version, call.events if first else ())
    if settlement is None or record.fence != call.version:
        return _resettled(call, None)
    certain = settlement.state != "failed" or settlement.error is None or settlement.error[0] != UNKNOWN_CODE
    if is_unknown(record) and certain:
        return SettleVersion(call.key, record.version, settlement, _resettled)
    # it says something already: perhaps this, perhaps the outcome of an earlier attempt
    return _resettled(call, None)


def _lost(call: GuardedCall, forgotten: bool) -> Step:
    """There is no record: write it again, unless somebody removed it on purpose."""
    return _resettled(call, None) if forgotten else Reclaim(call, 0, (), reclaimed)


def reclaimed(call: GuardedCall, reply: Begun) -> Step:
    """A claim of its own to write the outcome to; a request still in transit finds it, and claims nothing."""
    version = own_version(call, reply)
    if version:
        if call.settlement is not None:
            call.settlement = approval.settles(call, call.settlement)
        return _held(call, version)
    if isinstance(reply, Existing) and not call.version:
        block_late_request(call, reply)
    return _resettled(call, None)


def own_version(call: GuardedCall, reply: Begun) -> int:
    """The version of the call's own claim, won now or by a request that was interrupted; 0: the claim is another's."""
    version = 0
    if isinstance(reply, Claimed):
        version = reply.version
    elif isinstance(reply, Existing) and _is_in_flight_for(call, reply.current):
        version = reply.current.version
    approval.recovered(call, version, 0 if isinstance(reply, Pinned) else reply.now_ms)
    return version


def _held(call: GuardedCall, version: int, events: Sequence[Row] = ()) -> Step:
    """The claim is the call's own: write its outcome, if it has one by now."""
    if call.settlement is None:
        return _resettled(call, version)
    return SettleVersion(call.key, version, call.settlement, _resettled, events)


def _is_in_flight_for(call: GuardedCall, record: DedupeRecord) -> bool:
    """Whether the record is this call's own claim."""
    return record.state == "inflight" and is_owned_by(record.owner, call.token, call.template.owner)


def _resettled(call: GuardedCall, version: int | None) -> Step:
    if call.extras.left:
        call.version = version or 0
        return DONE
    call.off_path().was_reread = True
    return settled(call, version)


REREAD_STEPS = frozenset({reread, _lost, reclaimed, _resettled})
"""Takes the replies while a record is written that could not be settled at once."""


def still_not_recorded(call: GuardedCall, error: StoreError) -> Step:
    """The store has failed in the meantime."""
    assert call.settlement is not None
    leave(call, call.settlement, only_events=ONLY_EVENTS in error.data)
    _not_recorded(call, error)
    call.off_path().was_reread = True
    return settled(call, 0)


def _not_recorded(call: GuardedCall, error: StoreError) -> None:
    call.plan.reporter.outage(call, error, False)
    log.warning("the outcome of %s was not recorded: %s", call.plan.name, error)
    call.result().note(notRecorded=error.code)


# -- who must be told ----------------------------------------------------------------------------------------------


def refused(call: GuardedCall, outcome: Outcome) -> Step:
    """Refused at the entrance: turn, loop guard and run are not told."""
    call.outcome = outcome
    call.key = ""
    after_hooks(call, outcome)
    return conclude(call)


def answered(call: GuardedCall, outcome: Outcome) -> Step:
    """Answered without an attempt of its own."""
    call.outcome = outcome
    if outcome.attempts == 0 and call.plan.hooks is not None:
        after_hooks(call, outcome)
    return settled(call, 0)


def after_hooks(call: GuardedCall, outcome: Outcome | None = None) -> None:
    """Tell the hooks the outcome of an attempt, or of the call."""
    hooked, hooks = call.extras.hooked, call.plan.hooks
    if hooked is not None and hooks is not None:
        hooks.after(hooked, outcome or call.result(), lambda: call.plan.results.quoted(call.arguments))


def settled(call: GuardedCall, version: int | None) -> Step:
    """The record is written (0: there is none; ``None``: it is another's by now); tell turn and loop guard."""
    plan, run, turn = call.plan, call.run, call.turn
    if version is None and not plan.pass_through:
        if not call.extras.was_reread:
            return Read(call.key, call.identity, reread)
        plan.reporter.fenced(call)
        call.result().note(fenced=True)
    if version != 0:
        call.version = 0  # the claim has ended
        if run is not None and run.together and not plan.pass_through:
            run.finished = True
    if call.extras is not NO_EXTRAS:
        if call.extras.stream is not None:
            after_hooks(call)
        if call.extras.unprotected or call.extras.loop_note:
            _label(call)
    if plan.off:
        return DONE
    outcome = call.outcome
    if turn is not None and (outcome is None or outcome.code != "denied"):
        turn.identities.add(call.identity)
        if outcome is None or outcome.status == "success":
            turn.succeeded.setdefault(call.pair, call.call_id or call.request_id)
    guard = call.guard
    if guard is not None:
        if outcome is None and plan.bound_loop and call.payload is not None:
            guard.loop.note(call.pair, call.payload)
        else:
            guard.after(call.pair, call.result(), plan.tool.spec.poll)
    if run is not None and run.entered and not run.finished:
        run.finished = True
        rows = (*run.started(call.request_id, call.key, call.call_id), *_end_rows(call))
        if rows:
            return Append(run, rows, conclude)
    return conclude(call)


def _label(call: GuardedCall) -> None:
    """Add the metadata of a call that was not plain."""
    extras = call.extras
    if extras.unprotected:
        call.result().note(unprotected=extras.unprotected)
    if extras.loop_note and call.guard is not None and call.result().status == "success":
        call.result().note(note=extras.loop_note)


def _end_rows(call: GuardedCall) -> tuple[Row, ...]:
    run = call.run
    assert run is not None
    attempts: tuple[Attempt, ...] = call.attempts
    took_ms = (call.plan.monotonic() - call.started) * 1000
    return tuple(run.ended(call.result(), call.payload, took_ms, attempts))


def append_broke_off(call: GuardedCall, error: StoreError) -> Step:
    """The call has ended: its outcome is worth more than its event."""
    append_missed(call, error)
    return conclude(call)


def append_missed(call: GuardedCall, error: StoreError) -> None:
    log.error("events of a call of %s are missing from the run log: %s", call.plan.name, error)
    call.plan.reporter.outage(call, error, False)
    call.result().note(notRecorded=error.code)


def conclude(call: GuardedCall, _: None = None) -> Step:
    """Tell other processes about breakers; tell metrics and listeners about the call."""
    plan, outcome, extras = call.plan, call.outcome, call.extras
    plain = extras is NO_EXTRAS
    if not plain:
        if extras.write is not None:
            extras.write.ended(call)
        if extras.replayed or extras.is_shadow_twin:
            return DONE
        if (ended := extras.ended) is not None:
            extras.ended = None
            ended(call)
    if plan.dirty:
        return _share_breaker(call)
    monotonic, tally = plan.monotonic, plan.tally
    took_ms = (monotonic() - call.started) * 1000
    if outcome is None:
        hit = call.hit
        if hit:
            tally = plan.tallies["success", hit]
        tally(took_ms)
        if plan.on_end:
            reported = None if plain and not hit else call.result()
            plan.reporter.ended(call, reported, took_ms, "tool_call_end", plan.on_end)
    else:
        status = outcome.status
        plan.tallies[status, call.hit](took_ms)
        blocked = status != "success" and outcome.attempts == 0 and not outcome.from_cache
        listeners = plan.on_blocked if blocked else plan.on_end
        if listeners:
            event = "tool_call_blocked" if blocked else "tool_call_end"
            plan.reporter.ended(call, outcome, took_ms, event, listeners)
    if not plain and extras.late is not None:
        extras.late.over.set()
    return DONE


def _share_breaker(call: GuardedCall) -> Step:
    breakers = call.plan.breakers
    try:
        name, breaker = breakers.dirty.popitem()
    except KeyError:  # another thread was faster
        return conclude(call)
    return ShareBreaker(call.plan.results.tenant, breakers.row(name, breaker), conclude)


def not_shared(call: GuardedCall, name: str, error: StoreError) -> Step:
    """The next refresh retries."""
    log.warning("the state of breaker %s could not be shared yet: %s", name, error)
    call.plan.plans.unshared[name] = call.plan.breakers.get(name)
    return conclude(call)
