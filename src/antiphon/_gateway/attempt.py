"""The attempts of a call: breaker permit, time limit, tool, and whether to retry (R7, R8, D3, D5)."""

from __future__ import annotations

from typing import Any

from antiphon._gateway import outcome as outcomes
from antiphon._gateway.call import NO_EXTRAS, GuardedCall, _set_held
from antiphon._gateway.context import CallContext, running
from antiphon._gateway.late import LateResult
from antiphon._gateway.outcome import Outcome, failed, interruption
from antiphon._gateway.point import Point, point
from antiphon._gateway.settlement import after_hooks, note, settle_failure, settle_interrupted, settle_success, settled
from antiphon._gateway.source import Opened
from antiphon._gateway.steps import BEGIN, DONE, INVOKE, Dispatch, Renew, Sleep, Step
from antiphon._gateway.threads import Abandoned, TimedOut
from antiphon._scope import undoing
from antiphon.contract.result import Retried, Status
from antiphon.decide.breaker import Breaker, Permit, Refusal
from antiphon.decide.classify import is_control_flow
from antiphon.decide.failure import Failure, timed_out
from antiphon.decide.retry import Retry, Stop, after_failure, pause_ms
from antiphon.errors import Paused


def dispatch(call: GuardedCall) -> Step:
    """The next attempt: permits, hooks, time limit, and then the tool."""
    plan, policy, number = call.plan, call.policy, call.number
    if call.extras is not NO_EXTRAS or policy.deadline is not None:
        stopped = _not_now(call)
        if stopped is not None:
            return stopped
    if call.run is not None and call.run.scope.cancelled and not undoing.get():  # while it waited
        return _stopped(call, outcomes.run_cancelled(plan.name))
    call.permits = permits = policy.permits
    for breaker, permit in permits:
        if breaker.pass_for_all is not permit:
            permits = ()
    if not permits:
        refusal = _take_permits(call)
        if refusal is not None:
            return _refused(call, refusal)
    if number and call.extras.hooked is not None:
        refused = _hooks_again(call)
        if refused is not None:
            return refused
    call.number = number + 1
    if call.version:
        hold = plan.hold
        hold(call, plan.renew_every)
    if plan.pass_through and call.extras.is_shadow_twin:
        plan.reporter.shadow(call, call.extras.verdict or "run")
        return DONE  # the twin continues with the outcome of the call itself
    _set_held((call.key, call.outer))
    if call.run is not None:
        call.run.go_inside()
    return INVOKE if policy.inline else _dispatch(call)


def _not_now(call: GuardedCall) -> Step | None:
    """The checks before any attempt that is not the plain first one."""
    plan, extras, deadline = call.plan, call.extras, call.policy.deadline
    if call.number or extras.waited_for:
        extras.began = plan.monotonic()
    if extras.last is not None and plan.stale and plan.plans.plan(plan.tool).off:  # switched off since
        return _stopped(call, extras.last)
    if deadline is not None and deadline <= plan.monotonic():
        return _stopped(call, outcomes.too_late())
    saga = None if extras.write is None else extras.write.saga
    if saga is not None and not call.number and not saga.takes_writes:  # it failed while the call waited
        return _stopped(call, outcomes.undoing(plan.name, saga.name, saga.state))
    return None


def _take_permits(call: GuardedCall) -> Refusal | None:
    """Acquire a permit from every breaker on the path; return those acquired if one of them refuses."""
    closed = call.policy.all_closed()
    if closed is not None:
        call.permits = closed if not call.extras.verdict else ()
        return None
    taken: list[tuple[Breaker, Permit]] = []
    call.permits = taken
    for breaker in call.policy.path if not call.extras.verdict else ():  # in shadow mode only for calls that would run
        permit = breaker.permit(call.began)
        if permit.transitions:
            _moved(call, breaker, permit.transitions)
        if isinstance(permit, Refusal):
            if call.plan.enforces(permit):
                _vote(call, None)
                return permit
            if call.plan.pass_through:
                call.off_path().verdict = call.extras.verdict or "circuit_open"
        else:
            taken.append((breaker, permit))
    return None


def _refused(call: GuardedCall, refusal: Refusal) -> Step:
    last = call.extras.last
    if last is not None:
        last.breaker = refusal.state  # our own attempts opened it: their error is the answer (R9)
    return _stopped(call, outcomes.circuit_open(call.plan.name, refusal))


def _hooks_again(call: GuardedCall) -> Step | None:
    """The before-hooks of a further attempt; one of them may stop it."""
    extras, hooks = call.extras, call.plan.hooks
    assert extras.hooked is not None and hooks is not None
    extras.hooked = extras.hooked._replace(attempt=call.number + 1)
    try:
        hooks.before(extras.hooked)
    except Exception as error:
        _vote(call, None)
        stop = outcomes.refused_by_hook(error)
        stop.message = unquoted(call, stop.message)
        step = _stopped(call, stop)
        after_hooks(call, call.outcome or stop)
        return step
    return None


def _dispatch(call: GuardedCall) -> Dispatch:
    """An attempt with a time limit, on a thread, as a stream, or of a tool that takes the context of its call."""
    plan, policy = call.plan, call.policy
    tool, limit = plan.tool, policy.timeout_s
    if policy.deadline is not None:
        left = policy.deadline - call.began
        limit = left if limit is None else min(limit, left)
    context = None
    if tool.context_param is not None:
        deadline = None if limit is None else plan.now_ms() / 1000 + limit
        session, actor, _ = call.place
        who = (call.number, call.request_id, call.call_id, session, actor)
        key = policy.given_key or call.idempotency_key or call.request_id
        context = CallContext(plan.name, key, call.version, deadline, *who)
        call.off_path().outer_running = running.get()
        if not tool.streams:
            running.set(context)
    if tool.has_point:
        extras = call.off_path()
        extras.outer_point, extras.point = point.get(), Point()
        point.set(extras.point)
    threaded = tool.kind == "sync" and (limit is not None or plan.plans.inline_kind == "async")
    if threaded and call.version:
        extras = call.off_path()
        extras.late = LateResult(call, extras.late)
    return Dispatch(call, limit, context, _returned)


def _returned(call: GuardedCall, value: Any) -> Step:
    if value.__class__ is Opened:
        return _opened(call, value)
    call.value = value
    return returned(call)


def _opened(call: GuardedCall, opened: Opened) -> Step:
    """The first chunk of a stream has arrived: the caller reads on, and the end of the stream resumes the call."""
    call.leave_tool()
    call.outcome = outcome = Outcome("success", attempts=call.number)
    outcome.stream = opened
    return DONE


def returned(call: GuardedCall) -> Step:
    """The tool returned; ``value`` is its result."""
    plan, extras = call.plan, call.extras
    if call.run is None and call.policy.inline:
        _set_held(call.outer)
    elif extras.stream is None:
        call.leave_tool()
    monotonic, time_ns, credit, release = plan.monotonic, plan.time_ns, plan.credit, plan.release
    now = monotonic()
    for breaker, permit in call.permits:
        moves = breaker.success(permit, now)
        if moves:
            _moved(call, breaker, moves)
    credit()
    ended_ms = time_ns() // 1_000_000
    if extras is NO_EXTRAS:  # the first and only attempt
        call.attempts = ((ended_ms - int((now - call.started) * 1000), ended_ms, "", False),)
    else:
        call.attempts += ((ended_ms - int((now - call.began) * 1000), ended_ms, "", False),)
        if extras.stream is None:
            after_hooks(call)
    if not call.version:
        return settled(call, 0)
    release(call, None)
    return settle_success(call, now)


def raised(call: GuardedCall, error: BaseException) -> Step:
    """The tool raised: classify the failure, report it to the breakers, and ask the retry table."""
    call.leave_tool()
    plan, extras = call.plan, call.off_path()
    now = plan.monotonic()
    if isinstance(error, Abandoned):
        call.number -= 1
        _vote(call, None)
        step = _stopped(call, failed("retriable_error", error.code, str(error), retriable=True))
        if extras.last is not None:
            after_hooks(call, call.result())
        return step
    if is_control_flow(error):
        return _interrupted(call, error, now)
    failure = failure_of(call, error)
    note(call, now, failure.code, failure.retriable)
    _vote(call, failure)
    outcome, delay = _judge(call, failure, error, now)
    if not plan.pass_through and failure.may_have_applied:
        extras.may_have_applied = True
        _mark_uncertain(call)
    after_hooks(call, outcome)
    if delay is None:
        return settle_failure(call, outcome)
    extras.last = outcome
    retried = Retried(
        attempt=call.number, delay_ms=delay, reason_code=failure.code, latency_ms=(now - call.began) * 1000
    )
    extras.retried += (retried,)
    if call.run is not None:
        call.run.decide("retry", {"attempt": call.number, "code": failure.code}, {"delayMs": delay})
    plan.reporter.retry(call, call.number, failure, delay)
    return Sleep(delay / 1000, _slept)


def _interrupted(call: GuardedCall, error: BaseException, now: float) -> Step:
    """The tool suspended itself, or its caller went away while it ran."""
    extras, code = call.extras, interruption(error)
    _vote(call, None)
    note(call, now, code, False)
    extras.dispatched = code != Paused.code and not _before_effect(call)
    if extras.dispatched:
        _mark_uncertain(call)
    extras.interrupt = error
    after_hooks(call, outcomes.interrupted(call.plan.name, error, len(call.attempts)))
    return settle_interrupted(call, error)


def _mark_uncertain(call: GuardedCall) -> None:
    """This attempt may have had its effect, whatever the outcome of a later one."""
    if call.extras.late is not None:
        call.extras.late.uncertain_attempts.add(call.number)


def _slept(call: GuardedCall, _: None) -> Step:
    """Before the next attempt: is the claim still ours, for a whole lease?"""
    return Renew(call.key, call.version, call.plan.lease_ms, renewed) if call.version else dispatch(call)


def renewed(call: GuardedCall, kept: bool) -> Step:
    """The claim is ours, or somebody took it while this worker was stalled."""
    if kept:
        return dispatch(call)
    if call.extras.last is not None:
        return _stopped(call, call.extras.last)
    call.version = 0
    return BEGIN


def not_renewed(call: GuardedCall) -> Step:
    """The store cannot say whether the claim is still ours."""
    last = call.extras.last
    assert last is not None
    return dispatch(call) if call.plan.idempotent else _stopped(call, last)


def failure_of(call: GuardedCall, error: BaseException) -> Failure:
    """Classify an exception; secrets of the call that it quotes are masked."""
    if isinstance(error, TimedOut):
        failure = timed_out(error.seconds, still_running=error.still_running)
    else:
        failure = call.plan.tool.failure(error, call.plan.now_ms())
    if _before_effect(call):  # its thread may go on, but not past that point
        failure = failure._replace(phase="not_sent", before_effect=True, still_running=False)
    return failure._replace(message=unquoted(call, failure.message)) if failure.message else failure


def unquoted(call: GuardedCall, text: str) -> str:
    """*text* without the secrets among the arguments; the end event of the run omits them, too."""
    found = call.plan.results.quoted(call.arguments)
    if not found:
        return text
    if call.run is not None:
        call.run.scope.quoted.update(found)
    from antiphon.redact import without_values

    return without_values(text, found)


def _before_effect(call: GuardedCall) -> bool:
    """Whether the attempt ended before the point of no return, which it can no longer pass."""
    here = call.extras.point
    return here is not None and here.close()


def _judge(call: GuardedCall, failure: Failure, error: BaseException, now: float) -> tuple[Outcome, float | None]:
    """The outcome if this was the last attempt, or the pause before the next one."""
    plan, policy, number = call.plan, call.policy, call.number
    code, message = failure.code, failure.message
    open_now = plan.open_mode and any(breaker.is_open(now) for breaker in policy.path)
    step = after_failure(
        failure,
        attempt=number,
        max_attempts=plan.tool.retry.max_attempts if plan.pass_through else policy.max_attempts,
        elapsed_ms=(now - call.started) * 1000,
        max_elapsed_ms=policy.max_elapsed_ms,
        remaining_ms=None if policy.deadline is None else (policy.deadline - now) * 1000,
        policy=plan.tool.retry,
        idempotent=plan.idempotent,
        retry_safe=policy.retry_safe,
        breaker_open=open_now,
        budget=None if plan.pass_through else plan.budget,
        now=now,
        chance=plan.clock.uniform(0.0, 1.0),
        may_have_applied=call.extras.may_have_applied,
    )
    if plan.pass_through:
        return _judge_watched(call, failure, error, step), None
    if isinstance(step, Retry):
        return failed("retriable_error", code, message, retriable=True, attempts=number), step.delay_ms
    if step.status == "outcome_unknown":
        outcome = outcomes.left_open(plan.name, message, code, number)
    else:
        outcome = failed(step.status, code, message, retriable=failure.retriable, attempts=number, reason=step.reason)
    outcome.unclassified, outcome.exception = failure.unclassified, error
    if open_now:
        refusals = (breaker.peek(now) for breaker in policy.path)
        outcome.breaker = next((refusal.state for refusal in refusals if refusal is not None), "OPEN")
    return outcome, None


def _judge_watched(call: GuardedCall, failure: Failure, error: BaseException, step: Retry | Stop) -> Outcome:
    """The layer is off or in shadow mode: the failure is the function's own."""
    extras = call.off_path()
    if isinstance(step, Retry) and call.version and extras.verdict in ("", "run"):
        call.plan.reporter.shadow(call, "retry")
    extras.may_have_applied = isinstance(step, Stop) and step.status == "outcome_unknown"
    outcome = failed("error", failure.code, failure.message, retriable=failure.retriable, attempts=1)
    outcome.exception = error
    return outcome


def _stopped(call: GuardedCall, stop: Outcome) -> Step:
    """No further attempt may start: the last error is the answer, and an outcome that it left open stays open (D3)."""
    last = call.extras.last
    if last is None:
        return settle_failure(call, stop)
    if call.extras.may_have_applied and not call.plan.idempotent:
        return settle_failure(call, outcomes.left_open(call.plan.name, last.message, last.code, last.attempts))
    if stop.status == "retry_exhausted":
        last.status, last.reason = "retry_exhausted", stop.reason
    return settle_failure(call, last)


# -- streams -------------------------------------------------------------------------------------------------------


def stream_ended(call: GuardedCall, chunks: list[Any]) -> Step:
    """The stream was read to its end."""
    call.value, call.outcome = chunks, None
    call.result().note(chunks=len(chunks))
    return returned(call)


def stream_failed(call: GuardedCall, error: BaseException, chunks: int) -> Step:
    """The tool failed between two chunks: too late for another attempt (D18)."""
    plan, now = call.plan, call.plan.monotonic()
    failure = failure_of(call, error)
    _vote(call, failure)
    note(call, now, failure.code, failure.retriable)
    call.off_path().may_have_applied = failure.may_have_applied
    number = call.number
    if not plan.idempotent and not failure.definite:
        outcome = outcomes.left_open(plan.name, failure.message, failure.code, number)
    else:
        status: Status = "timeout" if failure.kind == "timeout" else "error"
        if status == "error" and failure.retriable:
            status = "retriable_error"
        outcome = failed(status, failure.code, failure.message, retriable=failure.retriable, attempts=number)
    outcome.exception, outcome.metadata = error, {"chunks": chunks}
    return settle_failure(call, outcome)


def stream_broken_off(call: GuardedCall, why: str, said: str, chunks: int) -> Step:
    """The reader stopped reading."""
    plan = call.plan
    _vote(call, None)
    note(call, plan.monotonic(), "cancelled", False)
    message = f"The stream of {plan.name} ended early after {chunks} chunks: {said}".rstrip(": ")
    call.outcome = failed("error", "stream_broken_off", message, attempts=call.number)
    call.outcome.metadata = {"chunks": chunks}
    call.off_path().dispatched = True
    return settle_interrupted(call, None, why)


# -- bookkeeping ---------------------------------------------------------------------------------------------------


def _vote(call: GuardedCall, failure: Failure | None) -> None:
    """Report a failed attempt to the breakers; ``None`` returns the permits without a report."""
    now = call.plan.monotonic()
    pause = None
    if failure is not None and failure.breaker_vote == "rate_only":
        pause = pause_ms(failure, call.plan.tool.retry)
    for breaker, permit in call.permits:
        if failure is None:
            moves = breaker.neutral(permit, now)
        else:
            moves = breaker.failure(permit, now, failure.breaker_vote, pause)
        if moves or pause:  # others see the pause, too
            _moved(call, breaker, moves)


def _moved(call: GuardedCall, breaker: Breaker, moves: Any) -> None:
    plan = call.plan
    if plan.pass_through:
        return
    name = plan.breakers.name_of(breaker)
    if not name:  # replaced by one of another policy since the call began
        return
    for move in moves:
        plan.reporter.transition(name, move)
    plan.breakers.dirty[name] = breaker
