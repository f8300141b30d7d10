"""The metrics: one table for the built-in registry, Prometheus, OpenTelemetry, the alert rules and the docs (R11).

Label values are bounded in number and length, and free of secrets (R14).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

Type = Literal["counter", "gauge", "histogram"]


class Metric(NamedTuple):
    """A metric without its prefix and without the ``_total`` of counters."""

    name: str
    type: Type
    labels: tuple[str, ...]
    help: str

    def full_name(self, prefix: str) -> str:
        """The name as scraped; a histogram's samples add ``_bucket``, ``_sum`` and ``_count``."""
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
UNKNOWN = Metric("tool_unknown_outcomes", "gauge", ("tool", "age"), "Unknown outcomes that nobody has settled, by age.")
STORE_UP = Metric("store_up", "gauge", ("store",), "1 if the store answered when the metrics were read, else 0.")
STORE_LATENCY = Metric("store_latency_ms", "gauge", ("store",), "How long the store took to answer, in milliseconds.")
STORE_BREAKER = Metric("store_breaker_state", "gauge", ("store", "state"), "1 for the state the breaker is in, else 0.")
UNRECORDED = Metric("outcomes_unrecorded", "gauge", ("store",), "Outcomes that this process has yet to record.")
UNDOS = Metric("tool_undos", "counter", ("tool", "state"), "Writes of failed sagas, by what came of their undo.")
SAGAS = Metric("sagas", "gauge", ("state",), "Sagas of this process that are open, being undone, or stuck.")
INTERRUPTED = Metric("runs_interrupted", "gauge", ("store",), "Unfinished runs whose process is gone.")

METRICS = (
    *(CALLS, DURATION, RETRIES, HITS, CACHE_SIZE, TTL, BREAKER, TRANSITIONS, INFLIGHT, INFO),
    *(UNKNOWN, STORE_UP, STORE_LATENCY, STORE_BREAKER, UNRECORDED, INTERRUPTED, UNDOS, SAGAS),
)
"""The document's eight, the ninth of R11, the one that distinguishes read from write tools, and those for operators."""

OF_STORE = frozenset({CACHE_SIZE, INFLIGHT, UNKNOWN, STORE_UP, STORE_LATENCY, INTERRUPTED})
"""Gauges that are equal in every process that shares the store."""

BUCKETS_MS = (1.0, 2.5, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0, 500.0, 1000.0, 2500.0, 5000.0, 10000.0, 30000.0, 60000.0)
STATUSES = ("success", "error", "retriable_error", "retry_exhausted", "circuit_open", "timeout")
SCOPES = ("session", "global")
BREAKER_STATES = ("CLOSED", "OPEN", "HALF_OPEN", "FORCED_OPEN")
STORE_STATES = ("CLOSED", "OPEN")
AGES = {"unknown": "new", "unknown_1h": "1h", "unknown_1d": "1d"}
"""The ``age`` label of unknown outcomes, by the state under which a store counts them."""
FIRST_HITS = ("done", "failed", "inflight", "conflict", "store_outage_open", "store_outage_closed")
FIRST_TRANSITIONS = (
    ("CLOSED", "OPEN"),
    ("OPEN", "HALF_OPEN"),
    ("HALF_OPEN", "OPEN"),
    ("HALF_OPEN", "CLOSED"),
)
"""Counters initialised with 0 when a tool is registered: Prometheus sees no increase from absent to one."""

OTHER = "other"


MAX_TOOLS = 200
MAX_CODES = 64
_LONGEST = 128


class Labels:
    """Admits the first *most* values; all later ones are counted together as ``other``."""

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


Counts = Mapping[tuple[str, str], int]
"""Live claim records by (tool, state), as returned by :meth:`antiphon.ports.SyncJournal.counts`."""
Values = Mapping[tuple[str, ...], float]
"""Values of a gauge by its labels."""


def tool_name(fields: Mapping[str, Any]) -> str:
    """``namespace/name``: a tool's name in metrics."""
    namespace = fields.get("toolNamespace")
    name = str(fields.get("toolName", ""))
    return f"{namespace}/{name}" if namespace else name


def of_claims(counts: Counts, scopes: Mapping[str, str]) -> dict[Metric, dict[tuple[str, ...], float]]:
    """The gauges that a sample of the claim store gives."""
    found: dict[Metric, dict[tuple[str, ...], float]] = {CACHE_SIZE: {}, INFLIGHT: {}, UNKNOWN: {}}
    for tool in {tool for tool, _ in counts}:
        for stale in ("false", "true"):
            found[INFLIGHT][tool, stale] = 0.0
        for age in AGES.values():
            found[UNKNOWN][tool, age] = 0.0
    for (tool, state), number in counts.items():
        place = (tool, scopes.get(tool, "session"))
        found[CACHE_SIZE][place] = found[CACHE_SIZE].get(place, 0.0) + number
        if state in ("inflight", "stale"):
            found[INFLIGHT][tool, "true" if state == "stale" else "false"] += number
        elif state in AGES:
            found[UNKNOWN][tool, AGES[state]] += number
    return found


class Counter:
    """Counts what the gateway reports, by bounded labels; subclasses store the counts."""

    def __init__(self, max_tools: int, clean: Callable[[str], str]) -> None:
        self._tool = Labels(max_tools, clean)
        self._code = Labels(MAX_CODES, clean)
        self._state = Labels(MAX_CODES, clean)
        self._quick: dict[tuple[str, str, str], Callable[[float], None]] = {}
        self._scopes: dict[str, str] = {}
        self._sampled: dict[str, set[tuple[str, ...]]] = {}

    def _add(self, metric: Metric, amount: float, *labels: str) -> None:
        raise NotImplementedError

    def _set(self, metric: Metric, value: float, *labels: str) -> None:
        raise NotImplementedError

    def _ended(self, tool: str, status: str, scope: str, hit: str) -> Callable[[float], None]:
        """Counts the calls with these labels, and their durations."""
        raise NotImplementedError

    def call_ended(self, tool: str, status: str, scope: str, duration_ms: float) -> None:
        """Count a call and its duration."""
        (self._quick.get((tool, status, scope)) or self.bound(tool, status, scope))(duration_ms)

    def bound(self, tool: str, status: str, scope: str, hit: str = "") -> Callable[[float], None]:
        """:meth:`call_ended` for one tool, status and scope: looked up once, then called often with a duration.

        With *hit* the calls were answered from a claim in that state, and are also counted as hits (:meth:`hit`).
        """
        label = self._tool(tool)
        known = status if status in STATUSES else OTHER
        place = scope if scope in SCOPES else OTHER
        ended = self._ended(label, known, place, hit and self._state(hit))
        if not hit and label != OTHER and (known, place) == (status, scope):
            self._quick[(tool, status, scope)] = ended
        return ended

    def retried(self, tool: str, reason: str) -> None:
        """Count a retry."""
        self._add(RETRIES, 1, self._tool(tool), self._code(reason))

    def hit(self, tool: str, state: str) -> None:
        """Count a call that was answered from a record."""
        self._add(HITS, 1, self._tool(tool), self._state(state))

    def undone(self, tool: str, state: str) -> None:
        """Count the result of an undo."""
        self._add(UNDOS, 1, self._tool(tool), self._state(state))

    def breaker(self, key: str, before: str, after: str) -> None:
        """Count a state change of a breaker."""
        tool = self._tool(key.removeprefix("tool/"))  # a tool's own is labelled with its name, others with their key
        self._add(TRANSITIONS, 1, tool, before, after)
        for state in BREAKER_STATES:
            self._set(BREAKER, float(state == after), tool, state)

    def described(self, tool: str, *, scope: str, effect: str, ttl_s: Mapping[str, float]) -> None:
        """Initialise the metrics of a tool that was registered."""
        label = self._tool(tool)
        self._scopes[tool] = scope
        self._set(INFO, 1.0, label, effect or "unset")
        for state in FIRST_HITS:
            self._add(HITS, 0, label, state)
        for before, after in FIRST_TRANSITIONS:
            self._add(TRANSITIONS, 0, label, before, after)
        for state, seconds in ttl_s.items():
            self._set(TTL, seconds, label, state)

    def dedupe(self, counts: Counts) -> None:
        """Set the numbers of claim records by tool and state."""
        for metric, values in of_claims(counts, self._scopes).items():
            self.sampled(metric, values)

    def sampled(self, metric: Metric, values: Values) -> None:
        """Set a gauge; labels that are no longer present become 0."""
        known = self._sampled.setdefault(metric.name, set())
        fresh = labelled(values, metric, self._tool)
        for labels in (*known.difference(fresh), *fresh):
            self._set(metric, fresh.get(labels, 0.0), *labels)
        known.update(fresh)

    def emit(self, event: str, fields: Mapping[str, Any]) -> None:
        """The generic port, for callers that have events and no direct access."""
        if event in ("tool_call_end", "tool_call_blocked"):
            tool = tool_name(fields)
            status = str(fields.get("status") or fields.get("state") or "error")
            self.call_ended(tool, status, str(fields.get("scope") or "session"), float(fields.get("elapsedMs") or 0.0))
            if fields.get("fromCache"):
                self.hit(tool, "done" if status == "success" else "failed")
        elif event == "tool_call_retry":
            self.retried(tool_name(fields), str(fields.get("errorCode") or fields.get("reason") or "unknown"))
        elif event == "tool_call_undo":
            self.undone(tool_name(fields), str(fields.get("state", "")))
        elif event == "tool_call_circuit_state":
            before, after = str(fields.get("fromState", "")), str(fields.get("toState", ""))
            self.breaker(str(fields.get("toolName", "")), before, after)


def labelled(values: Values, metric: Metric, label: Callable[[str], str]) -> dict[tuple[str, ...], float]:
    """The values by admitted labels: tools that share a label are summed."""
    by_tool = metric.labels[0] == "tool"
    found: dict[tuple[str, ...], float] = {}
    for (first, *rest), value in values.items():
        place = (label(first) if by_tool else first, *rest)
        found[place] = found.get(place, 0.0) + value
    return found
