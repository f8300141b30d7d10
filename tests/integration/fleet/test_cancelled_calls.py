"""D54: calls that are cancelled at any moment leave no claim in flight, whatever the store does with their requests."""

from __future__ import annotations

import asyncio
import random
import sqlite3
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from antiphon._gateway.gateway import AsyncGateway
from antiphon._gateway.plan import Dependencies
from antiphon.stores import PostgresStore, RedisStore, SQLiteStore

ROUNDS, CALLS = 20, 12


async def cancelled_at_any_moment(store: Any) -> Counter[str]:
    """The states of the records that are left, once repairs are over."""
    gateway = AsyncGateway(Dependencies(store=store))
    chance = random.Random(7)

    @gateway.tool(idempotent=False)
    async def send(to: str) -> str:
        await asyncio.sleep(chance.uniform(0, 0.002))
        return "sent"

    await send("warm")
    for round_ in range(ROUNDS):
        tasks = [asyncio.create_task(send(f"{round_}-{n}")) for n in range(CALLS)]
        await asyncio.sleep(chance.uniform(0, 0.01))
        for task in tasks:
            if chance.random() < 0.6:
                task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    await gateway.close()  # statements under way end first
    await asyncio.sleep(0.2)
    journal = store.open_sync()
    states = Counter(record.state for record in journal.list(tenant="default", limit=1000))
    journal.close()
    return states


async def check(store: Any) -> None:
    states = await cancelled_at_any_moment(store)
    assert states["inflight"] == 0, states
    assert states["done"] > ROUNDS, states


async def test_on_sqlite(tmp_path: Path) -> None:
    await check(SQLiteStore(tmp_path / "claims.db"))


async def test_on_postgresql(postgres_database: str) -> None:
    await check(PostgresStore(postgres_database))


async def test_on_postgresql_with_a_single_connection(postgres_database: str) -> None:
    await check(PostgresStore(postgres_database, max_connections=1))


async def test_on_redis(valkey_url: str, unique: str) -> None:
    await check(RedisStore(valkey_url, prefix=unique))


@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_a_call_that_is_cancelled_while_the_file_is_locked_is_not_made(kind: str, tmp_path: Path) -> None:
    """SQLite finishes what was handed over and then delivers the cancellation: before the tool is called."""
    gateway = AsyncGateway(Dependencies(store=SQLiteStore(tmp_path / "claims.db")))
    made: list[str] = []

    async def send(to: str) -> str:
        made.append(to)
        await asyncio.sleep(0)
        return "sent"

    def send_at_once(to: str) -> str:
        made.append(to)
        return "sent"

    tool: Any = gateway.tool("send", idempotent=False)(send if kind == "async" else send_at_once)
    await tool("warm")
    other = sqlite3.connect(tmp_path / "claims.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    call = asyncio.create_task(tool("ada"))
    await asyncio.sleep(0.1)
    call.cancel()
    await asyncio.sleep(0.05)
    other.execute("ROLLBACK")
    other.close()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert made == ["warm"]
    assert await tool("ada") == "sent"
    await gateway.close()


async def test_a_cancelled_task_can_still_make_calls(tmp_path: Path) -> None:
    gateway = AsyncGateway(Dependencies(store=SQLiteStore(tmp_path / "claims.db")))

    @gateway.tool(idempotent=False)
    async def refund(order: str) -> str:
        return "refunded"

    async def work() -> str:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            return str(await refund("1042"))
        return "done"

    task = asyncio.create_task(work())
    await asyncio.sleep(0)
    task.cancel()
    assert await task == "refunded"
    await gateway.close()
