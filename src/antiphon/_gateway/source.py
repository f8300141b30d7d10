"""A tool's generator, one step at a time, in a context of its own (D18)."""

from __future__ import annotations

from collections.abc import Awaitable, Generator
from contextvars import copy_context
from typing import Any, NamedTuple

from antiphon._gateway.call import GuardedCall
from antiphon._gateway.context import CallContext, running
from antiphon._gateway.threads import TimedOut
from antiphon.ports import Clock

END: Any = object()
"""Marks the end of a stream."""


class Source:
    """The generator runs in its own context, entered for each step and left before the chunk is passed on."""

    __slots__ = ("_clock", "_context", "_iterator", "_limit", "_until")

    def __init__(self, call: GuardedCall, context: CallContext | None, limit: float | None, clock: Clock) -> None:
        self._clock = clock
        self._limit = limit or 0.0
        self._until = None if limit is None else clock.monotonic() + limit
        self._context = copy_context()
        self._iterator = self._context.run(_start, call, context)

    def _left(self) -> float | None:
        """The remaining seconds; raises when there are none."""
        if self._until is None:
            return None
        left = self._until - self._clock.monotonic()
        if left <= 0:
            raise TimedOut(self._limit)
        return left

    def pull(self) -> Any:
        """The next chunk. A running step cannot be stopped: the limit is checked between steps."""
        self._left()
        return self._context.run(next, self._iterator, END)

    async def pull_async(self) -> Any:
        left = self._left()
        step = _InContext(self._context, anext(self._iterator, END))
        return await (step if left is None else within(step, left))

    @property
    def running(self) -> bool:
        """Whether a thread is inside a step."""
        return bool(getattr(self._iterator, "gi_running", False))

    def close(self) -> None:
        self._context.run(self._iterator.close)

    async def aclose(self) -> None:
        await _InContext(self._context, self._iterator.aclose())


def _start(call: GuardedCall, context: CallContext | None) -> Any:
    running.set(context)
    return call.plan.tool.invoke(call.arguments, context)


class Opened(NamedTuple):
    """A stream whose first chunk has arrived."""

    source: Source
    first: Any


class _InContext:
    """An awaitable whose every step runs in the given context, not in the awaiting task's."""

    __slots__ = ("_awaitable", "_context")

    def __init__(self, context: Any, awaitable: Awaitable[Any]) -> None:
        self._context = context
        self._awaitable = awaitable

    def __await__(self) -> Generator[Any, Any, Any]:
        steps = self._awaitable.__await__()
        run = self._context.run
        try:
            waits_for = run(next, steps)
            while True:
                try:
                    sent = yield waits_for
                except BaseException as error:
                    waits_for = run(steps.throw, error)
                else:
                    waits_for = run(steps.send, sent)
        except StopIteration as stop:
            return stop.value


async def within(awaitable: Any, seconds: float) -> Any:
    """Await with a limit of ours, distinguishable from a ``TimeoutError`` of the tool."""
    import asyncio

    timeout = asyncio.timeout(seconds)
    try:
        async with timeout:
            return await awaitable
    except TimeoutError:
        if timeout.expired():
            raise TimedOut(seconds) from None
        raise
