"""Guarded calls on PostgreSQL."""

from __future__ import annotations

import uuid
from urllib.parse import urlsplit, urlunsplit

import psycopg

from bench import Case, Context, Row


def run(ctx: Context) -> list[Row]:
    """Claim, events and outcome against a DBOS step on the same server, then what the server and waiters see."""
    file = ctx.payload("params-900")
    ours = {"dsn": _database(ctx), "file": file}
    race = ctx.race(
        {
            "antiphon": Case("postgres_store", "guarded", ours),
            "gateway": Case("postgres_store", "gateway", ours),
            "reused": Case("postgres_store", "reused", ours),
            "bare": Case("postgres_store", "round_trips", {"dsn": ours["dsn"]}),
            "dbos step": Case("dbos_postgres", "step", {"dsn": _database(ctx), "file": file}, peer="dbos"),
        },
        seconds=0.4,
    )
    rows = [
        race.row("store: claim, 2 events and outcome of a call", "antiphon", "dbos step", metric="wall", faster=2),
        race.row("the same in client CPU", "antiphon", "dbos step", metric="cpu"),
        race.row("call through a Gateway, outside a run", "gateway", "dbos step", metric="wall", faster=2),
        race.row("store: a reused answer", "reused", metric="wall"),
        race.row("store: the same", "antiphon", "bare", metric="wall", note="two bare round trips: the floor"),
    ]
    return rows + _server(ctx, ours) + _many(ctx, ours)


def _server(ctx: Context, ours: dict[str, str]) -> list[Row]:
    counted = ctx.race({"transactions": Case("postgres_store", "transactions", ours)}, rounds=1, n=500, warmup=0)
    per_call = counted["transactions"].extra["per_call"]
    return [Row(name="transactions per guarded call, by the server", value=per_call, unit="", at_most=2.1)]


def _many(ctx: Context, ours: dict[str, str]) -> list[Row]:
    busy = ctx.race({"64 tasks": Case("postgres_store", "callers", ours)}, rounds=3, n=64 * (4 if ctx.quick else 20))
    woken = ctx.race({"64 waiters": Case("postgres_store", "waking", ours)}, rounds=1, n=5 if ctx.quick else 15)
    extra = woken["64 waiters"].extra
    return [
        Row(name="64 tasks, one process, guarded calls", value=busy["64 tasks"].per_second("wall"), unit="/s"),
        Row(
            name="waking 64 waiters, p50", value=extra["p50_ms"], unit="ms", note="settle to record in hand; no polling"
        ),
    ]


def _database(ctx: Context) -> str:
    """An empty database of its own for each side."""
    server = ctx.servers.postgres_dsn()
    name = f"bench_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}".encode())
    return urlunsplit(urlsplit(server)._replace(path=f"/{name}"))
