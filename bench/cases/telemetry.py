"""Redaction, sealing, logs, metrics and spans of Antiphon."""

import logging
import os
from pathlib import Path

from antiphon._seal import Sealer
from antiphon.redact import Redactor, Rules, StreamRedactor
from antiphon.telemetry import BuiltinMetrics
from antiphon.telemetry.logs import JsonLogListener

CALL = {
    "requestId": "01890a5d-ac96-774b-bcce-b302099a8057",
    "toolName": "send_email",
    "toolNamespace": "tools",
    "toolCallId": "toolu_01A09q90qw90lq917835lq9",
    "sessionKey": "session-1",
    "idempotencyKeyHash": "9f86d081884c7d65",
    "correlationId": None,
    "state": "success",
    "status": "success",
    "attempt": 1,
    "elapsedMs": 12.5,
    "fromCache": False,
    "breakerState": None,
}


def redact_clean(file):
    """Serialised data without a secret: the quick look alone."""
    document = Path(file).read_bytes().replace(b"ana@example.org", b"none").replace(b"HR0123456789", b"HR01")
    redactor = Redactor(Rules(), salt="bench")
    assert redactor.redact_bytes(document) == (document, False)
    return lambda: redactor.redact_bytes(document)


def redact_personal(file):
    """Serialised data with an address in it."""
    document = Path(file).read_bytes()
    redactor = Redactor(Rules(), salt="bench")
    assert redactor.redact_bytes(document)[1]
    return lambda: redactor.redact_bytes(document)


def redact_stream():
    """One chunk of a stream that holds no secret."""
    stream = StreamRedactor(Redactor(Rules(), salt="bench"))
    return lambda: stream.feed("some words\n")


def seal():
    """Seal and unseal 1 KB."""
    sealer = Sealer(bytes(32))
    data = os.urandom(1024)
    return lambda: sealer.unseal(sealer.seal(data))


def builtin():
    """The built-in registry."""
    metrics = BuiltinMetrics()
    return lambda: metrics.call_ended("tools/send_email", "success", "session", 12.5)


def prometheus():
    """The same in prometheus_client's registry."""
    from prometheus_client import CollectorRegistry

    from antiphon.telemetry.prometheus import PrometheusListener

    metrics = PrometheusListener("antiphon", CollectorRegistry())
    return lambda: metrics.call_ended("tools/send_email", "success", "session", 12.5)


def prometheus_labels():
    """prometheus_client as its documentation shows it: labels looked up with each call."""
    from prometheus_client import CollectorRegistry, Counter, Histogram

    registry = CollectorRegistry()
    calls = Counter("calls", "Calls.", ("tool", "status", "scope"), registry=registry)
    duration = Histogram("duration", "Duration.", ("tool", "status"), registry=registry)

    def once():
        calls.labels("tools/send_email", "success", "session").inc()
        duration.labels("tools/send_email", "success").observe(12.5)

    return once


def log_off():
    """An event below the logger's level."""
    logging.getLogger("antiphon").setLevel(logging.ERROR)
    listener = JsonLogListener(Redactor(Rules(), salt="bench"))
    return lambda: listener.emit("tool_call_end", CALL)


def log_on():
    """An event written to a handler that throws it away, redacted."""
    logging.getLogger("antiphon").setLevel(logging.INFO)
    listener = JsonLogListener(Redactor(Rules(), salt="bench"))
    return lambda: listener.emit("tool_call_end", CALL)


def span(recording):
    """A span with its attributes, kept in memory, or one that nobody records."""
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider

    from antiphon.telemetry.otel import OtelListener

    provider = TracerProvider() if recording else trace.NoOpTracerProvider()
    listener = OtelListener(provider, redactor=Redactor(Rules(), salt="bench"), metrics=False)

    def once():
        listener.emit("tool_call_start", CALL)
        listener.emit("tool_call_end", CALL)

    return once
