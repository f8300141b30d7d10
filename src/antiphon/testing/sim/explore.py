"""Tell the story of one seed, or of many."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from contextlib import nullcontext
from typing import Any, NamedTuple

from antiphon._gateway import streams
from antiphon.testing.sim.bugs import BUGS, patched
from antiphon.testing.sim.laws import Laws
from antiphon.testing.sim.plan import QUIET_S, Delivery, Plan
from antiphon.testing.sim.store import Shared
from antiphon.testing.sim.worker import Worker, within
from antiphon.testing.sim.world import Nap, Task, World


class Story(NamedTuple):
    """What one seed led to."""

    seed: int
    broken: str
    """The law that was broken and how, or ``""``."""
    steps: int
    seen: Counter[str]
    trace: list[str]


class Explored(NamedTuple):
    """What many seeds led to."""

    seeds: int
    steps: int
    seen: Counter[str]
    broken: list[Story]


class _Teller:
    def __init__(self, seed: int) -> None:
        self.plan = Plan(seed)
        self.world = World(seed)
        self.laws = Laws(self.world, self.plan)
        self.shared = Shared(self.world, self.laws, loss=self.plan.loss, loss_until=25.0)
        self.laws.shared = self.shared
        self.workers = [self._worker(f"w{n}") for n in range(self.plan.workers)]
        self.calls: list[tuple[Delivery, Task]] = []

    def _worker(self, name: str) -> Worker:
        return Worker(name, self.world, self.shared, self.laws, self.plan)

    def tell(self) -> Story:
        plan, world = self.plan, self.world
        for number, delivery in enumerate(plan.deliveries):
            world.start(f"delivery {number}", self._deliver(delivery, number), after=delivery.at)
        for at, worker, seconds in plan.pauses:
            world.start("pause", self._pause(worker, seconds), after=at)
        for at, worker in plan.kills:
            world.start("kill", self._kill(worker), after=at)
        world.start("the end", self._once_more(), after=QUIET_S)
        try:
            world.run()
        except Exception as error:
            self.laws.breaks("an end", f"{type(error).__name__} escaped: {error}")
        finally:
            seen = Counter(self.laws.seen)
            trace = list(world.trace)
            world.close()
        self._everybody_was_answered()
        seen["lost requests"] += self.shared.lost_requests
        seen["lost answers"] += self.shared.lost_answers
        seen["calls"] += len(self.calls)
        return Story(plan.seed, self.laws.broken, world.steps, seen, trace)

    async def _pause(self, worker: int, seconds: float) -> None:
        if not self.workers[worker].dead:
            self.laws.seen["pauses"] += 1
            self.workers[worker].pause(seconds)

    async def _kill(self, worker: int) -> None:
        """A killed worker is replaced by a new one that knows nothing."""
        self.laws.seen["kills"] += 1
        self.workers[worker].kill()
        self.workers[worker] = self._worker(f"{self.workers[worker].name}'")

    async def _deliver(self, delivery: Delivery, number: int) -> None:
        worker = self.workers[delivery.worker]
        task = self.world.start(delivery.identity, self._call(worker, delivery, number), worker)
        self.calls.append((delivery, task))
        if delivery.cancel_after is not None:
            await Nap(delivery.cancel_after)
            if not task.done:
                self.laws.seen["cancellations"] += 1
                self.world.say(f"{delivery.identity} is cancelled")
                task.cancelled = True

    async def _call(self, worker: Worker, delivery: Delivery, number: int) -> Any:
        asked_at = self.world.now
        identity = delivery.key or delivery.identity
        outcome = await worker.call(self.plan.envelope(delivery, number, worker.core.clock.now_ms()))
        self.world.say(f"{worker.name}: {identity} gets {outcome.code or outcome.value} {outcome.metadata or ''}")
        self.laws.answered(identity, delivery.intent, asked_at, outcome)
        return outcome

    async def _once_more(self) -> None:
        """When all is quiet, every call identity is delivered once again."""
        last = {delivery.identity: delivery for delivery in self.plan.deliveries}
        for number, delivery in enumerate(last.values()):
            quiet = delivery._replace(mode="enforced", cancel_after=None, deadline_s=None)
            self.world.start(f"again {delivery.identity}", self._deliver(quiet, 10_000 + number), after=number * 0.5)

    def _everybody_was_answered(self) -> None:
        if self.laws.broken:
            return
        for delivery, task in self.calls:
            if not task.done and not task.place.dead:
                self.laws.breaks("an end", f"{delivery.identity} was never answered")


def tell(seed: int, bug: str = "") -> Story:
    """The story of one seed, with a planted bug if one is named."""
    with patched(streams, "within", within), BUGS[bug].plant() if bug else nullcontext():
        return _Teller(seed).tell()


def explore(seeds: Iterable[int], bug: str = "", *, stop_at: int = 0) -> Explored:
    """Many stories. *stop_at*: enough broken laws (0: never)."""
    count = steps = 0
    seen: Counter[str] = Counter()
    broken: list[Story] = []
    for seed in seeds:
        story = tell(seed, bug)
        count += 1
        steps += story.steps
        seen.update(story.seen)
        if story.broken:
            broken.append(story)
            if stop_at and len(broken) >= stop_at:
                break
    return Explored(count, steps, seen, broken)
