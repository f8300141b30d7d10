"""A simulated process: the real pipeline, its tool, its renewer. It can be paused, killed, and cut off."""

from __future__ import annotations

from asyncio import CancelledError
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from antiphon._gateway.call import Outcome, from_envelope
from antiphon._gateway.context import CallContext
from antiphon._gateway.core import Core
from antiphon._gateway.parts import Parts
from antiphon._gateway.renewer import Renewer
from antiphon._gateway.report import Reporter
from antiphon._gateway.settings import Settings
from antiphon._gateway.threads import TimedOut
from antiphon._gateway.tool import Tool
from antiphon.contract.envelope import ToolCallEnvelope
from antiphon.contract.spec import BreakerPolicy, Happened, RetryPolicy, ToolSpec, Ttls
from antiphon.decide.breaker import Transition
from antiphon.decide.loop import LoopPolicy
from antiphon.testing.sim.store import Shared, SimJournal, SimStore
from antiphon.testing.sim.world import Nap, VirtualClock, World

if TYPE_CHECKING:
    from antiphon.testing.sim.laws import Laws
    from antiphon.testing.sim.plan import Plan

LEASE_MS = 3_000


async def within(awaitable: Any, seconds: float) -> Any:
    """The pipeline's time limit, in virtual time: what takes longer is cancelled."""
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


class HttpError(Exception):
    """An answer of the simulated dependency."""

    def __init__(self, status: int) -> None:
        super().__init__(f"status {status}")
        self.status_code = status


class Watching(Reporter):
    """Tells the laws about breakers."""

    def __init__(self, worker: Worker, laws: Laws) -> None:
        super().__init__()
        self._worker = worker
        self._laws = laws

    def transition(self, key: str, transition: Transition) -> None:
        self._laws.moved(self._worker, transition)


class Worker:
    """One process of the fleet."""

    def __init__(self, name: str, world: World, shared: Shared, laws: Laws, plan: Plan) -> None:
        self.name = name
        self.world = world
        self.laws = laws
        self.plan = plan
        self.dead = False
        self.paused_until = 0.0
        self.last_disturbance = -1.0
        clock = VirtualClock(world, skew_ms=world.random.choice((0, 0, -3_600_000, 3_600_000)))
        settings = Settings(loop=LoopPolicy(enabled=False), retry=RetryPolicy(base_ms=50, max_delay_ms=200))
        store = SimStore(shared, self)
        parts = Parts(store=store, clock=clock, settings=settings, reporter=Watching(self, laws))
        journal = SimJournal(shared, self)
        self.core = Core(parts, asynchronous=False, journal=lambda: journal, clock=clock)  # type: ignore[arg-type, return-value]
        self.core.renewer = Renewer(store, clock, settings, attached=False)
        spec = msgspec.structs.replace(plan.spec, reconcile=self.read_back) if plan.reconciles else plan.spec
        self.core.tools["tools/act"] = Tool(self.act, spec, settings)
        world.start(f"{name}: renewer", self._renew(), self)

    # -- what befalls it -----------------------------------------------------------------------------------------

    def disturbed(self) -> None:
        """Something happened that may cost it a lease."""
        self.last_disturbance = self.world.now

    def pause(self, seconds: float) -> None:
        self.world.say(f"{self.name}: paused for {seconds:.1f} s")
        self.paused_until = self.last_disturbance = max(self.paused_until, self.world.now + seconds)

    def kill(self) -> None:
        self.world.say(f"{self.name}: killed")
        self.dead = True
        self.disturbed()

    def healthy_since(self, moment: float) -> bool:
        return not self.dead and self.last_disturbance < moment

    async def _renew(self) -> None:
        while self.world.now < self.plan.ends:
            self.core.renewer.look()
            await Nap(LEASE_MS / 1000 / 12)

    # -- what it does ----------------------------------------------------------------------------------------------

    async def call(self, envelope: dict[str, Any]) -> Outcome:
        """One call through the whole pipeline."""
        checked = ToolCallEnvelope.from_wire(envelope)
        tool = self.core.tools["tools/act"]
        call = from_envelope(checked, tool, self.core.clock.now_ms(), self.core.clock.monotonic())
        return await self.core.run(call)

    async def act(self, what: str, ctx: CallContext) -> dict[str, Any]:
        """The tool: it takes its time, has its effect somewhere on the way, and ends as the plan says."""
        dispatch = self.laws.dispatched(what, ctx, self)
        fate = self.plan.fate(self.world.now)
        try:
            await Nap(fate.before)
            if fate.ends == "refused":
                dispatch.no_effect = True
                raise ConnectionRefusedError(111, "refused")
            dispatch.effect = fate.ends in ("fine", "lost") or (fate.ends == "answer 503" and fate.after > 0.1)
            await Nap(fate.after)
            if fate.ends == "answer 400":
                raise HttpError(400)
            if fate.ends == "answer 503":
                raise HttpError(503)
            if fate.ends == "lost":
                raise TimeoutError("no answer")
            dispatch.ok = True
        finally:
            dispatch.ended = self.world.now
            self.world.say(f"{self.name}: act({what}) fence {ctx.fence} ends: {fate.ends}")
        return {"what": what, "fence": ctx.fence, "number": dispatch.number}

    def read_back(self, params: dict[str, Any], lost: CallContext) -> Any:
        """The tool's ``reconcile``: what really became of the lost call."""
        found = self.laws.happened(lost.fence)
        self.world.say(f"{self.name}: act({params['what']}) fence {lost.fence} happened: {found}")
        self.laws.seen["reconciled"] += 1
        if not found:
            return found
        return Happened({"what": params["what"], "fence": lost.fence, "number": 0})


def spec_of(*, idempotent: bool, reuse: Any, breaker: BreakerPolicy | None) -> ToolSpec:
    """The simulated tool."""
    return ToolSpec(
        name="act",
        idempotent=idempotent,
        reuse=reuse,
        breaker=breaker,
        ttl=Ttls(done_ms=3_600_000, failed_ms=3_600_000, lease_ms=LEASE_MS),
    )
