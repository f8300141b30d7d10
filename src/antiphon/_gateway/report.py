"""Tells the outside what the gateway decided: one place turns calls into log lines, counts and spans (R11)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from antiphon._gateway.call import Call, Outcome
from antiphon._gateway.tool import Tool
from antiphon.decide.breaker import Transition
from antiphon.decide.failure import Failure
from antiphon.errors import StoreError
from antiphon.ports import Listener

log = logging.getLogger("antiphon.telemetry")


def _always(event: str) -> bool:
    """A listener that does not say what it wants is told everything."""
    return True


class Metrics(Protocol):
    """What is counted on every call; the built-in registry and Prometheus both fit."""

    def call_ended(self, tool: str, status: str, scope: str, duration_ms: float) -> None: ...

    def retried(self, tool: str, reason: str) -> None: ...

    def hit(self, tool: str, state: str) -> None: ...

    def breaker(self, key: str, before: str, after: str) -> None: ...

    def described(self, tool: str, *, scope: str, effect: str, ttl_s: Mapping[str, float]) -> None: ...

    def render(self) -> str: ...


class Reporter:
    """Fans out to metrics and listeners. A listener that raises is the listener's problem, never the call's."""

    __slots__ = ("_listeners", "_wants", "metrics")

    def __init__(self, metrics: Metrics | None = None, listeners: tuple[Listener, ...] = ()) -> None:
        self.metrics = metrics
        self._listeners: tuple[Listener, ...] = ()
        self._wants: tuple[Callable[[str], bool], ...] = ()
        for listener in listeners:
            self.add(listener)

    def add(self, listener: Listener) -> None:
        if listener not in self._listeners:
            self._listeners = (*self._listeners, listener)
            self._wants = (*self._wants, getattr(listener, "wants", _always))

    def wanted(self, event: str) -> bool:
        """Whether anybody wants to know: asked before the fields of an event are gathered."""
        return any(wants(event) for wants in self._wants)

    def registered(self, tool: Tool) -> None:
        """A tool can be called from now on."""
        if self.metrics is not None:
            ttl = {
                "done": tool.ttl.done_ms / 1000,
                "failed": tool.ttl.failed_ms / 1000,
                "inflight": tool.ttl.lease_ms / 1000,
            }
            self.metrics.described(tool.full_name, scope=tool.spec.scope, effect=tool.spec.effect or "", ttl_s=ttl)

    def render(self) -> str:
        return "" if self.metrics is None else self.metrics.render()

    def _emit(self, event: str, fields: Mapping[str, Any]) -> None:
        for listener in self._listeners:
            try:
                listener.emit(event, fields)
            except Exception:
                log.exception("a listener failed on %s", event)

    def _fields(self, call: Call, **more: Any) -> dict[str, Any]:
        fields: dict[str, Any] = {
            "requestId": call.request_id,
            "toolName": call.tool.spec.name,
            "toolNamespace": call.tool.spec.namespace,
            "toolCallId": call.call_id,
            "sessionKey": call.session,
            "idempotencyKeyHash": call.fingerprint,
            "correlationId": call.correlation_id,
            **more,
        }
        if call.tags:
            fields["requestTags"] = call.tags
        if call.baggage:
            fields["baggage"] = dict(call.baggage)
        if call.traceparent:
            fields["traceparent"] = call.traceparent
        return fields

    # -- the life of a call --------------------------------------------------------------------------------------

    def start(self, call: Call) -> None:
        self._emit("tool_call_start", self._fields(call, state="start", attempt=0))

    def end(self, call: Call, outcome: Outcome, duration_ms: float) -> None:
        if self.metrics is not None:
            self.metrics.call_ended(call.tool.full_name, outcome.status, call.tool.spec.scope, duration_ms)
        if not self._listeners:
            return
        blocked = outcome.attempts == 0 and not outcome.from_cache and outcome.status != "success"
        event = "tool_call_blocked" if blocked else "tool_call_end"
        if not self.wanted(event):
            return
        fields = self._fields(
            call,
            state=outcome.status,
            status=outcome.status,
            scope=call.tool.spec.scope,
            attempt=outcome.attempts,
            elapsedMs=round(duration_ms, 3),
            fromCache=outcome.from_cache,
            breakerState=outcome.breaker,
        )
        if outcome.status != "success":
            fields["errorCode"] = outcome.code
            fields["retriable"] = outcome.retriable
            fields["reason"] = outcome.reason
            fields["errorMessage"] = outcome.message
            if outcome.unclassified:
                fields["unclassified"] = True
        self._emit(event, fields)

    def retry(self, call: Call, attempt: int, failure: Failure, delay_ms: float) -> None:
        if self.metrics is not None:
            self.metrics.retried(call.tool.full_name, failure.code)
        if self._listeners:
            fields = self._fields(
                call, state="retry", attempt=attempt, errorCode=failure.code, retriable=True, delayMs=round(delay_ms, 3)
            )
            fields["unclassified"] = failure.unclassified
            self._emit("tool_call_retry", fields)

    def hit(self, call: Call, state: str) -> None:
        if self.metrics is not None:
            self.metrics.hit(call.tool.full_name, state)

    def transition(self, key: str, transition: Transition) -> None:
        if self.metrics is not None:
            self.metrics.breaker(key, transition.from_state, transition.to_state)
        self._emit(
            "tool_call_circuit_state",
            {
                "toolName": key,
                "fromState": transition.from_state,
                "toState": transition.to_state,
                "breakerState": transition.to_state,
                "reason": transition.reason,
            },
        )

    # -- what should not happen ----------------------------------------------------------------------------------

    def _warn(self, event: str, call: Call, **more: Any) -> None:
        if self._listeners:
            self._emit(event, self._fields(call, **more))

    def conflict(self, call: Call) -> None:
        self._warn("tool_idempotency_conflict", call)
        if self.metrics is not None:
            self.metrics.hit(call.tool.full_name, "conflict")

    def outage(self, call: Call, error: StoreError, fail_open: bool) -> None:
        self._warn("tool_store_outage", call, errorCode=error.code, errorMessage=error.message, failOpen=fail_open)
        if self.metrics is not None:
            self.metrics.hit(call.tool.full_name, "store_outage_open" if fail_open else "store_outage_closed")

    def fenced(self, call: Call) -> None:
        self._warn("tool_call_fenced", call)
        if self.metrics is not None:
            self.metrics.hit(call.tool.full_name, "fenced")

    def late(self, call: Call, settled: bool) -> None:
        self._warn("tool_call_late_result", call, settled=settled)

    def shadow(self, call: Call, verdict: str) -> None:
        self._warn("tool_call_shadow", call, wouldHave=verdict)
        if self.metrics is not None:
            self.metrics.hit(call.tool.full_name, f"shadow_{verdict}")

    def invalid(self, tool: str, code: str) -> None:
        if self.metrics is not None:
            self.metrics.call_ended("unknown" if code == "unknown_tool" else "invalid", "error", "session", 0.0)
        self._emit("tool_call_blocked", {"toolName": tool, "state": "error", "errorCode": code, "retriable": False})
