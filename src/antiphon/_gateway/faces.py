"""The two faces of the one pipeline: :class:`Gateway` for threads, :class:`AsyncGateway` for event loops."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, Self, TypeVar, overload

from antiphon._drive import Suspended, drive
from antiphon._gateway import direct, edge
from antiphon._gateway.call import Call, Outcome, from_envelope, to_envelope
from antiphon._gateway.context import held
from antiphon._gateway.core import Core
from antiphon._gateway.express import NOTHING, Express
from antiphon._gateway.hooks import After, Before
from antiphon._gateway.ids import uuid7
from antiphon._gateway.parts import Parts
from antiphon._gateway.recorded import ways
from antiphon._gateway.settings import Settings
from antiphon._gateway.tool import Tool, kind_of, name_of
from antiphon._gateway.turns import AsyncSession, Session, TurnState, active_session, active_turn
from antiphon._scope import _cursor, current_scope
from antiphon.contract.envelope import ToolCallEnvelope
from antiphon.contract.result import ToolDenied, ToolResultEnvelope
from antiphon.contract.spec import ToolSpec
from antiphon.errors import ContractError, InvalidInput, StoreError
from antiphon.ports import AsyncClock, Clock, Journal, Listener

F = TypeVar("F", bound=Callable[..., Any])

_MARK = "__antiphon_tool__"
_WRITE = "Write @gateway.tool(idempotent=False) above the function, or idempotent=True if repeating it is harmless"


class _Face:
    """Registration, hooks and bookkeeping: all that does not depend on how calls are driven."""

    core: Core

    @overload
    def tool(self, name: str, *, namespace: str = "tools", idempotent: bool, **declared: Any) -> Callable[[F], F]: ...

    @overload
    def tool(
        self, name: None = None, *, namespace: str = "tools", idempotent: bool, **declared: Any
    ) -> Callable[[F], F]: ...

    def tool(
        self,
        name: str | Callable[..., Any] | None = None,
        *,
        namespace: str = "tools",
        idempotent: bool | None = None,
        **declared: Any,
    ) -> Callable[[F], F]:
        """Decorate a function: every call of it goes through the gateway; signature and types stay.

        ``idempotent`` says whether repeating the call is harmless; it has no default. Further keywords are those of
        :class:`antiphon.ToolSpec`.
        """
        if idempotent is None:
            raise TypeError(f"{_WRITE}: there is no default.")
        if callable(name):
            raise InvalidInput(f"{_WRITE}; to wrap a function by hand, gateway.tool(idempotent=...)(function).")

        def decorate(function: F) -> F:
            if getattr(function, _MARK, None) is self:
                return function
            title = name if isinstance(name, str) else name_of(function)
            text = (function.__doc__ or "").strip().partition("\n")[0]
            options = {"description": text, **declared}
            return self.register(function, ToolSpec(name=title, namespace=namespace, idempotent=idempotent, **options))

        return decorate

    def register(self, function: F, spec: ToolSpec) -> F:
        """Make *function* callable by name, and return it wrapped. Wrapping twice is wrapping once."""
        if getattr(function, _MARK, None) is self:
            return function
        try:
            ToolSpec.from_wire(spec.to_wire())  # made by hand, so nobody has checked it yet
        except ContractError as error:
            raise InvalidInput(f"The declaration of {spec.name!r} is wrong: {error.message}", path=error.path) from None
        tool = Tool(function, spec, self.core.settings)
        self._check(tool)
        tools = self.core.tools
        tools[tool.full_name] = tool
        if spec.name not in tools or tools[spec.name].full_name == tool.full_name:
            tools[spec.name] = tool
        wrapped = self._wrap(tool)
        functools.update_wrapper(wrapped, function)
        setattr(wrapped, _MARK, self)
        wrapped.tool = tool  # type: ignore[attr-defined]
        return wrapped  # type: ignore[return-value]

    def _check(self, tool: Tool) -> None:
        raise AssertionError("each face checks its tools")

    def _wrap(self, tool: Tool) -> Callable[..., Any]:
        raise AssertionError("each face wraps its tools")

    @property
    def tools(self) -> Mapping[str, ToolSpec]:
        """The registered tools by full name."""
        return {tool.full_name: tool.spec for tool in self.core.tools.values()}

    def before(self, hook: Before) -> Before:
        """Register a hook that runs before each attempt (usable as a decorator)."""
        return self.core.hooks.add_before(hook)

    def after(self, hook: After) -> After:
        """Register a hook that runs after each attempt (usable as a decorator)."""
        return self.core.hooks.add_after(hook)

    def listen(self, listener: Listener) -> None:
        """Tell *listener* about every call, retry, block and breaker change."""
        self.core.telemetry.add(listener)
        self.core.quiet = False

    def metrics(self) -> str:
        """The metrics in Prometheus' text format."""
        return self.core.telemetry.render()

    def sample(self, counts: Mapping[tuple[str, str], int]) -> None:
        """Put the store's records by tool and state (``Claims.counts``) into the metrics, before they are scraped."""
        dedupe = getattr(self.core.telemetry.metrics, "dedupe", None)
        if dedupe is not None:
            dedupe(counts)

    def configure(self, settings: Settings) -> None:
        """Take new settings while running: switches, per-tool overrides, policies."""
        self.core.configure(settings)

    def reload(self) -> None:
        """Look at the configuration file now, as every call does at most once a second (fit for a signal handler)."""
        self.core.reload()

    # -- calls from the outside ----------------------------------------------------------------------------------

    def _envelope_call(self, envelope: ToolCallEnvelope | Mapping[str, Any] | str | bytes) -> Call | ToolResultEnvelope:
        try:
            if isinstance(envelope, ToolCallEnvelope):  # made by hand, so nobody has checked it yet
                envelope = envelope.to_wire()
            checked = ToolCallEnvelope.from_wire(envelope)
        except ContractError as error:
            return edge.invalid(envelope, str(error), self.core)
        except (TypeError, ValueError) as error:
            return edge.invalid({}, f"The envelope cannot be read: {error}.", self.core)
        tool = self.core.find(checked.tool_namespace, checked.tool_name)
        if tool is None:
            return self._unknown_tool(f"{checked.tool_namespace}/{checked.tool_name}", checked.to_wire())
        problem = self._misfit(tool, checked.payload.params, checked.to_wire)
        if problem is not None:
            return problem
        clock = self.core.clock
        call = from_envelope(checked, tool, clock.now_ms(), clock.monotonic())
        call.turn = active_turn.get()
        return call

    def _unknown_tool(self, name: str, envelope: Mapping[str, Any]) -> ToolResultEnvelope:
        known = ", ".join(sorted(self.tools)[:8]) or "none"
        return edge.invalid(envelope, f"Unknown tool {name}. Registered: {known}.", self.core, code="unknown_tool")

    def _misfit(
        self, tool: Tool, params: dict[str, Any], envelope: Callable[[], Mapping[str, Any]]
    ) -> ToolResultEnvelope | None:
        """Arguments that the function cannot take are refused here: they are no outcome of the tool."""
        name, why = tool.misfit(params)
        if not name:
            return None
        return edge.invalid(envelope(), f"{why} (at $.payload.params.{name}).", self.core)

    def _named_call(
        self, state: TurnState, name: str, arguments: Mapping[str, Any], call_id: str | None
    ) -> Call | ToolResultEnvelope:
        request_id = uuid7()
        tool = self.core.tools.get(name)
        if tool is None:
            return self._unknown_tool(name, {"requestId": request_id, "toolName": name})
        params = dict(arguments)
        problem = self._misfit(tool, params, lambda: {"requestId": request_id, "toolName": name})
        if problem is not None:
            return problem
        call = Call(tool, params, state.session.key, state.session.actor, request_id)
        call.call_id = call_id
        call.turn = state
        self._identify(call)
        return call

    def _answer(self, call: Call, outcome: Outcome) -> ToolResultEnvelope:
        return to_envelope(call, outcome, (self.core.clock.monotonic() - call.started) * 1000)

    def _function_call(self, tool: Tool, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
        session = active_session.get()
        turn = active_turn.get()
        if turn is not None:
            session = turn.session
        if session is not None:
            call = Call(tool, tool.bind(args, kwargs), session.key, session.actor, uuid7())
        else:
            call = Call(tool, tool.bind(args, kwargs), "default", "default", uuid7())
        if turn is not None and held.get() is None:  # turn control is about what the model asks for, not its tools
            call.turn = turn
        self._identify(call)
        return call

    def _identify(self, call: Call) -> None:
        """Call identity: the model's call id, else the place in the run, else a new one (D2)."""
        reuse = call.tool.reuse_default
        call.reuse = "turn" if reuse is None else reuse
        if call.call_id is not None:
            scope = current_scope()
            call.identity = f"{scope.run_id}:{call.call_id}" if scope is not None else call.call_id
        elif current_scope() is None:
            call.identity = call.request_id


class Gateway(_Face):
    """Makes tool calls safe for synchronous code.

    Users construct :class:`antiphon.Gateway`, which wires the parts from the configuration.
    """

    def __init__(self, parts: Parts) -> None:
        self._journal: Journal | None = None
        self.core = Core(parts, asynchronous=False, journal=self._open, clock=parts.clock or Clock())

    def _open(self) -> Journal:
        journal = self._journal
        if journal is None:
            journal = self._journal = self.core.store.open_sync()
        return journal

    def _check(self, tool: Tool) -> None:
        if tool.kind in ("async", "async_generator"):
            raise InvalidInput(f"{tool.full_name} is asynchronous: register it with an AsyncGateway.")
        if tool.spec.reconcile is not None and kind_of(tool.spec.reconcile) != "sync":
            raise InvalidInput(f"reconcile of {tool.full_name} is asynchronous: register it with an AsyncGateway.")

    def _wrap(self, tool: Tool) -> Callable[..., Any]:
        core, switches = self.core, self.core.switches

        def guarded(*args: Any, **kwargs: Any) -> Any:
            if not switches.enabled or switches.tools_off:
                if core.bypassed(tool):
                    return direct.direct(core, tool, args, kwargs)
            call = self._function_call(tool, args, kwargs)
            return edge.unwrap(call, self._run(call))

        if not (tool.inline and tool.timeout is None):
            return guarded
        guarded = self._wrap_straight(tool, guarded)
        if not core.in_process:
            return guarded
        express, function = Express(core, tool), tool.function
        hold, release = core.renewer.hold, core.renewer.release

        def swift(*args: Any, **kwargs: Any) -> Any:
            if (not switches.enabled or switches.tools_off) and core.bypassed(tool):
                return direct.direct(core, tool, args, kwargs) if core.hooks.active else function(*args, **kwargs)
            ticket = express.open(args, kwargs)
            if ticket is None:
                return guarded(*args, **kwargs)
            if ticket.version <= 0:
                return ticket.answer if ticket.version else self._follow(ticket.to_call())
            value = NOTHING
            try:
                hold(ticket)
                token = held.set((ticket.key, None))
                value = function(**ticket.params)
                held.reset(token)
                release(ticket)
                if express.close(ticket, value):
                    return value
            except BaseException as error:
                return drive(express.broke_off(ticket, value, error))
            call = core.carry_on(ticket)
            return edge.unwrap(call, drive(core.finish_plain(call, value)))

        return swift

    def _wrap_straight(self, tool: Tool, guarded: Callable[..., Any]) -> Callable[..., Any]:
        switches, (outside, inside) = self.core.switches, ways(self.core, tool)

        def straight(*args: Any, **kwargs: Any) -> Any:
            way = outside if _cursor.get() is None else inside
            ticket = way.enter(args, kwargs) if switches.enabled and not switches.tools_off else None
            if ticket is None:
                return guarded(*args, **kwargs)
            try:
                return way.run(ticket)
            except Suspended as error:
                call = ticket.to_call()
                return edge.unwrap(call, edge.suspended(call, error))

        return straight

    def _follow(self, call: Call) -> Any:
        return edge.unwrap(call, self._run(call))

    def _run(self, call: Call) -> Outcome:
        try:
            return drive(self.core.run(call))
        except Suspended as error:
            return edge.suspended(call, error)

    def execute(self, envelope: ToolCallEnvelope | Mapping[str, Any] | str | bytes) -> ToolResultEnvelope:
        """Run one call envelope (wire form or object); for a bad one the result says what is wrong."""
        call = self._envelope_call(envelope)
        if isinstance(call, ToolResultEnvelope):
            return call
        return self._answer(call, self._outcome(call))

    def _outcome(self, call: Call) -> Outcome:
        if self.core.bypassed(call.tool):
            return direct.direct_outcome(self.core, call)
        return edge.gather(self._run(call))

    def metrics(self) -> str:
        """The metrics in Prometheus' text format, with a fresh look at the store's records."""
        try:
            self.sample(drive(self._open().counts(self.core.settings.tenant)))
        except StoreError as error:
            self.core.log_scrape(error)
        return super().metrics()

    def session(self, session_key: str, *, actor: str = "default") -> Session:
        """Calls made for one actor in one session."""
        return Session(self, session_key, actor)

    def _turn_call(
        self, state: TurnState, name: str, arguments: Mapping[str, Any], call_id: str | None
    ) -> ToolResultEnvelope | ToolDenied:
        call = self._named_call(state, name, arguments, call_id)
        if isinstance(call, ToolResultEnvelope):
            return call
        outcome = self._outcome(call)
        return edge.denied(call, outcome) if outcome.code == "denied" else self._answer(call, outcome)

    def close(self) -> None:
        """Let go of the store."""
        if self._journal is not None:
            self.core.feed.stop(self._journal)
            drive(self._journal.close())
            self._journal = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class AsyncGateway(_Face):
    """Makes tool calls safe for asyncio code; synchronous tools run on worker threads."""

    def __init__(self, parts: Parts) -> None:
        import asyncio
        import weakref

        self._loop_of = asyncio.get_running_loop
        self._journals: weakref.WeakKeyDictionary[Any, Journal] = weakref.WeakKeyDictionary()
        self._last_loop: Any = None
        self._last_journal: Journal | None = None
        self.core = Core(parts, asynchronous=True, journal=self._open, clock=parts.clock or AsyncClock())

    def _open(self) -> Journal:
        loop = self._loop_of()
        if loop is self._last_loop and self._last_journal is not None:
            return self._last_journal
        journal = self._journals.get(loop)
        if journal is None:
            journal = self._journals[loop] = self.core.store.open_async()
        self._last_loop, self._last_journal = loop, journal
        return journal

    def _check(self, tool: Tool) -> None:
        if tool.kind == "generator":
            raise InvalidInput(f"{tool.full_name} is a synchronous generator: register it with a Gateway.")

    def _wrap_stream(self, tool: Tool) -> Callable[..., Any]:
        core = self.core

        async def guarded_stream(*args: Any, **kwargs: Any) -> Any:
            if core.bypassed(tool):
                async for data in direct.direct(core, tool, args, kwargs):
                    yield data
                return
            call = self._function_call(tool, args, kwargs)
            stream = edge.unwrap(call, await core.run(call))
            if not hasattr(stream, "__aiter__"):
                yield stream
                return
            try:
                async for data in stream:
                    yield data
            finally:
                close = getattr(stream, "aclose", None)
                if close is not None:
                    await close()

        return guarded_stream

    def _wrap(self, tool: Tool) -> Callable[..., Any]:
        core, switches = self.core, self.core.switches

        if tool.kind == "async_generator":
            return self._wrap_stream(tool)

        async def guarded(*args: Any, **kwargs: Any) -> Any:
            if not switches.enabled or switches.tools_off:
                if core.bypassed(tool):
                    return await direct.direct_async(core, tool, args, kwargs)
            call = self._function_call(tool, args, kwargs)
            return edge.unwrap(call, await core.run(call))

        plain = tool.kind == "async" and tool.context_param is None and tool.quick_bind is not None
        if not (plain and tool.timeout is None):
            return guarded
        guarded = self._wrap_straight(tool, guarded)
        if not core.in_process:
            return guarded
        express, function = Express(core, tool), tool.function
        hold, release = core.renewer.hold, core.renewer.release

        async def swift(*args: Any, **kwargs: Any) -> Any:
            ticket = express.open(args, kwargs) if switches.enabled and not switches.tools_off else None
            if ticket is None:
                return await guarded(*args, **kwargs)
            if ticket.version <= 0:
                if ticket.version:
                    return ticket.answer
                call = ticket.to_call()
                return edge.unwrap(call, await core.run(call))
            value = NOTHING
            try:
                hold(ticket)
                token = held.set((ticket.key, None))
                value = await function(**ticket.params)
                held.reset(token)
                release(ticket)
                if express.close(ticket, value):
                    return value
            except BaseException as error:
                return await express.broke_off(ticket, value, error)
            call = core.carry_on(ticket)
            return edge.unwrap(call, await core.finish_plain(call, value))

        return swift

    def _wrap_straight(self, tool: Tool, guarded: Callable[..., Any]) -> Callable[..., Any]:
        switches, (outside, inside) = self.core.switches, ways(self.core, tool)

        async def straight(*args: Any, **kwargs: Any) -> Any:
            way = outside if _cursor.get() is None else inside
            ticket = way.enter(args, kwargs) if switches.enabled and not switches.tools_off else None
            return await (guarded(*args, **kwargs) if ticket is None else way.call(ticket))

        return straight

    async def execute(self, envelope: ToolCallEnvelope | Mapping[str, Any] | str | bytes) -> ToolResultEnvelope:
        """Run one call envelope (wire form or object); for a bad one the result says what is wrong."""
        call = self._envelope_call(envelope)
        if isinstance(call, ToolResultEnvelope):
            return call
        return self._answer(call, await self._outcome(call))

    async def _outcome(self, call: Call) -> Outcome:
        if self.core.bypassed(call.tool):
            return await direct.direct_outcome_async(self.core, call)
        return await edge.gather_async(await self.core.run(call))

    def session(self, session_key: str, *, actor: str = "default") -> AsyncSession:
        """Calls made for one actor in one session."""
        return AsyncSession(self, session_key, actor)

    async def _turn_call(
        self, state: TurnState, name: str, arguments: Mapping[str, Any], call_id: str | None
    ) -> ToolResultEnvelope | ToolDenied:
        call = self._named_call(state, name, arguments, call_id)
        if isinstance(call, ToolResultEnvelope):
            return call
        outcome = await self._outcome(call)
        return edge.denied(call, outcome) if outcome.code == "denied" else self._answer(call, outcome)

    async def close(self) -> None:
        """Let go of the store in this event loop."""
        self._last_loop = self._last_journal = None
        journal = self._journals.pop(self._loop_of(), None)
        if journal is not None:
            self.core.feed.stop(journal)
            await journal.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()
