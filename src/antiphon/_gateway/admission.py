"""Before the claim: everything that is decided without the store. Hooks, keys, turn, loop guard, breakers."""

from __future__ import annotations

import hashlib
from copy import copy
from typing import Any

from antiphon._gateway import approval, attempt, claim, replay, undo
from antiphon._gateway import outcome as outcomes
from antiphon._gateway.attempt import raised, returned
from antiphon._gateway.call import Extras, GuardedCall
from antiphon._gateway.claim import start_unclaimed
from antiphon._gateway.context import is_held, running
from antiphon._gateway.hooks import HookCall
from antiphon._gateway.outcome import Outcome, failed
from antiphon._gateway.plan import NO_OPTIONS, Plan, Policy
from antiphon._gateway.recording import RunEntry
from antiphon._gateway.report import TraceData
from antiphon._gateway.settlement import answered, refused, settle_interrupted
from antiphon._gateway.steps import BEGIN, Refresh, Step, TryRead
from antiphon._gateway.turns import Guard, TurnState, refused_by_guard
from antiphon._scope import undoing
from antiphon.decide.breaker import Refusal
from antiphon.decide.loop import LoopVerdict
from antiphon.errors import InvalidInput

_REFRESH_S, _FIRST_REFRESH_S = 0.1, 1.0
_SHADOW = "shadow."
"""Precedes the keys of calls in shadow mode."""
_new = tuple.__new__  # half the cost of a named tuple's own constructor


def admit(call: GuardedCall) -> Step:
    """The first step of a call."""
    plan, run = call.plan, call.run
    monotonic = plan.monotonic
    call.started = now = monotonic()
    if (
        run is not None
        and (run.scope.cancelled or run.scope.invoker is not None)
        and (stop := _not_live(call, run)) is not None
    ):
        return stop
    if now >= plan.plans.next_refresh:
        if _refreshes_first(plan):
            return Refresh(_refresh_limit_s(plan), _refreshed)
        call.plan = plan = plan.as_of_now()
    call.policy = policy = plan.policy if call.options is NO_OPTIONS else Policy(plan, call.options)
    if plan.hooks is not None:
        if (stopped := _ask_hooks(call)) is not None:
            return refused(call, stopped)
        policy = call.policy
    if plan.off:
        return _switched_off(call)
    try:
        maker, call.template = plan.known_keys.get(call.place) or plan.make_keys(call.place)
        if policy.given_key is None:
            call.key, call.idempotency_key, call.params, exact = maker.quick(call.arguments, plan.reuses)
            call.pair = (plan.name, call.key)
            if exact is not None:
                call.params = (hashlib.sha256(call.params).hexdigest(), hashlib.sha256(exact).hexdigest())
        else:
            claim.derive_given(call, maker, policy.given_key)
    except Exception as error:
        return _without_key(call, error)
    if run is not None:
        if not run.entered:
            call.params = run.enter(plan.tool.written(call.arguments), call.params)
        call.identity = call.identity or run.identity
    if plan.on_start:
        plan.reporter.started(call, plan.on_start)
    if plan.shadow is not None and not call.policy.safety:
        return _shadow(call, plan.shadow)
    stop = _stopped(call, plan, now)
    if stop is not None:
        return stop
    return BEGIN if run is None and call.call_id is None and call.options is NO_OPTIONS else _begin(call)


def _begin(call: GuardedCall) -> Step:
    """Request the claim; an undo first reads the execution that it undoes."""
    return claim.begin_named(call) if call.options.undoes is None else undo.prepare(call)


def _not_live(call: GuardedCall, run: RunEntry) -> Step | None:
    """A cancelled run makes no calls. In a replay the recording answers; a saga still remembers the call."""
    if run.scope.cancelled and not undoing.get():
        return refused(call, outcomes.run_cancelled(call.plan.name))
    if run.scope.invoker is None or run.entered:
        return None
    if run.scope.sagas:
        undo.join(call)
    return replay.ask(call, admit)


def _stopped(call: GuardedCall, plan: Plan, now: float) -> Step | None:
    """Deadline, turn control, loop guard and breakers: the checks that can stop a call before its claim."""
    policy, turn = call.policy, call.turn
    if plan.approval_rule is not None:
        approval.consider(call)
    if policy.deadline is not None and policy.deadline <= now:
        return answered(call, outcomes.too_late())
    if turn is not None and call.pair in turn.succeeded and (denied := _deny(call, turn)) is not None:
        return answered(call, denied)
    asked = turn is not None or call.run is not None or call.call_id is not None
    if plan.watches and asked and call.options.undoes is None:
        blocked = _watch(call, plan, now)  # calls outside of an agent loop are not checked
        if blocked is not None:
            return answered(call, blocked)
    if policy.unclaimed and call.outer is not None and policy.mode != "disabled" and is_held(call.key):
        return answered(call, outcomes.reentrant(plan.name))
    for breaker in policy.path:
        if breaker.pass_for_all is None and (refusal := breaker.peek(now)) is not None and plan.enforces(refusal):
            return _refused(call, refusal)
    if call.run is not None and call.run.scope.sagas and (closed := undo.join(call)) is not None:
        return answered(call, closed)
    return claim.start_unclaimed(call) if policy.unclaimed and call.extras.approval_state is None else None


def _watch(call: GuardedCall, plan: Plan, now: float) -> Outcome | None:
    """Ask the loop guard of the run, or else of the session; return a refusal or ``None``."""
    turn = call.turn
    guard = None if turn is None or call.run is not None else turn.session.known_guard
    call.guard = guard = guard or _guard(call, now)
    if call.identity is call.request_id and plan.bound_loop and guard.loop.is_new(call.pair):
        return None
    return _ask_guard(call, guard, now)


def _refused(call: GuardedCall, refusal: Refusal) -> Step:
    """A breaker is open: only a settled record can answer."""
    if call.policy.unclaimed:
        return claim.held_back(call, refusal)
    call.refusal = refusal
    fields = (call.key, call.identity, call.plan.plans.store_breaker.read_limit_s, claim.on_record)
    return _new(TryRead, fields)


def _refreshes_first(plan: Plan) -> bool:
    """Whether to read others' breakers now; a call that is off or in shadow mode does not wait for the store."""
    plans = plan.plans
    watcher = plans.watcher
    if not plan.off and (plan.shadow is None or not watcher.beside):
        return True
    plans.check_for_changes()
    if not plan.off and watcher.takes():
        watcher.do(watcher.exchange)
    return False


def _refresh_limit_s(plan: Plan) -> float:
    """How long a call waits for breaker states: hardly at all if one is open already."""
    if any(breaker.pass_for_all is None for breaker in plan.policy.path):
        return plan.plans.store_breaker.read_limit_s
    return _REFRESH_S if plan.plans.was_refreshed else _FIRST_REFRESH_S


def _refreshed(call: GuardedCall, _: None) -> Step:
    """Settings, hooks or listeners may have changed: continue with the current plan."""
    call.plan = call.plan.as_of_now()
    return admit(call)


def _switched_off(call: GuardedCall) -> Step:
    """The function is called, its hooks fire once, nothing else happens (R12, TR-14); unless a person must approve."""
    if approval.needed(call.plan, call.arguments):
        return refused(call, outcomes.approval_required(call.plan.name, ""))
    call.run = call.turn = None
    call.key = call.idempotency_key = ""
    return attempt.dispatch(call)


def _ask_hooks(call: GuardedCall) -> Outcome | None:
    """Run the before-hooks; return an outcome if one of them stopped the call."""
    plan, (session, actor, _) = call.plan, call.place
    assert plan.hooks is not None
    spec = plan.tool.spec
    hooked = HookCall(spec.name, spec.namespace, call.arguments, session, actor, call.request_id, call.call_id, 1)
    call.off_path().hooked = hooked
    try:
        reply = plan.hooks.before(hooked)
    except Exception as error:
        stop = outcomes.refused_by_hook(error)
        stop.message = attempt.unquoted(call, stop.message)
        return stop
    if reply is not None:
        call.policy = policy = Policy(plan, call.options)
        if policy.replied(reply, plan):
            call.options = call.options._replace(
                trace_data=(call.trace_data or TraceData())._replace(from_hook=reply.name)
            )
    return None


def _shadow(call: GuardedCall, plan: Plan) -> Step:
    """Claim under a separate key, with separate breakers; nothing waits, blocks or retries (R12)."""
    turn, verdict = call.turn, call.extras.verdict
    call.key = _SHADOW + call.key
    if turn is not None and call.pair in turn.succeeded and (denied := _deny(call, turn)) is not None:
        verdict = denied.code
    elif call.outer is not None and call.policy.mode != "disabled" and is_held(call.key):
        verdict = "busy"
    return _make_watched(call, plan, verdict)


def _without_key(call: GuardedCall, error: Exception) -> Step:
    """The arguments have no canonical form; in shadow mode the function is called with them anyway."""
    plan = call.plan.shadow
    if plan is None or call.policy.safety:
        if not isinstance(error, InvalidInput):
            raise error
        return refused(call, failed("error", "validation_error", str(error)))
    call.run = call.turn = None
    call.key = call.idempotency_key = ""
    if plan.on_start:
        plan.reporter.started(call, plan.on_start)
    return _make_watched(call, plan, "validation_error")


def _deny(call: GuardedCall, turn: TurnState) -> Outcome | None:
    """Skip a new call of an idempotent tool that has succeeded with these arguments in this turn (T3)."""
    if not call.plan.idempotent or call.identity in turn.identities:
        return None
    name = call.plan.tool.spec.name
    message = (
        f"{name} was already called with these arguments in this turn and succeeded "
        f"(call {turn.succeeded[call.pair]}). Use that result."
    )
    return failed("error", "denied", message, reason="duplicate")


def _guard(call: GuardedCall, now: float) -> Guard:
    """The loop guard of the run, or else of the session."""
    if call.run is not None:
        state: dict[Any, Any] = call.run.scope.gateway_state
        known: Guard | None = state.get("loop")
        return known if known is not None else state.setdefault("loop", Guard(call.plan.guards.policy, now))
    if call.turn is not None:
        session = call.turn.session
        return session.known_guard or session.guard(call.plan.guards.policy, now)
    return call.plan.guards.of_session(call.place[0], call.place[1], now)


def _ask_guard(call: GuardedCall, guard: Guard, now: float) -> Outcome | None:
    """Return a refusal or ``None``; a note goes to the model with the result."""
    if guard.redelivered(call.identity):
        call.guard = None
        return None
    spec = call.plan.tool.spec
    verdict: LoopVerdict = guard.loop.check(*call.pair, now, poll=spec.poll, cost=spec.cost)
    if verdict.action == "allow":
        return None
    if not verdict.refused:
        call.off_path().loop_note = verdict.message
        return None
    if call.run is not None:
        call.run.decide("loop", {"action": verdict.action, "reason": verdict.reason}, {})
    return refused_by_guard(verdict)


# -- shadow mode: a twin finds out what the gateway would have done; the call is made as if there were none -----------
# The twin takes the path of every call, with claims and breakers of its own, but does not call the tool. It stops where
# the tool would be called and continues with the outcome of the real call.


def _make_watched(call: GuardedCall, shadow: Plan, verdict: str) -> Step:
    """Make *call* as if there were no gateway and let its twin find the verdict; or report *verdict*."""
    asked, watcher = call.policy, shadow.plans.watcher
    call.plan, call.policy = shadow, shadow.bare
    if not verdict and not watcher.takes():
        verdict = "store_unavailable"
    if verdict:
        shadow.reporter.shadow(call, verdict)
        return start_unclaimed(call)
    shadow_copy = _shadow_copy(call, shadow, asked)
    watcher.do(
        lambda: watcher.drive(shadow_copy, start_unclaimed(shadow_copy) if shadow_copy.policy.unclaimed else BEGIN)
    )
    call.off_path().ended = lambda of: watcher.do(lambda: _end(shadow_copy, of))
    return start_unclaimed(call)


def _shadow_copy(call: GuardedCall, shadow: Plan, asked: Policy) -> GuardedCall:
    shadow_copy = copy(call)
    shadow_copy.extras = extras = Extras()
    extras.is_shadow_twin = True
    extras.outer_running = running.get()
    shadow_copy.policy = policy = Policy(shadow, call.options)
    policy.given_key, policy.unclaimed, policy.retry_safe = asked.given_key, asked.unclaimed, asked.retry_safe
    shadow_copy.run = shadow_copy.turn = shadow_copy.guard = None
    return shadow_copy


def _end(shadow_copy: GuardedCall, call: GuardedCall) -> None:
    """Settle the twin with the outcome of the call."""
    outcome, interrupt = call.outcome, call.extras.interrupt
    error = interrupt if interrupt is not None or outcome is None else outcome.exception
    if error is not None:
        shadow_copy.entered = shadow_copy.number
        step = raised(shadow_copy, error)
    elif outcome is None or outcome.status == "success":
        shadow_copy.value = None
        step = returned(shadow_copy)
    else:
        shadow_copy.off_path().dispatched = True
        step = settle_interrupted(shadow_copy, None, outcome.message)
    try:
        shadow_copy.plan.plans.watcher.drive(shadow_copy, step)
    except BaseException as passed:
        if passed is not error:  # otherwise the caller has it
            raise
