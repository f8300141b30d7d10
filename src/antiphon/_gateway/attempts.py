"""The attempts of one call: breaker permit, timeout, tool, and whether to try again (R7, R8, D3, D5)."""

from __future__ import annotations

from contextvars import copy_context
from typing import TYPE_CHECKING, Any, NamedTuple

from antiphon._gateway import record, streams
from antiphon._gateway.breakers import Path
from antiphon._gateway.call import Call, Outcome, failed
from antiphon._gateway.context import CallContext, held, running
from antiphon._gateway.hooks import HookCall, refused_by_hook
from antiphon._gateway.late import settle_late
from antiphon._gateway.settling import unknown_message
from antiphon._gateway.threads import Abandoned, ThreadRunner, TimedOut
from antiphon.contract._base import UNSET
from antiphon.contract.record import RecordedAttempt
from antiphon.contract.result import Retried
from antiphon.decide.breaker import Breaker, Permit, Refusal
from antiphon.decide.classify import classify, is_control_flow
from antiphon.decide.failure import Failure, timed_out
from antiphon.decide.retry import Retry, Stop, after_failure
from antiphon.errors import Paused, StoreError

if TYPE_CHECKING:
    from antiphon._gateway.core import Core

Permits = list[tuple[Breaker, Permit]]


class _Ended(NamedTuple):
    """A failed attempt: the outcome if it was the last one, and the pause before the next if it was not."""

    outcome: Outcome
    delay: float | None
    failure: Failure
    latency: float


class Attempts:
    """Runs a claimed call until it succeeds, fails for good, or may not be tried again."""

    def __init__(self, core: Core) -> None:
        self.core = core
        self.threads = ThreadRunner(core.settings.abandoned_threads)

    async def run(self, call: Call, hooked: HookCall | None, raised: BaseException | None = None) -> Outcome:
        """Every attempt of the call; the outcome is a value. *raised*: the first attempt was made and raised this."""
        core, tool = self.core, call.tool
        clock = core.clock
        path = core.breakers.path(tool, call.hint)
        budget = core.budget(tool)
        plain = tool.inline and call.timeout is None and call.deadline is None and not core.asynchronous
        number = 0
        last: Outcome | None = None
        now = call.started if plain and not call.waited else clock.monotonic()
        while True:
            number += 1
            if call.deadline is not None and call.deadline <= now:
                return self._stopped(call, last, _too_late())
            permits: Permits = call.permits
            refusal = None if raised is not None else self._permits(path, permits := [], now)
            if refusal is not None:
                return self._refused(call, refusal, last)
            if number > 1 and hooked is not None:
                hooked = hooked._replace(attempt=number)
                stop = self._before_again(call, hooked, last)
                if stop is not None:
                    self.vote(path, permits, None)
                    return stop
            began = now
            call.sent = True
            try:
                if raised is not None:
                    raise raised
                if plain and call.scope is None:
                    outer = held.get()
                    try:  # no token: an interrupt may come between its making and its keeping
                        held.set((call.key, outer))
                        value = tool.function(**call.params)
                    finally:
                        held.set(outer)
                else:
                    value = await self._invoke(call, number, began)
            except Abandoned as error:
                call.sent = False
                self.vote(path, permits, None)
                return self._abandoned(call, hooked, last, error)
            except BaseException as error:
                raised = None
                ended = self._after_error(call, number, error, began, path, permits, budget, hooked)
                if ended.delay is None:
                    return ended.outcome
                last = ended.outcome
                if not await self._pause(call, number, ended.failure, ended.delay, ended.latency):
                    return self._stopped(call, last, last)
                now = clock.monotonic()
                continue
            if tool.streams:
                outcome = Outcome("success", attempts=number)
                outcome.stream = streams.open_stream(core, call, value, permits, began, hooked, number)
                return outcome
            outcome = call.outcome = Outcome("success", value, number)  # first of all: what follows may be interrupted
            now = clock.monotonic()
            self.note(call, began, now)
            self.succeeded(path, permits, now)
            budget.success()
            if hooked is not None:
                core.hooks.after(hooked, outcome)
            return outcome

    def _after_error(
        self,
        call: Call,
        number: int,
        error: BaseException,
        began: float,
        path: Path,
        permits: Permits,
        budget: Any,
        hooked: HookCall | None,
    ) -> _Ended:
        """Note, vote and judge a failed attempt; control flow passes through."""
        now = self.core.clock.monotonic()
        if is_control_flow(error):
            call.sent = interruption(error) != Paused.code
            self.vote(path, permits, None)
            self.note(call, began, now, error_code=interruption(error))
            if hooked is not None:
                self.core.hooks.after(hooked, interrupted(call, error))
            raise error
        failure = self.failure_of(call, error)
        self.note(call, began, now, error_code=failure.code, retriable=failure.retriable)
        self.vote(path, permits, failure)
        outcome, delay = self._judge(call, number, failure, error, now, path, budget)
        call.doubt = call.doubt or failure.may_have_happened
        call.sent = False
        if hooked is not None:
            self.core.hooks.after(hooked, outcome)
        return _Ended(outcome, delay, failure, (now - began) * 1000)

    def _before_again(self, call: Call, hooked: HookCall, last: Outcome | None) -> Outcome | None:
        """The before-hooks of a further attempt; an outcome if one of them stopped it."""
        try:
            self.core.hooks.before(hooked)
        except Exception as error:
            stop = self._stopped(call, last, refused_by_hook(error))
            self.core.hooks.after(hooked, stop)
            return stop
        return None

    def _abandoned(self, call: Call, hooked: HookCall | None, last: Outcome | None, error: Abandoned) -> Outcome:
        stop = self._stopped(call, last, failed("retriable_error", error.code, str(error), retriable=True))
        if hooked is not None and last is not None:
            self.core.hooks.after(hooked, stop)
        return stop

    def failure_of(self, call: Call, error: BaseException) -> Failure:
        """What kind of failure an exception is."""
        if isinstance(error, TimedOut):
            return timed_out(error.seconds, still_running=error.still_running)
        return classify(error, call.tool.listed, wall_ms=self.core.clock.now_ms())

    async def _pause(self, call: Call, number: int, failure: Failure, delay: float, latency: float) -> bool:
        """Wait before the next attempt; whether the claim is still ours after that."""
        retried = Retried(attempt=number, delay_ms=delay, reason_code=failure.code, latency_ms=latency)
        call.retried = (*call.retried, retried)
        if call.scope is not None:
            record.decision(call, "retry", {"attempt": number, "code": failure.code}, {"delayMs": delay})
        self.core.telemetry.retry(call, number, failure, delay)
        await self.core.clock.sleep(delay / 1000)
        return not call.version or await self._still_ours(call)

    async def _still_ours(self, call: Call) -> bool:
        """Whether the claim is still held, for a whole lease: somebody may have taken it while this worker was away."""
        try:
            return await self.core.journal().renew(call.key, call.version, call.tool.ttl.lease_ms)
        except StoreError:
            return call.tool.spec.idempotent

    async def once(self, call: Call) -> Outcome:
        """One plain attempt without breaker, time limit or retry (shadow mode)."""
        call.timeout = call.deadline = None
        try:
            value = await self._invoke(call, 1, call.started)
        except Exception as error:
            failure = self.failure_of(call, error)
            outcome = failed("error", failure.code, failure.message, retriable=failure.retriable, attempts=1)
            outcome.exception = error
            return outcome
        outcome = Outcome("success", value, attempts=1)
        if call.tool.streams:
            outcome.stream = streams.bare(value, self.core.asynchronous)
        return outcome

    # -- one attempt ---------------------------------------------------------------------------------------------

    async def _invoke(self, call: Call, number: int, now: float) -> Any:
        tool = call.tool
        limit = call.timeout
        if call.deadline is not None:
            left = call.deadline - now
            limit = left if limit is None else min(limit, left)
        context = self._context(call, number, limit) if tool.context_param is not None else None
        if tool.streams:
            return await streams.first_piece(call, context, limit, self.core.clock)
        outer, outer_running = held.get(), running.get()
        nested = call.scope.inside(call.site.call) if call.scope is not None and call.site is not None else None
        try:
            held.set((call.key, outer))
            running.set(context)
            if nested is not None:
                nested.__enter__()
            if tool.kind == "sync":
                if limit is None and not self.core.asynchronous:
                    return tool.invoke(call.params, context)
                return await self._on_thread(call, context, limit)
            value = tool.invoke(call.params, context)
            return await (value if limit is None else streams.within(value, limit))
        finally:
            if nested is not None:
                nested.__exit__(None, None, None)
            running.set(outer_running)
            held.set(outer)

    async def _on_thread(self, call: Call, context: CallContext | None, limit: float | None) -> Any:
        """A synchronous tool that must not block: it cannot be stopped, so its late result settles its record."""
        carried = copy_context()
        late = settle_late(self.core, call)

        def work() -> Any:
            return carried.run(call.tool.invoke, call.params, context)

        if self.core.asynchronous:
            return await self.threads.run_async(work, limit, late)
        return self.threads.run(work, limit, late)

    def _context(self, call: Call, number: int, limit: float | None) -> CallContext:
        deadline = None if limit is None else self.core.clock.now_ms() / 1000 + limit
        return CallContext(
            call.tool.full_name,
            call.idem_key,
            call.version,
            deadline,
            number,
            call.request_id,
            call.call_id,
            call.session,
            call.actor,
        )

    # -- judgement -----------------------------------------------------------------------------------------------

    def _judge(
        self,
        call: Call,
        number: int,
        failure: Failure,
        error: BaseException,
        now: float,
        path: Path,
        budget: Any,
    ) -> tuple[Outcome, float | None]:
        """The outcome if this was the last attempt, or the pause before the next one."""
        tool, core = call.tool, self.core
        spec = tool.spec
        open_now = core.switches.open_mode and any(breaker.is_open(now) for _, breaker in path)
        step = after_failure(
            failure,
            attempt=number,
            max_attempts=call.max_attempts,
            elapsed_ms=(now - call.started) * 1000,
            max_elapsed_ms=call.max_elapsed_ms,
            remaining_ms=None if call.deadline is None else (call.deadline - now) * 1000,
            policy=tool.retry,
            idempotent=spec.idempotent,
            retry_safe=call.retry_safe or spec.forward_key,
            breaker_open=open_now,
            budget=budget,
            now=now,
            chance=core.clock.uniform(0.0, 1.0),
            doubt=call.doubt,
        )
        if isinstance(step, Retry):
            return failed(
                "retriable_error", failure.code, failure.message, retriable=True, attempts=number
            ), step.delay_ms
        assert isinstance(step, Stop)
        if step.status == "outcome_unknown":
            message = unknown_message(tool.full_name, failure.message)
            outcome = failed("error", "outcome_unknown", message, attempts=number, reason=failure.code)
        else:
            outcome = failed(
                step.status,
                failure.code,
                failure.message,
                retriable=failure.retriable,
                attempts=number,
                reason=step.reason,
            )
        outcome.unclassified = failure.unclassified
        outcome.exception = error
        if open_now:
            outcome.breaker = self._state(path)
        return outcome, None

    def _refused(self, call: Call, refusal: Refusal, last: Outcome | None) -> Outcome:
        from antiphon._gateway.core import circuit_open

        if last is not None:
            last.breaker = refusal.state  # our own attempts opened it: their error is the answer (R9)
        return self._stopped(call, last, circuit_open(call, refusal))

    def _stopped(self, call: Call, last: Outcome | None, stop: Outcome) -> Outcome:
        """No further attempt may start: the last one's error is the answer, and what it left open stays open (D3)."""
        if last is None:
            return stop
        if call.doubt and not call.tool.spec.idempotent:
            message = unknown_message(call.tool.full_name, last.message)
            return failed("error", "outcome_unknown", message, attempts=last.attempts, reason=last.code)
        if stop.status == "retry_exhausted":
            last.status, last.reason = "retry_exhausted", stop.reason
        return last

    # -- breaker bookkeeping -------------------------------------------------------------------------------------

    def _permits(self, path: Path, permits: Permits, now: float) -> Refusal | None:
        enforce = self.core.switches.open_mode
        for _, breaker in path:
            permit = breaker.permit(now)
            if isinstance(permit, Refusal):
                if permit.transitions:
                    self._changed(path, breaker, permit.transitions)
                if not enforce:
                    continue
                for other, given in permits:
                    other.neutral(given, now)
                return permit
            permits.append((breaker, permit))
            if permit.transitions:
                self._changed(path, breaker, permit.transitions)
        return None

    def vote(self, path: Path, permits: Permits, failure: Failure | None) -> None:
        """Report a failed attempt; ``None`` gives the permits back without a vote."""
        now = self.core.clock.monotonic()
        for breaker, permit in permits:
            if failure is None:
                transitions = breaker.neutral(permit, now)
            else:
                transitions = breaker.failure(permit, now, failure.breaker_vote, failure.retry_after_ms)
            if transitions:
                self._changed(path, breaker, transitions)

    def succeeded(self, path: Path, permits: Permits, now: float) -> None:
        """Report an attempt that went well."""
        for breaker, permit in permits:
            transitions = breaker.success(permit, now)
            if transitions:
                self._changed(path, breaker, transitions)

    def _changed(self, path: Path, breaker: Breaker, transitions: Any) -> None:
        key = next((name for name, candidate in path if candidate is breaker), "")
        for transition in transitions:
            self.core.telemetry.transition(key, transition)
        self.core.breakers.dirty[key] = breaker

    def _state(self, path: Path) -> str:
        now = self.core.clock.monotonic()
        return next((refusal.state for _, breaker in path if (refusal := breaker.peek(now)) is not None), "OPEN")

    def note(self, call: Call, began: float, ended: float, *, error_code: str = "", retriable: bool = False) -> None:
        """Remember an attempt for the claim record; wall times are counted from the start of the call."""
        start = call.started_ms
        if not start:
            start = call.started_ms = self.core.clock.now_ms() - int((ended - call.started) * 1000)
        attempt = RecordedAttempt(
            started_at_ms=start + int((began - call.started) * 1000),
            finished_at_ms=start + int((ended - call.started) * 1000),
            status="error" if error_code else "success",
            retriable=retriable,
            error_code=error_code or UNSET,
        )
        call.attempts = (*call.attempts, attempt) if call.attempts else (attempt,)


def interrupted(call: Call, interrupt: BaseException) -> Outcome:
    """The outcome of a call whose caller was cancelled or interrupted."""
    count = len(call.attempts)
    code = interruption(interrupt)
    if code == Paused.code:
        return failed("error", code, str(interrupt), attempts=count)
    message = f"{call.tool.full_name} was interrupted: {type(interrupt).__name__}."
    return failed("error", code, message, attempts=count)


def interruption(interrupt: BaseException) -> str:
    """Whether the tool paused by itself (it runs again when it goes on) or its caller went away."""
    return Paused.code if isinstance(interrupt, Exception) else "cancelled"


def _too_late() -> Outcome:
    return failed("retry_exhausted", "deadline_exceeded", "The deadline had passed before the call was made.")
