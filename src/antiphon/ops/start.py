"""Starts an entry point as a recorded run."""

from __future__ import annotations

import inspect
from typing import Any

from antiphon._recording.manifest import entry_of
from antiphon._recording.run import Run
from antiphon.ops.app import AGENT_MARK, Antiphon, using
from antiphon.ops.entry import load_entry


def start(app: Antiphon, target: str, given: Any, *, resume: str | None = None) -> Run:
    """Run ``file.py:function`` with *given* as its argument. A failing agent gives a run with ``error`` set."""
    with using(app):
        function = load_entry(target)
        args, kwargs = arguments_of(given)
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
                value = function(*args, **kwargs)
                if inspect.isawaitable(value):
                    import asyncio

                    value = asyncio.run(_await(value))
                run.output = value
        except Exception as error:
            run.error = error
    return run


async def _await(value: Any) -> Any:
    return await value


def is_arguments(given: Any) -> bool:
    """Whether the input says ``args`` and ``kwargs`` itself."""
    return isinstance(given, dict) and bool(given) and set(given) <= {"args", "kwargs"}


def arguments_of(given: Any) -> tuple[list[Any], dict[str, Any]]:
    """The input as call arguments."""
    if is_arguments(given):
        return list(given.get("args", [])), dict(given.get("kwargs", {}))
    return ([] if given is None else [given]), {}
