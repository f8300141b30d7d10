"""Use cases. Slow ones pass their work through *progress* item by item, so that the caller can show progress."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Protocol, TypeVar

T = TypeVar("T")


class Progress(Protocol):
    """Passes items on and reports how many there have been; the work happens while the next item is produced."""

    def __call__(self, items: Iterable[T], total: int | None, label: str, /) -> Iterable[T]:
        """The same *items*, of which there are *total*."""


def silent(items: Iterable[T], total: int | None, label: str, /) -> Iterable[T]:
    """Reports nothing."""
    return items


def each(work: Callable[[T], object], items: Collection[T], progress: Progress, label: str) -> None:
    """Do *work* on each item."""
    for _ in progress(map(work, items), len(items), label):
        pass
