"""R11: the ``tool_execution`` span, its children and attributes, and the metrics, with the real SDK."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry import context, metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF

import antiphon
from antiphon.redact import Redactor
from antiphon.telemetry import otel as module
from antiphon.telemetry._metrics import STORE_UP
from antiphon.telemetry.otel import OtelListener
from tests.unit.redact.corpus import Forge, in_text, tokens

REDACTOR = Redactor(salt="unit")


def fields(request: str = "r-1", **more: Any) -> dict[str, Any]:
    return {
        "requestId": request,
        "toolName": "send_email",
        "toolNamespace": "tools",
        "toolCallId": "toolu_01A09q90qw90lq917835lq9",
        "sessionKey": "session-1",
        "idempotencyKeyHash": "9f86d081884c7d65",
        "correlationId": None,
        **more,
    }


class Bench:
    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.reader = InMemoryMetricReader()
        self.meters = MeterProvider([self.reader])
        self.listener = OtelListener(self.provider, self.meters, redactor=REDACTOR, now_ns=lambda: 10**18)

    def spans(self) -> list[ReadableSpan]:
        return list(self.exporter.get_finished_spans())

    def span(self, name: str = "tool_execution") -> ReadableSpan:
        (found,) = [span for span in self.spans() if span.name == name]
        return found

    def points(self) -> dict[str, list[Any]]:
        data = self.reader.get_metrics_data()
        assert data is not None
        return {
            metric.name: list(metric.data.data_points)
            for resource in data.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
        }


def leave() -> None:
    """Forget calls whose end was told elsewhere, or never."""
    module._current.set(None)
    context.attach(context.Context())


@pytest.fixture
def bench() -> Iterator[Bench]:
    yield Bench()
    assert module._current.get() is None
    assert not trace.get_current_span().get_span_context().is_valid


def test_a_call_is_a_span_with_the_documented_attributes(bench: Bench) -> None:
    bench.listener.emit("tool_call_start", fields())
    bench.listener.emit(
        "tool_call_end", fields(status="success", attempt=2, elapsedMs=5.0, fromCache=False, breakerState="HALF_OPEN")
    )
    attributes = dict(bench.span().attributes or {})
    assert attributes["tool.name"] == "tools/send_email"
    assert attributes["idempotency.key"] == "9f86d081884c7d65"
    assert attributes["retry.attempt"] == 2
    assert attributes["breaker.state"] == "HALF_OPEN"
    assert attributes["gen_ai.operation.name"] == "execute_tool"
    assert attributes["gen_ai.tool.name"] == "send_email"
    assert attributes["gen_ai.tool.type"] == "function"
    assert attributes["gen_ai.tool.call.id"] == "toolu_01A09q90qw90lq917835lq9"
    assert attributes["gen_ai.conversation.id"] == "session-1"
    assert attributes["antiphon.status"] == "success"
    assert bench.span().status.status_code is trace.StatusCode.UNSET


def test_a_failure_is_an_error_with_its_code(bench: Bench) -> None:
    bench.listener.emit("tool_call_start", fields())
    bench.listener.emit("tool_call_end", fields(status="error", errorCode="outcome_unknown", errorMessage="timed out"))
    span = bench.span()
    assert span.status.status_code is trace.StatusCode.ERROR
    assert span.status.description == "timed out"
    assert (span.attributes or {})["error.type"] == "outcome_unknown"


def test_a_blocked_call_is_a_span_too(bench: Bench) -> None:
    bench.listener.emit("tool_call_start", fields())
    bench.listener.emit(
        "tool_call_blocked", fields(status="circuit_open", errorCode="circuit_open", breakerState="OPEN")
    )
    assert (bench.span().attributes or {})["antiphon.blocked"] is True


def test_a_retry_wait_is_a_child_span_as_long_as_the_wait(bench: Bench) -> None:
    bench.listener.emit("tool_call_start", fields())
    bench.listener.emit("tool_call_retry", fields(attempt=1, errorCode="http_503", delayMs=120.5))
    bench.listener.emit("tool_call_end", fields(status="success", attempt=2))
    wait, call = bench.span("retry_wait"), bench.span()
    assert wait.parent is not None
    assert call.context is not None
    assert wait.parent.span_id == call.context.span_id
    assert (wait.end_time or 0) - (wait.start_time or 0) == 120_500_000
    assert (wait.attributes or {})["retry.reason"] == "http_503"


def test_downstream_spans_are_children_of_the_call(bench: Bench) -> None:
    tracer = bench.provider.get_tracer("downstream")
    bench.listener.emit("tool_call_start", fields())
    tracer.start_span("http").end()
    bench.listener.emit("tool_call_end", fields(status="success", attempt=1))
    tracer.start_span("after").end()
    call, http = bench.span(), bench.span("http")
    assert call.context is not None
    assert http.parent is not None
    assert http.parent.span_id == call.context.span_id
    assert bench.span("after").parent is None


@pytest.mark.parametrize("timeout", [None, 5.0])
def test_what_a_tool_calls_is_a_child_also_on_a_thread_of_its_own(bench: Bench, timeout: float | None) -> None:
    gateway = antiphon.Gateway(store="memory:")
    gateway.listen(bench.listener)

    @gateway.tool(idempotent=True, timeout=timeout)
    def step() -> None:
        bench.provider.get_tracer("d").start_span("inside").end()

    step()
    call, inside = bench.span(), bench.span("inside")
    assert call.context is not None
    assert inside.parent is not None
    assert inside.parent.span_id == call.context.span_id


def test_the_callers_trace_is_continued(bench: Bench) -> None:
    parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    bench.listener.emit("tool_call_start", fields(traceparent=parent))
    bench.listener.emit("tool_call_end", fields(status="success"))
    span = bench.span()
    assert span.context is not None
    assert f"{span.context.trace_id:032x}" == "4bf92f3577b34da6a3ce929d0e0e4736"
    assert span.parent is not None
    assert f"{span.parent.span_id:016x}" == "00f067aa0ba902b7"


def test_a_call_inside_a_call(bench: Bench) -> None:
    bench.listener.emit("tool_call_start", fields("outer"))
    bench.listener.emit("tool_call_start", fields("inner"))
    bench.listener.emit("tool_call_end", fields("inner", status="success"))
    bench.provider.get_tracer("d").start_span("later").end()
    bench.listener.emit("tool_call_end", fields("outer", status="success"))
    inner, later, outer = bench.spans()
    assert outer.context is not None
    for child in (inner, later):
        assert child.parent is not None
        assert child.parent.span_id == outer.context.span_id


async def test_parallel_calls_keep_their_own_spans_even_with_one_request_id(bench: Bench) -> None:
    async def call(n: int) -> None:
        bench.listener.emit("tool_call_start", fields("same", correlationId=f"c{n}"))
        await asyncio.sleep(0)
        bench.provider.get_tracer("d").start_span(f"child-{n}").end()
        bench.listener.emit("tool_call_end", fields("same", status="success", attempt=n))

    await asyncio.gather(*(call(n) for n in range(5)))
    calls = {span.context.span_id: span for span in bench.spans() if span.name == "tool_execution" and span.context}
    assert len(calls) == 5
    for n in range(5):
        parent = bench.span(f"child-{n}").parent
        assert parent is not None
        attributes = calls[parent.span_id].attributes or {}
        assert attributes["antiphon.correlation.id"] == f"c{n}"
        assert attributes["retry.attempt"] == n


def test_no_secret_reaches_a_span(bench: Bench) -> None:
    planted = tokens(Forge(61)) + in_text(Forge(62))
    for one in planted:
        baggage = {"note": one.text, "password": "hunter2"}
        bench.listener.emit("tool_call_start", fields(requestTags=[one.text], baggage=baggage, correlationId=one.text))
        bench.listener.emit("tool_call_retry", fields(errorCode=one.text, delayMs=1))
        bench.listener.emit("tool_store_outage", fields(errorMessage=one.text))
        bench.listener.emit("tool_call_end", fields(status="error", errorCode="x", errorMessage=one.text))
    text = "".join(span.to_json() for span in bench.spans())
    assert [one.kind for one in planted if len(one.secret) > 6 and one.secret in text] == []
    assert "hunter2" not in text


def test_other_events_are_notes_on_the_span(bench: Bench) -> None:
    bench.listener.emit("tool_call_start", fields())
    bench.listener.emit(
        "tool_call_circuit_state", {"toolName": "tool/tools/send_email", "fromState": "CLOSED", "toState": "OPEN"}
    )
    bench.listener.emit("tool_call_end", fields(status="success"))
    (event,) = bench.span().events
    assert event.name == "tool_call_circuit_state"
    assert (event.attributes or {})["toState"] == "OPEN"


def test_a_bound_tool_counts_like_any_call(bench: Bench) -> None:
    counter = bench.listener._metrics
    assert counter is not None
    ended = counter.bound("tools/pay", "success", "session")
    for tool, duration in (("tools/pay", 2.0), ("tools/pay", 3.0), ("tools/find", 4.0)):
        counter.call_ended(tool, "success", "session", duration)
        ended(duration)
    counter.call_ended("tools/pay", "odd", "session", 1.0)
    counted = {tuple(point.attributes.values()): point.value for point in bench.points()["antiphon_tool_calls"]}
    timed = {tuple(point.attributes.values()): point.sum for point in bench.points()["antiphon_tool_call_duration_ms"]}
    assert counted == {
        ("tools/pay", "success", "session"): 5,
        ("tools/find", "success", "session"): 1,
        ("tools/pay", "other", "session"): 1,
    }
    assert timed == {("tools/pay", "success"): 14.0, ("tools/find", "success"): 4.0, ("tools/pay", "other"): 1.0}


def test_metrics_have_the_documented_names(bench: Bench) -> None:
    bench.listener.described("tools/send_email", scope="session", effect="write", ttl_s={"done": 1.0})
    bench.listener.emit("tool_call_start", fields())
    bench.listener.emit("tool_call_retry", fields(errorCode="http_503", delayMs=1))
    bench.listener.emit("tool_call_end", fields(status="success", elapsedMs=7.0, fromCache=True))
    bench.listener.emit("tool_call_circuit_state", {"toolName": "tool/t", "fromState": "CLOSED", "toState": "OPEN"})
    bench.listener.dedupe({("tools/send_email", "stale"): 2, ("tools/send_email", "unknown_1d"): 3})
    bench.listener.sampled(STORE_UP, {("sqlite:///a.db",): 1.0})
    points = bench.points()
    assert set(points) == {
        "antiphon_tool_calls",
        "antiphon_tool_call_duration_ms",
        "antiphon_tool_retry_attempts",
        "antiphon_tool_idempotency_hits",
        "antiphon_tool_dedupe_cache_size",
        "antiphon_tool_dedupe_ttl_seconds",
        "antiphon_tool_circuit_breaker_state",
        "antiphon_tool_circuit_breaker_transitions",
        "antiphon_tool_dedupe_inflight",
        "antiphon_tool_info",
        "antiphon_tool_unknown_outcomes",
        "antiphon_store_up",
    }
    (calls,) = points["antiphon_tool_calls"]
    assert dict(calls.attributes) == {"tool": "tools/send_email", "status": "success", "scope": "session"}
    assert calls.value == 1
    unknown = {dict(point.attributes)["age"]: point.value for point in points["antiphon_tool_unknown_outcomes"]}
    assert unknown == {"new": 0, "1h": 0, "1d": 3}


@pytest.mark.parametrize("listens", ["before", "after"])
def test_a_registered_tool_is_described_before_its_first_call(bench: Bench, listens: str) -> None:
    gateway = antiphon.Gateway(store="memory:")
    if listens == "before":
        gateway.listen(bench.listener)

    @gateway.tool(idempotent=True, effect="read", scope="global", ttl={"done_ms": 60_000})
    def rate() -> None: ...

    if listens == "after":
        gateway.listen(bench.listener)
    points = bench.points()
    (info,) = points["antiphon_tool_info"]
    assert dict(info.attributes) == {"tool": "tools/rate", "effect": "read"}
    assert {point.value for point in points["antiphon_tool_idempotency_hits"]} == {0}
    kept = {dict(point.attributes)["state"]: point.value for point in points["antiphon_tool_dedupe_ttl_seconds"]}
    assert kept["done"] == 60
    rate()
    gateway.metrics()
    (cached,) = [one for one in bench.points()["antiphon_tool_dedupe_cache_size"] if one.value]
    assert dict(cached.attributes) == {"tool": "tools/rate", "scope": "global"}


def test_a_listener_may_keep_samples_only_and_may_fail_on_a_registration() -> None:
    told: list[str] = []

    class Samples:
        def emit(self, event: str, fields: Any) -> None: ...

        def sampled(self, metric: Any, values: Any) -> None:
            told.append(metric.name)

        def dedupe(self, counts: Any) -> None: ...

    class Failing(Samples):
        def described(self) -> str:
            return "something else"

    gateway = antiphon.Gateway(store="memory:")
    gateway.listen(Samples())
    gateway.listen(Failing())

    @gateway.tool(idempotent=True)
    def find() -> str:
        return "found"

    assert find() == "found"
    gateway.metrics()
    assert told.count("store_up") == 2


def test_the_prefix_of_the_settings_applies(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    get_meter = metrics.get_meter
    monkeypatch.setattr(metrics, "get_meter", lambda name, version, provider: get_meter(name, version, bench.meters))
    gateway = antiphon.Gateway(store="memory:", config={"telemetry": {"otel": True, "prefix": "shop"}})

    @gateway.tool(idempotent=True)
    def find() -> None: ...

    find()
    assert {name.partition("_")[0] for name in bench.points()} == {"shop"}


def test_unsampled_calls_get_no_attributes_but_carry_the_decision() -> None:
    provider = TracerProvider(sampler=ALWAYS_OFF)
    quiet = OtelListener(provider, redactor=REDACTOR, metrics=False)
    quiet.emit("tool_call_start", fields())
    assert not trace.get_current_span().is_recording()
    assert trace.get_current_span().get_span_context().is_valid
    quiet.emit("tool_call_end", fields(status="success"))
    assert quiet._open == {}


def test_without_an_sdk_nothing_is_kept() -> None:
    quiet = OtelListener(trace.NoOpTracerProvider(), redactor=REDACTOR, metrics=False)
    quiet.emit("tool_call_start", fields())
    assert quiet._open == {}
    quiet.emit("tool_call_retry", fields(delayMs=1))
    quiet.emit("tool_call_end", fields(status="success"))


def test_calls_that_never_end_are_not_kept_for_ever(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST_OPEN", 3)
    for n in range(10):
        bench.listener.emit("tool_call_start", fields(f"r-{n}"))
    assert len(bench.listener._open) == 3
    assert len(bench.spans()) == 7
    for n in reversed(range(10)):
        bench.listener.emit("tool_call_end", fields(f"r-{n}", status="success"))
    assert len(bench.spans()) == 10
    leave()
