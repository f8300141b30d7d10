"""The metrics: one table for the built-in registry, Prometheus, OpenTelemetry, the alert rules and the docs (R11).

Label values are bounded in number and length, and free of secrets (R14); :func:`count` makes counts of events.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple, Protocol

Type = Literal["counter", "gauge", "histogram"]


class Metric(NamedTuple):
    """A metric without its prefix and without the ``_total`` of counters."""

    name: str
    type: Type
    labels: tuple[str, ...]
    help: str

    def full_name(self, prefix: str) -> str:
        """The name as it is scraped; a histogram's samples add ``_bucket``, ``_sum`` and ``_count``."""
        return f"{prefix}_{self.name}_total" if self.type == "counter" else f"{prefix}_{self.name}"


CALLS = Metric("tool_calls", "counter", ("tool", "status", "scope"), "Tool calls by outcome.")
DURATION = Metric("tool_call_duration_ms", "histogram", ("tool", "status"), "Duration of tool calls in milliseconds.")
RETRIES = Metric("tool_retry_attempts", "counter", ("tool", "reason"), "Retries by reason.")
HITS = Metric("tool_idempotency_hits", "counter", ("tool", "state"), "Calls answered from an earlier claim.")
CACHE_SIZE = Metric("tool_dedupe_cache_size", "gauge", ("tool", "scope"), "Claim records in the store.")
TTL = Metric("tool_dedupe_ttl_seconds", "gauge", ("tool", "state"), "How long a claim record is kept, by state.")
BREAKER = Metric("tool_circuit_breaker_state", "gauge", ("tool", "state"), "1 for the state the breaker is in, else 0.")
TRANSITIONS = Metric(
    "tool_circuit_breaker_transitions", "counter", ("tool", "from_state", "to_state"), "Breaker state transitions."
)
INFLIGHT = Metric("tool_dedupe_inflight", "gauge", ("tool", "stale"), "Claims in flight; stale: past their lease.")
INFO = Metric("tool_info", "gauge", ("tool", "effect"), "Always 1; says whether a tool reads or writes.")

METRICS = (CALLS, DURATION, RETRIES, HITS, CACHE_SIZE, TTL, BREAKER, TRANSITIONS, INFLIGHT, INFO)
"""The document's eight, the ninth of R11, and what tells read tools from write tools."""

BUCKETS_MS = (1.0, 2.5, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0, 500.0, 1000.0, 2500.0, 5000.0, 10000.0, 30000.0, 60000.0)
STATUSES = ("success", "error", "retriable_error", "retry_exhausted", "circuit_open", "timeout")
SCOPES = ("session", "global")
BREAKER_STATES = ("CLOSED", "OPEN", "HALF_OPEN", "FORCED_OPEN")
FIRST_HITS = ("done", "failed", "inflight", "conflict", "store_outage_open", "store_outage_closed")
FIRST_TRANSITIONS = (
    ("CLOSED", "OPEN"),
    ("OPEN", "HALF_OPEN"),
    ("HALF_OPEN", "OPEN"),
    ("HALF_OPEN", "CLOSED"),
)
"""Counters that begin with 0 when a tool is registered: Prometheus sees no increase from nothing to one."""

OTHER = "other"


MAX_TOOLS = 200
MAX_CODES = 64
_LONGEST = 128


class Labels:
    """Admits the first so many values; all later ones are counted together as ``other``."""

    __slots__ = ("_clean", "_known", "_lock", "_most")

    def __init__(self, most: int, clean: Callable[[str], str]) -> None:
        self._known: dict[str, str] = {}
        self._lock = threading.Lock()
        self._most = most
        self._clean = clean

    def __call__(self, value: str) -> str:
        """The label for *value*."""
        label = self._known.get(value)
        return self._admit(value) if label is None else label

    def _admit(self, value: str) -> str:
        with self._lock:
            if value not in self._known:
                if len(self._known) >= self._most:
                    return OTHER
                self._known[value] = self._clean(value[:_LONGEST]) or "none"
            return self._known[value]


def tool_of_breaker(key: str) -> str:
    """The ``tool`` label of a breaker: a tool's own goes by the tool's name, others keep theirs (``dependency/…``)."""
    return key.removeprefix("tool/")


Counts = Mapping[tuple[str, str], int]
"""Live claim records by (tool, state); ``stale`` is in flight past its lease (``Claims.counts``)."""


class Sink(Protocol):
    """Counts what happens. The gateway calls it directly; :func:`count` feeds it from events."""

    def call_ended(self, tool: str, status: str, scope: str, duration_ms: float) -> None: ...

    def bound(self, tool: str, status: str, scope: str, hit: str = "") -> Callable[[float], None]:
        """:meth:`call_ended` for one tool, status and scope: found once, to be called often with a duration.

        With *hit* the calls were answered from a claim in that state, and count as such, too (:meth:`hit`).
        """
        ...

    def retried(self, tool: str, reason: str) -> None: ...

    def hit(self, tool: str, state: str) -> None: ...

    def breaker(self, key: str, before: str, after: str) -> None: ...

    def described(self, tool: str, *, scope: str, effect: str, ttl_s: Mapping[str, float]) -> None:
        """A tool was registered: which scope and effect it has, and how long its records are kept."""
        ...

    def dedupe(self, counts: Counts) -> None:
        """A sample of the claim store, taken by whoever exposes the metrics."""
        ...


def tool_name(fields: Mapping[str, Any]) -> str:
    """``namespace/name``, as the metrics call a tool."""
    namespace = fields.get("toolNamespace")
    name = str(fields.get("toolName", ""))
    return f"{namespace}/{name}" if namespace else name


def count(sink: Sink, event: str, fields: Mapping[str, Any]) -> None:
    """Feed *sink* from an event of the generic port."""
    if event in ("tool_call_end", "tool_call_blocked"):
        tool = tool_name(fields)
        status = str(fields.get("status") or fields.get("state") or "error")
        sink.call_ended(tool, status, str(fields.get("scope") or "session"), float(fields.get("elapsedMs") or 0.0))
        if fields.get("fromCache"):
            sink.hit(tool, "done" if status == "success" else "failed")
    elif event == "tool_call_retry":
        sink.retried(tool_name(fields), str(fields.get("errorCode") or fields.get("reason") or "unknown"))
    elif event == "tool_call_circuit_state":
        sink.breaker(str(fields.get("toolName", "")), str(fields.get("fromState", "")), str(fields.get("toState", "")))


def by_tool(counts: Counts) -> tuple[dict[str, int], dict[str, tuple[int, int]]]:
    """The sample as records per tool, and as (fresh, stale) claims in flight per tool."""
    sizes: dict[str, int] = {}
    inflight: dict[str, tuple[int, int]] = {}
    for (tool, state), number in counts.items():
        sizes[tool] = sizes.get(tool, 0) + number
        fresh, stale = inflight.get(tool, (0, 0))
        if state == "inflight":
            fresh += number
        elif state == "stale":
            stale += number
        inflight[tool] = (fresh, stale)
    return sizes, inflight
