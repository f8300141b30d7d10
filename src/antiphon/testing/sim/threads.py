"""Time limits and threads of tools, in virtual time."""

from __future__ import annotations

from asyncio import CancelledError
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from antiphon._gateway.late import _PATIENCE_S
from antiphon._gateway.threads import Abandoned, Late, ThreadRunner, TimedOut
from antiphon.testing.sim.world import Dead, Nap, block, blocking

if TYPE_CHECKING:
    from antiphon.testing.sim.worker import Worker

_LOOK_S = 0.3


async def within(awaitable: Any, seconds: float) -> Any:
    """Await with a time limit: what takes longer is cancelled."""
    steps = awaitable.__await__()
    left = seconds
    go_on: Any = partial(next, steps)
    while True:
        try:
            nap = go_on()
        except StopIteration as stop:
            return stop.value
        if nap.seconds >= left:
            break
        left -= nap.seconds
        try:
            await nap
        except CancelledError as error:
            go_on = partial(steps.throw, error)
        else:
            go_on = partial(steps.send, None)
    try:
        await Nap(left)
    finally:
        steps.close()
    raise TimedOut(seconds)


class _Job:
    """A tool on its thread."""

    done = False
    gave_up = False
    value: Any = None
    error: BaseException | None = None


class SimThreads(ThreadRunner):
    """Tools on simulated threads. One that was given up runs on, and its late result is handed over."""

    def __init__(self, cap: int, worker: Worker) -> None:
        super().__init__(cap)
        self._limit = cap
        self._worker = worker

    def run(self, work: Callable[[], Any], limit: float | None, late: Late | None) -> Any:
        return blocking(self.run_async(work, limit, late))

    async def run_async(self, work: Callable[[], Any], limit: float | None, late: Late | None) -> Any:
        if self.abandoned >= self._limit:
            raise Abandoned("too many")
        world, job = self._worker.world, _Job()
        world.start_thread("tool", partial(self._work, job, work, late), self._worker)
        until = None if limit is None else world.now + limit
        look = 0.01
        try:
            while not job.done:
                left = look if until is None else min(look, until - world.now)
                if left <= 0:
                    raise TimedOut(limit or 0.0, still_running=True)
                await Nap(left)
                look = min(look * 2, _LOOK_S)
        except BaseException:
            job.gave_up = True
            self.abandoned += 1
            raise
        if job.error is not None:
            raise job.error
        return job.value

    def _work(self, job: _Job, work: Callable[[], Any], late: Any) -> None:
        try:
            job.value = work()
        except Dead:
            raise
        except BaseException as error:
            job.error = error
        job.done = True
        if not job.gave_up:
            return
        self.abandoned -= 1
        if late is not None:
            until = self._worker.world.now + _PATIENCE_S
            while not late.over.is_set() and self._worker.world.now < until:
                block(Nap(_LOOK_S))
            late.over.set()  # what it waits for itself is real time
            self._worker.laws.seen["late results"] += 1
            late(job.value, job.error)
