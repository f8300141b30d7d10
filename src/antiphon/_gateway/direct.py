"""The layer switched off: the function is called, its hooks fire once, nothing else happens (R12, TR-14)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from antiphon._gateway.call import Call, Outcome, failed
from antiphon._gateway.context import CallContext
from antiphon._gateway.hooks import HookCall
from antiphon._gateway.ids import uuid7
from antiphon._gateway.tool import Tool
from antiphon.decide.classify import classify, is_control_flow

if TYPE_CHECKING:
    from antiphon._gateway.core import Core


def direct(core: Core, tool: Tool, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call the function as if there were no gateway."""
    if tool.context_param is not None and tool.context_param not in kwargs:
        kwargs = {**kwargs, tool.context_param: _context(tool)}
    if not core.hooks.active:
        return tool.function(*args, **kwargs)
    hooked = _before(core, tool, args, kwargs)
    try:
        value = tool.function(*args, **kwargs)
    except BaseException as error:
        core.hooks.after(hooked, _failure(tool, error))
        raise
    core.hooks.after(hooked, Outcome("success", value, 1))
    return value


async def direct_async(core: Core, tool: Tool, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Await the function as if there were no gateway; a synchronous one still does not block the event loop."""
    if tool.context_param is not None and tool.context_param not in kwargs:
        kwargs = {**kwargs, tool.context_param: _context(tool)}
    hooked = _before(core, tool, args, kwargs) if core.hooks.active else None
    try:
        if tool.kind == "async":
            value = await tool.function(*args, **kwargs)
        else:
            value = await core.attempts.threads.run_async(lambda: tool.function(*args, **kwargs), None, None)
    except BaseException as error:
        if hooked is not None:
            core.hooks.after(hooked, _failure(tool, error))
        raise
    if hooked is not None:
        core.hooks.after(hooked, Outcome("success", value, 1))
    return value


def direct_outcome(core: Core, call: Call) -> Outcome:
    """A named call answered by a plain one."""
    call.started = core.clock.monotonic()
    try:
        value = direct(core, call.tool, (), dict(call.params))
        return Outcome("success", list(value) if call.tool.streams else value, 1)
    except Exception as error:
        return _failure(call.tool, error)


async def direct_outcome_async(core: Core, call: Call) -> Outcome:
    """The same in an event loop."""
    call.started = core.clock.monotonic()
    try:
        if call.tool.streams:
            return Outcome("success", [data async for data in direct(core, call.tool, (), dict(call.params))], 1)
        return Outcome("success", await direct_async(core, call.tool, (), dict(call.params)), 1)
    except Exception as error:
        return _failure(call.tool, error)


def _before(core: Core, tool: Tool, args: tuple[Any, ...], kwargs: dict[str, Any]) -> HookCall:
    try:
        params = tool.bind(args, kwargs)
    except Exception:  # the function itself will say what is wrong with its arguments
        params = kwargs
    hooked = HookCall(tool.spec.name, tool.spec.namespace, params, "", "", "", None, 1)
    core.hooks.before(hooked)
    return hooked


def _context(tool: Tool) -> CallContext:
    """A tool that asks for its context gets one: new key, no fence."""
    fresh = uuid7()
    return CallContext(tool.full_name, fresh, 0, None, 1, fresh, None, "", "")


def _failure(tool: Tool, error: BaseException) -> Outcome:
    if is_control_flow(error):
        return failed("error", "cancelled", f"{tool.full_name} was interrupted: {type(error).__name__}.", attempts=1)
    failure = classify(error, tool.listed)
    outcome = failed("error", failure.code, failure.message, retriable=failure.retriable, attempts=1)
    outcome.exception = error
    return outcome
