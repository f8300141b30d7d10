"""Event loops that end before their journals on PostgreSQL are closed: they do end, and their connections do, too."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
from typing import Any

import pytest

import antiphon
from antiphon.stores import PostgresStore
from antiphon.stores.postgres.journal import PostgresJournal
from tests.integration.stores.postgres_kit import eventually, look, request_for

SESSIONS = "SELECT pid FROM pg_stat_activity WHERE application_name = 'antiphon' AND datname = current_database()"

MODULES = """
import asyncio, sys
from antiphon.stores import PostgresStore
from antiphon.stores.postgres.loop_pool import NAME, LoopPool
"""

WHILE_IT_GROWS = """
async def main(n):
    journal = PostgresStore(sys.argv[1]).open_async()
    await asyncio.gather(*(journal.read(str(i)) for i in range(4)))
for n in range(20):
    asyncio.run(main(n))
"""

AT_EACH_STEP = """
async def main(n):
    pool = LoopPool(sys.argv[1], min_size=0, max_size=2, num_workers=1, name=NAME, open=False)
    await pool.open()
    waiting = asyncio.create_task(pool.getconn(5))
    for _ in range(n):
        await asyncio.sleep(0)
for n in range(20):
    asyncio.run(main(n))
"""


@pytest.mark.parametrize("program", [WHILE_IT_GROWS, AT_EACH_STEP], ids=["while it grows", "at each step"])
def test_a_loop_ends_while_its_pool_connects(postgres_database: str, program: str) -> None:
    """``asyncio.run`` cancels each task once, and waits for it."""
    ended = subprocess.run(
        [sys.executable, "-c", MODULES + program, postgres_database],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert ended.stderr == ""


def test_the_next_loop_closes_the_connections_of_those_that_ended(postgres_database: str) -> None:
    store = PostgresStore(postgres_database, max_connections=3)
    kept = []

    async def use() -> None:
        journal = store.open_async()
        kept.append(journal)
        await asyncio.gather(*(journal.begin(request_for(str(n), token="t")) for n in range(6)))

    for _ in range(4):
        asyncio.run(use())
    eventually(lambda: len(look(postgres_database, SESSIONS)) <= 3)


def test_a_loop_that_ended_leaves_a_running_one_alone(postgres_database: str) -> None:
    store = PostgresStore(postgres_database)

    async def use() -> None:
        journal = store.open_async()
        await journal.ping()
        await asyncio.to_thread(asyncio.run, store.open_async().ping())
        before = await asyncio.to_thread(look, postgres_database, SESSIONS)
        await asyncio.to_thread(asyncio.run, store.open_async().ping())
        await journal.ping()
        assert set(before) & set(await asyncio.to_thread(look, postgres_database, SESSIONS))
        await journal.close()

    asyncio.run(use())


@pytest.mark.parametrize("closed", [True, False])
def test_a_journal_of_a_loop_that_ended_closes_its_connections_when_nobody_holds_it(
    postgres_database: str, closed: bool
) -> None:
    loop = asyncio.new_event_loop()

    async def use() -> Any:
        journal = PostgresStore(postgres_database).open_async()
        await journal.ping()
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        return journal

    journal = loop.run_until_complete(use())
    assert look(postgres_database, SESSIONS)
    if closed:
        loop.close()
    del journal
    gc.collect()
    eventually(lambda: not look(postgres_database, SESSIONS))
    loop.close()


def test_a_gateway_keeps_no_journal_of_a_loop_that_ended(postgres_database: str) -> None:
    gateway = antiphon.AsyncGateway(store=PostgresStore(postgres_database))

    @gateway.tool(idempotent=False, key="order")
    async def charge(order: str) -> str:
        return order

    async def job(n: int) -> None:
        await asyncio.gather(*(charge(f"{n}-{i}") for i in range(3)))

    def journals() -> int:
        gc.collect()
        return sum(type(found) is PostgresJournal for found in gc.get_objects())

    before = journals()
    for n in range(5):
        asyncio.run(job(n))
    assert journals() - before <= 2  # of the last loop, and of the thread that renews leases

    async def end() -> None:
        await charge("last")
        await gateway.close()

    asyncio.run(end())
