"""Where the cells of a matrix are computed: in this process, in processes of this machine, or on a Dask cluster.

An executor has four methods; everything that must survive a crash (claims, results, budgets) is in the store.
"""

from __future__ import annotations

import concurrent.futures
import multiprocessing
import os
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from typing import Any, Protocol

from antiphon.errors import InvalidInput, missing_extra
from antiphon.ops.app import Antiphon
from antiphon.ops.cells import Row, Work, perform, perform_in_engine

ATTEMPTS = 5
"""So often a cell is handed out again whose worker ended; then it is a bad row."""


class Executor(Protocol):
    """Computes batches of cells."""

    remote: bool
    """Whether workers may be on other machines, where a file of this one is not."""

    def capacity(self) -> int:
        """How many cells are computed at the same time, now."""

    def submit(self, batch: Sequence[Work]) -> None:
        """Take a batch."""

    def completed(self, timeout_s: float) -> list[Row]:
        """Rows of batches that are done since the last time; waits for the first of them."""

    def cancel(self) -> None:
        """Forget what has not begun, and let go of the workers."""


class Here:
    """In this process, one cell at a time: for tests, notebooks and functions that have no name."""

    remote = False

    def __init__(self, app: Antiphon) -> None:
        self._app = app
        self._waiting: deque[Work] = deque()

    def capacity(self) -> int:
        """One."""
        return 1

    def submit(self, batch: Sequence[Work]) -> None:
        """Remember it."""
        self._waiting.extend(batch)

    def completed(self, timeout_s: float) -> list[Row]:
        """Do the next cell."""
        return perform([self._waiting.popleft()], self._app) if self._waiting else []

    def cancel(self) -> None:
        """Forget the rest."""
        self._waiting.clear()


class _Pool:
    """A pool of ``concurrent.futures``; what a worker took with it when it ended is handed out again, cell by cell."""

    remote = False
    _lost: tuple[type[BaseException], ...] = ()

    def __init__(self) -> None:
        self._running: dict[Future[list[Row]], list[Work]] = {}
        self._tries: dict[str, int] = {}

    def _start(self, batch: list[Work]) -> Future[list[Row]]:
        raise NotImplementedError

    def _renew(self) -> None:
        """After a worker ended."""

    def submit(self, batch: Sequence[Work]) -> None:
        """Take a batch."""
        work = list(batch)
        self._running[self._start(work)] = work

    def completed(self, timeout_s: float) -> list[Row]:
        """Rows that are there."""
        done, _ = concurrent.futures.wait(self._running, timeout_s, concurrent.futures.FIRST_COMPLETED)
        rows: list[Row] = []
        lost: list[Work] = []
        for future in done:
            batch = self._running.pop(future)
            error = None if future.cancelled() else future.exception()
            if future.cancelled() or isinstance(error, self._lost):
                lost += batch
            elif error is None:
                rows += future.result()
            else:
                rows += [_failed(work, type(error).__name__, str(error)) for work in batch]
        if lost:
            self._renew()
        for work in lost:
            tries = self._tries[work["key"]] = self._tries.get(work["key"], 0) + 1
            if tries < ATTEMPTS:
                self.submit([work])
            else:
                rows.append(_failed(work, "worker_died", f"{tries} workers ended while they had this cell."))
        for row in rows:
            self._tries.pop(row["key"], None)
        return rows


def _failed(work: Work, code: str, message: str) -> Row:
    kept = {name: work[name] for name in ("key", "run", "variant", "sample")}
    return {**kept, "status": "error", "code": code, "reasons": [message[:300]], "seconds": 0.0}


class Local(_Pool):
    """Processes of this machine."""

    _lost = (BrokenProcessPool,)

    def __init__(self, workers: int | None = None) -> None:
        super().__init__()
        self._workers = workers or os.cpu_count() or 1
        self._pool = self._made()

    def _made(self) -> concurrent.futures.ProcessPoolExecutor:
        from antiphon.config.wiring import home

        context = multiprocessing.get_context("spawn")
        return concurrent.futures.ProcessPoolExecutor(
            self._workers, mp_context=context, initializer=_at_home, initargs=(str(home().absolute()),)
        )

    def _start(self, batch: list[Work]) -> Future[list[Row]]:
        try:
            return self._pool.submit(perform, batch)
        except BrokenProcessPool:
            self._renew()
            return self._pool.submit(perform, batch)

    def _renew(self) -> None:
        if getattr(self._pool, "_broken", True):
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._pool = self._made()

    def capacity(self) -> int:
        """The number of processes."""
        return self._workers

    @property
    def processes(self) -> list[int]:
        """The ids of the processes that are there."""
        return list(self._pool._processes or ())

    def cancel(self) -> None:
        """Forget what has not begun; what runs ends with its cell."""
        self._running.clear()
        self._pool.shutdown(wait=True, cancel_futures=True)


def _at_home(folder: str) -> None:
    """A worker keeps its state where the process that started it does."""
    import signal

    os.environ.setdefault("ANTIPHON_HOME", folder)
    os.dup2(2, 1)  # standard output belongs to the command
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal tells the driver, which tells us


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
        client: Any = distributed.Client
        self.client: Any = client(cluster) if self._own else cluster
        self._pool = self.client.get_executor(pure=False)

    def _start(self, batch: list[Work]) -> Future[list[Row]]:
        future: Future[list[Row]] = self._pool.submit(perform_in_engine, batch)
        return future

    def capacity(self) -> int:
        """The threads of the workers that are there now."""
        return sum(self.client.nthreads().values())

    def cancel(self) -> None:
        """Forget what has not begun, and disconnect."""
        for future in self._running:
            future.cancel()
        self._running.clear()
        self._pool.shutdown(wait=False)
        if self._own:
            self.client.close()


def executor_of(place: str, app: Antiphon, workers: int | None = None) -> Executor:
    """``local``, ``here`` or ``dask://host:8786``."""
    makers: dict[str, Callable[[], Executor]] = {"local": lambda: Local(workers), "here": lambda: Here(app)}
    if place in makers:
        return makers[place]()
    scheme, slashes, address = place.partition("://")
    if scheme == "dask" and slashes and address:
        return Dask(f"tcp://{address}")
    raise InvalidInput(f"There is no executor {place!r}.", hint="Use local, here or dask://host:8786.", path="on")
