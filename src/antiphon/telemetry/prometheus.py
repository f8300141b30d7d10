"""The same metrics as objects of ``prometheus_client``: for its registry, its exporters and its multi-process mode."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from antiphon.errors import missing_extra
from antiphon.telemetry import _schema as schema
from antiphon.telemetry._labels import MAX_CODES, MAX_TOOLS, Labels, tool_of_breaker
from antiphon.telemetry._sink import Counts, by_tool, count

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

_made: WeakKeyDictionary[Any, dict[str, dict[str, Any]]] = WeakKeyDictionary()
_making = threading.Lock()


class PrometheusListener:
    """Counts into *registry* (the process-wide one if none is given); children are bound once.

    ``prefix="openclaw"`` gives exactly the document's names. Two listeners on one registry share their metrics.
    """

    def __init__(
        self,
        prefix: str = "antiphon",
        registry: CollectorRegistry | None = None,
        *,
        max_tools: int = MAX_TOOLS,
        clean: Callable[[str], str] = str,
    ) -> None:
        try:
            import prometheus_client
        except ImportError:
            raise missing_extra("prometheus-client", "prometheus", "PrometheusListener") from None
        self._registry = prometheus_client.REGISTRY if registry is None else registry
        self._latest = prometheus_client.generate_latest
        with _making:
            by_prefix = _made.setdefault(self._registry, {})
            if prefix not in by_prefix:
                by_prefix[prefix] = {
                    metric.name: _make(prometheus_client, metric, prefix, self._registry) for metric in schema.METRICS
                }
            self._metrics = by_prefix[prefix]
        self.prefix = prefix
        self._tool = Labels(max_tools, clean)
        self._code = Labels(MAX_CODES, clean)
        self._state = Labels(MAX_CODES, clean)
        self._quick: dict[tuple[str, str, str], tuple[Callable[[], None], Callable[[float], None]]] = {}
        self._scopes: dict[str, str] = {}
        self._sampled: set[tuple[str, str, str]] = set()

    def call_ended(self, tool: str, status: str, scope: str, duration_ms: float) -> None:
        bound = self._quick.get((tool, status, scope))
        if bound is None:
            bound = self._bind(tool, status, scope)
        add, observe = bound
        add()
        observe(duration_ms)

    def bound(self, tool: str, status: str, scope: str) -> Callable[[float], None]:
        """:meth:`call_ended` for one tool, status and scope: found once, to be called often."""
        add, observe = self._bind(tool, status, scope)

        def ended(duration_ms: float) -> None:
            add()
            observe(duration_ms)

        return ended

    def _bind(self, tool: str, status: str, scope: str) -> tuple[Callable[[], None], Callable[[float], None]]:
        label = self._tool(tool)
        shown = status if status in schema.STATUSES else schema.OTHER
        place = scope if scope in schema.SCOPES else schema.OTHER
        bound = (
            self._metrics[schema.CALLS.name].labels(label, shown, place).inc,
            self._metrics[schema.DURATION.name].labels(label, shown).observe,
        )
        if label != schema.OTHER and (shown, place) == (status, scope):
            self._quick[(tool, status, scope)] = bound
        return bound

    def retried(self, tool: str, reason: str) -> None:
        self._metrics[schema.RETRIES.name].labels(self._tool(tool), self._code(reason)).inc()

    def hit(self, tool: str, state: str) -> None:
        self._metrics[schema.HITS.name].labels(self._tool(tool), self._state(state)).inc()

    def breaker(self, key: str, before: str, after: str) -> None:
        tool = self._tool(tool_of_breaker(key))
        self._metrics[schema.TRANSITIONS.name].labels(tool, before, after).inc()
        for state in schema.BREAKER_STATES:
            self._metrics[schema.BREAKER.name].labels(tool, state).set(float(state == after))

    def described(self, tool: str, *, scope: str, effect: str, ttl_s: Mapping[str, float]) -> None:
        label = self._tool(tool)
        self._scopes[tool] = scope
        self._metrics[schema.INFO.name].labels(label, effect or "unset").set(1)
        for state in schema.FIRST_HITS:
            self._metrics[schema.HITS.name].labels(label, state)
        for before, after in schema.FIRST_TRANSITIONS:
            self._metrics[schema.TRANSITIONS.name].labels(label, before, after)
        for state, seconds in ttl_s.items():
            self._metrics[schema.TTL.name].labels(label, state).set(seconds)

    def dedupe(self, counts: Counts) -> None:
        sizes, inflight = by_tool(counts)
        values: dict[tuple[str, str, str], float] = dict.fromkeys(self._sampled, 0.0)
        for tool, size in sizes.items():
            label = self._tool(tool)
            place = (schema.CACHE_SIZE.name, label, self._scopes.get(tool, "session"))
            values[place] = values.get(place, 0.0) + size
            for stale, number in zip(("false", "true"), inflight[tool], strict=True):
                place = (schema.INFLIGHT.name, label, stale)
                values[place] = values.get(place, 0.0) + number
        for (name, *labels), value in values.items():
            self._metrics[name].labels(*labels).set(value)
        self._sampled = set(values)

    def emit(self, event: str, fields: Mapping[str, Any]) -> None:
        """The generic port, for whoever has events and no direct line."""
        count(self, event, fields)

    def render(self) -> str:
        """Everything in the registry, in the text format."""
        return self._latest(self._registry).decode()


def _make(client: Any, metric: schema.Metric, prefix: str, registry: Any) -> Any:
    name = f"{prefix}_{metric.name}"
    if metric.type == "counter":
        return client.Counter(name, metric.help, metric.labels, registry=registry)
    if metric.type == "gauge":
        return client.Gauge(name, metric.help, metric.labels, registry=registry)
    return client.Histogram(name, metric.help, metric.labels, buckets=schema.BUCKETS_MS, registry=registry)
