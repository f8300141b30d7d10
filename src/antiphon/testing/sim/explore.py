"""Simulate one seed, or many."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Coroutine, Iterable
from contextlib import nullcontext
from functools import partial
from hashlib import blake2b
from typing import Any, NamedTuple
from unittest.mock import patch

from antiphon._gateway import breakers, claim
from antiphon._gateway import plan as plans
from antiphon.testing.sim.bugs import BUGS
from antiphon.testing.sim.invariants import Asked, Invariants, asking
from antiphon.testing.sim.plan import CALM_S, QUIET_S, Change, Delivery, Plan
from antiphon.testing.sim.store import Shared
from antiphon.testing.sim.worker import Worker
from antiphon.testing.sim.world import TIME_WIDTH, Nap, Task, World, blocking, here


class Simulation(NamedTuple):
    """What one seed led to."""

    seed: int
    broken: str
    """The invariant that was broken and how, or ``""``."""
    steps: int
    seen: Counter[str]
    trace: list[str]

    @property
    def schedule(self) -> int:
        """A hash of what happened in which order, without the times: two seeds of one schedule count once."""
        order = "\n".join(line[TIME_WIDTH:] for line in self.trace)
        return int.from_bytes(blake2b(order.encode(), digest_size=8).digest(), "big")


class Explored(NamedTuple):
    """What many seeds led to."""

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
        self.invariants.shared = self.shared
        self.workers = [self._worker(f"w{n}", threads) for n, threads in enumerate(self.plan.threads)]
        self.calls: list[tuple[Delivery, Task]] = []

    def _worker(self, name: str, threads: bool) -> Worker:
        return Worker(name, self.shared, threads=threads)

    def simulate(self) -> Simulation:
        plan, world = self.plan, self.world
        for number, delivery in enumerate(plan.deliveries):
            self._plan(f"call{number}", delivery.at, partial(self._deliver, delivery, number))
        for number, (at, worker, seconds) in enumerate(plan.pauses):
            self._plan(f"pause{number}", at, partial(self._pause, worker, seconds))
        for number, (at, worker) in enumerate(plan.kills):
            self._plan(f"kill{number}", at, partial(self._kill, worker))
        for number, change in enumerate(plan.changes):
            self._plan(f"change{number}", change.at, partial(self._change, change))
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
        """What is left out takes its turn, too: the chance of all others stays the same."""
        self.world.start(name, _nothing() if name in self.plan.without else what(), after=at)

    # -- what befalls workers ------------------------------------------------------------------------------------

    async def _pause(self, worker: int, seconds: float) -> None:
        if not self.workers[worker].dead:
            self.invariants.seen["pauses"] += 1
            self.workers[worker].pause(seconds)

    async def _kill(self, worker: int) -> None:
        """A killed worker is replaced by a new one that knows nothing."""
        self.invariants.seen["kills"] += 1
        killed = self.workers[worker]
        killed.kill()
        self.workers[worker] = self._worker(f"{killed.name}'", killed.threads)

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
        claims, untold = delivery.mode != "disabled", delivery.way == "function"
        asked = Asked(number, identity, delivery.intent, worker, self.world.now, claims=claims, untold=untold)
        asking.set(asked)
        self.invariants.asked(asked)
        answer = await worker.ask(delivery, number)
        self.world.say(f"{worker.name}: {identity} gets {answer.code or answer.value} {answer.metadata or ''}")
        self.invariants.answered(asked, answer)
        return answer

    async def _once_more(self) -> None:
        """When all is quiet, every call identity is delivered once again."""
        kept = [call for n, call in enumerate(self.plan.deliveries) if f"call{n}" not in self.plan.without]
        last = {call.identity: call for call in kept if call.named}
        for number, delivery in enumerate(last.values()):
            quiet = delivery._replace(mode="enforced", cancel_after=(), deadline_s=None)
            self.world.start(f"again {delivery.identity}", self._deliver(quiet, 10_001 + number), after=number * 0.5)

    def _everybody_was_answered(self) -> None:
        if self.invariants.broken:
            return
        for delivery, task in self.calls:
            if not task.done and not task.place.dead:
                self.invariants.breaks("an end", f"{delivery.identity} was never answered")
            if task.interrupted and task.done and task.error is None:
                self.invariants.breaks("an end", f"{delivery.identity} was answered although it was cancelled")
        self.invariants.nothing_is_left(self.workers)


async def _nothing() -> None:
    return None


def _owner_token() -> str:
    """The simulated process that asks."""
    return f"sim.{here.get().name}"


def _certainly_dead(owner: str) -> bool:
    worker: Worker = here.get()
    return worker.sees_dead(owner.rpartition("sim.")[2])


def simulate(seed: int, bug: str = "", without: frozenset[str] = frozenset()) -> Simulation:
    """The simulation of one seed, with a planted bug if one is named. *without*: parts of it that are left out."""
    with (
        patch.object(plans, "owner_token", _owner_token),
        patch.object(breakers, "owner_token", _owner_token),
        patch.object(claim, "certainly_dead", _certainly_dead),
        BUGS[bug].plant() if bug else nullcontext(),
    ):
        return _Simulator(seed, without).simulate()


def shrink(simulation: Simulation, bug: str = "") -> tuple[Simulation, frozenset[str]]:
    """The smallest schedule found that breaks the same invariant, and what it leaves out."""
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
    """Many simulations. *stop_at*: enough broken invariants (0: never)."""
    count = steps = 0
    seen: Counter[str] = Counter()
    broken: list[Simulation] = []
    schedules: set[int] = set()
    for seed in seeds:
        simulation = simulate(seed, bug)
        count += 1
        steps += simulation.steps
        seen.update(simulation.seen)
        schedules.add(simulation.schedule)
        if simulation.broken:
            broken.append(simulation)
            if stop_at and len(broken) >= stop_at:
                break
    return Explored(count, steps, seen, broken, schedules)
