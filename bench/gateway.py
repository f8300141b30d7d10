"""The guarded call: beside release 0.1.0, retry libraries, idempotency libraries and a durable step."""

from __future__ import annotations

from collections.abc import Mapping

from bench import Case, Context, Race, Row
from bench._calls import (
    DBOS,
    DURABLE,
    PAYLOADS,
    RAW,
    TIGHT,
    Setup,
    both,
    large_rows,
    open_row,
    peer_rows,
    release_rows,
    with_open,
    with_release,
)


def run(ctx: Context) -> list[Row]:
    """All rows, cheapest first."""
    return [
        *_memory(ctx),
        *_duplicates(ctx),
        *_breaker(ctx),
        *_switch(ctx),
        *_flat(ctx),
        *_outage(ctx),
        *_sqlite(ctx),
        *large_rows("guarded call", ctx, recorded=False),
    ]


# -- memory ------------------------------------------------------------------------------------------------------

FAST, PIPELINE, LINES = "0.1.0 fast path", "0.1.0 pipeline (no-op listener)", "0.1.0 with INFO lines, Prometheus"


def _memory(ctx: Context) -> list[Row]:
    rows = []
    for asyncio, size, tenacity in (
        (False, "100 B", 1.25),
        (False, "0.9 KB", 1.6),
        (True, "100 B", 0.7),
        (True, "0.9 KB", 1.0),
    ):
        setup = Setup(asyncio=asyncio, size=size)
        retry = Case(
            "tenacity", "async_call" if asyncio else "sync_call", {"file": ctx.payload(PAYLOADS[size])}, peer="tenacity"
        )
        cases = {
            "silent": setup.case(ctx),
            FAST: setup.release(ctx),
            PIPELINE: setup.but(listener=True).release(ctx),
            "tenacity": retry,
        }
        if size == "100 B":
            cases |= _heard(ctx, setup)
        race = ctx.race(cases, rounds=13, seconds=0.12, limit=20)
        rows += [
            race.row("decorated call", "silent", FAST, at_most=1.25, setup=setup),
            race.row("decorated call", "silent", PIPELINE, at_most=0.6, setup=setup),
            race.row("decorated call", "silent", "tenacity", at_most=tenacity, release=FAST, setup=setup),
        ]
        if size == "100 B":
            rows += _heard_rows(race, setup)
    return rows


def _heard(ctx: Context, setup: Setup) -> Mapping[str, Case]:
    """Calls that somebody is told of."""
    lines = setup.but(logs=True, prometheus=True)
    return {
        "lines": lines.case(ctx),
        LINES: lines.release(ctx),
        "listener": setup.but(listener=True).case(ctx),
        "logging": Case("gateway", "log_line", {"line": "x" * 320}),
    }


def _heard_rows(race: Race, setup: Setup) -> list[Row]:
    lines, listener = setup.but(logs=True, prometheus=True), setup.but(listener=True)
    return [
        race.row(
            "decorated call, logged and counted",
            "lines",
            "silent",
            at_most=2.2,
            release=LINES,
            release_peer=FAST,
            setup=lines,
            note=f"logging alone takes {race['logging'].us():.1f} µs for a line that is there already",
        ),
        race.row(
            "decorated call, told to a listener",
            "listener",
            "silent",
            at_most=1.5,
            release=PIPELINE,
            release_peer=FAST,
            setup=listener,
        ),
    ]


def _duplicates(ctx: Context) -> list[Row]:
    rows = []
    for size, limit in (("100 B", 0.2), ("0.9 KB", 0.5)):
        file = {"file": ctx.payload(PAYLOADS[size])}
        race = ctx.race(
            {
                **both("reused", Case("gateway", "reused", file)),
                "powertools": Case("powertools_memory", "reused", file, peer="powertools"),
                "idemkit": Case("idemkit_memory", "reused", file, peer="idemkit"),
            }
        )
        rows += [
            race.row(
                "duplicate answered", "reused", peer, at_most=limit, release="0.1.0 reused", setup=Setup(size=size)
            )
            for peer in ("powertools", "idemkit")
        ]
    return rows


def _breaker(ctx: Context) -> list[Row]:
    rows = []
    for asyncio in (False, True):
        file, prefix = {"file": ctx.payload("params-100")}, "async_" if asyncio else ""
        race = ctx.race(
            {
                **both("open breaker", Case("gateway", f"{prefix}refused", file)),
                **both("reused answer", Case("gateway", f"{prefix}reused", file)),
            }
        )
        rows.append(
            race.row(
                "refused call",
                "open breaker",
                "reused answer",
                at_most=1.5,
                release="0.1.0 open breaker",
                release_peer="0.1.0 reused answer",
                setup=Setup(asyncio=asyncio),
            )
        )
    return rows


def _switch(ctx: Context) -> list[Row]:
    file = {"file": ctx.payload("params-100")}
    race = ctx.race(
        {**both("off", Case("gateway", "switched_off", file)), "bare": Case("gateway", "bare", file)},
        rounds=15,
        seconds=0.1,
    )
    over = race["off"].us() - race["bare"].us()
    old, missing = "0.1.0 off", race.missing.get("0.1.0 off", "")
    before = None if missing else race[old].us() - race["bare"].us()
    name, setup = "kill switch, above the bare call", str(Setup())
    return [Row(name=name, value=over, at_most=1.0, release=before, setup=setup, failed=missing)]


def _flat(ctx: Context) -> list[Row]:
    file = {"file": ctx.payload("params-100")}
    race = ctx.race(
        {
            **both("25,000 keys", Case("gateway", "reused", {**file, "keys": 25_000})),
            **both("100 keys", Case("gateway", "reused", {**file, "keys": 100})),
        }
    )
    return [
        race.row(
            "duplicate answered, 25,000 keys",
            "25,000 keys",
            "100 keys",
            at_most=1.2,
            release="0.1.0 25,000 keys",
            release_peer="0.1.0 100 keys",
            setup=Setup(),
        )
    ]


def _outage(ctx: Context) -> list[Row]:
    race = ctx.race(both("outage", Case("gateway", "outage", {})), rounds=3, n=1)
    missing = race.missing.get("0.1.0 outage", "")
    return [
        Row(
            name="attempts per call in a total outage",
            value=race["outage"].extra["attempts"],
            unit="",
            at_most=1.1,
            release=None if missing else race["0.1.0 outage"].extra["attempts"],
            setup="memory, sync, no logs, built-in metrics",
            note="50 calls per second in virtual time, breaker off, default budget",
            failed=missing,
        )
    ]


# -- SQLite ------------------------------------------------------------------------------------------------------


def _sqlite(ctx: Context) -> list[Row]:
    rows = []
    for store, faster in zip(DURABLE, (12, 25), strict=True):
        setup = Setup(store)
        cases = {**with_release(ctx, setup), **with_open(ctx, setup), DBOS: setup.dbos(ctx), RAW: setup.raw(ctx)}
        race = ctx.race(cases, **TIGHT)
        rows += [*release_rows("guarded call", race, setup), open_row("guarded call", race, setup)]
        rows += peer_rows("guarded call", race, setup, {DBOS: faster})
        setup = Setup(store, asyncio=True)
        rows += release_rows("guarded call", ctx.race(with_release(ctx, setup), **TIGHT), setup)
    return rows
