"""The metrics: one table for the built-in registry, Prometheus, OpenTelemetry, the alert rules and the docs (R11)."""

from __future__ import annotations

from typing import Literal, NamedTuple

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
RETRIES = Metric("tool_retry_attempts", "counter", ("tool", "reason"), "Attempts that were made again, by cause.")
HITS = Metric("tool_idempotency_hits", "counter", ("tool", "state"), "Calls answered from an earlier claim.")
CACHE_SIZE = Metric("tool_dedupe_cache_size", "gauge", ("tool", "scope"), "Claim records that are kept.")
TTL = Metric("tool_dedupe_ttl_seconds", "gauge", ("tool", "state"), "How long a claim record is kept, by state.")
BREAKER = Metric("tool_circuit_breaker_state", "gauge", ("tool", "state"), "1 for the state the breaker is in, else 0.")
TRANSITIONS = Metric(
    "tool_circuit_breaker_transitions", "counter", ("tool", "from_state", "to_state"), "Changes of a breaker's state."
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
