"""The guarded call: in memory beside bare retry libraries, on SQLite beside a durable step."""

from __future__ import annotations

from bench import Case, Context, Race, Row

SMALL, LARGE = "params-100", "params-900"


def run(ctx: Context) -> list[Row]:
    """All rows, cheapest first."""
    return [
        *_memory(ctx),
        *_stages(ctx),
        *_duplicates(ctx),
        *_switch(ctx),
        *_flat(ctx),
        *_breaker(ctx),
        *_outage(ctx),
        *_sqlite(ctx),
    ]


def _against_tenacity(ctx: Context, payload: str) -> Race:
    file = {"file": ctx.payload(payload)}
    return ctx.race(
        {
            "sync": Case("gateway", "sync_call", file),
            "async": Case("gateway", "async_call", file),
            "tenacity": Case("tenacity", "sync_call", file, peer="tenacity"),
            "tenacity async": Case("tenacity", "async_call", file, peer="tenacity"),
        }
    )


def _memory(ctx: Context) -> list[Row]:
    small, large = _against_tenacity(ctx, SMALL), _against_tenacity(ctx, LARGE)
    return [
        small.row("guarded call, 100 B params", "sync", "tenacity", at_most=0.9),
        large.row("guarded call, 0.9 KB params", "sync", "tenacity", at_most=1.6),
        small.row("guarded call in asyncio, 100 B params", "async", "tenacity async", at_most=0.8),
        large.row("guarded call in asyncio, 0.9 KB params", "async", "tenacity async", at_most=1.3),
    ]


def _stages(ctx: Context) -> list[Row]:
    """Where the time of that call goes; what is left is the way between them, the lease and the tool."""
    names = {
        "key": "key: canonical JSON and hashes",
        "claim": "claim: begin and settle",
        "turn": "loop guard: check and record",
        "breaker": "breaker and retry budget",
        "metrics": "metrics",
    }
    file = {"file": ctx.payload(SMALL)}
    cases = {name: Case("gateway", "stage", {**file, "name": name}) for name in names}
    race = ctx.race(cases, rounds=5, seconds=0.1)
    return [race.row(f"of it, {what}", name) for name, what in names.items()]


def _duplicates(ctx: Context) -> list[Row]:
    rows = []
    for payload, what, limit in ((SMALL, "100 B", 0.25), (LARGE, "0.9 KB", 0.5)):
        file = {"file": ctx.payload(payload)}
        race = ctx.race(
            {
                "reused": Case("gateway", "reused", file),
                "powertools": Case("powertools_memory", "reused", file, peer="powertools"),
                "idemkit": Case("idemkit_memory", "reused", file, peer="idemkit"),
            }
        )
        rows.append(race.row(f"duplicate answered from memory, {what}", "reused", "powertools", at_most=limit))
        rows.append(race.row(f"duplicate answered from memory, {what}", "reused", "idemkit", at_most=limit))
    return rows


def _switch(ctx: Context) -> list[Row]:
    file = {"file": ctx.payload(SMALL)}
    race = ctx.race({"off": Case("gateway", "switched_off", file), "bare": Case("gateway", "bare", file)})
    over = race["off"].us("cpu") - race["bare"].us("cpu")
    return [Row(name="kill switch, above the bare call", value=over, unit="µs", at_most=1.0)]


def _flat(ctx: Context) -> list[Row]:
    file = {"file": ctx.payload(SMALL)}
    race = ctx.race(
        {
            "25000": Case("gateway", "reused", {**file, "keys": 25_000}),
            "100": Case("gateway", "reused", {**file, "keys": 100}),
        }
    )
    return [race.row("reused answer with 25,000 keys beside 100 keys", "25000", "100", at_most=1.2)]


def _breaker(ctx: Context) -> list[Row]:
    file = {"file": ctx.payload(SMALL)}
    race = ctx.race({"sync": Case("gateway", "refused", file), "async": Case("gateway", "async_refused", file)})
    return [
        Row(name="open breaker answers", value=race["sync"].us("cpu"), unit="µs", at_most=50.0),
        Row(name="open breaker answers in asyncio", value=race["async"].us("cpu"), unit="µs", at_most=50.0),
    ]


def _outage(ctx: Context) -> list[Row]:
    race = ctx.race({"outage": Case("gateway", "outage", {})}, rounds=3, n=1)
    value = race["outage"].extra["attempts"]
    note = "50 calls per second in virtual time, breaker off, default budget"
    return [Row(name="attempts per call in a total outage", value=value, unit="", at_most=1.1, note=note)]


def _sqlite(ctx: Context) -> list[Row]:
    full, normal = "synchronous=FULL: survives power loss", "synchronous=NORMAL: survives kill -9, not power loss"
    rows = []
    for payload, size, goals in ((SMALL, "100 B", (10, 25)), (LARGE, "0.9 KB", (None, None))):
        file = {"file": ctx.payload(payload)}
        race = ctx.race(
            {
                "full": Case("gateway", "sqlite_call", {**file, "synchronous": "FULL"}),
                "normal": Case("gateway", "sqlite_call", {**file, "synchronous": "NORMAL"}),
                "dbos": Case("dbos_sqlite", "step", file, peer="dbos"),
            }
        )
        for case, goal, note in (("full", goals[0], full), ("normal", goals[1], normal)):
            rows.append(race.row(f"guarded call on SQLite, {size}", case, "dbos", faster=goal, note=note))
            rows.append(race.row("the same, wall time", case, "dbos", metric="wall", note=note))
    return rows
