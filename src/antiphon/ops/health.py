"""How the tools performed, from their recorded attempts: latency and retries over time, and the cost of outages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from antiphon.ops.traffic import Call
from antiphon.ops.what_if import REFUSED

BUCKETS = 60
_STEPS_MS = (1, 10, 100, 1_000, 5_000, 15_000, 60_000, 300_000, 900_000, 3_600_000, 21_600_000, 86_400_000)
OUTAGE = 0.5
"""A tool is down in a bucket if at least this share of its attempts fails."""


def step_of(span_ms: int) -> int:
    """The bucket width that divides *span_ms* into at most sixty buckets."""
    fitting = (step for step in _STEPS_MS if span_ms / step <= BUCKETS)
    longest = _STEPS_MS[-1]
    return next(fitting, -(-span_ms // (BUCKETS * longest)) * longest)


class _Tally:
    """Counts over some calls."""

    def __init__(self) -> None:
        self.calls = self.sent = self.reused = self.refused = self.attempts = self.failed = 0
        self.took: list[int] = []

    def call(self, call: Call) -> None:
        self.calls += 1
        self.sent += bool(call.tries)
        self.reused += call.reused
        self.refused += call.code == REFUSED and not call.tries

    def attempt(self, began: int, ended: int, code: str) -> None:
        self.attempts += 1
        self.failed += bool(code)
        self.took.append(ended - began)

    def to_wire(self) -> dict[str, Any]:
        took = sorted(self.took)
        return {
            "calls": self.calls,
            "sent": self.sent,
            "suppressed": self.reused,
            "refused": self.refused,
            "attempts": self.attempts,
            "retries": max(0, self.attempts - self.sent),
            "failed": self.failed,
            "amplification": round(self.attempts / self.sent, 3) if self.sent else None,
            "p50Ms": percentile(took, 0.5),
            "p95Ms": percentile(took, 0.95),
        }


def percentile(ordered: Sequence[int], part: float) -> int | None:
    """The percentile *part* (0 to 1) of sorted values."""
    return ordered[min(len(ordered) - 1, int(len(ordered) * part))] if ordered else None


def health(calls: Iterable[Call], *, tool: str = "") -> dict[str, Any]:
    """Each tool and model, and all of them over time; with *tool* only that one over time."""
    chosen = [call for call in calls if call.ended_ms is not None]
    shown = [call for call in chosen if tool in ("", call.name)]
    first = min((call.started_ms for call in shown), default=0)
    last = max((call.ended_ms or call.started_ms for call in shown), default=0)
    step = step_of(max(1, last - first))
    start = first // step * step
    over_time = [_Tally() for _ in range((last - start) // step + 1)] if shown else []
    by_tool: dict[tuple[str, str], _Tally] = {}
    down: dict[tuple[str, str], dict[int, _Tally]] = {}
    for call in chosen:
        name = (call.kind, call.name)
        tally = by_tool.setdefault(name, _Tally())
        tally.call(call)
        buckets = down.setdefault(name, {})
        for number, (began, ended, code, _) in enumerate(call.tries):
            tally.attempt(began, ended, code)
            bucket = buckets.setdefault(began // step, _Tally())
            bucket.sent += number == 0
            bucket.attempt(began, ended, code)
    for call in shown:
        over_time[(call.started_ms - start) // step].call(call)
        for began, ended, code, _ in call.tries:
            over_time[min(max(0, (began - start) // step), len(over_time) - 1)].attempt(began, ended, code)
    points = [one.to_wire() for one in over_time]
    names = ("sent", "attempts", "retries", "failed", "refused", "p50Ms", "p95Ms")
    return {
        "stepMs": step,
        "series": {
            "atMs": [start + number * step for number in range(len(points))],
            **{name: [point[name] for point in points] for name in names},
        },
        "tools": [
            {"kind": kind, "name": name, **tally.to_wire(), "outageAmplification": _in_outage(down[kind, name])}
            for (kind, name), tally in sorted(by_tool.items())
        ],
    }


def _in_outage(buckets: dict[int, _Tally]) -> float | None:
    """Attempts per call while the tool was down; ``None`` if it never was."""
    bad = [one for one in buckets.values() if one.failed >= OUTAGE * one.attempts and one.failed >= 2]
    sent = sum(one.sent for one in bad)
    return round(sum(one.attempts for one in bad) / sent, 3) if sent else None
