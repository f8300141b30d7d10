"""K9: without the optional packages the metrics are still there, and asking for more fails politely."""

from __future__ import annotations

import sys

import pytest

from antiphon.errors import MissingExtra
from antiphon.redact import Redactor
from antiphon.telemetry import metrics


def test_prometheus_is_asked_for_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(MissingExtra, match=r"antiphon\[prometheus\]"):
        metrics(prometheus=True)
    assert "antiphon_tool_calls_total" in metrics().render()


def test_opentelemetry_is_asked_for_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    from antiphon.telemetry.otel import OtelListener

    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with pytest.raises(MissingExtra, match=r"antiphon\[otel\]"):
        OtelListener(redactor=Redactor(salt="unit"))
