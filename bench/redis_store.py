"""Claims on Redis: beside redis-py sending the same scripts, round trips, waking, memory."""

from __future__ import annotations

from bench import Case, Context, Row


def run(ctx: Context) -> list[Row]:
    url = ctx.servers.valkey_url()
    here = {"url": url}
    pair = ctx.race({name: Case("redis_store", name, here) for name in ("ours", "raw")}, rounds=15)
    reused = ctx.race({name: Case("redis_store", name, here) for name in ("ours_reused", "raw_reused")}, rounds=15)
    crowd = ctx.race(
        {name: Case("redis_store", name, here) for name in ("ours_crowd", "raw_crowd")}, seconds=0.5, rounds=11
    )
    counted = ctx.race({"count": Case("redis_store", "round_trips", here)}, n=200, rounds=3)["count"].extra
    woken = ctx.race({"wake": Case("redis_store", "wake", here)}, n=5, rounds=5)["wake"].extra
    sizes = ctx.race({"memory": Case("redis_store", "memory", here)}, n=2000, rounds=3)["memory"].extra
    return [
        pair.row("miss, claim and settle", "ours", "raw", metric="wall", at_most=1.3, note="wall; peer: redis-py, raw"),
        reused.row("reused answer", "ours_reused", "raw_reused", metric="wall", at_most=1.3, note="wall"),
        crowd.row(
            "miss, 64 asyncio callers", "ours_crowd", "raw_crowd", metric="wall", faster=3, note="wall, per miss"
        ),
        crowd.row("the same, client CPU", "ours_crowd", "raw_crowd"),
        Row(name="miss, round trips", value=counted["miss"], unit="", at_most=2, note="counted by the server"),
        Row(
            name="reused answer, round trips", value=counted["reused"], unit="", at_most=1, note="counted by the server"
        ),
        Row(name="waking 64 waiters, p50", value=woken["p50_ms"], unit="ms", at_most=5, note="from the call of settle"),
        Row(name="waking 64 waiters, p99", value=woken["p99_ms"], unit="ms"),
        Row(name="commands while 64 wait 0.2 s", value=woken["idle_commands"], unit="", at_most=0),
        Row(name="memory of a record in flight", value=sizes["inflight"], unit="B", note="with its index entry"),
        Row(name="memory of a settled record", value=sizes["done"], unit="B", note="result of 275 bytes"),
    ]
