"""The metrics of :mod:`antiphon.telemetry._schema` as OpenTelemetry instruments.

Names have no ``_total`` and no unit: an exporter to Prometheus adds the one and would add the other, so what is
scraped there has the documented names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from antiphon._version import __version__
from antiphon.telemetry import _schema as schema
from antiphon.telemetry._labels import MAX_CODES, MAX_TOOLS, Labels, tool_of_breaker
from antiphon.telemetry._sink import Counts, by_tool

if TYPE_CHECKING:
    from opentelemetry.metrics import Meter, MeterProvider


class OtelMetrics:
    """Counts into the meters of a provider."""

    def __init__(self, provider: MeterProvider | None, prefix: str, clean: Callable[[str], str]) -> None:
        from opentelemetry import metrics

        meter = metrics.get_meter("antiphon", __version__, provider)
        self._instruments = {metric.name: _make(meter, metric, prefix) for metric in schema.METRICS}
        self._tool = Labels(MAX_TOOLS, clean)
        self._code = Labels(MAX_CODES, clean)
        self._quick: dict[tuple[str, str, str], Callable[[float], None]] = {}
        self._scopes: dict[str, str] = {}

    def call_ended(self, tool: str, status: str, scope: str, duration_ms: float) -> None:
        (self._quick.get((tool, status, scope)) or self.bound(tool, status, scope))(duration_ms)

    def bound(self, tool: str, status: str, scope: str, hit: str = "") -> Callable[[float], None]:
        """:meth:`call_ended` for one tool, status and scope: its attributes are put together once."""
        label = self._tool(tool)
        add, record = self._instruments[schema.CALLS.name].add, self._instruments[schema.DURATION.name].record
        counted, timed = {"tool": label, "status": status, "scope": scope}, {"tool": label, "status": status}

        def ended(duration_ms: float) -> None:
            add(1, counted)
            record(duration_ms, timed)
            if hit:
                self.hit(tool, hit)

        if not hit and label != schema.OTHER and status in schema.STATUSES and scope in schema.SCOPES:
            self._quick[(tool, status, scope)] = ended
        return ended

    def retried(self, tool: str, reason: str) -> None:
        self._instruments[schema.RETRIES.name].add(1, {"tool": self._tool(tool), "reason": self._code(reason)})

    def hit(self, tool: str, state: str) -> None:
        self._instruments[schema.HITS.name].add(1, {"tool": self._tool(tool), "state": self._code(state)})

    def breaker(self, key: str, before: str, after: str) -> None:
        tool = self._tool(tool_of_breaker(key))
        self._instruments[schema.TRANSITIONS.name].add(1, {"tool": tool, "from_state": before, "to_state": after})
        for state in schema.BREAKER_STATES:
            self._instruments[schema.BREAKER.name].set(float(state == after), {"tool": tool, "state": state})

    def described(self, tool: str, *, scope: str, effect: str, ttl_s: Mapping[str, float]) -> None:
        label = self._tool(tool)
        self._scopes[tool] = scope
        self._instruments[schema.INFO.name].set(1.0, {"tool": label, "effect": effect or "unset"})
        for state in schema.FIRST_HITS:
            self._instruments[schema.HITS.name].add(0, {"tool": label, "state": state})
        for state, seconds in ttl_s.items():
            self._instruments[schema.TTL.name].set(seconds, {"tool": label, "state": state})

    def dedupe(self, counts: Counts) -> None:
        sizes, inflight = by_tool(counts)
        for tool, size in sizes.items():
            label = self._tool(tool)
            scope = self._scopes.get(tool, "session")
            self._instruments[schema.CACHE_SIZE.name].set(size, {"tool": label, "scope": scope})
            for stale, number in zip(("false", "true"), inflight[tool], strict=True):
                self._instruments[schema.INFLIGHT.name].set(number, {"tool": label, "stale": stale})


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
    except TypeError:  # releases before 1.30 take the buckets from a view only
        return meter.create_histogram(name, description=metric.help)
