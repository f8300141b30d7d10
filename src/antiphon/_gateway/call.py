"""One logical call on its way through the gateway, and what comes of it."""

from __future__ import annotations

from collections.abc import Mapping
from threading import Event
from typing import Any, Literal

from antiphon._gateway.tool import Tool
from antiphon._scope import RunScope, Site
from antiphon.contract._base import UNSET
from antiphon.contract.envelope import ToolCallEnvelope
from antiphon.contract.record import RecordedAttempt
from antiphon.contract.result import CacheInfo, CallError, Output, Retried, Status, ToolResultEnvelope
from antiphon.ports import Row

DedupeMode = Literal["enforced", "bestEffort", "disabled"]


class Call:
    """Everything known about one call. Built at the door, filled in on the way, gone at the end.

    Most calls keep most defaults, so these are the class's: an instance holds only what differs.
    """

    call_id: str | None = None
    identity = ""
    given_key: str | None = None
    from_hook: str | None = None
    mode: DedupeMode = "enforced"
    deadline: float | None = None
    deadline_ms: int | None = None
    hint = "tool"
    safety = False
    retry_safe = False
    reuse: Any = "turn"
    workspace: str | None = None
    correlation_id: str | None = None
    tags: list[str] | None = None
    baggage: Mapping[str, str] | None = None
    traceparent: str | None = None
    turn: Any = None
    guard: Any = None
    loop_note = ""
    scope: RunScope | None = None
    site: Site | None = None
    log_params: Any = None
    """The parameters as they may be written; placeholders where there was a secret."""
    log_digest = ""
    redacted = False
    recorded = False
    """Whether the start event has been written."""
    rows: list[Row] | None = None
    """Events to be written with the outcome."""
    key = idem_key = digest = exact = fingerprint = ""
    version = 0
    doubt = False
    """Whether a failed attempt may have had its effect."""
    sent = False
    """Whether an attempt was begun, and nothing certain is known of it yet."""
    outcome: Outcome | None = None
    """What came of the attempts; the record has yet to say so."""
    gate: Event | None = None
    """Set when the call is over; a result that comes later waits for it (R8)."""
    waited = 0
    started = 0.0
    started_ms = 0
    attempts: tuple[RecordedAttempt, ...] = ()
    retried: tuple[Retried, ...] = ()
    lease: Any = None
    verdict: Any = None
    """What the loop guard said, if it has been asked already."""
    permits: Any = ()
    """Breaker permits taken before the pipeline was entered."""
    answer: Any = None
    first: Any = None
    """What the store answered before the pipeline was entered: a record, or its error."""

    def __init__(self, tool: Tool, params: dict[str, Any], session: str, actor: str, request_id: str) -> None:
        self.tool = tool
        self.params = params
        self.session = session
        self.actor = actor
        self.request_id = request_id
        retry = tool.retry
        self.max_attempts = retry.max_attempts
        self.max_elapsed_ms = retry.max_elapsed_ms
        self.timeout = tool.timeout

    @property
    def mark(self) -> str:
        """What makes two calls of a session the same to turn control and loop guard."""
        return self.key if self.given_key is None else self.digest


class Outcome:
    """What came of a call, as a value: exceptions are made from it only at the edge."""

    payload: bytes | None = None
    code = ""
    message = ""
    retriable = False
    terminal = False
    exception: BaseException | None = None
    from_cache = False
    matched_on: Literal["inflight", "completed"] = "completed"
    age_ms = 0
    metadata: dict[str, Any] | None = None
    breaker: str | None = None
    reason = ""
    unclassified = False
    stream: Any = None

    def __init__(self, status: Status, value: Any = None, attempts: int = 0) -> None:
        self.status: Status = status
        self.value = value
        self.attempts = attempts


def failed(
    status: Status, code: str, message: str, *, retriable: bool = False, attempts: int = 0, reason: str = ""
) -> Outcome:
    """An outcome without a value."""
    outcome = Outcome(status, attempts=attempts)
    outcome.code = code
    outcome.message = message
    outcome.retriable = retriable
    outcome.terminal = not retriable
    outcome.reason = reason or code
    return outcome


def to_envelope(call: Call, outcome: Outcome, duration_ms: float) -> ToolResultEnvelope:
    """The outcome in its documented wire form."""
    error: Any = UNSET
    output: Any = UNSET
    if outcome.status == "success":
        metadata: Any = outcome.metadata if outcome.metadata else UNSET
        output = Output(content=outcome.value, metadata=metadata)
    else:
        error = CallError(
            code=outcome.code,
            message=outcome.message,
            retriable=outcome.retriable,
            terminal=outcome.terminal,
            breaker_state=outcome.breaker or UNSET,  # type: ignore[arg-type]
        )
    cache: Any = UNSET
    if outcome.from_cache:
        cache = CacheInfo(
            matched_on=outcome.matched_on, age_ms=max(0, outcome.age_ms), key_fingerprint=call.fingerprint
        )
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
        retried_by=list(call.retried) or UNSET,
    )


def from_envelope(envelope: ToolCallEnvelope, tool: Tool, wall_ms: int, monotonic: float) -> Call:
    """A call as the envelope asks for it; budgets are the smaller of the envelope's and the tool's (R1)."""
    target, payload, transport, control = envelope.target, envelope.payload, envelope.transport, envelope.control
    call = Call(tool, payload.params, target.session_key, target.actor_id, envelope.request_id)
    if envelope.tool_call_id is not UNSET:
        call.call_id = envelope.tool_call_id
    call.identity = call.call_id or envelope.request_id
    if payload.idempotency_key is not UNSET:
        call.given_key = payload.idempotency_key
    call.mode = transport.dedupe_mode
    call.max_attempts = min(call.max_attempts, transport.retry_budget.max_attempts)
    call.max_elapsed_ms = min(call.max_elapsed_ms, transport.retry_budget.max_elapsed_ms)
    if transport.circuit_breaker_hint is not UNSET:
        call.hint = transport.circuit_breaker_hint
    hints = payload.call_hints
    if hints is not UNSET:
        call.safety = hints.safety_critical is True
        call.retry_safe = hints.expected_retry_safe is True
        if hints.timeout_ms is not UNSET:
            seconds = hints.timeout_ms / 1000
            call.timeout = seconds if call.timeout is None else min(call.timeout, seconds)
    if control.deadline_at_ms is not UNSET:
        call.deadline_ms = control.deadline_at_ms
        call.deadline = monotonic + (control.deadline_at_ms - wall_ms) / 1000
    if control.from_hook is not UNSET:
        call.from_hook = control.from_hook
    if control.request_tags is not UNSET:
        call.tags = control.request_tags
    if target.workspace_id is not UNSET:
        call.workspace = target.workspace_id
    if target.tenant_id is not UNSET:  # an envelope can narrow its tenant, never choose it (D31)
        call.workspace = f"{target.tenant_id}/{call.workspace or ''}"
    if target.correlation_id is not UNSET:
        call.correlation_id = target.correlation_id
    trace = envelope.trace
    if trace.traceparent is not UNSET:
        call.traceparent = trace.traceparent
    if trace.baggage is not UNSET:
        call.baggage = trace.baggage
    reuse = tool.reuse_default
    if reuse is None:
        reuse = "never" if tool.spec.effect == "write" else "session"
    call.reuse = reuse
    return call
