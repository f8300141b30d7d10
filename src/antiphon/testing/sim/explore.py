"""Simulate one seed, or many."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from hashlib import blake2b
from typing import Any, NamedTuple
from unittest.mock import patch

from antiphon._gateway import breakers, claim, gateway, source
from antiphon._gateway import plan as plans
from antiphon.testing.sim.bugs import BUGS
from antiphon.testing.sim.invariants import Asked, Invariants, asking
from antiphon.testing.sim.plan import CALM_S, INSIDE, QUIET_S, Change, Delivery, Plan
from antiphon.testing.sim.store import Shared
from antiphon.testing.sim.worker import Worker, tool_of, within
from antiphon.testing.sim.world import TIME_WIDTH, Dead, Nap, Task, World, blocking, here


class Simulation(NamedTuple):
    """The result of one seed."""

    seed: int
    broken: str
    """The broken invariant and how it was broken, or ``""``."""
    steps: int
    seen: Counter[str]
    trace: list[str]

    @property
    def schedule(self) -> int:
        """A hash of the order of events, without times: two seeds with the same schedule count once."""
        order = "\n".join(line[TIME_WIDTH:] for line in self.trace)
        return int.from_bytes(blake2b(order.encode(), digest_size=8).digest(), "big")


class Explored(NamedTuple):
    """The result of many seeds."""

    seeds: int
    steps: int
    seen: Counter[str]
    broken: list[Simulation]
    schedules: set[int]
    """Every distinct one (:attr:`Simulation.schedule`)."""


class _Simulator:
    def __init__(self, seed: int, without: frozenset[str]) -> None:
        self.plan = Plan(seed, without)
        self.world = World(seed)
        self.invariants = Invariants(self.world, self.plan)
        self.shared = Shared(self.world, self.invariants, self.plan)
        self.shared.call_inside = self._call_inside
        self.workers: list[Worker] = []
        self.calls: list[tuple[Delivery, Task]] = []
        self._inside = 0

    def simulate(self) -> Simulation:
        with self.shared.open():
            return self._simulate()

    def _simulate(self) -> Simulation:
        plan, world = self.plan, self.world
        self.workers = [Worker(f"w{n}", self.shared, threads=threads) for n, threads in enumerate(plan.threads)]
        for number, delivery in enumerate(plan.deliveries):
            self._plan(f"call{number}", delivery.at, partial(self._deliver, delivery, number))
        for number, (at, worker, seconds) in enumerate(plan.pauses):
            self._plan(f"pause{number}", at, partial(self._pause, worker, seconds))
        for number, (at, worker) in enumerate(plan.kills):
            self._plan(f"kill{number}", at, partial(self._kill, worker))
        for number, change in enumerate(plan.changes):
            self._plan(f"change{number}", change.at, partial(self._change, change))
        for number, failover in enumerate(plan.failovers):
            before = failover.at - failover.lag
            self._plan(f"failover{number}", before, partial(self.shared.fail_over, failover.lag))
        world.start("calm", self._calm(), after=CALM_S)
        world.start("the end", self._once_more(), after=QUIET_S)
        try:
            world.run()
            self._everybody_was_answered()
        except Exception as error:
            self.invariants.breaks("an end", f"{type(error).__name__} escaped: {error}")
        finally:
            seen = Counter(self.invariants.seen)
            trace = list(world.trace)
            world.close()
        seen["lost requests"] += self.shared.lost_requests
        seen["lost answers"] += self.shared.lost_answers
        seen["calls"] += len(self.calls)
        return Simulation(plan.seed, self.invariants.broken, world.steps, seen, trace)

    def _plan(self, name: str, at: float, what: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Parts left out still take their turn in the queue, so that all other random draws stay the same."""
        self.world.start(name, _nothing() if name in self.plan.without else what(), after=at)

    # -- faults of workers ---------------------------------------------------------------------------------------

    async def _pause(self, worker: int, seconds: float) -> None:
        if not self.workers[worker].dead:
            self.invariants.seen["pauses"] += 1
            self.workers[worker].pause(seconds)

    async def _kill(self, worker: int) -> None:
        """A killed worker is replaced by a new one without any state."""
        self.invariants.seen["kills"] += 1
        killed = self.workers[worker]
        killed.kill()
        self.workers[worker] = Worker(f"{killed.name}'", self.shared, threads=killed.threads)

    async def _change(self, change: Change) -> None:
        self.workers[change.worker].change(change)

    async def _calm(self) -> None:
        for worker in self.workers:
            worker.calm_down()

    # -- calls ---------------------------------------------------------------------------------------------------

    async def _deliver(self, delivery: Delivery, number: int) -> None:
        worker, world = self.workers[delivery.worker], self.world
        if worker.threads:
            call = partial(self._call, worker, delivery, number)
            task = world.start_thread(delivery.identity, lambda: blocking(call()), worker)
        else:
            task = world.start(delivery.identity, self._call(worker, delivery, number), worker)
        self.invariants.seen[f"by {delivery.way}"] += 1
        self.calls.append((delivery, task))
        for seconds in delivery.cancel_after:
            await Nap(seconds)
            if not task.done:
                self.invariants.seen["cancellations"] += 1
                world.say(f"{delivery.identity} is cancelled")
                world.cancel(task)

    async def _call(self, worker: Worker, delivery: Delivery, number: int) -> Any:
        identity = self.plan.identity(delivery, number)
        now, claims = self.world.now, delivery.mode != "disabled"
        asked = Asked(
            number, identity, delivery.intent, worker, now, claims=claims, without_metadata=delivery.without_metadata
        )
        if delivery.deadline_s is not None:
            asked.until = now + delivery.deadline_s
        asking.set(asked)
        self.invariants.asked(asked)
        answer = await worker.ask(delivery, number)
        self.world.say(f"{worker.name}: {identity} gets {answer.code or answer.value} {answer.metadata or ''}")
        self.invariants.answered(asked, answer)
        return answer

    async def _call_inside(self, worker: Worker, intent: str) -> None:
        """A tool calls another one, and continues whatever the result."""
        self._inside += 1
        self.invariants.seen["calls by tools"] += 1
        outer = asking.get()
        in_turn = self._inside % 2 == 0 or intent.removesuffix(INSIDE) in self.plan.adapted
        delivery = Delivery(self.world.now, 0, intent, intent, "turn" if in_turn else "function", named=False)
        try:
            await self._call(worker, delivery, 20_000 + self._inside)
        finally:
            asking.set(outer)

    async def _once_more(self) -> None:
        """Once all faults are over, every call identity is delivered once more."""
        kept = [call for n, call in enumerate(self.plan.deliveries) if f"call{n}" not in self.plan.without]
        last = {call.identity: call for call in kept if call.named}
        for number, delivery in enumerate(last.values()):
            quiet = delivery._replace(mode="enforced", cancel_after=(), deadline_s=None, leaves=False)
            self.world.start(f"again {delivery.identity}", self._deliver(quiet, 10_001 + number), after=number * 0.5)

    def _everybody_was_answered(self) -> None:
        if self.invariants.broken:
            return
        for delivery, task in self.calls:
            if not task.done and not task.place.dead:
                self.invariants.breaks("an end", f"{delivery.identity} was never answered")
            if task.interrupted and task.done and task.error is None:
                self.invariants.breaks("an end", f"{delivery.identity} was answered although it was cancelled")
        living = [worker for worker in self.workers if not worker.dead]
        busy = [worker.name for worker in living if worker.leases._held or worker.leases._unfinished]
        self.invariants.nothing_is_left(busy)


async def _nothing() -> None:
    return None


def _owner_token() -> str:
    """The simulated process that asks."""
    return f"sim.{here.get().name}"


def _certainly_dead(owner: str) -> bool:
    worker: Worker = here.get()
    return worker.sees_dead(owner.rpartition("sim.")[2])


@contextmanager
def _generators_just_go() -> Iterator[None]:
    """An asynchronous generator of a killed worker is not closed: nobody is left to await it."""
    before, unraisable_hook = sys.get_asyncgen_hooks(), sys.unraisablehook
    sys.set_asyncgen_hooks(finalizer=lambda generator: None)
    sys.unraisablehook = lambda one: None if one.exc_type is Dead else unraisable_hook(one)
    try:
        yield
    finally:
        sys.set_asyncgen_hooks(*before)
        sys.unraisablehook = unraisable_hook


def simulate(seed: int, bug: str = "", without: frozenset[str] = frozenset()) -> Simulation:
    """The simulation of one seed, with the planted bug that is named, if any. *without*: parts to leave out."""
    with _one_process_for_many(bug):
        return _Simulator(seed, without).simulate()


@contextmanager
def _one_process_for_many(bug: str = "") -> Iterator[None]:
    """Per-process state belongs to a simulated process here; a bug may be planted."""
    with (
        patch.object(plans, "owner_token", _owner_token),
        patch.object(breakers, "owner_token", _owner_token),
        patch.object(claim, "certainly_dead", _certainly_dead),
        patch.object(source, "within", within),
        patch.object(gateway, "Tool", tool_of),
        _generators_just_go(),
        BUGS[bug].plant() if bug else nullcontext(),
    ):
        yield


def shrink(simulation: Simulation, bug: str = "") -> tuple[Simulation, frozenset[str]]:
    """The smallest schedule found that breaks the same invariant, and the parts it leaves out."""
    invariant, without = simulation.broken.partition(":")[0], frozenset[str]()
    parts = Plan(simulation.seed).parts()
    smaller = True
    while smaller:
        smaller = False
        for part in parts:
            if part in without:
                continue
            tried = simulate(simulation.seed, bug, without | {part})
            if tried.broken.partition(":")[0] == invariant:
                simulation, without, smaller = tried, without | {part}, True
    return simulation, without


def explore(seeds: Iterable[int], bug: str = "", *, stop_at: int = 0) -> Explored:
    """Many simulations. *stop_at*: stop after this many broken invariants (0: never)."""
    count = steps = 0
    seen: Counter[str] = Counter()
    broken: list[Simulation] = []
    schedules: set[int] = set()
    with _one_process_for_many(bug):
        for seed in seeds:
            simulation = _Simulator(seed, frozenset()).simulate()
            count += 1
            steps += simulation.steps
            seen.update(simulation.seen)
            schedules.add(simulation.schedule)
            if simulation.broken:
                broken.append(simulation)
                if stop_at and len(broken) >= stop_at:
                    break
    return Explored(count, steps, seen, broken, schedules)
