"""Where the cells of a matrix are computed: in this process, in processes of this machine, or on a Dask cluster.

An executor has four methods; everything that must survive a crash (claims, results, budgets) is in the store.
"""

from __future__ import annotations

import concurrent.futures
import functools
import logging
import multiprocessing
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import connection
from typing import Any, Protocol

from antiphon._minilm import model_folder
from antiphon.errors import InvalidInput, missing_extra
from antiphon.ops.app import Antiphon
from antiphon.ops.cells import HELD, Row, Work, perform, perform_in_engine

log: logging.Logger = logging.getLogger("antiphon.matrix")

ATTEMPTS = 3
"""A cell fails after this many workers ended while they had only this cell."""


class Executor(Protocol):
    """Computes batches of cells."""

    remote: bool
    """Whether workers may be on other machines, which do not have this machine's files."""

    def capacity(self) -> int:
        """How many cells are computed at the same time right now."""

    def submit(self, batch: Sequence[Work]) -> None:
        """Take a batch."""

    def completed(self, timeout_s: float) -> list[Row]:
        """Rows of batches that finished since the last call; waits for the first of them."""

    def cancel(self) -> None:
        """Drop work that has not started, and release the workers."""


class InProcess:
    """In this process, one cell at a time: for tests, notebooks and functions without a name."""

    remote = False

    def __init__(self, app: Antiphon) -> None:
        self._app = app
        self._waiting: deque[Work] = deque()

    def capacity(self) -> int:
        """One."""
        return 1

    def submit(self, batch: Sequence[Work]) -> None:
        """Queue it."""
        self._waiting.extend(batch)

    def completed(self, timeout_s: float) -> list[Row]:
        """Compute the next cell."""
        return perform([self._waiting.popleft()], self._app) if self._waiting else []

    def cancel(self) -> None:
        """Drop the rest."""
        self._waiting.clear()


class _Pool:
    """Futures of ``concurrent.futures``; cells of a worker that ended are handed out again one by one."""

    remote = False
    _lost: tuple[type[BaseException], ...] = ()

    def __init__(self) -> None:
        self._running: dict[Future[list[Row]], list[Work]] = {}
        self._tries: dict[str, int] = {}

    def submit(self, batch: Sequence[Work]) -> None:
        """Take a batch."""
        raise NotImplementedError

    def _ended(self, future: Future[list[Row]]) -> None:
        """Called when a batch is done or its worker has ended."""

    def completed(self, timeout_s: float) -> list[Row]:
        """Rows that are ready."""
        done, _ = concurrent.futures.wait(self._running, timeout_s, concurrent.futures.FIRST_COMPLETED)
        rows: list[Row] = []
        for future in done:
            batch = self._running.pop(future)
            self._ended(future)
            error = None if future.cancelled() else future.exception()
            if future.cancelled() or isinstance(error, self._lost):
                rows += self._again(batch)
            elif error is None:
                rows += future.result()
            else:
                rows += [_failed(work, type(error).__name__, str(error)) for work in batch]
        for row in rows:
            if row["status"] != HELD:
                self._tries.pop(row["key"], None)
        return rows

    def _again(self, batch: list[Work]) -> Iterator[Row]:
        """Hand out each cell alone; a worker's end is blamed on a cell only if the worker had no other."""
        for work in batch:
            tries = self._tries[work["key"]] = self._tries.get(work["key"], 0) + (len(batch) == 1)
            if tries < ATTEMPTS:
                self.submit([work])
            else:
                yield _failed(work, "worker_died", f"{tries} workers ended while they worked on this cell.")


def _failed(work: Work, code: str, message: str) -> Row:
    kept = {name: work[name] for name in ("key", "run", "variant", "sample")}
    return {**kept, "status": "error", "code": code, "reasons": [message[:300]], "seconds": 0.0}


class LocalProcesses(_Pool):
    """Processes of this machine, each in its own pool: one that ends takes down only its own batch."""

    _lost = (BrokenProcessPool,)

    def __init__(self, workers: int | None = None) -> None:
        super().__init__()
        self._workers = workers or os.cpu_count() or 1
        self._idle = [self._made() for _ in range(self._workers)]
        self._busy: dict[Future[list[Row]], ProcessPoolExecutor] = {}
        self._waiting: deque[list[Work]] = deque()

    def _made(self) -> ProcessPoolExecutor:
        from antiphon.config.wiring import home

        context = multiprocessing.get_context("spawn")
        places = {"ANTIPHON_HOME": str(home().absolute()), "ANTIPHON_MODELS": str(model_folder().parent.absolute())}
        return ProcessPoolExecutor(1, mp_context=context, initializer=_begin, initargs=(places,))

    def submit(self, batch: Sequence[Work]) -> None:
        """Take a batch; it waits for an idle process."""
        self._waiting.append(list(batch))
        self._hand_out()

    def _hand_out(self) -> None:
        while self._waiting and self._idle:
            pool, batch = self._idle.pop(), self._waiting.popleft()
            try:
                future = pool.submit(perform, batch)
            except BrokenProcessPool:  # the process ended while it was idle
                pool = self._made()
                future = pool.submit(perform, batch)
            self._running[future], self._busy[future] = batch, pool

    def _ended(self, future: Future[list[Row]]) -> None:
        pool = self._busy.pop(future)
        if isinstance(future.exception(), BrokenProcessPool):
            pool.shutdown()
            pool = self._made()
        self._idle.append(pool)

    def completed(self, timeout_s: float) -> list[Row]:
        """Rows that are ready; idle processes get the next batch."""
        rows = super().completed(timeout_s)
        self._hand_out()
        return rows

    def capacity(self) -> int:
        """The number of processes."""
        return self._workers

    @property
    def processes(self) -> list[int]:
        """The ids of the current processes."""
        return [process for pool in (*self._busy.values(), *self._idle) for process in pool._processes or ()]

    def cancel(self) -> None:
        """Drop what has not started; running cells are finished."""
        self._waiting.clear()
        self._running.clear()
        for pool in (*self._busy.values(), *self._idle):
            pool.shutdown()


def _begin(places: Mapping[str, str]) -> None:
    """A worker keeps state and finds models where its parent process does, and ends with the parent."""
    import signal

    os.environ.update(places)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    os.dup2(2, 1)  # standard output belongs to the command
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal signals the driver, which stops us


def _end_with_parent() -> None:
    """A driver that is killed tells nobody; its cells are taken over by whoever resumes the matrix."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os._exit(1)


class Dask(_Pool):
    """A Dask cluster: the address of its scheduler, or a client."""

    remote = True

    def __init__(self, cluster: Any) -> None:
        super().__init__()
        try:
            import distributed
        except ImportError:
            raise missing_extra("distributed", "dask", "A matrix on a Dask cluster") from None
        self._lost = (distributed.KilledWorker, distributed.client.FutureCancelledError)
        self._own: bool = not isinstance(cluster, distributed.Client)
        self._cluster = cluster
        self._has_workers = True

    @functools.cached_property
    def client(self) -> Any:
        """Connects on first use."""
        if not self._own:
            return self._cluster
        import distributed

        connect: Any = distributed.Client
        try:
            return connect(self._cluster)
        except Exception as error:  # whatever Dask raises for the address
            raise InvalidInput(
                f"The Dask scheduler {self._cluster} cannot be reached: {error}. No model was called.",
                hint="Start it, or name another place: --on dask://host:8786, local or here.",
                path="on",
            ) from None

    @functools.cached_property
    def _pool(self) -> Any:
        return self.client.get_executor(pure=False)

    def submit(self, batch: Sequence[Work]) -> None:
        """Take a batch; the scheduler finds a worker."""
        work = list(batch)
        self._running[self._pool.submit(perform_in_engine, work)] = work

    def capacity(self) -> int:
        """The current number of worker threads."""
        found: int = sum(self.client.nthreads().values())
        if not found and self._has_workers:
            log.warning("%s has no workers; the matrix waits for them.", self._cluster)
        self._has_workers = found > 0
        return found

    def cancel(self) -> None:
        """Drop what has not started, and disconnect."""
        for future in self._running:
            future.cancel()
        self._running.clear()
        if "_pool" in self.__dict__:
            self._pool.shutdown(wait=False)
        if self._own and "client" in self.__dict__:
            self.client.close()


def executor_of(place: str, app: Antiphon, workers: int | None = None) -> Executor:
    """``local``, ``here`` or ``dask://host:8786``."""
    makers: dict[str, Callable[[], Executor]] = {
        "local": lambda: LocalProcesses(workers),
        "here": lambda: InProcess(app),
    }
    if place in makers:
        return makers[place]()
    scheme, slashes, address = place.partition("://")
    if scheme == "dask" and slashes and address:
        return Dask(f"tcp://{address}")
    raise InvalidInput(f"There is no executor {place!r}.", hint="Use local, here or dask://host:8786.", path="on")
