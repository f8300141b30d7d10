"""Starts an entry point as a recorded run."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec

from antiphon._recording.manifest import entry_of
from antiphon._recording.run import EXIT_TAG, Run, exit_code, exit_error
from antiphon._scope import RunScope
from antiphon.errors import InvalidInput
from antiphon.ops.app import Antiphon, using
from antiphon.ops.entry import AGENT_MARK, load_entry

_LOOK_EVERY_S = 1.0


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
        except SystemExit as leaving:
            run.error = leaving if exit_code(leaving) else None
        except Exception as error:
            run.error = error
    return run


def note_exit(app: Antiphon, run: str, code: int) -> None:
    """Note that the program that was *run* ended with *code*, not 0: only who started it knows, after its end."""
    manifest = app.journal.manifest(run)
    if manifest is None or manifest.status == "interrupted":  # kept in a store that went with the process; a signal
        return
    kept = msgspec.structs.replace(manifest, status="failed", tags={**manifest.tags, EXIT_TAG: str(code)})
    if manifest.status != "failed":  # by an exception, which the run tells
        recorder = app.recorder(run, manifest.salt)
        row = recorder.encode("run.finished", None, {"status": "failed", "error": exit_error(code)}, {})
        last = app.journal.append(run, (row,))
        kept = msgspec.structs.replace(kept, events=last + 1, finished_at_ms=app.clock.now_ms())
    app.journal.update_run(kept)


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


def call_entry(
    scope: RunScope,
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    stuck: Callable[[], Exception | None] | None = None,
) -> Any:
    """Call an entry point, and wait for it if it is asynchronous; its own calls stand in the run's root lane.

    *stuck* is asked every second whether there is any sense in waiting longer.
    """
    value = function(*args, **kwargs)
    if not inspect.isawaitable(value):
        return value
    import asyncio

    async def finish() -> Any:
        scope.adopt()
        if stuck is None:
            return await value
        with _watching(stuck) as given_up:
            try:
                return await value
            except asyncio.CancelledError:
                if given_up:
                    raise given_up[0] from None
                raise

    return asyncio.run(finish())


@contextmanager
def _watching(stuck: Callable[[], Exception | None]) -> Iterator[list[Exception]]:
    """Cancel the current task when there is no sense in waiting longer; why stands in the list then."""
    import asyncio

    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    given_up: list[Exception] = []

    watching = True

    def look() -> None:
        error = stuck() if watching else None
        if error is None:
            if watching:
                loop.call_later(_LOOK_EVERY_S, look)
        elif task is not None:
            given_up.append(error)
            task.cancel()

    loop.call_later(_LOOK_EVERY_S, look)
    try:
        yield given_up
    finally:
        watching = False


def is_arguments(given: Any) -> bool:
    """Whether the input says ``args`` and ``kwargs`` itself."""
    return isinstance(given, dict) and bool(given) and set(given) <= {"args", "kwargs"}


def arguments_of(given: Any) -> tuple[list[Any], dict[str, Any]]:
    """The input as call arguments."""
    if is_arguments(given):
        return list(given.get("args", [])), dict(given.get("kwargs", {}))
    return ([] if given is None else [given]), {}
