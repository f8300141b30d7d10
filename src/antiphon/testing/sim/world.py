"""Virtual time, and a scheduler that decides by a seed who goes next."""

from __future__ import annotations

import heapq
from asyncio import CancelledError
from collections.abc import Coroutine, Generator
from contextvars import Context, copy_context
from random import Random
from typing import Any

from antiphon.ports import Clock

EPOCH_MS = 1_700_000_000_000
MAX_STEPS = 200_000
"""A story that takes longer than this is an endless loop."""


class Nap:
    """Suspends a task for some virtual seconds. *deaf*: a cancellation waits until it is over (a store step)."""

    __slots__ = ("deaf", "seconds")

    def __init__(self, seconds: float, *, deaf: bool = False) -> None:
        self.seconds = seconds
        self.deaf = deaf

    def __await__(self) -> Generator[Nap, None, None]:
        yield self


class Task:
    """A coroutine in a context of its own, running on a worker (or nowhere in particular)."""

    def __init__(self, name: str, coroutine: Coroutine[Any, Any, Any], place: Any) -> None:
        self.name = name
        self.place = place
        self.coroutine = coroutine
        self.context: Context = copy_context()
        self.napping: Nap | None = None
        self.cancelled = False
        self.done = False
        self.value: Any = None
        self.error: BaseException | None = None

    def step(self) -> Nap | None:
        """Run to the next suspension; ``None`` when the task is over."""
        try:
            if self.cancelled and not (self.napping is not None and self.napping.deaf):
                self.cancelled = False
                self.napping = self.context.run(self.coroutine.throw, CancelledError())
            else:
                self.napping = self.context.run(self.coroutine.send, None)
        except StopIteration as stop:
            self.done, self.value = True, stop.value
        except CancelledError as error:
            self.done, self.error = True, error
        if self.done:
            return None
        assert self.napping is not None
        return self.napping

    def drop(self) -> None:
        """Let go of a task that will never run again, as a kill does: nothing of it is tidied up."""
        self.done = True
        try:
            self.context.run(self.coroutine.close)
        except BaseException:  # whatever its clean-up tried, its worker is dead
            return


class World:
    """Clock, chance and the queue of what happens next."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.now = 0.0
        self.steps = 0
        self._queue: list[tuple[float, float, int, Task]] = []
        self._dropped: list[Task] = []
        self._stopped = False
        self.trace: list[str] = []

    def say(self, text: str) -> None:
        """A line of the story."""
        self.trace.append(f"{self.now:9.3f}  {text}")

    def start(self, name: str, coroutine: Coroutine[Any, Any, Any], place: Any = None, after: float = 0.0) -> Task:
        task = Task(name, coroutine, place)
        self._put(task, after)
        return task

    def _put(self, task: Task, after: float) -> None:
        self.steps += 1
        heapq.heappush(self._queue, (self.now + after, self.random.random(), self.steps, task))

    def run(self) -> None:
        """Until nothing is left to do."""
        while self._queue:
            moment, _, _, task = heapq.heappop(self._queue)
            self.now = max(self.now, moment)
            if self.steps > MAX_STEPS:
                raise RuntimeError(f"endless: {task.name} still runs after {MAX_STEPS} steps")
            place = task.place
            if task.done or (place is not None and place.dead):
                self._dropped.append(task)
                continue
            if place is not None and place.paused_until > self.now:
                self._put(task, place.paused_until - self.now + self.random.uniform(0, 0.01))
                continue
            nap = task.step()
            if self._stopped:
                self._dropped.append(task)
                return
            if nap is not None:
                self._put(task, nap.seconds)

    def stop(self) -> None:
        """End the story here."""
        self._stopped = True

    def close(self) -> None:
        """Drop what was killed or is left: all workers are dead by now, so nothing can happen any more."""
        for task in [*self._dropped, *(entry[3] for entry in self._queue)]:
            if task.place is not None:
                task.place.dead = True
            if not task.done:
                task.drop()


class VirtualClock(Clock):
    """The world's time as a worker's clock; its wall clock may be off."""

    def __init__(self, world: World, skew_ms: int = 0) -> None:
        super().__init__(seed=0)
        self._world = world
        self._skew = skew_ms
        self.random = world.random
        self.monotonic = self._monotonic

    def _monotonic(self) -> float:
        return self._world.now

    def now_ms(self) -> int:
        return EPOCH_MS + self._skew + int(self._world.now * 1000)

    async def sleep(self, seconds: float) -> None:
        await Nap(seconds)
