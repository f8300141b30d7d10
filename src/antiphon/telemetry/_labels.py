"""Label values: bounded in number and length, and free of secrets (R11, R14)."""

from __future__ import annotations

import threading
from collections.abc import Callable

from antiphon.telemetry._schema import OTHER

MAX_TOOLS = 200
MAX_CODES = 64
_LONGEST = 128


class Labels:
    """Admits the first so many values; all later ones are counted together as ``other``."""

    __slots__ = ("_clean", "_known", "_lock", "_most")

    def __init__(self, most: int, clean: Callable[[str], str]) -> None:
        self._known: dict[str, str] = {}
        self._lock = threading.Lock()
        self._most = most
        self._clean = clean

    def __call__(self, value: str) -> str:
        """The label for *value*."""
        label = self._known.get(value)
        return self._admit(value) if label is None else label

    def _admit(self, value: str) -> str:
        with self._lock:
            if value not in self._known:
                if len(self._known) >= self._most:
                    return OTHER
                self._known[value] = self._clean(value[:_LONGEST]) or "none"
            return self._known[value]


def tool_of_breaker(key: str) -> str:
    """The ``tool`` label of a breaker: a tool's own goes by the tool's name, others keep theirs (``dependency/…``)."""
    return key.removeprefix("tool/")
