"""Redaction, sealing and telemetry."""

from __future__ import annotations

import statistics
from typing import Any

from bench import Case, Context, Row


def run(ctx: Context) -> list[Row]:
    """What secrets and observability cost per call."""
    return _redaction(ctx) + _metrics(ctx) + _events(ctx) + _beside(ctx) + _watched(ctx)


def _redaction(ctx: Context) -> list[Row]:
    small, large = {"file": ctx.payload("params-100")}, {"file": ctx.payload("params-900")}
    chat = {"file": ctx.payload("chat-100k")}
    race = ctx.race(
        {
            "100 B": Case("telemetry", "redact_clean", small),
            "0.9 KB": Case("telemetry", "redact_clean", large),
            "100 KB": Case("telemetry", "redact_clean", chat),
            "address": Case("telemetry", "redact_personal", large),
            "chunk": Case("telemetry", "redact_stream"),
            "seal": Case("telemetry", "seal"),
        }
    )
    return [
        race.row("redact 100 B without a secret", "100 B"),
        race.row("redact 0.9 KB without a secret", "0.9 KB"),
        race.row("redact 100 KB chat request without a secret", "100 KB"),
        race.row("redact 0.9 KB with an address in it", "address"),
        race.row("redact one chunk of a stream", "chunk"),
        race.row("seal and unseal 1 KB", "seal"),
    ]


def _metrics(ctx: Context) -> list[Row]:
    race = ctx.race(
        {
            "builtin": Case("telemetry", "builtin"),
            "bound": Case("telemetry", "prometheus"),
            "labels": Case("telemetry", "prometheus_labels"),
        }
    )
    return [
        race.row("count a call, built-in registry", "builtin", "labels", at_most=0.5),
        race.row("count a call, prometheus_client with bound children", "bound", "labels"),
    ]


def _events(ctx: Context) -> list[Row]:
    race = ctx.race(
        {
            "off": Case("telemetry", "log_off"),
            "json_logs": Case("telemetry", "log_line", {"handler": "json_logs"}),
            "StreamHandler": Case("telemetry", "log_line", {"handler": "StreamHandler"}),
            "not redacted": Case("telemetry", "log_plain"),
            "no SDK": Case("telemetry", "span", {"recording": False}),
            "recorded": Case("telemetry", "span", {"recording": True}),
        }
    )
    plain = "json.dumps and logger.info of the same fields, nothing redacted"
    return [
        race.row("log event below the level", "off"),
        race.row("log line, written by the handler of json_logs", "json_logs", "not redacted", at_most=0.8, note=plain),
        race.row("log line, written by a StreamHandler", "StreamHandler", "not redacted", at_most=0.8, note=plain),
        race.row("span, nobody records", "no SDK"),
        race.row("span, recorded, without export", "recorded"),
    ]


def _beside(ctx: Context) -> list[Row]:
    """In a loop of its own all code is in the processor's caches; after a call of a tool it is not."""
    rows = (
        ("log line by the handler of json_logs", "json_logs", "not redacted"),
        ("log line by a StreamHandler", "StreamHandler", "not redacted"),
        ("listener in Python", "listener", ""),
        ("count a call, prometheus_client", "prometheus", "labels"),
    )
    cases = ("silent", "json_logs", "StreamHandler", "not redacted", "listener", "prometheus", "labels")
    race = ctx.race({name: Case("telemetry", "beside", {"what": name}) for name in cases}, rounds=15)

    def above(name: str) -> float:
        pairs = zip(race[name].cpu, race["silent"].cpu, strict=True)
        return statistics.median(with_it - silent for with_it, silent in pairs) * 1e6

    return [
        Row(
            name=f"{what}, after a guarded call",
            value=above(name),
            peer=peer,
            peer_value=above(peer) if peer else None,
            ratio=above(name) / above(peer) if peer else None,
            at_most=0.8 if peer else None,
            note=f"a silent call: {race['silent'].us():.1f} µs",
        )
        for what, name, peer in rows
    ]


def _watched(ctx: Context) -> list[Row]:
    def case(**options: Any) -> Case:
        return Case("telemetry", "guarded", options)

    race = ctx.race(
        {
            "silent": case(),
            "listener": case(listener=True),
            "line": case(handler="json_logs"),
            "all": case(handler="json_logs", prometheus=True),
        },
        rounds=15,
    )
    return [
        race.row("guarded call with a listener in Python", "listener", "silent", at_most=1.5),
        race.row("guarded call with a log line", "line", "silent"),
        race.row("guarded call with a log line and prometheus_client", "all", "silent", at_most=2.2),
    ]
