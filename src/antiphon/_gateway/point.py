"""The point of no return: before a tool enters ``effect()`` nothing has happened, whatever it raises."""

from __future__ import annotations

import contextlib
import dis
import functools
import inspect
import sys
import threading
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from types import CodeType, FunctionType, ModuleType
from typing import Any

from antiphon.contract.spec import DidNotHappen


class Point:
    """Whether one attempt has passed it. The first one decides: the tool that passes, or the gateway that gives up."""

    __slots__ = ("_closed", "_entered_elsewhere", "_lock", "passed")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._closed = False
        self._entered_elsewhere = _entered_elsewhere
        self.passed: bool = False

    def enter(self) -> None:
        """The tool proceeds to its effect; raises if nobody waits for it any more."""
        with self._lock:
            if self._closed:
                raise DidNotHappen("The call was given up before its effect; nothing was done.")
            self.passed = True

    def close(self) -> bool:
        """Let nobody pass from now on; return whether nobody has, on this thread or on one that the tool started."""
        with self._lock:
            self._closed = True
            return not self.passed and self._entered_elsewhere == _entered_elsewhere


_entered_elsewhere = 0
"""How often an effect began outside any attempt: it may be that of a tool which started a thread."""
point: ContextVar[Point | None] = ContextVar("antiphon_point", default=None)


class Effect:
    """What :func:`effect` returns."""

    __slots__ = ()

    def __enter__(self) -> None:
        global _entered_elsewhere
        ahead = point.get()
        if ahead is None:
            _entered_elsewhere += 1
        else:
            ahead.enter()

    def __exit__(self, *exc: object) -> None:
        return None


_EFFECT = Effect()


def effect() -> Effect:
    """The part of a tool that has an effect: ``with effect(): ...``.

    An exception that the tool raises before it enters the block says that nothing has happened: the key is free, and
    a call that timed out before it never enters it. An exception inside or after it leaves the outcome unknown.
    Outside a tool call it does nothing. Write it in the tool, or in a function of its module that the tool calls, and
    enter it on the thread that runs the tool.

    >>> with effect():
    ...     "charge the card"
    'charge the card'
    """
    return _EFFECT


# -- does a tool have one? -----------------------------------------------------------------------------------------


def has_point(function: Callable[..., Any]) -> bool:
    """Whether the code of a tool, or of a function of its module that it calls, says where its effect begins."""
    pending, seen = list(_layers(function)), set[int]()
    while pending:
        found = pending.pop()
        if id(found.__code__) in seen:
            continue
        seen.add(id(found.__code__))
        for code in _with_nested(found.__code__):
            if _mentions(code, found):
                return True
            pending.extend(
                other
                for other in map(found.__globals__.get, _called(code))
                if isinstance(other, FunctionType)
                and other.__module__ == found.__module__
                and not hasattr(other, "__wrapped__")
            )
    return False


def _called(code: CodeType) -> Iterator[str]:
    """The globals that *code* calls. One that it only names may run on another thread, or never."""
    steps = [step for step in dis.get_instructions(code) if step.opname not in ("CACHE", "EXTENDED_ARG")]
    for number, step in enumerate(steps):
        if step.opname == "LOAD_GLOBAL":
            beside = (steps[number - 1].opname, steps[number + 1].opname)
            if (step.arg or 0) & 1 or "PUSH_NULL" in beside:  # f(…), f(*…)
                yield step.argval


def _layers(function: Any) -> Iterator[FunctionType]:
    """The function, and those under partials, methods, callable objects and decorators."""
    for _ in range(100):
        if isinstance(function, functools.partial):
            function = function.func
        elif inspect.ismethod(function):
            function = function.__func__
        elif isinstance(function, FunctionType):
            yield function
            if not hasattr(function, "__wrapped__"):
                return
            function = function.__wrapped__
        else:
            function = getattr(type(function), "__call__", None)  # noqa: B004
            if not isinstance(function, FunctionType):
                return


def _with_nested(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _with_nested(constant)


def _enclosed(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """What the function closes over; a name that is not bound yet (its own, in a decorator) is left out."""
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with contextlib.suppress(ValueError):
            yield name, cell.cell_contents


def _mentions(code: CodeType, function: FunctionType) -> bool:
    """Whether *code* names :func:`effect`: by itself, as ``antiphon.effect``, or in an import of its own."""
    outer = dict(_enclosed(function))
    here: dict[str, Any] = {}
    before: Any = None
    for step in dis.get_instructions(code):
        name, last, before = step.argval, before, None
        match step.opname:
            case "LOAD_FAST" | "LOAD_FAST_BORROW" | "LOAD_FAST_CHECK":
                before = here.get(name)
            case "STORE_FAST_LOAD_FAST":  # two in one, since 3.13
                here[name[0]] = last
                before = here.get(name[1])
            case "LOAD_GLOBAL" | "LOAD_NAME" | "LOAD_DEREF":
                before = outer.get(name, function.__globals__.get(name))
                if before is effect:
                    return True
            case "IMPORT_NAME":
                before = sys.modules.get(name)
            case "STORE_FAST":
                here[name] = last
            case "LOAD_ATTR" | "LOAD_METHOD" | "IMPORT_FROM" if name == "effect":
                if isinstance(last, ModuleType) and last.__name__ == "antiphon":
                    return True
            case "CACHE" | "EXTENDED_ARG" | "PUSH_NULL":
                before = last
    return False
