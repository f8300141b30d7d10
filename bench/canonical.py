"""Canonical JSON (RFC 8785) and keys."""

from __future__ import annotations

from bench import Case, Context, Row

SIZES = {"params-100": "100 B params", "params-900": "0.9 KB params", "chat-100k": "100 KB chat request"}


def run(ctx: Context) -> list[Row]:
    """Keys against PyPI rfc8785, with the distance to orjson's sorted output, which is not RFC 8785."""
    rows: list[Row] = []
    for payload, what in SIZES.items():
        file = {"file": ctx.payload(payload)}
        race = ctx.race(
            {
                "antiphon": Case("canonical", "key", file),
                "antiphon, a 1.0 inside": Case("canonical", "key_with_whole_floats", file),
                "rfc8785": Case("rfc8785", "key", file, peer="rfc8785"),
                "orjson sorted": Case("rfc8785", "orjson_sorted", file, peer="rfc8785"),
            }
        )
        at_least = 5 if payload != "params-100" else None
        rows.append(race.row(f"key of {what}", "antiphon", "rfc8785", faster=at_least))
        rows.append(race.row(f"key of {what} with a 1.0 inside", "antiphon, a 1.0 inside", "rfc8785"))
        rows.append(race.row(f"key of {what}", "antiphon", "orjson sorted", note="not RFC 8785: the distance left"))
    return rows + _calls(ctx) + _requests(ctx)


def _calls(ctx: Context) -> list[Row]:
    small, large = {"file": ctx.payload("params-100")}, {"file": ctx.payload("params-900")}
    race = ctx.race(
        {
            "small": Case("canonical", "all_call_keys", small),
            "small read": Case("canonical", "all_call_keys", {**small, "effect": "read"}),
            "large": Case("canonical", "all_call_keys", large),
        }
    )
    return [
        race.row("all keys of a call, 100 B", "small"),
        race.row("all keys of a call, 100 B, white space squeezed", "small read"),
        race.row("all keys of a call, 0.9 KB, volatile fields left out", "large"),
    ]


def _requests(ctx: Context) -> list[Row]:
    chat = {"file": ctx.payload("chat-100k")}
    race = ctx.race(
        {
            "whole": Case("canonical", "llm_key", chat),
            "mapping": Case("canonical", "llm_mapping", chat),
        }
    )
    return [
        race.row("LLM key of a 100 KB request", "whole"),
        race.row("provider body to canonical request, 100 KB", "mapping"),
    ]
