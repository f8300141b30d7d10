"""Virtual time, and a scheduler that picks the next task by seed.

Coroutines suspend with :class:`Nap`. Synchronous code switches to the scheduler with :func:`block`. Only one of them
runs at a time, so the same seed gives the same order.
"""

from __future__ import annotations

import heapq
from asyncio import CancelledError
from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextvars import Context, ContextVar, copy_context
from functools import partial
from inspect import isawaitable
from random import Random
from typing import Any, Literal, TypeVar

from msgspec import Struct

from antiphon.errors import missing_extra
from antiphon.ports import Clock

try:
    from greenlet import getcurrent, greenlet  # type: ignore[import-untyped]
except ImportError:
    raise missing_extra("greenlet", "sim", "The simulator") from None

T = TypeVar("T")
EPOCH_MS = 1_700_000_000_000
TIME_WIDTH = 11
"""Width of the time at the beginning of a trace line."""
MAX_STEPS = 200_000
"""A simulation with more steps is an endless loop."""
_LONG_S, _SOON_S = 100.0, 0.005
here: ContextVar[Any] = ContextVar("antiphon_sim_here")
"""The current simulated process."""
Mode = Literal["on", "off", "shadow", "no keys"]
"""The effect of a process's switches on its calls."""


class Dead(BaseException):
    """A killed worker does nothing, not even clean-up."""


class Nap(Struct, eq=False):
    """Suspends a task for some virtual seconds. *uncancellable*: a cancellation waits for its end (a store step)."""

    seconds: float
    uncancellable: bool = False

    def __await__(self) -> Generator[Nap, None, None]:
        yield self


class Task:
    """Something that runs from nap to nap, in its own context, on a worker (or none)."""

    def __init__(self, name: str, place: Any) -> None:
        self.name = name
        self.place = place
        self.context: Context = copy_context()
        if place is not None:
            self.context.run(here.set, place)
        self.napping: Nap | None = None
        self.cancelled: bool = False
        self.interrupted: bool = False
        """Whether a cancellation has reached it."""
        self.done: bool = False
        self.value: Any = None
        self.error: BaseException | None = None
        self.over: Bell = []
        """Rings when it is over."""
        self.ticket = 0
        """Its place in the queue: entries with an older ticket are ignored."""

    @property
    def wakes_for_cancellation(self) -> bool:
        return self.cancelled and not (self.napping is not None and self.napping.uncancellable)

    def interrupt(self) -> None:
        """The cancellation reaches it."""
        self.cancelled, self.interrupted = False, True

    def end(self, value: Any = None, error: BaseException | None = None) -> None:
        """It is over."""
        self.value, self.error, self.done = value, error, True

    def step(self) -> Nap | None:
        """Run to the next suspension; ``None`` when the task is over."""
        raise NotImplementedError

    def drop(self) -> None:
        """Discard a task that will never run again, as a kill does: no clean-up runs."""
        raise NotImplementedError


Bell = list[Task]
"""Tasks that nap until something happens (:meth:`World.listen`)."""


class CoroutineTask(Task):
    """A coroutine, run like a task of an event loop."""

    def __init__(self, name: str, coroutine: Coroutine[Any, Any, Any], place: Any) -> None:
        super().__init__(name, place)
        self.coroutine = coroutine

    def step(self) -> Nap | None:
        try:
            if self.wakes_for_cancellation:
                self.interrupt()
                self.napping = self.context.run(self.coroutine.throw, CancelledError())
            else:
                self.napping = self.context.run(self.coroutine.send, None)
        except StopIteration as stop:
            self.end(stop.value)
        except (CancelledError, Dead) as error:
            self.end(error=error)
        return None if self.done else self.napping

    def drop(self) -> None:
        self.done = True
        try:
            self.context.run(self.coroutine.close)
        except BaseException:  # whatever its clean-up tried, its worker is dead
            return


class ThreadTask(Task):
    """A synchronous function, run like a thread; a cancellation is a KeyboardInterrupt.

    It runs in a greenlet: switching between real threads costs more than most of what they do in between.
    """

    def __init__(self, name: str, function: Callable[[], Any], place: Any) -> None:
        super().__init__(name, place)
        self._function = function
        self._greenlet = greenlet(self._run)
        self._greenlet.gr_context = self.context
        self._dropped = False

    def step(self) -> Nap | None:
        self._go_on()
        if not self.done:
            return self.napping
        if self.error is not None and not isinstance(self.error, (KeyboardInterrupt, Dead)):
            raise self.error
        return None

    def _go_on(self) -> None:
        global _running
        self._greenlet.parent = getcurrent()
        before, _running = _running, self
        try:
            self._greenlet.switch()
        finally:
            _running = before

    def _run(self) -> None:
        try:
            self.end(self._function())
        except BaseException as error:
            self.end(error=error)

    def nap(self, nap: Nap) -> None:
        """Let others run (called in the thread)."""
        if self._dropped:
            raise Dead
        self.napping = nap
        scheduler = self._greenlet.parent
        assert scheduler is not None
        scheduler.switch()
        if self._dropped:
            raise Dead
        if self.wakes_for_cancellation:
            self.interrupt()
            raise KeyboardInterrupt

    def drop(self) -> None:
        self._dropped = True
        if not self._greenlet:  # never started
            self.done = True
        while not self.done:
            self._go_on()


_running: ThreadTask | None = None


def in_thread() -> bool:
    """Whether a simulated thread is running."""
    return _running is not None


def block(nap: Nap) -> None:
    """Suspend the running simulated thread."""
    assert _running is not None, "only simulated threads can block"
    _running.nap(nap)


def blocking(awaitable: Awaitable[T]) -> T:
    """Await something to its end; its naps suspend the simulated thread."""
    steps = awaitable.__await__()
    go_on: Callable[[], Any] = partial(next, steps)
    while True:
        try:
            nap = go_on()
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]
        try:
            block(nap)
        except BaseException as error:
            go_on = partial(steps.throw, error)
        else:
            go_on = partial(next, steps)


async def maybe_await(value: Awaitable[T] | T) -> T:
    """The result of a synchronous or an asynchronous function."""
    return await value if isawaitable(value) else value


class World:
    """Clock, randomness and the event queue."""

    def __init__(self, seed: int) -> None:
        self.random: Random = Random(seed)
        self.now: float = 0.0
        self.steps: int = 0
        self._queue: list[tuple[float, float, int, Task]] = []
        self._dropped: list[Task] = []
        self._stopped = False
        self._running: Task | None = None
        self.trace: list[str] = []

    def say(self, text: str) -> None:
        """Add a line to the trace."""
        self.trace.append(f"{self.now:9.3f}  {text}")

    def start(self, name: str, coroutine: Coroutine[Any, Any, Any], place: Any = None, after: float = 0.0) -> Task:
        return self._start(CoroutineTask(name, coroutine, place), after)

    def start_thread(self, name: str, function: Callable[[], Any], place: Any) -> Task:
        return self._start(ThreadTask(name, function, place), 0.0)

    def _start(self, task: Task, after: float) -> Task:
        self._put(task, after)
        return task

    def _put(self, task: Task, after: float) -> None:
        self.steps += 1
        task.ticket = self.steps
        heapq.heappush(self._queue, (self.now + after, self.random.random(), self.steps, task))

    def cancel(self, task: Task) -> None:
        """Interrupt a task while it naps, or as soon as possible."""
        task.cancelled = True
        if task.napping is not None and not task.napping.uncancellable:
            self._put(task, 0.0)

    async def listen(self, bell: Bell, seconds: float) -> None:
        """Nap until the bell rings, but no longer than *seconds*."""
        task = self._running
        assert task is not None
        bell.append(task)
        try:
            await Nap(seconds)
        finally:
            if task in bell:
                bell.remove(task)

    def ring(self, bell: Bell, longest: float) -> None:
        """Wake the listeners one after another, within *longest* seconds."""
        for task in bell:
            self._put(task, self.random.uniform(0, longest))
        bell.clear()

    async def join(self, task: Task) -> None:
        """Wait until a task is over."""
        while not task.done:
            await self.listen(task.over, _LONG_S)

    def run(self) -> None:
        """Run until the queue is empty."""
        while self._queue:
            moment, _, ticket, task = heapq.heappop(self._queue)
            if ticket != task.ticket:
                continue
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
            self._running = task
            nap = task.step()
            if self._stopped:
                self._dropped.append(task)
                return
            if nap is not None:
                self._put(task, nap.seconds)
            elif task.over:
                self.ring(task.over, _SOON_S)

    def stop(self) -> None:
        """Stop the simulation here."""
        self._stopped = True

    def close(self) -> None:
        """Drop what was killed or is left: all workers are dead by now, so nothing more can happen."""
        left = [*self._dropped, *(entry[3] for entry in self._queue)]
        for task in left:
            if task.place is not None:
                task.place.dead = True
        for task in left:
            if not task.done:
                task.drop()


class Process:
    """A simulated process, as far as the store and the invariants know it."""

    def __init__(self, name: str, world: World) -> None:
        self.name = name
        self.world = world
        self.dead: bool = False
        self.paused_until: float = 0.0
        self.last_disturbance: float = -1.0
        self.modes: list[tuple[float, Mode]] = [(-1.0, "on")]

    def disturbed(self) -> None:
        """Something happened that may cost it a lease."""
        self.last_disturbance = self.world.now

    def healthy_since(self, moment: float) -> bool:
        return not self.dead and self.last_disturbance < moment

    def modes_since(self, moment: float) -> frozenset[Mode]:
        """The modes it has been in since *moment*."""
        before = [mode for at, mode in self.modes if at < moment]
        return frozenset((before[-1], *(mode for at, mode in self.modes if at >= moment)))


class VirtualClock(Clock):
    """The world's time as a worker's clock; its wall clock may be off."""

    def __init__(self, world: World, skew_ms: int = 0) -> None:
        super().__init__(seed=0)
        self._world = world
        self._skew = skew_ms
        self.random: Random = world.random
        self.monotonic: Callable[[], float] = self._monotonic

    def _monotonic(self) -> float:
        return self._world.now

    def now_ms(self) -> int:
        return EPOCH_MS + self._skew + int(self._world.now * 1000)

    def sleep(self, seconds: float) -> None:
        block(Nap(seconds))

    async def sleep_async(self, seconds: float) -> None:
        await Nap(seconds)
