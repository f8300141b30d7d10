"""Complete a coroutine that never suspends: how the synchronous face runs the one core."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class Suspended(RuntimeError):
    """A coroutine that had to finish at once asked to wait."""


def drive(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run *coroutine* to its end with a single step.

    In the synchronous face every port completes without suspending, so one ``send`` is
    enough. A suspension means that an asynchronous part was plugged in: the coroutine is
    closed, its ``finally`` blocks run, and :class:`Suspended` is raised.
    """
    try:
        coroutine.send(None)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]
    coroutine.close()
    raise Suspended("an asynchronous part suspended inside the synchronous face")
