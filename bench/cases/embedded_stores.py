"""Steps of the memory store and the SQLite store of Antiphon."""

import asyncio
import itertools
import json
import shutil
import sqlite3
import tempfile
import time
import uuid
from pathlib import Path

from antiphon.ports import ClaimTemplate, Row, Settlement, StaticClaimRequest
from antiphon.stores import MemoryStore, SQLiteStore

DAY_MS = 86_400_000
CALLS_PER_RUN = 50
DONE = Settlement("done", DAY_MS, payload=b'{"sent":true,"id":"m-1"}', attempt_count=1)
TEMPLATE = ClaimTemplate(
    tool="tools/send", session="session-1", actor="actor-1", ttl_ms=DAY_MS, lease_ms=120_000, owner="bench"
)


class _Calls:
    """New intents of one tool, with the events a recorded call writes before and after its dispatch."""

    def __init__(self, file):
        params = json.loads(Path(file).read_bytes())
        self.started = json.dumps({"lane": "0", "index": 1, "payload": {"arguments": params}}).encode()
        self.finished = json.dumps({"lane": "0", "index": 2, "payload": {"outcome": "ok"}}).encode()
        self._name = uuid.uuid4().hex
        self._numbers = itertools.count()

    def new(self):
        number = next(self._numbers)
        identity = f"call-{self._name}-{number}"
        return StaticClaimRequest(
            key=f"{self._name}{number:032}",
            identity=identity,
            template=TEMPLATE,
            idempotency_key="k" * 64,
            params=("d" * 64, "e" * 64),
            request_id=identity,
            token=f"{number:08x}",
        )

    def steps(self, log):
        """A request, its start event and its end event."""
        request = self.new()
        if not log:
            return request, (), ()
        run = f"run-{self._name}-{next(self._numbers) // CALLS_PER_RUN}"
        return request, [Row(run, "call.started", 1, self.started)], [Row(run, "call.finished", 2, self.finished)]

    def guarded(self, journal, log=True):
        request, started, finished = self.steps(log)
        won = journal.begin(request, started)
        journal.settle(request.key, won.version, DONE, finished)
        return request

    async def guarded_async(self, journal, log=True):
        request, started, finished = self.steps(log)
        won = await journal.begin(request, started)
        await journal.settle(request.key, won.version, DONE, finished)


def memory_pair(file):
    """Claim and settle, the requests made beforehand."""
    journal = MemoryStore().open_sync()
    calls = _Calls(file)

    def run(n):
        requests = [calls.new() for _ in range(n)]
        started = time.process_time()
        for request in requests:
            won = journal.begin(request)
            journal.settle(request.key, won.version, DONE)
        return {"us": (time.process_time() - started) / n * 1e6}

    return run


def memory_reuse(file, keys):
    """Look up settled claims, spread over all keys."""
    journal = MemoryStore().open_sync()
    calls = _Calls(file)
    requests = [calls.guarded(journal, log=False) for _ in range(keys)]
    for request in requests:
        journal.begin(request)  # the record is built when it is first asked for
    some = [requests[n * 7919 % keys] for n in range(100)]

    def run(n):
        started = time.process_time()
        for _ in range(n // 100):
            for request in some:
                journal.begin(request)
        return {"us": (time.process_time() - started) / (n // 100 * 100) * 1e6}

    return run


def _store(synchronous):
    folder = tempfile.mkdtemp(prefix="bench-")
    return folder, SQLiteStore(Path(folder) / "antiphon.db", synchronous)


def sqlite_guarded(file, synchronous, log=True):
    """Claim and settle one call, with its two events."""
    folder, store = _store(synchronous)
    journal = store.open_sync()
    calls = _Calls(file)
    yield lambda: calls.guarded(journal, log)
    journal.close()
    shutil.rmtree(folder)


def sqlite_reuse(file):
    """The same call again, answered from its record."""
    folder, store = _store("FULL")
    journal = store.open_sync()
    request = _Calls(file).guarded(journal)
    yield lambda: journal.begin(request)
    journal.close()
    shutil.rmtree(folder)


async def sqlite_tasks(file, synchronous, tasks):
    """Guarded calls of many tasks of one loop."""
    folder, store = _store(synchronous)
    journal = store.open_async()
    calls = _Calls(file)

    async def run(n):
        async def some():
            for _ in range(n // tasks):
                await calls.guarded_async(journal)

        await asyncio.gather(*(some() for _ in range(tasks)))

    yield run
    await journal.close()
    shutil.rmtree(folder)


def bare_commits(synchronous):
    """Two bare commits of one row: the floor of any store that claims and settles."""
    folder, _ = _store(synchronous)
    connection = sqlite3.connect(Path(folder) / "bare.db", isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute(f"PRAGMA synchronous = {synchronous}")
    connection.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, body BLOB)")
    body = b"x" * 900

    def pair():
        for _ in range(2):
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("INSERT INTO t (body) VALUES (?)", (body,))
            connection.execute("COMMIT")

    yield pair
    connection.close()
    shutil.rmtree(folder)


def append_to(file, length):
    """One more event in a run that has *length*."""
    folder, store = _store("NORMAL")
    journal = store.open_sync()
    row = Row("run", "call.started", 1, _Calls(file).started)
    for n in range(0, length, 500):
        journal.append("run", [row] * min(500, length - n))
    yield lambda: journal.append("run", [row])
    journal.close()
    shutil.rmtree(folder)


def waking(file):
    """From settle to an awake waiter in the same process."""
    folder, store = _store("NORMAL")
    journal = store.open_async()
    calls = _Calls(file)

    async def run(n):
        delays = []
        for _ in range(n):
            request = calls.new()
            won = await journal.begin(request)

            async def wait(request=request, won=won):
                await journal.wait(request.key, won.version, 30)
                return time.perf_counter()

            waiters = [asyncio.ensure_future(wait()) for _ in range(64)]
            await asyncio.sleep(0.05)
            started = time.perf_counter()
            await journal.settle(request.key, won.version, DONE)
            delays += [await waiter - started for waiter in waiters]
        delays.sort()
        return {"p50_ms": delays[len(delays) // 2] * 1000, "max_ms": delays[-1] * 1000}

    yield run
    shutil.rmtree(folder)
