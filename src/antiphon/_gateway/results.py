"""Turns outcomes into return values, exceptions and envelopes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any, NoReturn

import msgspec

from antiphon import errors
from antiphon._gateway.call import GuardedCall
from antiphon._gateway.outcome import UNKNOWN_HINT, Outcome, failed
from antiphon._gateway.report import Reporter
from antiphon._gateway.result_store import NO_PAYLOAD, NOT_NOW
from antiphon._gateway.threads import TimedOut
from antiphon.contract.result import CacheInfo, CallError, Output, ToolDenied, ToolResultEnvelope

_BY_CODE: dict[str, type[errors.AntiphonError]] = {
    "in_flight": errors.InFlight,
    "idempotency_conflict": errors.IdempotencyConflict,
    "undone": errors.Undone,
    "saga_undoing": errors.SagaUndoing,
    "run_cancelled": errors.RunCancelled,
    "circuit_open": errors.CircuitOpen,
    "loop_blocked": errors.LoopBlocked,
    "run_ended": errors.LoopBlocked,
    "replay_blocked": errors.ReplayBlocked,
    "outcome_unknown": errors.OutcomeUnknown,
    "validation_error": errors.InvalidInput,
    "approval_required": errors.ApprovalRequired,
    "approval_denied": errors.ApprovalDenied,
    "approval_withdrawn": errors.ApprovalDenied,
    "denied": errors.ToolDeniedError,
    "store_unavailable": errors.StoreUnavailable,
    "store_full": errors.StoreUnavailable,
    "store_version": errors.StoreVersionError,
}
_BY_STATUS: dict[str, type[errors.AntiphonError]] = {
    "retry_exhausted": errors.RetryExhausted,
    "timeout": errors.CallTimeout,
    "circuit_open": errors.CircuitOpen,
}


def unwrap(call: GuardedCall, outcome: Outcome) -> Any:
    """What a decorated function returns or raises."""
    if outcome.stream is not None:
        return outcome.stream
    if outcome.status == "success":
        if call.tool.streams and outcome.from_cache:
            check_kept(call, outcome)
            return reused_async(outcome) if call.tool.kind == "async_generator" else reused(outcome)
        if outcome.from_cache and outcome.payload is None:
            check_kept(call, outcome)
        return outcome.value
    if call.plan.pass_through and outcome.exception is not None:  # as if there were no gateway
        raise outcome.exception
    return raise_for(call, outcome)


def check_kept(call: GuardedCall, outcome: Outcome) -> None:
    """``None`` would be mistaken for the result of a call whose result is not available."""
    note = (outcome.metadata or {}).get("payload")
    if note is not None:
        hint = "Return a value that can be stored: JSON, bytes, times, numbers, a class declared as the return type."
        if note.startswith(NOT_NOW):
            hint = "Make the same call again when the store can be reached: it gets the result."
        elif note != NO_PAYLOAD:  # the note says what to do
            hint = ""
        raise errors.ResultNotKept(
            f"{call.plan.name} was called before with the same intent, and is not called again. {note}",
            hint=hint,
            tool=call.plan.name,
        )


def denied(call: GuardedCall, outcome: Outcome) -> ToolDenied:
    """The answer that a model gets in place of a result (T5)."""
    return ToolDenied(call.call_id or call.request_id, call.tool.spec.name, outcome.reason, outcome.message)


def reused(outcome: Outcome) -> Iterator[Any]:
    """A reused stream: the stored chunks again."""
    return iter(outcome.value if isinstance(outcome.value, list) else [])


async def reused_async(outcome: Outcome) -> AsyncIterator[Any]:
    """A reused stream for asynchronous readers."""
    for data in reused(outcome):
        yield data


def raise_for(call: GuardedCall, outcome: Outcome) -> NoReturn:
    """Raise the exception for a failed outcome."""
    error = exception_of(call, outcome)
    try:
        if error is outcome.exception:
            raise error
        raise error from outcome.exception
    finally:
        del error  # otherwise it would reference itself, through its traceback and this frame


def exception_of(call: GuardedCall, outcome: Outcome) -> BaseException:
    """The tool's own exception if it raised one, with a note on how certain the outcome is; else one of ours."""
    kind = _BY_CODE.get(outcome.code)
    own = outcome.exception
    if kind is None and _timed_out(own):
        kind = errors.RetryExhausted if outcome.status == "retry_exhausted" else errors.CallTimeout
    if own is not None and not _timed_out(own):
        note = _note(call, outcome)
        if note not in getattr(own, "__notes__", ()):
            errors.add_note(own, note)
        return own
    if kind is None and outcome.from_cache:
        return _recorded(call, outcome)
    if kind is None:
        kind = _BY_STATUS.get(outcome.status, errors.CallFailed)
    code = outcome.code if kind is not errors.InvalidInput else None  # it has its own
    error = kind(outcome.message, code=code, tool=call.plan.name, attempts=outcome.attempts, status=outcome.status)
    if kind is errors.ApprovalRequired:
        error.data = {**error.data, "approval_id": _approval(outcome)}
    return error


def _approval(outcome: Outcome) -> str | None:
    """The approval that a call waits for."""
    found = (outcome.metadata or {}).get("approvalId")
    return None if found is None else str(found)


def _note(call: GuardedCall, outcome: Outcome) -> str:
    """The note on the tool's own exception: how many attempts there were, and whether it may have had an effect."""
    code = outcome.reason if outcome.code == "outcome_unknown" else outcome.code
    tried = f"antiphon: {call.plan.name} failed with {code} after {outcome.attempts} attempt(s)"
    if outcome.code != "outcome_unknown":
        return tried
    settle = f" An operator can settle it: antiphon claims resolve {call.fingerprint}" if call.fingerprint else ""
    return f"{tried}. {UNKNOWN_HINT}{settle}"


def _recorded(call: GuardedCall, outcome: Outcome) -> Exception:
    """The failure that a record holds: of a class that the tool declares as certain, or a stand-in."""
    for kind in call.tool.certain:
        if kind.__name__ == outcome.code:
            try:
                made: Exception = kind(outcome.message)
            except Exception:  # it takes more than a message
                break
            made.add_note(f"antiphon: the recorded failure of an earlier call of {call.plan.name}")
            return made
    return errors.RecordedError(outcome.message, code=outcome.code, tool=call.plan.name, status=outcome.status)


def _timed_out(error: BaseException | None) -> bool:
    """Whether an attempt ran out of time, here or in the recording that a replay answers from."""
    if isinstance(error, errors.AntiphonError):
        recorded = error.data.get("recorded")
        return isinstance(recorded, Mapping) and recorded.get("class") == f"{TimedOut.__module__}.{TimedOut.__name__}"
    return isinstance(error, TimedOut)


def to_envelope(call: GuardedCall, outcome: Outcome, duration_ms: float) -> ToolResultEnvelope:
    """The outcome in its documented wire form."""
    error: CallError | None = None
    output: Output | None = None
    if outcome.status == "success":
        output = Output(content=outcome.value, metadata=outcome.metadata or None)
    else:
        error = CallError(
            code=outcome.code,
            message=outcome.message,
            retriable=outcome.retriable,
            terminal=outcome.terminal,
            breaker_state=outcome.breaker or None,  # type: ignore[arg-type]
            approval_id=_approval(outcome),
        )
    cache: CacheInfo | None = None
    if outcome.from_cache:
        age_ms = max(0, outcome.age_ms)
        cache = CacheInfo(matched_on=outcome.matched_on, age_ms=age_ms, key_fingerprint=call.fingerprint)
    return ToolResultEnvelope(
        request_id=call.request_id,
        status=outcome.status,
        from_cache=outcome.from_cache,
        tool_name=call.tool.spec.name,
        duration_ms=duration_ms,
        attempts=outcome.attempts,
        cache=cache,
        output=output,
        error=error,
        retried_by=list(call.extras.retried) or None,
    )


def invalid(envelope: Any, message: str, reporter: Reporter, *, code: str = "validation_error") -> ToolResultEnvelope:
    """The result of an envelope that cannot be used: terminal, never retried, never recorded (TR-1)."""
    if isinstance(envelope, (str, bytes, bytearray)):
        try:
            envelope = msgspec.json.decode(envelope)
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            envelope = {}
    wire = envelope if isinstance(envelope, Mapping) else {}

    def text(name: str) -> str:
        value = wire.get(name)
        return value.encode(errors="replace").decode() if isinstance(value, str) else ""

    reporter.invalid(text("toolName"), code)
    return ToolResultEnvelope(
        request_id=text("requestId"),
        status="error",
        from_cache=False,
        tool_name=text("toolName"),
        duration_ms=0.0,
        attempts=0,
        error=CallError(code=code, message=message, retriable=False, terminal=True),
    )


def gathered(outcome: Outcome, chunks: Any) -> Outcome:
    """The outcome of a stream that was read to its end here."""
    ended: Outcome | None = outcome.stream.state.outcome if hasattr(outcome.stream, "state") else None
    if ended is not None:
        return ended
    outcome.value = chunks
    return outcome


def gather(outcome: Outcome) -> Outcome:
    """Read a stream to its end for a caller that wants one answer."""
    if outcome.stream is None:
        return outcome
    chunks: list[Any] = []
    try:
        chunks.extend(outcome.stream)
    except Exception as error:
        return gathered(_broken(outcome, error), chunks)
    return gathered(outcome, chunks)


async def gather_async(outcome: Outcome) -> Outcome:
    """The same in an event loop."""
    if outcome.stream is None:
        return outcome
    if not hasattr(outcome.stream, "__aiter__"):
        return gather(outcome)
    chunks: list[Any] = []
    try:
        async for data in outcome.stream:
            chunks.append(data)
    except Exception as error:
        return gathered(_broken(outcome, error), chunks)
    return gathered(outcome, chunks)


def _broken(outcome: Outcome, error: Exception) -> Outcome:
    """A stream that is only passed through and failed midway."""
    broken = failed("error", "stream_failed", str(error), attempts=outcome.attempts)
    broken.stream, broken.exception = outcome.stream, error
    return broken
