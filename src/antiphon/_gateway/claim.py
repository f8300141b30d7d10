"""Acts on what ``decide.claim`` says: claim, wait, reuse, take over, or stay away from an unknown outcome."""

from __future__ import annotations

import hashlib
import logging
import sys
from typing import Any, assert_never

from antiphon._gateway import codec
from antiphon._gateway import outcome as outcomes
from antiphon._gateway.attempt import dispatch, renewed
from antiphon._gateway.call import GuardedCall
from antiphon._gateway.context import CallContext
from antiphon._gateway.outcome import Outcome, restored_failure
from antiphon._gateway.owner import certainly_dead
from antiphon._gateway.settlement import answered, not_dispatched, unknown
from antiphon._gateway.steps import BEGIN, Alias, Append, Get, Mark, Put, Read, Reconcile, Renew, Step, TakeOver, Wait
from antiphon.contract._base import UNSET
from antiphon.contract.record import DedupeRecord
from antiphon.contract.spec import DidNotHappen, Happened
from antiphon.decide import claim as rules
from antiphon.errors import StoreError
from antiphon.ports import Claimed, Existing, Settlement

log = logging.getLogger("antiphon.gateway")

_LONGEST_LOOK_S = 5.0


def begin(call: GuardedCall) -> Step:
    """Ask for the claim; the start event goes with it where it can."""
    run = call.run
    if run is not None and run.together and not call.plan.watched_only:
        call.events = run.started(call.request_id, call.key, call.call_id)
    return BEGIN


def start_unclaimed(call: GuardedCall) -> Step:
    """Dispatch without a claim; the start event is written by itself."""
    run = call.run
    if run is None:
        return dispatch(call)
    return Append(run, run.started(call.request_id, call.key, call.call_id), _started)


def _started(call: GuardedCall, _: None) -> Step:
    assert call.run is not None
    call.run.begun()
    return dispatch(call)


def claimed(call: GuardedCall, reply: Claimed | Existing) -> Step:
    """The claim is ours, or somebody else's record decides."""
    if reply.__class__ is not Claimed:
        return _decide(call, reply)  # type: ignore[arg-type]
    call.version = reply[0]
    plan, run = call.plan, call.run
    if plan.watched_only:
        return start_unclaimed(call)
    if run is not None:
        if not run.together:
            return start_unclaimed(call)
        run.begun()
    if plan.shared and plan.monotonic() - call.started > plan.renew_every:  # it may have been away: make sure
        return Renew(call.key, call.version, plan.lease_ms, renewed)
    return dispatch(call)


def looked(call: GuardedCall, reply: Existing | None) -> Step:
    """What is there now."""
    refusal = call.extras.refusal
    if refusal is None:
        return begin(call) if reply is None else _decide(call, reply)
    decision = None if reply is None else rules.decide(reply, _claimant(call))
    if reply is None or not isinstance(decision, rules.Reuse):
        return answered(call, refusal)
    extras = call.extras
    extras.found, extras.matched_on, extras.shared = decision
    extras.found_at_ms = reply.now_ms
    return _reused(call)  # the store is only read


def _claimant(call: GuardedCall) -> rules.Claimant:
    """What the rules need to know of the call."""
    policy = call.policy
    given = policy.given_key is not None
    digest = _digest(call.params) if given else ""
    best = policy.mode == "bestEffort"
    waited = call.extras.waited_for
    return rules.Claimant(call.identity, digest, call.plan.idempotent, given, best, policy.reuse, waited)


def _digest(params: bytes | tuple[str, str]) -> str:
    return hashlib.sha256(params).hexdigest() if isinstance(params, bytes) else params[0]


def _decide(call: GuardedCall, got: Existing) -> Step:
    """Act on the table."""
    decision = rules.decide(got, _claimant(call))
    plan, name = call.plan, call.plan.name
    if plan.watched_only:
        return _watched(call, decision)
    if isinstance(decision, (rules.Wait, rules.Busy)) and certainly_dead(got.current.owner):
        decision = rules.decide(got, _claimant(call)._replace(owner_gone=True))
    match decision:
        case rules.Run(version):
            begin(call)
            return TakeOver(call, version, call.events, claimed)
        case rules.Reuse():
            return _reuse(call, decision, got)
        case rules.Wait(version, left_ms):
            return _wait(call, version, left_ms / 1000)
        case rules.Busy():
            return answered(call, outcomes.in_flight(name, "the call asked not to wait"))
        case rules.Conflict(found) if plan.tool.spec.on_conflict != "independent":
            plan.reporter.conflict(call)
            return answered(call, outcomes.conflict(found.tool))
        case rules.Conflict():
            call.key = f"{call.key}.{call.pair[1][:32]}"
            return Read(call.key, call.identity, looked)
        case rules.Unknown(found, mark):
            return _unknown(call, found, mark, found.version == got.current.version)
        case _:
            assert_never(decision)


def _watched(call: GuardedCall, decision: rules.Decision) -> Step:
    """In shadow mode the decision is only noted."""
    if isinstance(decision, rules.Run):
        return TakeOver(call, decision.version, (), claimed)
    call.off_path().verdict = type(decision).__name__.lower()
    return start_unclaimed(call)


# -- waiting -------------------------------------------------------------------------------------------------------


def _wait(call: GuardedCall, version: int, seconds: float) -> Step:
    """Wait for *version* to settle; the store wakes the waiter, which also looks by itself now and then."""
    plan, extras, deadline = call.plan, call.off_path(), call.policy.deadline
    if plan.plans.inline_kind == "sync" and _in_event_loop():
        why = "a synchronous gateway does not wait inside an event loop"
        return answered(call, outcomes.in_flight(plan.name, why))
    extras.waited_for = extras.waited_for or version
    seconds, extras.look_s = min(seconds, extras.look_s), min(extras.look_s * 2, _LONGEST_LOOK_S)
    if deadline is not None:
        seconds = min(seconds, deadline - plan.monotonic())
        if seconds <= 0:
            return answered(call, outcomes.in_flight(plan.name, "the deadline came first"))
    return Wait(call.key, version, seconds, _woken)


def _woken(call: GuardedCall, _: None) -> Step:
    return Read(call.key, call.identity, looked)


def _in_event_loop() -> bool:
    asyncio = sys.modules.get("asyncio")
    return asyncio is not None and asyncio._get_running_loop() is not None


# -- answers from a record -----------------------------------------------------------------------------------------


def _reuse(call: GuardedCall, decision: rules.Reuse, got: Existing) -> Step:
    """Answer from a record; a redelivery of this very call should find the same one."""
    extras = call.off_path()
    found, matched_on, shared = extras.found, extras.matched_on, extras.shared = decision
    extras.found_at_ms = got.now_ms
    lasts = call.policy.reuse == "session" and matched_on != "inflight" and got.own is None  # anybody finds it
    if shared and found.state == "done" and not lasts:
        return Alias(call.key, call.identity, found.version, _aliased)
    return _reused(call)


def _aliased(call: GuardedCall, done: bool) -> Step:
    return _reused(call) if done else Read(call.key, call.identity, looked_at_alias)


def looked_at_alias(call: GuardedCall, got: Existing | None) -> Step:
    """Not if another delivery was faster, and runs or was given something else: then that is the answer."""
    found = call.extras.found
    assert found is not None
    if got is None or got.own is None or got.own.version == found.version:
        return _reused(call)
    call.outcome = None
    return Read(call.key, call.identity, looked)


def not_remembered(call: GuardedCall, error: StoreError) -> Step:
    """The answer stands; only its redelivery may be answered anew."""
    log.warning("the shared answer of %s was not remembered: %s", call.plan.name, error)
    return _reused(call)


def _reused(call: GuardedCall) -> Step:
    """The answer of a record; what it keeps elsewhere has to be fetched."""
    found, plan = call.extras.found, call.plan
    assert found is not None
    if call.outcome is not None:  # reconcile found it
        return answered(call, call.outcome)
    if found.state != "done":
        return _answer(call, restored_failure(found))
    if found.payload_ref is UNSET:
        return _answer(call, plan.results.restore(plan.tool, found, None))
    try:
        return Get(plan.results.required_blobs(), plan.results.tenant, plan.results.ref_of(found), _fetched)
    except StoreError as error:
        return not_readable(call, error)


def _fetched(call: GuardedCall, blob: bytes) -> Step:
    found, plan = call.extras.found, call.plan
    assert found is not None
    return _answer(call, plan.results.restore(plan.tool, found, blob))


def not_readable(call: GuardedCall, error: Exception) -> Step:
    """The blob store does not give the result: the call is done all the same."""
    from antiphon._gateway.result_store import unreadable

    return _answer(call, unreadable(call.plan.name, error))


def _answer(call: GuardedCall, outcome: Outcome) -> Step:
    """The answer of a record, labelled."""
    extras = call.extras
    found, matched_on = extras.found, extras.matched_on
    assert found is not None
    outcome.from_cache = True
    outcome.matched_on = matched_on
    outcome.age_ms = age_ms = extras.found_at_ms - found.updated_at_ms
    if extras.shared:
        label = {"reused": True, "from": "an equal call", "matchedOn": matched_on, "ageMs": max(0, age_ms)}
        outcome.metadata = label if outcome.metadata is None else {**outcome.metadata, **label}
    if call.run is not None:
        call.run.decide("reused", {"state": found.state}, {"matchedOn": matched_on, "ageMs": outcome.age_ms})
    call.plan.reporter.hit(call, "inflight" if matched_on == "inflight" else found.state)
    return answered(call, outcome)


# -- unknown outcomes ----------------------------------------------------------------------------------------------


def _unknown(call: GuardedCall, found: DedupeRecord, mark: bool, current: bool) -> Step:
    """An earlier dispatch may have happened: settle what can be settled."""
    extras, tool = call.off_path(), call.plan.tool
    extras.waited_for = extras.waited_for or found.version  # what it turns out to be is this call's answer, too
    if not current or (not mark and tool.spec.reconcile is None):
        return still_unknown(call)
    extras.found, extras.matched_on, extras.shared = found, "completed", False
    if mark:
        settlement = unknown(call, "its worker was lost")._replace(attempts=(), attempt_count=1)
        return Mark(call.key, found.version, settlement, _marked)  # the store may have found the outcome in its log
    arguments: tuple[Any, ...] = (dict(call.arguments),)
    if tool.reconcile_wants_context:
        request = found.request
        call_id = None if request.tool_call_id is UNSET else request.tool_call_id
        who = (request.request_id, call_id, request.session_key, request.actor_id)
        arguments += (CallContext(call.plan.name, found.idempotency_key, found.fence, None, 0, *who),)
    assert tool.spec.reconcile is not None
    return Reconcile(tool.spec.reconcile, arguments, _reconciled)


def still_unknown(call: GuardedCall) -> Step:
    return answered(call, outcomes.still_unknown(call.plan.name, call.fingerprint))


def _reconciled(call: GuardedCall, answer: Any) -> Step:
    """What the tool's own read-back says."""
    found, plan = call.extras.found, call.plan
    assert found is not None
    if answer is None:
        return still_unknown(call)
    if answer is False or isinstance(answer, DidNotHappen):
        return Mark(call.key, found.version, not_dispatched(call), _marked)
    value = answer.value if isinstance(answer, Happened) else None if answer is True else answer
    outcome = call.outcome = Outcome("success", value)
    outcome.from_cache, outcome.metadata = True, {"reconciled": True}
    settlement, spilled = Settlement("done", plan.ttl_ms, attempt_count=1), None
    try:
        payload = outcome.payload = codec.encode(value)
        settlement, spilled = plan.results.keep(call.key, settlement, payload, plan.tool.streams)
    except codec.NotSerialisable as error:
        outcome.note(payload=f"not kept ({error})")
    call.settlement = settlement
    if spilled is not None:
        return Put(plan.results.required_blobs(), plan.results.tenant, spilled, _reconciled_kept)
    return Mark(call.key, found.version, settlement, _marked)


def _reconciled_kept(call: GuardedCall, ref: str) -> Step:
    found = call.extras.found
    assert found is not None and call.settlement is not None
    return Mark(call.key, found.version, call.plan.results.placed(call.settlement, ref), _marked)


def _marked(call: GuardedCall, version: int | None) -> Step:
    """Look again, unless the read-back found the result and it is kept now."""
    found, outcome = call.extras.found, call.outcome
    assert found is not None
    if outcome is None or version is None:
        call.outcome = None
        return Read(call.key, call.identity, looked)
    if found.request.identity == call.identity:
        return answered(call, outcome)
    call.extras.found = _settled_as(found, version)
    return Alias(call.key, call.identity, version, _aliased)


def _settled_as(found: DedupeRecord, version: int) -> DedupeRecord:
    import msgspec

    return msgspec.structs.replace(found, version=version)
