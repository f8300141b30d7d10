"""Complete a coroutine that never suspends, or wait to be cancelled."""

from __future__ import annotations

from collections.abc import Coroutine, Mapping
from typing import Any, NoReturn, TypeVar

from antiphon.errors import ReplayMiss

T = TypeVar("T")


class Suspended(RuntimeError):
    """A coroutine that had to finish at once asked to wait."""


def drive(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run *coroutine* to its end with a single step.

    Model calls and operators' acts are written once, as coroutines; those of synchronous code never suspend, so one
    ``send`` is enough. A suspension means that an asynchronous part was plugged in: the coroutine is closed, its
    ``finally`` blocks run, and :class:`Suspended` is raised.
    """
    try:
        coroutine.send(None)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]
    coroutine.close()
    raise Suspended("asynchronous code suspended in the synchronous journal")


AFTER = "cancelledAfterMs"
"""In the metadata of a recorded answer: how long its caller waited before giving up."""
_PATIENCE_MS = 10_000


def was_cancelled(error: Mapping[str, Any] | None) -> bool:
    """Whether a recorded failure is that the caller's task was cancelled, and the current one can be, too."""
    if not error:
        return False
    of_a_model = error.get("class") == "asyncio.exceptions.CancelledError"
    of_a_tool = error.get("code") == "cancelled" and str(error.get("message")).endswith("interrupted: CancelledError.")
    if not (of_a_model or of_a_tool):
        return False
    import asyncio

    return asyncio._get_running_loop() is not None


async def until_cancelled(what: str, after_ms: Any) -> NoReturn:
    """Stand in for a call whose caller gave up after *after_ms*, until this caller cancels it, too."""
    import asyncio

    waited = after_ms if isinstance(after_ms, (int, float)) else 0
    await asyncio.sleep((2 * min(waited, 3_600_000) + _PATIENCE_MS) / 1000)
    raise ReplayMiss(
        f"The recorded caller cancelled its call of {what} after {waited:.0f} ms; this one was not cancelled.",
        hint="A timeout or a race between tasks may have been removed.",
    )
