"""The real memory store behind a network that delays and loses, seen by one worker."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any

from antiphon.errors import StoreUnavailable
from antiphon.ports import Ask, Claimed, Existing, Final, Journal, Row
from antiphon.stores import MemoryStore
from antiphon.testing.sim.world import Nap, VirtualClock, World

if TYPE_CHECKING:
    from antiphon.testing.sim.laws import Laws
    from antiphon.testing.sim.worker import Worker

_LOOK_S = 0.05


class Dead(BaseException):
    """A killed worker does nothing, not even tidy up."""


class Shared:
    """What all workers see: one memory store on the world's clock, and the laws that watch it."""

    def __init__(self, world: World, laws: Laws, *, loss: float, loss_until: float) -> None:
        self.world = world
        self.laws = laws
        self.inner: Journal = MemoryStore(clock=VirtualClock(world)).open_sync()
        self.loss = loss
        self.loss_until = loss_until
        self.lost_requests = self.lost_answers = 0

    def loses(self) -> bool:
        return self.world.now < self.loss_until and self.world.random.random() < self.loss

    # The steps as they are; a planted bug replaces one of them.

    async def begin(self, ask: Ask, events: Sequence[Row]) -> Claimed | Existing:
        return await self.inner.begin(ask, events)

    async def take(self, ask: Ask, version: int, events: Sequence[Row]) -> Claimed | Existing:
        return await self.inner.take(ask, version, events)

    async def settle(self, key: str, version: int, final: Final, events: Sequence[Row]) -> int | None:
        return await self.inner.settle(key, version, final, events)

    async def alias(self, key: str, identity: str, version: int) -> bool:
        return await self.inner.alias(key, identity, version)

    async def read(self, key: str, identity: str) -> Existing | None:
        return await self.inner.read(key, identity)


class SimJournal:
    """One worker's way to the store. Every step can be late, and its request or its answer can get lost."""

    durable = False

    def __init__(self, shared: Shared, worker: Worker, *, at_once: bool = False) -> None:
        self._shared = shared
        self._worker = worker
        self._at_once = at_once
        """For the renewer, which is driven in one go."""

    async def _step(self, name: str, run: Callable[[], Awaitable[Any]]) -> Any:
        shared, worker = self._shared, self._worker
        if worker.dead:
            raise Dead
        await self._travel()
        if shared.loses():
            shared.lost_requests += 1
            worker.disturbed()
            shared.world.say(f"{worker.name}: {name} never reached the store")
            raise StoreUnavailable(f"{name} was lost")
        answer = await run()
        await self._travel()
        if shared.loses():
            shared.lost_answers += 1
            worker.disturbed()
            shared.world.say(f"{worker.name}: the answer to {name} got lost")
            raise StoreUnavailable(f"the answer to {name} was lost")
        return answer

    async def _travel(self) -> None:
        if not self._at_once:
            await Nap(self._shared.world.random.uniform(0.0001, 0.02), deaf=True)
            if self._worker.dead:
                raise Dead

    async def begin(self, ask: Ask, events: Sequence[Row] = ()) -> Claimed | Existing:
        asked = ask._replace(owner=f"sim-{self._worker.name}")

        async def run() -> Claimed | Existing:
            answer = await self._shared.begin(asked, events)
            if isinstance(answer, Claimed):
                self._shared.laws.claimed(asked, answer.version, self._worker)
            return answer

        return await self._step("begin", run)  # type: ignore[no-any-return]

    async def take(self, ask: Ask, version: int, events: Sequence[Row] = ()) -> Claimed | Existing:
        asked = ask._replace(owner=f"sim-{self._worker.name}")

        async def run() -> Claimed | Existing:
            answer = await self._shared.take(asked, version, events)
            if isinstance(answer, Claimed):
                self._shared.laws.claimed(asked, answer.version, self._worker)
            return answer

        return await self._step("take", run)  # type: ignore[no-any-return]

    async def settle(self, key: str, version: int, final: Final, events: Sequence[Row] = ()) -> int | None:
        async def run() -> int | None:
            answer = await self._shared.settle(key, version, final, events)
            if answer is not None:
                await self._shared.laws.settled(key, version, final, self._worker, answer)
            return answer

        return await self._step("settle", run)  # type: ignore[no-any-return]

    async def alias(self, key: str, identity: str, version: int) -> bool:
        return await self._step("alias", lambda: self._shared.alias(key, identity, version))  # type: ignore[no-any-return]

    async def renew(self, key: str, version: int, lease_ms: int) -> bool:
        async def run() -> bool:
            kept = await self._shared.inner.renew(key, version, lease_ms)
            if kept:
                self._shared.laws.renewed(version)
            return kept

        return await self._step("renew", run)  # type: ignore[no-any-return]

    async def read(self, key: str, identity: str = "") -> Existing | None:
        return await self._step("read", lambda: self._shared.read(key, identity))  # type: ignore[no-any-return]

    async def wait(self, key: str, version: int, timeout_s: float) -> None:
        """Until the record moved on; looked at now and then, as a message may get lost."""
        world = self._shared.world
        until = world.now + timeout_s
        while world.now < until:
            found = await self._shared.inner.read(key, "")
            if found is None or found.current.version != version or found.current.state != "inflight":
                return
            await Nap(min(_LOOK_S * world.random.uniform(0.2, 1.0), until - world.now + 0.0001))
            if self._worker.dead:
                raise Dead

    async def load_breakers(self, tenant: str) -> list[Any]:
        return []

    async def save_breaker(self, tenant: str, row: Any) -> None:
        return None

    async def close(self) -> None:
        return None


class SimStore:
    """What a worker's gateway is given as its store."""

    url = "sim://"

    def __init__(self, shared: Shared, worker: Worker) -> None:
        self._shared = shared
        self._worker = worker

    def open_sync(self) -> Any:
        """For the renewer."""
        return SimJournal(self._shared, self._worker, at_once=True)

    def open_async(self) -> Any:
        return SimJournal(self._shared, self._worker)
