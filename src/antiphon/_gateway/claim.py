"""Acts on the decisions of ``decide.claim``: claim, wait, reuse, take over, or leave an unknown outcome alone."""

from __future__ import annotations

import hashlib
import logging
import sys
from copy import copy
from functools import partial
from typing import Any, assert_never

from msgspec.structs import replace

from antiphon._gateway import approval, codec
from antiphon._gateway import outcome as outcomes
from antiphon._gateway.approval_rule import ApprovalState
from antiphon._gateway.attempt import dispatch, renewed
from antiphon._gateway.call import NO_EXTRAS, GuardedCall
from antiphon._gateway.context import CallContext, is_held
from antiphon._gateway.outcome import Outcome, restored_failure
from antiphon._gateway.owner import certainly_dead, is_of_process
from antiphon._gateway.plan import Place, Verdict
from antiphon._gateway.result_store import NO_PAYLOAD, NOT_NOW, NOT_READABLE
from antiphon._gateway.settlement import answered, not_dispatched, settled, unknown
from antiphon._gateway.steps import (
    BEGIN,
    Alias,
    Append,
    Audit,
    Consult,
    Get,
    Put,
    Read,
    Reconcile,
    Renew,
    SettleVersion,
    Sleep,
    Step,
    TakeOver,
    Then,
    Wait,
)
from antiphon._gateway.threads import is_waited_for
from antiphon._gateway.tool import Tool
from antiphon._late import traceback_of
from antiphon.contract._base import UNSET
from antiphon.contract.approval import DENIED, GRANTED, Approval
from antiphon.contract.record import DedupeRecord
from antiphon.contract.spec import DidNotHappen, Happened
from antiphon.decide import claim as rules
from antiphon.decide.breaker import Refusal
from antiphon.errors import AntiphonError, StoreError, StoreUnavailable
from antiphon.keys import KeyMaker
from antiphon.ports import Begun, Claimed, Existing, Pinned, Settlement

log = logging.getLogger("antiphon.gateway")

_LONGEST_POLL_S = 5.0
_LONGEST_PAUSE_S = 1.0
_MOST_REFUSALS = 32
_IN_FLIGHT = (rules.Wait, rules.Busy)
_LONG_WAIT = (
    "a call of %s has waited for more than %.0f s for an equal call that is in flight, and is still waiting: key %s, "
    "owner %s. Its worker is slow, hangs, or waits in turn for a call of this process. To see it: antiphon claims list "
    "--state inflight"
)


def begin_named(call: GuardedCall) -> Step:
    """Request the claim of a call that has an id or a position in a run; a record of 0.1.0 may be somewhere else."""
    before = call.options.before
    if before is None:
        return _begin_by_id(call)
    past = copy(call)
    _move(past, (*call.place[:2], before.workspace))
    return Read(past.key, past.identity, lambda call, reply: _found_before(call, past, before.shared, reply))


def _move(call: GuardedCall, place: Place) -> None:
    """Give a call the keys that it has in another workspace."""
    plan, given = call.plan, call.policy.given_key
    maker, call.template = plan.known_keys.get(place) or plan.make_keys(place)
    call.place = place
    if given is not None:
        derive_given(call, maker, given)
    else:
        call.key, call.idempotency_key, digest, exact, _ = maker.keys(call.arguments)
        call.pair, call.params = (plan.name, call.key), (digest, exact)


def derive_given(call: GuardedCall, maker: KeyMaker, given_key: str) -> None:
    """Derive the keys of a call whose caller or hook gave one: that key alone is its identity (D2)."""
    key, named, digest, given, _ = maker.keys_given(call.arguments, given_key, call.options.keyed)
    call.key = call.identity = key
    call.idempotency_key = call.plan.results.kept_key(key, named, call.arguments)
    call.pair = (call.plan.name, digest)
    call.params = (digest, given)


def _found_before(call: GuardedCall, past: GuardedCall, shared: bool, reply: Existing | None) -> Step:
    """Continue where release 0.1.0 kept the record of this call, if it did."""
    if reply is not None:
        request = (reply.own or reply.current).request
        same = request.request_id == call.request_id or (call.call_id or UNSET) == request.tool_call_id
        if same or not shared:
            _move(call, past.place)
    return _begin_by_id(call)


def _begin_by_id(call: GuardedCall) -> Step:
    """The id of a call is valid for one set of arguments, unless a key says what the call is about."""
    plan, by_id = call.plan, call.options.by_id
    named = call.call_id is not None if by_id is None else by_id
    if named and call.policy.given_key is None and plan.tool.spec.on_conflict != "independent":
        maker, _ = plan.known_keys.get(call.place) or plan.make_keys(call.place)
        counted_in = call.options.counted_in
        name = maker.call_name(f"{counted_in}:{call.identity}" if counted_in else call.identity)
        call.pin = (name, int(call.key[:15], 16))
    return begin(call)


def begin(call: GuardedCall) -> Step:
    """Request the claim; the start event goes with it where possible."""
    run = call.run
    if run is not None and run.together and not call.plan.pass_through:
        call.events = run.started(call.request_id, call.key, call.call_id)
    return BEGIN


def start_unclaimed(call: GuardedCall) -> Step:
    """Dispatch without a claim; the start event is written separately."""
    run = call.run
    if run is None:
        return dispatch(call)
    return Append(run, run.started(call.request_id, call.key, call.call_id), _started)


def _started(call: GuardedCall, _: None) -> Step:
    assert call.run is not None
    call.run.begun()
    return dispatch(call)


def claimed(call: GuardedCall, reply: Begun) -> Step:
    """The claim is ours, or somebody else's record decides."""
    if type(reply) is not Claimed:
        if call.extras.approval_state is not None:  # what follows the approval it meant to spend is not that approval
            call.extras.approval_state.spending = None
        return _pinned(call) if type(reply) is Pinned else _decide(call, reply)  # type: ignore[arg-type]
    call.version = reply[0]
    plan, run = call.plan, call.run
    if call.extras is not NO_EXTRAS:
        call.extras.claimed = plan.monotonic()
    if plan.pass_through:
        return start_unclaimed(call)
    if run is not None and run.together:
        run.begun()
    if (
        plan.approval_rule is not None
        and call.extras.approval_state is not None
        and not _approved(call, call.extras.approval_state, reply)
    ):
        return _ask_person(call, reply.now_ms)
    if run is not None and not run.together:
        return start_unclaimed(call)
    if plan.shared and plan.monotonic() - call.started > plan.renew_every:  # it may have stalled: verify the claim
        return Renew(call.key, call.version, plan.lease_ms, renewed)
    return dispatch(call)


def _pinned(call: GuardedCall) -> Step:
    """Its id belongs to another call."""
    call.plan.reporter.conflict(call)
    return answered(call, outcomes.id_conflict(call.plan.name, call.call_id or call.request_id))


def on_record(call: GuardedCall, reply: Existing | None) -> Step:
    """Act on the record that is there now."""
    refusal = call.refusal
    if refusal is None:
        return begin(call) if reply is None else _decide(call, reply)
    if reply is None:
        return held_back(call, refusal)
    match rules.decide(reply, _claimant(call)):  # the store is only read
        case rules.Reuse() as reuse:
            call.reuse, call.reused_at_ms = reuse, reply.now_ms
            return _reused(call)
        case rules.Unknown():  # "not called" would be wrong
            return still_unknown(call)
        case rules.Wait() | rules.Busy():
            return _in_flight(call, reply.current, "calls are held back, so it is not waited for")
        case _:
            return held_back(call, refusal)


def held_back(call: GuardedCall, refusal: Refusal) -> Step:
    """No record has a better answer than the open breaker."""
    return answered(call, outcomes.circuit_open(call.plan.name, refusal))


def _claimant(call: GuardedCall) -> rules.Claimant:
    """What the rules need to know of the call."""
    policy, extras = call.policy, call.extras
    claimant = rules.Claimant(call.identity, *policy.claim_terms)
    if policy.given_key is not None:
        claimant = replace(claimant, params_digest=_digest(call.params), given_key=True, gate_ms=0)
    if extras is not NO_EXTRAS:
        state = extras.approval_state
        requirement, waits = (None, False) if state is None else (state.requirement, state.until > 0)
        claimant = replace(claimant, waited_for=extras.waited_for, requirement=requirement, waits_for_person=waits)
    return claimant


def _digest(params: bytes | tuple[str, str]) -> str:
    return hashlib.sha256(params).hexdigest() if isinstance(params, bytes) else params[0]


def _decide(call: GuardedCall, got: Existing) -> Step:
    """Act on the decision table."""
    plan, claimant = call.plan, _claimant(call)
    decision = rules.decide(got, claimant)
    if plan.pass_through:
        return _watched(call, decision)
    if isinstance(decision, _IN_FLIGHT) and certainly_dead(got.current.owner):
        decision = rules.decide(got, replace(claimant, owner_gone=True))
    match decision:
        case rules.Reuse():
            return _reuse(call, decision, got)
        case rules.Run(version) | rules.Ask(version):
            return _take(call, version)
        case rules.Spend(version, found):
            return _spend(call, version, found, got.now_ms)
        case rules.Pending(version, found):
            return _pending(call, version, found)
        case rules.Replaced(_, found):
            return _wait_for_person(call, found)
        case rules.Wait(_, left_ms):
            ours = is_of_process(got.current.owner, call.template.owner)
            if is_held(call.key) or (ours and is_waited_for(call.key)):
                return answered(call, outcomes.reentrant(plan.name))
            return _wait(call, got.current, left_ms / 1000)
        case rules.Busy():
            return _in_flight(call, got.current, "the call does not wait")
        case rules.Conflict(record) if plan.tool.spec.on_conflict != "independent":
            plan.reporter.conflict(call)
            return answered(call, outcomes.conflict(record.tool))
        case rules.Conflict():
            call.key = f"{call.key}.{call.pair[1][:32]}"
            return Read(call.key, call.identity, on_record)
        case rules.Undone():
            return answered(call, outcomes.undone(plan.name))
        case rules.Unknown(record, mark):
            return _unknown(call, record, mark, record.version == got.current.version)
        case _:
            assert_never(decision)


def _take(call: GuardedCall, version: int) -> Step:
    """Replace the record that was read."""
    begin(call)
    return TakeOver(call, version, call.events, partial(_taken, version))


def _taken(version: int, call: GuardedCall, reply: Begun) -> Step:
    """The claim is ours; otherwise the record found there decides, possibly the same one again."""
    if type(reply) is Existing and reply.current.version == version and (refused := refused_again(call)) is not None:
        return refused
    return claimed(call, reply)


def refused_again(call: GuardedCall) -> Step | None:
    """Give the call up if the store keeps refusing what its own replies request.

    A faster call causes one or two refusals, and then the rules decide differently.
    """
    extras = call.off_path()
    extras.refusals += 1
    if extras.refusals <= _MOST_REFUSALS:
        return None
    if call.plan.pass_through:
        return start_unclaimed(call)
    log.error("the store contradicts itself about a call of %s: key %s", call.plan.name, call.fingerprint)
    return answered(call, outcomes.contradicted(call.plan.name, _MOST_REFUSALS))


def _watched(call: GuardedCall, decision: rules.Decision) -> Step:
    """In shadow mode the decision is only noted."""
    if isinstance(decision, rules.Run):
        return _take(call, decision.version)
    call.off_path().verdict = type(decision).__name__.lower()
    return start_unclaimed(call)


# -- waiting -------------------------------------------------------------------------------------------------------


def _wait(call: GuardedCall, found: DedupeRecord, seconds: float) -> Step:
    """Wait for *found* to settle; the store notifies the waiter, which also polls now and then."""
    plan, extras, deadline = call.plan, call.off_path(), call.policy.deadline
    if plan.plans.inline_kind == "sync" and _in_event_loop():
        return _in_flight(call, found, "a synchronous gateway does not wait inside an event loop")
    extras.waited_for = extras.waited_for or found.version
    seconds = min(seconds, extras.poll_interval_s)
    extras.poll_interval_s = min(extras.poll_interval_s * 2, _LONGEST_POLL_S)
    if deadline is not None:
        seconds = min(seconds, deadline - plan.monotonic())
        if seconds <= 0:
            return _in_flight(call, found, "the deadline passed first")
    if not extras.waits_long and plan.monotonic() - call.started >= plan.lease_ms / 1000:
        extras.waits_long = True
        log.warning(_LONG_WAIT, plan.name, plan.lease_ms / 1000, call.fingerprint, found.owner)
    return Wait(call.key, found.version, seconds, _woken)


def _in_flight(call: GuardedCall, found: DedupeRecord, why: str) -> Step:
    """Say that *found* is in flight; it is this very call if its identity is the same."""
    redelivered = found.request.identity == call.identity
    return answered(call, outcomes.in_flight(call.plan.name, why, redelivered=redelivered))


def _woken(call: GuardedCall, _: None) -> Step:
    return Read(call.key, call.identity, on_record)


def _in_event_loop() -> bool:
    asyncio = sys.modules.get("asyncio")
    return asyncio is not None and asyncio._get_running_loop() is not None


# -- approval ------------------------------------------------------------------------------------------------------


def _spend(call: GuardedCall, version: int, found: Approval, now_ms: int) -> Step:
    """Replace the approval by the claim in flight: the first call to do so has spent it."""
    if call.options.only_asks:
        return answered(call, approval.is_granted(found))
    state = call.extras.approval_state
    assert state is not None
    state.spending, state.seen_ms = found, now_ms
    return _take(call, version)


def _approved(call: GuardedCall, state: ApprovalState, reply: Claimed) -> bool:
    """Whether the claim that was just won is backed by an approval."""
    good = approval.is_good(call, state, reply.now_ms)
    state.spent, state.spending = state.spending if good else None, None
    if state.spent is None:
        return False
    if call.run is not None:
        detail = {"decision": "approved", "policy": state.spent.policy}
        call.run.decide("approval", detail, {"approvalId": state.spent.id, "by": state.spent.decided_by})
    return True


def _ask_person(call: GuardedCall, now_ms: int) -> Step:
    """Turn the claim into a pending approval; nothing is dispatched."""
    state = call.extras.approval_state
    assert state is not None
    state.approval, settlement = approval.new_request(call, now_ms)
    return SettleVersion(call.key, call.version, settlement, _person_asked)


def _person_asked(call: GuardedCall, version: int | None) -> Step:
    """The approval is pending; those who decide are notified."""
    call.version = 0
    state = call.extras.approval_state
    assert state is not None and state.approval is not None
    if version is None:
        return _read_again(call, None)
    state.is_new = True
    call.plan.reporter.approval(call, "approval.requested", approval.view(call, state.approval))
    return _pending(call, version, state.approval)


def _pending(call: GuardedCall, version: int, found: Approval) -> Step:
    """Let the approver of the tool decide, or wait for a person, or say that one is needed."""
    plan, state = call.plan, call.extras.approval_state
    approval_rule = plan.approval_rule
    assert approval_rule is not None and state is not None
    state.approval = found
    verdict, shown_in = call.options.verdict, call.options.shown_in
    if verdict is not None and not state.consulted and approval.applies(verdict, state, found):
        state.consulted = True
        return _decide_on(call, version, verdict)
    if shown_in and found.shown_in != shown_in and not state.is_new:  # the people there were shown nothing
        return _take(call, version)
    if approval_rule.approver is not None and not state.consulted:
        state.consulted = True
        arguments = ({**approval.view(call, found), "arguments": dict(call.arguments)},)
        return Consult(approval_rule.approver, arguments, lambda call, answer: _consulted(call, version, answer))
    return _wait_for_person(call, found)


def _wait_for_person(call: GuardedCall, found: Approval) -> Step:
    """Wait for the decision, or say that a person is needed."""
    plan, state = call.plan, call.extras.approval_state
    assert plan.approval_rule is not None and state is not None
    now = plan.monotonic()
    state.until = state.until or now + plan.approval_rule.wait_s
    until = state.until if call.policy.deadline is None else min(state.until, call.policy.deadline)
    if now >= until or (plan.plans.inline_kind == "sync" and _in_event_loop()):
        return answered(call, approval.required(call, found))
    seconds, state.pause_s = min(until - now, state.pause_s), min(state.pause_s * 2, _LONGEST_PAUSE_S)
    return Sleep(seconds, _woken)  # a store notifies only those who wait for a claim in flight, and this one is not


def _consulted(call: GuardedCall, version: int, answer: Any) -> Step:
    """Act on the approver's answer; ``None`` leaves the decision to people."""
    state, plan = call.extras.approval_state, call.plan
    assert state is not None and state.approval is not None and plan.approval_rule is not None
    if answer is not True and answer is not False:
        if answer is not None:
            log.error("the approver of %s must return True, False or None, not %s", plan.name, _kind(answer))
        return _pending(call, version, state.approval)
    by = getattr(plan.approval_rule.approver, "__qualname__", "approver")
    return _decide_on(call, version, Verdict(answer, by, "approver"))


def _decide_on(call: GuardedCall, version: int, verdict: Verdict) -> Step:
    """Write the decision to the record, then to the audit log."""
    state, now_ms = call.extras.approval_state, call.plan.now_ms()
    assert state is not None and state.approval is not None
    found = state.approval
    code, reason = GRANTED if verdict.approve else DENIED, call.plan.results.clean(verdict.reason)
    made = approval.decided(found, code, by=verdict.by, at_ms=now_ms, where=verdict.where, reason=reason)

    def noted(call: GuardedCall, settled: int | None) -> Step:
        if settled is None:  # somebody else was first
            return _read_again(call, None)
        return Audit(*approval.audited(call, found, code, verdict, now_ms), _read_again)

    return SettleVersion(call.key, version, made, noted)


def not_decided(call: GuardedCall) -> Step:
    """The approver failed: people have to decide."""
    state = call.extras.approval_state
    assert state is not None and state.approval is not None
    return answered(call, approval.required(call, state.approval))


# -- answers from a record -----------------------------------------------------------------------------------------


def _reuse(call: GuardedCall, decision: rules.Reuse, got: Existing) -> Step:
    """Answer from a record; a redelivery of this very call should find the same one."""
    call.reuse, call.reused_at_ms = decision, got[2]
    if decision.shared and decision.record.state == "done":
        lasts = call.policy.reuse == "session" and decision.matched_on != "inflight" and got[1] is None
        if not lasts:  # otherwise everybody finds it
            return Alias(call.key, call.identity, decision.record.version, aliased)
    return _reused(call)


def aliased(call: GuardedCall, done: bool) -> Step:
    return _reused(call) if done else Read(call.key, call.identity, looked_at_alias)


def looked_at_alias(call: GuardedCall, got: Existing | None) -> Step:
    """Answer, unless another delivery was faster and runs or got another answer: then its record decides."""
    if got is None or got.own is None or got.own.version == _found(call).version:
        return _reused(call)
    call.outcome = None
    return Read(call.key, call.identity, on_record)


def not_remembered(call: GuardedCall, error: StoreError) -> Step:
    """The answer stands; at worst, a redelivery is not answered from the same record."""
    log.warning("the shared answer of %s was not remembered: %s", call.plan.name, error)
    return _reused(call)


def _found(call: GuardedCall) -> DedupeRecord:
    """The record that answers."""
    assert call.reuse is not None
    return call.reuse.record


def _reused(call: GuardedCall) -> Step:
    """Answer from the record; a result stored elsewhere has to be fetched."""
    if call.outcome is not None:  # reconcile found it
        return answered(call, call.outcome)
    found = _found(call)
    if found.state != "done":
        _hit(call, found)
        outcome = restored_failure(found)
        call.label(outcome)
        return answered(call, outcome)
    if found.error is not UNSET and rules.is_resolution(found):  # make it final, then look again
        return SettleVersion(call.key, found.version, _served_settlement(found), _read_again)
    if found.payload_ref is UNSET:
        return _given(call, None)
    results = call.plan.results
    try:
        return Get(results.required_blobs(), results.tenant, results.ref_of(found), _given)
    except StoreError as error:
        return not_readable(call, error)


def _served_settlement(found: DedupeRecord) -> Settlement:
    """An operator's settlement, final from now on: a call gets it as its answer."""
    payload = None if found.payload is UNSET else bytes(found.payload)
    return Settlement("done", found.ttl_ms, payload=payload, error=rules.SERVED)


def _given(call: GuardedCall, blob: bytes | None) -> Step:
    """Answer with the stored result of a record."""
    found, plan = _found(call), call.plan
    try:
        call.payload = payload = plan.results.kept(found, blob)
        call.value = None if payload is None else plan.tool.decode(payload)
    except Exception as error:
        return not_readable(call, error)
    _hit(call, found)
    if payload is None:
        call.result().note(payload=NO_PAYLOAD)
    elif found.output_redacted is True:
        call.result().note(outputRedacted=True)
    elif not plan.tool.streams:
        hooked = None if call.extras is NO_EXTRAS else call.extras.hooked
        return settled(call, 0) if hooked is None else answered(call, call.result())
    return answered(call, call.result())


def not_readable(call: GuardedCall, error: Exception) -> Step:
    """The result cannot be read, but the call is done."""
    log.error("the kept result of %s cannot be read\n%s", call.plan.name, traceback_of(error))
    call.value = call.payload = None
    _hit(call, _found(call))
    why = f"{error.message} {error.hint}".strip() if isinstance(error, AntiphonError) else type(error).__name__
    call.result().note(payload=f"{NOT_NOW if isinstance(error, StoreUnavailable) else NOT_READABLE} {why}")
    return answered(call, call.result())


def _hit(call: GuardedCall, found: DedupeRecord) -> None:
    """A record answers."""
    assert call.reuse is not None
    matched_on = call.reuse.matched_on
    call.hit = found.state if matched_on != "inflight" else matched_on
    if call.run is not None:
        age_ms = call.reused_at_ms - found.updated_at_ms
        call.run.decide("reused", {"state": found.state}, {"matchedOn": matched_on, "ageMs": age_ms})


# -- unknown outcomes ----------------------------------------------------------------------------------------------


def _unknown(call: GuardedCall, found: DedupeRecord, mark: bool, current: bool) -> Step:
    """An earlier dispatch may have happened: settle what can be settled."""
    extras, tool = call.off_path(), call.plan.tool
    if current:
        extras.waited_for = extras.waited_for or found.version  # what it turns out to be is this call's answer, too
    if not mark and tool.spec.reconcile is None:
        return still_unknown(call)
    call.reuse = rules.Reuse(found, "completed", shared=False)
    if mark:
        settlement = unknown(call, "its worker was lost")._replace(attempts=(), attempt_count=1)
        settlement = approval.kept_by(found, settlement)
        # the store may have found the outcome in its log
        return SettleVersion(call.key, found.version, settlement, _read_again)
    return read_back(call, tool, call.arguments, found, _reconciled)


def read_back(call: GuardedCall, tool: Tool, given: dict[str, Any], found: DedupeRecord, then: Then) -> Reconcile:
    """Ask the tool's own read-back for the outcome of the call that *found* is the record of."""
    arguments: tuple[Any, ...] = (dict(given),)
    if tool.reconcile_wants_context:
        request = found.request
        call_id = None if request.tool_call_id is UNSET else request.tool_call_id
        who = (request.request_id, call_id, request.session_key, request.actor_id)
        key = call.plan.results.given_key(found)
        arguments += (CallContext(tool.full_name, key, found.fence, None, 0, *who),)
    assert tool.spec.reconcile is not None
    return Reconcile(tool.spec.reconcile, arguments, then)


def still_unknown(call: GuardedCall) -> Step:
    return answered(call, unknown_outcome(call, call.plan.name, call.key))


def unknown_outcome(call: GuardedCall, tool: str, key: str) -> Outcome:
    """Nobody knows the outcome of the call that has *key*."""
    fingerprints = call.plan.plans.fingerprints
    return outcomes.still_unknown(tool, fingerprints.of(key) if fingerprints.last else None)


def _reconciled(call: GuardedCall, answer: Any) -> Step:
    """Act on the answer of the tool's own read-back."""
    found, plan = _found(call), call.plan
    if answer is None:
        return still_unknown(call)
    if isinstance(answer, DidNotHappen):
        return SettleVersion(call.key, found.version, approval.kept_by(found, not_dispatched(call)), _resolved)
    if not isinstance(answer, Happened):
        return _misunderstood(call, answer)
    value = answer.value
    if plan.tool.streams:
        if not isinstance(value, (list, tuple)):
            return _wrong_answer(
                call, f"must return Happened([chunk, …]), as it streams, not Happened({_kind(value)})."
            )
        value = list(value)
    outcome = call.outcome = Outcome("success", value)
    outcome.from_cache, outcome.metadata = True, {"reconciled": True}
    settlement, spilled = Settlement("done", plan.ttl_ms, attempt_count=1), None
    try:
        payload = outcome.payload = codec.encode(value, plan.tool.decode)
        settlement, spilled = plan.results.keep(call.key, settlement, payload, plan.tool.streams)
    except codec.NotSerialisable as error:
        outcome.note(payload=f"not kept ({error})")
    call.settlement = settlement
    if spilled is not None:
        return Put(plan.results.required_blobs(), plan.results.tenant, spilled, _reconciled_kept)
    return SettleVersion(call.key, found.version, settlement, _resolved)


def _misunderstood(call: GuardedCall, answer: Any) -> Step:
    """The answer of the read-back says neither."""
    name = answer.__name__ if isinstance(answer, type) else _kind(answer)
    hint = " (the class: write it with parentheses)" if isinstance(answer, type) else ""
    return _wrong_answer(call, f"must return Happened(value), DidNotHappen() or None, not {name}{hint}.")


def _wrong_answer(call: GuardedCall, why: str) -> Step:
    """The read-back has a bug: nothing is settled by its answer."""
    outcome = unknown_outcome(call, call.plan.name, call.key)
    outcome.exception = TypeError(f"reconcile of {call.plan.name} {why}")
    outcome.message = f"{outcome.exception} {outcome.message}"
    return answered(call, outcome)


def _kind(value: Any) -> str:
    return type(value).__name__


def _reconciled_kept(call: GuardedCall, ref: str) -> Step:
    assert call.settlement is not None
    return SettleVersion(call.key, _found(call).version, call.plan.results.placed(call.settlement, ref), _resolved)


def _read_again(call: GuardedCall, version: int | None) -> Step:
    refused = None if version is not None else refused_again(call)
    return refused or Read(call.key, call.identity, on_record)


def _resolved(call: GuardedCall, version: int | None) -> Step:
    """Read the record again, unless the read-back found the result and it is stored now."""
    found, outcome = _found(call), call.outcome
    if version is None:
        return Read(call.key, call.identity, _not_kept)
    if outcome is None:
        return Read(call.key, call.identity, on_record)
    if found.request.identity == call.identity:
        return answered(call, outcome)
    call.reuse = rules.Reuse(replace(found, version=version), "completed", shared=False)
    return Alias(call.key, call.identity, version, aliased)


def _not_kept(call: GuardedCall, got: Existing | None) -> Step:
    """It is settled by now; or others have followed it, and the read-back's answer still counts."""
    version = _found(call).version
    if got is None or version not in (got.current.version, got.own and got.own.version):
        call.outcome = None
        return on_record(call, got)
    if call.outcome is not None:
        return answered(call, call.outcome)
    return _take(call, version) if got.current.version == version else still_unknown(call)
