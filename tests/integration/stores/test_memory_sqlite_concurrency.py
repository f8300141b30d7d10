"""D7, R6: SQLite under threads, loops, cancellation, interrupts and forks; commits are shared and nothing is lost."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from antiphon import Antiphon
from antiphon.errors import StoreUnavailable
from antiphon.ports import Claimed, SyncJournal
from antiphon.stores import MemoryStore, SQLiteStore
from antiphon.stores.memory import store as memory
from antiphon.stores.sqlite.file import DatabaseFile, Operation
from antiphon.stores.sqlite.schema import Connection
from antiphon.testing.journal_conformance import Harness, claimed, done, existing


@pytest.fixture
def store(tmp_path: Path) -> SQLiteStore:
    return SQLiteStore(tmp_path / "antiphon.db")


@pytest.fixture
def harness(store: SQLiteStore) -> Harness:
    return Harness(lambda: store)


@pytest.fixture
def batches(store: SQLiteStore, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many steps each commit of the store had; other stores of the process have threads that write, too."""
    sizes: list[int] = []
    commit = DatabaseFile._commit

    def counted(self: DatabaseFile, connection: Connection, batch: list[Operation]) -> None:
        if self.path == store.path:
            sizes.append(len(batch))
        commit(self, connection, batch)

    monkeypatch.setattr(DatabaseFile, "_commit", counted)
    return sizes


async def test_tasks_share_commits(store: SQLiteStore, harness: Harness, batches: list[int]) -> None:
    journal = store.open_async()
    await journal.ping()
    batches.clear()
    answers = await asyncio.gather(
        *(journal.begin(harness.request(f"k{n}"), harness.rows("run", "a")) for n in range(200))
    )
    assert all(isinstance(answer, Claimed) for answer in answers)
    assert sum(batches) == 200
    assert len(batches) < 40
    assert [event.seq for event in await journal.events("run")] == list(range(200))
    await journal.close()


def test_threads_share_commits(store: SQLiteStore, harness: Harness, batches: list[int]) -> None:
    journal = store.open_sync()
    journal.ping()
    other = sqlite3.connect(store.path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")  # hold them back until all are queued
    batches.clear()
    with ThreadPoolExecutor(8) as pool:
        requests = [harness.request(f"k{n}") for n in range(8)]
        answers = [pool.submit(journal.begin, request) for request in requests]
        while not batches or len(journal._file._queue) < 8:  # those that are being written stay in it
            threading.Event().wait(0.001)
        other.execute("ROLLBACK")
        assert all(isinstance(answer.result(), Claimed) for answer in answers)
    assert len(batches) <= 2, "the others went together once the first commit was done"
    assert sum(batches) == 8
    other.close()
    journal.close()


def test_others_may_queue_between_any_two_steps_of_whoever_writes(store: SQLiteStore, harness: Harness) -> None:
    journal = store.open_sync()
    queued: list[Operation] = []

    def queue_one(frame: FrameType, _event: str, _arg: object) -> Any:
        if frame.f_code is DatabaseFile._lead.__code__ and len(queued) < 200:
            frame.f_trace_opcodes = True  # as threads may change places
            queued.append(Operation(lambda connection: None))
            journal._file.submit(queued[-1])
        return queue_one

    before = sys.gettrace()
    sys.settrace(queue_one)
    try:
        assert isinstance(journal.begin(harness.request("k")), Claimed)
    finally:
        sys.settrace(before)
    journal._file.write_queued()
    assert len(queued) > 20
    assert all(operation.done and operation.error is None for operation in queued)
    journal.close()


async def test_one_bad_step_does_not_harm_its_batch(store: SQLiteStore, harness: Harness) -> None:
    journal = store.open_async()
    await journal.begin(harness.request("newer"))
    with sqlite3.connect(store.path) as connection:
        connection.execute("UPDATE claims SET v = 99")
    connection.close()
    steps = [journal.settle("newer", n, done(), harness.rows("run", f"{n}")) for n in range(5)]
    takes = [journal.take_over(harness.request("newer", "call-2"), 0)]
    good = [journal.begin(harness.request(f"good-{n}")) for n in range(5)]
    answers = await asyncio.gather(*steps, *takes, *good, return_exceptions=True)
    assert answers[:5] == [None] * 5
    assert type(answers[5]).__name__ == "StoreVersionError"
    assert all(isinstance(answer, Claimed) for answer in answers[6:])
    assert len(await journal.events("run")) == 5
    await journal.close()


async def test_every_caller_gets_an_exception_of_its_own(tmp_path: Path) -> None:
    store = SQLiteStore(tmp_path / "no" / "such" / "a.db")
    journal, harness = store.open_async(), Harness(lambda: store)
    answers = await asyncio.gather(*(journal.begin(harness.request(f"k{n}")) for n in range(5)), return_exceptions=True)
    assert all(isinstance(answer, StoreUnavailable) for answer in answers)
    assert len({id(answer) for answer in answers}) == 5


async def test_a_cancelled_begin_still_tells_its_caller_that_it_won(store: SQLiteStore, harness: Harness) -> None:
    """Otherwise a claim would be held by nobody until its lease ends, and then count as unknown."""
    journal = store.open_async()
    await journal.ping()
    told: list[Claimed] = []

    async def call() -> None:
        told.append(claimed(await journal.begin(harness.request("k"))))
        await asyncio.sleep(60)

    task = asyncio.ensure_future(call())
    await asyncio.sleep(0)
    task.cancel("enough")
    with pytest.raises(asyncio.CancelledError, match="enough"):
        await task
    assert existing(await journal.read("k")).current.version == told[0].version
    await journal.close()


async def test_a_timeout_around_a_step_is_still_a_timeout(store: SQLiteStore, harness: Harness) -> None:
    journal = store.open_async()
    other = sqlite3.connect(store.path, isolation_level=None)
    await journal.ping()
    other.execute("BEGIN IMMEDIATE")
    loop = asyncio.get_running_loop()
    loop.call_later(0.2, lambda: other.execute("ROLLBACK"))

    async def call() -> None:
        async with asyncio.timeout(0.05):
            claimed(await journal.begin(harness.request("k")))
            await asyncio.sleep(60)

    with pytest.raises(TimeoutError):
        await call()
    other.close()
    assert existing(await journal.read("k")).current.state == "inflight"
    await journal.close()


def test_both_faces_and_many_loops_at_once(store: SQLiteStore, harness: Harness) -> None:
    def in_loop(number: int) -> int:
        async def work() -> int:
            journal = store.open_async()
            answers = [await journal.begin(harness.request(f"k{n}", f"loop-{number}")) for n in range(40)]
            await journal.close()
            return sum(isinstance(answer, Claimed) for answer in answers)

        return asyncio.run(work())

    def in_thread(number: int) -> int:
        journal = store.open_sync()
        answers = [journal.begin(harness.request(f"k{n}", f"thread-{number}")) for n in range(40)]
        journal.close()
        return sum(isinstance(answer, Claimed) for answer in answers)

    with ThreadPoolExecutor(6) as pool:
        won = [*pool.map(in_loop, range(3)), *pool.map(in_thread, range(3))]
    assert sum(won) == 40


def test_an_interrupted_leader_does_not_take_others_with_it(store: SQLiteStore, harness: Harness) -> None:
    journal = store.open_sync()
    journal.ping()
    file: DatabaseFile = journal._file
    ran: list[str] = []

    def interrupted(connection: sqlite3.Connection) -> None:
        connection.execute("UPDATE meta SET value = 1234 WHERE name = 'version_floor'")
        raise KeyboardInterrupt

    def innocent(connection: sqlite3.Connection) -> str:
        ran.append("once")
        return "done"

    follower = Operation(innocent)
    file.submit(follower)
    with pytest.raises(KeyboardInterrupt):
        file.write(Operation(interrupted))
    assert not follower.done
    file.write_queued()
    assert follower.answer() == "done"
    floor = file.read(
        lambda connection: connection.execute("SELECT value FROM meta WHERE name = 'version_floor'").fetchone()
    )
    assert floor == (0,), "what the interrupted step did is undone"
    journal.close()


def test_a_commit_that_fails_by_itself_is_not_taken_for_done(
    store: SQLiteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite may roll back on its own; the transaction is over then, and still nothing was kept."""
    journal = store.open_sync()
    journal.ping()
    file: DatabaseFile = journal._file

    class Failing(Connection):
        inode = store.path.stat().st_ino

        def execute(self, sql: str, *values: object) -> sqlite3.Cursor:
            if sql == "COMMIT":
                super().execute("ROLLBACK")
                raise sqlite3.OperationalError("disk I/O error")
            return super().execute(sql, *values)  # type: ignore[arg-type]

    journal.close()
    monkeypatch.setattr(file, "open", lambda: sqlite3.connect(store.path, isolation_level=None, factory=Failing))
    with pytest.raises(StoreUnavailable):
        file.write(Operation(lambda connection: None))


def _forked(work: object) -> int:
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            work()  # type: ignore[operator]
            status = 0
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_a_forked_child_inherits_no_connection_and_works(store: SQLiteStore, harness: Harness) -> None:
    journal = store.open_sync()
    held = claimed(journal.begin(harness.request("k")))

    def child() -> None:
        assert not [name for name in _open_files() if str(store.path) in name]
        assert existing(journal.begin(harness.request("k", "call-2"))).current.version == held.version
        claimed(journal.begin(harness.request("of-the-child")))

    assert _forked(child) == 0
    assert journal.settle("k", held.version, done()) is not None
    assert existing(journal.read("of-the-child")).current.state == "inflight"
    journal.close()


def _open_files() -> list[str]:
    names = []
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # the listing's own
            names.append(str(link.readlink()))
    return names


def test_forks_while_threads_write(store: SQLiteStore, harness: Harness) -> None:
    journal = store.open_sync()
    stop = threading.Event()
    counts = [0, 0]

    def write(number: int) -> None:
        while not stop.is_set():
            claimed(journal.begin(harness.request(f"t{number}-{counts[number]}")))
            counts[number] += 1

    threads = [threading.Thread(target=write, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for n in range(10):
        assert _forked(lambda n=n: claimed(journal.begin(harness.request(f"child-{n}")))) == 0
    stop.set()
    for thread in threads:
        thread.join()
    found = journal.list(tenant=harness.tenant, limit=100_000)
    assert len(found) == sum(counts) + 10
    journal.close()


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_a_fork_while_others_wait_leaves_the_child_usable(kind: str, tmp_path: Path) -> None:
    made: MemoryStore | SQLiteStore = MemoryStore() if kind == "memory" else SQLiteStore(tmp_path / "a.db")
    harness = Harness(lambda: made)
    journal: SyncJournal = made.open_sync()
    held = claimed(journal.begin(harness.request("k")))
    waiter = threading.Thread(target=lambda: journal.wait("k", held.version, 30))
    waiter.start()
    assert _forked(lambda: journal.settle("other", 1, done())) == 0
    assert _forked(lambda: journal.wait("k", held.version, 0.01)) == 0
    journal.settle("k", held.version, done())
    waiter.join(10)
    assert not waiter.is_alive()
    journal.close()


async def test_an_async_journal_works_in_a_forked_child(store: SQLiteStore, harness: Harness) -> None:
    journal = store.open_async()
    await journal.begin(harness.request("k"))

    def child() -> None:
        thread = threading.Thread(target=lambda: asyncio.run(use()))  # this thread's loop is the parent's
        thread.start()
        thread.join(20)
        assert answers

    answers: list[object] = []

    async def use() -> None:
        answers.append(await journal.begin(harness.request("k", "call-2")))

    assert _forked(child) == 0
    await journal.close()


class Reader:
    """Reads a stream, and is part of a cycle: only the garbage collector finds it."""

    def __init__(self, stream: Any) -> None:
        self.itself = self
        self.stream = iter(stream)
        next(self.stream)


def lock_of(journal: Any) -> Any:
    return journal._file._writer_lock if hasattr(journal, "_file") else journal.lock


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
@pytest.mark.parametrize("of", ["tool", "model"])
def test_the_collector_ends_a_dropped_stream_while_its_thread_writes(kind: str, of: str, tmp_path: Path) -> None:
    app = Antiphon(store=MemoryStore() if kind == "memory" else SQLiteStore(tmp_path / "antiphon.db"))

    @app.gateway.tool(idempotent=False)
    def chunks() -> Iterator[str]:
        yield from "abc"

    def send(_: Any) -> Iterator[Any]:
        yield from ({"choices": [{"index": 0, "delta": {"content": word}}]} for word in "abc")

    def collect_inside() -> None:
        with lock_of(app.journal):  # as if it had interrupted a write
            gc.collect()

    with app.run("dropped") as run:
        Reader(chunks() if of == "tool" else run.llm({"model": "m", "stream": True, "messages": []}, send))
        thread = threading.Thread(target=collect_inside, daemon=True)
        thread.start()
        thread.join(60)
        assert not thread.is_alive(), "it waits for itself"
        ends: list[Any] = []
        for _ in range(6_000):
            ends = [event.payload for event in app.journal.events(run.id) if event.type == "call.finished"]
            if ends:
                break
            time.sleep(0.01)
        assert [end["error"]["code"] for end in ends] == ["stream_broken_off"]


def test_two_threads_may_fork_at_once() -> None:
    store = MemoryStore()
    memory._before_fork()

    def fork_too() -> None:
        memory._before_fork()
        memory._after_fork_in_parent()

    other = threading.Thread(target=fork_too, daemon=True)
    other.start()
    other.join(0.2)
    memory._after_fork_in_parent()
    other.join(60)
    assert not other.is_alive()
    assert isinstance(store.open_sync().begin(Harness(lambda: store).request("k")), Claimed)


SETTLES = """
import sys
from antiphon.stores import SQLiteStore
from antiphon.testing.journal_conformance import done
SQLiteStore(sys.argv[1]).open_sync().settle("k2", int(sys.argv[2]), done())
"""


def test_a_waiter_that_arrives_while_the_poller_looks_is_woken(store: SQLiteStore, harness: Harness) -> None:
    journal = store.open_sync()
    first, second = (claimed(journal.begin(harness.request(key))).version for key in ("k1", "k2"))
    poller = journal._file.poller
    waiting = threading.Thread(target=journal.wait, args=("k2", second, 60.0), daemon=True)
    connect = poller._connect

    class Interrupted:
        """Between two statements of the poller, another one waits for a claim that another process then settles."""

        def __init__(self) -> None:
            self.inner = connect()
            self.looks = 0

        def execute(self, statement: str, *values: Any) -> Any:
            self.looks += "data_version" in statement
            if self.looks == 3 and waiting.ident is None:
                waiting.start()
                while "k2" not in poller.waiting:
                    time.sleep(0.01)
                time.sleep(0.3)  # it has looked, and waits to be told
                subprocess.run([sys.executable, "-c", SETTLES, str(store.path), str(second)], check=True)
            return self.inner.execute(statement, *values)

        def close(self) -> None:
            self.inner.close()

    poller._connect = Interrupted  # type: ignore[assignment]
    threading.Thread(target=journal.wait, args=("k1", first, 60.0), daemon=True).start()
    while waiting.ident is None:
        time.sleep(0.01)
    waiting.join(30)
    assert not waiting.is_alive(), "nobody told it"
    journal.settle("k1", first, done())
    journal.close()
