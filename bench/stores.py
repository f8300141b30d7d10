"""The embedded stores: memory and SQLite."""

from __future__ import annotations

from bench import Case, Context, Row


def run(ctx: Context) -> list[Row]:
    """What a claim costs, that it stays so as the store fills, and a durable call against a DBOS step."""
    return [*_memory(ctx), *_sqlite(ctx), *_growth(ctx)]


def _memory(ctx: Context) -> list[Row]:
    file = ctx.payload("params-900")
    race = ctx.race(
        {
            "pair": Case("embedded_stores", "memory_pair", {"file": file}),
            "100 keys": Case("embedded_stores", "memory_reuse", {"file": file, "keys": 100}),
            "25,000 keys": Case("embedded_stores", "memory_reuse", {"file": file, "keys": 25_000}),
        },
        n=20_000,
    )
    few, many = race["100 keys"].extra["us"], race["25,000 keys"].extra["us"]
    return [
        Row(name="memory: claim and settle", value=race["pair"].extra["us"], unit="µs"),
        Row(name="memory: reuse, 100 keys", value=few, unit="µs"),
        Row(name="memory: reuse, 25,000 keys", value=many, unit="µs", note="flat: nothing is scanned"),
        Row(name="memory: reuse, 25,000 keys ÷ 100 keys", value=many / few, unit="×", at_most=2),
    ]


def _sqlite(ctx: Context) -> list[Row]:
    file = ctx.payload("params-900")
    rows: list[Row] = []
    for synchronous, faster in (("FULL", 10), ("NORMAL", 25)):
        given = {"file": file, "synchronous": synchronous}
        race = ctx.race(
            {
                "antiphon": Case("embedded_stores", "sqlite_guarded", {**given, "log": False}),
                "recorded": Case("embedded_stores", "sqlite_guarded", given),
                "bare": Case("embedded_stores", "bare_commits", {"synchronous": synchronous}),
                "16 tasks": Case("embedded_stores", "sqlite_tasks", {**given, "tasks": 16}),
                "dbos step": Case("dbos_sqlite", "step", {"file": file}, peer="dbos"),
            },
            seconds=0.4,
        )
        name = f"SQLite {synchronous}: claim and outcome"
        peer = "dbos as it comes: synchronous = FULL"
        rows += [
            race.row(name, "antiphon", "dbos step", faster=faster, note=peer),
            race.row(f"{name}, wall time", "antiphon", "dbos step", metric="wall", note=peer),
            race.row(name, "antiphon", "bare", metric="wall", note="two bare commits: the floor"),
            race.row(f"{name} with 2 events of 0.9 KB", "recorded", "dbos step", faster=10, note=peer),
            race.row(f"{name} with 2 events, each of 16 tasks", "16 tasks", "dbos step", note=peer),
        ]
    reused = ctx.race({"reused": Case("embedded_stores", "sqlite_reuse", {"file": file})})
    return [*rows, reused.row("SQLite: a reused answer", "reused", metric="wall")]


def _growth(ctx: Context) -> list[Row]:
    file = ctx.payload("params-900")
    race = ctx.race(
        {
            "10th": Case("embedded_stores", "append_to", {"file": file, "length": 10}),
            "10,000th": Case("embedded_stores", "append_to", {"file": file, "length": 10_000}),
        },
        n=200,
    )
    woken = ctx.race({"64 waiters": Case("embedded_stores", "waking", {"file": file})}, rounds=1, n=5)
    return [
        race.row("SQLite: the 10,000th event of a run", "10,000th", "10th", metric="cpu", at_most=1.2),
        Row(
            name="SQLite: waking 64 waiters of one process, p50",
            value=woken["64 waiters"].extra["p50_ms"],
            unit="ms",
            note="settle included",
        ),
    ]
