"""Redaction, sealing and telemetry."""

from __future__ import annotations

from bench import Case, Context, Race, Row


def run(ctx: Context) -> list[Row]:
    """What secrets and observability cost per call."""
    return _redaction(ctx) + _metrics(ctx) + _events(ctx)


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
            "on": Case("telemetry", "log_on"),
            "no SDK": Case("telemetry", "span", {"recording": False}),
            "recorded": Case("telemetry", "span", {"recording": True}),
        }
    )
    return [
        _plain(race, name, case)
        for name, case in (
            ("log event below the level", "off"),
            ("log event, redacted, without output", "on"),
            ("span, nobody records", "no SDK"),
            ("span, recorded, without export", "recorded"),
        )
    ]


def _plain(race: Race, name: str, case: str) -> Row:
    return race.row(name, case)
