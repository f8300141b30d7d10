"""The call envelope v1.1: what a caller sends to have one tool call made safely (R1)."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta

from antiphon.contract._base import UNSET, Id, Millis, Name, UnsetType, Value

DedupeMode = Literal["enforced", "bestEffort", "disabled"]
BreakerScope = Literal["tool", "dependency", "global"]


class Target(Value, frozen=True):
    """For whom the call is made."""

    session_key: Id
    actor_id: Id
    agent_id: Id | UnsetType = UNSET
    workspace_id: Id | UnsetType = UNSET
    correlation_id: Id | UnsetType = UNSET
    tenant_id: Id | UnsetType = UNSET


class CallHints(Value, frozen=True):
    """What the caller knows about this one call."""

    safety_critical: bool | UnsetType = UNSET
    expected_retry_safe: bool | UnsetType = UNSET
    timeout_ms: Annotated[int, Meta(ge=1, le=2**53 - 1)] | UnsetType = UNSET


class Payload(Value, frozen=True):
    """The tool's own parameters and, optionally, the caller's idempotency key."""

    version: Literal["1.0"]
    params: dict[str, Any]
    idempotency_key: Annotated[str, Meta(min_length=1, max_length=1024)] | UnsetType = UNSET
    call_hints: CallHints | UnsetType = UNSET


class RetryBudget(Value, frozen=True):
    """At most this many attempts, none started after this many milliseconds."""

    max_attempts: Annotated[int, Meta(ge=1, le=1000)]
    max_elapsed_ms: Millis


class Transport(Value, frozen=True):
    """How duplicates, retries and breakers are to be handled."""

    dedupe_mode: DedupeMode
    retry_budget: RetryBudget
    circuit_breaker_hint: BreakerScope | UnsetType = UNSET


class Control(Value, frozen=True):
    """Deadline and marks of the request."""

    deadline_at_ms: Millis | UnsetType = UNSET
    request_tags: list[str] | UnsetType = UNSET
    from_hook: str | UnsetType = UNSET


class Trace(Value, frozen=True):
    """W3C trace context of the caller."""

    traceparent: str | UnsetType = UNSET
    baggage: dict[str, str] | UnsetType = UNSET


class ToolCallEnvelope(Value, frozen=True):
    """One tool call, v1.1."""

    contract_version: Literal["1.1"]
    request_id: Id
    tool_name: Name
    tool_namespace: Name
    target: Target
    payload: Payload
    transport: Transport
    control: Control
    trace: Trace
    tool_call_id: Id | UnsetType = UNSET
