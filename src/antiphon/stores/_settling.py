"""Ending a claim whose log and record are two writes: a repeated call does only what is left to do."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence

from antiphon.errors import StoreError
from antiphon.ports import Row

_REMEMBERED = 1024
_NOTHING = (False, None)


class Settling:
    """The outcome event first, then the record: if the second write fails, the first can repair it.

    A log that cannot be written does not keep the record from being settled: duplicates are answered rightly, and
    the failure is raised afterwards.
    """

    __slots__ = ("_halfway",)

    def __init__(self) -> None:
        self._halfway: OrderedDict[tuple[str, int], tuple[bool, tuple[int | None] | None]] = OrderedDict()

    async def run(
        self,
        key: str,
        version: int,
        events: Sequence[Row],
        append: Callable[[Sequence[Row]], Awaitable[None]],
        settle: Callable[[], Awaitable[int | None]],
    ) -> int | None:
        """The new version, or ``None`` if fenced."""
        logged, settled = self._halfway.pop((key, version), _NOTHING)
        failure: StoreError | None = None
        if not logged:
            try:
                await append(events)
                logged = True
            except StoreError as error:
                failure = error
        try:
            if settled is None:
                settled = (await settle(),)
        finally:
            if settled is None or failure is not None:
                self._remember(key, version, logged, settled)
        if failure is not None:
            raise failure
        return settled[0]

    def _remember(self, key: str, version: int, logged: bool, settled: tuple[int | None] | None) -> None:
        self._halfway[key, version] = (logged, settled)
        if len(self._halfway) > _REMEMBERED:
            self._halfway.popitem(last=False)
