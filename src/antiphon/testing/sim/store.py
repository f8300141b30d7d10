"""The store as one worker sees it: a real one behind a network that delays and loses messages, or on a failing disk.

Redis and PostgreSQL are modelled by the memory store, which obeys the same rules (``antiphon.testing``'s conformance
rules hold for all of them), plus the behaviour of their networks, clients and replicas. SQLite is SQLite.
"""

from __future__ import annotations

from asyncio import CancelledError
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from copy import copy
from typing import Any, TypeVar

from antiphon.errors import StoreError, StoreUnavailable
from antiphon.ports import Begun, BreakerRow, Claimed, ClaimRequest, Existing, Row, Settlement, SyncJournal
from antiphon.stores import MemoryStore, SQLiteStore
from antiphon.stores._common import owner_of
from antiphon.stores.memory.claims import Node
from antiphon.testing.sim.disk import Disk, DiskFault, virtual_disk
from antiphon.testing.sim.invariants import Invariants, asking
from antiphon.testing.sim.plan import Outage, Plan
from antiphon.testing.sim.world import Bell, Dead, Nap, Process, VirtualClock, World, blocking, in_thread, maybe_await

T = TypeVar("T")
_LOOK_S = 2.0
_TOLD_S = 0.1
"""The longest delay until waiters learn that a record has changed."""
_LOSS_UNTIL_S = 25.0
_JOURNEY_S = (0.0001, 0.02)
_PATIENCE_S = 1.0
"""How long a client waits for a store that does not answer."""


class _Ticking(VirtualClock):
    """Advances a millisecond per reading: SQLite numbers claims by the clock, invariants tell them apart by it."""

    _last = 0

    def now_ms(self) -> int:
        self._last = max(super().now_ms(), self._last + 1)
        return self._last


class _Replica:
    """What a replica of the memory store has received so far."""

    def __init__(self, inner: Any) -> None:
        copies = {id(node): copy(node) for node in inner._nodes.values()}

        def known(node: Node) -> Node:
            found: Node = copies.setdefault(id(node), copy(node))
            return found

        self.nodes = OrderedDict((serial, known(node)) for serial, node in inner._nodes.items())
        self.current = {key: known(node) for key, node in inner._current.items()}
        self.history = {
            key: {identity: known(node) for identity, node in found.items()} for key, found in inner._history.items()
        }
        self.unknown = set(inner._unknown)
        self.pins = OrderedDict(inner._pins)
        self.breakers = {tenant: dict(rows) for tenant, rows in inner._breakers.items()}

    def seen(self) -> dict[str, Any]:
        """By key: everything observable."""
        found: dict[str, Any] = {}
        for node in self.nodes.values():
            found.setdefault(node.key, set()).add((node.serial, node.found_by, node.version, node.state))
        return found

    def promote(self, inner: Any) -> set[str]:
        """Become the store; returns the keys whose last writes are lost."""
        before, mine = _Replica(inner).seen(), self.seen()
        inner._nodes, inner._current, inner._history = self.nodes, self.current, self.history
        inner._unknown, inner._pins, inner._breakers = self.unknown, self.pins, self.breakers
        inner._soonest = 0.0  # check every node again
        return {key for key in before.keys() | mine.keys() if before.get(key) != mine.get(key)}


class Shared:
    """Shared by all workers: one store on the world's clock, and the invariants that watch it."""

    def __init__(self, world: World, invariants: Invariants, plan: Plan) -> None:
        self.world = world
        self.invariants = invariants
        self.plan = plan
        self.inner: SyncJournal
        self.workers: dict[str, Process] = {}
        self.lost_requests = self.lost_answers = 0
        self.lost_keys: set[str] = set()
        self.call_inside: Callable[[Any, str], Awaitable[None]]
        """Makes a tool's call of another tool."""
        self._disk: Disk | None = None
        self._bells: dict[str, Bell] = {}

    @contextmanager
    def open(self) -> Iterator[None]:
        """The store, for one simulation."""
        if self.plan.store != "sqlite":
            self.inner = MemoryStore(clock=VirtualClock(self.world)).open_sync()
            yield
            return
        with virtual_disk() as disk:
            path = disk.folder / "sim.db"
            self.inner = SQLiteStore(path, clock=_Ticking(self.world)).open_sync()
            self._disk = disk
            try:
                self.inner.read("", "")
                yield
            finally:
                self.inner.close()
                self._disk = None
                for left in disk.folder.glob("sim.db*"):
                    left.unlink(missing_ok=True)

    # -- faults --------------------------------------------------------------------------------------------------

    async def fail_over(self, lag: float) -> None:
        """A replica that is *lag* seconds behind takes over."""
        replica = _Replica(self.inner)
        await Nap(lag)
        lost = replica.promote(self.inner)
        self.world.say(f"a replica takes over; writes on {len(lost)} keys are lost")
        self.invariants.seen["fail-overs"] += 1
        self.lost_keys |= lost
        self.invariants.lost_writes(lost)
        for worker in self.workers.values():
            worker.disturbed()
        for key in self._bells:
            self.moved(key)

    def bell(self, key: str) -> Bell:
        """The bell of those who wait for a record."""
        return self._bells.setdefault(key, [])

    def moved(self, key: str) -> None:
        """Tell them that it has changed."""
        if bell := self._bells.get(key):
            self.world.ring(bell, _TOLD_S)

    def on_disk(self) -> AbstractContextManager[None]:
        """While a worker writes: the disk may fail."""
        if self._disk is None or not self.plan.bad_disks:
            return nullcontext()
        return self._disk.failing(self._fault)

    def _fault(self, step: str) -> DiskFault | None:
        now = self.world.now
        for bad in self.plan.bad_disks:
            right = (bad.fault == "fsync fails") == (step == "fsync")
            if right and bad.at <= now < bad.at + bad.seconds and self.world.random.random() < bad.rate:
                self.invariants.seen[f"disk: {bad.fault}"] += 1
                return bad.fault
        return None

    def loses(self) -> bool:
        return self.world.now < _LOSS_UNTIL_S and self.world.random.random() < self.plan.loss

    def outage(self) -> Outage | None:
        """The current one."""
        now = self.world.now
        return next((o for o in self.plan.outages if o.at <= now < o.at + o.seconds), None)

    # The unmodified steps; a planted bug replaces one of them.

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
    """One worker's connection to the store. Every step can be late, and its request or its answer can be lost.

    What a cancellation does to a step in progress depends on the store, so seeds choose (``Plan.cancels``): SQLite
    finishes it first (``waits``); for others either nobody knows whether the request has arrived (``drops``), or it
    arrives after the caller has seen the cancellation (``goes on``: PostgreSQL).
    """

    durable = True

    def __init__(self, shared: Shared, worker: Process, *, at_once: bool = False) -> None:
        self._shared = shared
        self._worker = worker
        self._at_once = at_once
        """For the renewer, which is driven without suspending."""

    async def _step(self, name: str, run: Callable[[], Awaitable[T] | T], *, back: bool = True) -> T:
        """*back*: whether the answer takes time as well."""
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
        if outage is not None and outage.slow_s:
            await self._slowly(name, run, outage.slow_s)
        elif outage is not None:
            await self._without_store(name, run, outage)
        if shared.loses():
            shared.lost_requests += 1
            self._lost(f"{worker.name}: {name} never reached the store")
            raise StoreUnavailable(f"{name} was lost")
        try:
            with shared.on_disk():
                answer = await maybe_await(run())
        except StoreError as error:
            self._lost(f"{worker.name}: {name} failed: {error.data.get('reason')}")
            raise
        if back:
            await self._travel()
        if shared.loses():
            shared.lost_answers += 1
            self._lost(f"{worker.name}: the answer to {name} got lost")
            raise StoreUnavailable(f"the answer to {name} was lost")
        return answer

    async def _slowly(self, name: str, run: Callable[[], Any], seconds: float) -> None:
        """A slow store accepts the request; the client times out first, or gets its answer late."""
        shared, worker = self._shared, self._worker
        shared.invariants.seen["slow store steps"] += 1
        worker.disturbed()
        uncancellable = shared.plan.cancels == "waits"
        if self._at_once:
            return
        if seconds < _PATIENCE_S:
            await Nap(seconds, uncancellable=uncancellable)
            return
        shared.world.start(f"{worker.name}: {name} takes its time", self._go_on(run, seconds), worker)
        await Nap(_PATIENCE_S, uncancellable=uncancellable)
        self._lost(f"{worker.name}: no answer to {name}")
        raise StoreUnavailable(f"{name} took too long")

    async def _without_store(self, name: str, run: Callable[[], Any], outage: Outage) -> None:
        """A frozen store may be back in time; otherwise the client gives up, and its request arrives after it has."""
        shared, worker = self._shared, self._worker
        left = outage.at + outage.seconds - shared.world.now
        if outage.frozen and left < _PATIENCE_S and not self._at_once:
            worker.disturbed()
            await Nap(left, uncancellable=shared.plan.cancels == "waits")
            return
        if outage.frozen:
            if not self._at_once:
                await Nap(_PATIENCE_S, uncancellable=shared.plan.cancels == "waits")
            shared.world.start(f"{worker.name}: {name} waits in the store", self._go_on(run, left), worker)
        shared.invariants.seen["steps while the store is away"] += 1
        self._lost(f"{worker.name}: no store for {name}")
        raise StoreUnavailable(f"{name} found no store")

    async def _go_on(self, run: Callable[[], Any], after: float = 0.0) -> None:
        """The request arrives later."""
        await Nap(after + self._shared.world.random.uniform(0.0, 0.2), uncancellable=True)
        if after:
            self._worker.disturbed()  # nobody knows of a claim that is granted now
        await maybe_await(run())

    async def _travel(self) -> None:
        if self._at_once:
            return
        shared = self._shared
        try:
            await Nap(shared.world.random.uniform(*_JOURNEY_S), uncancellable=shared.plan.cancels == "waits")
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
            try:
                answer = await claim()
            except StoreError:
                self._perhaps_claimed(request, asked)
                raise
            if isinstance(answer, Claimed):
                self._shared.moved(request.key)
                self._shared.invariants.claimed(request.key, answer.version, self._worker, asked)
            return answer

        return await self._step(name, run)

    def _perhaps_claimed(self, request: ClaimRequest, asked: Any) -> None:
        """A disk that failed may have kept the claim."""
        found = self._look(request.key, request.identity)
        if found is not None and found.current.owner == owner_of(request) and found.current.state == "inflight":
            self._shared.invariants.claimed(request.key, found.current.version, self._worker, asked)

    def _perhaps_settled(self, key: str, version: int, settlement: Settlement) -> None:
        found = self._look(key, "")
        if found is not None and found.current.state == settlement.state and found.current.version > version:
            self._shared.invariants.settled(key, version, settlement, self._worker, found.current.version, found)

    def _look(self, key: str, identity: str) -> Existing | None:
        """The current record in the store."""
        disk = self._shared._disk
        with nullcontext() if disk is None else disk.failing(lambda step: None):
            return self._shared.inner.read(key, identity)

    async def settle(self, key: str, version: int, settlement: Settlement, events: Sequence[Row] = ()) -> int | None:
        async def run() -> int | None:
            try:
                answer = await self._shared.settle(key, version, settlement, events)
            except StoreError:
                self._perhaps_settled(key, version, settlement)
                raise
            if answer is not None:
                self._shared.moved(key)
                found = self._look(key, "")
                self._shared.invariants.settled(key, version, settlement, self._worker, answer, found)
            return answer

        return await self._step("settle", run)

    async def alias(self, key: str, identity: str, version: int) -> bool:
        return await self._step("alias", lambda: self._shared.alias(key, identity, version))

    async def forgotten(self, request: ClaimRequest, version: int) -> bool:
        def run() -> bool:
            lost = request.key in self._shared.lost_keys
            return not lost and self._shared.inner.forgotten(request, version)

        return await self._step("forgotten", run)

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
        """Until the record has changed; polled occasionally, because a record may expire."""
        world = self._shared.world
        until = world.now + timeout_s
        while world.now < until:
            found = self._shared.inner.read(key, "")
            if found is None or found.current.version != version or found.current.state != "inflight":
                return
            await world.listen(self._shared.bell(key), min(_LOOK_S, until - world.now + 0.0001))
            if self._worker.dead:
                raise Dead

    async def load_breakers(self, tenant: str) -> list[BreakerRow]:
        return await self._step("load breakers", lambda: self._shared.inner.load_breakers(tenant), back=False)

    async def save_breaker(self, tenant: str, row: BreakerRow) -> None:
        await self._step("save breaker", lambda: self._shared.inner.save_breaker(tenant, row), back=False)

    def subscribe_breakers(self, tenant: str, callback: Callable[[BreakerRow], None]) -> None:
        """This store does not push."""

    async def close(self) -> None:
        return None


class SyncSimJournal:
    """The same for a worker's threads; outside them, as in its renewer, steps take no time."""

    durable = True

    def __init__(self, shared: Shared, worker: Process) -> None:
        self._journals = SimJournal(shared, worker), SimJournal(shared, worker, at_once=True)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        in_time, at_once = self._journals
        return lambda *args: blocking(getattr(in_time if in_thread() else at_once, name)(*args))

    def subscribe_breakers(self, tenant: str, callback: Callable[[BreakerRow], None]) -> None:
        """This store does not push."""


class SimStore:
    """The store that is passed to a worker's gateway."""

    url = "sim://"
    in_process = False

    def __init__(self, shared: Shared, worker: Process) -> None:
        self._shared = shared
        self._worker = worker

    def open_sync(self) -> Any:
        return SyncSimJournal(self._shared, self._worker)

    def open_async(self) -> Any:
        return SimJournal(self._shared, self._worker)
