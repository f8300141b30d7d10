"""Drops what has expired, now and then and in portions, so that nobody has to run a job for it (R6).

Every process of a fleet does its share: the pauses are jittered, a portion is bounded, and what one process has
dropped is no work for the next.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable

from antiphon.errors import StoreError
from antiphon.ports import SyncJournal

log = logging.getLogger("antiphon.janitor")

PAUSE_S = 60.0
PORTION = 1000
_SOON_S = 1.0


class Janitor:
    """When to sweep which store; one for all gateways of a process, looked after by one thread."""

    def __init__(self) -> None:
        self._due: dict[str, float] = {}
        self._random = random.Random()

    def look(self, place: str, journal: Callable[[], SyncJournal], now: float) -> float:
        """Sweep the store at *place* if it is time; seconds until it is time again."""
        due = self._due.get(place)
        if due is None:
            due = self._due[place] = now + self._pause()
        if now < due:
            return due - now
        pause = self._pause()
        try:
            swept = journal().sweep(PORTION)
        except StoreError as error:
            log.info("expired records were not swept, will try again: %s", error)
        else:
            if swept >= PORTION:
                pause = _SOON_S
        self._due[place] = now + pause
        return pause

    def _pause(self) -> float:
        return PAUSE_S * self._random.uniform(0.5, 1.5)
