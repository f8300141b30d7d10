"""Guarded calls with claims on Redis: beside idemkit, aws-lambda-powertools and plain scripts."""

from __future__ import annotations

from typing import Any

from bench import Case, Context, Row

_SHORT: dict[str, Any] = {"rounds": 41, "seconds": 0.06}
"""Many short samples: in wall time a neighbour of the machine hits whole samples, and the median leaves those out."""


def run(ctx: Context) -> list[Row]:
    url, file = ctx.servers.valkey_url(), ctx.payload("params-100")
    here = {"url": url, "file": file}
    rows = []
    for what, faster in (("miss", 1.5), ("reused", 1.5)):
        powertools = ctx.race(
            {
                "antiphon": Case("redis_guarded", what, here),
                "powertools": Case("powertools_redis", what, here, peer="powertools"),
            },
            **_SHORT,
        )
        idemkit = ctx.race(
            {
                "antiphon": Case("redis_guarded", f"async_{what}", here),
                "idemkit": Case("idemkit_redis", what, here, peer="idemkit"),
            },
            **_SHORT,
        )
        rows += [
            powertools.row(f"{what}, sync", "antiphon", "powertools", metric="wall", faster=faster),
            powertools.row(f"{what}, sync", "antiphon", "powertools", note="CPU of the client"),
            idemkit.row(f"{what}, asyncio", "antiphon", "idemkit", metric="wall", faster=faster),
            idemkit.row(f"{what}, asyncio", "antiphon", "idemkit", note="CPU of the client"),
        ]
    crowd = ctx.race(
        {"guarded": Case("redis_guarded", "crowd", here), "raw": Case("redis_store", "raw_crowd", {"url": url})},
        seconds=0.25,
        rounds=21,
    )
    rows.append(
        crowd.row(
            "miss, 64 asyncio callers", "guarded", "raw", metric="wall", faster=2.5, note="peer: the scripts alone"
        )
    )
    return rows
