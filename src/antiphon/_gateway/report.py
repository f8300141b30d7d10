"""Reports what the gateway decided: one place turns calls into log lines, counts and spans (R11)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

from antiphon._gateway.outcome import Outcome
from antiphon._gateway.tool import Tool
from antiphon._late import traceback_of
from antiphon.decide.breaker import Transition
from antiphon.decide.failure import Failure
from antiphon.errors import StoreError
from antiphon.ports import Listener

log = logging.getLogger("antiphon.telemetry")

_AT_ONCE: tuple[str, int, bool, str | None] = ("success", 1, False, None)
"""Status, attempts, whether a record answered, and breaker of a call that simply succeeded."""
Listeners = tuple[Listener, ...]
Tally = Callable[[float], None]
"""Counts one more call with its duration in milliseconds."""


class Metrics(Protocol):
    """What is counted on every call; the built-in registry and Prometheus both implement it."""

    def call_ended(self, tool: str, status: str, scope: str, duration_ms: float) -> None: ...

    def bound(self, tool: str, status: str, scope: str, hit: str = "") -> Tally:
        """:meth:`call_ended` for fixed labels, and :meth:`hit` where *hit* names a state."""

    def retried(self, tool: str, reason: str) -> None: ...

    def hit(self, tool: str, state: str) -> None: ...

    def undone(self, tool: str, state: str) -> None: ...

    def breaker(self, key: str, before: str, after: str) -> None: ...

    def described(self, tool: str, *, scope: str, effect: str, ttl_s: Mapping[str, float]) -> None: ...

    def dedupe(self, counts: Mapping[tuple[str, str], int]) -> None: ...

    def sampled(self, metric: Any, values: Mapping[tuple[str, ...], float]) -> None: ...

    def render(self) -> str: ...


class TraceData(NamedTuple):
    """What an envelope, or a hook, says about a call that only listeners need."""

    correlation_id: str | None = None
    tags: list[str] | None = None
    baggage: Mapping[str, str] | None = None
    traceparent: str | None = None
    from_hook: str | None = None
    """The hook that supplied the key."""


class Subject(Protocol):
    """What is reported about a call."""

    @property
    def tool(self) -> Tool: ...

    @property
    def request_id(self) -> str: ...

    @property
    def call_id(self) -> str | None: ...

    @property
    def place(self) -> tuple[str, str, str | None]:
        """Session, actor and workspace."""

    @property
    def fingerprint(self) -> str:
        """Identifies the claim outside the store."""

    @property
    def trace_data(self) -> TraceData | None: ...


class Tallies(dict[tuple[str, str], Tally]):
    """The counters of one tool by status and, for answers from a record, its state; bound on first use."""

    def __init__(self, metrics: Metrics | None, tool: Tool) -> None:
        super().__init__()
        self._metrics = metrics
        self._labels = (tool.full_name, tool.spec.scope)

    def __missing__(self, key: tuple[str, str]) -> Tally:
        name, scope = self._labels
        status, hit = key
        tally = self[key] = _uncounted if self._metrics is None else self._metrics.bound(name, status, scope, hit)
        return tally


def _uncounted(duration_ms: float) -> None:
    """Counts nothing."""


def _describe(listener: Any, name: str, what: Mapping[str, Any]) -> None:
    """Tell the registry, or a listener that keeps metrics of its own, about a registered tool."""
    if callable(getattr(listener, "described", None)):
        try:
            listener.described(name, **what)
        except Exception as error:
            log.error("a listener failed on the registration of %s\n%s", name, traceback_of(error))


def _always(event: str) -> bool:
    """A listener that does not say what it wants receives everything."""
    return True


class Reporter:
    """Fans out to metrics and listeners. A listener that raises never fails the call."""

    __slots__ = ("_described", "_listeners", "metrics")

    def __init__(self, metrics: Metrics | None = None, listeners: Listeners = ()) -> None:
        self.metrics: Metrics | None = metrics
        self._listeners: Listeners = ()
        self._described: dict[str, dict[str, Any]] = {}
        for listener in listeners:
            self.add(listener)

    def add(self, listener: Listener) -> None:
        if listener not in self._listeners:
            self._listeners = (*self._listeners, listener)
            for name, what in tuple(self._described.items()):
                _describe(listener, name, what)

    def who_wants(self, event: str) -> Listeners:
        """The listeners that currently want *event*."""
        return tuple(one for one in self._listeners if getattr(one, "wants", _always)(event))

    def registered(self, tool: Tool) -> None:
        """A tool can be called from now on."""
        ttl = tool.ttl
        what = self._described[tool.full_name] = {
            "scope": tool.spec.scope,
            "effect": tool.spec.effect or "",
            "ttl_s": {"done": ttl.done_ms / 1000, "failed": ttl.failed_ms / 1000, "inflight": ttl.lease_ms / 1000},
        }
        for listener in (self.metrics, *self._listeners):
            _describe(listener, tool.full_name, what)

    def dedupe(self, counts: Mapping[tuple[str, str], int]) -> None:
        """Set the number of the store's records by tool and state."""
        for sink in self._sinks():
            sink.dedupe(counts)

    def sampled(self, metric: Any, values: Mapping[tuple[str, ...], float]) -> None:
        """Set the current values of a gauge."""
        for sink in self._sinks():
            sink.sampled(metric, values)

    def _sinks(self) -> list[Any]:
        """The registry, and listeners that keep metrics of their own."""
        found = (self.metrics, *self._listeners)
        return [sink for sink in found if callable(getattr(sink, "sampled", None))]

    def render(self) -> str:
        return "" if self.metrics is None else self.metrics.render()

    def tell(self, listeners: Listeners, event: str, fields: Mapping[str, Any]) -> None:
        for listener in listeners:
            try:
                listener.emit(event, fields)
            except Exception as error:
                log.error("a listener failed on %s\n%s", event, traceback_of(error))

    # -- the life of a call --------------------------------------------------------------------------------------

    def started(self, call: Subject, listeners: Listeners) -> None:
        fields = _fields(call)
        fields["state"], fields["attempt"] = "start", 0
        self.tell(listeners, "tool_call_start", fields)

    def ended(
        self, call: Subject, outcome: Outcome | None, duration_ms: float, event: str, listeners: Listeners
    ) -> None:
        """The end of a call; ``None``: it succeeded at the first attempt, and there is nothing more to say."""
        status, attempt, from_cache, breaker = _AT_ONCE
        if outcome is not None:
            status, attempt, from_cache, breaker = outcome.status, outcome.attempts, outcome.from_cache, outcome.breaker
        fields = _fields(call)
        fields |= {
            "state": status,
            "status": status,
            "scope": call.tool.spec.scope,
            "attempt": attempt,
            "elapsedMs": round(duration_ms, 3),
            "fromCache": from_cache,
            "breakerState": breaker,
        }
        if outcome is not None and status != "success":
            fields["errorCode"] = outcome.code
            fields["retriable"] = outcome.retriable
            fields["reason"] = outcome.reason
            fields["errorMessage"] = outcome.message
            if outcome.unclassified:
                fields["unclassified"] = True
        self.tell(listeners, event, fields)

    def retry(self, call: Subject, attempt: int, failure: Failure, delay_ms: float) -> None:
        if self.metrics is not None:
            self.metrics.retried(call.tool.full_name, failure.code)
        self._warn(
            "tool_call_retry",
            call,
            state="retry",
            attempt=attempt,
            errorCode=failure.code,
            retriable=True,
            delayMs=round(delay_ms, 3),
            unclassified=failure.unclassified,
        )

    def hit(self, call: Subject, state: str) -> None:
        if self.metrics is not None:
            self.metrics.hit(call.tool.full_name, state)

    def transition(self, key: str, transition: Transition) -> None:
        if self.metrics is not None:
            self.metrics.breaker(key, transition.from_state, transition.to_state)
        fields = {
            "toolName": key,
            "fromState": transition.from_state,
            "toState": transition.to_state,
            "breakerState": transition.to_state,
            "reason": transition.reason,
        }
        self.tell(self._listeners, "tool_call_circuit_state", fields)

    # -- what should not happen ----------------------------------------------------------------------------------

    def _warn(self, event: str, call: Subject, **more: Any) -> None:
        if self._listeners:
            self.tell(self._listeners, event, {**_fields(call), **more})

    def conflict(self, call: Subject) -> None:
        self._warn("tool_idempotency_conflict", call)
        self.hit(call, "conflict")

    def outage(self, call: Subject, error: StoreError, fail_open: bool) -> None:
        self._warn("tool_store_outage", call, errorCode=error.code, errorMessage=error.message, failOpen=fail_open)
        self.hit(call, "store_outage_open" if fail_open else "store_outage_closed")

    def approval(self, call: Subject, event: str, fields: Mapping[str, Any]) -> None:
        """A person has to decide, or has decided."""
        self._warn(event, call, **fields)

    def fenced(self, call: Subject) -> None:
        self._warn("tool_call_fenced", call)
        self.hit(call, "fenced")

    def undone(self, tool: Tool, state: str, why: str) -> None:
        """The result of undoing a write with its saga."""
        if self.metrics is not None:
            self.metrics.undone(tool.full_name, state)
        fields = {"toolName": tool.spec.name, "toolNamespace": tool.spec.namespace, "state": state, "reason": why}
        self.tell(self._listeners, "tool_call_undo", fields)

    def late(self, call: Subject, settled: bool) -> None:
        self._warn("tool_call_late_result", call, settled=settled)

    def shadow(self, call: Subject, verdict: str) -> None:
        self._warn("tool_call_shadow", call, wouldHave=verdict)
        self.hit(call, f"shadow_{verdict}")

    def invalid(self, tool: str, code: str) -> None:
        if self.metrics is not None:
            self.metrics.call_ended("unknown" if code == "unknown_tool" else "invalid", "error", "session", 0.0)
        fields = {"toolName": tool, "state": "error", "errorCode": code, "retriable": False}
        self.tell(self._listeners, "tool_call_blocked", fields)


def _fields(call: Subject) -> dict[str, Any]:
    spec, trace_data = call.tool.spec, call.trace_data
    fields: dict[str, Any] = {
        "requestId": call.request_id,
        "toolName": spec.name,
        "toolNamespace": spec.namespace,
        "toolCallId": call.call_id,
        "sessionKey": call.place[0],
        "idempotencyKeyHash": call.fingerprint,
        "correlationId": None if trace_data is None else trace_data.correlation_id,
    }
    if trace_data is not None:
        if trace_data.tags:
            fields["requestTags"] = trace_data.tags
        if trace_data.baggage:
            fields["baggage"] = dict(trace_data.baggage)
        if trace_data.traceparent:
            fields["traceparent"] = trace_data.traceparent
        if trace_data.from_hook:
            fields["fromHook"] = trace_data.from_hook
    return fields
