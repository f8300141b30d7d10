"""The gateways: :class:`Gateway` for threads, :class:`AsyncGateway` for event loops.

Every entry point creates a :class:`~antiphon._gateway.call.GuardedCall` and passes it to a driver.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import re
import time
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from typing import Any, ParamSpec, Protocol, Self, TypeVar, Unpack, overload

from antiphon._gateway import results, undo
from antiphon._gateway.call import GuardedCall, new_call
from antiphon._gateway.drivers import AsyncRuntime, BreakerFeed, SyncRuntime, run_async, run_sync
from antiphon._gateway.hooks import After, Before
from antiphon._gateway.ids import uuid7
from antiphon._gateway.outcome import Outcome
from antiphon._gateway.plan import NO_OPTIONS, Dependencies, OldPlace, Options, Plan, Plans
from antiphon._gateway.report import TraceData
from antiphon._gateway.settings import Settings
from antiphon._gateway.settlement import recover_lost_claim
from antiphon._gateway.source import Opened
from antiphon._gateway.steps import Step
from antiphon._gateway.streams import AsyncStream, StreamState, SyncStream
from antiphon._gateway.tool import BIND, Tool, awaiting, kind_of, name_of
from antiphon._gateway.turns import Answer, AsyncSession, Session, TurnState, active_turn
from antiphon._scope import current_scope
from antiphon.contract._base import UNSET
from antiphon.contract.envelope import Target, ToolCallEnvelope
from antiphon.contract.result import ToolResultEnvelope
from antiphon.contract.spec import ToolOptions, ToolSpec
from antiphon.errors import ContractError, InvalidInput
from antiphon.keys import key_text
from antiphon.ports import BreakerRow, Listener, SyncJournal

F = TypeVar("F", bound=Callable[..., Any])
P = ParamSpec("P")
R = TypeVar("R", covariant=True)
log = logging.getLogger("antiphon.gateway")

Envelope = ToolCallEnvelope | Mapping[str, Any] | str | bytes
_MARK = "__antiphon_tool__"
_WRITE = "Write @gateway.tool(idempotent=False) above the function, or idempotent=True if repeating it is harmless"


class _NotMade:
    """Stands for the plan of a tool before its first call."""

    stale, usual = True, False


_NOT_MADE = _NotMade()


class ToolFunction(Protocol[P, R]):
    """A decorated function: called as before, or for a key."""

    __name__: str
    tool: Tool

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R: ...

    def once(self, key: Any) -> Callable[P, R]:
        """The function for one key (an order, an invoice): it runs once, no matter who calls it or in which session."""

    @overload
    def undo(self, function: F, /) -> F:
        """Declare what undoes a call of this tool when its saga fails: ``def unbook(result, *, booking_id)``.

        It is called with the result and those of the arguments that it names.
        """

    @overload
    def undo(self, *, idempotent: bool = False, **declared: Unpack[ToolOptions]) -> Callable[[F], F]: ...


class BaseGateway:
    """Registration, hooks and bookkeeping: all that does not depend on how calls are driven."""

    def __init__(self, dependencies: Dependencies, *, asynchronous: bool) -> None:
        self._plans = Plans(dependencies, asynchronous=asynchronous)
        self._feed = BreakerFeed(self._plans)
        plans, feed = self._plans, self._feed

        def resume(journal: SyncJournal, call: GuardedCall, step: Step) -> None:
            call.extras.interrupt = None  # from an earlier attempt
            run_sync(call, SyncRuntime(plans, feed, journal), step)

        def regain(journal: SyncJournal, call: GuardedCall) -> bool:
            rest, step = recover_lost_claim(call)
            resume(journal, rest, step)
            if rest.version and plans.leases.holds(call):
                call.version = rest.version
                if call.extras.late is not None:
                    call.extras.late.fences.add(rest.version)
            return rest.version > 0

        plans.leases.resume = resume
        plans.leases.regain = regain
        self._beside: SyncRuntime = SyncRuntime(plans, feed)
        beside = self._beside
        """The services that the shadow-mode thread uses."""
        plans.watcher.drive = lambda call, step: run_sync(call, beside, step)
        plans.watcher.exchange = beside.exchange
        self._warned: set[Tool] = set()

    @overload
    def tool(
        self, name: str, *, namespace: str = "tools", idempotent: bool, **declared: Unpack[ToolOptions]
    ) -> Callable[[Callable[P, R]], ToolFunction[P, R]]: ...

    @overload
    def tool(
        self, name: None = None, *, namespace: str = "tools", idempotent: bool, **declared: Unpack[ToolOptions]
    ) -> Callable[[Callable[P, R]], ToolFunction[P, R]]: ...

    def tool(
        self,
        name: str | Callable[..., Any] | None = None,
        *,
        namespace: str = "tools",
        idempotent: bool | None = None,
        **declared: Any,
    ) -> Callable[[Callable[P, R]], ToolFunction[P, R]]:
        """Decorate a function: every call of it goes through the gateway; signature and types stay.

        ``idempotent`` says whether repeating the call is harmless; it has no default. ``key`` says what a call is
        about: the tool runs once for each key. Further keywords are those of :class:`antiphon.ToolSpec`.

        >>> from antiphon import Gateway
        >>> gateway = Gateway(store="memory:")
        >>> @gateway.tool(idempotent=False, key=lambda order, **_: order)
        ... def charge(order: str, cents: int) -> str:
        ...     return f"charged {cents}"
        >>> charge("order-1042", 500), charge("order-1042", 500)
        ('charged 500', 'charged 500')
        """
        if idempotent is None:
            raise TypeError(f"{_WRITE}: there is no default.")
        if callable(name):
            raise InvalidInput(
                f"{_WRITE}; to wrap a function without the decorator: gateway.tool(idempotent=...)(function)."
            )

        def decorate(function: Any) -> Any:
            if getattr(function, _MARK, None) is self:
                return function
            title = name if isinstance(name, str) else name_of(function)
            text = (function.__doc__ or "").strip().partition("\n")[0]
            options = {"description": text, **declared}
            unknown = options.keys() - set(ToolSpec.__struct_fields__)
            if unknown:
                raise InvalidInput(_no_option(sorted(unknown)[0]), path="$.tool")
            return self.register(function, ToolSpec(name=title, namespace=namespace, idempotent=idempotent, **options))

        return decorate

    @overload
    def register(self, function: F, spec: ToolSpec) -> F: ...

    @overload
    def register(
        self,
        function: F,
        *,
        name: str | None = None,
        namespace: str = "tools",
        idempotent: bool,
        **declared: Unpack[ToolOptions],
    ) -> F: ...

    def register(self, function: F, spec: ToolSpec | None = None, **declared: Any) -> F:
        """Make *function* callable by name, and return it wrapped. Wrapping twice is wrapping once.

        It is declared by a spec, or by the keywords of :meth:`tool`.
        """
        if getattr(function, _MARK, None) is self:
            return function
        if not callable(function):
            raise InvalidInput(
                f"{function!r} is not a function.",
                hint=BIND if isinstance(function, classmethod) else f"{_WRITE}.",
                path="$.function",
            )
        if spec is None:
            decorate: Any = self.tool(declared.pop("name", None), **declared)
            return decorate(function)  # type: ignore[no-any-return]
        if declared:
            raise InvalidInput("Give a spec or keywords, not both.", path="spec")
        try:
            ToolSpec.from_wire(spec.to_wire())  # constructed by hand, so nobody has validated it yet
        except ContractError as error:
            said = _WIRE_PATH.sub(lambda found: f"({_snake(found[1])})", error.message)
            raise InvalidInput(
                f"The declaration of {spec.name!r} is invalid: {said}", path=error.path, hint=error.hint
            ) from None
        _check_declaration(spec)
        asynchronous = self._plans.inline_kind == "async"
        tool = Tool(awaiting(function) if asynchronous else function, spec, self._plans.settings)
        self._check(tool)
        self._plans.add(tool)
        wrapped: Any = self._wrap(tool)
        functools.update_wrapper(wrapped, function)
        setattr(wrapped, _MARK, self)
        wrapped.tool = tool
        wrapped.once = functools.partial(self._once, tool, function)
        wrapped.undo = functools.partial(self._undo, tool)
        return wrapped  # type: ignore[no-any-return]

    def _undo(self, tool: Tool, function: Any = None, /, *, idempotent: bool = False, **declared: Any) -> Any:
        """Declare the inverse of a tool: a tool of its own, called when a saga is undone."""

        def declare(found: Any) -> Any:
            result, names = undo.parameters(tool, found)
            ignored = (result, *sorted((tool.accepts or frozenset()) if names is None else names))
            options: dict[str, Any] = {"effect": "write", "key_ignore": ignored, **declared}
            wrapped: Any = self.register(
                found,
                name=f"{tool.spec.name}.undo",
                namespace=tool.spec.namespace,
                idempotent=idempotent,
                **options,
            )
            tool.undo = undo.Undo(wrapped.tool, result, names, self._plans, self.run)
            return wrapped

        return declare if function is None else declare(function)

    def run(self, call: GuardedCall) -> Any:
        """Make a call that was requested by name."""
        raise AssertionError("each gateway runs its calls")

    def _once(self, tool: Tool, function: Callable[..., Any], key: Any) -> Callable[..., Any]:
        """The tool for one key: it runs once, no matter who calls it or in which session."""
        return functools.update_wrapper(self._wrap(tool, _key_options(tool, key)), function)

    def _maker(self, tool: Tool, given: Options | None) -> Callable[[Plan, dict[str, Any]], GuardedCall]:
        """What makes the calls of a wrapped tool, about what is *given* or what the tool says."""
        return new_call if given is None and tool.key_of is None else functools.partial(self._keyed_call, given)

    def _keyed_call(self, given: Options | None, plan: Plan, arguments: dict[str, Any]) -> GuardedCall:
        call = new_call(plan, arguments)
        self._name(call, given)
        return call

    def _name(self, call: GuardedCall, given: Options | None) -> None:
        """Say what a call is about; one that is off or in shadow mode is made even if its key cannot be computed."""
        plan, options = call.plan, call.options
        try:
            named = given or _key_of(plan.tool, call.arguments)
        except InvalidInput:
            if not plan.off and plan.shadow is None:
                raise
            call.off_path().verdict = "validation_error"
            return
        call.plan = plan.keyed()
        call.options = (
            named if options is NO_OPTIONS else options._replace(given_key=named.given_key, keyed=named.keyed)
        )

    def _plan_of_a_call(self, tool: Tool, given: Options | None) -> Plan:
        """The current plan; warns, once, of a write that cannot be told apart from others."""
        plan = self._plans.plan(tool)
        alone = given is None and tool.key_of is None and active_turn.get() is None and current_scope() is None
        if undo.is_write(tool.spec) and alone and not plan.off and tool not in self._warned:
            self._warned.add(tool)
            log.warning(
                "%s is called outside any run, turn or key: a repeated call of it runs again. "
                "Name what it is about: @gateway.tool(key=...) or %s.once(key)(...)",
                tool.full_name,
                tool.spec.name,
            )
        return plan

    def _check(self, tool: Tool) -> None:
        raise AssertionError("each gateway checks its tools")

    def _wrap(self, tool: Tool, given: Options | None = None) -> Callable[..., Any]:
        raise AssertionError("each gateway wraps its tools")

    @property
    def tools(self) -> Mapping[str, ToolSpec]:
        """The registered tools by full name."""
        return {tool.full_name: tool.spec for tool in list(self._plans.tools.values())}

    def before(self, hook: Before) -> Before:
        """Register a hook that runs before each attempt (usable as a decorator)."""
        self._plans.hooks.add_before(hook)
        self._plans.changed()
        return hook

    def after(self, hook: After) -> After:
        """Register a hook that runs after each attempt (usable as a decorator)."""
        self._plans.hooks.add_after(hook)
        self._plans.changed()
        return hook

    def listen(self, listener: Listener) -> None:
        """Tell *listener* about every call, retry, block and breaker change."""
        self._plans.reporter.add(listener)
        self._plans.changed()

    def metrics(self) -> str:
        """The metrics in the Prometheus text format, with fresh counts from the store.

        It waits for the store, a few seconds at most: in an event loop, call it with ``asyncio.to_thread``.
        """
        return self.metrics_of((self._plans.settings.tenant,))

    def metrics_of(self, tenants: Iterable[str], left: Container[str] = ()) -> str:
        """:meth:`metrics` with the claims and runs of several tenants; *left*: runs that nobody can resume."""
        from antiphon._gateway.gauges import update_gauges

        update_gauges(self._plans, tenants, left)
        return self._plans.reporter.render()

    def sample(self, counts: Mapping[tuple[str, str], int]) -> None:
        """Pass numbers of records by tool and state to the metrics. Deprecated: :meth:`metrics` reads the store."""
        from warnings import warn

        warn("gateway.sample is deprecated: metrics() reads the store itself", DeprecationWarning, stacklevel=2)
        self._plans.reporter.dedupe(counts)

    def configure(self, settings: Settings) -> None:
        """Apply new settings while running: switches, per-tool overrides, policies."""
        self._plans.configure(settings)

    def reload(self) -> None:
        """Check the configuration file now, as calls do at most once a second; safe in a signal handler."""
        self._plans.reload()

    def find(self, namespace: str, name: str) -> Tool | None:
        """The tool of that name, if it is registered."""
        return self._plans.tools.get(f"{namespace}/{name}")

    def has(self, name: str) -> bool:
        """Whether a tool can be called by *name*, short or full."""
        return name in self._plans.tools

    def adopt_breakers(self, rows: list[BreakerRow]) -> None:
        """Adopt breaker states from the store now."""
        self._plans.adopt(rows)

    # -- calls by name -------------------------------------------------------------------------------------------

    def envelope_call(self, envelope: Envelope) -> GuardedCall | ToolResultEnvelope:
        """The call that an envelope asks for, or the result that says what is wrong with it."""
        reporter = self._plans.reporter
        try:
            if isinstance(envelope, ToolCallEnvelope):  # constructed by hand, so nobody has validated it yet
                envelope = envelope.to_wire()
            checked = ToolCallEnvelope.from_wire(envelope)
        except ContractError as error:
            return results.invalid(envelope, str(error), reporter)
        except (TypeError, ValueError) as error:
            return results.invalid({}, f"The envelope cannot be read: {error}.", reporter)
        if wrong := _not_writable(checked):
            return results.invalid(envelope, wrong, reporter)
        name = f"{checked.tool_namespace}/{checked.tool_name}"
        tool = self._tool_for(name, checked.payload.params, checked.to_wire)
        if isinstance(tool, ToolResultEnvelope):
            return tool
        try:
            call = from_envelope(checked, self._plans.plan(tool), active_turn.get())
            if call.options.given_key is None and tool.key_of is not None:
                self._name(call, None)
            return call
        except InvalidInput as error:
            return results.invalid(checked.to_wire(), str(error), reporter)

    def named_call(
        self, state: TurnState, name: str, arguments: Mapping[str, Any], call_id: str | None, key: Any = None
    ) -> GuardedCall | ToolResultEnvelope:
        """The call that a model asks for in a turn, or the result that says what is wrong with it."""
        wire: dict[str, Any] = {"requestId": uuid7(), "toolName": name}
        wrong = _not_text("The name of the tool", name)
        if not wrong and (wrong := _not_text("The call id", call_id, required=False)):
            wrong += ' Give the id that the model or the queue gave the call: turn.call(..., call_id="call_1").'
        given: Any = arguments
        if not wrong and not isinstance(given, Mapping):
            wrong = f"The arguments of {name} must be an object, not a {type(given).__name__}."
        if wrong:
            return results.invalid(wire, wrong, self._plans.reporter)
        params = dict(arguments)
        tool = self._tool_for(name, params, lambda: wire)
        if isinstance(tool, ToolResultEnvelope):
            return tool
        call = new_call(self._plans.plan(tool), params)
        try:
            if key is not None or tool.key_of is not None:
                self._name(call, None if key is None else _key_options(tool, key))
        except InvalidInput as error:
            return results.invalid(wire, str(error), self._plans.reporter)
        call.turn, call.place = state, state.session.place
        if call_id is not None:
            scope = current_scope()
            call.call_id, call.identity = call_id, call_id if scope is None else f"{scope.run_id}:{call_id}"
        return call

    def _tool_for(
        self, name: str, params: dict[str, Any], envelope: Callable[[], Mapping[str, Any]]
    ) -> Tool | ToolResultEnvelope:
        """The tool of that name; or the result for arguments that its function cannot take, which are no outcome."""
        tool = self._plans.tools.get(name)
        if tool is None:
            known = ", ".join(sorted(self.tools)[:8]) or "none"
            said, code = f"Unknown tool {name}. Registered: {known}.", "unknown_tool"
        else:
            wrong, why = tool.misfit(params)
            if not wrong:
                return tool
            said, code = f"{why} (at $.payload.params.{wrong}).", "validation_error"
        return results.invalid(envelope(), said, self._plans.reporter, code=code)

    def answer(self, call: GuardedCall, outcome: Outcome) -> ToolResultEnvelope:
        """The outcome of a call in its documented wire form."""
        return results.to_envelope(call, outcome, (self._plans.clock.monotonic() - call.started) * 1000)

    def _drain(self) -> Iterator[float]:
        yield from self._plans.watcher.drain()
        yield from self._plans.leases.drain()


class Gateway(BaseGateway):
    """Makes tool calls safe for synchronous code.

    Users construct :class:`antiphon.Gateway`, which wires the dependencies from the configuration.
    """

    def __init__(self, dependencies: Dependencies) -> None:
        super().__init__(dependencies, asynchronous=False)
        self._runtime: SyncRuntime = self._beside

    def _check(self, tool: Tool) -> None:
        if tool.kind in ("async", "async_generator"):
            raise InvalidInput(f"{tool.full_name} is asynchronous: register it with an AsyncGateway.")
        if tool.spec.reconcile is not None and kind_of(tool.spec.reconcile) != "sync":
            raise InvalidInput(f"reconcile of {tool.full_name} is asynchronous: register it with an AsyncGateway.")

    def _wrap(self, tool: Tool, given: Options | None = None) -> Callable[..., Any]:
        plans, runtime, make = self._plans, self._runtime, self._maker(tool, given)
        plan: Any = _NOT_MADE

        def guarded(*args: Any, **kwargs: Any) -> Any:
            nonlocal plan
            if not plan.usual:
                if plan.stale:
                    plan = self._plan_of_a_call(tool, given)
                if plan.bypass is not None:
                    if plan.monotonic() < plans.next_refresh:
                        return plan.bypass(*args, **kwargs)
                    plans.check_for_changes()
                    return guarded(*args, **kwargs)
            call = make(plan, plan.bind(*args, **kwargs))
            outcome = run_sync(call, runtime)
            return call.value if outcome is None else self._unwrap(call, outcome)

        return guarded

    def _unwrap(self, call: GuardedCall, outcome: Outcome) -> Any:
        return results.unwrap(call, outcome if outcome.stream is None else self._streamed(call, outcome))

    def _streamed(self, call: GuardedCall, outcome: Outcome) -> Outcome:
        opened = outcome.stream
        if opened.__class__ is Opened:
            outcome.stream = SyncStream(StreamState(call), opened, lambda step: run_sync(call, self._runtime, step))
            call.outcome = None  # not over yet; and only its reader keeps the stream alive
        return outcome

    def run(self, call: GuardedCall) -> Outcome:
        """Make a call that was requested by name; a stream is read to its end."""
        run_sync(call, self._runtime.until(call.options.deadline))
        return results.gather(self._streamed(call, call.result()))

    def execute(self, envelope: Envelope) -> ToolResultEnvelope:
        """Run one call envelope (wire form or object); for a bad one the result says what is wrong."""
        call = self.envelope_call(envelope)
        return call if isinstance(call, ToolResultEnvelope) else self.answer(call, self.run(call))

    def session(self, session_key: str, *, actor: str = "default") -> Session:
        """Calls made for one actor in one session."""
        return Session(self.turn_call, *_named(session_key, actor))

    def turn_call(
        self, state: TurnState, name: str, arguments: Mapping[str, Any], call_id: str | None, key: Any = None
    ) -> Answer:
        """Make a call in a turn."""
        call = self.named_call(state, name, arguments, call_id, key)
        if isinstance(call, ToolResultEnvelope):
            return call
        outcome = self.run(call)
        return results.denied(call, outcome) if outcome.code == "denied" else self.answer(call, outcome)

    def close(self) -> None:
        """Close the store; outcomes not recorded yet are waited for, a second at most."""
        for pause in self._drain():
            time.sleep(pause)
        self._runtime.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class AsyncGateway(BaseGateway):
    """Makes tool calls safe for asyncio code; synchronous tools run on worker threads."""

    def __init__(self, dependencies: Dependencies) -> None:
        import asyncio
        import weakref

        super().__init__(dependencies, asynchronous=True)
        self._loop_of = asyncio.get_running_loop
        self._runtimes: weakref.WeakKeyDictionary[Any, AsyncRuntime] = weakref.WeakKeyDictionary()
        self._last_loop: Any = None
        self._last_runtime: AsyncRuntime

    def _runtime(self) -> AsyncRuntime:
        """The services that the running event loop uses."""
        try:
            loop = self._loop_of()
        except RuntimeError:
            raise RuntimeError(
                "AsyncGateway needs a running asyncio event loop (anyio on asyncio has one, trio has none)."
            ) from None
        if loop is self._last_loop:
            return self._last_runtime
        runtime = self._runtimes.get(loop)
        if runtime is None:
            runtime = self._runtimes[loop] = AsyncRuntime(self._plans, self._feed)
        self._last_loop, self._last_runtime = loop, runtime
        return runtime

    def _check(self, tool: Tool) -> None:
        if tool.kind == "generator":
            raise InvalidInput(
                f"{tool.full_name} is a synchronous generator, which an event loop cannot wait for.",
                hint="Write it with async def, or call it through a Gateway, outside of a host.",
            )

    def _wrap(self, tool: Tool, given: Options | None = None) -> Callable[..., Any]:
        plans, runtime_of, make = self._plans, self._runtime, self._maker(tool, given)
        plan: Any = _NOT_MADE

        async def guarded(*args: Any, **kwargs: Any) -> Any:
            nonlocal plan
            if not plan.usual:
                if plan.stale:
                    plan = self._plan_of_a_call(tool, given)
                if plan.bypass is not None:
                    if plan.monotonic() >= plans.next_refresh:
                        plans.check_for_changes()
                        return await guarded(*args, **kwargs)
                    if tool.kind != "sync":
                        value = plan.bypass(*args, **kwargs)
                        return value if tool.streams else await value
            call = make(plan, plan.bind(*args, **kwargs))
            outcome = await run_async(call, runtime_of())
            return call.value if outcome is None else self._unwrap(call, outcome)

        async def guarded_stream(*args: Any, **kwargs: Any) -> Any:
            async with contextlib.aclosing(await guarded(*args, **kwargs)) as stream:
                async for data in stream:
                    yield data

        return guarded_stream if tool.streams else guarded

    def _unwrap(self, call: GuardedCall, outcome: Outcome) -> Any:
        return results.unwrap(call, outcome if outcome.stream is None else self._streamed(call, outcome))

    def _streamed(self, call: GuardedCall, outcome: Outcome) -> Outcome:
        opened = outcome.stream
        if opened.__class__ is Opened:
            state, runtime = StreamState(call), self._runtime()
            outcome.stream = AsyncStream(state, opened, lambda step: run_async(call, runtime, step), runtime.shielded)
            call.outcome = None
        return outcome

    async def run(self, call: GuardedCall, overhear: Callable[[Any], Any] | None = None) -> Outcome:
        """Make a call that was requested by name; a stream is read to its end, through *overhear* if that is given."""
        await run_async(call, self._runtime().until(call.options.deadline))
        outcome = self._streamed(call, call.result())
        if overhear is not None and outcome.stream is not None and hasattr(outcome.stream, "__aiter__"):
            outcome.stream = overhear(outcome.stream)
        return await results.gather_async(outcome)

    async def execute(self, envelope: Envelope) -> ToolResultEnvelope:
        """Run one call envelope (wire form or object); for a bad one the result says what is wrong."""
        call = self.envelope_call(envelope)
        return call if isinstance(call, ToolResultEnvelope) else self.answer(call, await self.run(call))

    def session(self, session_key: str, *, actor: str = "default") -> AsyncSession:
        """Calls made for one actor in one session."""
        return AsyncSession(self.turn_call, *_named(session_key, actor))

    async def turn_call(
        self, state: TurnState, name: str, arguments: Mapping[str, Any], call_id: str | None, key: Any = None
    ) -> Answer:
        """Make a call in a turn."""
        call = self.named_call(state, name, arguments, call_id, key)
        if isinstance(call, ToolResultEnvelope):
            return call
        outcome = await self.run(call)
        return results.denied(call, outcome) if outcome.code == "denied" else self.answer(call, outcome)

    async def close(self) -> None:
        """Close the store in this event loop; outcomes not recorded yet are waited for, a second at most."""
        import asyncio

        for pause in self._drain():
            await asyncio.sleep(pause)
        self._last_loop = None
        runtime = self._runtimes.pop(self._loop_of(), None)
        if runtime is not None:
            await runtime.close()
        if not self._runtimes and not self._plans.watcher.waiting:
            self._beside.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()


_WIRE_PATH = re.compile(r"\(at \$\.([\w.]+)\)")


def _snake(path: str) -> str:
    """The keywords that lead to a field of a declaration."""
    return re.sub(r"[A-Z]", lambda found: f"_{found[0].lower()}", path)


def _no_option(name: str) -> str:
    from difflib import get_close_matches

    known = [field for field in ToolSpec.__struct_fields__ if field not in ("name", "namespace")]
    near = get_close_matches(name, known, 1)
    return f"A tool has no option {name!r}. " + (f"Did you mean {near[0]}?" if near else f"It has: {', '.join(known)}.")


def _key_options(tool: Tool, key: Any) -> Options:
    """A call about *key*."""
    try:
        text, kind = key_text(key)
    except InvalidInput as error:
        raise InvalidInput(
            f"A call of {tool.full_name} needs a key: {error.message}",
            path="$.key",
            hint="Name what the call is about with a string, such as an order number.",
        ) from None
    return Options(given_key=text, keyed=kind)


def _key_of(tool: Tool, arguments: dict[str, Any]) -> Options:
    """A call about what the declaration of its tool says."""
    assert tool.key_of is not None
    try:
        key = tool.key_of(arguments)
    except Exception as error:
        raise InvalidInput(
            f"The key of a call of {tool.full_name} cannot be made: {type(error).__name__}: {error}.",
            path="$.key",
            hint="Nothing ran. Correct the function that the tool declares as key=.",
        ) from error
    return _key_options(tool, key)


def _not_text(what: str, value: Any, *, required: bool = True) -> str:
    """What is wrong with an id or a name; empty if it is a string that can be stored."""
    if value is None and not required:
        return ""
    if not isinstance(value, str):
        return f"{what} must be a string, not {value!r} ({type(value).__name__})."
    if not value.strip():
        return f"{what} must not be empty."
    try:
        value.encode()
    except UnicodeEncodeError as error:
        return f"{what} has a lone surrogate at index {error.start}."
    return ""


def _not_writable(envelope: ToolCallEnvelope) -> str:
    """What is wrong with the ids and names of an envelope; empty if they can be stored."""
    target = envelope.target
    texts = {
        "requestId": envelope.request_id,
        "toolCallId": envelope.tool_call_id,
        "toolName": envelope.tool_name,
        "toolNamespace": envelope.tool_namespace,
        "payload.idempotencyKey": envelope.payload.idempotency_key,
        **{f"target.{name}": value for name, value in target.to_wire().items()},
        **{f"trace.{name}": value for name, value in envelope.trace.to_wire().items()},
    }
    try:
        "".join([text for text in texts.values() if type(text) is str]).encode()
    except UnicodeEncodeError:
        for name, text in texts.items():
            if type(text) is str and (wrong := _not_text(name, text)):
                return f"{wrong.removesuffix('.')} (at $.{name})."
    return ""


def _named(session: str, actor: str) -> tuple[str, str]:
    wrong = _not_text("The session", session) or _not_text("The actor", actor)
    if wrong:
        raise InvalidInput(wrong, hint='Name it with a string, for example: gateway.session("order-1042").')
    return session, actor


def _check_declaration(spec: ToolSpec) -> None:
    """Reject what a declaration may not say although each of its parts is valid."""
    if spec.scope == "global" and spec.effect != "read":
        raise InvalidInput(
            f"{spec.name!r} has scope='global', so all sessions and actors would share its answers.",
            hint="Only reads may: declare effect='read', or leave the scope out.",
        )
    if not spec.idempotent and spec.reuse not in (None, "turn", "never"):
        raise InvalidInput(
            f"reuse={spec.reuse!r} has no effect on {spec.name!r}: a new call of a tool that is not idempotent runs.",
            hint="To run it once per order, invoice or request, name that: @gateway.tool(key=...).",
        )


def from_envelope(envelope: ToolCallEnvelope, plan: Plan, turn: TurnState | None) -> GuardedCall:
    """The call; budgets are the smaller of the envelope's and the tool's (R1)."""
    target, payload, transport, control = envelope.target, envelope.payload, envelope.transport, envelope.control
    call = new_call(plan, payload.params)
    call.turn = turn
    call.request_id = envelope.request_id
    call.token = uuid7()  # an envelope may be delivered twice
    call.call_id = None if envelope.tool_call_id is UNSET else envelope.tool_call_id
    call.identity = call.call_id or envelope.request_id
    workspace, before = _scope_of(target, plan.plans.settings)
    call.place = (target.session_key, target.actor_id, workspace)
    hints = payload.call_hints
    timeout_ms = UNSET if hints is UNSET else hints.timeout_ms
    clock = plan.clock
    deadline_ms = control.deadline_at_ms
    call.options = Options(
        given_key=None if payload.idempotency_key is UNSET else payload.idempotency_key,
        mode=transport.dedupe_mode,
        timeout_s=None if timeout_ms is UNSET else timeout_ms / 1000,
        deadline=None if deadline_ms is UNSET else clock.monotonic() + (deadline_ms - clock.now_ms()) / 1000,
        max_attempts=transport.retry_budget.max_attempts,
        max_elapsed_ms=transport.retry_budget.max_elapsed_ms,
        breaker="tool" if transport.circuit_breaker_hint is UNSET else transport.circuit_breaker_hint,
        safety_critical=hints is not UNSET and hints.safety_critical is True,
        retry_safe=hints is not UNSET and hints.expected_retry_safe is True,
        reuse="never" if plan.tool.spec.effect == "write" else "session",
        trace_data=_trace_data(envelope),
        by_id=True,
        before=before,
    )
    return call


def _scope_of(target: Target, settings: Settings) -> tuple[str | None, OldPlace | None]:
    """One string for tenant and workspace of an envelope, unique per scope; and that of 0.1.0, if it differs.

    An envelope can narrow its tenant, never choose it (D31): naming the gateway's own changes nothing.
    """
    tenant = None if target.tenant_id is UNSET else target.tenant_id
    given = None if target.workspace_id is UNSET else target.workspace_id
    old = given if tenant is None else f"{tenant}/{given or ''}"
    if tenant in (None, settings.tenant):
        new = None if given in (None, settings.workspace) else _escaped(given)
    else:
        new = f"{_escaped(tenant)}/{_escaped(given or '')}"
    if new == settings.workspace:
        new += "%"  # no other scope ends with it
    if old in (None, new or settings.workspace):
        return new, None
    return new, OldPlace(old, shared=tenant != settings.tenant or "/" in (given or ""))


def _escaped(text: str) -> str:
    return text.replace("%", "%25").replace("/", "%2F")


def _trace_data(envelope: ToolCallEnvelope) -> TraceData | None:
    correlation, control, trace = envelope.target.correlation_id, envelope.control, envelope.trace
    trace_data = TraceData(
        None if correlation is UNSET else correlation,
        None if control.request_tags is UNSET else control.request_tags,
        None if trace.baggage is UNSET else trace.baggage,
        None if trace.traceparent is UNSET else trace.traceparent,
        None if control.from_hook is UNSET else control.from_hook,
    )
    return trace_data if any(trace_data) else None
