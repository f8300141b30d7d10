"""Two drivers: they perform the steps that a call requests and make no decisions.

The loop is inside a ``try``, and what was raised is examined inside it, too: an interrupt at any instruction is
repaired. One that arrives between the two is caught outside, and the claim is left to the background thread of the
process.
"""

from __future__ import annotations

import contextlib
import inspect
import logging
import sys
import threading
import weakref
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextvars import copy_context
from operator import methodcaller
from typing import Any

from antiphon._daemon import renewed_after_fork
from antiphon._drive import until_cancelled
from antiphon._gateway.admission import admit
from antiphon._gateway.attempt import returned
from antiphon._gateway.call import NO_EXTRAS, GuardedCall
from antiphon._gateway.claim import claimed
from antiphon._gateway.context import CallContext
from antiphon._gateway.outcome import Outcome
from antiphon._gateway.plan import Plans
from antiphon._gateway.recording import RunEntry
from antiphon._gateway.repair import abandon, broke_off
from antiphon._gateway.settlement import settled
from antiphon._gateway.source import Opened, Source, within
from antiphon._gateway.steps import BEGIN, DONE, INVOKE, SETTLE, STORE_STEPS, Plain, Step
from antiphon._gateway.store_breaker import GRACE_S, too_late
from antiphon.contract.events import RunManifest
from antiphon.errors import StoreError
from antiphon.ports import Answer, BreakerRow, Clock, Invocation, Journal, Row, SyncJournal

log = logging.getLogger("antiphon.gateway")

_MOST_FAILURES = 10
"""If deciding on an interrupt is itself interrupted this often in a row, it is no interrupt: it always fails."""
_LONGEST_EXCHANGE_S = 10.0


def run_sync(call: GuardedCall, runtime: SyncRuntime, step: Step | None = None) -> Outcome | None:
    """Make a call in this thread; only control flow is raised."""
    error: BaseException | None = None
    failed = 0
    try:
        while True:
            try:
                if error is not None:
                    broken, error, failed = error, None, failed + 1
                    step = broke_off(call, step, broken)
                    failed = 0
                elif step is None:
                    step = admit(call)
                while True:  # a plain call goes through once
                    if step is BEGIN:
                        begin = runtime.begin
                        step = claimed(call, begin(call, call.events))
                    if step is INVOKE:
                        call.entered = call.number
                        call.value = call.plan.function(**call.arguments)
                        step = returned(call)
                    if step is SETTLE:
                        settle = runtime.settle
                        step = settled(call, settle(call.key, call.version, call.settlement, call.events))
                    if step is DONE:
                        break
                    if step.__class__ is not Plain:
                        step = step.then(call, step.perform(runtime))
                break
            except BaseException as raised:
                error = _again(raised, failed)
    except BaseException:
        abandon(call)
        raise
    if call.extras is not NO_EXTRAS and call.extras.interrupt is not None:
        raise call.extras.interrupt
    return call.outcome


def _again(error: BaseException, failed: int) -> BaseException:
    """What the next iteration examines, unless examining it has failed too often."""
    if failed > _MOST_FAILURES:
        raise error
    return error


async def run_async(call: GuardedCall, runtime: AsyncRuntime, step: Step | None = None) -> Outcome | None:
    """Make a call in this task; what remains to be done after an interrupt is done in a task of its own."""
    error: BaseException | None = None
    failed = 0
    extras = call.extras  # of a call that is being repaired: its own task lets the interrupt pass
    before = None if extras is NO_EXTRAS else extras.interrupt
    try:
        while True:
            try:
                if error is not None:
                    broken, error, failed = error, None, failed + 1
                    step = broke_off(call, step, broken)
                    failed = 0
                    if call.extras.interrupt is not before:
                        break
                elif step is None:
                    step = admit(call)
                while True:
                    if step is BEGIN:
                        begin = runtime.begin
                        reply = begin(call, call.events)
                        step = claimed(call, await runtime.unless_cancelled(reply) if runtime.suspends else reply)
                    if step is INVOKE:
                        call.entered = call.number
                        call.value = await call.plan.function(**call.arguments)
                        step = returned(call)
                    if step is SETTLE:
                        settle = runtime.settle
                        reply = settle(call.key, call.version, call.settlement, call.events)
                        step = settled(call, await reply if runtime.suspends else reply)
                    if step is DONE:
                        return call.outcome
                    if step.__class__ is not Plain:
                        reply = step.perform(runtime)
                        step = step.then(
                            call, await (runtime.unless_cancelled(reply) if isinstance(step, STORE_STEPS) else reply)
                        )
            except BaseException as raised:
                error = _again(raised, failed)
        interrupt = call.extras.interrupt
        assert interrupt is not None
        if isinstance(interrupt, GeneratorExit):  # a closed coroutine cannot wait
            abandon(call)
        elif step is not DONE:
            await runtime.shielded(run_async(call, runtime, step))
    except BaseException:
        abandon(call)
        raise
    raise interrupt


class _Timed:
    """A journal whose steps end at a fixed time, whatever the store does: each on a thread or task of its own."""

    __slots__ = ("_make", "_runtime")

    def __init__(self, runtime: Any, make: Callable[[Callable[[], Any]], Any]) -> None:
        self._runtime = runtime
        self._make = make

    def __getattr__(self, name: str) -> Callable[..., Any]:
        runtime, make = self._runtime, self._make
        return lambda *args, **options: make(lambda: methodcaller(name, *args, **options)(runtime.journal))


class _OneAtATime:
    """Whether something is in progress. If it was interrupted before it began, it does not block others forever."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._until = 0.0

    @property
    def is_under_way(self) -> bool:
        return self._clock.monotonic() < self._until

    def begin(self) -> bool:
        """Whether it may begin now."""
        if self.is_under_way:
            return False
        self._until = self._clock.monotonic() + _LONGEST_EXCHANGE_S
        return True

    def end(self) -> None:
        self._until = 0.0


class _Runtime:
    """What the services of threads and those of event loops have in common."""

    def __init__(self, plans: Plans, feed: BreakerFeed, journal: Any = None) -> None:
        self._plans = plans
        self._feed = feed
        self._journal = journal
        self._breaker = plans.store_breaker
        self._exchanging = _OneAtATime(plans.clock)
        self.reopen()

    def reopen(self) -> None:
        self.begin: Callable[..., Any] = self._first_begin
        self.settle: Callable[..., Any] = self._first_settle

    def connect(self, journal: Any) -> None:
        self.begin, self.settle = journal.begin, journal.settle

    def shut(self) -> None:
        self.begin, self.settle = self._begin_after_probe, self._refused

    def _begin_after_probe(self, *arguments: Any) -> Any:
        raise AssertionError("threads and event loops wait differently")

    def _refused(self, *arguments: Any) -> Any:
        raise self._breaker.refusal()

    def _steps(self) -> Any:
        """The journal of which each call uses two steps."""
        raise AssertionError("threads and event loops have journals of their own")

    def _first_begin(self, *arguments: Any) -> Any:
        return self._connected().begin(*arguments)

    def _first_settle(self, *arguments: Any) -> Any:
        return self._connected().settle(*arguments)

    def _connected(self) -> Any:
        journal = self._steps()
        self._breaker.connect(self, journal)
        return journal

    def let_go(self) -> Any:
        """Stop using the journal."""
        journal, self._journal = self._journal, None
        self.reopen()
        if journal is not None:
            self._feed.stop(journal)
        return journal


class _Until(_Runtime):
    """The services for a call that must end at a fixed time."""

    def __init__(self, runtime: Any, moment: float) -> None:
        self._plans, self._feed, self._breaker = runtime._plans, runtime._feed, runtime._breaker
        self._runtime, self._moment = runtime, moment
        self._timed = _Timed(runtime, self._make)
        self.begin, self.settle = self._begin, self._timed.settle

    def _begin(self, *arguments: Any) -> Any:
        raise AssertionError("threads and event loops wait differently")

    def _make(self, step: Callable[[], Any]) -> Any:
        raise AssertionError("threads and event loops wait differently")

    def _left(self) -> float:
        return self._breaker.seconds_left(self._moment)

    @property
    def journal(self) -> Any:
        return self._timed

    def try_read(self, key: str, identity: str, seconds: float) -> Any:
        return self._runtime.try_read(key, identity, min(seconds, self._left()))

    def refresh(self, seconds: float) -> Any:
        return self._runtime.refresh(min(seconds, self._left()))

    def append(self, run: RunEntry, rows: Sequence[Row]) -> Any:
        return self._make(lambda: self._runtime.append(run, rows))


class SyncRuntime(_Runtime):
    """The services that calls in a thread use."""

    def __init__(self, plans: Plans, feed: BreakerFeed, journal: SyncJournal | None = None) -> None:
        super().__init__(plans, feed, journal)
        self._refuses_when_open = journal is None
        """Whether the store's breaker applies to it."""
        if journal is None:
            self._breaker.watch(self)

    def _begin_after_probe(self, *arguments: Any) -> Any:
        self._breaker.wait_for_probe()
        return self._first_begin(*arguments)

    def _steps(self) -> SyncJournal:
        return self.journal

    @property
    def journal(self) -> SyncJournal:
        journal: SyncJournal | None = self._journal
        if self._refuses_when_open and self._breaker.is_open:
            raise self._breaker.refusal()
        return self._open() if journal is None else journal

    def _open(self) -> SyncJournal:
        """The journal of all threads: the first one opens it, the others wait."""
        with self._feed.opening:
            if self._journal is None:
                self._journal = self._plans.store.open_sync()
            journal: SyncJournal = self._journal
            return journal

    def until(self, deadline: float | None) -> SyncRuntime:
        """The same services for a call that must end soon after *deadline*, whatever the store does."""
        return self if deadline is None or not self._breaker.on else _SyncUntil(self, deadline + GRACE_S)

    def close(self) -> None:
        journal = self.let_go()
        if journal is not None:
            journal.close()

    def sleep(self, seconds: float) -> None:
        self._plans.clock.sleep(seconds)

    def try_read(self, key: str, identity: str, seconds: float) -> Any:
        """The record, if the store answers at once."""
        if not self._breaker.on:
            return self.journal.read(key, identity)
        return self._breaker.try_read(lambda: self.journal.read(key, identity), seconds)

    def refresh(self, seconds: float) -> None:
        """Apply changed settings; and breaker states of others, if they arrive soon: otherwise when they arrive."""
        plans = self._plans
        plans.reload()
        if not self._breaker.on:
            self._exchange()
        elif not self._breaker.is_open and self._exchanging.begin():
            with contextlib.suppress(StoreError):
                self._breaker.within(self._exchange, seconds)
        plans.refreshed()

    def exchange(self) -> None:
        """Exchange breaker states with the store now, unless that is in progress."""
        if not self._breaker.is_open and self._exchanging.begin():
            self._exchange()

    def _exchange(self) -> None:
        plans, feed = self._plans, self._feed
        try:
            journal = self.journal
            if feed.due(journal):
                feed.read(journal, journal.load_breakers(plans.settings.tenant))
            for name, row in plans.unshared_rows():
                journal.save_breaker(plans.settings.tenant, row)
                plans.unshared.pop(name, None)
        except StoreError as error:
            self._breaker.failed(error)
            log.warning("breaker states could not be exchanged: %s", error)
        finally:
            self._exchanging.end()

    def append(self, run: RunEntry, rows: Sequence[Row]) -> None:
        if run.scope.write is not None and rows:
            run.scope.write(rows)

    def audit(self, manifest: RunManifest, row: Row) -> None:
        self.journal.open_run(manifest)
        self.journal.append(manifest.id, (row,))

    def replay(self, run: RunEntry, invocation: Invocation) -> Answer | None:
        assert run.scope.invoker is not None
        return run.scope.invoker.answer_tool(invocation)

    def until_cancelled(self, what: str, after_ms: Any) -> None:
        raise AssertionError("nobody cancels a thread")

    def invoke(self, call: GuardedCall, limit: float | None, context: CallContext | None) -> Any:
        """In this thread, or within a time limit on a thread of its own (R8)."""
        tool, plan = call.plan.tool, call.plan
        if tool.streams:
            source = Source(call, context, limit, plan.clock)
            call.entered = call.number
            return Opened(source, source.pull())
        if limit is not None:
            return plan.threads.run(_on_thread(call, context), limit, call.extras.late)
        call.entered = call.number
        return tool.invoke(call.arguments, context)

    def reconcile(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        return function(*arguments)

    def blocking(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return function(*arguments)


class _SyncUntil(_Until, SyncRuntime):
    def _begin(self, *arguments: Any) -> Any:
        if self._breaker.is_open:
            self._breaker.wait_for_probe(self._left())
        return self._timed.begin(*arguments)

    def _make(self, step: Callable[[], Any]) -> Any:
        if self._breaker.is_open:
            raise self._breaker.refusal()
        seconds = self._left()
        return self._breaker.within(step, seconds, too_late(seconds))


class AsyncRuntime(_Runtime):
    """The services that calls in the tasks of one event loop use."""

    def __init__(self, plans: Plans, feed: BreakerFeed) -> None:
        super().__init__(plans, feed)
        self.suspends: bool = not plans.store.in_process
        """Whether claims are awaited; a store in this process is called without a coroutine."""
        self._breaker.watch(self)

    async def _begin_after_probe(self, *arguments: Any) -> Any:
        await self._breaker.wait_for_probe_async()
        return await self._first_begin(*arguments)

    @property
    def journal(self) -> Journal:
        journal: Journal | None = self._journal
        if self._breaker.is_open:
            raise self._breaker.refusal()
        return self._open() if journal is None else journal

    def _open(self) -> Journal:
        """The journal of this event loop. Those of closed loops are dropped."""
        with self._feed.opening:
            self._feed.let_go_of_closed_loops()
            journal = self._journal = self._plans.store.open_async()
            self._feed.keep(self)
        return journal

    def until(self, deadline: float | None) -> AsyncRuntime:
        """The same services for a call that must end soon after *deadline*, whatever the store does."""
        return self if deadline is None or not self._breaker.on else _AsyncUntil(self, deadline + GRACE_S)

    def _steps(self) -> Journal | SyncJournal:
        return self.journal if self.suspends else self._plans.store.open_sync()

    async def close(self) -> None:
        journal = self.let_go()
        if journal is not None:
            await journal.close()

    async def shielded(self, rest: Awaitable[Any]) -> None:
        """Finish *rest* even if this task is cancelled again."""
        import asyncio  # synchronous programs do without it

        await asyncio.shield(asyncio.ensure_future(rest))

    async def unless_cancelled(self, step: Awaitable[Any]) -> Any:
        """The reply of a store that ends a step before it lets a cancellation pass: nothing may be dispatched then."""
        import asyncio

        reply = await step
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            await asyncio.sleep(0)
        return reply

    async def within(self, awaitable: Awaitable[Any], seconds: float) -> Any:
        """Await with a time limit; raises :class:`~antiphon._gateway.threads.TimedOut`."""
        return await within(awaitable, seconds)

    async def sleep(self, seconds: float) -> None:
        await self._plans.clock.sleep_async(seconds)

    async def try_read(self, key: str, identity: str, seconds: float) -> Any:
        """The record, if the store answers at once."""
        if not self._breaker.on:
            return await self.journal.read(key, identity)
        journal = self.journal
        return await self._breaker.try_read_async(lambda: journal.read(key, identity), seconds)

    async def refresh(self, seconds: float) -> None:
        """Apply changed settings; and breaker states of others, if they arrive soon: otherwise when they arrive."""
        plans = self._plans
        plans.reload()
        if not self._breaker.on:
            await self._exchange()
        elif not self._breaker.is_open and self._exchanging.begin():
            with contextlib.suppress(StoreError):
                await self._breaker.within_async(self._exchange(), seconds)
        plans.refreshed()

    async def _exchange(self) -> None:
        plans, feed = self._plans, self._feed
        try:
            journal = self.journal
            if feed.due(journal):
                feed.read(journal, await journal.load_breakers(plans.settings.tenant))
            for name, row in plans.unshared_rows():
                await journal.save_breaker(plans.settings.tenant, row)
                plans.unshared.pop(name, None)
        except StoreError as error:
            self._breaker.failed(error)
            log.warning("breaker states could not be exchanged: %s", error)
        finally:
            self._exchanging.end()

    async def append(self, run: RunEntry, rows: Sequence[Row]) -> None:
        if run.scope.write_async is not None and rows:
            await run.scope.write_async(rows)

    async def audit(self, manifest: RunManifest, row: Row) -> None:
        await self.journal.open_run(manifest)
        await self.journal.append(manifest.id, (row,))

    async def replay(self, run: RunEntry, invocation: Invocation) -> Answer | None:
        assert run.scope.invoker is not None
        return run.scope.invoker.answer_tool(invocation)

    async def until_cancelled(self, what: str, after_ms: Any) -> None:
        await until_cancelled(what, after_ms)

    async def invoke(self, call: GuardedCall, limit: float | None, context: CallContext | None) -> Any:
        """In this task; a synchronous tool on a thread, so that it does not block the event loop."""
        tool, plan = call.plan.tool, call.plan
        if tool.kind == "sync":
            value = await plan.threads.run_async(_on_thread(call, context), limit, call.extras.late)
            if not inspect.iscoroutine(value):
                return value
            return await (value if limit is None else self.within(value, limit))  # behind a plain decorator
        if tool.streams:
            source = Source(call, context, limit, plan.clock)
            call.entered = call.number
            return Opened(source, await source.pull_async())
        call.entered = call.number
        value = tool.invoke(call.arguments, context)
        return await (value if limit is None else self.within(value, limit))

    async def reconcile(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        if not inspect.iscoroutinefunction(function):
            answer = await self._plans.threads.run_async(lambda: function(*arguments), None, None)
        else:
            answer = function(*arguments)
        return await answer if inspect.isawaitable(answer) else answer

    async def blocking(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function that blocks, without blocking the event loop."""
        import asyncio

        return await asyncio.to_thread(function, *arguments)


class _AsyncUntil(_Until, AsyncRuntime):
    suspends = True

    async def _begin(self, *arguments: Any) -> Any:
        if self._breaker.is_open:
            await self._breaker.wait_for_probe_async(self._left())
        return await self._timed.begin(*arguments)

    async def _make(self, step: Callable[[], Any]) -> Any:
        if self._breaker.is_open:
            raise self._breaker.refusal()
        seconds = self._left()
        return await self._breaker.within_async(step(), seconds, too_late(seconds))


def _on_thread(call: GuardedCall, context: CallContext | None) -> Callable[[], Any]:
    """The tool's call for another thread, with the context of this one."""
    carried, number, invoke = copy_context(), call.number, call.plan.tool.invoke

    def work() -> Any:
        call.entered = number
        return carried.run(invoke, call.arguments, context)

    return work


_SAFETY_NET_S = 30.0


class BreakerFeed:
    """What other processes say about a tenant's breakers (R9).

    A store that can push sends every change at once, and everything again after a gap in its connection; the regular
    read is then only a safety net. Other stores are read once per ``refresh_ms``.
    """

    def __init__(self, plans: Plans) -> None:
        self._plans = plans
        self._rows: dict[str, BreakerRow] = {}
        self._stops: weakref.WeakKeyDictionary[Any, Callable[[], None]] = weakref.WeakKeyDictionary()
        self._next_read = 0.0
        self.opening: Any = threading.RLock()
        """Held while a journal of the gateway is opened."""
        self._runtimes: weakref.WeakKeyDictionary[AsyncRuntime, Any] = weakref.WeakKeyDictionary()
        """The event loop of each runtime that has a journal."""
        renewed_after_fork(self, BreakerFeed.after_fork)

    def keep(self, runtime: AsyncRuntime) -> None:
        """Remember the running event loop as the one of *runtime*."""
        asyncio = sys.modules.get("asyncio")
        loop = None if asyncio is None else asyncio._get_running_loop()
        if loop is not None:
            self._runtimes[runtime] = weakref.ref(loop)

    def let_go_of_closed_loops(self) -> None:
        """Nobody can close their journals: once unreferenced, these close their connections."""
        for runtime, reference in list(self._runtimes.items()):
            loop = reference()
            if loop is None or loop.is_closed():
                del self._runtimes[runtime]
                with contextlib.suppress(RuntimeError):  # a closed loop accepts no callbacks
                    runtime.let_go()

    def due(self, journal: SyncJournal | Journal) -> bool:
        """Whether the rows have to be read; not if the store pushes changes."""
        if not journal.durable:
            return False
        return journal not in self._stops or self._plans.clock.monotonic() >= self._next_read

    def read(self, journal: SyncJournal | Journal, rows: Iterable[BreakerRow]) -> None:
        """Adopt the rows that were read, and subscribe to changes."""
        self._next_read = self._plans.clock.monotonic() + _SAFETY_NET_S
        self._take(rows)
        if journal not in self._stops:
            stop = journal.subscribe_breakers(self._plans.settings.tenant, _weakly(self))
            if stop is not None:
                self._stops[journal] = stop

    def pushed(self, row: BreakerRow) -> None:
        """A row was written somewhere (called from the store's own thread or event loop)."""
        if self._rows.get(row.key) != row:
            self._take((row,), pushed=True)

    def stop(self, journal: SyncJournal | Journal) -> None:
        """Unsubscribe: *journal* is about to be closed."""
        if journal in self._stops:
            self._stops.pop(journal)()

    def after_fork(self) -> None:
        """A child has neither the parent's connection nor its thread: its first call reads and subscribes again."""
        self._stops = weakref.WeakKeyDictionary()
        self.opening = threading.RLock()
        self._plans.next_refresh = self._next_read = 0.0

    def _take(self, rows: Iterable[BreakerRow], *, pushed: bool = False) -> None:
        """A trip counts for others only together with further trips, so all rows are evaluated again."""
        kept = dict(self._rows)
        for row in rows:
            known = kept.get(row.key)
            if known is None or (row.epoch, row.updated_at_ms) >= (known.epoch, known.updated_at_ms):
                kept[row.key] = row
        self._rows = kept
        self._plans.adopt(kept.values(), pushed=pushed)


def _weakly(feed: BreakerFeed) -> Callable[[BreakerRow], None]:
    """A subscription must not keep a forgotten gateway alive."""
    reference = weakref.ref(feed)

    def pushed(row: BreakerRow) -> None:
        listening = reference()
        if listening is not None:
            listening.pushed(row)

    return pushed
