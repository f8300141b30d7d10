"""The metrics that are always on: plain numbers in this process, rendered in Prometheus' text format."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterator, Mapping

from antiphon.telemetry import _metrics as schema

_Series = dict[tuple[str, ...], float]
_FLUSH_AT = 1024


class _Calls:
    """Count, sum and buckets of one tool, status and scope.

    A call only appends its duration, without a lock; durations are summed a thousand at a time, or on read.
    """

    __slots__ = ("_lock", "_pending", "buckets", "sum")

    def __init__(self, lock: threading.Lock) -> None:
        self._lock = lock
        self._pending: deque[float] = deque()
        self.buckets = [0] * (len(schema.BUCKETS_MS) + 1)
        self.sum = 0.0

    def add(self, duration_ms: float) -> None:
        pending = self._pending
        pending.append(duration_ms)
        if len(pending) >= _FLUSH_AT:
            with self._lock:
                self.sum_up()

    def sum_up(self) -> None:
        """Add up the pending durations. The caller holds the lock."""
        pending, buckets, bounds = self._pending, self.buckets, schema.BUCKETS_MS
        for _ in range(len(pending)):
            duration_ms = pending.popleft()
            buckets[bisect_left(bounds, duration_ms)] += 1
            self.sum += duration_ms


class BuiltinMetrics(schema.Counter):
    """Counts calls, retries, reuse and breakers; ``render()`` returns what Prometheus scrapes."""

    def __init__(
        self, prefix: str = "antiphon", *, max_tools: int = schema.MAX_TOOLS, clean: Callable[[str], str] = str
    ) -> None:
        super().__init__(max_tools, clean)
        self.prefix = prefix
        self._lock = threading.Lock()
        self._calls: dict[tuple[str, str, str, str], _Calls] = {}
        """By tool, status, scope and the state of the claim that answered, if any."""
        self._series: dict[str, _Series] = {metric.name: {} for metric in schema.METRICS}

    def _ended(self, tool: str, status: str, scope: str, hit: str) -> Callable[[float], None]:
        return self._calls.setdefault((tool, status, scope, hit), _Calls(self._lock)).add

    def _add(self, metric: schema.Metric, amount: float, *labels: str) -> None:
        series = self._series[metric.name]
        with self._lock:
            series[labels] = series.get(labels, 0.0) + amount

    def _set(self, metric: schema.Metric, value: float, *labels: str) -> None:
        with self._lock:
            self._series[metric.name][labels] = value

    def render(self) -> str:
        """All metrics in the text format 0.0.4."""
        return "\n".join(self._lines()) + "\n"

    def _lines(self) -> Iterator[str]:
        with self._lock:
            for child in list(self._calls.values()):
                child.sum_up()
            calls = {key: (list(child.buckets), child.sum) for key, child in list(self._calls.items())}
            series = {name: dict(values) for name, values in self._series.items()}
        counted, hits = series[schema.CALLS.name], series[schema.HITS.name]
        for (tool, status, scope, hit), (buckets, _) in calls.items():
            number = sum(buckets)
            counted[tool, status, scope] = counted.get((tool, status, scope), 0.0) + number
            if hit:
                hits[tool, hit] = hits.get((tool, hit), 0.0) + number
        for metric in schema.METRICS:
            name = metric.full_name(self.prefix)
            yield f"# HELP {name} {metric.help}"
            yield f"# TYPE {name} {metric.type}"
            if metric is schema.DURATION:
                yield from _histogram(name, calls)
            else:
                for labels, value in sorted(series[metric.name].items()):
                    yield f"{name}{_labels(metric.labels, labels)} {_number(value)}"


def _histogram(name: str, calls: Mapping[tuple[str, str, str, str], tuple[list[int], float]]) -> Iterator[str]:
    """Scopes are summed: the document's histogram has the labels tool and status."""
    merged: dict[tuple[str, str], tuple[list[int], float]] = {}
    for (tool, status, _, _), (buckets, total) in sorted(calls.items()):
        before, sum_before = merged.get((tool, status), ([0] * len(buckets), 0.0))
        merged[(tool, status)] = ([a + b for a, b in zip(before, buckets, strict=True)], sum_before + total)
    bounds = [*map(repr, schema.BUCKETS_MS), "+Inf"]
    for labels, (buckets, total) in merged.items():
        reached = 0
        for bound, number in zip(bounds, buckets, strict=True):
            reached += number
            yield f"{name}_bucket{_labels((*schema.DURATION.labels, 'le'), (*labels, bound))} {reached}"
        yield f"{name}_sum{_labels(schema.DURATION.labels, labels)} {_number(total)}"
        yield f"{name}_count{_labels(schema.DURATION.labels, labels)} {reached}"


def _labels(names: tuple[str, ...], values: tuple[str, ...]) -> str:
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in zip(names, values, strict=True)) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: float) -> str:
    return str(int(value)) if value.is_integer() else repr(value)
