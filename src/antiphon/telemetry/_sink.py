"""What counts calls, and how events become counts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

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
