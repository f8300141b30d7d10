"""One database file in one process: its connections, its single writer, and commits that are shared.

Every writer puts an operation into the queue and takes the writer's lock. The first one in becomes the leader: it runs
everything that is queued in one transaction and commits once. The others find their operation done when they get the
lock. So threads share the cost of an fsync, and a process never competes with itself for SQLite's own lock.
"""

from __future__ import annotations

import copy
import os
import sqlite3
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import Any, TypeVar

from antiphon.errors import StoreUnavailable
from antiphon.stores.sqlite.schema import Connection, connect, retry_busy, unavailable
from antiphon.stores.sqlite.wait import Poller

T = TypeVar("T")
Run = Callable[[sqlite3.Connection], T]

_BATCH = 128
_CLOSING_S = 1.0
_LOOK_EVERY_S = 0.002
"""How often a writer checks whether its file is still the one under its name."""
_WAL_EVERY = 16
"""Commits between two checks of the log: a program that writes little preallocates nothing."""
_WAL_STEP = 2 << 20
_WAL_ENOUGH = 4000 * 4120
"""Where SQLite starts over (``wal_autocheckpoint``), in bytes."""


class Operation:
    """One atomic step on its way into a transaction."""

    __slots__ = ("changed", "deliver", "done", "error", "result", "run")

    def __init__(self, run: Run[Any], changed: Sequence[str] = ()) -> None:
        self.run: Run[Any] = run
        self.changed: Sequence[str] = changed
        """Keys whose waiters to wake once it is committed."""
        self.deliver: Callable[[Operation], None] | None = None
        self.result: Any = None
        self.error: BaseException | None = None
        self.done: bool = False

    def answer(self) -> Any:
        if self.error is not None:
            raise self.error
        return self.result


class WalPreallocator:
    """Extends the write-ahead log before it is needed. The caller holds the lock of this process's writer.

    With ``synchronous="FULL"`` every commit waits for the disk. While the log grows, the file system has to write its
    new length and blocks as well, which doubles that wait. So the log is filled with zeros to overwrite, some at a
    time, until it reaches the length at which SQLite starts over at its beginning. SQLite reads zeros as no frames.
    """

    __slots__ = ("_commits", "_name", "_size")

    def __init__(self, name: str) -> None:
        self._name = f"{name}-wal"
        self._commits = 0
        self._size = 0

    def extend(self, connection: sqlite3.Connection) -> None:
        """Call this before each commit, outside of a transaction. A failure is never an error."""
        self._commits += 1
        if self._commits % _WAL_EVERY == 0 and self._size < _WAL_ENOUGH:
            with suppress(OSError, sqlite3.Error):
                if os.stat(self._name).st_size != self._size:  # noqa: PTH116
                    self._append_zeros(connection)

    def _append_zeros(self, connection: sqlite3.Connection) -> None:
        try:
            connection.execute("BEGIN IMMEDIATE")  # nobody else appends to the log now
            log = os.open(self._name, os.O_WRONLY)
            try:
                end = os.fstat(log).st_size
                os.pwrite(log, bytes(_WAL_STEP), end)
                self._size = os.fstat(log).st_size
            finally:
                os.close(log)
        finally:
            if connection.in_transaction:
                connection.execute("ROLLBACK")


class DatabaseFile:
    """Shared by all journals of this process that use the same path."""

    def __init__(self, path: Path, synchronous: str, busy_s: float) -> None:
        self.path = path
        self._name = str(path)
        self.synchronous = synchronous
        self.busy_s = busy_s
        self.schema: int = 0
        self._yield_until = 0.0
        self.reset()

    def reset(self) -> None:
        """Start without connections, waiters or queued operations, as after a fork."""
        self._queue: deque[Operation] = deque()
        self._writer_lock = threading.Lock()
        self._opening = threading.Lock()
        self._open: weakref.WeakSet[Connection] = weakref.WeakSet()
        self._idle: list[Connection] = []
        """The most recently used is taken next: it has cached most of what is needed."""
        self.access: Any = None
        """How event loops use it; created with the first one."""
        self._forking = False
        self._wal = WalPreallocator(self._name) if self.synchronous != "NORMAL" and hasattr(os, "pwrite") else None
        self.poller: Poller = Poller(self.open, self.path)

    def open(self) -> Connection:
        """A new connection; the first one creates and migrates the file."""
        with self._opening:
            connection, self.schema = connect(self.path, self.synchronous, self.busy_s, new=not self.schema)
            self._open.add(connection)
            return connection

    def read(self, run: Run[T]) -> T:
        """Run a reading step; it never waits for a writer."""
        connection = self._take()
        try:
            result = self._step(connection, run)
        except BaseException as error:
            connection.close()  # after a failure a fresh connection is the safest start
            if isinstance(error, sqlite3.Error):
                raise unavailable(self._name, error) from error
            raise
        self._idle.append(connection)
        return result

    def write(self, operation: Operation) -> Any:
        """Run a writing step and commit it, together with whatever else is waiting."""
        try:
            self._queue.append(operation)
            with self._writer_lock:
                while not operation.done:
                    self._lead()
        except BaseException:
            self._unqueue(operation)  # interrupted before anybody started it
            raise
        return operation.answer()

    def execute_now(
        self, statement: str, values: tuple[Any, ...], second: str = "", more: tuple[Any, ...] = ()
    ) -> bool:
        """Run and commit one or two statements at once, if nobody else writes and each of them changes something.

        ``False`` means that nothing was changed; :meth:`write` knows why.
        """
        now, lock, idle = monotonic(), self._writer_lock, self._idle
        if self._queue or now < self._yield_until or lock.locked():
            return False
        with lock:
            connection = idle.pop() if idle else self.open()
            try:
                if now >= connection.look_at or self._wal is not None:
                    self._before_commit(connection)
                execute = connection.writes.execute
                if not second:
                    done = execute(statement, values).rowcount > 0
                else:
                    execute("BEGIN IMMEDIATE")
                    done = execute(statement, values).rowcount > 0 and execute(second, more).rowcount > 0
                    execute("COMMIT" if done else "ROLLBACK")
            except (sqlite3.OperationalError, sqlite3.IntegrityError):  # busy, full, locked; a number that is taken
                done = False
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
            except BaseException as error:
                connection.close()
                if isinstance(error, sqlite3.Error):
                    raise unavailable(self._name, error) from error
                raise
            idle.append(connection)
            return done

    def submit(self, operation: Operation) -> None:
        """Queue a step for :meth:`write_queued`."""
        self._queue.append(operation)

    def write_queued(self) -> None:
        """Run and commit everything that is queued."""
        with self._writer_lock:
            while self._queue:
                self._lead()

    def close(self) -> None:
        """Close all unused connections; the next step opens new ones."""
        if self._writer_lock.acquire(timeout=_CLOSING_S):  # a signal handler may have interrupted the writer
            try:
                self._close_idle()
            finally:
                self._writer_lock.release()
        self.poller.close()

    def _close_idle(self) -> None:
        with suppress(IndexError):
            while True:
                self._idle.pop().close()

    def __del__(self) -> None:
        for connection in self._idle:
            connection.close()

    def pause_for_fork(self) -> None:
        """Keep all connections closed while the process forks: SQLite's locks would not survive it in the child."""
        self._forking = self._writer_lock.acquire(timeout=self.busy_s + 5)
        self.poller.pause()
        self._opening.acquire()
        limit = monotonic() + 5
        self._close_idle()
        while any(connection.is_open for connection in self._open) and monotonic() < limit:
            time.sleep(0.0002)  # until readers return their connections
            self._close_idle()

    def resume_after_fork(self) -> None:
        self._opening.release()
        self.poller.resume()
        if self._forking:
            self._writer_lock.release()

    def abandon(self) -> None:
        """In the child: forget what belongs to the parent without touching it."""
        _abandoned.append((tuple(self._open), self._idle, self.poller))
        self.reset()

    def _lead(self) -> None:
        """Run what is queued. A step stays in the queue until it is done and announced: a leader that is interrupted
        here leaves it to the next one."""
        batch = list(self._queue)[:_BATCH]  # in one step: others queue in the meantime
        connection: Connection | None = None
        try:
            connection = self._take()
            self._commit(connection, [operation for operation in batch if not operation.done])
        except BaseException as error:
            if connection is not None:
                connection.close()
            if isinstance(error, sqlite3.Error):
                _fail(batch, unavailable(self._name, error))
            elif isinstance(error, Exception):
                _fail(batch, error)
            else:
                raise
        else:
            self._idle.append(connection)
        finally:
            for operation in batch:
                if operation.done:
                    self._announce(operation)
                    self._unqueue(operation)

    def _unqueue(self, operation: Operation) -> None:
        with suppress(ValueError, IndexError, RuntimeError):  # it has left; another thread is changing the queue
            self._queue.remove(operation)

    def _commit(self, connection: Connection, batch: list[Operation]) -> None:
        ran = False
        self._before_commit(connection)
        try:
            self._begin(connection)
            for operation in batch:
                _run_step(connection, operation, apart=len(batch) > 1)
            ran = True
            if connection.in_transaction:
                connection.execute("COMMIT")
        except sqlite3.Error:  # a commit that failed may have rolled back by itself: nothing of it is done
            ran = False
            raise
        finally:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            elif ran:  # also if an interrupt came right after the commit
                for operation in batch:
                    operation.done = True

    def _announce(self, operation: Operation) -> None:
        if operation.changed and operation.error is None:
            self.poller.wake(operation.changed)
        if operation.deliver is not None:
            operation.deliver(operation)

    def _begin(self, connection: Connection) -> None:
        if monotonic() < self._yield_until:
            time.sleep(0.0002)  # other processes retry at intervals: leave them a moment
        try:
            connection.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            retry_busy(lambda: connection.execute("BEGIN IMMEDIATE"), self.busy_s)
            self._yield_until = monotonic() + 1.0

    def _step(self, connection: Connection, run: Run[T]) -> T:
        try:
            return run(connection)
        except sqlite3.OperationalError:
            return retry_busy(lambda: run(connection), self.busy_s)

    def _take(self) -> Connection:
        try:
            return self._idle.pop()
        except IndexError:
            return self.open()

    def _before_commit(self, connection: Connection) -> None:
        now = monotonic()
        if now >= connection.look_at:
            self._check_still_there(connection)
            connection.look_at = now + _LOOK_EVERY_S
        if self._wal is not None:
            self._wal.extend(connection)

    def _check_still_there(self, connection: Connection) -> None:
        """A file that was removed still accepts writes and keeps none of them: refuse instead."""
        try:
            if os.stat(self._name).st_ino == connection.inode:  # noqa: PTH116 - half the price
                return
        except OSError:
            pass
        self._close_idle()
        self.schema = 0
        raise StoreUnavailable(
            f"The store {self.path} was removed or replaced while it was in use. Nothing was written.",
            hint="The next call uses the current file; restore the old file to keep its claims.",
            reason="replaced",
        )


def _fail(batch: list[Operation], problem: Exception) -> None:
    """Each caller gets an exception of its own: one object raised in many threads accumulates all their tracebacks."""
    for operation in batch:
        if not operation.done:
            operation.error = copy.copy(problem)
            operation.error.__cause__ = problem.__cause__
            operation.done = True


def _run_step(connection: sqlite3.Connection, operation: Operation, *, apart: bool) -> None:
    """Within a shared transaction, a step that is run *apart* may fail without harming the others."""
    operation.error = None
    if apart:
        connection.execute("SAVEPOINT step")
    try:
        operation.result = operation.run(connection)
    except sqlite3.Error:
        raise
    except Exception as error:
        connection.execute("ROLLBACK TO step" if apart else "ROLLBACK")
        operation.error = error
    if apart:
        connection.execute("RELEASE step")


_by_path: weakref.WeakValueDictionary[tuple[str, str], DatabaseFile] = weakref.WeakValueDictionary()
_by_path_lock = threading.Lock()
_paused: list[DatabaseFile] = []
_abandoned: list[Any] = []
"""Connections a forked child inherited: closing them there would break the parent's locks."""


def shared_file(path: Path, synchronous: str, busy_s: float) -> DatabaseFile:
    """The one :class:`DatabaseFile` of this path in this process."""
    real = path.resolve()
    with _by_path_lock:
        file = _by_path.get((str(real), synchronous))
        if file is None:
            file = _by_path[str(real), synchronous] = DatabaseFile(real, synchronous, busy_s)
        return file


def _before_fork() -> None:
    _by_path_lock.acquire()
    _paused.extend(_by_path.values())
    for file in _paused:
        file.pause_for_fork()


def _after_fork_in_parent() -> None:
    while _paused:
        _paused.pop().resume_after_fork()
    _by_path_lock.release()


def _after_fork_in_child() -> None:
    while _paused:
        _paused.pop().abandon()
    _by_path_lock.release()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
