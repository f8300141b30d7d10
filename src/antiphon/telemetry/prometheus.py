"""The same metrics as objects of ``prometheus_client``: for its registry, its exporters and its multi-process mode."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from antiphon.errors import missing_extra
from antiphon.telemetry import _metrics as schema

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

_made: WeakKeyDictionary[Any, dict[str, _Shared]] = WeakKeyDictionary()
_making = threading.Lock()
_FLUSH_AT = 64
_MODES = {
    **dict.fromkeys(schema.OF_STORE, "mostrecent"),
    **dict.fromkeys((schema.INFO, schema.TTL), "max"),
    **dict.fromkeys((schema.UNRECORDED, schema.SAGAS), "livesum"),
}
"""How gauges of several processes are combined; for all others the worst living process counts."""


class _Calls:
    """The counters and the histogram of one tool, status and scope, and for answers from a claim also its state.

    A call only appends its duration, without a lock; a few dozen are passed to the client at a time, and all of them
    whenever the registry is read.
    """

    __slots__ = ("_counters", "_lock", "_observe", "_pending")

    def __init__(self, counters: list[Callable[[float], None]], observe: Callable[[float], None]) -> None:
        self._counters, self._observe = counters, observe
        self._lock = threading.Lock()
        self._pending: deque[float] = deque()

    def add(self, duration_ms: float) -> None:
        pending = self._pending
        pending.append(duration_ms)
        if len(pending) >= _FLUSH_AT:
            self.flush()

    def add_at_once(self, duration_ms: float) -> None:
        """For the multi-process mode, where another process reads the numbers."""
        for add in self._counters:
            add(1)
        self._observe(duration_ms)

    def flush(self) -> None:
        """Pass the pending durations to the client."""
        pending, observe = self._pending, self._observe
        with self._lock:
            number = 0
            try:
                for _ in range(len(pending)):
                    observe(pending.popleft())
                    number += 1
            finally:
                for add in self._counters:
                    add(number)


class _Shared:
    """The metrics of one prefix in one registry, for all listeners that count there."""

    def __init__(self, client: Any, prefix: str, registry: Any) -> None:
        self.metrics = {metric.name: _make(client, metric, prefix, registry) for metric in schema.METRICS}
        self.at_once: bool = getattr(client.values.ValueClass, "_multiprocess", True)
        """Whether the client is in its multi-process mode, where another process may read the numbers."""
        self._calls: dict[tuple[str, str, str, str], _Calls] = {}
        for metric in (schema.CALLS, schema.DURATION, schema.HITS):
            self._read_all(self.metrics[metric.name])

    def calls(self, tool: str, status: str, scope: str, hit: str) -> Callable[[float], None]:
        """Counts one call with these labels."""
        labels = (tool, status, scope, hit)
        calls = self._calls.get(labels)
        if calls is None:
            counters = [self.metrics[schema.CALLS.name].labels(tool, status, scope).inc]
            if hit:
                counters.append(self.metrics[schema.HITS.name].labels(tool, hit).inc)
            observe = self.metrics[schema.DURATION.name].labels(tool, status).observe
            calls = self._calls.setdefault(labels, _Calls(counters, observe))
        return calls.add_at_once if self.at_once else calls.add

    def _read_all(self, metric: Any) -> None:
        """Reading *metric* includes everything that was counted."""
        collect: Callable[[], Iterable[Any]] = metric.collect

        def collect_all() -> Iterable[Any]:
            for calls in list(self._calls.values()):
                calls.flush()
            return collect()

        metric.collect = collect_all


class PrometheusListener(schema.Counter):
    """Counts into *registry* (the process-wide one if none is given); children are looked up once.

    ``prefix="openclaw"`` produces exactly the document's names. Two listeners on one registry share their metrics.
    """

    def __init__(
        self,
        prefix: str = "antiphon",
        registry: CollectorRegistry | None = None,
        *,
        max_tools: int = schema.MAX_TOOLS,
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
                by_prefix[prefix] = _Shared(prometheus_client, prefix, self._registry)
            self._shared = by_prefix[prefix]
        self._metrics = self._shared.metrics
        self.prefix = prefix
        super().__init__(max_tools, clean)

    def _ended(self, tool: str, status: str, scope: str, hit: str) -> Callable[[float], None]:
        return self._shared.calls(tool, status, scope, hit)

    def _add(self, metric: schema.Metric, amount: float, *labels: str) -> None:
        self._metrics[metric.name].labels(*labels).inc(amount)

    def _set(self, metric: schema.Metric, value: float, *labels: str) -> None:
        self._metrics[metric.name].labels(*labels).set(value)

    def render(self) -> str:
        """Everything in the registry, in the text format; in multi-process mode, of all processes that share it."""
        if not self._shared.at_once:
            return self._latest(self._registry).decode()
        from prometheus_client import CollectorRegistry
        from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead

        folder = os.environ.get("PROMETHEUS_MULTIPROC_DIR", "")
        for pid in {_pid_of(file.stem) for file in Path(folder).glob("gauge_live*.db")}:
            if not _lives(pid):
                mark_process_dead(pid, folder)  # type: ignore[no-untyped-call]
        together = CollectorRegistry()
        MultiProcessCollector(together, folder)  # type: ignore[no-untyped-call]
        return self._latest(together).decode()


def _pid_of(name: str) -> int:
    """The process that wrote a file of the multi-process mode: ``gauge_livemax_4711``."""
    digits = name.rpartition("_")[2]
    return int(digits) if digits.isdecimal() else os.getpid()


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass
    return True


def _make(client: Any, metric: schema.Metric, prefix: str, registry: Any) -> Any:
    name = f"{prefix}_{metric.name}"
    if metric.type == "counter":
        return client.Counter(name, metric.help, metric.labels, registry=registry)
    if metric.type == "gauge":
        return client.Gauge(
            name, metric.help, metric.labels, registry=registry, multiprocess_mode=_MODES.get(metric, "livemax")
        )
    return client.Histogram(name, metric.help, metric.labels, buckets=schema.BUCKETS_MS, registry=registry)
