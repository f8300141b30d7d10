"""Redaction, sealing, logs, metrics and spans of Antiphon."""

import io
import itertools
import json
import logging
import os
from pathlib import Path

import antiphon
from antiphon._seal import Sealer
from antiphon.redact import Redactor, Rules, StreamRedactor
from antiphon.stores import MemoryStore
from antiphon.telemetry import BuiltinMetrics
from antiphon.telemetry.logs import JsonLogListener, json_logs

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
    "scope": "session",
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


_serial = itertools.count(1)
_TURN = 200


def _events():
    """Ends of calls with ids of their own, a few hundred of them over and over: they stay in the processor's caches."""
    return itertools.cycle(
        [
            {
                **CALL,
                "requestId": f"01890a5d-ac96-774b-bcce-{n:012x}",
                "toolCallId": f"toolu_{n:024d}",
                "idempotencyKeyHash": f"a{n * 2654435761 % 2**60:015x}",
                "elapsedMs": round(n % 97 * 0.013, 3),
            }
            for n in range(256)
        ]
    )


def _handler(handler):
    """A handler that writes to memory, and what empties it: ours, or the standard library's as it is mostly set up."""
    stream = io.StringIO()
    if handler == "json_logs":
        json_logs("INFO", stream)
    else:
        written = logging.StreamHandler(stream)
        written.setFormatter(logging.Formatter("%(message)s"))
        logger = logging.getLogger("antiphon")
        logger.addHandler(written)
        logger.setLevel("INFO")
        logger.propagate = False

    def empty():
        stream.seek(0)
        stream.truncate()

    return empty


def log_line(handler):
    """The end of a call as a redacted line, written to a handler."""
    empty = _handler(handler)
    listener = JsonLogListener(Redactor(Rules(), salt="bench"))
    events = _events()

    def run(n):
        for done in range(0, n, _TURN):
            empty()
            for fields in itertools.islice(events, min(_TURN, n - done)):
                if listener.wants("tool_call_end"):
                    listener.emit("tool_call_end", fields)

    return run


def log_plain():
    """The same line as an application writes it: ``json.dumps`` and ``logger.info``, nothing redacted."""
    empty = _handler("StreamHandler")
    logger = logging.getLogger("antiphon")
    events = _events()

    def run(n):
        for done in range(0, n, _TURN):
            empty()
            for fields in itertools.islice(events, min(_TURN, n - done)):
                logger.info(json.dumps({"event": "tool_call_end", **fields}))

    return run


def _guarded(config=None):
    gateway = antiphon.Gateway(store=MemoryStore(), config=config)

    @gateway.tool(idempotent=True)
    def send(to: str, n: int) -> int:
        return n

    return gateway, send


def beside(what):
    """A guarded call in a silent process, and after it what telemetry does for a call."""
    gateway, send = _guarded()
    session = gateway.session("bench", actor="bench")
    events = _events()
    after, empty = _AFTER[what]()
    logging.getLogger("antiphon").setLevel("WARNING")  # the gateway's own listener is silent

    def run(n):
        for done in range(0, n, _TURN):
            empty()
            with session.turn():
                for fields in itertools.islice(events, min(_TURN, n - done)):
                    send("ada", next(_serial))
                    after(fields)

    return run


def _after_nothing():
    return lambda fields: None, lambda: None


def _after_line(handler):
    listener = JsonLogListener(Redactor(Rules(), salt="bench"), logger="antiphon.bench")
    logging.getLogger("antiphon.bench").setLevel("INFO")

    def after(fields):
        if listener.wants("tool_call_end"):
            listener.emit("tool_call_end", fields)

    return after, _handler(handler)


def _after_plain():
    logger = logging.getLogger("antiphon.bench")
    logger.setLevel("INFO")

    def after(fields):
        logger.info(json.dumps({"event": "tool_call_end", **fields}))

    return after, _handler("StreamHandler")


def _after_listener():
    listener = _Listener()
    return lambda fields: listener.emit("tool_call_end", fields), lambda: None


def _after_prometheus():
    from prometheus_client import CollectorRegistry

    from antiphon.telemetry.prometheus import PrometheusListener

    ended = PrometheusListener("antiphon", CollectorRegistry()).bound("tools/send", "success", "session")
    return lambda fields: ended(fields["elapsedMs"]), lambda: None


def _after_labels():
    once = prometheus_labels()
    return lambda fields: once(), lambda: None


_AFTER = {
    "silent": _after_nothing,
    "json_logs": lambda: _after_line("json_logs"),
    "StreamHandler": lambda: _after_line("StreamHandler"),
    "not redacted": _after_plain,
    "listener": _after_listener,
    "prometheus": _after_prometheus,
    "labels": _after_labels,
}


class _Listener:
    """A listener of a user."""

    def __init__(self):
        self.slow = 0

    def emit(self, event, fields):
        if event == "tool_call_end" and fields["elapsedMs"] > 2500:
            self.slow += 1


def guarded(listener=False, handler="", prometheus=False):
    """A guarded call of a gateway that somebody watches."""
    empty = _handler(handler) if handler else lambda: None
    gateway, send = _guarded({"telemetry": {"prometheus": prometheus}})
    if listener:
        gateway.listen(_Listener())
    session = gateway.session("bench", actor="bench")

    def run(n):
        for done in range(0, n, _TURN):
            empty()
            with session.turn():
                for _ in range(min(_TURN, n - done)):
                    send("ada", next(_serial))

    return run


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
