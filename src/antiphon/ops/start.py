"""Starts an entry point as a recorded run."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from antiphon._recording.manifest import entry_of
from antiphon._recording.run import Run
from antiphon._scope import RunScope
from antiphon.errors import InvalidInput
from antiphon.ops.app import Antiphon, using
from antiphon.ops.entry import AGENT_MARK, load_entry


def start(app: Antiphon, target: str, given: Any, *, resume: str | None = None) -> Run:
    """Run ``file.py:function`` with *given* as its argument. A failing agent gives a run with ``error`` set."""
    with using(app):
        function = load_entry(target)
        args, kwargs = arguments_of(given)
        _check_arguments(target, function, args, kwargs)
        info = getattr(function, AGENT_MARK, {})
        run = app.run(
            str(info.get("name") or getattr(function, "__name__", "agent")),
            input=given if is_arguments(given) else None if given is None else {"args": [given]},
            entry=entry_of(function),
            function=function,
            resume=resume,
        )
        try:
            with run:
                run.output = call_entry(run.scope, function, args, kwargs)
        except Exception as error:
            run.error = error
    return run


def _check_arguments(target: str, function: Callable[..., Any], args: list[Any], kwargs: dict[str, Any]) -> None:
    """Input that does not fit is a mistake of the caller, not a run of the agent that failed."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # code that does not tell
        return
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        raise InvalidInput(
            f"{target} does not fit its input: {error}.",
            hint="Give --input: one value, or an object with args and kwargs for several.",
        ) from None


def call_entry(scope: RunScope, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Call an entry point, and wait for it if it is asynchronous; its own calls stand in the run's root lane."""
    value = function(*args, **kwargs)
    if not inspect.isawaitable(value):
        return value
    import asyncio

    async def finish() -> Any:
        scope.adopt()
        return await value

    return asyncio.run(finish())


def is_arguments(given: Any) -> bool:
    """Whether the input says ``args`` and ``kwargs`` itself."""
    return isinstance(given, dict) and bool(given) and set(given) <= {"args", "kwargs"}


def arguments_of(given: Any) -> tuple[list[Any], dict[str, Any]]:
    """The input as call arguments."""
    if is_arguments(given):
        return list(given.get("args", [])), dict(given.get("kwargs", {}))
    return ([] if given is None else [given]), {}
