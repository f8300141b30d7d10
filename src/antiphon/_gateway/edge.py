"""Where outcomes become return values and exceptions again."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING, Any

from antiphon import errors
from antiphon._drive import drive
from antiphon._gateway import claims, streams
from antiphon._gateway.call import Call, Outcome, failed, to_envelope
from antiphon._gateway.hooks import HookCall
from antiphon._gateway.tool import Tool
from antiphon.contract._base import UNSET
from antiphon.contract.result import CallError, ToolDenied, ToolResultEnvelope
from antiphon.decide.classify import classify

if TYPE_CHECKING:
    from antiphon._gateway.core import Core

_BY_CODE: dict[str, type[errors.AntiphonError]] = {
    "in_flight": errors.InFlight,
    "idempotency_conflict": errors.IdempotencyConflict,
    "circuit_open": errors.CircuitOpen,
    "loop_blocked": errors.LoopBlocked,
    "run_ended": errors.LoopBlocked,
    "replay_blocked": errors.ReplayBlocked,
    "outcome_unknown": errors.OutcomeUnknown,
    "validation_error": errors.InvalidInput,
    "store_unavailable": errors.StoreUnavailable,
    "store_full": errors.StoreUnavailable,
    "store_version": errors.StoreVersionError,
}
_BY_STATUS: dict[str, type[errors.AntiphonError]] = {
    "retry_exhausted": errors.RetryExhausted,
    "timeout": errors.CallTimeout,
    "circuit_open": errors.CircuitOpen,
}


def unwrap(call: Call, outcome: Outcome) -> Any:
    """What a decorated function returns or raises."""
    if outcome.stream is not None:
        return outcome.stream
    if outcome.status == "success":
        if outcome.from_cache and call.tool.kind == "generator":
            return streams.reused_chunks(outcome)
        if outcome.from_cache and call.tool.kind == "async_generator":
            return streams.reused_chunks_async(outcome)
        return outcome.value
    if outcome.code == "denied":
        return ToolDenied(call.call_id or call.request_id, call.tool.spec.name, outcome.reason, outcome.message)
    raise exception_of(call, outcome) from (outcome.exception if outcome.code != "" else None)


def exception_of(call: Call, outcome: Outcome) -> BaseException:
    """The tool's own exception where it raised one and the outcome is certain, else one of ours."""
    kind = _BY_CODE.get(outcome.code)
    if kind is None and outcome.exception is not None and outcome.status in ("error", "retriable_error"):
        error = outcome.exception
        note = f"antiphon: {call.tool.full_name} failed with {outcome.code} after {outcome.attempts} attempt(s)"
        if note not in getattr(error, "__notes__", ()):
            error.add_note(note)
        return error
    if kind is None:
        kind = _BY_STATUS.get(outcome.status, errors.CallFailed)
    data: dict[str, Any] = {"tool": call.tool.full_name, "attempts": outcome.attempts, "status": outcome.status}
    return (
        kind(outcome.message, code=outcome.code, **data)
        if kind is not errors.InvalidInput
        else kind(outcome.message, **data)
    )


def invalid(envelope: Any, message: str, core: Core, *, code: str = "validation_error") -> ToolResultEnvelope:
    """The result of an envelope that cannot be used: terminal, never retried, never recorded (TR-1)."""
    wire = envelope if isinstance(envelope, Mapping) else {}

    def text(name: str) -> str:
        value = wire.get(name)
        return value if isinstance(value, str) else ""

    core.telemetry.invalid(text("toolName"), code)
    return ToolResultEnvelope(
        request_id=text("requestId"),
        status="error",
        from_cache=False,
        tool_name=text("toolName"),
        duration_ms=0.0,
        attempts=0,
        error=CallError(code=code, message=message, retriable=False, terminal=True, breaker_state=UNSET),
    )


def suspended(core: Core, call: Call, error: BaseException) -> Outcome:
    """A synchronous tool or port tried to wait: what it did is not known."""
    if call.version:
        core.renewer.release(call)
        final = claims.unknown_final(call, "an asynchronous part suspended inside the synchronous face")
        drive(claims.write(core, call, final, None))
    return failed(
        "error", "outcome_unknown", f"{call.tool.full_name}: {error}. Use an AsyncGateway for it.", attempts=1
    )


# -- the layer switched off (R12, TR-14) -------------------------------------------------------------------------


def _hooks(core: Core, tool: Tool, params: Mapping[str, Any]) -> HookCall | None:
    if not (core.hooks.befores or core.hooks.afters):
        return None
    call = HookCall(tool.spec.name, tool.spec.namespace, params, "", "", "", None, 1)
    core.hooks.before(call)
    return call


def direct(core: Core, tool: Tool, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call the function as if there were no gateway; registered hooks still fire once."""
    if not (core.hooks.befores or core.hooks.afters):
        return tool.function(*args, **kwargs)
    hooked = _hooks(core, tool, kwargs)
    value = tool.function(*args, **kwargs)
    if hooked is not None:
        core.hooks.after(hooked, value)
    return value


async def direct_async(core: Core, tool: Tool, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Await the function as if there were no gateway."""
    hooked = _hooks(core, tool, kwargs)
    value = tool.function(*args, **kwargs)
    if tool.kind == "async":
        value = await value
    if hooked is not None:
        core.hooks.after(hooked, value)
    return value


def direct_envelope(core: Core, call: Call) -> ToolResultEnvelope:
    """An envelope answered by a plain call."""
    call.started = core.clock.monotonic()
    try:
        outcome = Outcome("success", direct(core, call.tool, (), dict(call.params)), attempts=1)
        if call.tool.kind == "generator":
            outcome.value = list(outcome.value)
    except Exception as error:
        outcome = _plain_failure(call, error)
    return to_envelope(call, outcome, (core.clock.monotonic() - call.started) * 1000)


async def direct_outcome_async(core: Core, call: Call) -> Outcome:
    """An envelope answered by a plain awaited call."""
    call.started = core.clock.monotonic()
    try:
        value = await direct_async(core, call.tool, (), dict(call.params))
        if call.tool.kind == "async_generator":
            value = [data async for data in value]
        return Outcome("success", value, attempts=1)
    except Exception as error:
        return _plain_failure(call, error)


def _plain_failure(call: Call, error: Exception) -> Outcome:
    failure = classify(error, call.tool.spec)
    outcome = failed("error", failure.code, failure.message, retriable=failure.retriable, attempts=1)
    outcome.exception = error
    return outcome


async def as_async(stream: Any) -> AsyncIterator[Any]:
    """Any stream, read from an event loop."""
    if hasattr(stream, "__aiter__"):
        async for data in stream:
            yield data
    else:
        for data in stream:
            yield data
