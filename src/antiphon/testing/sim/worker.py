"""A simulated process: a real gateway, its tool, its renewer. It can be paused, killed, cut off and reconfigured."""

from __future__ import annotations

from asyncio import CancelledError
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from copy import copy
from functools import partial
from itertools import islice
from typing import Any

import msgspec

from antiphon._gateway.context import CallContext
from antiphon._gateway.drivers import AsyncRuntime
from antiphon._gateway.gateway import AsyncGateway, Gateway
from antiphon._gateway.hooks import HookCall, HookReply
from antiphon._gateway.ids import Fingerprints
from antiphon._gateway.late import _PATIENCE_S
from antiphon._gateway.leases import Lease, Leases
from antiphon._gateway.plan import Dependencies
from antiphon._gateway.report import Reporter
from antiphon._gateway.settings import Settings, ToolOverride
from antiphon._gateway.threads import Abandoned, Late, ThreadRunner, TimedOut
from antiphon._gateway.tool import Tool
from antiphon.adapters._calls import CallIdentity, GuardedTools
from antiphon.contract.spec import DidNotHappen, Happened, RetryPolicy, ToolSpec
from antiphon.decide.breaker import Transition
from antiphon.decide.loop import LoopPolicy
from antiphon.testing.sim.invariants import LEFT, Answered, Dispatch, Invariants, answer_of, asking, failure_of
from antiphon.testing.sim.plan import ADAPTED, INSIDE, LEASE_S, STREAMED, TOOL, AttemptPlan, Change, Delivery, Plan
from antiphon.testing.sim.store import Shared, SimStore
from antiphon.testing.sim.world import Bell, Dead, Mode, Nap, Process, VirtualClock, block, blocking, here, maybe_await

_LOOK_S = 0.3
_LONG_S = 100.0
_RENEWS_S = LEASE_S * 0.3
"""The longest sleep of a renewer."""
_HOOK_LIMIT_MS = 9_000


async def within(awaitable: Any, seconds: float) -> Any:
    """Await with a time limit, like asyncio: on timeout it is cancelled, and may clean up first."""
    steps = awaitable.__await__()
    world = _here().world
    left, late, cancelled = seconds, False, False
    go_on: Any = partial(next, steps)
    while True:
        try:
            nap = go_on()
        except StopIteration as stop:
            return stop.value
        except CancelledError:
            if late and not cancelled:
                raise TimedOut(seconds) from None
            raise
        limited, began = not late and nap.seconds >= left, world.now
        try:
            await (Nap(left) if limited and not nap.uncancellable else nap)
        except CancelledError as error:
            cancelled = True
            go_on = partial(steps.throw, error)
            continue
        slept = min(nap.seconds, world.now - began)  # it may have been woken
        runs_out = limited and slept > left - 1e-6
        left -= slept
        late = late or runs_out
        go_on = partial(steps.throw, CancelledError()) if runs_out else partial(steps.send, None)


class _Job:
    """A tool on its thread."""

    def __init__(self) -> None:
        self.over: Bell = []

    done = False
    gave_up = False
    value: Any = None
    error: BaseException | None = None


class SimThreads(ThreadRunner):
    """Tools on simulated threads. An abandoned one runs on, and its late result is reported."""

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
        try:
            while not job.done:
                left = _LONG_S if until is None else until - world.now
                if left <= 0:
                    raise TimedOut(limit or 0.0, still_running=True)
                await world.listen(job.over, left)
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
        self._worker.world.ring(job.over, _LOOK_S)
        if not job.gave_up:
            return
        self.abandoned -= 1
        if late is not None:
            until = self._worker.world.now + _PATIENCE_S
            while not late.over.is_set() and self._worker.world.now < until:
                block(Nap(_LOOK_S))
            late.over.set()  # what it waits for itself is in real time
            self._worker.invariants.seen["late results"] += 1
            late(job.value, job.error)


class HttpError(Exception):
    """An error response of the simulated dependency."""

    def __init__(self, status: int) -> None:
        super().__init__(f"status {status}")
        self.status_code = status


class Watching(Reporter):
    """Reports breaker transitions to the invariants."""

    def __init__(self, worker: Worker, invariants: Invariants) -> None:
        super().__init__()
        self._worker = worker
        self._invariants = invariants

    def transition(self, key: str, transition: Transition) -> None:
        self._invariants.moved(self._worker, transition)


class Silent:
    """A listener that receives everything and does nothing."""

    def emit(self, event: str, fields: Mapping[str, Any]) -> None:
        return None


class SimRuntime(AsyncRuntime):
    """A task's environment without an event loop: what asyncio does for a driver."""

    worker: Worker

    async def shielded(self, rest: Any) -> None:
        if self.worker.dead:
            rest.close()
            raise Dead
        task = self.worker.world.start("the rest of a call", rest, self.worker)
        await self.worker.world.join(task)
        if task.error is not None:
            raise task.error

    async def unless_cancelled(self, step: Awaitable[Any]) -> Any:
        return await step  # its store holds no cancellation back

    async def within(self, awaitable: Awaitable[Any], seconds: float) -> Any:
        return await within(awaitable, seconds)


class SimGateway(AsyncGateway):
    """An asynchronous gateway whose tasks all live in one simulated process."""

    def __init__(self, dependencies: Dependencies, worker: Worker) -> None:
        super().__init__(dependencies)
        self._only = SimRuntime(self._plans, self._feed)
        self._only.worker = worker

    def _runtime(self) -> AsyncRuntime:
        return self._only


class Worker(Process):
    """One process of the fleet."""

    def __init__(self, name: str, shared: Shared, *, threads: bool) -> None:
        world, plan = shared.world, shared.plan
        super().__init__(name, world)
        self.invariants: Invariants = shared.invariants
        self.plan: Plan = plan
        self.threads = threads
        self._renews = False
        self._configuration: dict[str, Any] = {}
        self.clock: VirtualClock = VirtualClock(world, skew_ms=world.random.choice((0, 0, -3_600_000, 3_600_000)))
        shared.workers[name] = self
        self._fleet = shared.workers
        dependencies = Dependencies(
            store=SimStore(shared, self),
            clock=self.clock,
            settings=self._settings(),
            reporter=Watching(self, shared.invariants),
            renews=False,
            fingerprints=Fingerprints(lambda: (b"the same in every run",)),
        )
        self.gateway: Gateway | AsyncGateway = Gateway(dependencies) if threads else SimGateway(dependencies, self)
        plans = self.gateway._plans
        plans.threads = SimThreads(plans.settings.abandoned_threads, self)
        self.leases: Leases = plans.leases
        self._wakes(self.leases)
        spec = msgspec.structs.replace(plan.spec, reconcile=_read_back) if plan.reconciles else plan.spec
        self.function: Any = self.gateway.register(_tool_for(plan, threads), spec)
        self._specs = {name: msgspec.structs.replace(spec, name=name) for name in plan.tools}
        self._stream: Any = None
        if STREAMED in plan.tools:
            self._stream = self.gateway.register(_chunks_in_thread if threads else _chunks, self._specs[STREAMED])
        self._guarded = GuardedTools(self._specs, self.gateway)
        self._shared = shared
        if plan.given_keys:
            self.gateway.before(self._give_key)
        self._turn = self.gateway.session("s", actor="a").turn()

    # -- faults --------------------------------------------------------------------------------------------------

    def pause(self, seconds: float) -> None:
        self.world.say(f"{self.name}: paused for {seconds:.1f} s")
        self.paused_until = self.last_disturbance = max(self.paused_until, self.world.now + seconds)

    def kill(self) -> None:
        self.world.say(f"{self.name}: killed")
        self.dead = True
        self.disturbed()

    def sees_dead(self, name: str) -> bool:
        """Whether another one is known to be dead: only on the same host."""
        return self.plan.same_host and self._fleet[name].dead

    def _wakes(self, leases: Leases) -> None:
        """Start the renewer with the first lease, as the process's thread would be woken; it ends with the last one."""

        def hold(call: Lease, every: float) -> None:
            Leases.hold(leases, call, every)
            self._wake()

        def finish(*left: Any) -> None:
            Leases.finish(leases, *left)
            self._wake()

        leases.hold = hold  # type: ignore[method-assign]
        leases.finish = finish  # type: ignore[method-assign, assignment]

    def _wake(self) -> None:
        if not self._renews and not self.dead:
            self._renews = True
            self.world.start(f"{self.name}: renewer", self._renew(), self)

    async def _renew(self) -> None:
        asking.set(None)  # its store steps do not belong to the call that woke it
        due = _RENEWS_S
        while (self.leases._held or self.leases._unfinished) and self.world.now < self.plan.ends:
            await Nap(min(max(due, 0.05), _RENEWS_S))
            due = self.leases.look()
        self._renews = False

    # -- its configuration ---------------------------------------------------------------------------------------

    def change(self, change: Change) -> None:
        """Change the running gateway."""
        self.world.say(f"{self.name}: {change.what} = {change.value}")
        self.invariants.seen[f"changed: {change.what}"] += 1
        match change.what:
            case "listener":
                self.gateway.listen(Silent())
            case "before-hook":
                self.gateway.before(lambda call: HookReply(timeout_ms=_HOOK_LIMIT_MS))
            case "after-hook":
                self.gateway.after(_fails)
            case _:
                self._configuration[change.what] = change.value
                self._configure()

    def calm_down(self) -> None:
        """Restore the initial configuration."""
        if self._configuration:
            self._configuration.clear()
            self._configure()

    def _configure(self) -> None:
        self.gateway.configure(self._settings())
        self.modes.append((self.world.now, self._mode()))

    def _settings(self) -> Settings:
        chosen, base = self._configuration, self.plan.retry_base_ms
        tool = ToolOverride(
            enabled=not chosen.get("tool off", False),
            shadow=chosen.get("tool in shadow", False),
            timeout=chosen.get("timeout"),
            breaker=self.plan.policies[chosen.get("breaker", 0)],
        )
        return Settings(
            enabled=chosen.get("enabled", True),
            shadow=chosen.get("shadow", False),
            open_mode=chosen.get("open_mode", True),
            derive_keys=chosen.get("derive_keys", True),
            loop=LoopPolicy(enabled=False),
            retry=RetryPolicy(base_ms=base, max_delay_ms=4 * base, max_attempts=chosen.get("attempts", 4)),
            tools=dict.fromkeys((TOOL, ADAPTED, STREAMED), tool),
        )

    def _mode(self) -> Mode:
        chosen = self._configuration
        if not chosen.get("enabled", True) or chosen.get("tool off", False):
            return "off"
        if chosen.get("shadow", False) or chosen.get("tool in shadow", False):
            return "shadow"
        return "on" if chosen.get("derive_keys", True) else "no keys"

    def _give_key(self, call: HookCall) -> HookReply | None:
        key = self.plan.given_keys.get(call.params["what"])
        return None if key is None else HookReply(idempotency_key=key)

    # -- what it does ----------------------------------------------------------------------------------------------

    async def ask(self, delivery: Delivery, number: int) -> Answered:
        """One call, through one of the public entry points. In a synchronous gateway nothing is awaited."""
        gateway, arguments = self.gateway, {"what": delivery.intent}
        if delivery.way == "execute":
            wire = self.plan.envelope(delivery, number, self.clock.now_ms())
            return answer_of(await maybe_await(gateway.execute(wire)))
        name = delivery.identity if delivery.named else None
        if delivery.way == "adapter":
            return await self._ask_adapter(arguments, name, number)
        session: AbstractContextManager[Any] = gateway.session("s", actor="a")
        with session as opened:
            if delivery.way == "turn":
                turn = self._turn if number % 4 == 0 else opened.turn()
                about = self.plan.named_keys.get(delivery.intent)
                return answer_of(await maybe_await(turn.call(delivery.tool, arguments, name, key=about)))
            try:
                if delivery.way == "stream":
                    return await self._read(self._stream(**arguments), leaves=delivery.leaves)
                function = self.function if delivery.way == "function" else self.function.once(delivery.key)
                return answer_of(await maybe_await(function(**arguments)))
            except Exception as error:
                return failure_of(error)

    async def _ask_adapter(self, arguments: dict[str, Any], call_id: str | None, number: int) -> Answered:
        """Like the adapter of a framework: it has a closure, and names the place of the call."""
        spec, message = self._specs[ADAPTED], "m"
        place = CallIdentity("s", call_id, turn=message) if number % 2 else CallIdentity("s", call_id, message=message)

        async def body(params: dict[str, Any]) -> Any:
            return await self.act(params["what"], None)

        try:
            if self.threads:
                return answer_of(self._guarded.call(spec, arguments, place, lambda params: blocking(body(params))))
            return answer_of(await self._guarded.call_async(spec, arguments, place, body))
        except Exception as error:
            return failure_of(error)

    async def _read(self, stream: Any, *, leaves: bool) -> Answered:
        """Read a stream to its end, or leave after its first chunk."""
        chunks: list[Any] = []
        try:
            if hasattr(stream, "__aiter__"):
                async for chunk in stream:
                    chunks.append(chunk)
                    if leaves:
                        break
            else:
                chunks += islice(stream, 1 if leaves else None)
        finally:
            close = getattr(stream, "aclose", None) or getattr(stream, "close", None)
            if close is not None:
                await maybe_await(close())
        return Answered(LEFT) if leaves and chunks else answer_of(chunks)

    async def act(self, what: str, fence: int | None) -> dict[str, Any]:
        """The tool: it takes time, takes effect at some point, and ends as planned."""
        dispatch, attempt = self._dispatched(what, fence)
        try:
            await self._live(dispatch, attempt)
        finally:
            self._ended(dispatch, attempt)
        return _said(dispatch)

    async def act_in_chunks(self, what: str, fence: int) -> AsyncIterator[dict[str, Any]]:
        """The same with a chunk at the end, and perhaps one in the middle."""
        dispatch, attempt = self._dispatched(what, fence)
        try:
            if attempt.ends == "fine" or self.plan.fails_late():
                await Nap(attempt.before)
                yield _said(dispatch)
                attempt = attempt._replace(before=0.0)
            await self._live(dispatch, attempt)
            yield _said(dispatch)
        finally:
            self._ended(dispatch, attempt)

    def _dispatched(self, what: str, fence: int | None) -> tuple[Dispatch, AttemptPlan]:
        asked = asking.get()
        assert asked is not None
        dispatch = self.invariants.dispatched(what, asked.fence if fence is None else fence, self, asked)
        return dispatch, self.plan.attempt(self.world.now)

    def _ended(self, dispatch: Dispatch, attempt: AttemptPlan) -> None:
        dispatch.ended = self.world.now
        self.world.say(f"{self.name}: act({dispatch.intent}) fence {dispatch.fence} ends: {attempt.ends}")

    async def _live(self, dispatch: Dispatch, attempt: AttemptPlan) -> None:
        after, ends = attempt.after, attempt.ends
        await Nap(attempt.before)
        if self.plan.calls_inside(dispatch.intent):
            await self._shared.call_inside(self, f"{dispatch.intent}{INSIDE}")
        if ends == "refused":
            dispatch.no_effect = True
            raise ConnectionRefusedError(111, "refused")
        if ends in ("fine", "lost") or (ends == "answer 503" and after > 0.1):
            self.invariants.took_effect(dispatch)
        await Nap(after)
        if ends == "answer 400":
            raise HttpError(400)
        if ends == "answer 503":
            raise HttpError(503)
        if ends == "lost":
            raise TimeoutError("no answer")
        dispatch.ok = True

    def read_back(self, params: dict[str, Any], lost: CallContext) -> Any:
        """The tool's ``reconcile``: what really happened to the lost call."""
        found = self.invariants.happened(lost.fence)
        self.world.say(f"{self.name}: act({params['what']}) fence {lost.fence} happened: {found}")
        self.invariants.seen["reconciled"] += 1
        if not found:
            return None if found is None else DidNotHappen()
        said = {"what": params["what"], "fence": lost.fence, "number": 0}
        return Happened([said] if params["what"] in self.plan.streamed else said)


# -- the tools as registered: they run in the worker that calls them ----------------------------------------------


async def _with_context(what: str, ctx: CallContext) -> Any:
    return await _here().act(what, ctx.fence)


async def _plain(what: str) -> Any:
    return await _here().act(what, None)


def _with_context_in_thread(what: str, ctx: CallContext) -> Any:
    return blocking(_here().act(what, ctx.fence))


def _plain_in_thread(what: str) -> Any:
    return blocking(_here().act(what, None))


async def _chunks(what: str, ctx: CallContext) -> AsyncIterator[Any]:
    """A tool that answers in chunks with equal content."""
    async for chunk in _here().act_in_chunks(what, ctx.fence):
        yield chunk


def _chunks_in_thread(what: str, ctx: CallContext) -> Iterator[Any]:
    steps: Any = _here().act_in_chunks(what, ctx.fence)
    try:
        while (chunk := blocking(anext(steps, None))) is not None:
            yield chunk
    finally:
        blocking(steps.aclose())


def _read_back(params: dict[str, Any], lost: CallContext) -> Any:
    return _here().read_back(params, lost)


def _here() -> Worker:
    found: Worker = here.get()
    return found


def _tool_for(plan: Plan, threads: bool) -> Callable[..., Any]:
    """With or without a context, synchronous or asynchronous."""
    if threads or plan.on_threads:
        return _with_context_in_thread if plan.wants_context else _plain_in_thread
    return _with_context if plan.wants_context else _plain


_known: dict[tuple[Any, ...], Tool] = {}


def tool_of(function: Callable[..., Any], spec: ToolSpec, settings: Settings) -> Tool:
    """A tool as a gateway creates it. Its inspection of a function is cached for all workers of all seeds."""
    asked = (function, spec.namespace, spec.name, spec.reconcile)
    found = _known.get(asked)
    if found is None:
        found = _known[asked] = Tool(function, spec, settings)
    tool = copy(found)
    tool.spec = spec
    tool.configure(settings)
    return tool


def _said(dispatch: Dispatch) -> dict[str, Any]:
    return {"what": dispatch.intent, "fence": dispatch.fence, "number": dispatch.number}


def _fails(call: HookCall, outcome: Any) -> None:
    raise RuntimeError("an after-hook that fails changes nothing")
