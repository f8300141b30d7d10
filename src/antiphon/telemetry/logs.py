"""Structured logs: one JSON object per event, through the standard ``logging``, redacted (R11, R14, TR-15)."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import IO, TYPE_CHECKING, Any

from antiphon._late import LateRedactor

if TYPE_CHECKING:
    from antiphon.redact import Redactor
    from antiphon.telemetry._lines import Lines


LEVELS: Mapping[str, int] = {
    "tool_call_start": logging.DEBUG,
    "tool_call_end": logging.INFO,
    "tool_call_blocked": logging.WARNING,
    "tool_call_retry": logging.WARNING,
    "tool_call_circuit_state": logging.WARNING,
}
"""Events that are not listed are warnings: somebody should know."""


class JsonLogListener:
    """Writes events to the logger ``antiphon``; an event without a handler costs a fraction of a microsecond.

    Levels, handlers, filters and the record factory may change at any time.
    """

    __slots__ = ("_lines", "_logger", "_now_ms", "_redactor")

    def __init__(
        self,
        redactor: Redactor | LateRedactor,
        *,
        logger: str = "antiphon",
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self._redactor = redactor
        self._lines: Lines | None = None
        self._logger = logging.getLogger(logger)
        self._now_ms = now_ms

    def wants(self, event: str) -> bool:
        """Whether the event would be written: check before building its fields."""
        level = LEVELS.get(event, logging.WARNING)
        return self._logger.isEnabledFor(level) and _is_heard(self._logger, level)

    def emit(self, event: str, fields: Mapping[str, Any]) -> None:
        """Write *event* as one line."""
        level = LEVELS.get(event, logging.WARNING)
        logger = self._logger
        if logger.isEnabledFor(level) and _is_heard(logger, level):
            line = (self._lines or self._begin()).encode(event, self._now_ms(), fields)
            # The location is fixed: finding the caller on the stack would cost as much as everything else.
            logger.handle(logger.makeRecord(logger.name, level, __file__, 0, line, (), None, "emit"))

    def _begin(self) -> Lines:
        """For the first line only: no pattern is compiled before it."""
        from antiphon.telemetry._lines import Lines

        redactor = self._redactor
        self._lines = lines = Lines(redactor.made if isinstance(redactor, LateRedactor) else redactor)
        return lines


def _is_heard(logger: logging.Logger, level: int) -> bool:
    """Whether a handler would write a line of *level*; if there are none, Python's last resort is not used either."""
    at: logging.Logger | None = logger
    while at is not None:
        for handler in at.handlers:
            if handler.level <= level and handler.__class__ is not logging.NullHandler:
                return True
        at = at.parent if at.propagate else None
    return False


def json_logs(level: str | int = logging.INFO, stream: IO[str] | None = None) -> logging.Handler:
    """Write the logger ``antiphon`` to *stream* (standard error by default), one JSON object per line."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logging.Formatter("%(message)s"))
    logger = logging.getLogger("antiphon")
    logger.addHandler(handler)
    logger.setLevel(level)
    logger.propagate = False
    return handler
