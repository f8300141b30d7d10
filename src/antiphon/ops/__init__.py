"""Use cases. Those that take long hand their work to *progress* item by item, so that whoever waits sees it go on."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Protocol, TypeVar

T = TypeVar("T")


class Progress(Protocol):
    """Passes items on and shows how many there have been; the work is what makes the next item."""

    def __call__(self, items: Iterable[T], total: int | None, label: str, /) -> Iterable[T]:
        """The same *items*, of which there are *total*."""


def silent(items: Iterable[T], total: int | None, label: str, /) -> Iterable[T]:
    """Nobody waits."""
    return items


def each(work: Callable[[T], object], items: Collection[T], progress: Progress, label: str) -> None:
    """Do *work* on each item."""
    for _ in progress(map(work, items), len(items), label):
        pass
