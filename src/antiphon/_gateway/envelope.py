"""A call as its envelope asks for it."""

from __future__ import annotations

from antiphon._gateway.call import GuardedCall, new_call
from antiphon._gateway.ids import uuid7
from antiphon._gateway.plan import Options, Plan
from antiphon._gateway.report import About
from antiphon._gateway.turns import TurnState
from antiphon.contract._base import UNSET
from antiphon.contract.envelope import ToolCallEnvelope


def from_envelope(envelope: ToolCallEnvelope, plan: Plan, turn: TurnState | None) -> GuardedCall:
    """The call; budgets are the smaller of the envelope's and the tool's (R1)."""
    target, payload, transport, control = envelope.target, envelope.payload, envelope.transport, envelope.control
    call = new_call(plan, payload.params)
    call.turn = turn
    call.request_id = envelope.request_id
    call.token = uuid7()  # an envelope may be delivered twice
    call.call_id = None if envelope.tool_call_id is UNSET else envelope.tool_call_id
    call.identity = call.call_id or envelope.request_id
    workspace = None if target.workspace_id is UNSET else target.workspace_id
    if target.tenant_id is not UNSET:  # an envelope can narrow its tenant, never choose it (D31)
        workspace = f"{target.tenant_id}/{workspace or ''}"
    call.place = (target.session_key, target.actor_id, workspace)
    hints = payload.call_hints
    timeout_ms = UNSET if hints is UNSET else hints.timeout_ms
    clock = plan.clock
    deadline_ms = control.deadline_at_ms
    call.options = Options(
        given_key=None if payload.idempotency_key is UNSET else payload.idempotency_key,
        mode=transport.dedupe_mode,
        timeout_s=None if timeout_ms is UNSET else timeout_ms / 1000,
        deadline=None if deadline_ms is UNSET else clock.monotonic() + (deadline_ms - clock.now_ms()) / 1000,
        max_attempts=transport.retry_budget.max_attempts,
        max_elapsed_ms=transport.retry_budget.max_elapsed_ms,
        breaker="tool" if transport.circuit_breaker_hint is UNSET else transport.circuit_breaker_hint,
        safety_critical=hints is not UNSET and hints.safety_critical is True,
        retry_safe=hints is not UNSET and hints.expected_retry_safe is True,
        reuse="never" if plan.tool.spec.effect == "write" else "session",
        about=_about(envelope),
    )
    return call


def _about(envelope: ToolCallEnvelope) -> About | None:
    correlation, tags, trace = envelope.target.correlation_id, envelope.control.request_tags, envelope.trace
    about = About(
        None if correlation is UNSET else correlation,
        None if tags is UNSET else tags,
        None if trace.baggage is UNSET else trace.baggage,
        None if trace.traceparent is UNSET else trace.traceparent,
    )
    return about if any(about) else None
