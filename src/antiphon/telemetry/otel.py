"""Spans and metrics for OpenTelemetry (R11): ``tool_execution`` with the document's attributes and the GenAI ones.

A span is opened by ``tool_call_start`` and closed by ``tool_call_end`` or ``tool_call_blocked``. In between it is the
current span of the task or thread, so that everything the tool calls becomes its child; a tool on a separate thread
inherits the context. The wait before a retry is a child span whose end is known in advance.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from antiphon._version import __version__
from antiphon.errors import missing_extra
from antiphon.telemetry import _metrics as schema

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.metrics import Meter, MeterProvider
    from opentelemetry.trace import Span, TracerProvider

    from antiphon._late import LateRedactor
    from antiphon.redact import Redactor

SPAN_NAME = "tool_execution"
WAIT_NAME = "retry_wait"
_MOST_OPEN = 10_000
_MOST_BAGGAGE = 16
_MOST_CLEANED = 1024


class _Open:
    """A call that has not ended yet."""

    __slots__ = ("around", "outer", "request", "span")

    def __init__(self, span: Span, request: str, outer: _Open | None, around: Context) -> None:
        self.span = span
        self.request = request
        self.outer = outer
        self.around = around


_current: ContextVar[_Open | None] = ContextVar("antiphon_open_call", default=None)


class OtelListener:
    """Reports what the gateway does to OpenTelemetry; the providers default to the process-wide ones.

    Attributes are set only on spans that are recorded. ``meter_provider=None`` uses the global one;
    ``metrics=False`` leaves metrics to the built-in registry.
    """

    def __init__(
        self,
        tracer_provider: TracerProvider | None = None,
        meter_provider: MeterProvider | None = None,
        *,
        redactor: Redactor | LateRedactor,
        prefix: str = "antiphon",
        metrics: bool = True,
        now_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        try:
            from opentelemetry import context, trace
            from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
        except ImportError:
            raise missing_extra("opentelemetry-api", "otel", "OtelListener") from None
        self._trace = trace
        self._context = context
        self._tracer = trace.get_tracer("antiphon", __version__, tracer_provider)
        self._extract = TraceContextTextMapPropagator().extract
        self._redactor = redactor
        self._now_ns = now_ns
        self._lock = threading.Lock()
        self._open: dict[str, list[_Open]] = {}
        self._number = 0
        self._cleaned = lru_cache(_MOST_CLEANED)(redactor.redact_text)
        self._metrics = OtelMetrics(meter_provider, prefix, redactor.redact_text) if metrics else None

    # -- the generic port ----------------------------------------------------------------------------------------

    def emit(self, event: str, fields: Mapping[str, Any]) -> None:
        """Open, annotate or close the span of the call that the event belongs to."""
        if event == "tool_call_start":
            self._start(fields)
        elif event in ("tool_call_end", "tool_call_blocked"):
            self._end(event, fields)
        elif event == "tool_call_retry":
            self._wait(fields)
        else:
            self._note(event, fields)
        if self._metrics is not None:
            self._metrics.emit(event, fields)

    def described(self, tool: str, *, scope: str, effect: str, ttl_s: Mapping[str, float]) -> None:
        """A tool was registered."""
        if self._metrics is not None:
            self._metrics.described(tool, scope=scope, effect=effect, ttl_s=ttl_s)

    def dedupe(self, counts: schema.Counts) -> None:
        """A sample of the claim store."""
        if self._metrics is not None:
            self._metrics.dedupe(counts)

    def sampled(self, metric: schema.Metric, values: schema.Values) -> None:
        """The current values of a gauge."""
        if self._metrics is not None:
            self._metrics.sampled(metric, values)

    # -- spans ---------------------------------------------------------------------------------------------------

    def _start(self, fields: Mapping[str, Any]) -> None:
        span = self._tracer.start_span(
            SPAN_NAME,
            context=self._parent(fields),
            attributes={
                "tool.name": self._clean(schema.tool_name(fields)),
                "gen_ai.operation.name": "execute_tool",
                "gen_ai.tool.name": self._clean(fields.get("toolName")),
                "gen_ai.tool.type": "function",
            },
        )
        if not span.get_span_context().is_valid:
            return  # nobody collects spans
        if span.is_recording():
            span.set_attributes(dict(self._identity(fields)))
        request = str(fields.get("requestId", ""))
        call = _Open(span, request, _current.get(), self._context.get_current())
        with self._lock:
            self._open.setdefault(request, []).append(call)
            self._number += 1
            lost = self._oldest() if self._number > _MOST_OPEN else None
        if lost is not None:
            lost.span.end()
        _current.set(call)
        self._context.attach(self._trace.set_span_in_context(span))

    def _parent(self, fields: Mapping[str, Any]) -> Context | None:
        """The caller's trace context, if the call has one; else the current one."""
        traceparent = fields.get("traceparent")
        return self._extract({"traceparent": str(traceparent)}) if traceparent else None

    def _identity(self, fields: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
        for attribute, name in (
            ("gen_ai.tool.call.id", "toolCallId"),
            ("gen_ai.conversation.id", "sessionKey"),
            ("idempotency.key", "idempotencyKeyHash"),
            ("antiphon.request.id", "requestId"),
            ("antiphon.correlation.id", "correlationId"),
        ):
            value = fields.get(name)
            if value:
                yield attribute, self._clean(value)
        tags = fields.get("requestTags")
        if tags:
            yield "antiphon.request.tags", [self._clean(tag) for tag in tags]
        baggage = fields.get("baggage")
        if isinstance(baggage, Mapping):
            for name, value in list(baggage.items())[:_MOST_BAGGAGE]:
                yield f"antiphon.baggage.{self._clean(name)}", str(self._redactor.redact(str(value), str(name)))

    def _end(self, event: str, fields: Mapping[str, Any]) -> None:
        call = self._close(str(fields.get("requestId", "")))
        if call is None:
            return
        span = call.span
        if span.is_recording():
            status = str(fields.get("status") or fields.get("state") or "")
            attributes: dict[str, Any] = {
                "retry.attempt": int(fields.get("attempt") or 0),
                "breaker.state": str(fields.get("breakerState") or "CLOSED"),
                "antiphon.status": status,
                "antiphon.from_cache": bool(fields.get("fromCache")),
                "antiphon.blocked": event == "tool_call_blocked",
            }
            if status != "success":
                code = self._clean(fields.get("errorCode") or status)
                attributes["error.type"] = code
                message = self._clean(fields.get("errorMessage") or fields.get("reason") or code)
                span.set_status(self._trace.Status(self._trace.StatusCode.ERROR, message))
            span.set_attributes(attributes)
        span.end()

    def _wait(self, fields: Mapping[str, Any]) -> None:
        call = self._find(str(fields.get("requestId", "")))
        if call is None or not call.span.is_recording():
            return
        begin = self._now_ns()
        wait = self._tracer.start_span(
            WAIT_NAME,
            context=self._trace.set_span_in_context(call.span),
            start_time=begin,
            attributes={
                "tool.name": self._clean(schema.tool_name(fields)),
                "retry.attempt": int(fields.get("attempt") or 0),
                "retry.reason": self._clean(fields.get("errorCode") or fields.get("reason")),
            },
        )
        wait.end(begin + int(float(fields.get("delayMs") or 0.0) * 1_000_000))

    def _note(self, event: str, fields: Mapping[str, Any]) -> None:
        """Anything else becomes a span event on the span in which it happened."""
        call = self._find(str(fields.get("requestId", ""))) or _current.get()
        if call is not None and call.span.is_recording():
            clean: dict[str, Any] = self._redactor.redact(dict(fields))
            call.span.add_event(event, {n: v for n, v in clean.items() if isinstance(v, (str, int, float, bool))})

    # -- which span belongs to which call --------------------------------------------------------------------------

    def _find(self, request: str) -> _Open | None:
        """Prefer the call of this task or thread: a request id can be in progress twice (a redelivery)."""
        mine = _current.get()
        while mine is not None:
            if mine.request == request and mine in self._open.get(request, ()):
                return mine
            mine = mine.outer
        others = self._open.get(request)
        return others[-1] if others else None

    def _close(self, request: str) -> _Open | None:
        with self._lock:
            call = self._find(request)
            if call is None:
                return None
            self._forget(call)
        if _current.get() is call:
            _current.set(call.outer)
        if self._trace.get_current_span() is call.span:
            # Not by token: a stream may end in a different task from the one it began in.
            self._context.attach(call.around)
        return call

    def _oldest(self) -> _Open:
        """Evict a call that never ended (its task was killed)."""
        call = next(iter(self._open.values()))[0]
        self._forget(call)
        return call

    def _forget(self, call: _Open) -> None:
        same = self._open[call.request]
        same.remove(call)
        if not same:
            del self._open[call.request]
        self._number -= 1

    def _clean(self, value: Any) -> str:
        return "" if value is None else self._cleaned(str(value))


class OtelMetrics(schema.Counter):
    """Counts into the meters of a provider.

    Names have no ``_total`` and metrics no unit: a Prometheus exporter adds the one and would add the other, so scraped
    names match the documented ones.
    """

    def __init__(self, provider: MeterProvider | None, prefix: str, clean: Callable[[str], str]) -> None:
        from opentelemetry import metrics

        meter = metrics.get_meter("antiphon", __version__, provider)
        self._instruments = {metric.name: _make(meter, metric, prefix) for metric in schema.METRICS}
        super().__init__(schema.MAX_TOOLS, clean)

    def _ended(self, tool: str, status: str, scope: str, hit: str) -> Callable[[float], None]:
        add, record = self._instruments[schema.CALLS.name].add, self._instruments[schema.DURATION.name].record
        counted, timed = {"tool": tool, "status": status, "scope": scope}, {"tool": tool, "status": status}

        def ended(duration_ms: float) -> None:
            add(1, counted)
            record(duration_ms, timed)
            if hit:
                self._add(schema.HITS, 1, tool, hit)

        return ended

    def _add(self, metric: schema.Metric, amount: float, *labels: str) -> None:
        self._instruments[metric.name].add(amount, dict(zip(metric.labels, labels, strict=True)))

    def _set(self, metric: schema.Metric, value: float, *labels: str) -> None:
        self._instruments[metric.name].set(value, dict(zip(metric.labels, labels, strict=True)))


def _make(meter: Meter, metric: schema.Metric, prefix: str) -> Any:
    name = f"{prefix}_{metric.name}"
    if metric.type == "counter":
        return meter.create_counter(name, description=metric.help)
    if metric.type == "gauge":
        return meter.create_gauge(name, description=metric.help)
    try:
        return meter.create_histogram(
            name, description=metric.help, explicit_bucket_boundaries_advisory=list(schema.BUCKETS_MS)
        )
    except TypeError:  # releases before 1.30 accept buckets only from a view
        return meter.create_histogram(name, description=metric.help)
