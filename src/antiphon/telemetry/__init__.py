"""Logs, metrics and spans (R11). The gateway knows only the port; config enables them here."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from antiphon._late import LateRedactor
from antiphon.telemetry.builtin import BuiltinMetrics

if TYPE_CHECKING:
    from antiphon.ports import Listener
    from antiphon.redact import Rules
    from antiphon.telemetry.prometheus import PrometheusListener

__all__ = ["BuiltinMetrics", "listeners", "metrics"]


def metrics(
    *, prefix: str = "antiphon", prometheus: bool = False, rules: Callable[[], Rules] | None = None
) -> BuiltinMetrics | PrometheusListener:
    """Counts calls: as plain numbers, or as ``prometheus_client`` metrics in its process-wide registry."""
    clean = _redactor(rules).redact_text
    if not prometheus:
        return BuiltinMetrics(prefix, clean=clean)
    from antiphon.telemetry.prometheus import PrometheusListener

    return PrometheusListener(prefix, clean=clean)


def listeners(
    *, logs: bool = True, otel: bool = False, prefix: str = "antiphon", rules: Callable[[], Rules] | None = None
) -> tuple[Listener, ...]:
    """The listeners for individual calls."""
    found: list[Listener] = []
    redactor = _redactor(rules)
    if logs:
        from antiphon.telemetry.logs import JsonLogListener

        found.append(JsonLogListener(redactor))
    if otel:
        from antiphon.telemetry.otel import OtelListener

        found.append(OtelListener(redactor=redactor, prefix=prefix))
    return tuple(found)


def _redactor(rules: Callable[[], Rules] | None) -> LateRedactor:
    """Personal data is always kept out of logs, labels and spans, whatever the setting for artifacts (R14)."""

    def always() -> Rules:
        from antiphon.redact import Rules

        return Rules(user=() if rules is None else rules().user)

    return LateRedactor(always)
