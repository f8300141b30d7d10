"""The real memory store behind a network that delays and loses, seen by one worker."""

from __future__ import annotations

from asyncio import CancelledError
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from antiphon.errors import StoreUnavailable
from antiphon.ports import Begun, BreakerRow, Claimed, ClaimRequest, Existing, Row, Settlement, SyncJournal
from antiphon.stores import MemoryStore
from antiphon.testing.sim.invariants import asking
from antiphon.testing.sim.world import Dead, Nap, VirtualClock, World, blocking, either, in_thread

if TYPE_CHECKING:
    from antiphon.testing.sim.invariants import Invariants
    from antiphon.testing.sim.plan import Outage, Plan
    from antiphon.testing.sim.worker import Worker

T = TypeVar("T")
_LOOK_S = 0.1
_LOSS_UNTIL_S = 25.0
_JOURNEY_S = (0.0001, 0.02)
_PATIENCE_S = 1.0
"""So long a client waits for a store that does not answer."""


class Shared:
    """What all workers see: one memory store on the world's clock, and the invariants that watch it."""

    def __init__(self, world: World, invariants: Invariants, plan: Plan) -> None:
        self.world = world
        self.invariants = invariants
        self.plan = plan
        self.inner: SyncJournal = MemoryStore(clock=VirtualClock(world)).open_sync()
        self.workers: dict[str, Worker] = {}
        self.lost_requests = self.lost_answers = 0

    def loses(self) -> bool:
        return self.world.now < _LOSS_UNTIL_S and self.world.random.random() < self.plan.loss

    def outage(self) -> Outage | None:
        """The one that is under way."""
        now = self.world.now
        return next((o for o in self.plan.outages if o.at <= now < o.at + o.seconds), None)

    # The steps as they are; a planted bug replaces one of them.

    async def begin(self, request: ClaimRequest, events: Sequence[Row]) -> Begun:
        return self.inner.begin(request, events)

    async def take_over(self, request: ClaimRequest, version: int, events: Sequence[Row]) -> Begun:
        return self.inner.take_over(request, version, events)

    async def settle(self, key: str, version: int, settlement: Settlement, events: Sequence[Row]) -> int | None:
        return self.inner.settle(key, version, settlement, events)

    async def alias(self, key: str, identity: str, version: int) -> bool:
        return self.inner.alias(key, identity, version)

    async def read(self, key: str, identity: str) -> Existing | None:
        return self.inner.read(key, identity)


class SimJournal:
    """One worker's way to the store. Every step can be late, and its request or its answer can get lost.

    What a cancellation does to a step under way depends on the store, so seeds choose (``Plan.cancels``): SQLite
    finishes it first (``waits``); of others nobody knows whether the request has arrived (``drops``), or it arrives
    after the caller has seen the cancellation (``goes on``: PostgreSQL).
    """

    durable = True

    def __init__(self, shared: Shared, worker: Worker, *, at_once: bool = False) -> None:
        self._shared = shared
        self._worker = worker
        self._at_once = at_once
        """For the renewer, which is driven in one go."""

    async def _step(self, name: str, run: Callable[[], Awaitable[T] | T]) -> T:
        shared, worker = self._shared, self._worker
        if worker.dead:
            raise Dead
        try:
            await self._travel()
        except (CancelledError, KeyboardInterrupt):
            if shared.plan.cancels == "goes on":
                shared.world.start(f"{worker.name}: {name} goes on", self._go_on(run), worker)
            raise
        outage = shared.outage() if shared.plan.outages else None
        if outage is not None:
            await self._without_store(name, run, outage)
        if shared.loses():
            shared.lost_requests += 1
            self._lost(f"{worker.name}: {name} never reached the store")
            raise StoreUnavailable(f"{name} was lost")
        answer = await either(run())
        await self._travel()
        if shared.loses():
            shared.lost_answers += 1
            self._lost(f"{worker.name}: the answer to {name} got lost")
            raise StoreUnavailable(f"the answer to {name} was lost")
        return answer

    async def _without_store(self, name: str, run: Callable[[], Any], outage: Outage) -> None:
        """A frozen store may be back in time; otherwise the client gives up, and its request arrives without it."""
        shared, worker = self._shared, self._worker
        left = outage.at + outage.seconds - shared.world.now
        if outage.frozen and left < _PATIENCE_S and not self._at_once:
            worker.disturbed()
            await Nap(left, deaf=shared.plan.cancels == "waits")
            return
        if outage.frozen:
            if not self._at_once:
                await Nap(_PATIENCE_S, deaf=shared.plan.cancels == "waits")
            shared.world.start(f"{worker.name}: {name} waits in the store", self._go_on(run, left), worker)
        shared.invariants.seen["steps while the store is away"] += 1
        self._lost(f"{worker.name}: no store for {name}")
        raise StoreUnavailable(f"{name} found no store")

    async def _go_on(self, run: Callable[[], Any], after: float = 0.0) -> None:
        """The request arrives later."""
        await Nap(after + self._shared.world.random.uniform(0.0, 0.2), deaf=True)
        if after:
            self._worker.disturbed()  # a claim that is given now has nobody who knows of it
        await either(run())

    async def _travel(self) -> None:
        if self._at_once:
            return
        shared = self._shared
        try:
            await Nap(shared.world.random.uniform(*_JOURNEY_S), deaf=shared.plan.cancels == "waits")
        except (CancelledError, KeyboardInterrupt):
            shared.invariants.seen["cancelled store steps"] += 1
            raise
        if self._worker.dead:
            raise Dead

    def _lost(self, text: str) -> None:
        self._worker.disturbed()
        asked = asking.get()
        if asked is not None:
            asked.cut_off = True
        self._shared.world.say(text)

    async def begin(self, request: ClaimRequest, events: Sequence[Row] = ()) -> Begun:
        return await self._claim("begin", request, lambda: self._shared.begin(request, events))

    async def take_over(self, request: ClaimRequest, version: int, events: Sequence[Row] = ()) -> Begun:
        return await self._claim("take over", request, lambda: self._shared.take_over(request, version, events))

    async def _claim(self, name: str, request: ClaimRequest, claim: Callable[[], Awaitable[Begun]]) -> Begun:
        asked = asking.get()
        if asked is not None:
            asked.request = request

        async def run() -> Begun:
            answer = await claim()
            if isinstance(answer, Claimed):
                self._shared.invariants.claimed(request.key, answer.version, self._worker, asked)
            return answer

        return await self._step(name, run)

    async def settle(self, key: str, version: int, settlement: Settlement, events: Sequence[Row] = ()) -> int | None:
        async def run() -> int | None:
            answer = await self._shared.settle(key, version, settlement, events)
            if answer is not None:
                self._shared.invariants.settled(key, version, settlement, self._worker, answer)
            return answer

        return await self._step("settle", run)

    async def alias(self, key: str, identity: str, version: int) -> bool:
        return await self._step("alias", lambda: self._shared.alias(key, identity, version))

    async def renew(self, key: str, version: int, lease_ms: int) -> bool:
        def run() -> bool:
            kept = self._shared.inner.renew(key, version, lease_ms)
            if kept:
                self._shared.invariants.renewed(version)
            return kept

        return await self._step("renew", run)

    async def read(self, key: str, identity: str = "") -> Existing | None:
        return await self._step("read", lambda: self._shared.read(key, identity))

    async def wait(self, key: str, version: int, timeout_s: float) -> None:
        """Until the record moved on; looked at now and then, as a message may get lost."""
        world = self._shared.world
        until = world.now + timeout_s
        while world.now < until:
            found = self._shared.inner.read(key, "")
            if found is None or found.current.version != version or found.current.state != "inflight":
                return
            await Nap(min(_LOOK_S * world.random.uniform(0.2, 1.0), until - world.now + 0.0001))
            if self._worker.dead:
                raise Dead

    async def load_breakers(self, tenant: str) -> list[BreakerRow]:
        return await self._step("load breakers", lambda: self._shared.inner.load_breakers(tenant))

    async def save_breaker(self, tenant: str, row: BreakerRow) -> None:
        await self._step("save breaker", lambda: self._shared.inner.save_breaker(tenant, row))

    def subscribe_breakers(self, tenant: str, callback: Callable[[BreakerRow], None]) -> None:
        """This store does not push."""

    async def close(self) -> None:
        return None


class SyncSimJournal:
    """The same for the threads of a worker, and for its renewer."""

    durable = True

    def __init__(self, journal: SimJournal) -> None:
        self._journal = journal

    def __getattr__(self, name: str) -> Callable[..., Any]:
        step = getattr(self._journal, name)
        return lambda *args: blocking(step(*args))

    def subscribe_breakers(self, tenant: str, callback: Callable[[BreakerRow], None]) -> None:
        """This store does not push."""


class SimStore:
    """What a worker's gateway is given as its store."""

    url = "sim://"
    in_process = False

    def __init__(self, shared: Shared, worker: Worker) -> None:
        self._shared = shared
        self._worker = worker

    def open_sync(self) -> Any:
        """Outside of a simulated thread, that is in the renewer, steps take no time."""
        return SyncSimJournal(SimJournal(self._shared, self._worker, at_once=not in_thread()))

    def open_async(self) -> Any:
        return SimJournal(self._shared, self._worker)
