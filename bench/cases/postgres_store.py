"""Steps of the PostgreSQL store of Antiphon, and the bare round trips of its driver."""

import asyncio
import itertools
import json
import time
import uuid
from pathlib import Path

import psycopg

import antiphon
from antiphon.ports import Claimed, ClaimTemplate, Row, Settlement, StaticClaimRequest
from antiphon.stores import PostgresStore

DAY_MS = 86_400_000
CALLS_PER_RUN = 50
TEMPLATE = ClaimTemplate(
    tool="tools/send", session="session-1", actor="actor-1", ttl_ms=DAY_MS, lease_ms=120_000, owner="bench"
)


class _Calls:
    """New intents of one tool, with the events a recorded call writes before and after its dispatch."""

    def __init__(self, file):
        params = json.loads(Path(file).read_bytes())
        self._started = json.dumps({"lane": "0", "index": 1, "payload": {"arguments": params}}).encode()
        self._finished = json.dumps({"lane": "0", "index": 2, "payload": {"outcome": "ok"}}).encode()
        self._result = json.dumps({"sent": True, "id": "m-1"}).encode()
        self._name = uuid.uuid4().hex
        self._numbers = itertools.count()

    def new(self):
        number = next(self._numbers)
        identity = f"call-{self._name}-{number}"
        request = StaticClaimRequest(
            key=f"{self._name}{number:032}",
            identity=identity,
            template=TEMPLATE,
            idempotency_key="k" * 64,
            params=("d" * 64, "e" * 64),
            request_id=identity,
            token=f"{number:08x}",
        )
        return request, f"run-{self._name}-{number // CALLS_PER_RUN}"

    def steps(self, log):
        """A request with its start event, and a settlement with its end event."""
        request, run = self.new()
        settlement = Settlement("done", DAY_MS, payload=self._result, attempt_count=1)
        if not log:
            return (request, ()), (settlement, ())
        started, finished = Row(run, "call.started", 1, self._started), Row(run, "call.finished", 2, self._finished)
        return (request, [started]), (settlement, [finished])

    def guarded(self, journal, log=True):
        begin, end = self.steps(log)
        won = journal.begin(*begin)
        journal.settle(begin[0].key, won.version, *end)
        return begin[0]

    async def guarded_async(self, journal, log=True):
        begin, end = self.steps(log)
        won = await journal.begin(*begin)
        await journal.settle(begin[0].key, won.version, *end)


def guarded(dsn, file, log=True):
    """Claim and settle one call, with its two events."""
    journal = PostgresStore(dsn).open_sync()
    calls = _Calls(file)
    yield lambda: calls.guarded(journal, log)
    journal.close()


def gateway(dsn, file):
    """A whole guarded call: keys, turn, claim, breaker, hooks, tool, outcome."""
    params = json.loads(Path(file).read_bytes())
    guard = antiphon.Gateway(store=PostgresStore(dsn))
    numbers = itertools.count()

    @guard.tool(idempotent=False, effect="write")
    def send(number, arguments):
        return {"sent": True, "id": "m-1"}

    yield lambda: send(next(numbers), params)
    guard.close()


def reused(dsn, file):
    """The same call again, answered from its record."""
    journal = PostgresStore(dsn).open_sync()
    request = _Calls(file).guarded(journal)
    yield lambda: journal.begin(request)
    journal.close()


def round_trips(dsn):
    """Two bare round trips of the driver: what any store with two steps pays at least."""
    connection = psycopg.connect(dsn, autocommit=True)

    def pair():
        connection.execute("SELECT 1", prepare=True).fetchone()
        connection.execute("SELECT 1", prepare=True).fetchone()

    yield pair
    connection.close()


def transactions(dsn, file):
    """How many transactions the server counts per guarded call."""
    journal = PostgresStore(dsn, max_connections=1).open_sync()
    calls = _Calls(file)
    calls.guarded(journal)

    def counted():
        with psycopg.connect(dsn, autocommit=True) as other:
            return other.execute(
                "SELECT pg_stat_get_db_xact_commit(oid) FROM pg_database WHERE datname = current_database()"
            ).fetchone()[0]

    def settled():
        time.sleep(1.2)  # the server's counters lag behind by up to a second
        return counted()

    def run(n):
        before = settled()
        for _ in range(n):
            calls.guarded(journal)
        journal.ping()  # wakes the session so that it reports what it counted
        time.sleep(1.2)
        journal.ping()
        return {"per_call": round((settled() - before) / n, 1)}

    yield run
    journal.close()


async def callers(dsn, file, number=64, log=True):
    """Many tasks of one process, each guarding calls one after the other."""
    journal = PostgresStore(dsn).open_async()
    calls = [_Calls(file) for _ in range(number)]
    await journal.ping()

    async def run(n):
        async def caller(mine):
            for _ in range(max(1, n // number)):
                await mine.guarded_async(journal, log)

        await asyncio.gather(*(caller(mine) for mine in calls))

    yield run
    await journal.close()


async def waking(dsn, file, number=64):
    """From the end of a claim until each of many waiters of another connection holds the record."""
    store = PostgresStore(dsn)
    journal, holder = store.open_async(), store.open_async()
    calls = _Calls(file)

    async def once():
        request, _ = calls.new()
        won = await holder.begin(request)
        assert isinstance(won, Claimed)
        ended, took = 0.0, []

        async def wait(n):
            await journal.wait(request.key, won.version, 20)
            await journal.read(request.key, f"waiter-{n}")
            took.append(time.perf_counter() - ended)

        waiting = [asyncio.create_task(wait(n)) for n in range(number)]
        await asyncio.sleep(0.1)
        await holder.settle(request.key, won.version, Settlement("done", DAY_MS, payload=b"1"))
        ended = time.perf_counter()
        await asyncio.gather(*waiting)
        return sorted(took)

    async def run(n):
        took = [await once() for _ in range(n)]
        return {
            "p50_ms": sorted(one[number // 2] for one in took)[n // 2] * 1000,
            "p100_ms": max(max(one) for one in took) * 1000,
        }

    yield run
    await journal.close()
    await holder.close()
