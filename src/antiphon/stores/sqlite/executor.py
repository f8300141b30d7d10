"""How an event loop uses SQLite: per file, one thread writes and shares commits, one reads.

A step that was handed over is always finished, whatever happens to the task that requested it. A task that is cancelled
in the meantime gets its answer first and the cancellation at its next suspension, so an owner never forgets a claim
that it won.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from antiphon._daemon import Daemon
from antiphon.stores.sqlite.file import DatabaseFile, Operation, Run

T = TypeVar("T")
_IDLE_S = 10.0


class Answer(asyncio.Future[Any]):
    """A future that cannot be cancelled, because its transaction cannot be cancelled either."""

    def cancel(self, msg: Any | None = None) -> bool:
        return False

    def deliver(self, operation: Operation) -> None:
        """Deliver the outcome of a step to the loop of the task that waits for it."""
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self.get_loop().call_soon_threadsafe(self._hand_over, operation)

    def _hand_over(self, operation: Operation) -> None:
        if self.done():  # the first announcer was interrupted before it could say so
            return
        if operation.error is not None:
            self.set_exception(operation.error)
        else:
            self.set_result(operation.result)


class Worker:
    """Runs a function on a thread whenever it is nudged; the thread ends after a while without a nudge."""

    def __init__(self, name: str, work: Callable[[], None]) -> None:
        self._work = work
        self._nudges: SimpleQueue[None] = SimpleQueue()
        self._thread = Daemon(name)

    def nudge(self) -> None:
        self._nudges.put(None)
        self._thread.start(self._run)

    def _run(self) -> None:
        while True:
            try:
                self._nudges.get(timeout=_IDLE_S)
            except Empty:
                if self._thread.leave_if(self._nudges.empty):
                    return
                continue
            self._work()


class AsyncAccess:
    """Reading and writing steps of the event loops of this process."""

    def __init__(self, file: DatabaseFile) -> None:
        self._file = file
        self._reads: SimpleQueue[tuple[Run[Any], Answer]] = SimpleQueue()
        self._writer = Worker(f"antiphon-write-{file.path.name}", file.write_queued)
        self._reader = Worker(f"antiphon-read-{file.path.name}", self._read_queued)

    async def read(self, run: Run[T]) -> T:
        answer = Answer(loop=asyncio.get_running_loop())
        self._reads.put((run, answer))
        self._reader.nudge()
        return await _answered(answer)  # type: ignore[no-any-return]

    async def write(self, operation: Operation) -> Any:
        answer = Answer(loop=asyncio.get_running_loop())
        operation.deliver = answer.deliver
        self._file.submit(operation)
        self._writer.nudge()
        return await _answered(answer)

    def _read_queued(self) -> None:
        while not self._reads.empty():
            run, answer = self._reads.get()
            operation = Operation(run)
            try:
                operation.result = self._file.read(run)
            except Exception as error:
                operation.error = error
            answer.deliver(operation)


def access_of(file: DatabaseFile) -> AsyncAccess:
    """The access of this file: journals come and go with runs, and each would start threads of its own."""
    found = file.access
    if found is None:
        found = file.access = AsyncAccess(file)
    return found  # type: ignore[no-any-return]


async def _answered(answer: Answer) -> Any:
    try:
        return await answer
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if not answer.done() or task is None:
            raise
        task.uncancel()
        task.cancel(*error.args)
        return answer.result()
